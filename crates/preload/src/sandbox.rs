//! prctl(2) and syscall(2), for seccomp alone: a program that sets a filter for itself allows what the C library's allocator
//! needs, and nothing of what the shared heap does. So the heap serves no more from then on.

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

/// Called by libseccomp for seccomp(2). Naked, for whatever call it makes may return twice or on another stack. It makes the
/// call itself, as the C library's does, for it is called before that could be looked up.
#[cfg(target_arch = "x86_64")]
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

#[cfg(target_arch = "x86_64")]
extern "C" fn stop() {
    vervain_share::stop();
}

#[cfg(target_arch = "x86_64")]
extern "C" fn failed(code: c_int) -> libc::c_long {
    crate::real::set_errno(code);
    -1
}
