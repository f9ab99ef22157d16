//! prctl(2) and syscall(2), for seccomp alone: a program that sets a filter for itself allows what the C library's
//! allocator needs, and nothing of what the shared heap does. So the heap serves no more from then on.

use std::ffi::{c_int, c_ulong};

use crate::real::{real, reals};

reals! { prctl }

/// Variadic in C; see `opening`.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    let real = real!(prctl: fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int);
    if option == libc::PR_SET_SECCOMP {
        vervain_share::stop();
    }
    // SAFETY: the caller's own arguments.
    unsafe { real(option, a, b, c, d) }
}

/// Called by [`crate::arch`]'s syscall(2), which libseccomp calls for seccomp(2), before a filter is set.
pub(crate) extern "C" fn stop() {
    vervain_share::stop();
}

/// And what it returns where a system call has failed with this errno.
pub(crate) extern "C" fn failed(code: c_int) -> libc::c_long {
    crate::real::set_errno(code);
    -1
}
