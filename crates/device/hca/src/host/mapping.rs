//! Mappings that are the device's own business: arenas and peers' objects. Made by bare system calls, so that a preload
//! which serves or notes the program's mappings neither serves these nor keeps copies of their descriptors.

use libc::{c_int, c_long, c_void};
use std::os::fd::RawFd;

/// Maps `len` bytes, `fd` from `offset` or nothing; null and `errno` when that fails.
///
/// # Safety
/// As mmap(2): with MAP_FIXED in `flags`, nobody uses what is at `at`.
pub(crate) unsafe fn map(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: RawFd,
    offset: u64,
) -> *mut c_void {
    // SAFETY: the caller vouches for what is replaced.
    let rc = unsafe { libc::syscall(libc::SYS_mmap, at, len, prot as c_long, flags as c_long, fd as c_long, offset) };
    if rc == -1 { std::ptr::null_mut() } else { rc as *mut c_void }
}

/// Gives `len` bytes other rights; whether that was done.
///
/// # Safety
/// The range is of a mapping of the caller's, and nobody uses it in a way that it is closed to.
pub(crate) unsafe fn protect(at: *mut c_void, len: usize, prot: c_int) -> bool {
    // SAFETY: the caller vouches for the range.
    unsafe { libc::syscall(libc::SYS_mprotect, at, len, prot as c_long) == 0 }
}

/// Unmaps `len` bytes.
///
/// # Safety
/// Nobody uses them afterwards.
pub(crate) unsafe fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: the caller gives the range up.
    unsafe { libc::syscall(libc::SYS_munmap, at, len) };
}

/// Keeps a mapping out of forked children and core dumps.
///
/// # Safety
/// The range is one mapping of the caller's.
pub(crate) unsafe fn keep_private(at: *mut c_void, len: usize) {
    for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
        // SAFETY: sets a flag on the caller's own range.
        unsafe { libc::syscall(libc::SYS_madvise, at, len, advice as c_long) };
    }
}

/// Attaches segment `shmid` at an address of the kernel's choice; null when that fails.
pub(crate) fn attach(shmid: c_int) -> *mut c_void {
    // SAFETY: a fresh mapping touches no existing memory.
    let rc = unsafe { libc::syscall(libc::SYS_shmat, shmid as c_long, std::ptr::null::<c_void>(), 0 as c_long) };
    if rc == -1 { std::ptr::null_mut() } else { rc as *mut c_void }
}

/// Detaches what [`attach`] gave.
///
/// # Safety
/// Nobody uses it afterwards.
pub(crate) unsafe fn detach(at: *mut c_void) {
    // SAFETY: the caller gives it up.
    unsafe { libc::syscall(libc::SYS_shmdt, at) };
}
