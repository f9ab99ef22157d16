//! AArch64.

use std::arch::asm;

pub(in crate::host) mod guarded;
pub(in crate::host) mod word;

/// True if others see the stores of a processor in their order, those of the kernel for it too, without a barrier
/// between them.
pub(crate) const STORES_IN_ORDER: bool = false;

/// Whether an exchange is a full barrier, whatever order it was asked for: no load behind it passes a store before it.
pub(crate) const EXCHANGES_ARE_BARRIERS: bool = false;

/// Asks for a cache line to write to.
#[inline]
pub(in crate::host) fn prefetch(line: *const i8) {
    // SAFETY: a prefetch is a hint that touches nothing, whatever the address.
    unsafe { asm!("prfm pstl1keep, [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags)) };
}

/// Asks for a cache line to read from.
#[inline]
pub(in crate::host) fn prefetch_to_read(line: *const i8) {
    // SAFETY: as above.
    unsafe { asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags)) };
}
