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

static XFSZ: u64 = 1 << (libc::SIGXFSZ - 1);

/// Makes a call that may lengthen a file. Beyond RLIMIT_FSIZE it fails with EFBIG alone: the kernel's SIGXFSZ, which it
/// sends to the calling thread and which ends a program that has no handler, is held off and taken back. An adapter's
/// driver has no files.
pub fn without_sigxfsz<T>(call: impl FnOnce() -> T) -> T {
    let (mut old, mut earlier) = (0_u64, 0_u64);
    // SAFETY: masks of 8 bytes, as the kernel has them.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const XFSZ, &raw mut old, 8);
        libc::syscall(libc::SYS_rt_sigpending, &raw mut earlier, 8);
    }
    let result = call();
    let after = errno();
    if earlier & XFSZ == 0 {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let nowhere = std::ptr::null_mut::<libc::siginfo_t>();
        // SAFETY: as above; nobody wants to know of the signal, and nothing is waited for.
        unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &raw const XFSZ, nowhere, &raw const at_once, 8) };
    }
    if old & XFSZ == 0 {
        let nowhere = std::ptr::null_mut::<u64>();
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const XFSZ, nowhere, 8) };
    }
    set_errno(after);
    result
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
    if crate::mode::stopped() {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// In a child, for a limit is the process's; the child ends with what `look` says.
    #[test]
    fn a_file_that_may_not_be_so_long_is_an_error_and_no_signal() {
        let look = || {
            let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
            // SAFETY: plain calls of a child that has one thread.
            unsafe {
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                let fd = libc::memfd_create(c"long".as_ptr(), libc::MFD_CLOEXEC);
                if without_sigxfsz(|| libc::ftruncate(fd, 8192)) != -1 {
                    return 1;
                }
                let code = errno();
                let mut mask: libc::sigset_t = std::mem::zeroed();
                libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
                let mut pending: libc::sigset_t = std::mem::zeroed();
                libc::sigpending(&raw mut pending);
                let left = [mask, pending].iter().any(|set| libc::sigismember(set, libc::SIGXFSZ) == 1);
                if left { 2 } else { code }
            }
        };
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(look()) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), libc::EFBIG);
    }
}
