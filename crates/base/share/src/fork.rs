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

use crate::maps::MADV_GUARD_INSTALL;
use crate::marks::{Mark, There};
use crate::mode::stopped;
use crate::object::{Object, raise};
use crate::program;
use crate::reaper;
use crate::room::Room;
use crate::settings::say;
use crate::state::{Heap, Locked, State, hold};
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
        heap.become_child(copy);
        sys::set_errno(between.errno);
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

/// The memory that is ready for the child.
enum Inherited {
    /// No memory: there is more than the limit, or the copy could not be made.
    None,
    /// The newest of the parent's snapshots, what has changed since it was made (other contents, and offsets and
    /// lengths of what is zeros now), and the descriptor by which the child holds it.
    Snapshot { changes: Packed, cleared: Vec<(usize, usize)>, lease: c_int },
    /// All contents, if no object could be made.
    Plain(Packed),
}

impl Inherited {
    fn discard(self) {
        if let Inherited::Snapshot { changes: packed, .. } | Inherited::Plain(packed) = self {
            packed.discard();
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

/// Parts of the heap, one after the other in shared anonymous memory.
#[derive(Default)]
struct Packed {
    at: usize,
    len: usize,
    /// Offsets in the object and lengths.
    data: Vec<(usize, usize)>,
}

impl Packed {
    fn new(heap: &Heap, data: Vec<(usize, usize)>) -> Option<Packed> {
        let len = data.iter().map(|(_, n)| n).sum::<usize>();
        if len == 0 {
            return Some(Packed::default());
        }
        // SAFETY: a place of the kernel's choice.
        let at = unsafe { sys::mmap(0, len, PROT_RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) }.ok()?;
        let packed = Packed { at, len, data };
        let mut to = at;
        for &(offset, n) in &packed.data {
            let copied = pieces(offset, n, |from, n| {
                let view = View::of(&heap.object, from, n)?;
                // SAFETY: room for the sum of all.
                unsafe { std::ptr::copy_nonoverlapping(view.0.start as *const u8, to as *mut u8, n) };
                to += n;
                Some(())
            });
            if copied.is_none() {
                packed.discard();
                return None;
            }
        }
        Some(packed)
    }

    /// Copies the parts to where they belong, but for what `may` not be written.
    fn unpack(&self, base: usize, may: impl Fn(Range<usize>) -> bool) {
        let mut from = self.at;
        for &(offset, n) in &self.data {
            let to = base + offset;
            if may(to..to + n) {
                // SAFETY: packed there by `new`, and mapped.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, n) };
            }
            from += n;
        }
    }

    fn discard(self) {
        if self.len > 0 {
            // SAFETY: mapped by `new`, known here only.
            let _ = unsafe { sys::munmap(self.at, self.len) };
        }
    }
}

/// A copy of the heap as it was at a fork. Children show it to themselves as private memory, so that all that are
/// forked while the parent changes little have one copy between them.
#[derive(Debug)]
pub struct Snapshot {
    object: Object,
    data: RangeSet<usize>,
    bytes: usize,
}

impl Snapshot {
    fn new(heap: &Heap, data: &[(usize, usize)], bytes: usize) -> Option<Snapshot> {
        let object = Object::create(heap.object.len, heap.settings.huge).ok()?;
        let data =
            data.iter().map(|&(offset, n)| copy_part(&heap.object, &object, offset, n).then_some(offset..offset + n));
        Some(Snapshot { data: data.collect::<Option<_>>()?, object, bytes })
    }

    /// The differences since then: other contents, and pages that are zeros now. `None`: they are too many to be worth
    /// it.
    fn changes(&self, heap: &Heap, data: &[(usize, usize)], most: usize) -> Option<(Changes, Changes)> {
        let now: RangeSet<usize> = data.iter().map(|&(offset, n)| offset..offset + n).collect();
        let mut changed = RangeSet::new();
        let mut total = 0;
        for range in now.iter() {
            for gap in self.data.gaps(range) {
                total += gap.len();
                changed.insert(gap);
            }
            for both in self.data.overlapping(range.clone()) {
                let (start, end) = (both.start.max(range.start), both.end.min(range.end));
                pieces(start, end - start, |from, n| {
                    let (ours, theirs) = (View::of(&heap.object, from, n)?, View::of(&self.object, from, n)?);
                    let pages = ours.bytes().chunks(sys::page()).zip(theirs.bytes().chunks(sys::page()));
                    for (i, _) in pages.enumerate().filter(|(_, (a, b))| a != b) {
                        total += sys::page();
                        changed.insert(from + i * sys::page()..(from + (i + 1) * sys::page()).min(from + n));
                    }
                    (total <= most).then_some(())
                })?;
            }
            if total > most {
                return None;
            }
        }
        let cleared = self.data.iter().flat_map(|old| now.gaps(old).collect::<Vec<_>>());
        let list = |range: Range<usize>| (range.start, range.len());
        Some((changed.into_iter().map(list).collect(), cleared.map(list).collect()))
    }

    /// Returns true if a child has it.
    fn is_in_use(&self) -> bool {
        let mut lock = lock_of(libc::F_WRLCK);
        // SAFETY: a descriptor, or none, which is refused; `lock` is writable.
        let asked = unsafe { libc::fcntl(self.object.fd, libc::F_OFD_GETLK, &raw mut lock) };
        asked == 0 && c_int::from(lock.l_type) != libc::F_UNLCK
    }

    /// A descriptor with a lock that lasts as long as any process has it: the child of the fork that follows, and those
    /// that it forks. So the description of the file is one that the parent's own descriptor does not share. Without
    /// /proc there is none, and the snapshot counts as unused.
    fn lease(&self) -> c_int {
        let mut path = [0_u8; 32];
        let text = format!("/proc/self/fd/{}\0", self.object.fd);
        path[..text.len()].copy_from_slice(text.as_bytes());
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: a C string.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) } as c_int;
        if fd < 0 {
            return fd;
        }
        let fd = raise(fd);
        let lock = lock_of(libc::F_RDLCK);
        // SAFETY: an open descriptor.
        unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) };
        fd
    }
}

type Changes = Vec<(usize, usize)>;

fn lock_of(kind: c_int) -> libc::flock {
    // SAFETY: all zeros is a valid flock, of the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock
}

impl Heap {
    /// Lets snapshots go that no child has any more.
    pub(crate) fn drop_snapshots(&mut self) {
        self.snapshots.retain(Snapshot::is_in_use);
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
    heap.drop_snapshots();
    let most = (total / CHANGED).max(sys::page());
    if let Some((changed, cleared)) = heap.snapshots.last().and_then(|last| last.changes(heap, &data, most))
        && let Some(changes) = Packed::new(heap, changed)
    {
        let lease = heap.snapshots.last().map_or(-1, Snapshot::lease);
        return Inherited::Snapshot { changes, cleared, lease };
    }
    if total + heap.snapshots.iter().map(|s| s.bytes).sum::<usize>() > heap.settings.fork_limit {
        say(&[b"vervain: fork without the shared heap: it is larger than VERVAIN_FORK_LIMIT"]);
        return Inherited::None;
    }
    if let Some(made) = Snapshot::new(heap, &data, total) {
        let lease = made.lease();
        heap.snapshots.push(made);
        reaper::want();
        return Inherited::Snapshot { changes: Packed::default(), cleared: Vec::new(), lease };
    }
    Packed::new(heap, data).map(Inherited::Plain).unwrap_or_else(|| {
        say(&[b"vervain: fork without the shared heap: it could not be copied"]);
        Inherited::None
    })
}

/// A child gets the changes since the last snapshot if they are at most this part of the whole; else a new one is made.
const CHANGED: usize = 4;

const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A part of an object, readable past the protections that the program has set.
struct View(Range<usize>);

impl View {
    fn of(object: &Object, offset: usize, len: usize) -> Option<View> {
        // SAFETY: a place of the kernel's choice.
        let at = unsafe { object.show(0, offset, len, libc::PROT_READ, libc::MAP_SHARED) }.ok()?;
        Some(View(at..at + len))
    }

    /// The contents of the view. No store that the child must have happens meanwhile: peers are held off, and other
    /// threads of the program race with the fork anyway.
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and readable as long as this lives.
        unsafe { std::slice::from_raw_parts(self.0.start as *const u8, self.0.len()) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`.
        let _ = unsafe { sys::munmap(self.0.start, self.0.len()) };
    }
}

/// Calls `f` with offset and length of each piece of a range that is small enough for a view; until it says None.
fn pieces(offset: usize, len: usize, mut f: impl FnMut(usize, usize) -> Option<()>) -> Option<()> {
    const VIEW: usize = 64 << 20;
    (offset..offset + len).step_by(VIEW).try_for_each(|at| f(at, (offset + len - at).min(VIEW)))
}

/// Copies a part of an object.
fn copy_part(from: &Object, to: &Object, offset: usize, len: usize) -> bool {
    let copy = |at: usize, n: usize| {
        let view = View::of(from, at, n)?;
        let mut done = 0;
        while done < n {
            let rest = (view.0.start + done) as *const _;
            // SAFETY: `n` readable bytes.
            let wrote = unsafe { libc::pwrite(to.fd, rest, n - done, (at + done) as i64) };
            if wrote <= 0 {
                return None;
            }
            done += wrote as usize;
        }
        Some(())
    };
    pieces(offset, len, copy).is_some()
}

impl Heap {
    /// Puts the copy in the parent's place, as private memory. Nothing of the parent's object is mapped here.
    fn become_child(&mut self, copy: Inherited) {
        self.pins.clear();
        self.slabs.forget_parked();
        let keep = self.blocks.iter().filter(|(_, b)| matches!(b.state, State::Live(_))).map(|(&s, &b)| (s, b));
        let live: Vec<_> = keep.collect();
        let parts = parts(self);
        let snapshots = std::mem::take(&mut self.snapshots);
        // New blocks need an object of this process.
        self.object = Object::create(self.len, self.settings.huge).unwrap_or_else(|_| Object::none(self.len));
        let taken = self.blocks.iter().map(|(start, block)| start - self.base..start - self.base + block.room);
        self.room = Room::beside(self.len, taken);
        match &copy {
            Inherited::Snapshot { changes, cleared, .. } => {
                if let Some(snapshot) = snapshots.last() {
                    self.show(&parts, Some(&snapshot.object));
                }
                self.clear(&parts, cleared);
                changes.unpack(self.base, |range| self.has(range));
            }
            Inherited::Plain(packed) => {
                self.show(&parts, None);
                packed.unpack(self.base, |range| self.has(range));
            }
            // The same as for memory with MADV_DONTFORK.
            Inherited::None => {
                parts.iter().for_each(|(part, _)| self.marks.update(part.clone(), |m| m.there = There::Hole))
            }
        }
        copy.discard();
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
        self.room.note_descriptors(&self.object);
        for (start, block) in &live {
            for (part, mark) in self.marks.pieces(*start..start + block.mapped) {
                if matches!(mark.there, There::Object | There::Copy) && mark.dont_fork {
                    self.marks.update(part, |m| m.there = There::Hole);
                }
            }
        }
        // Blocks that nobody has any more are just room.
        let gone: Vec<_> = self.blocks.iter().map(|(&s, b)| (s, b.room, b.state)).collect();
        for (start, room, state) in gone {
            if matches!(state, State::Cached(_) | State::Parked) {
                self.blocks.remove(&start);
                self.marks.clear(start..start + room);
                self.give_room(start, room);
            }
        }
        self.by_size.clear();
        self.by_age.clear();
        self.cached = 0;
    }

    /// Makes private, writable memory of `parts`: of an object's contents, or zeros.
    fn show(&mut self, parts: &[(Range<usize>, Mark)], object: Option<&Object>) {
        for (part, mark) in parts {
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
            let (range, offset) = ((part.start, part.len()), part.start - self.base);
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
            self.marks.update(part.clone(), |m| {
                m.there = there;
                m.odd = true;
                m.guard &= there == There::Copy;
            });
        }
    }

    /// Makes what is `cleared` in `parts` read as zeros.
    fn clear(&mut self, parts: &[(Range<usize>, Mark)], cleared: &[(usize, usize)]) {
        let parts: RangeSet<usize> = parts.iter().map(|(part, _)| part.clone()).collect();
        for &(offset, n) in cleared {
            let range = self.base + offset..self.base + offset + n;
            for part in parts.overlapping(range.clone()) {
                let part = part.start.max(range.start)..part.end.min(range.end);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                if self.has(part.clone())
                    // SAFETY: over private memory that was mapped just now.
                    && unsafe { sys::mmap(part.start, part.len(), PROT_RW, flags, -1, 0) }.is_ok()
                {
                    self.marks.update(part, |m| m.there = There::Foreign);
                }
            }
        }
    }

    /// Returns true if all of a range is there.
    fn has(&self, range: Range<usize>) -> bool {
        self.marks.pieces(range).iter().all(|(_, m)| m.there != There::Hole)
    }
}
