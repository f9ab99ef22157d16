//! Hints to the CPU's caches.

/// Asks for a cache line to write to.
#[inline]
pub(crate) fn prefetch(line: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that touches nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(line);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Asks for a cache line to read from.
#[inline]
pub(crate) fn prefetch_to_read(line: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
