//! The connection that a packet is for. A packet that fails a check changes nothing but a counter, and gets no answer.

use super::RxState;
use super::deferred::must_wait;
use super::no_receive::takes_receive;
use crate::connection::Connection;
use crate::datagrams::Datagrams;
use crate::net::{Counters, Datagram};
use crate::pacing::{Paces, PeerKey};
use crate::packet_sink::Destination;
use crate::paths::Paths;
use crate::ports::LocalPort;
use std::sync::Arc;
use vervain_carrier::by_qp::ByQp;
use vervain_carrier::terms::takes;
use vervain_hca::arena::layout::slot_of;
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::qp::remote::SenderAccess;
use vervain_hca::{Grh, Qp, QpState};
use vervain_transport::{Nanos, Service};
use vervain_wire::{Bth, Deth, Packet, opcode, parse_to};

/// Bytes of the largest path MTU (IBA 9.2.8).
const LARGEST_MTU: usize = 4096;

/// Most packets, and bytes of them, that a visit to a connection handles together. They are checked first, without its
/// locks, and handled after that: all of them should still lie in the first level of the cache then.
const MOST_IN_VISIT: usize = 32;
const MOST_BYTES_IN_VISIT: usize = 8 << 10;

/// An intact packet on its way to its QP.
pub(super) struct RxPacket<'a> {
    pub port: &'a Arc<LocalPort>,
    pub datagram: &'a Datagram<'a>,
    pub packet: &'a Packet<'a>,
    pub now: Nanos,
    /// True if it has waited for a receive.
    pub is_retry: bool,
}

impl RxPacket<'_> {
    fn bth(&self) -> &Bth {
        &self.packet.headers.bth
    }

    fn counters(&self) -> &Counters {
        self.port.port.counters()
    }

    /// Returns true if its sender is to be told of congestion.
    #[inline]
    fn is_congested(&self) -> bool {
        (self.datagram.is_marked() || self.datagram.overflowed) && !self.is_retry
    }

    /// The process that has sent it, which owns QP `qpn`.
    fn sender(&self, qpn: u32) -> PeerKey {
        (self.datagram.from.ip(), slot_of(qpn))
    }

    /// The process that has sent it, if the packet names its QP.
    fn named_sender(&self) -> PeerKey {
        self.sender(self.packet.headers.deth.map_or(0, |deth| deth.source_qpn))
    }
}

/// Connection of the last packet: most often the next one is for it too.
#[derive(Default)]
pub(super) struct LastConnection(Option<Arc<Connection>>);

impl LastConnection {
    #[inline]
    fn get(&self, qpn: u32) -> Option<Arc<Connection>> {
        self.0.as_ref().filter(|last| last.qpn == qpn && !last.responder.is_closed()).cloned()
    }
}

/// QPs to which packets can be addressed.
pub(crate) struct Addressees {
    pub connections: ByQp<Connection>,
    pub paths: Paths,
    pub datagrams: Datagrams,
    /// Credit with the peers of unreliable messages.
    pub paces: Paces,
}

impl Addressees {
    /// Checks a packet for this process, and delivers it to its QP. Those of the `following` that are for the same half
    /// of the same QP are taken along.
    pub(super) fn packet<'a>(
        &self,
        port: &Arc<LocalPort>,
        state: &mut RxState,
        now: Nanos,
        datagram: &Datagram<'a>,
        following: &mut (impl Iterator<Item = Datagram<'a>> + Clone),
    ) {
        if !port.is_intact_by(datagram, &mut state.last_flow) {
            return;
        }
        let mut packet = Packet::default();
        if !parse_counting(port, datagram, &mut packet) {
            return;
        }
        self.demux(state, &RxPacket { port, datagram, packet: &packet, now, is_retry: false }, following);
    }

    /// Delivers a packet to its QP, and `following` ones with it.
    pub(super) fn demux<'a>(
        &self,
        state: &mut RxState,
        rx: &RxPacket<'_>,
        following: &mut (impl Iterator<Item = Datagram<'a>> + Clone),
    ) {
        let bth = rx.bth();
        // The default P_Key with either membership (IBA 9.6.1.1.1).
        if bth.pkey & 0x7fff != 0x7fff {
            rx.counters().unwanted.add(1);
            return;
        }
        match opcode::service(bth.opcode) {
            None if bth.opcode == opcode::CNP => self.demux_notification(rx),
            None if bth.opcode == opcode::GAPS => self.demux_connected(state, rx, None, following),
            None => self.demux_credit(state, rx),
            Some(opcode::Service::Ud) => self.demux_datagram(state, rx),
            service => self.demux_connected(state, rx, service, following),
        }
    }

    /// Handles a congestion notification packet. One that is not from its QP's peer changes nothing.
    #[cold]
    fn demux_notification(&self, rx: &RxPacket<'_>) {
        let Some(qp) = self.notified(rx) else {
            rx.counters().unwanted.add(1);
            return;
        };
        qp.tally.add(Word::ReceivedPackets, 1);
        qp.tally.add(Word::ReceivedBytes, rx.datagram.bytes.len() as u64);
        qp.tally.add(Word::NotificationsHandled, 1);
    }

    /// Slows down what a notification is about. The QP that it is for; None if it is not from that QP's peer.
    fn notified(&self, rx: &RxPacket<'_>) -> Option<Arc<Qp>> {
        let (qpn, from) = (rx.bth().dest_qpn, rx.datagram.from.ip());
        let Some(connection) = self.connections.get(qpn) else {
            return self.datagrams.qp(qpn).filter(|_| self.paces.notified(from, rx.now));
        };
        let is_peer = Arc::ptr_eq(&connection.port, rx.port) && from == connection.to.remote;
        let sends = |qp: &Arc<Qp>| !matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Err);
        let qp = connection.qp.upgrade().filter(|qp| is_peer && sends(qp))?;
        match &connection.pace {
            Some(pace) => pace.notified(rx.now),
            None => connection.path.window.lock().notified(rx.now),
        }
        Some(qp)
    }

    /// Handles a probe or an echo (docs/protocol.md, Credit).
    fn demux_credit(&self, state: &mut RxState, rx: &RxPacket<'_>) {
        if rx.bth().opcode == opcode::ECHO {
            self.paces.echo(rx.counters(), rx.datagram, rx.packet);
        } else if let Some((qpn, closed)) =
            state.awaiting_receive.holds_from(rx.named_sender()).filter(|_| !rx.is_retry)
        {
            // Its echo would claim that everything before it has been received.
            state.awaiting_receive.keep(rx, qpn, &closed, rx.named_sender(), false);
        } else {
            self.answer_probe(state, rx);
        }
    }

    fn demux_datagram(&self, state: &mut RxState, rx: &RxPacket<'_>) {
        let qpn = rx.bth().dest_qpn;
        if rx.is_congested() {
            self.datagram_congested(state, rx);
        }
        let keep = |state: &mut RxState| {
            let closed = self.datagrams.closed(qpn);
            let stands = self.datagrams.qp(qpn).is_some_and(|qp| qp.is_stopped());
            closed.is_some_and(|closed| state.awaiting_receive.keep(rx, qpn, &closed, rx.named_sender(), stands))
        };
        let lacks_receive = !rx.is_retry && state.awaiting_receive.holds(qpn)
            || !self.datagrams.receive(rx.counters(), rx.datagram, rx.packet);
        if !lacks_receive {
            state.awaiting_receive.has_receives(qpn);
        } else if rx.is_retry || !keep(state) {
            self.datagrams.drop_without_receive(rx.counters(), rx.datagram, qpn);
        } else {
            return;
        }
        if rx.bth().is_vervain() {
            self.answer_probe(state, rx);
        }
    }

    /// Tells the sender of a datagram of congestion, if it may send to its QP.
    #[cold]
    fn datagram_congested(&self, state: &mut RxState, rx: &RxPacket<'_>) {
        let Some(Deth { qkey, source_qpn }) = rx.packet.headers.deth else { return };
        let Some(qp) = self.datagrams.qp(rx.bth().dest_qpn).filter(|qp| qp.qkey() == qkey) else { return };
        let to = Destination::new(rx.datagram.from.ip(), &Grh::default());
        state.notifications.congested(rx.port, rx.now, rx.datagram, &qp, (to, source_qpn));
    }

    /// Handles a packet of a reliable or unreliable connection, and over a reliable one `following` ones with it. A
    /// report of gaps is of no `service` in particular.
    fn demux_connected<'a>(
        &self,
        state: &mut RxState,
        rx: &RxPacket<'_>,
        service: Option<opcode::Service>,
        following: &mut (impl Iterator<Item = Datagram<'a>> + Clone),
    ) {
        let now = rx.now;
        let Some((connection, qp)) = self.find_addressee(state, rx, service) else {
            rx.counters().unwanted.add(1);
            return;
        };
        if !rx.is_retry {
            count_received(&qp, rx.datagram);
        }
        if rx.is_congested() {
            let sender = (connection.to, connection.terms.peer_qpn);
            state.notifications.congested(rx.port, now, rx.datagram, &qp, sender);
            if opcode::is_read_response(rx.bth().opcode) {
                // This end decides how much it asks for.
                connection.path.window.lock().notified(now);
            }
        }
        if service == Some(opcode::Service::Uc) && !self.admit_uc(state, rx, &connection, &qp) {
            return;
        }
        let waits = qp.is_stopped() || must_wait(&connection, now);
        let alone = waits || matches!(service, None | Some(opcode::Service::Uc));
        let along = if alone { 0 } else { packets_along(rx.datagram, following.clone()) };
        let visit = Visit { first: rx.packet, along, following, port: rx.port, qp: &qp };
        if waits || state.deliver(&connection, now, visit) == SenderAccess::Busy {
            state.deferred.add(&connection, rx.datagram.bytes, now);
        }
        state.last = LastConnection(Some(connection));
    }

    /// The connection that a packet is for, and its QP, if both may take it.
    #[inline]
    fn find_addressee(
        &self,
        state: &RxState,
        rx: &RxPacket<'_>,
        service: Option<opcode::Service>,
    ) -> Option<(Arc<Connection>, Arc<Qp>)> {
        let bth = rx.bth();
        let connection = state.last.get(bth.dest_qpn).or_else(|| self.connections.get(bth.dest_qpn))?;
        // IBA annex A17.9.2: the packet must come from the peer's address, to ours.
        let expected = Arc::ptr_eq(&connection.port, rx.port)
            && rx.datagram.from.ip() == connection.to.remote
            && connection.speaks(service);
        let qp = connection.qp.upgrade().filter(|qp| expected && takes(qp, bth.opcode))?;
        Some((connection, qp))
    }

    /// Returns true if a UC packet goes on to the responder now. A packet that comes before its receive is kept or
    /// dropped (IBA 9.8.2.2); while the QP is stopped all are kept.
    fn admit_uc(&self, state: &mut RxState, rx: &RxPacket<'_>, connection: &Connection, qp: &Qp) -> bool {
        let (bth, awaiting) = (rx.bth(), &mut state.awaiting_receive);
        let takes = takes_receive(bth.opcode);
        let lacks = takes && qp.lacks_receive();
        if takes && !lacks {
            awaiting.has_receives(bth.dest_qpn);
        }
        let stands = qp.is_stopped();
        let is_early = !rx.is_retry && (lacks || stands || awaiting.holds(bth.dest_qpn));
        let (closed, sender) = (connection.responder.closed(), rx.sender(connection.terms.peer_qpn));
        if is_early && awaiting.keep(rx, bth.dest_qpn, closed, sender, stands) {
            return false;
        }
        if bth.is_vervain() {
            self.answer_probe(state, rx);
        }
        if is_early {
            rx.counters().no_receive.add(1);
            qp.tally.add(Word::OutOfBuffer, 1);
        }
        !is_early
    }

    /// Sends one echo for a probe to a QP of this process, or for a UC or UD packet with the mark, once everything that
    /// its sender sent before has been received. A packet that does not come from a sender of that QP gets none.
    pub(super) fn answer_probe(&self, state: &mut RxState, rx: &RxPacket<'_>) {
        let (bth, from) = (rx.bth(), rx.datagram.from.ip());
        let asker = match (self.connections.get(bth.dest_qpn), rx.packet.headers.deth) {
            (Some(c), deth) => {
                let is_peer = c.terms.service == Service::Uc && Arc::ptr_eq(&c.port, rx.port) && c.to.remote == from;
                // A UC packet does not name its sender.
                (is_peer && deth.is_none_or(|deth| deth.source_qpn == c.terms.peer_qpn)).then_some(c.terms.peer_qpn)
            }
            (None, Some(Deth { qkey, source_qpn })) => {
                let qp = self.datagrams.qp(bth.dest_qpn);
                qp.is_some_and(|qp| qp.qkey() == qkey).then_some(source_qpn)
            }
            (None, None) => None,
        };
        match asker {
            Some(source_qpn) => state.echoes.answer(rx.port, rx.now, (from, source_qpn), bth),
            None if bth.opcode == opcode::PROBE => rx.counters().unwanted.add(1),
            None => {}
        }
    }
}

/// Packets for one half of a connected QP, which are handled in one visit to it.
pub(crate) struct Visit<'a, I> {
    first: &'a Packet<'a>,
    /// The number of those of the `following` that are handled with it, which are intact.
    along: usize,
    following: &'a mut I,
    port: &'a LocalPort,
    /// The QP.
    pub qp: &'a Qp,
}

impl<'a, 'd, I: Iterator<Item = Datagram<'d>>> Visit<'a, I> {
    /// A visit with a packet alone.
    pub(super) fn of_one(qp: &'a Qp, port: &'a LocalPort, packet: &'a Packet<'a>, nothing: &'a mut I) -> Self {
        Visit { first: packet, along: 0, following: nothing, port, qp }
    }

    /// Returns true if they are for the responder.
    #[inline]
    pub fn are_requests(&self) -> bool {
        opcode::is_request(self.first.headers.bth.opcode)
    }

    /// Hands out each of them.
    #[inline]
    pub fn each(self, mut f: impl FnMut(&Packet<'_>)) {
        f(self.first);
        let mut packet = Packet::default();
        for datagram in self.following.take(self.along) {
            if !parse_counting(self.port, &datagram, &mut packet) {
                continue;
            }
            count_received(self.qp, &datagram);
            if datagram.is_marked() {
                self.qp.tally.add(Word::MarkedPackets, 1);
            }
            f(&packet);
        }
    }
}

/// Counts a packet that is for a connected QP.
#[inline]
fn count_received(qp: &Qp, datagram: &Datagram<'_>) {
    qp.tally.add_both((Word::ReceivedPackets, 1), (Word::ReceivedBytes, datagram.bytes.len() as u64));
}

/// The number of packets, from the first of `following` on, that are handled with `first` in one visit to its
/// connection: intact ones of the same process, service and direction to the same QP. What is wrong with another shows
/// when its turn comes.
#[inline]
fn packets_along<'a>(first: &Datagram<'_>, following: impl Iterator<Item = Datagram<'a>>) -> usize {
    let (mut bytes, mut flow) = (first.bytes.len(), None);
    let is_along = |datagram: &Datagram<'a>| {
        bytes += datagram.bytes.len();
        bytes <= MOST_BYTES_IN_VISIT
            && is_alike(first, datagram)
            && flow.get_or_insert_with(|| first.flow()).is_some_and(|flow| datagram.is_intact_in(&flow))
    };
    following.take(MOST_IN_VISIT - 1).take_while(is_along).count()
}

/// Returns true if the two have the same addresses, service, direction, P_Key and QP, and the other does not tell of
/// congestion by itself: a marked answer to a READ does, behind another response.
#[inline]
fn is_alike(one: &Datagram<'_>, other: &Datagram<'_>) -> bool {
    let (Some(a), Some(b)) = (one.bytes.first_chunk::<8>(), other.bytes.first_chunk::<8>()) else { return false };
    let are_of_one_kind =
        || opcode::service(a[0]) == opcode::service(b[0]) && opcode::is_request(a[0]) == opcode::is_request(b[0]);
    // All but the opcode and the flags.
    (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b)) >> 16 == 0
        && (a[0] == b[0] || are_of_one_kind())
        && one.from == other.from
        && one.to == other.to
        && one.is_marked() == other.is_marked()
        && (!one.is_marked() || opcode::is_read_response(a[0]) == opcode::is_read_response(b[0]))
        && !other.overflowed
}

/// Parses an intact datagram to `packet`, by [`parse_to`]; counts one that is malformed and returns false. One with
/// more payload than the largest path MTU is too, which also bounds the packets kept for later.
#[inline(always)]
fn parse_counting<'a>(port: &LocalPort, datagram: &Datagram<'a>, packet: &mut Packet<'a>) -> bool {
    let is_packet = parse_to(datagram.bytes, packet).is_ok() && packet.payload.len() <= LARGEST_MTU;
    if !is_packet {
        count_malformed(port);
    }
    is_packet
}

#[cold]
fn count_malformed(port: &LocalPort) {
    port.port.counters().malformed.add(1);
    FIRST.add(Word::Malformed, 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, SocketAddr};
    use vervain_wire::{Headers, MAX_HEADERS};

    const HERE: [u8; 4] = [192, 0, 2, 1];
    const QPN: u32 = 0x1234;

    fn peer(host: u8) -> SocketAddr {
        ([192, 0, 2, host], 50_000).into()
    }

    /// An intact packet with `payload` bytes.
    fn packet(from: SocketAddr, opcode: u8, dest_qpn: u32, payload: usize) -> Vec<u8> {
        let mut headers = Headers::default();
        (headers.bth.opcode, headers.bth.pkey, headers.bth.dest_qpn) = (opcode, 0xffff, dest_qpn);
        let mut bytes = [0; MAX_HEADERS];
        let length = headers.emit(&mut bytes);
        let mut packet = bytes[..length].to_vec();
        packet.resize(length + payload, 7);
        let flow = datagram(from, &packet).flow().expect("both of IPv4");
        packet.extend(flow.icrc(0, &packet));
        packet
    }

    fn datagram(from: SocketAddr, bytes: &[u8]) -> Datagram<'_> {
        Datagram { from, to: IpAddr::from(HERE), hop_limit: 64, tos: 0, overflowed: false, label: 0, index: 0, bytes }
    }

    const WRITE: u8 = opcode::RC | opcode::WRITE_ONLY;

    #[test]
    fn packets_of_one_direction_to_one_qp_are_handled_together_up_to_the_first_other() {
        let write = packet(peer(2), WRITE, QPN, 8);
        let first = datagram(peer(2), &write);
        let along = |other: &[u8], from: SocketAddr| {
            packets_along(&first, [first, first, datagram(from, other), first].into_iter())
        };
        assert_eq!(along(&write, peer(2)), 4);
        let send = packet(peer(2), opcode::RC | opcode::SEND_ONLY, QPN, 8);
        assert_eq!(along(&send, peer(2)), 4, "another request");
        for (what, other) in [
            ("another QP", packet(peer(2), WRITE, QPN + 1, 8)),
            ("another service", packet(peer(2), opcode::XRC | opcode::WRITE_ONLY, QPN, 8)),
            ("a manufacturer's", packet(peer(2), opcode::PROBE, QPN, 4)),
            ("an unknown opcode", packet(peer(2), 0xff, QPN, 8)),
            ("a response", packet(peer(2), opcode::RC | opcode::ACKNOWLEDGE, QPN, 0)),
            ("too short for an ICRC", write[..12].to_vec()),
            ("nothing", vec![]),
        ] {
            assert_eq!(along(&other, peer(2)), 2, "{what}");
        }
        assert_eq!(along(&packet(peer(3), WRITE, QPN, 8), peer(3)), 2, "another sender");
        for at in 0..write.len() {
            let mut damaged = write.clone();
            damaged[at] ^= 0x10;
            // The ICRC leaves this byte out (FECN and BECN), but the packet may mean something else.
            assert_eq!(along(&damaged, peer(2)), 2, "byte {at}");
        }
    }

    #[test]
    fn marked_answers_to_reads_are_not_hidden_behind_a_marked_acknowledgement() {
        const ACK: u8 = opcode::RC | opcode::ACKNOWLEDGE;
        const READ_MIDDLE: u8 = opcode::RC | opcode::READ_RESPONSE_MIDDLE;
        let (ack, read) = (packet(peer(2), ACK, QPN, 0), packet(peer(2), READ_MIDDLE, QPN, 8));
        for (tos, along) in [(2, 3), (3, 0)] {
            let of = |bytes| Datagram { tos, ..datagram(peer(2), bytes) };
            assert_eq!(packets_along(&of(&ack), [of(&read); 3].into_iter()), along, "ECN bits {tos}");
            assert_eq!(packets_along(&of(&read), [of(&read); 3].into_iter()), 3, "ECN bits {tos}");
        }
    }

    #[test]
    fn a_visit_to_a_connection_is_short() {
        for (payload, most) in [(8, MOST_IN_VISIT - 1), (LARGEST_MTU, 0)] {
            let write = packet(peer(2), WRITE, QPN, payload);
            let first = datagram(peer(2), &write);
            assert_eq!(packets_along(&first, [first; 100].into_iter()), most, "{payload} bytes");
        }
    }
}
