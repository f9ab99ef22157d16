//! System calls as such, past the C library's functions: those are hooked by the preload library, which calls this
//! crate.

use std::ffi::{c_int, c_long};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Rounds up to a multiple of `unit`, a power of two.
pub const fn round_up(n: usize, unit: usize) -> usize {
    (n + unit - 1) & !(unit - 1)
}

/// The page size; a power of two.
pub fn page() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    match PAGE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: sysconf has no preconditions.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            PAGE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

fn answer(result: c_long) -> io::Result<usize> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// mmap(2).
///
/// # Safety
/// With MAP_FIXED nobody else may own the range.
pub unsafe fn mmap(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: u64) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    answer(unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) })
}

/// munmap(2).
///
/// # Safety
/// Nobody uses the range any more.
pub unsafe fn munmap(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    answer(unsafe { libc::syscall(libc::SYS_munmap, addr, len) }).map(drop)
}

/// madvise(2).
///
/// # Safety
/// The advice must not take contents that somebody needs.
pub unsafe fn madvise(addr: usize, len: usize, advice: c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    answer(unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) }).map(drop)
}

/// mprotect(2).
///
/// # Safety
/// Who uses the range knows of its new protection.
pub unsafe fn mprotect(addr: usize, len: usize, prot: c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    answer(unsafe { libc::syscall(libc::SYS_mprotect, addr, len, prot) }).map(drop)
}

/// mlock(2).
pub fn mlock(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: changes no contents.
    answer(unsafe { libc::syscall(libc::SYS_mlock, addr, len) }).map(drop)
}

/// munlock(2), without a word about errors.
pub fn munlock(addr: usize, len: usize) {
    // SAFETY: changes no contents.
    unsafe { libc::syscall(libc::SYS_munlock, addr, len) };
}

/// close(2), without a word about errors.
pub fn close(fd: c_int) {
    // SAFETY: the callers own the descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// The calling thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub fn set_errno(value: c_int) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = value };
}

/// Locks; whether another thread has to be waited for cannot be told from errno (the wait's is EAGAIN).
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
        Err(TryLockError::WouldBlock) => {
            let before = errno();
            let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
            set_errno(before);
            guard
        }
    }
}

/// The soft limit of a resource; `None` when unlimited.
pub fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable; prlimit64 of the own process.
    let got = unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, resource as c_int, std::ptr::null::<libc::rlimit>(), &raw mut limit)
    };
    (got == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Reads a small file of /proc or /sys, without the C library's (hooked, allocating) functions.
pub fn read_small<const N: usize>(path: &std::ffi::CStr) -> Option<([u8; N], usize)> {
    let fd =
        // SAFETY: a C string; the descriptor is closed below.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let mut bytes = [0_u8; N];
    // SAFETY: the buffer has N bytes.
    let got = unsafe { libc::syscall(libc::SYS_read, fd, bytes.as_mut_ptr(), N) };
    close(fd as c_int);
    (got > 0).then_some((bytes, got as usize))
}

/// Milliseconds of a clock that costs no system call and never goes back.
pub fn now_ms() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut t) };
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

/// While it lives, the thread gets no signals: a handler could end the thread inside of a lock, or call what is locked.
#[must_use]
pub struct Masked(Option<u64>);

/// Holds signals off. Two system calls, so not for malloc, where the C library's own locks have the same weakness.
pub fn mask_signals() -> Masked {
    if crate::state::stopped() {
        return Masked(None);
    }
    let mut old = 0_u64;
    // SAFETY: masks of 8 bytes, as the kernel has them.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const ALL, &raw mut old, 8) };
    Masked(Some(old))
}

static ALL: u64 = !0;

impl Drop for Masked {
    fn drop(&mut self) {
        let Some(old) = &self.0 else { return };
        // SAFETY: as above.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                std::ptr::from_ref(old),
                std::ptr::null_mut::<u64>(),
                8,
            )
        };
    }
}
