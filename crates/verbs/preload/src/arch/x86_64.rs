//! x86-64.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::loading::opening;
use crate::sandbox::{failed, stop};

/// The version of the platform's first glibc.
pub const OLDEST_GLIBC: &CStr = c"GLIBC_2.2.5";

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    // With the flags above the return address the stack is aligned to 16 bytes, as a call demands.
    std::arch::naked_asm!("push rsi", "call {opening}", "pop rsi", "mov rdi, rax", "jmp rdx", opening = sym opening)
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() -> libc::c_long {
    std::arch::naked_asm!(
        "cmp rdi, {seccomp}",
        "je 3f",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 4f",
        "ret",
        // The filter is about to be set.
        "3:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "call {stop}",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp 2b",
        // An error, between -4095 and -1.
        "4:",
        "neg eax",
        "mov edi, eax",
        "sub rsp, 8",
        "call {failed}",
        "add rsp, 8",
        "ret",
        seccomp = const libc::SYS_seccomp,
        stop = sym stop,
        failed = sym failed,
    )
}
