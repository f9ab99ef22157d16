//! The calling thread's own words (`host::tid`), in the initial-exec model.

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

/// The id.
#[inline(always)]
pub(in crate::host) fn get() -> u32 {
    let tid: u32;
    // SAFETY: reads the calling thread's own copy of the first word defined above.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr [rip + vervain_thread@GOTTPOFF]",
            "mov {tid:e}, dword ptr fs:[{at}]",
            at = out(reg) _,
            tid = lateout(reg) tid,
            options(nostack, readonly, preserves_flags),
        );
    }
    tid
}

/// Sets the id.
#[inline]
pub(in crate::host) fn set(tid: u32) {
    // SAFETY: writes the calling thread's own copy of the first word defined above.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr [rip + vervain_thread@GOTTPOFF]",
            "mov dword ptr fs:[{at}], {tid:e}",
            at = out(reg) _,
            tid = in(reg) tid,
            options(nostack, preserves_flags),
        );
    }
}

/// The number of polls that have found something, modulo 2³².
#[inline(always)]
pub(in crate::host) fn found() -> u32 {
    let found: u32;
    // SAFETY: reads the calling thread's own copy of the second half of the first word defined above.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr [rip + vervain_thread@GOTTPOFF]",
            "mov {found:e}, dword ptr fs:[{at} + 4]",
            at = out(reg) _,
            found = lateout(reg) found,
            options(nostack, readonly, preserves_flags),
        );
    }
    found
}

/// Counts one.
#[inline(always)]
pub(in crate::host) fn count_found() {
    // SAFETY: changes the calling thread's own copy of the second half of the first word defined above.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr [rip + vervain_thread@GOTTPOFF]",
            "inc dword ptr fs:[{at} + 4]",
            at = out(reg) _,
            options(nostack),
        );
    }
}

/// The thread's counters.
#[inline(always)]
pub(in crate::host) fn lines() -> *const Line {
    let lines: *const Line;
    // SAFETY: reads the calling thread's own copy of the second word defined above.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr [rip + vervain_thread@GOTTPOFF]",
            "mov {lines}, qword ptr fs:[{at} + 8]",
            at = out(reg) _,
            lines = lateout(reg) lines,
            options(nostack, readonly, preserves_flags),
        );
    }
    lines
}

/// Says where.
#[inline]
pub(in crate::host) fn set_lines(lines: *const Line) {
    // SAFETY: writes the calling thread's own copy of the second word defined above.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr [rip + vervain_thread@GOTTPOFF]",
            "mov qword ptr fs:[{at} + 8], {lines}",
            at = out(reg) _,
            lines = in(reg) lines,
            options(nostack, preserves_flags),
        );
    }
}
