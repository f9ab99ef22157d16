//! mmap and its kin. Calls on the shared heap go to `vervain-share`; shared mappings of memfds and SysV segments are
//! noted there; every other call passes through after a few comparisons.
//!
//! UCX watches for memory that goes away. Its libucm rewrites the first bytes of these functions, as it finds them, to
//! jump to its own, which end in system calls and would bypass the heap. So the functions by which it makes those calls
//! (`ucm_orig_mmap` and so on, ucm/util/replace.h) are defined here as well, with the kernel behind them in place of
//! the C library.

use std::ffi::{c_int, c_uint, c_void};

use libc::{off_t, size_t};
use vervain_share::maps::{self, Answer};
use vervain_share::remap::{self, Remap};
use vervain_share::settings::THRESHOLD;
use vervain_share::{program, sys};

use crate::real::{real, reals, set_errno};

reals! { mmap munmap mremap mprotect pkey_mprotect madvise mlock mlock2 shmat shmdt }

/// `call` leaves errno alone when it succeeds, whatever it does meanwhile.
fn answered(call: impl FnOnce() -> Option<Answer>) -> Option<Answer> {
    let before = sys::errno();
    let answer = call();
    sys::set_errno(before);
    answer
}

fn pointer(answer: Answer) -> *mut c_void {
    match answer {
        Ok(addr) => addr as *mut c_void,
        Err(code) => {
            set_errno(code);
            libc::MAP_FAILED
        }
    }
}

fn status(answer: Answer) -> c_int {
    match answer {
        Ok(_) => 0,
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}

const SHARED_TYPES: c_int = libc::MAP_SHARED | libc::MAP_PRIVATE;

type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Munmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
type Mremap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;
type Madvise = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;
type Shmat = unsafe extern "C" fn(c_int, *const c_void, c_int) -> *mut c_void;
type Shmdt = unsafe extern "C" fn(*const c_void) -> c_int;

/// # Safety
/// As mmap(2), which `real` does.
#[inline]
unsafe fn map(
    real: Mmap,
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let at = addr as usize;
    if maps::wants(at, len, prot, flags)
        && let Some(answer) = maps::map(len, flags)
    {
        return pointer(answer);
    }
    if flags & libc::MAP_FIXED != 0 {
        program::gone(at..at.saturating_add(len));
        if maps::touches(at, len) {
            // SAFETY: the caller's own arguments.
            if let Some(answer) = answered(|| unsafe { maps::map_over(at, len, prot, flags, fd, offset as u64) }) {
                return pointer(answer);
            }
        }
    } else if at != 0 && maps::touches(at, len) {
        // SAFETY: the caller's own arguments.
        if let Some(answer) = answered(|| unsafe { maps::map_at(at, len, prot, flags, fd, offset as u64) }) {
            return pointer(answer);
        }
    }
    // MAP_SHARED_VALIDATE is both bits.
    let shared = flags & SHARED_TYPES != libc::MAP_PRIVATE;
    let plain = flags & !libc::MAP_POPULATE == libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    if plain
        && at == 0
        && len >= THRESHOLD
        && let Some(own) = program::shared_anonymous(len)
    {
        // SAFETY: the caller's own arguments, with a file in place of none.
        let got = unsafe { real(addr, len, prot, flags & !libc::MAP_ANONYMOUS, own, 0) };
        if got != libc::MAP_FAILED {
            program::mapped(got as usize, len, own, 0);
        }
        sys::close(own);
        if got != libc::MAP_FAILED {
            return got;
        }
    }
    // SAFETY: the caller's own arguments.
    let got = unsafe { real(addr, len, prot, flags, fd, offset) };
    if shared && flags & libc::MAP_ANONYMOUS == 0 && got != libc::MAP_FAILED {
        program::mapped(got as usize, len, fd, offset as u64);
    }
    got
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let real = real!(mmap: fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void);
    // SAFETY: the caller's own arguments.
    unsafe { map(real, addr, len, prot, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: as above.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// # Safety
/// As munmap(2), which `real` does.
#[inline]
unsafe fn unmap(real: Munmap, addr: *mut c_void, len: size_t) -> c_int {
    let at = addr as usize;
    program::gone(at..at.saturating_add(len));
    if maps::touches(at, len) {
        // SAFETY: the caller's own arguments.
        if let Some(answer) = answered(|| unsafe { maps::unmap(at, len) }) {
            return status(answer);
        }
    }
    // SAFETY: as above.
    unsafe { real(addr, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    let real = real!(munmap: fn(*mut c_void, size_t) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { unmap(real, addr, len) }
}

/// # Safety
/// As mremap(2), which `real` does.
#[inline]
unsafe fn remap(
    real: Mremap,
    addr: *mut c_void,
    len: size_t,
    new_len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let (at, new) = (addr as usize, to as usize);
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let kept = len == 0 || flags & libc::MREMAP_DONTUNMAP != 0;
    // An old length of 0 makes a second mapping of the same pages.
    let old_len = len.max(1);
    let moved = |start: usize| {
        program::moved(at..at.saturating_add(old_len), start..start.saturating_add(new_len), kept);
    };
    if maps::touches(at, old_len) || (fixed && maps::touches(new, new_len)) {
        // SAFETY: the caller's own arguments.
        if let Some(answer) = answered(|| unsafe { remap::remap(Remap { addr: at, len, new_len, flags, to: new }) }) {
            if let Ok(start) = answer {
                moved(start);
            }
            return pointer(answer);
        }
    }
    // SAFETY: as above.
    let got = unsafe { real(addr, len, new_len, flags, to) };
    if got != libc::MAP_FAILED {
        moved(got as usize);
    }
    got
}

/// Variadic in C; see `opening`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    addr: *mut c_void,
    len: size_t,
    new_len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let real = real!(mremap: fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void);
    // SAFETY: the caller's own arguments.
    unsafe { remap(real, addr, len, new_len, flags, to) }
}

/// Calls `then` after a successful call on a range that touches the heap.
#[inline]
fn afterwards(addr: *mut c_void, len: size_t, result: c_int, then: impl FnOnce(usize, usize)) -> c_int {
    if result == 0 && maps::touches(addr as usize, len) {
        then(addr as usize, len);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    let real = real!(mprotect: fn(*mut c_void, size_t, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(addr, len, prot) };
    if result != 0 && crate::real::errno() == libc::ENOMEM && maps::touches(addr as usize, len) {
        maps::protected_in_part(addr as usize, len, prot);
        set_errno(libc::ENOMEM);
    }
    afterwards(addr, len, result, |addr, len| maps::protected(addr, len, prot))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int {
    let real = real!(pkey_mprotect: fn(*mut c_void, size_t, c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(addr, len, prot, key) };
    afterwards(addr, len, result, |addr, len| {
        maps::protected(addr, len, prot);
        maps::attributed(addr, len);
    })
}

/// # Safety
/// As madvise(2), which `real` does.
#[inline]
unsafe fn advise(real: Madvise, addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if maps::touches(addr as usize, len) {
        // SAFETY: the caller's own arguments.
        if let Some(answer) = answered(|| unsafe { maps::advise(addr as usize, len, advice) }) {
            return status(answer);
        }
    }
    // SAFETY: as above.
    unsafe { real(addr, len, advice) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let real = real!(madvise: fn(*mut c_void, size_t, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { advise(real, addr, len, advice) }
}

/// The kernel has locked what it could where it says that it could not bring all pages in, or that there was a hole.
fn locked(addr: *mut c_void, len: size_t, result: c_int) -> c_int {
    if maps::touches(addr as usize, len) {
        let before = crate::real::errno();
        maps::attributed(addr as usize, len);
        set_errno(before);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(addr: *mut c_void, len: size_t) -> c_int {
    let real = real!(mlock: fn(*mut c_void, size_t) -> c_int);
    // SAFETY: the caller's own arguments.
    locked(addr, len, unsafe { real(addr, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(addr: *mut c_void, len: size_t, flags: c_uint) -> c_int {
    let real = real!(mlock2: fn(*mut c_void, size_t, c_uint) -> c_int);
    // SAFETY: the caller's own arguments.
    locked(addr, len, unsafe { real(addr, len, flags) })
}

/// # Safety
/// As shmat(2), which `real` does.
#[inline]
unsafe fn attach(real: Shmat, segment: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's own arguments.
    let got = unsafe { real(segment, addr, flags) };
    if got != libc::MAP_FAILED {
        program::attached(got as usize, segment);
    }
    got
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmat(segment: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    let real = real!(shmat: fn(c_int, *const c_void, c_int) -> *mut c_void);
    // SAFETY: the caller's own arguments.
    unsafe { attach(real, segment, addr, flags) }
}

/// # Safety
/// As shmdt(2), which `real` does.
#[inline]
unsafe fn detach(real: Shmdt, addr: *const c_void) -> c_int {
    program::detached(addr as usize);
    // SAFETY: the caller's own arguments.
    unsafe { real(addr) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    let real = real!(shmdt: fn(*const c_void) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { detach(real, addr) }
}

/// The system calls themselves, past what libucm makes of the C library's functions. syscall(2) gives what those give.
mod kernel {
    use super::*;

    pub unsafe extern "C" fn mmap(a: *mut c_void, len: size_t, p: c_int, f: c_int, fd: c_int, o: off_t) -> *mut c_void {
        // SAFETY: the caller's own arguments.
        unsafe { libc::syscall(libc::SYS_mmap, a, len, p, f, fd, o) as *mut c_void }
    }

    pub unsafe extern "C" fn munmap(a: *mut c_void, len: size_t) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { libc::syscall(libc::SYS_munmap, a, len) as c_int }
    }

    pub unsafe extern "C" fn mremap(a: *mut c_void, len: size_t, n: size_t, f: c_int, to: *mut c_void) -> *mut c_void {
        // SAFETY: the caller's own arguments.
        unsafe { libc::syscall(libc::SYS_mremap, a, len, n, f, to) as *mut c_void }
    }

    pub unsafe extern "C" fn madvise(a: *mut c_void, len: size_t, advice: c_int) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { libc::syscall(libc::SYS_madvise, a, len, advice) as c_int }
    }

    pub unsafe extern "C" fn shmat(segment: c_int, a: *const c_void, f: c_int) -> *mut c_void {
        // SAFETY: the caller's own arguments.
        unsafe { libc::syscall(libc::SYS_shmat, segment, a, f) as *mut c_void }
    }

    pub unsafe extern "C" fn shmdt(a: *const c_void) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { libc::syscall(libc::SYS_shmdt, a) as c_int }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ucm_orig_mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's own arguments.
    unsafe { map(kernel::mmap, addr, len, prot, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ucm_orig_munmap(addr: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { unmap(kernel::munmap, addr, len) }
}

/// libucm knows no new address: it passes four arguments, and is not asked with MREMAP_FIXED.
#[unsafe(no_mangle)]
unsafe extern "C" fn ucm_orig_mremap(addr: *mut c_void, len: size_t, new_len: size_t, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's own arguments.
    unsafe { remap(kernel::mremap, addr, len, new_len, flags, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ucm_orig_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { advise(kernel::madvise, addr, len, advice) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ucm_orig_shmat(segment: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's own arguments.
    unsafe { attach(kernel::shmat, segment, addr, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ucm_orig_shmdt(addr: *const c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { detach(kernel::shmdt, addr) }
}
