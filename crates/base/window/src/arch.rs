//! What depends on the processor.

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{drain_stores, ticks};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{drain_stores, ticks};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Vervain knows x86-64 and AArch64 only");

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    /// Empties the buffers in which stores to memory of the type "write-combining" wait, which no ordinary order of
    /// stores concerns.
    #[inline]
    pub(crate) fn drain_stores() {
        // SAFETY: every x86-64 has the instruction, and it touches no memory of the program.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }

    /// A counter of the processor's that goes on at one rate.
    #[inline]
    pub(crate) fn ticks() -> u64 {
        // SAFETY: reads a counter that every such processor has.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use std::arch::asm;

    /// Waits until stores to memory of the type "Normal Non-cacheable", which may be gathered, are there for others
    /// than processors too; a DMB would only order them.
    #[inline]
    pub(crate) fn drain_stores() {
        // SAFETY: a barrier touches no memory of the program.
        unsafe { asm!("dsb st", options(nostack, preserves_flags)) };
    }

    /// A counter of the processor's that goes on at one rate. The barrier keeps it from being read ahead.
    #[inline]
    pub(crate) fn ticks() -> u64 {
        let ticks: u64;
        // SAFETY: reads a counter, which Linux lets programs read.
        unsafe { asm!("isb", "mrs {ticks}, cntvct_el0", ticks = out(reg) ticks, options(nostack, preserves_flags)) };
        ticks
    }
}
