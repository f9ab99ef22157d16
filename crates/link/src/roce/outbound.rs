//! The requester's view of a send queue, and the half of a connection that the send queue owns.

use super::Engine;
use super::connection::{Connection, PKEY};
use super::inbound::wc_status;
use super::net::SendBatch;
use super::pacing::Paced;
use super::packet_sink::{Destination, PacketSink};
use super::port_counters;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::qp::remote::{PathAttr, Progress, Psns, Sender, Sends};
use vervain_hca::{Opcode, Qp, now_ns};
use vervain_transport::{
    Nanos, Operation, Payload, Refused, Request, Requester, RequesterConfig, RequesterCounters, RequesterHost, Sent,
    Service, Status, Transmit, Window,
};
use vervain_wire::{Packet, opcode};

/// Packets that one call sends at most, so that posting stays asynchronous, and takes no longer (some 100 µs) than the time
/// after which the progress thread believes that the program no longer polls.
const BUDGET: u32 = 96;

/// Why a requester goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trigger {
    /// The program has posted, or a limit that is not the requester's own has gone.
    Post,
    /// Whoever receives has a packet for it, and sends what follows from all packets of a poll together.
    Packet,
    /// Its time has come.
    Timeout,
}

/// The sending half of a connected QP.
pub(super) struct Outbound {
    engine: Arc<Engine>,
    connection: Arc<Connection>,
    /// Made when the QP is ready to send.
    requester: Option<Requester>,
    /// What of its counters has been told.
    told: RequesterCounters,
    /// Requests that the send queue has had and the requester has not: those that this process did alone.
    skipped: u32,
    /// One past the last request that the requester has seen in RTS; in SQD no later one begins.
    begun: Cell<u32>,
    /// The source port. It changes when nothing is under way, so that no packet overtakes another.
    spread: u32,
}

impl Outbound {
    pub(super) fn new(engine: Arc<Engine>, connection: Arc<Connection>) -> Outbound {
        Outbound {
            engine,
            connection,
            requester: None,
            told: RequesterCounters::default(),
            skipped: 0,
            begun: Cell::new(0),
            spread: 0,
        }
    }

    /// Whether this is the sending half of `connection`, and not of one that its QP has had before or since.
    pub(super) fn belongs_to(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }

    /// A packet that answers a request of this QP.
    pub(super) fn response(&mut self, sends: &mut Sends<'_>, now: Nanos, packet: &Packet<'_>) -> Progress {
        self.run(sends, now, Trigger::Packet, |requester, window, host| {
            requester.handle_packet(now, packet, window, host);
        })
    }

    /// The time that the requester asked for may have come. If it has, and not everything `is_taken_in` that came until then,
    /// only `late` is set.
    pub(super) fn timeout(
        &mut self,
        sends: &mut Sends<'_>,
        now: Nanos,
        is_taken_in: bool,
        late: &mut bool,
    ) -> Progress {
        self.run(sends, now, Trigger::Timeout, |requester, window, host| {
            let is_late = requester.next_timeout().is_some_and(|at| at <= now);
            if is_late && is_taken_in {
                requester.handle_timeout(now, window, host);
            }
            *late |= is_late;
        })
    }

    /// What the requester has counted, if there is one.
    pub(super) fn counters(&self) -> Option<RequesterCounters> {
        self.requester.as_ref().map(|requester| *requester.counters())
    }

    /// Has the requester do `f`, and then everything that it can do now.
    fn run(
        &mut self,
        sends: &mut Sends<'_>,
        now: Nanos,
        trigger: Trigger,
        f: impl FnOnce(&mut Requester, &mut Window, &mut Requests<'_, '_, '_, '_>),
    ) -> Progress {
        let Outbound { connection, requester, told, skipped, begun, spread, .. } = self;
        if requester.is_none() && !sends.may_begin() {
            return Progress::Idle;
        }
        // One that has ended may be wanted again: UC goes from SQE back to RTS, with the PSN that comes next.
        let next_psn = match requester {
            Some(requester) if !requester.has_ended() || !sends.may_begin() => None,
            Some(ended) => Some(ended.next_psn()),
            None => Some(sends.path().sq_psn),
        };
        if let Some(psn) = next_psn {
            begun.set(sends.head());
            *skipped = 0;
            *told = RequesterCounters::default();
            *requester = Some(Requester::new(&config(connection, &sends.path(), psn, sends.head())));
        }
        let Some(requester) = requester else { return Progress::Idle };
        let qp = sends.qp();
        let posting = trigger == Trigger::Post;
        let (mut f, was_idle) = (Some(f), requester.is_idle());
        if was_idle {
            *spread = connection.lanes.of(sends.get(begun.get()).map_or(0, |posted| posted.length));
        }
        let to = Destination { spread: *spread, ..connection.to };
        let mut held_back_until = None;
        let acks_due = if posting { acks_due(connection) } else { Vec::new() };
        let acknowledge = |sends: &Sends<'_>, batch: &mut SendBatch| {
            connection.piggyback_ack(sends.qp(), batch, to.spread);
            acks_due.iter().for_each(|(connection, qp)| connection.piggyback_ack(qp, batch, to.spread));
        };
        let sent = loop {
            let mut window = connection.path.window.lock();
            let mut paced = connection.pace.as_ref().map(|pace| pace.lock(connection.qpn, now));
            let mut batch = connection.port.batch();
            let position = match (connection.path.is_vervain.load(Ordering::Relaxed), posting) {
                // A device takes packets as they come, and so does its program what follows from them.
                (false, _) => AckPosition::First,
                (true, true) if connection.joins(to.spread) => ack_position(sends, begun.get()),
                // It makes a train of its own.
                (true, true) => AckPosition::First,
                (true, false) => AckPosition::Last,
            };
            // Other QPs may owe some too, of which a train takes one.
            let with_last =
                position == AckPosition::WithLast && acks_due.is_empty() && connection.port.port.takes_trains();
            if position != AckPosition::Last && !with_last {
                acknowledge(sends, &mut batch);
            }
            let with_last = with_last && connection.owes_acknowledgement();
            let tally = &qp.tally;
            let mut out = PacketSink { batch: &mut batch, to, tally, pushed: 0 };
            let paced_in_hand = paced.as_mut();
            let mut host = Requests {
                sends,
                skipped: *skipped,
                begun,
                out: &mut out,
                paced: paced_in_hand,
                left: BUDGET,
                with_last,
                reason: None,
            };
            if let Some(f) = f.take() {
                f(requester, &mut window, &mut host);
            }
            let sent = requester.poll_transmit(now, &mut window, &mut host);
            let made = BUDGET - host.left;
            drop(window);
            if let Some(mut paced) = paced
                && paced.held_back_until.is_some()
            {
                held_back_until = paced.held_back_until;
                paced.wait(sends.qp());
            }
            if !out.batch.is_empty() {
                acknowledge(sends, out.batch);
                // While earlier messages are under way, a small one can wait for the next: together they cost as much as
                // one alone. So can the beginning of a train that the next call goes on with. A poll that finds nothing sends
                // them.
                let may_wait = sent == Sent::HostFull || posting && !was_idle && made == 1 && sent == Sent::All;
                if trigger == Trigger::Packet {
                    self.engine.cork_follow_up();
                } else if !may_wait || !connection.port.cork() {
                    connection.port.flush_batch(out.batch);
                } else {
                    self.engine.cork_post();
                }
            }
            drop(batch);
            // A bind or an invalidation waits for everything before it, and everything after it waits for that.
            if sends.head() == sends.tail()
                || !sends.is_local(sends.head())
                || !requester.is_idle()
                || !sends.may_begin()
            {
                break sent;
            }
            sends.do_local();
            *skipped = skipped.wrapping_add(1);
            begun.set(sends.head());
        };
        port_counters::of_requester(&qp.tally, requester.counters(), told);
        self.engine.sends();
        self.engine.set_timer(connection, requester.next_timeout());
        match held_back_until {
            Some(until) => Progress::Wait(until),
            None if sent == Sent::HostFull => Progress::More,
            None => Progress::Idle,
        }
    }
}

/// Other QPs of the path that may owe the peer an acknowledgement.
#[inline]
fn acks_due(connection: &Arc<Connection>) -> Vec<(Arc<Connection>, Arc<Qp>)> {
    let acks_due = connection.path.take_acks_due().into_iter();
    let others = acks_due.filter(|other| !Arc::ptr_eq(other, connection));
    others.filter_map(|other| other.qp.upgrade().map(|qp| (other, qp))).collect()
}

/// Where the acknowledgement of an earlier message goes when something is posted. The peer is to take it before the last
/// packet of that or along with it, or a program would get an answer before the completion of its own message, which an HCA
/// acknowledges when it comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AckPosition {
    /// After everything: what is posted is one packet, and both are one train.
    Last,
    /// In the train of the last packet. If it went before, the peer would get it alone, and a program that has seen its own
    /// message complete may look for the answer in its memory, without a poll that takes packets in.
    WithLast,
    /// Before everything.
    First,
}

/// The position when requests from `next` on are posted.
#[inline]
fn ack_position(sends: &Sends<'_>, next: u32) -> AckPosition {
    let Some(posted) = (match sends.tail().wrapping_sub(next) {
        0 => None,
        1 => sends.get(next).filter(|posted| !posted.opcode.answers()),
        _ => return AckPosition::First,
    }) else {
        return AckPosition::Last;
    };
    match posted.length.div_ceil(sends.path().mtu_bytes.into()) {
        // A SEND of nothing is smaller than an acknowledgement, and ends a train.
        0 => AckPosition::First,
        1 => AckPosition::Last,
        // What takes longer to send would keep the peer's own message from completing.
        packets if packets <= BUDGET.into() => AckPosition::WithLast,
        _ => AckPosition::First,
    }
}

/// What a requester is made from. `first_psn` and `first_request` matter at its start only.
fn config(connection: &Connection, path: &PathAttr, first_psn: u32, first_request: u32) -> RequesterConfig {
    RequesterConfig {
        service: connection.service,
        dest_qpn: path.dest_qpn,
        pkey: PKEY,
        migrated: connection.migrated,
        // Over UC some packets ask for credit and say so.
        introduces: connection.service != Service::Uc,
        first_psn,
        first_request,
        mtu: path.mtu_bytes,
        timeout: path.timeout,
        retry_cnt: path.retry_cnt,
        rnr_retry: path.rnr_retry,
        max_rd_atomic: path.max_rd_atomic,
    }
}

impl Sender for Outbound {
    fn modified(&mut self, path: &PathAttr) {
        if let Some(requester) = &mut self.requester {
            requester.modify(&config(&self.connection, path, path.sq_psn, 0));
        }
        self.connection.set_max_dest_rd_atomic(path.max_dest_rd_atomic);
    }

    fn advance(&mut self, sends: &mut Sends<'_>) -> Progress {
        // Besides what is left to be sent only a packet or a timeout comes next, and both come by themselves.
        self.run(sends, now_ns(), Trigger::Post, |_, _, _| ())
    }

    fn psns(&self) -> Psns {
        let next = self.requester.as_ref().map(Requester::next_psn);
        Psns { next, expected: self.connection.expected_psn() }
    }

    fn has_begun(&self) -> bool {
        self.requester.as_ref().is_some_and(|r| !r.is_idle())
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        if let Some(requester) = &mut self.requester {
            let mut window = self.connection.path.window.lock();
            log::debug!("QP {:#x}: {:?}, {:?}", self.connection.qpn, requester.counters(), *window);
            log::debug!("QP {:#x}: {:?}", self.connection.qpn, self.connection.port.port.counters());
            requester.abandon(&mut window);
        }
    }
}

/// A send queue while its requester works.
struct Requests<'a, 's, 'b, 'p> {
    sends: &'a mut Sends<'s>,
    skipped: u32,
    begun: &'a Cell<u32>,
    out: &'a mut PacketSink<'b>,
    /// Over UC.
    paced: Option<&'a mut Paced<'p>>,
    /// Packets that may still be sent.
    left: u32,
    /// An acknowledgement follows the last packet of a message, in the same train.
    with_last: bool,
    /// Why the request that was refused last was refused.
    reason: Option<u32>,
}

impl RequesterHost for Requests<'_, '_, '_, '_> {
    #[inline]
    fn request(&self, n: u32) -> Option<Request> {
        let at = n.wrapping_add(self.skipped);
        let posted = self.sends.get(at)?;
        let operation = operation(posted.opcode)?;
        let is_new = at.wrapping_sub(self.begun.get()) as i32 >= 0;
        if is_new {
            if !self.sends.may_begin() {
                return None;
            }
            self.begun.set(at.wrapping_add(1));
        }
        Some(Request {
            operation,
            length: if operation == Operation::Flush { posted.flush.length } else { posted.length },
            remote_addr: posted.remote_addr,
            rkey: posted.rkey,
            imm_or_rkey: posted.imm_or_rkey,
            compare_add: posted.compare_add,
            swap: posted.swap,
            srqn: posted.srqn,
            fence: posted.fence,
            solicited: posted.solicited,
            flush: (posted.flush.placement, posted.flush.level),
        })
    }

    #[inline]
    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        if self.left == 0 {
            return Err(Refused::Full);
        }
        self.left -= 1;
        let mut from = Pieces::new();
        if let Payload::Request { n, offset, len } = packet.payload {
            let at = n.wrapping_add(self.skipped);
            let first = opcode::starts(packet.headers.bth.opcode) && !packet.again;
            let checked = if first { self.sends.check(at) } else { Ok(()) };
            let gathered = checked.and_then(|()| self.sends.gather(at, offset, len.into(), &mut from));
            if let Err(status) = gathered {
                self.reason = Some(status);
                return Err(Refused::Memory);
            }
        }
        if self.with_last && opcode::is_last(packet.headers.bth.opcode) {
            self.out.batch.keep_together();
        }
        match &mut self.paced {
            Some(paced) => paced.push(self.out, packet.headers, &from),
            None => self.out.push(packet.headers, &from),
        }
    }

    fn deliver(&mut self, n: u32, offset: u64, data: &[u8]) -> Result<(), Refused> {
        self.sends.scatter(n.wrapping_add(self.skipped), offset, data).map_err(|status| {
            self.reason = Some(status);
            Refused::Memory
        })
    }

    fn complete(&mut self, n: u32, status: Status) {
        debug_assert_eq!(n.wrapping_add(self.skipped), self.sends.head());
        let status = match status {
            Status::LocalProtection => self.reason.take().unwrap_or(wc_status(status)),
            status => wc_status(status),
        };
        self.sends.finish(status);
    }
}

/// What the protocol calls an operation; none for those that do not leave this process.
#[inline]
fn operation(opcode: Opcode) -> Option<Operation> {
    Some(match opcode {
        Opcode::Send => Operation::Send,
        Opcode::SendImm => Operation::SendImm,
        Opcode::SendInv => Operation::SendInvalidate,
        Opcode::Write => Operation::Write,
        Opcode::WriteImm => Operation::WriteImm,
        Opcode::Read => Operation::Read,
        Opcode::CompareSwap => Operation::CompareSwap,
        Opcode::FetchAdd => Operation::FetchAdd,
        Opcode::Flush => Operation::Flush,
        Opcode::AtomicWrite => Operation::AtomicWrite,
        Opcode::LocalInv | Opcode::BindMw => return None,
    })
}
