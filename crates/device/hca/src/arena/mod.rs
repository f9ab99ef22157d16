//! The arena: the one piece of memory of a process that its peers map. A sealed memfd, found by file descriptor only,
//! allocated by offset, and never larger or smaller than at birth, so that no peer can be made to fault on it.
//!
//! The owner reserves a large sparse file and pays only for what it allocates: `fallocate` commits pages before anyone
//! writes to them, so a full memory limit shows as ENOMEM here and never as SIGBUS in a peer (DESIGN decision 9).

pub(crate) mod free_ranges;
pub mod layout;
pub(crate) mod numbers;

use crate::arena::free_ranges::FreeRanges;
use crate::arena::layout::Shared;
use crate::error::{Error, Result};
use crate::host::cancel::Uncancelled;
use crate::host::lock::OwnerLock;
use crate::host::mapping;
use std::ops::{Deref, Range};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vervain_share::checkers;
use vervain_share::sys::{page, without_sigxfsz};

/// Entries of a [`layout::CqeRing`].
pub const CQES: usize = 32;
/// Sizes tried for a new arena, largest first: a limit on address space (RLIMIT_AS) leaves the smaller ones. So does
/// valgrind, where a program and all its peers have some 60 GiB.
const SIZES: [u64; 4] = [64 << 30, 16 << 30, 2 << 30, 256 << 20];
/// The largest of one's own under memcheck, which warns of every larger mapping.
const CHECKED: u64 = 256 << 20;
/// The largest piece of a peer's arena that is mapped under memcheck.
const CHECKED_PEER: u64 = 2 << 30;
/// Alignment of every allocation: one cache line.
pub const LINE: u64 = 64;
/// Granularity of larger blocks. If the kernel's pages are larger, some of them stay when a block is freed.
const PAGE: u64 = 4096;
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A mapping is opened for access in steps of this size.
const STEP: u64 = 1 << 20;

/// A mapping of an arena, one's own or a peer's. Everything in it is found by offset and checked on use.
///
/// It is closed to every access (PROT_NONE) beyond what has been asked for. A few MiB of the 64 GiB are in use, all
/// near its start. A reader of all readable memory, such as memcheck's search for leaks and some garbage collectors,
/// would bring the rest to life.
#[derive(Clone)]
pub struct View {
    map: Arc<Mapping>,
}

/// The mapping, for as long as a view of it or a reference into it is left.
struct Mapping {
    base: *mut u8,
    len: u64,
    /// Bytes from the start that are open.
    open: AtomicU64,
    /// The process that mapped it. A forked child does not have the mapping, and may have another one there.
    pid: u32,
}

// SAFETY: an address range; all access through it goes through atomics or explicitly synchronised copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: the range came from `map`, and the last reference into it is gone.
            unsafe { mapping::unmap(self.base.cast(), self.len as usize) };
        }
    }
}

/// A shared struct in an arena, which stays mapped as long as this lives.
pub struct ArenaRef<T: ?Sized> {
    at: NonNull<T>,
    map: Arc<Mapping>,
}

// SAFETY: shared structs are made of atomics.
unsafe impl<T: ?Sized + Sync> Send for ArenaRef<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for ArenaRef<T> {}

impl<T: ?Sized> Clone for ArenaRef<T> {
    fn clone(&self) -> Self {
        ArenaRef { at: self.at, map: Arc::clone(&self.map) }
    }
}

impl<T: ?Sized> Deref for ArenaRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: checked by `View` when this was made; the mapping lives as long as `map`.
        unsafe { self.at.as_ref() }
    }
}

impl View {
    /// Maps `len` bytes of `fd` shared, readable and writable, kept out of forked children and core dumps.
    fn map(fd: RawFd, len: u64) -> Result<View> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mapping::map(std::ptr::null_mut(), len as usize, libc::PROT_NONE, flags, fd, 0) };
        if base.is_null() {
            return Err(Error::last_os("cannot map an arena"));
        }
        // SAFETY: the range was mapped just above.
        unsafe { mapping::keep_private(base, len as usize) };
        let map = Mapping { base: base.cast(), len, open: AtomicU64::new(0), pid: std::process::id() };
        Ok(View { map: Arc::new(map) })
    }

    /// Maps a peer's arena from a descriptor it sent. Refused unless it is sealed against shrinking.
    pub fn of_peer(fd: RawFd) -> Result<View> {
        // SAFETY: F_GET_SEALS takes no argument; fstat fills the zeroed struct.
        let (seals, stat) = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &raw mut stat) != 0 {
                return Err(Error::last_os("cannot stat a peer's arena"));
            }
            (libc::fcntl(fd, libc::F_GET_SEALS), stat)
        };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || stat.st_size < PAGE as i64 {
            return Err(Error::invalid("a peer sent an arena that is not a sealed memfd"));
        }
        // All of it where there is room; else its beginning, and there lies what is in use.
        let size = stat.st_size as u64;
        let most = if checkers::memcheck() { size.min(CHECKED_PEER) } else { size };
        let mut view = View::map(fd, most);
        for smaller in SIZES.into_iter().filter(|smaller| *smaller < most) {
            if view.is_ok() {
                break;
            }
            view = View::map(fd, smaller);
        }
        view
    }

    /// Address of the mapping.
    pub fn base(&self) -> *const u8 {
        self.map.base
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.map.len
    }

    /// Returns true if nothing is mapped; never true for a view made by this module.
    pub fn is_empty(&self) -> bool {
        self.map.len == 0
    }

    /// The address of `offset`, if `[offset, offset + len)` lies inside.
    #[inline]
    pub fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        if end > self.map.open.load(Ordering::Acquire) && !self.open(end) {
            return None;
        }
        // SAFETY: the sum was just checked to stay inside the mapping.
        Some(unsafe { self.map.base.add(offset as usize) })
    }

    /// Opens the mapping up to `end`; false beyond its own end, or when the kernel has no memory for that.
    #[cold]
    #[inline(never)]
    fn open(&self, end: u64) -> bool {
        let Mapping { base, len, open, .. } = &*self.map;
        if end > *len {
            return false;
        }
        let (from, to) = (open.load(Ordering::Acquire), end.next_multiple_of(STEP).min(*len));
        // If another thread opens more at the same moment, this part is open already.
        if from < to {
            // SAFETY: a part of this mapping, which nobody could use until now.
            let done = unsafe {
                mapping::protect(
                    base.add(from as usize).cast(),
                    (to - from) as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                )
            };
            if !done {
                return false;
            }
            open.fetch_max(to, Ordering::AcqRel);
        }
        true
    }

    /// Has `[offset, offset + len)`, whole pages, read only from now on; whether that was done.
    pub(crate) fn read_only(&self, offset: u64, len: u64) -> bool {
        self.protect(offset, len, libc::PROT_READ)
    }

    /// Ends that for the pages around `[offset, offset + len)`; whether that was done.
    pub(crate) fn writable(&self, offset: u64, len: u64) -> bool {
        let page = page() as u64;
        let (start, end) = (offset / page * page, (offset + len).next_multiple_of(page));
        self.protect(start, end - start, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn protect(&self, offset: u64, len: u64, prot: libc::c_int) -> bool {
        let Some(at) = self.at(offset, len) else { return false };
        // SAFETY: a part of this mapping, and the callers know its writers.
        unsafe { mapping::protect(at.cast(), len as usize, prot) }
    }

    /// The address of `n` shared structs at `offset`, if they lie inside and are aligned. `T` holds atomics only, see
    /// `layout`.
    #[inline]
    fn find<T: Shared>(&self, offset: u64, n: usize) -> Option<NonNull<T>> {
        let p = self.at(offset, (size_of::<T>() as u64).checked_mul(n as u64)?)?;
        if (p as usize).is_multiple_of(align_of::<T>()) { NonNull::new(p.cast()) } else { None }
    }

    /// The shared struct at `offset`, if it lies inside and is aligned.
    #[inline]
    pub fn get<T: Shared>(&self, offset: u64) -> Option<&T> {
        // SAFETY: inside the mapping, aligned, and `Shared` types are valid for any bytes. The mapping lives as long as
        // this view of it.
        self.find(offset, 1).map(|p| unsafe { p.as_ref() })
    }

    /// A shared array of `n` elements at `offset`.
    #[inline]
    pub fn slice<T: Shared>(&self, offset: u64, n: usize) -> Option<&[T]> {
        // SAFETY: as for `get`, for the whole array.
        self.find(offset, n).map(|p| unsafe { NonNull::slice_from_raw_parts(p, n).as_ref() })
    }

    /// The shared struct at `offset`, with the mapping.
    pub fn hold<T: Shared>(&self, offset: u64) -> Option<ArenaRef<T>> {
        Some(ArenaRef { at: self.find(offset, 1)?, map: Arc::clone(&self.map) })
    }

    /// A shared array of `n` elements at `offset`, with the mapping.
    pub fn hold_slice<T: Shared>(&self, offset: u64, n: usize) -> Option<ArenaRef<[T]>> {
        let at = NonNull::slice_from_raw_parts(self.find(offset, n)?, n);
        Some(ArenaRef { at, map: Arc::clone(&self.map) })
    }

    /// A shared array of `N` elements at `offset`, with the mapping.
    pub fn hold_array<T: Shared, const N: usize>(&self, offset: u64) -> Option<ArenaRef<[T; N]>> {
        Some(ArenaRef { at: self.find::<T>(offset, N)?.cast(), map: Arc::clone(&self.map) })
    }
}

/// This process's arena.
pub struct Arena {
    fd: OwnedFd,
    view: View,
    free: OwnerLock<FreeRanges>,
}

impl Arena {
    /// Makes the arena; the first `header` bytes stay with the caller.
    pub fn create(header: u64) -> Result<Arena> {
        let mut last = None;
        let most = if checkers::memcheck() { CHECKED } else { SIZES[0] };
        for size in SIZES.into_iter().filter(|size| *size <= most) {
            match Arena::create_sized(size, header) {
                Ok(arena) => return Ok(arena),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| Error::no_memory("no arena size could be had")))
    }

    fn create_sized(size: u64, header: u64) -> Result<Arena> {
        // SAFETY: the name is a C string; the returned descriptor is owned at once.
        let fd = unsafe {
            let raw = libc::memfd_create(c"vervain".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if raw < 0 {
                let what = "cannot make the shared-memory arena (memfd_create; `vervain doctor` has the remedy)";
                return Err(Error::last_os(what));
            }
            OwnedFd::from_raw_fd(raw)
        };
        // SAFETY: plain calls on a descriptor that we own.
        unsafe {
            if without_sigxfsz(|| libc::ftruncate(fd.as_raw_fd(), size as i64)) != 0 {
                let what = match std::io::Error::last_os_error().raw_os_error() {
                    Some(libc::EFBIG) => format!(
                        "the limit on the size of files (RLIMIT_FSIZE, ulimit -f) is below the {} MiB of a shared-memory arena",
                        size >> 20
                    ),
                    _ => "cannot size the shared-memory arena".to_owned(),
                };
                return Err(Error::last_os(&what));
            }
            if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) != 0 {
                return Err(Error::last_os("cannot seal the shared-memory arena"));
            }
        }
        let view = View::map(fd.as_raw_fd(), size)?;
        let arena = Arena { fd, view, free: OwnerLock::new(FreeRanges::new(header.next_multiple_of(PAGE)..size)) };
        arena.commit(&(0..header))?;
        Ok(arena)
    }

    /// The mapping.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The memfd, to hand to peers.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Allocates `len` zeroed bytes, line-aligned, with their pages committed; ENOMEM when the memory cannot be had.
    pub fn alloc(&self, len: u64) -> Result<Block> {
        let range = self.reserve(len)?;
        if let Err(e) = self.commit(&range) {
            self.free.lock().give_back(range);
            return Err(e);
        }
        Ok(Block { range })
    }

    /// Allocates `len` zeroed bytes without committing pages: for tables that are read far more widely than written.
    pub fn alloc_sparse(&self, len: u64) -> Result<Block> {
        Ok(Block { range: self.reserve(len)? })
    }

    fn reserve(&self, len: u64) -> Result<Range<u64>> {
        // Blocks of a page and more get whole pages, so that freeing them can give all their memory back.
        let unit = if len >= PAGE { PAGE } else { LINE };
        let len = len.max(1).next_multiple_of(unit);
        let want = if unit == PAGE { len + PAGE } else { len };
        let mut free = self.free.lock();
        let got = free.take(want).ok_or_else(|| Error::no_memory("the shared-memory arena is full"))?;
        let start = got.start.next_multiple_of(unit);
        let range = start..start + len;
        if got.start < range.start {
            free.give_back(got.start..range.start);
        }
        if range.end < got.end {
            free.give_back(range.end..got.end);
        }
        Ok(range)
    }

    /// Commits the pages of `range`.
    pub fn commit(&self, range: &Range<u64>) -> Result<()> {
        let _whole = Uncancelled::begin();
        loop {
            // SAFETY: allocating pages of our own memfd; the range lies inside it.
            let rc = unsafe {
                libc::fallocate(
                    self.fd.as_raw_fd(),
                    libc::FALLOC_FL_KEEP_SIZE,
                    range.start as i64,
                    (range.end - range.start) as i64,
                )
            };
            if rc == 0 {
                // A part of the table that is read only as a whole there (`Space::new`).
                if checkers::memcheck() && !self.view.writable(range.start, range.end - range.start) {
                    return Err(Error::last_os("cannot open a part of the shared-memory arena"));
                }
                return Ok(());
            }
            let e = std::io::Error::last_os_error();
            match e.raw_os_error() {
                Some(libc::EINTR) => {}
                _ => return Err(Error::no_memory(format!("no memory for the shared-memory arena: {e}"))),
            }
        }
    }

    /// Frees a block; its memory goes back to the system and reads as zero when it is allocated again.
    pub fn release(&self, block: Block) {
        let r = block.range;
        if r.is_empty() {
            return;
        }
        let inner = r.start.next_multiple_of(PAGE)..(r.end / PAGE * PAGE);
        let zero = |from: u64, to: u64| {
            if let Some(p) = self.view.at(from, to - from) {
                // SAFETY: the block is ours and no longer published; `at` checked the bounds.
                unsafe { std::ptr::write_bytes(p, 0, (to - from) as usize) };
            }
        };
        if inner.start < inner.end {
            let _whole = Uncancelled::begin();
            // SAFETY: punching a hole in our own memfd; the block is no longer published.
            let rc = unsafe {
                libc::fallocate(
                    self.fd.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    inner.start as i64,
                    (inner.end - inner.start) as i64,
                )
            };
            if rc != 0 {
                zero(inner.start, inner.end);
            }
            zero(r.start, inner.start);
            zero(inner.end, r.end);
        } else {
            zero(r.start, r.end);
        }
        self.free.lock().give_back(r);
    }
}

/// An allocation of the arena. Give it back with [`Arena::release`].
#[derive(Debug)]
pub struct Block {
    range: Range<u64>,
}

impl Block {
    /// A block of nothing, to leave in the place of one that was given back.
    pub(crate) fn empty() -> Block {
        Block { range: 0..0 }
    }

    /// Offset of its start.
    pub fn offset(&self) -> u64 {
        self.range.start
    }

    /// Its bytes, rounded up from what was asked for.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns true if it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_block_reads_as_zero_when_allocated_again() {
        let arena = Arena::create(PAGE).unwrap();
        for len in [64, 200, PAGE, 3 * PAGE + 5] {
            let a = arena.alloc(len).unwrap();
            let word = arena.view().get::<AtomicU64>(a.offset()).unwrap();
            assert_eq!(word.load(Ordering::Relaxed), 0);
            word.store(!0, Ordering::Relaxed);
            let at = a.offset();
            arena.release(a);
            let b = arena.alloc(len).unwrap();
            assert_eq!(b.offset(), at);
            assert_eq!(arena.view().get::<AtomicU64>(b.offset()).unwrap().load(Ordering::Relaxed), 0);
            arena.release(b);
        }
    }

    /// Rights of the mapping at `at`, as in /proc/self/maps.
    fn rights(at: *const u8) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let at = at as u64;
        let of = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            (number(start)? <= at && at < number(end)?).then(|| rest[..3].to_owned())
        };
        maps.lines().find_map(of).unwrap_or_default()
    }

    #[test]
    fn what_nobody_has_asked_for_cannot_be_read() {
        let arena = Arena::create(PAGE).unwrap();
        let block = arena.alloc(5 * STEP).unwrap();
        let views = [arena.view().clone(), View::of_peer(arena.fd()).unwrap()];
        for view in views {
            // A clone of the view knows what was opened by another.
            let clone = view.clone();
            let at = clone.at(block.offset(), block.len()).unwrap();
            let open = (block.offset() + block.len()).next_multiple_of(STEP) as usize;
            assert_eq!(rights(at), "rw-");
            assert_eq!(rights(view.base().wrapping_add(open - 1)), "rw-");
            assert_eq!(rights(view.base().wrapping_add(open)), "---");
            assert_eq!(rights(view.base().wrapping_add(view.len() as usize - 1)), "---");
            // Memory that is asked for later is opened then.
            let far = view.at(20 * STEP, 8).unwrap();
            assert_eq!(rights(far), "rw-");
            assert!(view.at(view.len(), 1).is_none());
            assert_eq!(rights(view.base().wrapping_add(22 * STEP as usize)), "---");
        }
    }

    #[test]
    fn a_peer_s_arena_stays_mapped_as_long_as_anything_refers_to_it() {
        let arena = Arena::create(PAGE).unwrap();
        let block = arena.alloc(8).unwrap();
        let view = View::of_peer(arena.fd()).unwrap();
        let (word, list) = (view.hold::<AtomicU64>(block.offset()), view.hold_slice::<AtomicU64>(block.offset(), 1));
        let base = view.base();
        drop(view);
        assert_eq!(rights(base), "rw-");
        word.unwrap().store(7, Ordering::Relaxed);
        assert_eq!(list.as_ref().unwrap()[0].load(Ordering::Relaxed), 7);
        drop(list);
        // Something else may have been mapped there since, by another test.
        let there = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{:x}-", base as usize);
        assert!(!there.lines().any(|line| line.starts_with(&start) && line.contains("memfd:vervain")), "{there}");
    }

    #[test]
    fn offsets_outside_or_unaligned_are_refused() {
        let arena = Arena::create(PAGE).unwrap();
        let view = arena.view();
        assert!(view.get::<AtomicU64>(view.len() - 7).is_none());
        assert!(view.get::<AtomicU64>(view.len()).is_none());
        assert!(view.get::<AtomicU64>(u64::MAX - 3).is_none());
        assert!(view.get::<AtomicU64>(12).is_none());
        assert!(view.slice::<AtomicU64>(0, usize::MAX).is_none());
    }
}
