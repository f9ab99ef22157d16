//! Pairs: what two processes of a window put into each other's memory, so that messages go from one to the other in
//! order and none is lost. It knows no QP, no clock and no thread.
//!
//! * [`door`], [`rendezvous`], [`memory`]: how processes find each other, and notice that one has been replaced;
//! * [`grant`]: which memory a peer may write without asking, and how that is taken back;
//! * [`block`], [`slot`], [`byte_ring`], [`ring`], [`ends`]: the memory that a process has for one peer, and the
//!   messages in it;
//! * [`waking`]: how one that sleeps is woken;
//! * [`heartbeat`]: whether a process on another kernel lives.

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
