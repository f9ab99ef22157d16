//! Hints to the CPU's caches.

use crate::host::arch;

/// Asks for a cache line to write to.
#[inline]
pub(crate) fn prefetch(line: *const i8) {
    arch::prefetch(line);
}

/// Asks for a cache line to read from.
#[inline]
pub(crate) fn prefetch_to_read(line: *const i8) {
    arch::prefetch_to_read(line);
}
