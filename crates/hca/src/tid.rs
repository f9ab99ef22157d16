//! The calling thread's id, without a system call and without a call into the dynamic linker.
//!
//! A `thread_local!` of a shared library is reached through `__tls_get_addr`, some thirty instructions each time, and every
//! lock asks for the id. On x86-64 the word is therefore placed and read by hand in the initial-exec model: four bytes of
//! the static TLS block, of which the C library keeps a reserve for libraries that are loaded late.

#[cfg(target_arch = "x86_64")]
mod word {
    std::arch::global_asm!(
        ".pushsection .tbss.vervain_tid,\"awT\",@nobits",
        ".globl vervain_tid",
        ".hidden vervain_tid",
        ".type vervain_tid, @tls_object",
        ".size vervain_tid, 4",
        ".balign 4",
        "vervain_tid: .zero 4",
        ".popsection",
    );

    #[inline(always)]
    pub(super) fn get() -> u32 {
        let tid: u32;
        // SAFETY: reads the calling thread's own copy of the word defined above.
        unsafe {
            std::arch::asm!(
                "mov {at}, qword ptr [rip + vervain_tid@GOTTPOFF]",
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
        // SAFETY: writes the calling thread's own copy of the word defined above.
        unsafe {
            std::arch::asm!(
                "mov {at}, qword ptr [rip + vervain_tid@GOTTPOFF]",
                "mov dword ptr fs:[{at}], {tid:e}",
                at = out(reg) _,
                tid = in(reg) tid,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod word {
    use std::cell::Cell;

    thread_local! {
        static TID: Cell<u32> = const { Cell::new(0) };
    }

    #[inline]
    pub(super) fn get() -> u32 {
        TID.with(Cell::get)
    }

    pub(super) fn set(tid: u32) {
        TID.with(|t| t.set(tid));
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

#[cold]
#[inline(never)]
fn ask() -> u32 {
    // SAFETY: gettid has no arguments and cannot fail.
    let tid = unsafe { libc::gettid() } as u32;
    word::set(tid);
    tid
}

/// Forgets the cached id; the only thread of a forked child has a new one.
pub(crate) fn forget() {
    word::set(0);
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
    }
}
