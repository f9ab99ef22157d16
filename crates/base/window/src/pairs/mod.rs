//! Pairs: messages between two processes of a window, put into each other's memory so that they arrive in order and
//! none is lost. This module knows no QP, no clock and no thread.
//!
//! * [`door`], [`rendezvous`], [`memory`]: how processes find each other, and notice that one has been replaced;
//! * [`grant`]: memory that a peer may write without asking, and its revocation;
//! * [`block`], [`slot`], [`byte_ring`], [`ring`], [`ends`]: the memory that a process has for one peer, and the
//!   messages in it;
//! * [`waking`]: waking a process that sleeps;
//! * [`heartbeat`]: signs of life of a process on another kernel.

pub mod block;
pub mod byte_ring;
pub mod door;
pub mod ends;
pub mod grant;
pub mod heartbeat;
pub mod memory;
mod padded;
pub mod rendezvous;
pub mod ring;
pub mod slot;
pub mod waking;

#[cfg(test)]
mod tests;
