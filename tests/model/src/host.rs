//! The machine: stand-ins for what would leave the model's sight.

pub(crate) mod atomic;
pub(crate) mod barrier;
#[path = "../../../crates/device/hca/src/host/bits.rs"]
pub(crate) mod bits;
pub(crate) mod clock;
#[path = "../../../crates/device/hca/src/host/dense.rs"]
pub(crate) mod dense;
pub(crate) mod lock;
pub(crate) mod prefetch;
