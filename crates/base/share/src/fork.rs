//! fork(2) made right. To the program the heap is private memory, so a child gets the contents of the moment of the
//! fork, at the same addresses, as private memory over a snapshot; the parent goes on with the object. Children that
//! are forked one after the other share a snapshot, and get what has changed since.
//!
//! The copy is made in the parent, after the last of the program's own prepare handlers and before the process is
//! duplicated, with the device's peers held off. Our handlers are the first ones registered, thus the innermost. A
//! child that the C library knows nothing of (a raw clone) has no heap at all: a fault there, never a write into the
//! parent's.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

use rangemap::RangeSet;

use crate::blocks::State;
use crate::maps::MADV_GUARD_INSTALL;
use crate::marks::{Mark, There};
use crate::mode::stopped;
use crate::object::Object;
use crate::program;
use crate::reaper;
use crate::room::Room;
use crate::settings::say;
use crate::snapshots::{Changes, Packed, Snapshot};
use crate::state::{Heap, Locked, hold};
use crate::sys;

/// The device's functions, as addresses; 0: none.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
static AFTER: AtomicUsize = AtomicUsize::new(0);

/// Sets what is called around a fork, in the parent.
pub fn set_gate(before: Option<unsafe extern "C" fn()>, after: Option<unsafe extern "C" fn()>) {
    BEFORE.store(before.map_or(0, |f| f as usize), Ordering::Release);
    AFTER.store(after.map_or(0, |f| f as usize), Ordering::Release);
}

fn call(gate: &AtomicUsize) {
    let address = gate.load(Ordering::Acquire);
    if address != 0 {
        // SAFETY: stored by `set_gate` from a function of this type.
        let function: unsafe extern "C" fn() = unsafe { std::mem::transmute(address) };
        // SAFETY: the setter of the gate promised a function that may be called around fork.
        unsafe { function() };
    }
}

/// State between the handlers of one fork.
struct Between {
    heap: Option<Locked>,
    table: Option<MutexGuard<'static, program::Table>>,
    copy: Inherited,
    /// The program's errno: a fork that succeeds does not change it.
    errno: c_int,
}

struct Slot(UnsafeCell<Between>);
// SAFETY: written by the thread that forks only, which holds the heap's lock meanwhile.
unsafe impl Sync for Slot {}

static BETWEEN: Slot = Slot(UnsafeCell::new(Between { heap: None, table: None, copy: Inherited::None, errno: 0 }));

/// Registers the handlers, once: before there can be a heap, and before any other handler is registered.
pub fn register() {
    use std::sync::atomic::AtomicBool;
    unsafe extern "C" {
        fn __register_atfork(
            prepare: Option<unsafe extern "C" fn()>,
            parent: Option<unsafe extern "C" fn()>,
            child: Option<unsafe extern "C" fn()>,
            dso: *mut std::ffi::c_void,
        ) -> i32;
    }
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::AcqRel) {
        return;
    }
    vervain_window::forks_are_handled();
    let real = REGISTER.load(Ordering::Acquire);
    // SAFETY: functions without arguments, which stay loaded: no library is named that could be unloaded.
    unsafe {
        if real == 0 {
            __register_atfork(Some(prepare), Some(parent), Some(child), std::ptr::null_mut());
        } else {
            let real: unsafe extern "C" fn(
                Option<unsafe extern "C" fn()>,
                Option<unsafe extern "C" fn()>,
                Option<unsafe extern "C" fn()>,
                *mut std::ffi::c_void,
            ) -> i32 = std::mem::transmute(real);
            real(Some(prepare), Some(parent), Some(child), std::ptr::null_mut());
        }
    }
}

/// The C library's `__register_atfork`, where that name is hooked; 0: call it by name.
pub static REGISTER: AtomicUsize = AtomicUsize::new(0);

/// In the parent, before the process is duplicated.
///
/// # Safety
/// To be followed by a fork and `parent` or `child`, in the same thread.
pub unsafe extern "C" fn prepare() {
    let errno = sys::errno();
    call(&BEFORE);
    let Some(mut heap) = hold() else { return };
    let copy = heap.heap().map_or(Inherited::None, snapshot);
    // SAFETY: this thread holds the lock.
    let between = unsafe { &mut *BETWEEN.0.get() };
    between.copy = copy;
    between.errno = errno;
    between.heap = Some(heap);
    between.table = Some(program::table());
}

/// In the parent, afterwards.
///
/// # Safety
/// After `prepare`, in the same thread.
pub unsafe extern "C" fn parent() {
    // SAFETY: as in `prepare`; without a locked heap there is nothing in it.
    let between = unsafe { &mut *BETWEEN.0.get() };
    std::mem::replace(&mut between.copy, Inherited::None).discard_with_lease();
    drop(between.table.take());
    let held = between.heap.take();
    let errno = held.as_ref().map(|_| between.errno);
    drop(held);
    reaper::call();
    call(&AFTER);
    errno.into_iter().for_each(sys::set_errno);
}

/// In the child.
///
/// # Safety
/// After `prepare` in the thread that became the child.
pub unsafe extern "C" fn child() {
    // Before anything of the parent's room is dropped here.
    vervain_window::in_forked_child();
    set_gate(None, None);
    reaper::set(None);
    // SAFETY: this is the only thread, and it inherited the lock.
    let between = unsafe { &mut *BETWEEN.0.get() };
    let copy = std::mem::replace(&mut between.copy, Inherited::None);
    drop(between.table.take());
    if let Some(mut held) = between.heap.take()
        && let Some(heap) = held.heap()
    {
        copy.become_of_child(heap);
        sys::set_errno(between.errno);
    }
}

/// The parts of live blocks that show the object's pages.
fn parts(heap: &Heap) -> Vec<(Range<usize>, Mark)> {
    heap.blocks
        .live_parts(&heap.span())
        .into_iter()
        .flat_map(|(_, _, part)| heap.marks.pieces(part))
        .filter(|(_, mark)| mark.there == There::Object && !mark.dont_fork)
        .collect()
}

/// The memory that is ready for the child.
enum Inherited {
    /// No memory: there is more than the limit, or the copy could not be made.
    None,
    /// The newest of the parent's snapshots, what has changed since it was made (other contents, and offsets and
    /// lengths of what is zeros now), and the descriptor by which the child holds it.
    Snapshot { changes: Packed, cleared: Changes, lease: c_int },
    /// All contents, if no object could be made.
    Plain(Packed),
}

impl Inherited {
    fn discard(self) {
        if let Inherited::Snapshot { changes: packed, .. } | Inherited::Plain(packed) = self {
            packed.discard();
        }
    }

    /// Puts the copy in the parent's place, as private memory. Nothing of the parent's object is mapped here.
    fn become_of_child(self, heap: &mut Heap) {
        heap.pins.clear();
        heap.slabs.forget_parked();
        let live = heap.blocks.iter().filter(|(_, b)| matches!(b.state, State::Live(_)));
        let live: Vec<_> = live.map(|(start, b)| start..start + b.mapped).collect();
        let parts = parts(heap);
        let snapshots = heap.snapshots.take();
        // New blocks need an object of this process.
        heap.object = Object::create(heap.len, heap.settings.huge).unwrap_or_else(|_| Object::none(heap.len));
        let taken = heap.blocks.iter().map(|(start, block)| start - heap.base..start - heap.base + block.room);
        heap.room = Room::beside(heap.len, taken);
        match &self {
            Inherited::Snapshot { changes, cleared, .. } => {
                if let Some(snapshot) = snapshots.newest() {
                    show(heap, &parts, Some(&snapshot.object));
                }
                clear(heap, &parts, cleared);
                changes.unpack(heap.base, |range| heap.marks.has(range));
            }
            Inherited::Plain(packed) => {
                show(heap, &parts, None);
                packed.unpack(heap.base, |range| heap.marks.has(range));
            }
            // The same as for memory with MADV_DONTFORK.
            Inherited::None => {
                parts.iter().for_each(|(part, _)| heap.marks.update(part.clone(), |m| m.there = There::Hole))
            }
        }
        self.discard();
        for (part, mark) in &parts {
            if mark.guard && !mark.wipe {
                // SAFETY: nothing is in guarded memory.
                let _ = unsafe { sys::madvise(part.start, part.len(), MADV_GUARD_INSTALL) };
            }
            if mark.prot != PROT_RW {
                // SAFETY: as the program had it.
                let _ = unsafe { sys::mprotect(part.start, part.len(), mark.prot) };
            }
        }
        heap.room.note_descriptors(&heap.object);
        for mapped in live {
            for (part, mark) in heap.marks.pieces(mapped) {
                if matches!(mark.there, There::Object | There::Copy) && mark.dont_fork {
                    heap.marks.update(part, |m| m.there = There::Hole);
                }
            }
        }
        // Blocks that nobody has any more are just room.
        for (start, room) in heap.blocks.remove_unused() {
            heap.marks.clear(start..start + room);
            heap.give_room(start, room);
        }
    }

    /// In the parent: the child has its own.
    fn discard_with_lease(self) {
        if let Inherited::Snapshot { lease, .. } = self {
            sys::close(lease);
        }
        self.discard();
    }
}

/// The resident parts of what a child inherits: offsets and lengths.
fn resident(heap: &Heap) -> Vec<(usize, usize)> {
    let parts = parts(heap).into_iter().filter(|(_, mark)| !mark.wipe);
    parts.flat_map(|(part, _)| heap.object.resident(part.start - heap.base, part.len())).collect()
}

/// Copies what a child inherits, if it is not there already.
fn snapshot(heap: &mut Heap) -> Inherited {
    if stopped() {
        say(&[b"vervain: fork without the shared heap: the program has a seccomp filter"]);
        return Inherited::None;
    }
    let data = resident(heap);
    let total = data.iter().map(|(_, n)| n).sum::<usize>();
    heap.snapshots.drop_unused();
    let most = (total / CHANGED).max(sys::page());
    if let Some((changed, cleared)) = heap.snapshots.newest().and_then(|last| last.changes(&heap.object, &data, most))
        && let Some(changes) = Packed::new(&heap.object, changed)
    {
        let lease = heap.snapshots.newest().map_or(-1, Snapshot::lease);
        return Inherited::Snapshot { changes, cleared, lease };
    }
    if total + heap.snapshots.bytes() > heap.settings.fork_limit {
        say(&[b"vervain: fork without the shared heap: it is larger than VERVAIN_FORK_LIMIT"]);
        return Inherited::None;
    }
    if let Some(made) = Snapshot::new(&heap.object, heap.settings.huge, &data, total) {
        let lease = made.lease();
        heap.snapshots.push(made);
        reaper::want();
        return Inherited::Snapshot { changes: Packed::default(), cleared: Vec::new(), lease };
    }
    Packed::new(&heap.object, data).map(Inherited::Plain).unwrap_or_else(|| {
        say(&[b"vervain: fork without the shared heap: it could not be copied"]);
        Inherited::None
    })
}

const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A child gets the changes since the last snapshot if they are at most this part of the whole; else a new one is made.
const CHANGED: usize = 4;

/// Makes private, writable memory of `parts`: of an object's contents, or zeros.
fn show(heap: &mut Heap, parts: &[(Range<usize>, Mark)], object: Option<&Object>) {
    for (part, mark) in parts {
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        let (range, offset) = ((part.start, part.len()), part.start - heap.base);
        // Wiped memory has no contents, and MADV_WIPEONFORK is for anonymous memory only.
        let file = object.filter(|_| !mark.wipe);
        let made = match file {
            // SAFETY: NOREPLACE takes no range that somebody owns.
            Some(object) => unsafe { object.show(range.0, offset, range.1, PROT_RW, flags) },
            // SAFETY: as above.
            None => unsafe { sys::mmap(range.0, range.1, PROT_RW, flags | libc::MAP_ANONYMOUS, -1, 0) },
        };
        if mark.wipe {
            // SAFETY: changes no contents.
            let _ = unsafe { sys::madvise(range.0, range.1, libc::MADV_WIPEONFORK) };
        }
        let there = match (made, file) {
            (Ok(got), _) if got != part.start => There::Hole,
            (Ok(_), Some(_)) => There::Copy,
            (Ok(_), None) => There::Foreign,
            (Err(_), _) => There::Hole,
        };
        heap.marks.update(part.clone(), |m| {
            m.there = there;
            m.odd = true;
            m.guard &= there == There::Copy;
        });
    }
}

/// Makes what is `cleared` in `parts` read as zeros.
fn clear(heap: &mut Heap, parts: &[(Range<usize>, Mark)], cleared: &[(usize, usize)]) {
    let parts: RangeSet<usize> = parts.iter().map(|(part, _)| part.clone()).collect();
    for &(offset, n) in cleared {
        let range = heap.base + offset..heap.base + offset + n;
        for part in parts.overlapping(range.clone()) {
            let part = part.start.max(range.start)..part.end.min(range.end);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            if heap.marks.has(part.clone())
                // SAFETY: over private memory that was mapped just now.
                && unsafe { sys::mmap(part.start, part.len(), PROT_RW, flags, -1, 0) }.is_ok()
            {
                heap.marks.update(part, |m| m.there = There::Foreign);
            }
        }
    }
}
