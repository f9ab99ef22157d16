//! From the socket to the QP: packets are checked, and led to the responder or requester that they are for. Whatever fails a
//! check changes nothing but a counter, and nothing is answered to it.

use super::Engine;
use super::connection::Connection;
use super::net::{Datagram, ReceiveBatch};
use super::no_receive::{Starved, takes_receive};
use super::pacing::Senders;
use super::poll::ACK_DELAY_NS;
use super::port_sharing::{Strays, slot_of_packet};
use super::ports::LocalPort;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vervain_hca::arena::layout::{MULTICAST_QPN, slot_of};
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::host::spin_budget::Patience;
use vervain_hca::process::Process;
use vervain_hca::qp::remote::SenderAccess;
use vervain_hca::{Qp, QpState, QpType, now_ns};
use vervain_transport::{Nanos, Service, pacer};
use vervain_wire::{Packet, opcode, parse};

/// Batches that are taken from one port in a row.
const BATCHES: usize = 8;
/// Packets that a READ's answer may put out before others get their turn.
const STREAM: u32 = 64;
/// Packets of requests that are no stream.
const FEW: u32 = 4;
/// Messages whose acknowledgement may wait for company.
const UNANSWERED: u32 = 32;
/// Looks in vain after which acknowledgements leave on their own.
const LOOKS: u32 = 2;

/// Bytes of the largest path MTU (IBA 9.2.8).
const LARGEST_MTU: usize = 4096;

/// Packets of one peer that wait for a QP at most; more are lost.
const MOST_HELD: u32 = 1024;
/// How long packets for other QPs wait behind them.
const ORDER_NS: u64 = 10_000_000;

/// How long packets of this process that came to others wait while somebody else receives.
const STRAYS_WAIT: Duration = Duration::from_micros(50);

/// What whoever receives packets has in hand.
#[derive(Default)]
pub(super) struct Receiving {
    batch: ReceiveBatch,
    ports: Vec<Arc<LocalPort>>,
    found: Found,
    /// Looks without a packet since the last one, and all looks.
    idle: u32,
    looks: u32,
    /// How long those who sleep for packets look out for them before, and when one of them began to sleep last.
    pub(super) patience: Patience,
    pub(super) slept_at: Nanos,
    /// Packets for other processes of this host.
    strays: Strays,
    /// A pause kept what had come from being taken in.
    cut_short: bool,
    /// QPs whose time has come, for whoever calls them.
    pub(super) due: Vec<Arc<Connection>>,
}

/// What came of the packets so far.
#[derive(Default)]
pub(super) struct Found {
    /// The QP of the last packet: most often the next one is for it too.
    last: Option<Arc<Connection>>,
    /// Those whose responder has something to say.
    due: Vec<Arc<Connection>>,
    /// Since when, and whether it may wait for a packet that goes there anyway.
    due_since: Nanos,
    urgent: bool,
    unanswered: u32,
    /// Packets of requests since the last answer, messages that have ended, and whether another has begun.
    requests: u32,
    messages: u32,
    in_message: bool,
    /// Responses whose QP another thread had, and what came after them from the same process, in that order: a program must
    /// not find an answer to a message of its own whose completion is still to come. Over XRC such an answer is for another
    /// QP. But one QP may be busy for long (`ibv_wr_start`); the others wait for a while only.
    held: Vec<Held>,
    /// Unreliable messages that wait for a receive.
    pub starved: Starved,
    /// Who sends such messages.
    senders: Senders,
    /// Echoes wait in the batches of the ports.
    echoes: bool,
}

/// A packet that has to wait. It is intact.
struct Held {
    connection: Arc<Connection>,
    bytes: Vec<u8>,
    since: Nanos,
}

/// Whether a packet has to wait behind others.
fn has_to_wait(connection: &Connection, now: Nanos) -> bool {
    let waiting = &connection.path.waiting;
    waiting.packets.load(Ordering::Relaxed) > 0
        && (connection.held.load(Ordering::Relaxed) > 0
            || now.saturating_sub(waiting.since.load(Ordering::Relaxed)) < ORDER_NS)
}

impl Found {
    fn hold(&mut self, held: Held) {
        let (connection, waiting) = (&held.connection, &held.connection.path.waiting);
        let packets = waiting.packets.load(Ordering::Relaxed);
        if packets == MOST_HELD {
            return;
        }
        if packets == 0 {
            waiting.since.store(held.since, Ordering::Relaxed);
        }
        waiting.packets.store(packets + 1, Ordering::Relaxed);
        connection.held.fetch_add(1, Ordering::Relaxed);
        self.held.push(held);
    }

    /// Whether it looks like a stream, which needs its acknowledgements to go on. To a few packets, or to one message, however
    /// long, an answer may follow at once.
    fn is_stream(&self) -> bool {
        self.requests > FEW && (self.in_message || self.messages > 1)
    }

    /// What waits, which then does no longer.
    fn take_held(&mut self) -> Vec<Held> {
        for Held { connection, .. } in &self.held {
            connection.held.store(0, Ordering::Relaxed);
            connection.path.waiting.packets.store(0, Ordering::Relaxed);
        }
        std::mem::take(&mut self.held)
    }
}

impl Receiving {
    /// Since when an acknowledgement waits.
    pub(super) fn due_since(&self) -> Option<Nanos> {
        (!self.found.due.is_empty()).then_some(self.found.due_since)
    }

    /// The ports as they were known last.
    pub(super) fn ports(&mut self) -> &mut Vec<Arc<LocalPort>> {
        &mut self.ports
    }

    /// Counts a look of a poller. Whether it is time for acknowledgements to leave on their own.
    pub(super) fn looked_in_vain(&mut self, found: bool) -> bool {
        self.idle = if found { 0 } else { self.idle.saturating_add(1) };
        self.idle >= LOOKS
    }

    /// Whether the rest of a message is still to come.
    pub(super) fn in_message(&self) -> bool {
        self.found.in_message
    }

    /// Whether packets wait for their QP.
    pub(super) fn has_held(&self) -> bool {
        !self.found.held.is_empty() || !self.found.starved.is_empty()
    }
}

impl Engine {
    /// Takes in what has come; whether there was anything.
    pub(super) fn receive(&self, rx: &mut Receiving) -> bool {
        self.receive_at(rx, true)
    }

    /// The same for who looks all the time, and not always everywhere.
    pub(super) fn look(&self, rx: &mut Receiving) -> bool {
        rx.looks = rx.looks.wrapping_add(1);
        self.receive_at(rx, rx.ports.len() < 2)
    }

    fn receive_at(&self, rx: &mut Receiving, everywhere: bool) -> bool {
        // What comes while the process is paused waits in the sockets.
        let Some(process) = Process::current().filter(|p| !p.is_paused()) else {
            rx.cut_short = true;
            return false;
        };
        self.ports.refresh(&mut rx.ports);
        if !rx.found.held.is_empty() {
            process.handle_packets(|| self.take_held(&mut rx.found));
            self.send_kept();
        }
        if !rx.found.starved.is_empty() {
            process.handle_packets(|| self.take_starved(&mut rx.found, now_ns()));
            send_echoes(rx);
        }
        let mut any = false;
        for i in 0..rx.ports.len() {
            rx.ports[i].release();
            if !everywhere && !rx.ports[i].stillness.is_in_look(rx.looks, i) {
                continue;
            }
            let mut here = false;
            for _ in 0..BATCHES {
                let Receiving { batch, ports, found, strays, .. } = rx;
                let mut now = 0;
                // Responses first: an acknowledgement that travels with an answer is seen before it, so that a program
                // that gets the answer finds its own send complete, as with an HCA.
                let is_request = |d: &Datagram<'_>| d.bytes.first().is_some_and(|op| opcode::is_request(*op));
                let taken = process.handle_packets(|| {
                    // Not before: a pause that began in between would leave what was taken to nobody.
                    if !batch.receive(&ports[i].port) {
                        return false;
                    }
                    now = now_ns();
                    for datagram in batch.datagrams().filter(|d| !is_request(d)) {
                        self.own_or_stray(&ports[i], found, strays, now, &datagram);
                    }
                    for datagram in batch.datagrams().filter(is_request) {
                        self.own_or_stray(&ports[i], found, strays, now, &datagram);
                    }
                    true
                });
                rx.cut_short |= taken.is_none();
                if taken != Some(true) {
                    break;
                }
                here = true;
                if !strays.is_empty() {
                    strays.flush(&ports[i].sharing);
                }
                let starved = found.starved.take_new();
                let waits_long = !found.due.is_empty() && now.saturating_sub(found.due_since) > ACK_DELAY_NS;
                if found.urgent || found.unanswered >= UNANSWERED || waits_long {
                    self.answer(rx);
                }
                send_echoes(rx);
                self.send_kept();
                if starved {
                    // The program is to see what has come, and to post receives. The rest can stay where it is.
                    break;
                }
                if !everywhere && rx.batch.datagrams().take(FEW as usize + 1).count() <= FEW as usize {
                    // Most often that was all, and the program has been waiting for it. If not, the next look is soon.
                    break;
                }
            }
            rx.ports[i].stillness.looked(here);
            any |= here;
        }
        if rx.found.is_stream() {
            self.answer(rx);
        }
        any
    }

    /// Takes in all that has come until now, and all that this process has to say to itself about it. False if a pause kept it
    /// from that.
    pub(super) fn take_in_all(&self, rx: &mut Receiving) -> bool {
        rx.cut_short = false;
        self.empty_sockets(rx);
        if rx.due_since().is_some() {
            self.answer(rx);
            self.empty_sockets(rx);
        }
        !rx.cut_short
    }

    /// Receives until nothing more is there, or more has come than was there at first.
    fn empty_sockets(&self, rx: &mut Receiving) {
        let room = rx.ports.iter().map(|port| port.port.room()).max().unwrap_or_default();
        let messages = room / pacer::cost(0);
        let _ = (0..=messages / BATCHES as u64).find(|_| !self.receive(rx));
    }

    /// Takes a packet that has not come by a socket; [`Engine::settle`] comes after the last.
    pub(super) fn arrived(&self, rx: &mut Receiving, port: &Arc<LocalPort>, datagram: &Datagram<'_>) {
        self.own_or_stray(port, &mut rx.found, &mut rx.strays, now_ns(), datagram);
    }

    /// Does what follows from such packets.
    pub(super) fn settle(&self, rx: &mut Receiving, port: &LocalPort) {
        rx.strays.flush(&port.sharing);
        send_echoes(rx);
        self.answer(rx);
        self.send_kept();
    }

    /// A packet goes to its process, which is nearly always this one.
    fn own_or_stray(
        &self,
        port: &Arc<LocalPort>,
        found: &mut Found,
        strays: &mut Strays,
        now: Nanos,
        datagram: &Datagram<'_>,
    ) {
        match slot_of_packet(datagram.bytes) {
            Some(slot) if port.sharing.owns(slot) || slot == slot_of(MULTICAST_QPN) => {
                self.packet(port, found, now, datagram);
            }
            Some(slot) => strays.add(&port.sharing, slot, datagram),
            None => {
                port.port.counters().malformed.add(1);
                FIRST.add(Word::Malformed, 1);
            }
        }
    }

    /// Takes packets of this process that came to others.
    pub(super) fn adopt_strays(&self) {
        let Some(process) = Process::current().filter(|p| !p.is_paused()) else { return };
        let Some(mut rx) = self.receiving.try_lock() else {
            // A thread that polls has it for a moment, or is off its CPU with it. What waits is still there when this is
            // called again, which is at once.
            std::thread::sleep(STRAYS_WAIT);
            return;
        };
        self.ports.refresh(&mut rx.ports);
        let Receiving { ports, found, .. } = &mut *rx;
        let mut any = false;
        // Nor is a stray taken that would not be handled.
        process.handle_packets(|| {
            for port in ports.iter() {
                port.sharing.handle_events(&mut |datagram| {
                    any = true;
                    self.packet(port, found, now_ns(), datagram);
                });
            }
        });
        if any {
            send_echoes(&mut rx);
            self.answer(&mut rx);
            self.send_kept();
        }
    }

    fn packet(&self, port: &Arc<LocalPort>, found: &mut Found, now: Nanos, datagram: &Datagram<'_>) {
        let counters = port.port.counters();
        if !datagram.is_intact() {
            counters.bad_icrc.add(1);
            FIRST.add(Word::BadIcrc, 1);
            tell_of_bad_icrc(datagram, counters.bad_icrc.get());
            return;
        }
        let Ok(packet) = parse(datagram.bytes).map_err(drop).and_then(fits_a_path) else {
            counters.malformed.add(1);
            FIRST.add(Word::Malformed, 1);
            return;
        };
        self.lead(port, found, now, datagram, &packet, false);
    }

    /// Leads an intact packet to its QP; `again` if it has waited for a receive.
    pub(super) fn lead(
        &self,
        port: &Arc<LocalPort>,
        found: &mut Found,
        now: Nanos,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        again: bool,
    ) {
        let (counters, bth) = (port.port.counters(), &packet.headers.bth);
        // The default P_Key with either membership (IBA 9.6.1.1.1).
        if bth.pkey & 0x7fff != 0x7fff || bth.opcode == opcode::CNP {
            counters.unwanted.add(1);
            return;
        }
        // Of what waits for a receive it is known whose it is.
        let sender = |qpn: u32| (datagram.from.ip(), slot_of(qpn));
        let source_qpn = packet.headers.deth.map_or(0, |deth| deth.source_qpn);
        let Some(service) = opcode::service(bth.opcode) else {
            if bth.opcode == opcode::ECHO {
                self.echo(counters, datagram, packet);
            } else if let Some(qpn) = found.starved.holds_from(sender(source_qpn)).filter(|_| !again) {
                // Its echo would say that everything before it has been taken.
                found.starved.keep(now, port, datagram, qpn, sender(source_qpn));
            } else {
                found.echoes |= self.probe(port, &mut found.senders, now, datagram, packet);
            }
            return;
        };
        if service == opcode::Service::Ud {
            let waits = !again && found.starved.holds(bth.dest_qpn) || !self.datagram(counters, datagram, packet);
            if !waits {
                found.starved.has_receives(bth.dest_qpn);
            } else if again || !found.starved.keep(now, port, datagram, bth.dest_qpn, sender(source_qpn)) {
                counters.no_receive.add(1);
                FIRST.add(Word::OutOfBuffer, 1);
            } else {
                return;
            }
            if bth.vervain {
                found.echoes |= self.probe(port, &mut found.senders, now, datagram, packet);
            }
            return;
        }
        let connection = match &found.last {
            Some(last) if last.qpn == bth.dest_qpn && !last.is_closed() => Arc::clone(last),
            _ => match self.connection(bth.dest_qpn) {
                Some(connection) => connection,
                None => {
                    counters.unwanted.add(1);
                    return;
                }
            },
        };
        // IBA annex A17.9.2: the packet must come from the peer's address, to ours.
        let expected = Arc::ptr_eq(&connection.port, port)
            && datagram.from.ip() == connection.to.remote
            && connection.speaks(service);
        let Some(qp) = connection.qp.upgrade().filter(|qp| expected && takes(qp, bth.opcode)) else {
            counters.unwanted.add(1);
            return;
        };
        if !again {
            qp.tally.add(Word::ReceivedPackets, 1);
            qp.tally.add(Word::ReceivedBytes, datagram.bytes.len() as u64);
        }
        if service == opcode::Service::Uc {
            let takes = takes_receive(bth.opcode);
            let lacks = takes && qp.lacks_receive();
            if takes && !lacks {
                found.starved.has_receives(bth.dest_qpn);
            }
            let is_early = !again && (lacks || found.starved.holds(bth.dest_qpn));
            if is_early && found.starved.keep(now, port, datagram, bth.dest_qpn, sender(connection.peer_qpn)) {
                return;
            }
            if bth.vervain {
                found.echoes |= self.probe(port, &mut found.senders, now, datagram, packet);
            }
            if is_early {
                counters.no_receive.add(1);
                qp.tally.add(Word::OutOfBuffer, 1);
                return;
            }
        } else if bth.vervain {
            // Before the program can know of the message, and answer it.
            connection.path.is_vervain.store(true, Ordering::Relaxed);
        }
        if has_to_wait(&connection, now) || self.deliver(&qp, &connection, found, now, packet) == SenderAccess::Busy {
            found.hold(Held { connection: Arc::clone(&connection), bytes: datagram.bytes.to_vec(), since: now });
        }
        found.last = Some(connection);
    }

    /// Gives a packet to the requester or the responder that it is for.
    fn deliver(
        &self,
        qp: &Qp,
        connection: &Arc<Connection>,
        found: &mut Found,
        now: Nanos,
        packet: &Packet<'_>,
    ) -> SenderAccess {
        if opcode::is_request(packet.headers.bth.opcode) {
            self.request(qp, connection, found, now, packet);
            return SenderAccess::Ran;
        }
        connection.response(qp, now, packet)
    }

    /// What waits for a QP that was busy gets another chance.
    fn take_held(&self, found: &mut Found) {
        let now = now_ns();
        for held in found.take_held() {
            let connection = &held.connection;
            let (Ok(packet), Some(qp)) = (parse(&held.bytes), connection.qp.upgrade()) else { continue };
            if connection.is_closed() {
                continue;
            }
            if has_to_wait(connection, now) || self.deliver(&qp, connection, found, now, &packet) == SenderAccess::Busy
            {
                found.hold(held);
            }
        }
    }

    fn request(&self, qp: &Qp, connection: &Arc<Connection>, found: &mut Found, now: Nanos, packet: &Packet<'_>) {
        connection.request(qp, packet);
        if connection.service == Service::Uc {
            return;
        }
        let op = packet.headers.bth.opcode;
        if !connection.touched.swap(true, Ordering::Relaxed) {
            found.due.push(Arc::clone(connection));
            if found.due.len() == 1 {
                found.due_since = now;
            }
        } else if found.due.len() == 1 && connection.answered_along.load(Ordering::Relaxed) {
            // Those before have been acknowledged by a packet of a post.
            (found.unanswered, found.requests, found.messages, found.due_since) = (0, 0, 0, now);
        }
        connection.answered_along.store(false, Ordering::Relaxed);
        found.urgent |= !(opcode::is_send(op) || opcode::is_write(op));
        found.requests += 1;
        found.in_message = !opcode::ends(op);
        found.messages += u32::from(!found.in_message);
        found.unanswered += u32::from(packet.headers.bth.ack_request);
    }

    /// Says what the responders have to say.
    pub(super) fn answer(&self, rx: &mut Receiving) {
        let found = &mut rx.found;
        if found.due.is_empty() {
            return;
        }
        let now = now_ns();
        let mut more = false;
        let answer = |connection: &Arc<Connection>| {
            let again = connection.qp.upgrade().is_some_and(|qp| connection.answer(&qp, STREAM));
            connection.touched.store(again, Ordering::Relaxed);
            more |= again;
            again
        };
        let Some(()) = Process::current().and_then(|p| p.handle_packets(|| found.due.retain(answer))) else { return };
        (found.urgent, found.due_since) = (more, now);
        (found.unanswered, found.requests, found.messages) = (0, 0, 0);
        rx.ports.iter().for_each(|port| port.flush());
    }

    /// Forgets what a thread that is gone had in hand.
    pub(super) fn start_over(&self, rx: &mut Receiving) {
        // Its lists may be torn; they are left where they are.
        std::mem::forget((std::mem::take(&mut rx.found), std::mem::take(&mut rx.due)));
        let connections: Vec<_> = self.connections.lock().values().cloned().collect();
        for connection in &connections {
            connection.touched.store(false, Ordering::Relaxed);
            connection.held.store(0, Ordering::Relaxed);
            connection.path.waiting.packets.store(0, Ordering::Relaxed);
            // It may have been about to call them all.
            self.timers.set(connection, Some(now_ns()));
        }
    }

    /// Acknowledges what can be acknowledged at once, when the process ends: whoever ends it may have been interrupted in
    /// the middle of anything.
    pub(super) fn shutdown(&self) {
        if let Some(rx) = self.receiving.try_lock() {
            for connection in &rx.found.due {
                if let Some(qp) = connection.qp.upgrade() {
                    connection.acknowledge_if_free(&qp);
                }
            }
        }
    }

    /// Whether a READ's answer is not all sent.
    pub(super) fn has_more(&self, rx: &Receiving) -> bool {
        rx.found.urgent && !rx.found.due.is_empty()
    }
}

/// Names the sender of the `n`th packet whose ICRC is wrong, ever more seldom.
#[cold]
fn tell_of_bad_icrc(datagram: &Datagram<'_>, n: u64) {
    if n.is_power_of_two() {
        let (from, to) = (datagram.from.ip(), datagram.to);
        log::info!(
            "a packet from {from} to {to} has a wrong ICRC, and {} before it: damaged, with addresses that were translated on \
             the way (NAT), or with IP options or extension headers",
            n - 1
        );
    }
}

/// Sends the echoes that have been made.
fn send_echoes(rx: &mut Receiving) {
    if std::mem::take(&mut rx.found.echoes) {
        rx.ports.iter().for_each(|port| port.flush());
    }
}

/// A packet with no more payload than the largest path MTU. What is held back is bounded by that too.
fn fits_a_path(packet: Packet<'_>) -> Result<Packet<'_>, ()> {
    if packet.payload.len() <= LARGEST_MTU { Ok(packet) } else { Err(()) }
}

/// Whether such packets are for the half of a QP that there is: an XRC initiator has no responder, its target no requester
/// (IBA A14.2.1), and a QP in error drops what comes in (IBA 10.3.1).
fn takes(qp: &Qp, opcode: u8) -> bool {
    if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Err) {
        return false;
    }
    match qp.qp_type() {
        QpType::XrcSend => !opcode::is_request(opcode),
        QpType::XrcRecv => opcode::is_request(opcode),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_is_no_stream_however_long_and_its_beginning_is() {
        let found = |requests, messages, in_message| Found { requests, messages, in_message, ..Found::default() };
        assert!(!found(FEW, 0, true).is_stream());
        assert!(!found(FEW, FEW, false).is_stream(), "a few small messages");
        assert!(!found(64, 1, false).is_stream());
        assert!(found(64, 0, true).is_stream(), "its sender's window may be closed");
        assert!(found(64, 1, true).is_stream());
        assert!(found(64, 2, false).is_stream());
    }
}
