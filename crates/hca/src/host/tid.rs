//! What the calling thread has of its own: its id, without a system call, how often it has found completions, and where it
//! counts; without a call into the dynamic linker.
//!
//! A `thread_local!` of a shared library is reached through `__tls_get_addr`, some thirty instructions each time, and every
//! lock asks for the id. On x86-64 the words are therefore placed and read by hand in the initial-exec model: sixteen bytes
//! of the static TLS block, of which the C library keeps a reserve for libraries that are loaded late.

use vervain_counters::Line;

#[cfg(target_arch = "x86_64")]
mod word {
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

    #[inline(always)]
    pub(super) fn get() -> u32 {
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

    #[inline]
    pub(super) fn set(tid: u32) {
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

    #[inline(always)]
    pub(super) fn found() -> u32 {
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

    #[inline(always)]
    pub(super) fn count_found() {
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

    #[inline(always)]
    pub(super) fn lines() -> *const Line {
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

    #[inline]
    pub(super) fn set_lines(lines: *const Line) {
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
}

#[cfg(not(target_arch = "x86_64"))]
mod word {
    use std::cell::Cell;
    use vervain_counters::Line;

    thread_local! {
        static TID: Cell<u32> = const { Cell::new(0) };
        static FOUND: Cell<u32> = const { Cell::new(0) };
        static LINES: Cell<*const Line> = const { Cell::new(std::ptr::null()) };
    }

    #[inline]
    pub(super) fn get() -> u32 {
        TID.with(Cell::get)
    }

    pub(super) fn set(tid: u32) {
        TID.with(|t| t.set(tid));
    }

    #[inline]
    pub(super) fn found() -> u32 {
        FOUND.with(Cell::get)
    }

    #[inline]
    pub(super) fn count_found() {
        FOUND.with(|found| found.set(found.get().wrapping_add(1)));
    }

    #[inline]
    pub(super) fn lines() -> *const Line {
        LINES.with(Cell::get)
    }

    pub(super) fn set_lines(lines: *const Line) {
        LINES.with(|l| l.set(lines));
    }
}

/// The calling thread's id as the kernel counts it.
#[inline(always)]
pub fn tid() -> u32 {
    match word::get() {
        0 => ask(),
        tid => tid,
    }
}

/// That of a thread that has asked before, as each has that has taken a lock; 0 of another.
#[inline(always)]
pub fn known() -> u32 {
    word::get()
}

#[cold]
#[inline(never)]
fn ask() -> u32 {
    // SAFETY: gettid has no arguments and cannot fail.
    let tid = unsafe { libc::gettid() } as u32;
    word::set(tid);
    tid
}

/// How many polls of the calling thread have found a completion, modulo 2³².
#[inline(always)]
pub(crate) fn found() -> u32 {
    word::found()
}

/// One more has.
#[inline(always)]
pub(crate) fn count_found() {
    word::count_found();
}

/// Where the calling thread counts; null before it has counted anything.
#[inline(always)]
pub(crate) fn lines() -> *const Line {
    word::lines()
}

/// Says where.
pub(crate) fn set_lines(lines: *const Line) {
    word::set_lines(lines);
}

/// Forgets the id and where it counts; the only thread of a forked child has a new id, and what its parent counts in is not there.
pub(crate) fn forget() {
    word::set(0);
    word::set_lines(std::ptr::null());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        let mine = tid();
        let theirs = std::thread::spawn(|| (tid(), tid())).join().unwrap();
        assert_eq!(theirs.0, theirs.1);
        assert_ne!(mine, theirs.0);
        // SAFETY: gettid cannot fail.
        assert_eq!(mine, unsafe { libc::gettid() } as u32);
        (0..3).for_each(|_| count_found());
        assert_eq!((found(), std::thread::spawn(found).join().unwrap()), (3, 0));
        assert_eq!(tid(), mine);
    }
}
