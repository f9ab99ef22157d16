//! A train: packets of one size, the last one perhaps shorter, to one process of one address, which go to the kernel in
//! one piece. Here is what may join one; the bytes are in [`super::send`].

use super::address::RawAddress;
use super::ancillary::Control;
use super::limits::{HOP_LIMIT, MAX_DATAGRAM};
use std::net::IpAddr;
use vervain_wire::icrc::Flow;

/// UDP_MAX_SEGMENTS of kernels before 6.9.
const MOST_PACKETS: usize = 64;

/// Packets of `bytes` bytes, headers and ICRC included, in a full train: at least one.
pub fn packets_in_train(bytes: usize) -> usize {
    (MAX_DATAGRAM / bytes).clamp(1, MOST_PACKETS)
}

/// Fields common to all packets of a train, as those who push packets give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    /// Address of the other side, as the program knows it; of the same family as the port's.
    pub to: IpAddr,
    /// Process slot there, the upper part of the destination QPN: the receiving kernel looks at the first packet only
    /// to choose a socket.
    pub slot: u32,
    /// One of [`super::SPREAD`]: with the slot it chooses the source port.
    pub spread: u32,
    /// Hop limit or TTL; 0 stands for [`HOP_LIMIT`].
    pub hop_limit: u8,
    /// Traffic class or TOS.
    pub tos: u8,
    /// Flow label of IPv6; 0 leaves it to the kernel.
    pub label: u32,
}

impl FlowKey {
    /// The hop limit that its packets get.
    pub fn hop_limit(&self) -> u8 {
        if self.hop_limit == 0 { HOP_LIMIT } else { self.hop_limit }
    }
}

/// A train.
pub struct Train {
    /// The train's flow.
    pub key: FlowKey,
    /// The destination as the kernel takes it, and the length of that.
    pub address: (RawAddress, u32),
    /// Control messages of the train; filled in at the end.
    pub control: Control,
    /// Source port.
    pub source: u16,
    /// Fields common to the ICRCs of its packets.
    pub flow: Flow,
    /// Bytes of the first packet.
    pub segment: usize,
    /// Packets.
    pub packets: usize,
    /// Bytes of all.
    pub bytes: usize,
    /// True if none is shorter than the first, so that another may follow.
    is_even: bool,
    /// Offset of its bytes in the batch.
    pub start: usize,
}

impl Train {
    /// A train without packets.
    pub fn new(key: FlowKey, source: u16, flow: Flow, address: (RawAddress, u32), start: usize) -> Train {
        let control = Control::EMPTY;
        Train { key, address, control, source, flow, segment: 0, packets: 0, bytes: 0, is_even: true, start }
    }

    /// A train without packets, for those of this one from `offset` on.
    pub fn rest(&self, offset: usize) -> Train {
        Train::new(self.key, self.source, self.flow, self.address, self.start + offset)
    }

    /// Adds a packet of `bytes` bytes.
    #[inline]
    pub fn add(&mut self, bytes: usize) {
        if self.packets == 0 {
            self.segment = bytes;
        }
        self.packets += 1;
        self.bytes += bytes;
        self.is_even = bytes == self.segment;
    }

    /// Takes the last packet, of `bytes` bytes, away again.
    pub fn take_back(&mut self, bytes: usize) {
        self.packets -= 1;
        self.bytes -= bytes;
        // No packet follows a shorter one.
        self.is_even = true;
    }

    /// Returns true if a packet of `bytes` bytes of flow `key` may be the next, and after it others up to `packets`,
    /// none longer.
    #[inline]
    pub fn admits(&self, key: &FlowKey, bytes: usize, packets: usize) -> bool {
        let in_size = if packets == 1 { bytes <= self.segment } else { bytes == self.segment };
        self.is_even && in_size && self.has_place(bytes, packets) && self.key == *key
    }

    /// Returns true if no packet of full size may follow.
    #[inline]
    pub fn is_full(&self) -> bool {
        !self.has_place(self.segment, 1)
    }

    #[inline]
    fn has_place(&self, bytes: usize, packets: usize) -> bool {
        self.packets + packets <= MOST_PACKETS && self.bytes + packets * bytes <= MAX_DATAGRAM
    }
}
