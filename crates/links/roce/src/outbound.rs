//! The requester's half of a connection by RoCE packets, used under the lock of its QP's send queue.

use super::connection::{Connection, Path};
use super::net::{Datagram, SendBatch};
use super::pacing::Paced;
use super::packet_sink::{Destination, PacketSink};
use super::ports::MAX_CORKED;
use super::rx::Visit;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_carrier::PacketOut;
use vervain_carrier::requester::{RequesterEnd, SendQueueHost};
use vervain_carrier::saved::{self, SavedConnection};
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::process::Progress;
use vervain_hca::qp::carrier::{self, PathAttr, Psns};
use vervain_hca::qp::remote::{SenderAccess, Sends};
use vervain_hca::{Qp, Result, now_ns};
use vervain_transport::{Nanos, Refused, Requester, RequesterCounters, Sent, Window};
use vervain_wire::{Headers, opcode};

/// Bytes and packets that one call sends at most, so that posting stays asynchronous, and takes no longer (some 100 µs)
/// than the time after which the progress thread believes that the program no longer polls.
const BUDGET: u32 = 384 << 10;
const BUDGET_PACKETS: u32 = 384;

/// Posts that wait to be begun together are at most so many, or so many more than are under way, up to [`MAX_CORKED`]:
/// a train costs little more than a packet, but a peer that has had all before it is idle until it comes.
const FEW_TOGETHER: u32 = 32;
const MORE_THAN_UNDER_WAY: u32 = 16;

/// Why a requester goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trigger {
    /// The program has posted, or a limit that is not the requester's own has gone.
    Post,
    /// Posts that have waited are begun, by the thread that sends what waits in batches.
    Begin,
    /// The receiving thread has a packet for it, and sends the packets that result from a whole poll together.
    Packet,
    /// Its time has come.
    Timeout,
}

/// The sending half of a connected QP.
#[derive(Default)]
pub(super) struct Outbound {
    end: RequesterEnd,
    /// The source port. It changes when nothing is under way, so that no packet overtakes another.
    spread: u32,
    /// One past the last request at the last post.
    seen: u32,
    /// Posts since the requester last went on, which wait to be begun together.
    waiting_posts: u32,
}

/// Packets of this path MTU that one call sends at most.
#[inline]
fn budget(mtu: u32) -> u32 {
    BUDGET_PACKETS.min(BUDGET / mtu)
}

impl Outbound {
    /// Returns true if the requester need not go on yet: earlier messages are under way, and what was posted is a small
    /// one, which waits for the next. Together they cost one visit to the requester, and one system call. Whoever sends
    /// the corked packets lets it go on, by a call that posts nothing.
    #[inline]
    fn may_wait(&self, posted: u32, connection: &Connection, sends: &Sends<'_>) -> bool {
        let last = sends.tail().wrapping_sub(1);
        let under_way = self.end.under_way() as u32;
        posted == 1
            && under_way > 0
            && self.waiting_posts + 1 < (under_way + MORE_THAN_UNDER_WAY).clamp(FEW_TOGETHER, MAX_CORKED)
            && connection.pace.is_none()
            && sends.get(last).is_some_and(|last| last.length <= connection.terms.mtu.into() && !last.opcode.is_local())
            && connection.poll_state.posts_may_wait()
    }

    /// Packets that answer requests of this QP.
    #[inline]
    fn responses<'d>(
        &mut self,
        connection: &Connection,
        sends: &mut Sends<'_>,
        now: Nanos,
        visit: Visit<'_, impl Iterator<Item = Datagram<'d>>>,
    ) -> Progress {
        self.run(connection, sends, now, Trigger::Packet, |requester, window, host| {
            visit.each(|packet| requester.handle_packet(now, packet, window, host));
        })
    }

    /// The time that the requester asked for may have come. If it has, and not everything `is_taken_in` that came until
    /// then, only `late` is set.
    fn timeout(
        &mut self,
        connection: &Connection,
        sends: &mut Sends<'_>,
        now: Nanos,
        is_taken_in: bool,
        late: &mut bool,
    ) -> Progress {
        self.run(connection, sends, now, Trigger::Timeout, |requester, window, host| {
            let is_late = requester.next_timeout().is_some_and(|at| at <= now);
            if is_late && is_taken_in {
                requester.handle_timeout(now, window, host);
            }
            *late |= is_late;
        })
    }

    /// Makes the requester do `f`, and then everything that it can do now.
    fn run(
        &mut self,
        connection: &Connection,
        sends: &mut Sends<'_>,
        now: Nanos,
        trigger: Trigger,
        f: impl FnOnce(&mut Requester, &mut Window, &mut SendQueueHost<'_, '_, RequestSink<'_, '_, '_>>),
    ) -> Progress {
        let Outbound { end, spread, waiting_posts, .. } = self;
        *waiting_posts = 0;
        if end.start(sends, |psn, head| connection.terms.requester(&sends.path(), psn, head)).is_none() {
            return Progress::Idle;
        }
        let qp = sends.qp();
        let posting = matches!(trigger, Trigger::Post | Trigger::Begin);
        if posting {
            connection.poll_state.answers.posted(now);
        }
        let (mut f, was_idle) = (Some(f), end.is_idle());
        if was_idle {
            *spread = connection.lanes.of(sends.get(end.next()).map_or(0, |posted| posted.length));
        }
        let to = Destination { spread: *spread, ..connection.to };
        let mut held_back_until = None;
        let acks_due = PathAcks::of(connection, posting);
        let acknowledge = |sends: &Sends<'_>, batch: &mut SendBatch| {
            connection.piggyback_ack(sends.qp(), batch, to.spread);
            acks_due.others(now).for_each(|(connection, qp)| connection.piggyback_ack(qp, batch, to.spread));
        };
        let sent = loop {
            let mut window = connection.path.window.lock();
            let mut paced = connection.pace.as_ref().map(|pace| pace.lock(connection.qpn, now));
            let mut batch = connection.port.batch();
            let position = ack_position(connection, sends, end.next(), posting, to.spread);
            // Other QPs may owe some too, of which a train takes one.
            let joins_train = acks_due.is_empty(now) && connection.port.port.takes_trains();
            let with_last = match position {
                AckPosition::Last => connection.owed.is_held(|| now),
                AckPosition::WithLast => joins_train,
                AckPosition::WithLastOfMany => {
                    joins_train && connection.owed.hold(now, connection.responder.has_refusal_due())
                }
                AckPosition::First => false,
            };
            if position != AckPosition::Last && !with_last {
                acknowledge(sends, &mut batch);
            }
            let with_last = with_last && connection.owes_acknowledgement();
            let tally = &qp.tally;
            let to = paced.as_ref().map_or(to, |paced| paced.destination(to));
            let mut out = PacketSink::new(&mut batch, to, tally);
            let budget = budget(connection.terms.mtu);
            let sink = RequestSink { out: &mut out, paced: paced.as_mut(), left: budget, with_last };
            let Some((requester, mut host)) = end.host(sends, sink) else { return Progress::Idle };
            if let Some(f) = f.take() {
                f(requester, &mut window, &mut host);
            }
            let sent = requester.poll_transmit(now, &mut window, &mut host);
            let made = budget - host.out.left;
            drop(window);
            if let Some(mut paced) = paced
                && paced.held_back_until.is_some()
            {
                held_back_until = paced.held_back_until;
                paced.wait(sends.qp());
            }
            if sent == Sent::All {
                connection.owed.let_go();
            }
            if !out.batch.is_empty() {
                if !connection.owed.is_held(|| now) {
                    acknowledge(sends, out.batch);
                }
                // While earlier messages are under way, a small one can wait for the next: together they cost as much
                // as one alone. So can the beginning of a train that the next call goes on with. A poll that finds
                // nothing sends them.
                let may_wait = sent == Sent::HostFull
                    || posting && !was_idle && made == 1 && sent == Sent::All && connection.poll_state.posts_may_wait();
                flush_or_cork(connection, now, trigger, may_wait, out.batch);
            }
            drop(out);
            drop(batch);
            if !end.do_local(sends) {
                break sent;
            }
        };
        end.count(&qp.tally);
        connection.poll_state.sends();
        connection.poll_state.set_timer(&connection.timer, end.next_timeout());
        match held_back_until {
            Some(until) => Progress::Wait(until),
            None if sent == Sent::HostFull => Progress::More,
            None => Progress::Idle,
        }
    }
}

/// Sends what is in the batch, or leaves it to be sent with what follows.
#[inline]
fn flush_or_cork(connection: &Connection, now: Nanos, trigger: Trigger, may_wait: bool, batch: &mut SendBatch) {
    if matches!(trigger, Trigger::Packet | Trigger::Begin) {
        connection.poll_state.cork_follow_up();
    } else if !may_wait || !connection.port.cork() {
        connection.port.flush_batch(batch);
    } else {
        connection.poll_state.cork_post(|| now);
    }
}

/// Connections of a path that may owe the peer an acknowledgement, taken from the path's list to be sent with a post.
/// Those that still owe one at the end go back there: the post may have nothing to send now.
struct PathAcks<'a> {
    poster: &'a Connection,
    taken: Vec<(Arc<Connection>, Arc<Qp>)>,
}

impl<'a> PathAcks<'a> {
    /// Those of the path of `poster`; none unless it is `posting`.
    #[inline]
    fn of(poster: &'a Connection, posting: bool) -> PathAcks<'a> {
        let taken = if posting { poster.path.take_acks_due() } else { Vec::new() };
        let with_qp = |connection: Arc<Connection>| connection.qp.upgrade().map(|qp| (connection, qp));
        PathAcks { poster, taken: taken.into_iter().filter_map(with_qp).collect() }
    }

    /// All but the poster's, and those that wait for an answer of their own at `now`.
    #[inline]
    fn others(&self, now: Nanos) -> impl Iterator<Item = &(Arc<Connection>, Arc<Qp>)> {
        let is_other = move |other: &Connection| !std::ptr::eq(other, self.poster) && !other.owed.is_held(|| now);
        self.taken.iter().filter(move |(other, _)| is_other(other))
    }

    /// Returns true if no other connection may owe one now.
    #[inline]
    fn is_empty(&self, now: Nanos) -> bool {
        self.others(now).next().is_none()
    }
}

impl Drop for PathAcks<'_> {
    #[inline]
    fn drop(&mut self) {
        self.taken.iter().filter(|(connection, _)| connection.owed.may_owe()).for_each(|(it, _)| Path::owe(it));
    }
}

/// Place of an earlier message's acknowledgement when a request is posted. The peer is to get it before the last packet
/// of the request or along with it, or a program would get an answer before the completion of its own message, which an
/// HCA acknowledges on arrival.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AckPosition {
    /// After everything: what is posted is one packet, and both are one train.
    Last,
    /// In the train of the last packet. If it went before, the peer would get it alone, and a program that has seen its
    /// own message complete may look for the answer in its memory, without a poll that takes packets in.
    WithLast,
    /// The same, and more than one call sends the request.
    WithLastOfMany,
    /// Before everything.
    First,
}

/// The position when requests from `next` on are sent by source port `spread`, because they were posted or not.
#[inline]
fn ack_position(connection: &Connection, sends: &Sends<'_>, next: u32, posting: bool, spread: u32) -> AckPosition {
    // A device takes packets as they come, and so does its program what follows from them.
    if !connection.path.is_vervain.load(Ordering::Relaxed) {
        return AckPosition::First;
    }
    if !posting {
        return AckPosition::Last;
    }
    if !connection.joins(spread) {
        // It makes a train of its own.
        return AckPosition::First;
    }
    let Some(posted) = (match sends.tail().wrapping_sub(next) {
        0 => None,
        1 => sends.get(next).filter(|posted| !posted.opcode.answers()),
        _ => return AckPosition::First,
    }) else {
        return AckPosition::Last;
    };
    let mtu = u64::from(connection.terms.mtu);
    match posted.length {
        // A SEND of nothing is smaller than an acknowledgement, and ends a train.
        0 => AckPosition::First,
        length if length <= mtu => AckPosition::Last,
        length if length <= u64::from(budget(connection.terms.mtu)) * mtu => AckPosition::WithLast,
        _ => AckPosition::WithLastOfMany,
    }
}

impl carrier::Connection for Connection {
    fn modified(&self, path: &PathAttr) {
        self.outbound.lock().end.modify(&self.terms.requester(path, path.sq_psn, 0));
        self.responder.set_max_dest_rd_atomic(path.max_dest_rd_atomic);
    }

    fn advance(&self, sends: &mut Sends<'_>) -> Progress {
        let mut outbound = self.outbound.lock();
        let tail = sends.tail();
        let posted = tail.wrapping_sub(std::mem::replace(&mut outbound.seen, tail));
        if posted > 0 {
            sends.qp().process().packets.sleeper().posts();
        }
        if outbound.may_wait(posted, self, sends) {
            // A thread may have taken it off the list and been kept from going on.
            if outbound.waiting_posts == 0 || !self.poll_state.is_corked() {
                self.poll_state.cork_requests(&self.qp);
            }
            outbound.waiting_posts += 1;
            return Progress::Idle;
        }
        let begins = outbound.waiting_posts > 0 && posted == 0;
        let trigger = if begins { Trigger::Begin } else { Trigger::Post };
        // Besides what is left to be sent only a packet or a timeout comes next, and both come by themselves.
        outbound.run(self, sends, now_ns(), trigger, |_, _, _| ())
    }

    fn psns(&self) -> Psns {
        let next = self.outbound.lock().end.next_psn();
        Psns { next, expected: self.responder.expected_psn() }
    }

    fn has_begun(&self) -> bool {
        self.outbound.lock().end.has_begun()
    }

    fn waits_for_receive(&self) -> bool {
        self.outbound.lock().end.waits_for_receive()
    }

    /// Packets that have left may be lost, and are not sent again once their QP is gone, like an adapter's: a wait for
    /// the acknowledgement would hold up a program that destroys many QPs whose peers are gone.
    fn holds_back(&self, sends: &Sends<'_>) -> bool {
        let end = &self.outbound.lock().end;
        end.has_unsent(sends) && !end.waits_for_peer()
    }

    fn save(&self, qp: &Qp) -> Option<Vec<u8>> {
        let requester = self.outbound.lock().end.save();
        SavedConnection { requester, responder: self.save_responder(qp)? }.encode()
    }

    fn resume(&self, saved: &[u8], sends: &mut Sends<'_>) -> Result<()> {
        let SavedConnection { requester, responder } = SavedConnection::decode(saved)?;
        self.resume_responder(sends.qp(), responder)?;
        let Some(requester) = requester else { return Ok(()) };
        let path = sends.path();
        let mut batch = self.port.batch();
        let tally = &sends.qp().tally;
        let mut out = PacketSink::new(&mut batch, self.to, tally);
        // Nothing is sent yet.
        let sink = RequestSink { out: &mut out, paced: None, left: 0, with_last: false };
        let config = |psn, head| self.terms.requester(&path, psn, head);
        let resumed = self.outbound.lock().end.resume(sends, sink, &requester, config);
        resumed.map_err(saved::unusable)
    }

    fn disconnected(&self) {
        self.responder.drop_kept();
        let mut outbound = self.outbound.lock();
        let Some(counters) = outbound.end.counters().copied() else { return };
        let mut window = self.path.window.lock();
        log::debug!("QP {:#x}: {counters:?}, {:?}", self.qpn, *window);
        log::debug!("QP {:#x}: {:?}", self.qpn, self.port.port.counters());
        outbound.end.abandon(&mut window);
    }
}

impl Connection {
    /// Packets that answer requests of this QP have come, and are handled in one visit to the requester: what they let
    /// it send leaves together. [`SenderAccess::Ran`] once it has had them; else they are as they were.
    #[inline]
    pub(super) fn responses<'d>(
        self: &Arc<Self>,
        now: Nanos,
        visit: Visit<'_, impl Iterator<Item = Datagram<'d>>>,
    ) -> SenderAccess {
        visit.qp.with_sends(self, |sends| self.outbound.lock().responses(self, sends, now, visit))
    }

    /// The time that its requester asked for may have come. If it has, and not everything `is_taken_in` that came until
    /// then, only `late` is set.
    pub(super) fn timeout(self: &Arc<Self>, qp: &Qp, now: Nanos, is_taken_in: bool, late: &mut bool) -> SenderAccess {
        qp.with_sends(self, |sends| self.outbound.lock().timeout(self, sends, now, is_taken_in, late))
    }

    /// Counters of its requester; None: there is none.
    pub(super) fn requester_counters(&self) -> Option<RequesterCounters> {
        self.outbound.lock().end.counters().copied()
    }
}

/// The way out for a requester's packets: the batch of the port, as far as this call and, over UC, the peer allow.
struct RequestSink<'a, 'b, 'p> {
    out: &'a mut PacketSink<'b>,
    /// Over UC.
    paced: Option<&'a mut Paced<'p>>,
    /// Packets that may still be sent.
    left: u32,
    /// An acknowledgement follows the last packet of a message, in the same train.
    with_last: bool,
}

impl PacketOut for RequestSink<'_, '_, '_> {
    type Data = [u8];

    #[inline]
    fn has_room(&self) -> bool {
        self.left != 0
    }

    #[inline]
    fn push(&mut self, headers: &Headers, from: &Pieces) -> std::result::Result<(), Refused> {
        self.left -= 1;
        if self.with_last && opcode::is_last(headers.bth.opcode) {
            self.out.batch.keep_together();
        }
        match &mut self.paced {
            Some(paced) => paced.push(self.out, headers, from),
            None => self.out.push(headers, from),
        }
    }
}
