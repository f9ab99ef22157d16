//! The way out for a QP's packets: the batch of its port, with the addresses filled in.

use super::net::{self, FlowKey, SendBatch};
use std::net::IpAddr;
use vervain_carrier::PacketOut;
use vervain_hca::Grh;
use vervain_hca::arena::layout::slot_of;
use vervain_hca::device::port_counters::{Tally, Word};
use vervain_hca::mr::transfer::Pieces;
use vervain_transport::Refused;
use vervain_wire::Headers;

/// Longer messages are streams, which fill trains of their own.
const BULK: u64 = 16 << 10;

/// The addresses of one peer.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    pub remote: IpAddr,
    pub hop_limit: u8,
    pub tos: u8,
    pub label: u32,
    /// Number of the process's source port.
    pub spread: u32,
}

impl Destination {
    /// The destination of an address vector. All messages of all QPs to a process leave by one source port unless the
    /// vector decides otherwise: together they cost the system calls of one, and a probe does not overtake the messages
    /// that it asks about.
    pub(super) fn new(remote: IpAddr, grh: &Grh) -> Destination {
        let label = grh.flow_label & net::MOST_LABEL;
        Destination { remote, hop_limit: grh.hop_limit, tos: grh.traffic_class, label, spread: 0 }
    }

    /// The same for packets whose sender heeds the network's marks, as adapters send them whatever the vector's
    /// ECN bits are. ECT(1) is left, as a program may want another queue by it (RFC 9331); CE is the network's to set.
    /// Packets to a group are not marked: each of its members would send a notification.
    pub(super) fn ecn_capable(self) -> Destination {
        let ecn = self.tos & net::CE;
        let heeds = (ecn == 0 || ecn == net::CE) && !self.remote.is_multicast();
        if heeds { Destination { tos: self.tos & !net::CE | net::ECT0, ..self } } else { self }
    }

    /// The same for packets that the network is not to mark.
    pub(super) fn not_ecn_capable(self) -> Destination {
        Destination { tos: self.tos & !net::CE, ..self }
    }
}

/// The source ports that a reliable QP sends by. Each may lead it another way through the network.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    /// For small messages. That of the process, unless the program has named a flow.
    pub small: u32,
    /// For streams.
    pub bulk: u32,
}

impl Lanes {
    /// The source ports of QP `qpn`. QPs made one after the other have numbers that follow each other, and so take
    /// turns.
    pub(super) fn new(to: &Destination, qpn: u32) -> Lanes {
        let of = |flow: u32| flow % net::SPREAD as u32;
        if to.label == 0 {
            return Lanes { small: to.spread, bulk: of(qpn) };
        }
        // The kernel's port of a label (`rdma_flow_label_to_udp_sport`).
        let named = of(to.label ^ to.label >> 14);
        Lanes { small: named, bulk: named }
    }

    /// The one for a message of this length.
    #[inline]
    pub(super) fn of(&self, length: u64) -> u32 {
        if length > BULK { self.bulk } else { self.small }
    }
}

/// A batch that is being filled for one peer. Its packets are counted when it goes.
pub(super) struct PacketSink<'a> {
    pub batch: &'a mut SendBatch,
    pub to: Destination,
    /// Counters of the packets' QP.
    pub tally: &'a Tally,
    /// Packets added, and their bytes.
    pub pushed: u32,
    bytes: u64,
}

impl<'a> PacketSink<'a> {
    pub(super) fn new(batch: &'a mut SendBatch, to: Destination, tally: &'a Tally) -> Self {
        PacketSink { batch, to, tally, pushed: 0, bytes: 0 }
    }
}

impl Drop for PacketSink<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.pushed > 0 {
            self.tally.add_both((Word::SentPackets, self.pushed.into()), (Word::SentBytes, self.bytes));
        }
    }
}

impl PacketOut for PacketSink<'_> {
    type Data = [u8];

    fn has_room(&self) -> bool {
        true
    }

    #[inline]
    fn push(&mut self, headers: &Headers, from: &Pieces) -> Result<(), Refused> {
        let Destination { remote, hop_limit, tos, label, spread } = self.to;
        let to = FlowKey { to: remote, slot: slot_of(headers.bth.dest_qpn), spread, hop_limit, tos, label };
        // SAFETY: local memory that was checked against its key; a revocation of that key waits until the mark ends
        // under which this call is made.
        let bytes = unsafe { self.batch.push(&to, headers, from) }.map_err(|_| Refused::Memory)?;
        self.pushed += 1;
        self.bytes += bytes as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_whose_sender_heeds_marks_are_ecn_capable_and_no_others() {
        let to = |ip: [u8; 4], traffic_class| Destination::new(ip.into(), &Grh { traffic_class, ..Grh::default() });
        let peer = [192, 0, 2, 1];
        for (class, sent) in [(0, 2), (1, 1), (2, 2), (3, 2), (0x68, 0x6a), (106, 106), (0xff, 0xfe)] {
            let capable = to(peer, class).ecn_capable();
            assert_eq!((capable.tos, capable.not_ecn_capable().tos), (sent, class & 0xfc), "{class:#x}");
        }
        assert_eq!(to([239, 0, 0, 1], 0x68).ecn_capable().tos, 0x68, "a group");
    }

    #[test]
    fn streams_of_qps_have_ports_of_their_own_and_small_messages_share_one() {
        let to = |flow_label| Destination::new([192, 0, 2, 1].into(), &Grh { flow_label, ..Grh::default() });
        let all: Vec<Lanes> = (100..100 + net::SPREAD as u32).map(|qpn| Lanes::new(&to(0), qpn)).collect();
        assert!(all.iter().all(|lanes| lanes.of(BULK) == 0));
        let bulk: std::collections::BTreeSet<u32> = all.iter().map(|lanes| lanes.of(BULK + 1)).collect();
        assert_eq!(bulk.len(), net::SPREAD);
        // A flow that the program names is not parted.
        for label in [1, 2, 3, 0x4_7911] {
            let lanes = Lanes::new(&to(label), 7);
            assert_eq!(lanes.of(8), lanes.of(1 << 20), "{label:#x}");
        }
        assert_ne!(Lanes::new(&to(1), 7).small, Lanes::new(&to(2), 7).small);
    }
}
