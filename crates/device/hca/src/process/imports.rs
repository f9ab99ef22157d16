//! A peer's shared objects, as far as they are mapped here (DESIGN decisions 4a, 4b). The hot path looks up one
//! immutable record for an object number, compares its generation, and checks bounds; what is not mapped yet is asked
//! for, once, and reached by other means until it is there.
//!
//! Records are made and replaced by the progress thread. One that is replaced stays mapped until every QP of this
//! process has been seen outside of its send work, so that a thread that has looked it up may finish its copy.

use crate::arena::ArenaRef;
use crate::arena::layout::{OBJECT_MEMFD, OBJECT_SYSV, OFFSET_BITS, ObjectEntry};
use crate::host::lock::OwnerLock;
use crate::host::mapping;
use crate::host::sysv::{self, Segment};
use std::alloc::Layout;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use vervain_share::checkers;
use vervain_share::sys::page;

/// Objects are mapped in windows of this size, each when it is first needed.
pub const WINDOW: u64 = 64 << 30;
/// Bytes by which a window overlaps the next one: at least as many are contiguous from any address.
pub const SLACK: u64 = 2 << 20;
/// A huge page.
const HUGE: usize = 2 << 20;
/// A window that cannot be mapped (RLIMIT_AS, no memory): it is not tried again.
const DENIED: usize = 1;

/// Records that cannot be found any more, until their last users are done.
#[expect(clippy::vec_box)]
static RETIRED: OwnerLock<Vec<Box<Mapping>>> = OwnerLock::new(Vec::new());

/// One object of a peer.
struct Mapping {
    generation: u32,
    segment: bool,
    /// The process that mapped it; a forked child has no such mapping.
    pid: u32,
    /// Bytes that may be used; 0 for an object that is refused.
    len: u64,
    /// The windows: null while nobody needs it, [`DENIED`], or where it is.
    first: AtomicPtr<u8>,
    more: Box<[AtomicPtr<u8>]>,
}

// SAFETY: the pointers are mappings that live as long as the record; all access is by copies and atomics on raw memory.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    #[inline]
    fn window(&self, window: u64) -> Option<&AtomicPtr<u8>> {
        if window == 0 { Some(&self.first) } else { self.more.get(window as usize - 1) }
    }

    /// The bytes of a window that are mapped.
    fn extent(&self, window: u64) -> u64 {
        (self.len - window * WINDOW).min(WINDOW + SLACK)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        for window in 0..=self.more.len() as u64 {
            let Some(p) = self.window(window).map(|w| w.load(Ordering::Relaxed)) else { continue };
            if p as usize <= DENIED {
                continue;
            }
            // SAFETY: mapped by `map_window` or attached by `attach`, and nobody looks it up or uses it any more.
            unsafe {
                match self.segment {
                    false => mapping::unmap(p.cast(), self.extent(window) as usize),
                    true if window == 0 => mapping::detach(p.cast()),
                    true => {}
                }
            }
        }
    }
}

/// One object number of a peer.
#[derive(Default)]
struct Slot {
    /// The mapping of this number, or null.
    mapping: AtomicPtr<Mapping>,
    /// The last request, `generation << 32 | window + 1`, so that it is made once.
    asked: AtomicU64,
}

/// `n` slots that mean nothing. Allocated as zeros, so that a peer costs the pages of the numbers that it uses.
fn empty_slots(n: usize) -> Box<[Slot]> {
    let Ok(layout) = Layout::array::<Slot>(n) else { return Box::default() };
    if layout.size() == 0 {
        return Box::default();
    }
    // SAFETY: the layout is not empty; zeros are a null pointer and a zero, which is a slot; the box frees it by the
    // same layout.
    unsafe {
        let p = std::alloc::alloc_zeroed(layout);
        if p.is_null() { Box::default() } else { Box::from_raw(std::ptr::slice_from_raw_parts_mut(p.cast(), n)) }
    }
}

/// A piece of an object that is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Object number.
    pub number: u32,
    /// [`ObjectEntry::generation`].
    pub generation: u32,
    /// Which window of it.
    pub window: u32,
}

/// The mapped objects of one peer.
pub(crate) struct Mapped {
    /// None for this process itself, whose objects need no second mapping.
    entries: Option<ArenaRef<[ObjectEntry]>>,
    slots: Box<[Slot]>,
    /// Numbers that have a record. A change of records holds this lock.
    known: OwnerLock<Vec<u32>>,
}

impl Mapped {
    pub(crate) fn new(entries: Option<ArenaRef<[ObjectEntry]>>) -> Mapped {
        let slots = empty_slots(entries.as_ref().map_or(0, |entries| entries.len()));
        Mapped { entries, slots, known: OwnerLock::default() }
    }

    fn entry(&self, number: usize) -> Option<&ObjectEntry> {
        self.entries.as_ref()?.get(number)
    }

    /// The address of `[offset, offset + len)` of object `number` here; contiguous for the first [`SLACK`] bytes at
    /// least.
    #[inline(always)]
    pub(crate) fn locate(&self, number: usize, generation: u32, offset: u64, len: u64) -> Option<*mut u8> {
        let slot = self.slots.get(number)?;
        // SAFETY: null, or a record that is not freed before this thread's QP has been seen at rest.
        let mapping = unsafe { slot.mapping.load(Ordering::Acquire).as_ref() }?;
        if mapping.generation != generation || offset.checked_add(len)? > mapping.len {
            return None;
        }
        // Nearly all objects have one window.
        let cell = if offset < WINDOW { &mapping.first } else { mapping.window(offset / WINDOW)? };
        let base = cell.load(Ordering::Acquire);
        if base as usize <= DENIED {
            return None;
        }
        Some(base.wrapping_add((offset % WINDOW) as usize))
    }

    /// The piece to ask the owner for after [`Mapped::locate`] found nothing; None if it was asked for, or refused.
    #[cold]
    pub(crate) fn want(&self, number: usize, generation: u32, offset: u64, len: u64) -> Option<Wanted> {
        // Memcheck would look for pointers in all of what is mapped, 64 GiB for a heap, and bring it to life.
        if checkers::memcheck() {
            return None;
        }
        let (slot, entry) = (self.slots.get(number)?, self.entry(number)?);
        let window = offset / WINDOW;
        let end = offset.checked_add(len)?;
        if generation == 0 || end > 1 << OFFSET_BITS || entry.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        // SAFETY: as in `locate`.
        if let Some(mapping) = unsafe { slot.mapping.load(Ordering::Acquire).as_ref() }
            && mapping.generation == generation
        {
            let denied = mapping.window(window).is_some_and(|w| w.load(Ordering::Relaxed) as usize == DENIED);
            // A larger length is believed once: what comes then says how large it is.
            let grown = end > mapping.len && entry.length.load(Ordering::Relaxed) >= end;
            if mapping.len == 0 || denied || (end > mapping.len && !grown) {
                return None;
            }
        }
        let ask = u64::from(generation) << 32 | (window + 1);
        if slot.asked.swap(ask, Ordering::Relaxed) == ask {
            return None;
        }
        Some(Wanted { number: number as u32, generation, window: window as u32 })
    }

    /// It could not be asked for now.
    pub(crate) fn not_asked(&self, wanted: &Wanted) {
        if let Some(slot) = self.slots.get(wanted.number as usize) {
            slot.asked.store(0, Ordering::Relaxed);
        }
    }

    /// Maps what the owner granted: the object behind `fd`, or the segment that the table names. Called by the progress
    /// thread. A piece that cannot be mapped is noted as refused.
    pub(crate) fn map(&self, wanted: &Wanted, fd: Option<OwnedFd>) {
        let Some((slot, entry)) = self.slots.get(wanted.number as usize).zip(self.entry(wanted.number as usize)) else {
            return;
        };
        if entry.generation.load(Ordering::Acquire) != wanted.generation {
            return;
        }
        let mut known = self.known.lock();
        let old =
            // SAFETY: records are freed by this thread only.
            unsafe { slot.mapping.load(Ordering::Acquire).as_ref() }.filter(|m| m.generation == wanted.generation);
        let found = match entry.kind.load(Ordering::Relaxed) {
            OBJECT_MEMFD => fd.as_ref().and_then(usable).map(Backing::Memfd),
            OBJECT_SYSV => Some(Backing::Segment(segment_of(entry))),
            _ => None,
        };
        let len = found.as_ref().map_or(0, Backing::len);
        match (old, &found) {
            // One more window of what is known.
            (Some(mapping), Some(Backing::Memfd(_))) if mapping.len == len => {
                self.map_window(mapping, wanted.window, fd.as_ref());
            }
            // An object that has shrunk has not: sealed ones cannot, so this is another descriptor.
            (Some(mapping), _) if mapping.len >= len => {}
            _ => {
                let mapping = Box::new(new_mapping(wanted.generation, len, found.as_ref()));
                match found {
                    Some(Backing::Memfd(_)) => self.map_window(&mapping, wanted.window, fd.as_ref()),
                    Some(Backing::Segment(segment)) => attach(&mapping, entry, &segment),
                    None => {
                        let (n, g) = (wanted.number, wanted.generation);
                        log::debug!("object {n} (generation {g}) of a peer is not to be mapped: it is no sealed memfd");
                    }
                }
                replace(slot, Some(mapping));
                if !known.contains(&wanted.number) {
                    known.push(wanted.number);
                }
                // It may have grown beyond what was asked for, and be asked for again.
                slot.asked.store(0, Ordering::Relaxed);
            }
        }
        drop(known);
        self.sweep();
    }

    fn map_window(&self, mapping: &Mapping, window: u32, fd: Option<&OwnedFd>) {
        let (Some(cell), Some(fd)) = (mapping.window(u64::from(window)), fd) else { return };
        if !cell.load(Ordering::Acquire).is_null() {
            return;
        }
        let extent = mapping.extent(u64::from(window)) as usize;
        match map_shared(fd, u64::from(window) * WINDOW, extent) {
            Some(at) => cell.store(at, Ordering::Release),
            None => {
                denied(extent);
                cell.store(DENIED as *mut u8, Ordering::Release);
            }
        }
    }

    /// The owner says that the object is gone.
    pub(crate) fn forget(&self, number: u32, generation: u32) {
        self.forget_if(|n, g| n == number && g == generation);
    }

    /// Forgets objects that the owner's table does not have any more.
    pub(crate) fn sweep(&self) {
        self.forget_if(|number, generation| {
            self.entry(number as usize).is_none_or(|e| e.generation.load(Ordering::Acquire) != generation)
        });
    }

    /// Forgets all: the owner has ended.
    pub(crate) fn forget_all(&self) {
        self.forget_if(|_, _| true);
    }

    fn forget_if(&self, gone: impl Fn(u32, u32) -> bool) {
        self.known.lock().retain(|number| {
            let Some(slot) = self.slots.get(*number as usize) else { return false };
            // SAFETY: records are freed by this thread only, and not before they are replaced.
            let generation = unsafe { slot.mapping.load(Ordering::Acquire).as_ref() }.map(|m| m.generation);
            match generation {
                Some(generation) if gone(*number, generation) => {
                    replace(slot, None);
                    false
                }
                other => other.is_some(),
            }
        });
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Every user that could have looked a record up held the space.
        for number in self.known.lock().drain(..) {
            let p = self.slots[number as usize].mapping.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !p.is_null() {
                // SAFETY: made from a box by `replace`, and taken out for good.
                drop(unsafe { Box::from_raw(p) });
            }
        }
    }
}

/// Replaces a record by another; the old one is kept until it cannot be in use any more.
fn replace(slot: &Slot, mapping: Option<Box<Mapping>>) {
    let new = mapping.map_or(std::ptr::null_mut(), Box::into_raw);
    let old = slot.mapping.swap(new, Ordering::SeqCst);
    if !old.is_null() {
        // SAFETY: made from a box just like the new one, and taken out for good.
        RETIRED.lock().push(unsafe { Box::from_raw(old) });
    }
}

/// Unmaps what was replaced, if every QP of this process `has_rested` since. Called by the progress thread.
pub(crate) fn tidy(has_rested: impl FnOnce() -> bool) {
    if RETIRED.lock().is_empty() {
        return;
    }
    let old = std::mem::take(&mut *RETIRED.lock());
    if has_rested() {
        drop(old);
    } else {
        RETIRED.lock().extend(old);
    }
}

/// The backing of a granted object.
enum Backing {
    Memfd(u64),
    Segment(Segment),
}

impl Backing {
    fn len(&self) -> u64 {
        match self {
            Backing::Memfd(len) => *len,
            Backing::Segment(s) => s.length,
        }
    }
}

fn new_mapping(generation: u32, len: u64, backing: Option<&Backing>) -> Mapping {
    let windows = len.div_ceil(WINDOW).max(1) as usize;
    Mapping {
        generation,
        segment: matches!(backing, Some(Backing::Segment(_))),
        pid: std::process::id(),
        len,
        first: AtomicPtr::default(),
        more: (1..windows).map(|_| AtomicPtr::default()).collect(),
    }
}

/// The size of a descriptor whose mapping cannot be made to fault: a shared-memory file that is sealed against
/// shrinking. Huge pages are not among them: their pool may be empty when a page is first touched.
fn usable(fd: &OwnedFd) -> Option<u64> {
    // SAFETY: F_GET_SEALS takes no argument; fstat and fstatfs fill the zeroed structs.
    let (seals, size, kind) = unsafe {
        let (mut stat, mut fs): (libc::stat, libc::statfs) = (std::mem::zeroed(), std::mem::zeroed());
        if libc::fstat(fd.as_raw_fd(), &raw mut stat) != 0 || libc::fstatfs(fd.as_raw_fd(), &raw mut fs) != 0 {
            return None;
        }
        (libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS), stat.st_size as u64, fs.f_type)
    };
    (seals >= 0
        && seals & libc::F_SEAL_SHRINK != 0
        && kind == libc::TMPFS_MAGIC
        && (1..=1 << OFFSET_BITS).contains(&size))
    .then_some(size)
}

fn segment_of(entry: &ObjectEntry) -> Segment {
    Segment {
        length: entry.length.load(Ordering::Relaxed).min(1 << OFFSET_BITS),
        cuid: entry.cuid.load(Ordering::Relaxed),
        ctime: entry.ctime.load(Ordering::Relaxed),
        namespace: entry.ipc_namespace.load(Ordering::Relaxed),
    }
}

/// Attaches the segment of `entry`, whole: its windows lie one behind the other.
fn attach(mapping: &Mapping, entry: &ObjectEntry, segment: &Segment) {
    let at = sysv::attach(entry.shmid.load(Ordering::Relaxed) as i32, segment);
    if let Some(at) = at {
        // SAFETY: attached just above.
        unsafe { mapping::keep_private(at.cast(), mapping.len as usize) };
    }
    for window in 0..=mapping.more.len() as u64 {
        let Some(cell) = mapping.window(window) else { continue };
        let p = at.map_or(DENIED as *mut u8, |at| at.wrapping_add((window * WINDOW) as usize));
        cell.store(p, Ordering::Release);
    }
}

/// Maps `len` bytes of `fd` from `offset`, shared and aligned as huge pages are, so that those of the owner are some
/// here too.
fn map_shared(fd: &OwnedFd, offset: u64, len: usize) -> Option<*mut u8> {
    let (flags, prot) = (libc::MAP_NORESERVE, libc::PROT_READ | libc::PROT_WRITE);
    let room = len.checked_add(HUGE)?;
    // SAFETY: fresh mappings: an empty one at an address of the kernel's choice, and inside of it one of the file,
    // which cannot shrink. The rest on both sides, or all if that fails, is given back.
    unsafe {
        let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        let reserved = mapping::map(std::ptr::null_mut(), room, libc::PROT_NONE, nothing, -1, 0);
        if reserved.is_null() {
            return None;
        }
        let before = (reserved as usize).next_multiple_of(HUGE) - reserved as usize;
        let at = reserved.byte_add(before);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | flags;
        if mapping::map(at, len, prot, flags, fd.as_raw_fd(), offset).is_null() {
            let e = std::io::Error::last_os_error();
            mapping::unmap(reserved, room);
            *libc::__errno_location() = e.raw_os_error().unwrap_or(libc::ENOMEM);
            return None;
        }
        let end = before + len.next_multiple_of(page());
        if before != 0 {
            mapping::unmap(reserved, before);
        }
        if end < room {
            mapping::unmap(reserved.byte_add(end), room - end);
        }
        mapping::keep_private(at, len);
        Some(at.cast())
    }
}

#[cold]
fn denied(bytes: usize) {
    let e = std::io::Error::last_os_error();
    log::info!("{bytes} bytes of a peer's memory cannot be mapped ({e}): they are reached by process_vm or the owner");
}
