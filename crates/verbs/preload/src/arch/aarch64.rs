//! AArch64.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::loading::opening;
use crate::sandbox::{failed, stop};

/// The version of the platform's first glibc.
pub const OLDEST_GLIBC: &CStr = c"GLIBC_2.17";

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x1, [sp, #16]",
        "mov x29, sp",
        "bl {opening}",
        "mov x16, x1",
        "ldr x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        opening = sym opening,
    )
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() -> libc::c_long {
    std::arch::naked_asm!(
        "cmp x0, {seccomp}",
        "b.eq 3f",
        "2:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.cs 4f",
        "ret",
        // The filter is about to be set.
        "3:",
        "stp x29, x30, [sp, #-80]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "bl {stop}",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "b 2b",
        // An error, between -4095 and -1.
        "4:",
        "neg w0, w0",
        "b {failed}",
        seccomp = const libc::SYS_seccomp,
        stop = sym stop,
        failed = sym failed,
    )
}
