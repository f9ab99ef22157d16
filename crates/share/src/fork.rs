//! fork(2) made right. To the program the heap is private memory, so a child gets the contents of the moment of the
//! fork, at the same addresses, in an object of its own, and the parent goes on with the old one.
//!
//! The copy is made in the parent, after the last of the program's own prepare handlers and before the process is
//! duplicated, with the device's peers held off. Our handlers are the first ones registered, thus the innermost. A
//! child that the C library knows nothing of (a raw clone) has no heap at all: a fault there, never a write into the
//! parent's.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::marks::{Mark, There};
use crate::object::Object;
use crate::program;
use crate::settings::say;
use crate::state::{DESCRIPTOR, Heap, Locked, State, hold};
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
        // SAFETY: whoever set the gate promised a function that may be called around fork.
        unsafe { function() };
    }
}

/// What lies between the handlers of one fork.
struct Between {
    heap: Option<Locked>,
    table: Option<MutexGuard<'static, program::Table>>,
    copy: Inherited,
}

struct Slot(UnsafeCell<Between>);
// SAFETY: written by the thread that forks only, which holds the heap's lock meanwhile.
unsafe impl Sync for Slot {}

static BETWEEN: Slot = Slot(UnsafeCell::new(Between { heap: None, table: None, copy: Inherited::None }));

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
    call(&BEFORE);
    let Some(mut heap) = hold() else { return };
    let copy = heap.heap().map_or(Inherited::None, |heap| snapshot(heap));
    // SAFETY: this thread holds the lock.
    let between = unsafe { &mut *BETWEEN.0.get() };
    between.copy = copy;
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
    std::mem::replace(&mut between.copy, Inherited::None).discard();
    drop(between.table.take());
    drop(between.heap.take());
    call(&AFTER);
}

/// In the child.
///
/// # Safety
/// After `prepare` in the thread that became the child.
pub unsafe extern "C" fn child() {
    set_gate(None, None);
    // SAFETY: this is the only thread, and it inherited the lock.
    let between = unsafe { &mut *BETWEEN.0.get() };
    let copy = std::mem::replace(&mut between.copy, Inherited::None);
    drop(between.table.take());
    if let Some(mut held) = between.heap.take()
        && let Some(heap) = held.heap()
    {
        heap.become_child(copy);
    }
}

/// The parts of live blocks that show the object's pages.
fn parts(heap: &Heap) -> Vec<(Range<usize>, Mark)> {
    heap.live_parts(&heap.span())
        .into_iter()
        .flat_map(|(_, _, part)| heap.marks.pieces(part))
        .filter(|(_, mark)| mark.there == There::Object && !mark.dont_fork)
        .collect()
}

/// What lies ready for the child.
enum Inherited {
    /// Nothing: more than the limit, or it could not be made.
    None,
    /// An object that takes the place of the parent's.
    Object(Object),
    /// Where no object could be made: shared anonymous memory at that address, with the parts of the heap one after the
    /// other. The child's memory becomes private.
    Plain { at: usize, len: usize, data: Vec<(usize, usize)> },
}

impl Inherited {
    fn discard(self) {
        if let Inherited::Plain { at, len, .. } = self {
            // SAFETY: mapped by `plain_copy`, known here only.
            let _ = unsafe { sys::munmap(at, len) };
        }
    }
}

/// The resident parts of what a child inherits: offsets and lengths.
fn resident(heap: &Heap) -> Vec<(usize, usize)> {
    let parts = parts(heap).into_iter().filter(|(_, mark)| !mark.wipe);
    parts.flat_map(|(part, _)| heap.object.resident(part.start - heap.base, part.len())).collect()
}

/// Copies what a child inherits.
fn snapshot(heap: &Heap) -> Inherited {
    let data = resident(heap);
    let total = data.iter().map(|(_, n)| n).sum::<usize>();
    if total > heap.settings.fork_limit {
        say(&[b"vervain: fork without the shared heap: it is larger than VERVAIN_FORK_LIMIT"]);
        return Inherited::None;
    }
    let made = Object::create(heap.object.len, heap.settings.huge).ok();
    let copied = made.filter(|copy| data.iter().all(|&(offset, n)| copy_part(&heap.object, copy, offset, n)));
    let copy = copied.map(Inherited::Object).or_else(|| plain_copy(heap, &data, total));
    copy.unwrap_or_else(|| {
        say(&[b"vervain: fork without the shared heap: it could not be copied"]);
        Inherited::None
    })
}

fn plain_copy(heap: &Heap, data: &[(usize, usize)], total: usize) -> Option<Inherited> {
    let len = total.max(sys::page());
    // SAFETY: a place of the kernel's choice.
    let at = unsafe { sys::mmap(0, len, PROT_RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) }.ok()?;
    let mut to = at;
    for &(offset, n) in data {
        // SAFETY: as above.
        let window = unsafe { sys::mmap(0, n, libc::PROT_READ, libc::MAP_SHARED, heap.object.fd, offset as u64) };
        let Ok(window) = window else {
            Inherited::Plain { at, len, data: Vec::new() }.discard();
            return None;
        };
        // SAFETY: `n` readable bytes, and room for the sum of all.
        unsafe { std::ptr::copy_nonoverlapping(window as *const u8, to as *mut u8, n) };
        // SAFETY: mapped above.
        let _ = unsafe { sys::munmap(window, n) };
        to += n;
    }
    Some(Inherited::Plain { at, len, data: data.to_vec() })
}

const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Copies a part of an object, past the protections that the program has set.
fn copy_part(from: &Object, to: &Object, offset: usize, len: usize) -> bool {
    const WINDOW: usize = 64 << 20;
    let mut at = offset;
    while at < offset + len {
        let n = (offset + len - at).min(WINDOW);
        // SAFETY: a place of the kernel's choice.
        let Ok(window) = (unsafe { sys::mmap(0, n, libc::PROT_READ, libc::MAP_SHARED, from.fd, at as u64) }) else {
            return false;
        };
        let mut done = 0;
        while done < n {
            // SAFETY: `n` readable bytes.
            let wrote = unsafe { libc::pwrite(to.fd, (window + done) as *const _, n - done, (at + done) as i64) };
            if wrote <= 0 {
                break;
            }
            done += wrote as usize;
        }
        // SAFETY: mapped above.
        let _ = unsafe { sys::munmap(window, n) };
        if done < n {
            return false;
        }
        at += n;
    }
    true
}

impl Heap {
    /// Puts the copy in the parent's place. Nothing of the parent's object is mapped here.
    fn become_child(&mut self, copy: Inherited) {
        self.pins.clear();
        self.parked.clear();
        self.forget_parked_slots();
        let keep = self.blocks.iter().filter(|(_, b)| matches!(b.state, State::Live(_))).map(|(&s, &b)| (s, b));
        let live: Vec<_> = keep.collect();
        let parts = parts(self);
        let len = self.object.len;
        match copy {
            Inherited::Object(object) => {
                self.object = object;
                for (part, mark) in parts {
                    if self.object.map(part.start, part.start - self.base, part.len(), mark.prot).is_err() {
                        self.marks.update(part, |m| m.there = There::Hole);
                    }
                }
            }
            Inherited::None => {
                // As after MADV_DONTFORK. New blocks need an object all the same.
                self.object = Object::create(len, self.settings.huge).unwrap_or_else(|_| Object::none(len));
                for (part, _) in parts {
                    self.marks.update(part, |m| m.there = There::Hole);
                }
            }
            Inherited::Plain { at, len: packed, data } => {
                self.object = Object::none(len);
                self.unpack(&parts, at, &data);
                Inherited::Plain { at, len: packed, data }.discard();
            }
        }
        DESCRIPTOR.store(self.object.fd, Ordering::Relaxed);
        for (start, block) in &live {
            for (part, mark) in self.marks.pieces(*start..start + block.mapped) {
                if mark.there == There::Object && mark.dont_fork {
                    self.marks.update(part, |m| m.there = There::Hole);
                }
            }
        }
        // Blocks that nobody has any more are just room.
        let gone: Vec<_> = self.blocks.iter().map(|(&s, b)| (s, b.room, b.state)).collect();
        for (start, room, state) in gone {
            if matches!(state, State::Cached(_) | State::Parked) {
                self.blocks.remove(&start);
                self.give_room(start, room);
            }
        }
        self.by_size.clear();
        self.by_age.clear();
        self.cached = 0;
    }
    /// Makes private memory of `parts` and puts the contents there that were packed at `at`.
    fn unpack(&mut self, parts: &[(Range<usize>, Mark)], at: usize, data: &[(usize, usize)]) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        for (part, _) in parts {
            let made =
                // SAFETY: NOREPLACE takes no range that somebody owns.
                unsafe { sys::mmap(part.start, part.len(), PROT_RW, flags, -1, 0) }.is_ok_and(|got| got == part.start);
            let there = if made { There::Foreign } else { There::Hole };
            self.marks.update(part.clone(), |m| {
                m.there = there;
                m.odd = true;
            });
        }
        let mut from = at;
        for &(offset, n) in data {
            let to = self.base + offset;
            let gone = |(_, m): &(Range<usize>, Mark)| m.there == There::Hole;
            if !self.marks.pieces(to..to + n).iter().any(gone) {
                // SAFETY: packed there in `plain_copy`, and mapped above.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, n) };
            }
            from += n;
        }
        for (part, mark) in parts {
            if mark.prot != PROT_RW {
                // SAFETY: as the program had it.
                let _ = unsafe { sys::mprotect(part.start, part.len(), mark.prot) };
            }
        }
    }
}
