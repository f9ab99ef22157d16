//! Receiving from the pairs of this process: a thread that polls, the watch or the progress thread takes messages from
//! their rings and gives each to the QP that it is for.

use super::connection::Connection;
use super::deferred::DeferredAnswers;
use super::engine::Engine;
use super::pace::FIRST_LOOK_NS;
use super::pair::{Pair, with};
use super::pairs::Pairs;
use super::payload::copy_out;
use super::reads::READ_WORDS;
use super::watch::Looker;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vervain_carrier::Foreign;
use vervain_carrier::terms::takes;
use vervain_hca::device::port_counters::Word;
use vervain_hca::host::barrier;
use vervain_hca::host::cancel::nap;
use vervain_hca::process::Process;
use vervain_hca::{Qp, now_ns};
use vervain_transport::{Data, Service};
use vervain_window::pairs::block;
use vervain_window::pairs::grant::{Grant, Want};
use vervain_window::pairs::rendezvous::{Event, PeerId};
use vervain_window::pairs::ring::{Class, HEADERS, Incoming, Message};
use vervain_window::pairs::slot::Kind;
use vervain_window::{GRANULE, Reason, Region};
use vervain_wire::{Headers, Packet, opcode, parse_headers_to};

/// Messages of one pair before others get their turn: the number of slots for requests.
const BATCH: usize = 32;
/// Nanoseconds that a QP which is reset or destroyed waits for a message that may be arriving, whose sender may have
/// lost its CPU in the middle of it; and the interval of the looks.
const LANDING_ENDS_NS: u64 = 200_000_000;
const LOOK: Duration = Duration::from_micros(20);
/// Granules of a ring for long messages.
const LONG_GRANULES: u32 = (block::LONG_BYTES / GRANULE) as u32;

/// Reason of the warning of a peer's full region, which recurs with each of many peers.
static FULL: Reason = Reason::new();

/// State of the thread that receives.
#[derive(Default)]
pub struct Receiving {
    pairs: Vec<Inflow>,
    /// Connections that have more to answer.
    unanswered: Vec<Arc<Connection>>,
    /// Answers to QPs that another thread had.
    deferred: DeferredAnswers,
    /// QPs that may send again: another thread had their send queues.
    held_up: Vec<Weak<Qp>>,
    /// A message that was not taken is to be looked at again.
    later: bool,
    /// A copy of the payload of the datagram in hand, which its sender cannot change.
    payload: Vec<u8>,
}

struct Inflow {
    pair: Arc<Pair>,
    incoming: Incoming,
    /// True if the peer has asked for a ring for long messages, and has no answer yet.
    owes_ring: bool,
    /// Groups that were joined or left, for the peer to know.
    groups: Vec<(Kind, [u8; 16])>,
}

impl Inflow {
    /// Returns true if there is anything to receive from it, to send to it, or to continue.
    #[inline]
    fn has_news(&self, region: &Region) -> bool {
        self.incoming.has_news(region)
            || self.pair.owes()
            || self.pair.is_asked_back()
            || self.owes_ring
            || !self.groups.is_empty()
            || self.pair.is_waited_for()
    }
}

/// Fate of a message.
#[derive(PartialEq, Eq)]
enum Taken {
    Yes,
    /// It is to be looked at again.
    Later,
}

impl Taken {
    fn of(taken: bool) -> Taken {
        if taken { Taken::Yes } else { Taken::Later }
    }
}

impl Receiving {
    /// Returns true if work is left for which no peer will ring.
    pub fn has_more(&self) -> bool {
        !self.unanswered.is_empty()
            || !self.deferred.is_empty()
            || self
                .pairs
                .iter()
                .any(|inflow| inflow.owes_ring || !inflow.groups.is_empty() || inflow.pair.is_waited_for())
    }

    /// Returns true if there is work to continue, by any thread, for which nobody rings.
    pub fn owes(&self) -> bool {
        self.later || !self.unanswered.is_empty() || !self.deferred.is_empty() || !self.held_up.is_empty()
    }

    /// Makes QPs send on that may again.
    pub fn go_on(&mut self, qps: impl IntoIterator<Item = Weak<Qp>>) {
        let is_held_up = |qp: &Weak<Qp>| qp.upgrade().is_some_and(|qp| !qp.go_on());
        self.held_up.extend(qps.into_iter().filter(is_held_up));
    }

    /// Returns true if an acknowledgement waits for another message.
    fn owes_peers(&self) -> bool {
        self.pairs.iter().any(|inflow| inflow.pair.owes())
    }

    /// Announces to all peers that this process goes to sleep. Returns true if one did not know.
    fn announce_sleep(&mut self) -> bool {
        self.pairs.iter().fold(false, |any, inflow| inflow.pair.announce_sleep() | any)
    }

    pub fn begin(&mut self, pair: &Arc<Pair>, own: u64, groups: Vec<[u8; 16]>) {
        let groups = groups.into_iter().map(|group| (Kind::Join, group)).collect();
        let (pair, incoming) = (Arc::clone(pair), Incoming::new(own));
        self.pairs.push(Inflow { pair, incoming, owes_ring: false, groups });
    }

    /// The pair with a peer that has ended.
    pub fn end(&mut self, peer: PeerId) -> Option<Arc<Pair>> {
        let at = self.pairs.iter().position(|inflow| inflow.pair.peer == peer)?;
        Some(self.pairs.remove(at).pair)
    }

    /// Announces a group to all peers.
    pub fn tell(&mut self, kind: Kind, group: [u8; 16]) {
        self.pairs.iter_mut().for_each(|inflow| inflow.groups.push((kind, group)));
    }

    /// Sends everything that waits for another message.
    pub fn flush(&self) {
        self.pairs.iter().for_each(|inflow| inflow.pair.flush());
    }

    /// Puts the count of messages taken to every peer.
    pub fn tell_taken(&mut self) {
        for Inflow { pair, incoming, .. } in &mut self.pairs {
            if let Some(taken) = incoming.untold(true) {
                pair.tell_taken(taken);
            }
        }
    }
}

impl Looker for Engine {
    fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    fn look(&self, process: &'static Process) -> bool {
        let Some(mut rx) = self.receiving.try_lock() else { return false };
        if !self.has_news(&rx) {
            return false;
        }
        let any = process.handle_packets(|| self.take_in(&mut rx)).unwrap_or(false);
        if rx.owes() {
            self.hand_over(process);
        }
        any
    }

    fn last_look(&self, process: &'static Process) -> Option<bool> {
        let mut rx = self.receiving.lock();
        let any = process.handle_packets(|| {
            rx.tell_taken();
            if rx.announce_sleep() {
                barrier::heavy();
            }
            let any = self.take_in(&mut rx);
            rx.flush();
            any
        });
        if rx.owes() {
            self.hand_over(process);
        }
        any
    }
}

impl Engine {
    /// Returns true if a look would find anything to do.
    #[inline]
    fn has_news(&self, rx: &Receiving) -> bool {
        rx.pairs.iter().any(|inflow| inflow.has_news(&self.region)) || rx.owes() || self.pairs.is_rung()
    }

    /// Returns true if all messages put to this process that its program may have seen are acknowledged. If not, the
    /// progress thread acknowledges them. Waits for no lock.
    pub fn is_all_said(&self) -> bool {
        let is_put_to = self.connections.by_qp.may_have(|connection| connection.path.is_put_to());
        // In this order: the thread that receives acknowledges the end of a message.
        let owes = match self.receiving.try_lock() {
            Some(rx) => rx.owes_peers(),
            None => self.receiving.raw().comes_free(),
        };
        !is_put_to && !owes
    }

    /// Waits for the message whose destination was announced to its sender: its bytes may be there already, where the
    /// program sees them.
    pub fn let_message_arrive(&self, process: &'static Process, connection: &Connection) {
        let until = now_ns() + LANDING_ENDS_NS;
        while connection.path.is_put_to() && now_ns() < until {
            if !self.look(process) {
                nap(LOOK);
            }
        }
    }

    /// Makes the progress thread do the rest, as nothing more may come.
    #[cold]
    fn hand_over(&self, process: &'static Process) {
        if self.next_look.load(Ordering::SeqCst) > now_ns() + FIRST_LOOK_NS {
            self.next_look.store(0, Ordering::SeqCst);
            process.wake_for_packets();
        }
    }

    fn take_in(&self, rx: &mut Receiving) -> bool {
        self.meet(rx);
        rx.deferred.retry();
        let held_up = std::mem::take(&mut rx.held_up);
        rx.go_on(held_up);
        rx.later = false;
        let mut any = false;
        for i in 0..rx.pairs.len() {
            if rx.pairs[i].has_news(&self.region) {
                any |= self.take_from(rx, i);
            }
        }
        any |= self.answer(rx);
        for i in 0..rx.pairs.len() {
            let waiting = rx.pairs[i].pair.take_waiting();
            rx.go_on(waiting);
        }
        any
    }

    /// Makes and ends pairs, if something has happened at the doors.
    fn meet(&self, rx: &mut Receiving) {
        if !self.pairs.is_rung() {
            return;
        }
        let news = self.pairs.look();
        self.handle_events(rx, &news);
    }

    /// Makes and ends pairs.
    pub fn handle_events(&self, rx: &mut Receiving, events: &[Event]) {
        for event in events {
            match *event {
                Event::Up { peer, incarnation, theirs, own } => {
                    let Some(pair) = self.pairs.begin(peer, incarnation, theirs, own) else {
                        self.pairs.give_up(peer, own);
                        continue;
                    };
                    rx.begin(&pair, own, self.datagrams.listeners.groups.all());
                    // It has announced nothing there yet.
                    self.watch.wake(&self.pairs);
                    rx.go_on(self.connections.with(peer).iter().map(|connection| Weak::clone(connection.qp())));
                }
                Event::Down { peer, incarnation, own } => {
                    self.take_last(rx, peer);
                    if let Some(pair) = rx.end(peer) {
                        self.pairs.end(&pair);
                        self.datagrams.forget_peer(pair.peer);
                    }
                    self.pairs.give_back(own, peer, incarnation);
                    self.request_again(peer);
                }
                Event::NoRoom(peer) => log::log!(
                    FULL.level(),
                    "process {} of node {} has no room in the window for this one: a larger window has",
                    peer.process,
                    peer.node
                ),
            }
        }
    }

    /// Takes from pair `i`.
    fn take_from(&self, rx: &mut Receiving, i: usize) -> bool {
        let region = &self.region;
        let pair = Arc::clone(&rx.pairs[i].pair);
        let mut any = false;
        self.connections.follow(&pair);
        for _ in 0..BATCH {
            let incoming = &mut rx.pairs[i].incoming;
            let message = match incoming.next(region) {
                Ok(Some(message)) => message,
                Ok(None) => {
                    if let Some(taken) = incoming.untold(false) {
                        pair.tell_taken(taken);
                    }
                    break;
                }
                Err(_) => {
                    pair.distrust();
                    break;
                }
            };
            if pair.is_over() {
                break;
            }
            if self.handle(rx, i, &pair, &message) == Taken::Later {
                rx.later = true;
                break;
            }
            any = true;
            if let Some(taken) = rx.pairs[i].incoming.took(&message) {
                pair.tell_taken(taken);
            }
        }
        self.tell_pair(&mut rx.pairs[i]);
        // Nothing of the program's has followed what was acknowledged in the look before.
        if !any {
            pair.flush();
        }
        any
    }

    /// Takes the packets that a peer has put before its end: an adapter would have taken them in by then, whatever
    /// became of their sender. Nothing goes back, as its memory may be another's. What cannot be taken now is lost, as
    /// without a receive; and so is what is for a connection that has not used the pair, which may be made for the next
    /// process of that number.
    fn take_last(&self, rx: &mut Receiving, peer: PeerId) {
        let Some(i) = rx.pairs.iter().position(|inflow| inflow.pair.peer == peer) else { return };
        let pair = Arc::clone(&rx.pairs[i].pair);
        pair.end();
        // No more than it can have put: a living peer that has announced another pair may go on.
        for _ in 0..block::SLOTS {
            if pair.is_distrusted() {
                return;
            }
            let Ok(Some(message)) = rx.pairs[i].incoming.next(&self.region) else { return };
            if matches!(message.kind, Kind::Packet | Kind::ReadPacket) {
                let _ = self.packet(rx, &pair, &message);
            }
            let _ = rx.pairs[i].incoming.took(&message);
        }
    }

    /// Sends a peer its messages that are no packets, while there is room.
    fn tell_pair(&self, inflow: &mut Inflow) {
        let peer = inflow.pair.peer;
        if inflow.owes_ring {
            inflow.owes_ring = false;
            if let Some(at) = self.pairs.long_ring(peer) {
                inflow.incoming.has_long(at);
                let mut headers = [0; HEADERS];
                headers[..8].copy_from_slice(&at.to_le_bytes());
                inflow.owes_ring = !inflow.pair.say(Class::Control, Kind::LongRing, &headers);
            }
        }
        while let Some((kind, group)) = inflow.groups.first() {
            let mut headers = [0; HEADERS];
            headers[..16].copy_from_slice(group);
            if !inflow.pair.say(Class::Answer, *kind, &headers) {
                break;
            }
            inflow.groups.remove(0);
        }
    }

    fn handle(&self, rx: &mut Receiving, i: usize, pair: &Arc<Pair>, message: &Message) -> Taken {
        let group = || message.headers.first_chunk::<16>().copied().unwrap_or_default();
        match message.kind {
            Kind::Packet | Kind::ReadPacket => return self.packet(rx, pair, message),
            Kind::WantLanding => self.grants.answer_landing(pair, message),
            Kind::Landing | Kind::NoLanding => {
                let connection = self.grants.take_landing(pair, message.kind, &message.headers);
                rx.go_on(connection.iter().map(|connection| Weak::clone(connection.qp())));
            }
            Kind::WantLongRing => rx.pairs[i].owes_ring = true,
            Kind::LongRing => {
                let at = message.headers.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
                let granule = u32::try_from(at / GRANULE).unwrap_or(u32::MAX - LONG_GRANULES);
                let granules = granule..granule + LONG_GRANULES;
                match self.pairs.device().claims().use_of(pair.peer.node, granules, pair.incarnation) {
                    Ok(used) if at.is_multiple_of(GRANULE) => pair.got_long(at, used),
                    // It has died in the meantime.
                    Err(e) if e.errno() == libc::ESTALE => {}
                    _ => pair.distrust(),
                }
            }
            Kind::WantGrant => self.grants.answer_grant(pair, Want::decode(&message.headers)),
            Kind::WantPsns => {
                let want = Want::decode(&message.headers);
                let connection = self.connections.by_pair(want.qpn, pair);
                connection.iter().for_each(|connection| connection.path.put_psns.answer(pair, want));
            }
            Kind::Psns => {
                let reply = Grant::decode(&message.headers);
                let connection = self.connections.by_pair(reply.qpn, pair);
                connection.iter().for_each(|connection| connection.path.put_psns.take_answer(&reply));
            }
            Kind::Grant | Kind::NoGrant => self.grants.take_grant(pair, message.kind, &message.headers),
            Kind::Join => self.datagrams.enter_peer(pair.peer, group(), true),
            Kind::Leave => self.datagrams.enter_peer(pair.peer, group(), false),
        }
        Taken::Yes
    }

    fn packet(&self, rx: &mut Receiving, pair: &Arc<Pair>, message: &Message) -> Taken {
        let (landed, is_read) = (message.has_landed(), message.kind == Kind::ReadPacket);
        // The destination that a READ names is no payload.
        let len = if is_read { 0 } else { message.len as usize };
        let Some(at) = self.region.bytes(message.payload..message.payload + message.len) else {
            pair.distrust();
            return Taken::Yes;
        };
        let payload = match landed {
            true => Foreign::landed(len),
            // SAFETY: the message lies in the own region, which stays mapped; it is used in this call only.
            false => unsafe { Foreign::new(at, len) },
        };
        let mut packet = Packet { headers: Headers::default(), payload: &payload };
        let is_one = parse_headers_to(&message.headers, len, &mut packet.headers).is_ok();
        let is_read_of_words = message.len == READ_WORDS as u64 && message.payload.is_multiple_of(block::WORD);
        if !is_one || is_read && !is_read_of_words {
            pair.distrust();
            return Taken::Yes;
        }
        if packet.headers.deth.is_some() && !landed {
            return self.datagram_of(rx, pair, packet.headers, &payload);
        }
        let bth = &packet.headers.bth;
        if let Some(acknowledgement) = message.acknowledgement()
            && self.acknowledged(rx, pair, &with(bth, &acknowledgement)) == Taken::Later
        {
            return Taken::Later;
        }
        let Some(connection) = self.connections.by_pair(bth.dest_qpn, pair) else { return Taken::Yes };
        let Some(qp) = connection.qp().upgrade().filter(|qp| takes(qp, bth.opcode)) else {
            return Taken::Yes;
        };
        if opcode::is_request(bth.opcode) && qp.is_stopped() {
            // So does all that comes behind it from that process.
            return Taken::Later;
        }
        // The sender counts direct puts in both directions.
        let count = || {
            let bytes = if landed { 0 } else { len as u64 };
            qp.tally.add_both((Word::ReceivedPackets, 1), (Word::ReceivedBytes, bytes));
        };
        let is_told = || {
            let direct = &connection.path.direct;
            direct.landing.has_landed(&packet.headers, message) || direct.reads.has_landed(&packet.headers, message)
        };
        if landed && !is_told() {
            // It is of an earlier connection, say.
            return Taken::Yes;
        }
        if landed && !message.ends.is_empty() {
            message.ends.store(&self.region, message.payload, message.len);
        }
        if is_read {
            self.grants.take_read(pair, &connection, bth.psn, message);
        }
        if opcode::is_request(bth.opcode) {
            rx.deferred.catch_up(&connection);
            if connection.terms().service == Service::Uc && !self.is_ready(&connection, &qp, bth.opcode) {
                return Taken::Later;
            }
            count();
            let more = connection.request(&qp, &packet);
            if opcode::ends(bth.opcode) {
                connection.path.direct.landing.end(&qp, pair);
            }
            if more {
                rx.unanswered.push(connection);
            }
            return Taken::Yes;
        }
        connection.path.direct.reads.end(&qp, pair, &packet.headers, payload.length() as u64);
        Taken::of(rx.deferred.handle(&connection, &qp, &packet, landed, count))
    }

    /// An acknowledgement that came with another message.
    fn acknowledged(&self, rx: &mut Receiving, pair: &Arc<Pair>, headers: &Headers) -> Taken {
        let bth = &headers.bth;
        let Some(connection) = self.connections.by_pair(bth.dest_qpn, pair) else { return Taken::Yes };
        let Some(qp) = connection.qp().upgrade().filter(|qp| takes(qp, bth.opcode)) else {
            return Taken::Yes;
        };
        let packet = Packet { headers: *headers, payload: &Foreign::landed(0) };
        let count = || qp.tally.add(Word::ReceivedPackets, 1);
        Taken::of(rx.deferred.handle(&connection, &qp, &packet, true, count))
    }

    fn datagram_of(&self, rx: &mut Receiving, pair: &Pair, headers: Headers, payload: &Foreign) -> Taken {
        let mut bytes = std::mem::take(&mut rx.payload);
        let packet = |bytes| Packet { headers, payload: bytes };
        let is_taken = !copy_out(payload, &mut bytes)
            || self.datagrams.receive(&self.pairs, &self.mads, pair, &packet(&bytes[..]));
        rx.payload = bytes;
        Taken::of(is_taken)
    }

    /// Returns true if an unreliable message finds a receive, or is not to wait for one.
    fn is_ready(&self, connection: &Connection, qp: &Qp, operation: u8) -> bool {
        let takes_receive = opcode::is_send(operation) && opcode::starts(operation)
            || opcode::has_imm(operation) && opcode::is_write(operation);
        if !takes_receive {
            return true;
        }
        if qp.lacks_receive() {
            return !connection.path.no_receive.waits(now_ns());
        }
        connection.path.no_receive.serve();
        true
    }

    /// Sends the packets that the responders owe. Returns true if any did.
    fn answer(&self, rx: &mut Receiving) -> bool {
        let mut any = false;
        rx.unanswered.retain(|connection| {
            let before = connection.path.last_sent();
            let more = connection.qp().upgrade().is_some_and(|qp| connection.reply(&qp, |_, _| ()));
            any |= connection.path.last_sent() != before;
            more
        });
        any
    }
}
