//! The system calls of adoption, made directly: the program's preloads must not see these mappings come and go, and
//! between taking pages away and giving them back nothing here may allocate, log, take a lock or touch the program's
//! memory.

use crate::error::Error;
use libc::{c_int, c_long};

/// Bytes of a page; where the kernel has others, nothing is adopted.
pub(super) const PAGE: usize = 4096;

/// The reason why a step failed. Made without allocating; becomes an [`Error`] when the program's threads run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) errno: i32,
    pub(super) what: &'static str,
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        if stop.errno == 0 {
            return Error::unsupported(format!("memory not adopted: {}", stop.what));
        }
        let os = std::io::Error::from_raw_os_error(stop.errno);
        Error::new(stop.errno, format!("memory not adopted: {}: {os}", stop.what))
    }
}

/// A stop that no errno explains.
pub(super) fn stop<T>(what: &'static str) -> Result<T, Stop> {
    Err(Stop { errno: 0, what })
}

/// The result of a system call. Reads errno, which is why memory with the calling thread's errno is never adopted.
pub(super) fn checked(what: &'static str, rc: c_long) -> Result<usize, Stop> {
    if rc != -1 {
        return Ok(rc as usize);
    }
    // SAFETY: the calling thread's own errno.
    Err(Stop { errno: unsafe { *libc::__errno_location() }, what })
}

/// Fresh private memory at an address of the kernel's choice.
pub(super) fn map_anonymous(len: usize, prot: c_int) -> Result<usize, Stop> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping where nothing was.
    checked("mmap of working space", unsafe { libc::syscall(libc::SYS_mmap, 0, len, prot, flags, -1, 0) })
}

/// Puts `[addr, addr + len)` of the file `fd` (the offset equals the address) over what is mapped there now.
///
/// # Safety
/// The contents of the pages replaced are in the file, or not needed.
pub(super) unsafe fn map_object_over(addr: usize, len: usize, fd: c_int) -> Result<(), Stop> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE);
    // SAFETY: the caller vouches for the pages that go.
    checked("mmap of the shared pages", unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, addr) })?;
    Ok(())
}

/// Unmaps working space. Failure would only leave address space behind.
///
/// # Safety
/// Nobody else uses the range.
pub(super) unsafe fn unmap(addr: usize, len: usize) {
    if len > 0 {
        // SAFETY: the caller vouches for the range.
        unsafe { libc::syscall(libc::SYS_munmap, addr, len) };
    }
}

/// Moves all pages of `[addr, addr + len)`, which lies in one mapping, elsewhere, and leaves the mapping there without
/// pages. Atomic: an access sees the pages, or none. Returns where they are.
///
/// # Safety
/// `[addr, addr + len)` is registered with a userfaultfd for missing pages.
pub(super) unsafe fn take_pages(addr: usize, len: usize) -> Result<usize, Stop> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller vouches for the range; the kernel chooses the other.
    checked("mremap of the pages", unsafe { libc::syscall(libc::SYS_mremap, addr, len, len, flags, 0) })
}

/// Moves the mapping `[from, from + len)` with its pages over what is mapped at `to`. Atomic as [`take_pages`].
///
/// # Safety
/// The contents of the pages replaced are at `from`, or not needed.
pub(super) unsafe fn move_mapping(from: usize, len: usize, to: usize) -> Result<(), Stop> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller vouches for both ranges.
    checked("mremap back", unsafe { libc::syscall(libc::SYS_mremap, from, len, len, flags, to) })?;
    Ok(())
}

/// `madvise`, for the flags that change no contents.
pub(super) fn advise(addr: usize, len: usize, advice: c_int) -> Result<(), Stop> {
    // SAFETY: only called with flags that keep what the pages hold.
    checked("madvise", unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) })?;
    Ok(())
}

/// Changes what is allowed on the range.
pub(super) fn protect(addr: usize, len: usize, prot: c_int) -> Result<(), Stop> {
    // SAFETY: only called for working space.
    checked("mprotect", unsafe { libc::syscall(libc::SYS_mprotect, addr, len, prot) })?;
    Ok(())
}

/// Writes memory into the file, at the offset that equals `at`.
pub(super) fn write_object(fd: c_int, from: usize, len: usize, at: usize) -> Result<(), Stop> {
    let mut done = 0;
    while done < len {
        // SAFETY: the kernel checks the addresses.
        let rc = unsafe { libc::syscall(libc::SYS_pwrite64, fd, from + done, len - done, at + done) };
        match checked("copying to shared pages", rc)? {
            0 => return stop("copying to shared pages ended early"),
            n => done += n,
        }
    }
    Ok(())
}

/// Reads the file at the offset that equals `at` into memory.
pub(super) fn read_object(fd: c_int, to: usize, len: usize, at: usize) -> Result<(), Stop> {
    let mut done = 0;
    while done < len {
        // SAFETY: only called with working space of that length; the kernel checks the addresses.
        let rc = unsafe { libc::syscall(libc::SYS_pread64, fd, to + done, len - done, at + done) };
        match checked("copying from shared pages", rc)? {
            0 => return stop("copying from shared pages ended early"),
            n => done += n,
        }
    }
    Ok(())
}

/// Gives the file's pages of the range back to the system.
pub(super) fn punch(fd: c_int, at: usize, len: usize) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain call; failure leaves memory in use that nobody reads.
    unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, at, len) };
}

/// Keeps signal handlers off the calling thread: one that touched pages that are away would wait for this very thread.
pub(crate) struct NoSignals(u64);

impl NoSignals {
    pub(crate) fn new() -> NoSignals {
        NoSignals(set_mask(u64::MAX))
    }
}

impl Drop for NoSignals {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

fn set_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: the kernel's signal set is 8 bytes; both words live on this stack.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut old, size_of::<u64>());
    }
    old
}
