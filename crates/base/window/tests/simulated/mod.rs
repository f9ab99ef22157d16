//! A window of plain memory for simulations: several nodes in one process and one thread, with a clock that the
//! simulation advances and faults ([`Plan`]) that a seed decides.

pub mod faults;
pub mod kernel;
mod world;

pub use faults::Plan;
pub use world::{MemoryDevice, World};
