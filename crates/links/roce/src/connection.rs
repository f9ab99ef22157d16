//! A connected QP as its packets see it: who its peer is, its responder, and its requester (`outbound`).

use super::backlog::Backlog;
use super::net::{Datagram, SendBatch};
use super::outbound::Outbound;
use super::pacing::Pace;
use super::packet_sink::{Destination, Lanes, PacketSink};
use super::poll_state::PollState;
use super::ports::LocalPort;
use super::rx::Visit;
use super::timers::Timer;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use vervain_carrier::responder::Inbound;
use vervain_carrier::responder_end::ResponderEnd;
use vervain_carrier::saved;
use vervain_carrier::terms::Terms;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::{Qp, QpAttr, QpType, Result};
use vervain_transport::{KeptRoom, KeptShare, Nanos, Responder, SavedResponder, Service, Window};
use vervain_wire::{Bth, TAKES_GAPS, opcode};

/// Most bytes that may be under way to one process. The default receive buffer of a socket holds some 400 KiB, a larger
/// one some megabytes; loss finds what is right in between.
const MOST_UNDER_WAY: u64 = 8 << 20;

/// Most bytes of packets that wait for a missing one, in all of this process's QPs.
const MOST_KEPT: u64 = 64 << 20;
static KEPT: LazyLock<Arc<KeptRoom>> = LazyLock::new(|| Arc::new(KeptRoom::new(MOST_KEPT)));

/// Longest time that an acknowledgement waits for the last packet of a long answer: half of the ACK timeouts that
/// programs choose, from 12 (17 ms) on. A peer with a shorter one sends again, and is answered then.
const LONGEST_HOLD: Nanos = 8_000_000;

/// No source port in particular.
const ANY: u32 = u32::MAX;

/// A connected QP.
pub(super) struct Connection {
    pub qp: Weak<Qp>,
    pub qpn: u32,
    pub terms: Terms,
    pub port: Arc<LocalPort>,
    pub to: Destination,
    pub lanes: Lanes,
    pub path: Arc<Path>,
    /// Over UC.
    pub pace: Option<Arc<Pace>>,
    /// State that it shares with the progress thread.
    pub poll_state: Arc<PollState>,
    /// Its requester; taken under the lock of the QP's send queue only.
    pub outbound: OwnerLock<Outbound>,
    pub responder: ResponderEnd,
    /// Acknowledgements that its responder may have to send.
    pub owed: Owed,
    /// Timer of its requester.
    pub timer: Timer,
    /// Source port of its answers; acknowledgements alone may leave by any. Once it has answered a READ by the port for
    /// streams it stays there: later packets must not overtake that answer, or the requester takes it for lost, and
    /// nothing shows when it has arrived.
    answers_by: AtomicU32,
    /// Number of its deferred packets. Only the thread that receives changes it.
    pub deferred: AtomicU32,
}

/// Packets that the responder of a connection may owe the peer.
#[derive(Default)]
pub(super) struct Owed {
    /// The responder may have something to send. Set before the program can know of what it answers; changed under the
    /// lock of `responder`.
    any: AtomicBool,
    /// The connection is among those whose responder has something to send (`rx::acks`).
    pub in_acks_due: AtomicBool,
    /// True if it is among those of its path that owe the peer an acknowledgement.
    in_path_acks_due: AtomicBool,
    /// Its last acknowledgement has travelled along with other packets.
    pub piggybacked: AtomicBool,
    /// Time at which the peer's last message of several packets began, and the nanoseconds that it took to come.
    began: AtomicU64,
    took: AtomicU64,
    /// Time until which its acknowledgement waits for the last packet of an answer; 0: it does not wait.
    held_until: AtomicU64,
}

impl Owed {
    /// Returns true if the responder may have something to send.
    #[inline]
    pub(super) fn may_owe(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Notes a packet of a request that has come at `now`.
    #[inline]
    pub(super) fn note(&self, now: Nanos, op: u8) {
        if opcode::starts(op) {
            self.began.store(now, Ordering::Relaxed);
        }
        if opcode::ends(op) {
            self.took.store(now.saturating_sub(self.began.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Makes the acknowledgement wait for the last packet of an answer that is begun at `now`: at most twice as long as
    /// the message took to come, and [`LONGEST_HOLD`]. False if that is no time, or if a NAK is due (`is_refusal_due`),
    /// for which the peer waits.
    pub(super) fn hold(&self, now: Nanos, is_refusal_due: bool) -> bool {
        let most = if is_refusal_due { 0 } else { (2 * self.took.load(Ordering::Relaxed)).min(LONGEST_HOLD) };
        self.held_until.store(if most > 0 { now + most } else { 0 }, Ordering::Relaxed);
        most > 0
    }

    /// Returns true if the acknowledgement waits at `now`.
    #[inline]
    pub(super) fn is_held(&self, now: impl FnOnce() -> Nanos) -> bool {
        let until = self.held_until.load(Ordering::Relaxed);
        until > 0 && until > now()
    }

    /// Makes the acknowledgement wait no longer.
    #[inline]
    pub(super) fn let_go(&self) {
        self.held_until.store(0, Ordering::Relaxed);
    }
}

/// The way to one process on another host: its QPs share what its socket has room for. Who finds the window closed has
/// something under way, and goes on with the answer to that.
pub(super) struct Path {
    pub window: OwnerLock<Window>,
    /// True if the process is one of Vervain's, which handles packets of several QPs in order.
    pub is_vervain: AtomicBool,
    /// Connections of a shared path that owe the peer an acknowledgement. A program that has got a message by one QP
    /// may answer it by another; over XRC it always does.
    acks_due: OwnerLock<Vec<Weak<Connection>>>,
    any_owes: AtomicBool,
    /// Packets of the peer that are deferred.
    pub backlog: Backlog,
    /// Its share of the room for packets that wait for a missing one.
    kept: Arc<KeptShare>,
}

impl Path {
    /// The path to a process, which `is_within_host` or not.
    pub(super) fn new(mtu: u32, is_within_host: bool) -> Path {
        let window = if is_within_host { Window::within_host } else { Window::new };
        Path {
            window: OwnerLock::new(window(mtu, MOST_UNDER_WAY)),
            is_vervain: AtomicBool::new(false),
            acks_due: OwnerLock::default(),
            any_owes: AtomicBool::new(false),
            backlog: Backlog::default(),
            kept: KEPT.share(),
        }
    }

    /// `connection` is about to owe an acknowledgement. Called before the program can know of the message.
    pub(super) fn owe(connection: &Arc<Connection>) {
        let path = &connection.path;
        let owes = &connection.owed.in_path_acks_due;
        // Each connection holds the path once. An exchange for each packet would take as long as much of the rest.
        if Arc::strong_count(path) > 1 && !owes.load(Ordering::Relaxed) && !owes.swap(true, Ordering::Relaxed) {
            path.acks_due.lock().push(Arc::downgrade(connection));
            path.any_owes.store(true, Ordering::Relaxed);
        }
    }

    /// `connection` is gone. Nothing may ever be sent by the path, and then nobody takes what waits there.
    fn forget(&self, connection: &Connection) {
        if connection.owed.in_path_acks_due.load(Ordering::Relaxed) {
            self.acks_due.lock().retain(|other| !std::ptr::eq(other.as_ptr(), connection));
        }
    }

    /// The connections of the path that have been about to owe an acknowledgement since the last call.
    pub(super) fn take_acks_due(&self) -> Vec<Arc<Connection>> {
        if !self.any_owes.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut acks_due = self.acks_due.lock();
        self.any_owes.store(false, Ordering::Relaxed);
        let taken: Vec<_> = acks_due.drain(..).filter_map(|connection| connection.upgrade()).collect();
        taken.iter().for_each(|connection| connection.owed.in_path_acks_due.store(false, Ordering::Relaxed));
        taken
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.path.forget(self);
    }
}

impl Connection {
    pub(super) fn new(
        poll_state: Arc<PollState>,
        qp: &Arc<Qp>,
        attr: &QpAttr,
        port: Arc<LocalPort>,
        remote: IpAddr,
        path: Arc<Path>,
        pace: Option<Arc<Pace>>,
    ) -> Connection {
        // Over UC some packets ask for credit and say so.
        let terms = Terms { introduces: qp.qp_type() != QpType::Uc, ..Terms::new(qp, attr) };
        let to = Destination::new(remote, &attr.ah.grh).ecn_capable();
        let lanes = if pace.is_some() { Lanes { small: 0, bulk: 0 } } else { Lanes::new(&to, qp.qp_num()) };
        Connection {
            qp: Arc::downgrade(qp),
            qpn: qp.qp_num(),
            terms,
            port,
            to,
            lanes,
            path,
            pace,
            poll_state,
            outbound: OwnerLock::default(),
            responder: ResponderEnd::new(terms.responder(attr)),
            owed: Owed::default(),
            timer: Timer::new(qp.qp_num()),
            answers_by: AtomicU32::new(ANY),
            deferred: AtomicU32::new(0),
        }
    }

    /// Packets of requests of the peer, in one visit to the responder; each is `noted`. Returns true if more than
    /// acknowledgements and NAKs results: kept packets are to be executed, or READs and atomics to be answered, be it
    /// some that were kept.
    #[inline]
    pub(super) fn requests<'d>(
        self: &Arc<Self>,
        visit: Visit<'_, impl Iterator<Item = Datagram<'d>>>,
        mut noted: impl FnMut(&Bth),
    ) -> bool {
        self.reply(visit.qp, |responder, host| {
            self.owed.any.store(true, Ordering::Relaxed);
            visit.each(|packet| {
                let bth = &packet.headers.bth;
                noted(bth);
                if bth.psn != responder.expected_psn() {
                    // Its sender may have missed an acknowledgement.
                    self.owed.let_go();
                }
                if !(opcode::is_send(bth.opcode) || opcode::is_write(bth.opcode)) {
                    self.answers(bth.opcode, packet.headers.reth.map_or(0, |reth| reth.length));
                    host.out.to.spread = self.back().spread;
                }
                let mut takes_gaps = false;
                if self.terms.service != Service::Uc {
                    // Both before the program can know of the message, and answer it.
                    if bth.mark != 0 {
                        takes_gaps = self.marked(bth, responder.expected_psn());
                    }
                    if bth.ack_request || responder.keeps_some() {
                        // Kept packets that follow this one may have asked for it.
                        Path::owe(self);
                    }
                }
                match takes_gaps {
                    true => responder.handle_introduction(packet, host, &self.path.kept),
                    false => responder.handle_packet(packet, host),
                }
            });
            if responder.has_refusal_due() {
                self.owed.let_go();
            }
            responder.has_kept_due() || responder.has_answers_due()
        })
        .unwrap_or(false)
    }

    /// A request of the peer has something in the reserved bits where a Vervain puts its marks. It counts for nothing
    /// unless the packet is the `expected` one: others may be a stranger's. Returns true if its requester takes reports
    /// of gaps.
    #[cold]
    fn marked(&self, bth: &Bth, expected: u32) -> bool {
        let is_next = bth.psn == expected;
        if is_next && bth.is_vervain() {
            self.path.is_vervain.store(true, Ordering::Relaxed);
        }
        is_next && bth.mark == TAKES_GAPS
    }

    /// Goes on with kept packets whose turn has come, and puts what the responder has to say into the port's batch, at
    /// most `packets` packets. Returns true if there is more to be done soon: nothing goes out of a QP that has ended.
    pub(super) fn answer(self: &Arc<Self>, qp: &Qp, packets: u32) -> bool {
        let more = self.reply(qp, |responder, host| {
            if responder.has_kept_due() {
                self.owed.any.store(true, Ordering::Relaxed);
                Path::owe(self);
            }
            let keeps_due = responder.execute_kept(host);
            keeps_due | (responder.poll_transmit(packets, host) && host.out.pushed > 0)
        });
        more.unwrap_or(false)
    }

    /// Puts an acknowledgement that is due into the batch of a thread that sends something anyway, so that both travel
    /// by one source port, unless the acknowledgement might overtake what READs and atomics have been answered with.
    pub(super) fn piggyback_ack(&self, qp: &Qp, batch: &mut SendBatch, spread: u32) {
        if !self.owed.may_owe() {
            return;
        }
        self.reply_in(qp, batch, |responder, host| {
            if responder.has_ack_due() {
                if self.joins(spread) {
                    host.out.to.spread = spread;
                }
                responder.poll_transmit(1, host);
                self.owed.piggybacked.store(true, Ordering::Relaxed);
            }
            self.owed.any.store(responder.has_ack_due(), Ordering::Relaxed);
        });
    }

    /// A request is about to be answered with more than an acknowledgement.
    fn answers(&self, op: u8, length: u32) {
        let is_read = opcode::operation(op) == opcode::READ_REQUEST;
        let spread = self.lanes.of(if is_read { length.into() } else { 0 });
        if spread != self.lanes.small || self.answers_by.load(Ordering::Relaxed) == ANY {
            self.answers_by.store(spread, Ordering::Relaxed);
        }
    }

    /// Returns true if its acknowledgements may leave by this source port.
    #[inline]
    pub(super) fn joins(&self, spread: u32) -> bool {
        let by = self.answers_by.load(Ordering::Relaxed);
        by == ANY || by == spread
    }

    /// Destination of its responder's packets.
    fn back(&self) -> Destination {
        let by = self.answers_by.load(Ordering::Relaxed);
        Destination { spread: if by == ANY { self.lanes.small } else { by }, ..self.to }
    }

    /// Puts an acknowledgement that is due into the port's batch, unless somebody is in the middle of something; false
    /// if that is another thread.
    pub(super) fn acknowledge_if_free(&self, qp: &Qp) -> bool {
        let mut batch = match self.port.try_batch() {
            Ok(batch) => batch,
            Err(comes_free) => return !comes_free,
        };
        let batch = &mut *batch;
        let acknowledged =
            self.responder.try_with(qp, move || PacketSink::new(batch, self.back(), &qp.tally), acknowledge);
        acknowledged.map_or_else(|comes_free| !comes_free, |_| true)
    }

    fn reply<R>(&self, qp: &Qp, f: impl FnOnce(&mut Responder, &mut Inbound<'_, PacketSink<'_>>) -> R) -> Option<R> {
        self.reply_in(qp, &mut self.port.batch(), f)
    }

    /// The batch is taken first, always.
    fn reply_in<R>(
        &self,
        qp: &Qp,
        batch: &mut SendBatch,
        f: impl FnOnce(&mut Responder, &mut Inbound<'_, PacketSink<'_>>) -> R,
    ) -> Option<R> {
        self.responder.with(qp, move || PacketSink::new(batch, self.back(), &qp.tally), f)
    }

    /// Record from which another responder can go on, for a QP that is stopped.
    pub(super) fn save_responder(&self, qp: &Qp) -> Option<SavedResponder> {
        let mut saved = self.reply(qp, |responder, host| responder.save(host))?;
        saved::name_by_places(qp, &mut saved).then_some(saved)
    }

    /// Goes on in the place of a responder that was saved.
    pub(super) fn resume_responder(&self, qp: &Qp, saved: SavedResponder) -> Result<()> {
        self.responder.resume(qp, saved, Some(&self.path.kept))?;
        self.owed.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns true if packets of `service` are for such a QP; None: reports of gaps.
    pub(super) fn speaks(&self, service: Option<opcode::Service>) -> bool {
        let Some(service) = service else { return self.terms.service != Service::Uc };
        let own = match self.terms.service {
            Service::Rc => opcode::Service::Rc,
            Service::Uc => opcode::Service::Uc,
            Service::Xrc => opcode::Service::Xrc,
        };
        own == service
    }

    /// Closes the connection of a QP that is reset or gone. It acknowledges the packets that it has accepted, or its
    /// peer would wait for ever, and sends its packets that wait for others.
    pub(super) fn close(&self, qp: &Qp) {
        self.reply(qp, acknowledge);
        self.port.flush();
        self.responder.close();
    }

    /// Returns true if an acknowledgement is due.
    pub(super) fn owes_acknowledgement(&self) -> bool {
        self.owed.may_owe() && self.responder.has_ack_due()
    }
}

/// Sends an acknowledgement that is due.
fn acknowledge(responder: &mut Responder, host: &mut Inbound<'_, PacketSink<'_>>) {
    if responder.has_ack_due() {
        responder.poll_transmit(1, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u8 = opcode::RC | opcode::WRITE_FIRST;
    const LAST: u8 = opcode::RC | opcode::WRITE_LAST;
    const ONLY: u8 = opcode::RC | opcode::WRITE_ONLY;

    #[test]
    fn an_acknowledgement_waits_for_an_answer_twice_as_long_as_its_message_took() {
        let owed = Owed::default();
        assert!(!owed.hold(500, false) && !owed.is_held(|| 0), "no message has come");
        owed.note(1_000, FIRST);
        owed.note(1_300, LAST);
        assert!(owed.hold(2_000, false));
        assert_eq!([2_599, 2_600].map(|now| owed.is_held(|| now)), [true, false]);
        owed.let_go();
        assert!(!owed.is_held(|| 2_000));
        assert!(!owed.hold(2_000, true) && !owed.is_held(|| 2_000), "the peer waits for the NAK");
        owed.note(3_000, ONLY);
        assert!(!owed.hold(3_000, false) && !owed.is_held(|| 0), "the last message took no time");
        owed.note(4_000, FIRST);
        owed.note(4_000 + 2 * LONGEST_HOLD, LAST);
        assert!(owed.hold(0, false) && !owed.is_held(|| LONGEST_HOLD));
    }
}
