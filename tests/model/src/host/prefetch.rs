//! Stand-in for the hints to the CPU's caches, of which the model has none.

pub(crate) fn prefetch(_line: *const i8) {}

pub(crate) fn prefetch_to_read(_line: *const i8) {}
