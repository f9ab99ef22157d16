//! Core dumps. The kernel writes a private page only if it exists, but brings every page of a shared mapping to life to
//! write it: a dump would fill the machine's memory with zeros. So the last thing that a program does before it dumps
//! is to take the holes out of what is dumped. The dump itself, its signal and its registers stay what they would be.
//!
//! A handler stands in for the default action of the signals that dump core, where core dumps are on at all; the
//! preload library shows it to nobody as the handler (`signals`).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::blocks::State;
use crate::object::HUGE;
use crate::state::{Heap, peek};
use crate::sys;

/// The signals whose default action is a core dump.
pub const SIGNALS: [c_int; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGSYS,
    libc::SIGTRAP,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Returns true if the default action of the signals is replaced.
pub fn installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// The handler, as sigaction(2) wants it.
pub fn action() -> libc::sigaction {
    // SAFETY: all zeros is a valid sigaction with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action
}

/// Returns true if an action is ours.
pub fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == handler as *const () as usize
}

/// Puts the handler in place of the default action, if this process may dump core.
pub(crate) fn install() {
    if sys::limit(libc::RLIMIT_CORE) == Some(0) {
        return;
    }
    let ours = action();
    for signal in SIGNALS {
        // SAFETY: all zeros is a valid sigaction.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `old` is writable.
        let got = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut old) };
        if got == 0 && old.sa_sigaction == libc::SIG_DFL {
            // SAFETY: a handler that calls nothing but system calls.
            unsafe { libc::sigaction(signal, &raw const ours, std::ptr::null_mut()) };
        }
    }
    INSTALLED.store(true, Ordering::Release);
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    let before = sys::errno();
    // The thread that died may hold the lock: then the holes are dumped as well.
    peek(leave_holes_out);
    // SAFETY: the kernel passes a siginfo, which is this handler's.
    die_by(signal, unsafe { &*info });
    sys::set_errno(before);
}

/// Has a signal take its default action when the handler that got it returns. System calls only.
pub fn die_by(signal: c_int, info: &libc::siginfo_t) {
    default(signal);
    // A fault happens again when its instruction does; everything else is sent again, as it was, and arrives on return.
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE].contains(&signal);
    let from_kernel = info.si_code > 0;
    if !(faults && from_kernel) {
        // SAFETY: the process sends itself a signal with the siginfo that it got.
        unsafe {
            let (process, thread) = (libc::syscall(libc::SYS_getpid), libc::syscall(libc::SYS_gettid));
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, &raw const *info);
        }
    }
}

/// The default action, past every hook.
fn default(signal: c_int) {
    // The kernel's struct: handler, flags, restorer, mask. All zeros is SIG_DFL.
    let action = [0_u64; 4];
    // SAFETY: the struct has room for what the kernel reads; the mask has 8 bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), std::ptr::null_mut::<c_void>(), 8) };
}

/// Leaves out of a core dump what of the heap's memory nobody has written, by system calls only: no allocation.
fn leave_holes_out(heap: &Heap) {
    for (start, block) in heap.blocks.iter() {
        if !matches!(block.state, State::Live(_)) {
            omit(start, block.mapped);
            continue;
        }
        // Small ones would only cost mappings.
        if block.mapped < HUGE {
            continue;
        }
        let mut at = start;
        for (offset, n) in heap.object.resident(start - heap.base, block.mapped) {
            omit(at, heap.base + offset - at);
            at = heap.base + offset + n;
        }
        omit(at, start + block.mapped - at);
    }
}

/// Leaves a range of at least 16 pages out of a core dump.
fn omit(start: usize, len: usize) {
    if len >= 16 * sys::page() {
        // SAFETY: changes no contents. Gaps inside of the range are no error that matters here.
        let _ = unsafe { sys::madvise(start, len, libc::MADV_DONTDUMP) };
    }
}
