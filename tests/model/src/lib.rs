//! The lock-free protocols of the device model under a model checker (`docs/model.md`).
//!
//! `arena`, `cq`, `error`, `process` and `rq` are the device model's own sources, taken in by `#[path]`. Their atomics are
//! words of `memory`, which lets a load see what the language allows it to see; `shuttle` decides which thread goes on. What those
//! sources need besides and is no part of a protocol has a stand-in here: the arena, the process, barriers, locks, clocks.
//! [`gate`], [`rings`], [`notify`] and [`receives`] are what is run: a few threads each, and what must hold then; [`litmus`] holds
//! the memory itself to what is known of memories.

#[allow(dead_code, reason = "the device model has more uses for its sources than the model")]
mod arena;
mod check;
#[allow(dead_code, reason = "as above")]
mod cq;
mod device;
#[path = "../../../crates/device/hca/src/error.rs"]
#[allow(dead_code, reason = "as above")]
mod error;
#[allow(dead_code, reason = "as above")]
mod host;
mod memory;
#[allow(dead_code, reason = "as above")]
mod process;
#[path = "../../../crates/device/hca/src/rq/mod.rs"]
#[allow(dead_code, reason = "as above")]
mod rq;
mod thread;

pub mod gate;
pub mod litmus;
pub mod notify;
pub mod receives;
pub mod rings;
