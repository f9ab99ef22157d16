//! RoCE v2 over ordinary UDP sockets, in the shape of quinn-udp: all that depends on the operating system is here, and
//! nothing of the protocol. A [`Port`] is the sockets of one local address. A [`SendBatch`] merges packets into trains
//! that the kernel cuts (UDP_SEGMENT), and seals each with its ICRC; a [`ReceiveBatch`] takes trains from the kernel
//! whole (UDP_GRO) and hands out the packets.
//!
//! The ICRC covers the IPv4 header with its identification, which a program cannot set. But an unconnected socket that
//! insists on "don't fragment" sends identification 0, and the segments cut from a train count up from it, so that it
//! is known beforehand.

pub(super) mod address;
mod ancillary;
mod capture;
mod counters;
mod faults;
mod flush;
mod groups;
mod icrc;
mod limits;
pub(super) mod options;
mod port;
mod reach;
mod receive;
mod room;
mod rtnetlink;
mod send;
pub(super) mod sys;
#[cfg(test)]
mod tests;
mod train;

pub use counters::Counters;
pub use faults::Arrival;
pub use icrc::LastFlow;
pub use limits::{CE, ECT0, HOP_LIMIT, MOST_LABEL};
pub use port::{Port, SPREAD};
pub(super) use reach::Reach;
pub use receive::{Datagram, Datagrams, ReceiveBatch};
pub use send::{SendBatch, TooLarge};
pub use train::{FlowKey, packets_in_train};

/// Checks the variables that ask for faults and for a capture. The error is one sentence.
pub fn check_environment() -> vervain_hca::Result<()> {
    faults::Lines::check_environment()?;
    capture::Capture::check()
}
