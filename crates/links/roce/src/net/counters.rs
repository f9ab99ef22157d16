//! Counters of a port. Every packet that is not delivered is in one of these.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Replaces the value, for what the kernel counts itself.
    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

/// Counters of a port. Bytes are those of UDP payload.
#[derive(Debug, Default)]
pub struct Counters {
    /// Packets handed to the kernel.
    pub sent_packets: Counter,
    /// Bytes of the packets handed to the kernel.
    pub sent_bytes: Counter,
    /// Packets taken from the kernel.
    pub received_packets: Counter,
    /// Bytes of the packets taken from the kernel.
    pub received_bytes: Counter,
    /// Received with a wrong ICRC.
    pub bad_icrc: Counter,
    /// Received, and no RoCE packet.
    pub malformed: Counter,
    /// Received, and for no QP here, or not from that QP's peer.
    pub unwanted: Counter,
    /// Datagrams with another Q_Key than their UD QP's (IBA 9.6.1.4.1, Q_Key violations).
    pub bad_qkey: Counter,
    /// Datagrams for which their UD QP had no receive, or was in no state to receive.
    pub no_receive: Counter,
    /// Dropped by the kernel before they were received, for want of room; without those to groups. A train counts as
    /// one.
    pub dropped: Counter,
    /// Not sent since the kernel had no room; lost, as far as the protocol is concerned.
    pub no_room: Counter,
    /// Not sent since they are larger than the path's MTU.
    pub too_large: Counter,
    /// Not sent as the network refused: no route, link down, or a peer reported as unreachable.
    pub unreachable: Counter,
    /// Trains that the network interface did not take, so that they were sent packet by packet.
    pub refused_trains: Counter,
}
