//! The machine: stand-ins for what would leave the model's sight.

pub(crate) mod atomic;
pub(crate) mod barrier;
#[path = "../../../crates/hca/src/host/bits.rs"]
pub(crate) mod bits;
pub(crate) mod clock;
pub(crate) mod lock;
