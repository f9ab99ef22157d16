//! The calling thread's own words (`host::tid`), in the initial-exec model.

use std::arch::asm;
use vervain_counters::Line;

std::arch::global_asm!(
    ".pushsection .tbss.vervain_thread,\"awT\",@nobits",
    ".globl vervain_thread",
    ".hidden vervain_thread",
    ".type vervain_thread, @tls_object",
    ".size vervain_thread, 16",
    ".balign 8",
    "vervain_thread: .zero 16",
    ".popsection",
);

/// Address of the calling thread's own copy.
#[inline(always)]
fn words() -> *mut u8 {
    let words: *mut u8;
    // SAFETY: computes an address, from a register and from what the dynamic linker has put into the global offset
    // table.
    unsafe {
        asm!(
            "mrs {words}, tpidr_el0",
            "adrp {offset}, :gottprel:vervain_thread",
            "ldr {offset}, [{offset}, :gottprel_lo12:vervain_thread]",
            "add {words}, {words}, {offset}",
            words = out(reg) words,
            offset = out(reg) _,
            options(nostack, readonly, preserves_flags),
        );
    }
    words
}

/// The id.
#[inline(always)]
pub(in crate::host) fn get() -> u32 {
    // SAFETY: the thread's own, aligned, and zeros at first; nobody has a reference to it.
    unsafe { words().cast::<u32>().read() }
}

/// Sets the id.
#[inline]
pub(in crate::host) fn set(tid: u32) {
    // SAFETY: as above.
    unsafe { words().cast::<u32>().write(tid) };
}

/// The number of polls that have found something, modulo 2³².
#[inline(always)]
pub(in crate::host) fn found() -> u32 {
    // SAFETY: as above.
    unsafe { words().add(4).cast::<u32>().read() }
}

/// Counts one.
#[inline(always)]
pub(in crate::host) fn count_found() {
    // SAFETY: as above.
    unsafe { words().add(4).cast::<u32>().write(found().wrapping_add(1)) };
}

/// The thread's counters.
#[inline(always)]
pub(in crate::host) fn lines() -> *const Line {
    // SAFETY: as above; zeros are a null pointer.
    unsafe { words().add(8).cast::<*const Line>().read() }
}

/// Says where.
#[inline]
pub(in crate::host) fn set_lines(lines: *const Line) {
    // SAFETY: as above.
    unsafe { words().add(8).cast::<*const Line>().write(lines) };
}
