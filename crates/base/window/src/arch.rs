//! Operations that depend on the processor.

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{drain_stores, ticks};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{drain_stores, ticks};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Vervain knows x86-64 and AArch64 only");

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    /// Empties the buffers in which stores to write-combining memory wait. The ordinary order of stores does not apply
    /// to them.
    #[inline]
    pub(crate) fn drain_stores() {
        // SAFETY: every x86-64 has the instruction, and it touches no memory of the program.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }

    /// A counter of the processor that advances at a constant rate.
    #[inline]
    pub(crate) fn ticks() -> u64 {
        // SAFETY: reads a counter that every such processor has.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use std::arch::asm;

    /// Waits until stores to memory of the type "Normal Non-cacheable", which may be gathered, are visible to devices
    /// and other machines too; a DMB would only order them.
    #[inline]
    pub(crate) fn drain_stores() {
        // SAFETY: a barrier touches no memory of the program.
        unsafe { asm!("dsb st", options(nostack, preserves_flags)) };
    }

    /// A counter of the processor that advances at a constant rate. The barrier keeps it from being read early.
    #[inline]
    pub(crate) fn ticks() -> u64 {
        let ticks: u64;
        // SAFETY: reads a counter, which Linux lets programs read.
        unsafe { asm!("isb", "mrs {ticks}, cntvct_el0", ticks = out(reg) ticks, options(nostack, preserves_flags)) };
        ticks
    }
}
