//! Congestion notification (IBA annex A17.9.3). A packet that comes marked, or after others that the socket had no room
//! for, makes its QP tell the sender by a congestion notification packet (CNP). `demux` handles those that come.

use crate::net::Datagram;
use crate::pacing::PeerKey;
use crate::packet_sink::{Destination, PacketSink};
use crate::ports::LocalPort;
use vervain_carrier::PacketOut;
use vervain_carrier::terms::PKEY;
use vervain_hca::Qp;
use vervain_hca::arena::layout::slot_of;
use vervain_hca::device::port_counters::Word;
use vervain_hca::mr::transfer::Pieces;
use vervain_transport::Nanos;
use vervain_wire::{Bth, Headers, opcode};

/// Least time between two notifications to one process (DCQCN's N).
const INTERVAL_NS: u64 = 50_000;
/// Most processes that get one in this time, and so most notifications.
const MOST_PEERS: usize = 64;
/// Bytes behind the BTH, reserved.
const RESERVED: [u8; 16] = [0; 16];

/// The notifications that this process has sent.
#[derive(Default)]
pub(super) struct Notifications {
    /// To whom in the last interval, and when.
    sent: Vec<(PeerKey, Nanos)>,
    /// Some lie in the batches of the ports.
    batched: bool,
}

impl Notifications {
    /// Returns true if some lie in the batches of the ports, which the caller sends.
    #[inline]
    pub(super) fn take_batched(&mut self) -> bool {
        std::mem::take(&mut self.batched)
    }

    /// Returns true if `peer` is to get one now.
    fn admits(&mut self, now: Nanos, peer: PeerKey) -> bool {
        self.sent.retain(|(_, at)| now.saturating_sub(*at) < INTERVAL_NS);
        let admitted = self.sent.len() < MOST_PEERS && self.sent.iter().all(|(key, _)| *key != peer);
        if admitted {
            self.sent.push((peer, now));
        }
        admitted
    }

    /// Handles a packet for `qp` that its sender, QP `sender_qpn`, reached by a congested way: the sender is told by a
    /// packet in the batch of `port`, which goes `to` it. Packets to a group, whose members would all answer, get none.
    #[cold]
    pub(super) fn congested(
        &mut self,
        port: &LocalPort,
        now: Nanos,
        datagram: &Datagram<'_>,
        qp: &Qp,
        (to, sender_qpn): (Destination, u32),
    ) {
        if datagram.is_marked() {
            qp.tally.add(Word::MarkedPackets, 1);
        }
        let peer = (datagram.from.ip(), slot_of(sender_qpn));
        if datagram.to.is_multicast() || !self.admits(now, peer) {
            return;
        }
        let bth = Bth { opcode: opcode::CNP, pkey: PKEY, dest_qpn: sender_qpn, ..Bth::default() };
        let headers = Headers { bth, ..Headers::default() };
        let mut batch = port.batch();
        let mut out = PacketSink::new(&mut batch, to.not_ecn_capable(), &qp.tally);
        if out.push(&headers, &Pieces::of(&RESERVED)).is_ok() {
            qp.tally.add(Word::NotificationsSent, 1);
            self.batched = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn a_peer_gets_one_notification_in_each_interval_and_all_together_some() {
        let mut sent = Notifications::default();
        let peer = |n: u8| (IpAddr::from([192, 0, 2, n]), u32::from(n));
        assert!(sent.admits(1_000, peer(1)) && sent.admits(1_000, peer(2)));
        assert!(!sent.admits(1_000, peer(1)) && !sent.admits(50_999, peer(1)));
        assert!(sent.admits(51_000, peer(1)), "the interval has passed");
        let admitted = (0..=255).filter(|n| sent.admits(200_000, peer(*n))).count();
        assert_eq!(admitted, MOST_PEERS);
        assert_eq!((0..=255).filter(|n| sent.admits(249_999, peer(*n))).count(), 0);
        assert_eq!(sent.sent.len(), MOST_PEERS, "what is remembered is bounded");
        assert!(sent.admits(250_000, peer(255)));
    }
}
