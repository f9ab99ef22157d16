//! Reliable packets that wait for their QP: responses whose send queue another thread had, and later packets from the
//! same process, in that order; and packets for a QP that is stopped. A program must not find an answer to its own
//! message before the message's completion, and over XRC such an answer is for another QP. But one QP may be busy for
//! long (`ibv_wr_start`), so the others wait for a while only.

use super::RxState;
use super::demux::Visit;
use crate::connection::Connection;
use crate::net::Datagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::now_ns;
use vervain_hca::qp::remote::SenderAccess;
use vervain_transport::{Nanos, Service};
use vervain_wire::parse;

/// The packets, in the order of arrival.
#[derive(Default)]
pub(super) struct Deferred {
    packets: Vec<DeferredPacket>,
}

/// A packet, which is intact.
struct DeferredPacket {
    connection: Arc<Connection>,
    bytes: Vec<u8>,
    since: Nanos,
}

/// Returns true if a packet has to wait behind others.
#[inline]
pub(super) fn must_wait(connection: &Connection, now: Nanos) -> bool {
    let backlog = &connection.path.backlog;
    backlog.has_packets() && (connection.deferred.load(Ordering::Relaxed) > 0 || backlog.holds_others(now))
}

/// Notes that no packet of the peer of `connection` is deferred any more.
pub(super) fn forget(connection: &Connection) {
    connection.deferred.store(0, Ordering::Relaxed);
    connection.path.backlog.clear();
}

impl Deferred {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Defers a packet that has just come.
    #[cold]
    pub(super) fn add(&mut self, connection: &Arc<Connection>, bytes: &[u8], now: Nanos) {
        self.push(DeferredPacket { connection: Arc::clone(connection), bytes: bytes.to_vec(), since: now });
    }

    fn push(&mut self, packet: DeferredPacket) {
        if packet.connection.path.backlog.add(packet.since) {
            packet.connection.deferred.fetch_add(1, Ordering::Relaxed);
            self.packets.push(packet);
        }
    }

    /// Takes all of them out.
    fn take(&mut self) -> Vec<DeferredPacket> {
        self.packets.iter().for_each(|packet| forget(&packet.connection));
        std::mem::take(&mut self.packets)
    }
}

impl RxState {
    /// Gives the packets of a visit to their requester or responder.
    #[inline]
    pub(super) fn deliver<'d>(
        &mut self,
        connection: &Arc<Connection>,
        now: Nanos,
        visit: Visit<'_, impl Iterator<Item = Datagram<'d>>>,
    ) -> SenderAccess {
        if !visit.are_requests() {
            return connection.responses(now, visit);
        }
        // UC has no acknowledgements.
        let is_acknowledged = connection.terms.service != Service::Uc;
        let is_urgent = connection.requests(visit, |bth| {
            if is_acknowledged {
                self.acks.add(connection, now, bth);
            }
        });
        self.acks.hurry(is_urgent);
        SenderAccess::Ran
    }

    /// Handles the deferred packets whose QP is free by now.
    pub(super) fn retry_deferred(&mut self) {
        let now = now_ns();
        for deferred in self.deferred.take() {
            let connection = &deferred.connection;
            let (Ok(packet), Some(qp)) = (parse(&deferred.bytes), connection.qp.upgrade()) else { continue };
            if connection.responder.is_closed() {
                continue;
            }
            let mut nothing = std::iter::empty();
            let visit = Visit::of_one(&qp, &connection.port, &packet, &mut nothing);
            if qp.is_stopped()
                || must_wait(connection, now)
                || self.deliver(connection, now, visit) == SenderAccess::Busy
            {
                self.deferred.push(deferred);
            }
        }
    }
}
