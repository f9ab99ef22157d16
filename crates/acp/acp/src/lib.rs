//! ACP's basic layer: global memory for the ranks of a job, on any verbs device.
//!
//! Each rank registers memory and gets global addresses for it, 64 bits that any rank may use: to copy between any two
//! ranks, also from a third one, and for atomic operations. Operations return at once with a handle; order and
//! completion go by handles. Connections are made on first use and given up when others are needed, so that memory does
//! not grow with the number of ranks.
//!
//! `libacp.so` and `acp.h` are the C interface over this crate (Advanced Communication Primitives 3.0.0). docs/acp.md
//! is the guide.

mod address;
mod batch;
mod command;
mod engine;
mod error;
mod handle;
mod memory;
mod op;
pub mod parts;
mod pointer;
mod progress;
mod region;
mod registration;
mod settings;
mod table;
mod world;

pub use address::{GlobalAddress, Layout};
pub use batch::{Batch, Place};
pub use error::{Error, Result};
pub use handle::{Handle, Order};
pub use memory::Rights;
pub use op::Atomic;
pub use pointer::{GlobalPtr, Word};
pub use region::Region;
pub use settings::Settings;
pub use world::{Ender, Extension, Key, Library, World};
