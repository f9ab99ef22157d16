//! Faults of a network, made on purpose: packets that are dropped, duplicated, corrupted, delayed, reordered, held to a
//! rate, or lost while the link is down. A [`Line`] stands between a sender and its socket (or a socket and its
//! receiver) as a middleware; the simulation of the transport and users' real runs (`VERVAIN_FAULTS`) use the same one.
//! No clock, no socket, no environment: time and packets are passed in, and every decision follows from a seed.

#![forbid(unsafe_code)]

mod chance;
mod config;
mod line;
mod rule;
mod selector;
mod units;

pub use config::{Faults, GRAMMAR, Unclear};
pub use line::{Counts, Course, Line};
pub use rule::Direction;

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;
