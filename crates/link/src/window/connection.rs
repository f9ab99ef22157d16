//! A connected QP whose messages go through a window: its requester and its responder.

use super::Engine;
use super::datagrams::Patience;
use super::direct::Granted;
use super::landing::{Landing, Place, Told};
use super::pace::NEVER;
use super::pair::{PKEY, Pair};
use super::path_psns::PathPsns;
use super::put_psns::PutPsns;
use super::slot_out::SlotOut;
use crate::endpoint::requester::{RequesterEnd, SendQueueHost};
use crate::endpoint::responder::{Inbound, Lanes};
use crate::endpoint::{Foreign, counters};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use vervain_hca::device::port_counters::Tally;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Progress;
use vervain_hca::qp::carrier::{self, PathAttr, Psns};
use vervain_hca::qp::remote::{SenderAccess, Sends};
use vervain_hca::{Qp, QpAttr, QpState, QpType, now_ns, soon_ns, wc};
use vervain_transport::{Data, Requester, RequesterConfig, RequesterCounters, Responder, ResponderConfig};
use vervain_transport::{ResponderCounters, Sent, Service, Window};
use vervain_window::pairs::block;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::pairs::ring::Class;
use vervain_wire::aeth::Syndrome;
use vervain_wire::{Headers, Packet, opcode};

/// Packets of a READ's answer before others get their turn.
const ANSWERS: u32 = 16;
/// How long a message over UC waits for a peer that is not there, or takes nothing: then it is lost, as on a network.
const ABSENT_NS: u64 = 1_000_000_000;
/// Bytes that one QP has under way at most: more than a ring holds, which alone holds back.
const UNDER_WAY: u64 = 8 * block::LONG_BYTES;
/// Bytes that one call puts directly before others get their turn, and what a Write counts besides.
const DIRECT: u64 = 1 << 20;
const WRITE: u64 = 8 << 10;

/// How long messages have waited for a pair, or for room, and for whom.
#[derive(Default)]
struct Wait {
    /// CLOCK_MONOTONIC, ns; 0 while none waits.
    since: AtomicU64,
    /// Messages that the peer had taken then.
    taken: AtomicU64,
    /// At the last look there was no pair, nor a process that one could be made with.
    is_in_vain: AtomicBool,
}

/// A connected QP.
pub struct Connection {
    me: Weak<Connection>,
    pub engine: Weak<Engine>,
    pub qp: Weak<Qp>,
    pub peer: PeerId,
    peer_qpn: u32,
    service: Service,
    /// The pair by which it goes on, once there is one: it is never with another process of that number.
    pair: OnceLock<Arc<Pair>>,
    wait: Wait,
    /// Messages of the pair when this connection has sent its last one.
    pub last_sent: AtomicU64,
    /// Taken under the lock of the QP's send queue only. With what of the requester's counters has been told, and of the responder's.
    sending: OwnerLock<(RequesterEnd, Window, RequesterCounters)>,
    replying: OwnerLock<(Responder, Lanes, ResponderCounters)>,
    /// When the progress thread looks.
    next_look: Arc<AtomicU64>,
    /// When its requester wants to be called.
    pub deadline: AtomicU64,
    /// Answers for it that could not be handled when they came.
    pub deferred: AtomicU64,
    /// Whether the message under way is a long one; and the answer to a READ.
    pub sends_long: AtomicBool,
    pub answers_long: AtomicBool,
    /// What sent and received packets are in the PSNs of a path.
    pub sent: PathPsns,
    received: PathPsns,
    /// Over UC, for messages that come before a receive.
    pub patience: Patience,
    closed: AtomicBool,
    /// Where the message under way belongs at the peer, which is asked for long ones; and what the peer was told of its own.
    pub landing: OwnerLock<Landing>,
    pub told_landing: OwnerLock<Option<Told>>,
    pub has_told: AtomicBool,
    /// READs under way whose answers the peer was told where to put; and where it has told this process to put those to its own.
    pub told_reads: OwnerLock<VecDeque<Told>>,
    pub has_told_reads: AtomicBool,
    pub answers: OwnerLock<VecDeque<Place>>,
    pub has_answers: AtomicBool,
    /// Bytes of the message under way, if it is a long one.
    pub long: AtomicU64,
    /// PSNs of Writes that were put.
    pub put_psns: PutPsns,
    /// What the peer has granted it.
    pub granted: OwnerLock<Granted>,
    qpn: u32,
    /// Writes in a row that could have been put, and went through the ring behind others.
    pub behind_others: AtomicU32,
}

impl Connection {
    pub fn new(engine: &Arc<Engine>, qp: &Arc<Qp>, attr: &QpAttr, peer: PeerId) -> Arc<Self> {
        let service = match qp.qp_type() {
            QpType::Uc => Service::Uc,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
            _ => Service::Rc,
        };
        let responder = Responder::new(&ResponderConfig {
            service,
            dest_qpn: attr.dest_qp_num,
            pkey: PKEY,
            migrated: true,
            expected_psn: attr.rq_psn,
            mtu: block::MTU,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            acks_first: true,
        });
        Arc::new_cyclic(|me| Connection {
            me: me.clone(),
            engine: Arc::downgrade(engine),
            qp: Arc::downgrade(qp),
            peer,
            peer_qpn: attr.dest_qp_num,
            service,
            pair: OnceLock::new(),
            wait: Wait::default(),
            last_sent: AtomicU64::new(0),
            sending: OwnerLock::new((
                RequesterEnd::default(),
                Window::lossless(block::MTU, UNDER_WAY),
                RequesterCounters::default(),
            )),
            replying: OwnerLock::new((responder, Lanes::default(), ResponderCounters::default())),
            next_look: Arc::clone(&engine.next_look),
            deadline: AtomicU64::new(NEVER),
            deferred: AtomicU64::new(0),
            sends_long: AtomicBool::new(false),
            answers_long: AtomicBool::new(false),
            sent: PathPsns::new(128 << attr.path_mtu, 0),
            received: PathPsns::new(128 << attr.path_mtu, attr.rq_psn),
            patience: Patience::default(),
            closed: AtomicBool::new(false),
            landing: OwnerLock::default(),
            told_landing: OwnerLock::default(),
            has_told: AtomicBool::new(false),
            told_reads: OwnerLock::default(),
            has_told_reads: AtomicBool::new(false),
            answers: OwnerLock::default(),
            has_answers: AtomicBool::new(false),
            long: AtomicU64::new(0),
            put_psns: PutPsns::default(),
            granted: OwnerLock::default(),
            qpn: qp.qp_num(),
            behind_others: AtomicU32::new(0),
        })
    }

    /// The pair, if there is one.
    pub fn pair(&self) -> Option<&Arc<Pair>> {
        if self.pair.get().is_none() {
            let pair = self.engine.upgrade()?.pairs.get(self.peer)?;
            let _ = self.pair.set(pair);
        }
        self.pair.get()
    }

    /// Whether the peer is asked where data belongs.
    pub fn may_put(&self) -> bool {
        self.engine.upgrade().is_some_and(|engine| engine.direct)
    }

    /// The peer's QP.
    pub fn peer_qpn(&self) -> u32 {
        self.peer_qpn
    }

    /// The QP.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Whether it has a pair, and so one process that is its peer.
    pub fn has_pair(&self) -> bool {
        self.pair.get().is_some()
    }

    /// Messages of the pair when it has sent its last one.
    pub fn last_sent(&self) -> u64 {
        self.last_sent.load(Ordering::Relaxed)
    }

    fn out<'a>(&'a self, tally: &'a Tally, class: Class) -> SlotOut<'a> {
        SlotOut::new(self, tally, class)
    }

    fn config(&self, path: &PathAttr, first_psn: u32, first_request: u32) -> RequesterConfig {
        RequesterConfig {
            service: self.service,
            dest_qpn: path.dest_qpn,
            pkey: PKEY,
            migrated: true,
            introduces: false,
            first_psn,
            first_request,
            mtu: block::MTU,
            timeout: path.timeout,
            retry_cnt: path.retry_cnt,
            rnr_retry: path.rnr_retry,
            max_rd_atomic: path.max_rd_atomic,
        }
    }

    /// Has the requester do `f`, and then everything that it can do now.
    fn run(
        self: &Arc<Self>,
        sends: &mut Sends<'_>,
        f: impl FnOnce(&mut Requester, &mut Window, &mut SendQueueHost<'_, '_, SlotOut<'_>>),
    ) -> Progress {
        let mut sending = self.sending.lock();
        let (end, window, told) = &mut *sending;
        let config = |psn, head| {
            self.sent.begin(psn);
            self.config(&sends.path(), psn, head)
        };
        match end.start(sends, config) {
            Some(true) => *told = RequesterCounters::default(),
            Some(false) => {}
            None => return Progress::Idle,
        }
        let tally = &sends.qp().tally;
        if let Some((requester, mut host)) = end.host(sends, self.out(tally, Class::Request)) {
            f(requester, window, &mut host);
        }
        let mut budget = DIRECT;
        let (sent, left) = loop {
            if sends.head() == sends.tail() {
                break (Sent::All, 0);
            }
            while budget != 0
                && end.do_alone(sends, |sends, n| {
                    let len = self.write_directly(sends, n)?;
                    budget = budget.saturating_sub(len + WRITE);
                    Some(wc::SUCCESS)
                })
            {}
            if budget == 0 {
                break (Sent::HostFull, 0);
            }
            let Some((requester, mut host)) = end.host(sends, self.out(tally, Class::Request)) else {
                return Progress::Idle;
            };
            host.out.is_busy = !requester.is_idle();
            // What it counts from now on, timeouts, takes longer than that clock is ahead.
            let sent = requester.poll_transmit(soon_ns(), window, &mut host);
            let left = host.out.left;
            if !end.do_local(sends) {
                break (sent, left);
            }
        };
        end.requester().iter().for_each(|requester| counters::of_requester(tally, requester.counters(), told));
        let deadline = end.requester().and_then(Requester::next_timeout).unwrap_or(NEVER);
        self.deadline.store(deadline, Ordering::SeqCst);
        if deadline < self.next_look.load(Ordering::SeqCst) {
            sends.qp().process().wake_for_packets();
        }
        if sent != Sent::HostFull {
            return Progress::Idle;
        }
        if left == 0 {
            return Progress::More;
        }
        // Who takes in what comes looks whether there is room for those who wait; while there is no pair, it is one that begins.
        let pair = self.pair();
        pair.iter().for_each(|pair| pair.wait_for_room(&self.qp));
        let may_meet = || self.engine.upgrade().is_some_and(|engine| engine.pairs.has_process(self.peer));
        self.wait.is_in_vain.store(pair.is_none() && !may_meet(), Ordering::Relaxed);
        // Whoever has made room just before has not seen that somebody waits. An answer that is waited for comes by itself.
        if !self.awaits_landing() && pair.is_some_and(|pair| pair.has_room(Class::Request)) {
            return Progress::More;
        }
        if self.service == Service::Uc {
            // There is no timer of the protocol's.
            self.deadline.store(self.waits(pair) + ABSENT_NS, Ordering::SeqCst);
            sends.qp().process().wake_for_packets();
        }
        Progress::Idle
    }

    /// Since when messages have waited, while the peer has taken nothing.
    fn waits(&self, pair: Option<&Arc<Pair>>) -> u64 {
        let (since, taken) = (self.wait.since.load(Ordering::Relaxed), pair.map_or(0, |pair| pair.taken()));
        if since != 0 && self.wait.taken.load(Ordering::Relaxed) == taken {
            return since;
        }
        let now = now_ns();
        self.wait.since.store(now, Ordering::Relaxed);
        self.wait.taken.store(taken, Ordering::Relaxed);
        now
    }

    /// Something was sent, if it was not lost: what follows waits anew.
    #[inline]
    pub fn waited(&self, sent: u64) {
        if self.service == Service::Uc && sent != u64::MAX {
            self.wait.since.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a peer, over UC, has taken nothing for so long that what does not find room is lost.
    #[cold]
    pub fn waits_in_vain(&self, pair: &Arc<Pair>) -> bool {
        self.service == Service::Uc && now_ns() >= self.waits(Some(pair)) + ABSENT_NS
    }

    /// Whether nobody answers, and the peer has been waited for.
    pub fn waits_no_more(&self) -> bool {
        let since = self.wait.since.load(Ordering::Relaxed);
        self.service == Service::Uc && since != 0 && now_ns() >= since + ABSENT_NS
    }

    /// Has the responder do `f`, and say what it has to say; whether there is more.
    pub fn reply(&self, qp: &Qp, f: impl FnOnce(&mut Responder, &mut Inbound<'_, SlotOut<'_>>)) -> bool {
        let mut replying = self.replying.lock();
        if replying.stolen() {
            replying.1.leave();
        }
        let (responder, lanes, told) = &mut *replying;
        if self.closed.load(Ordering::Relaxed) {
            return false;
        }
        let out = self.out(&qp.tally, Class::Answer);
        let mut host = Inbound::new(qp, self.peer_qpn, lanes, out);
        f(responder, &mut host);
        let more = responder.poll_transmit(ANSWERS, &mut host);
        counters::of_responder(&qp.tally, responder.counters(), told);
        more
    }

    /// A message of the peer is announced by the headers of its first packet: the memory that it belongs to, and the key of that.
    pub fn announced(&self, qp: &Qp, headers: &Headers, length: u64) -> Option<(u32, Range<u64>)> {
        let mut memory = None;
        self.reply(qp, |responder, host| {
            memory = responder.announce(headers, length, host).and_then(|target| host.landing(target));
        });
        memory
    }

    /// A request of the peer; whether there is more to say to it.
    pub fn request(&self, qp: &Qp, packet: &Packet<'_, Foreign>) -> bool {
        self.reply(qp, |responder, host| {
            responder.handle_packet(packet, host);
            if responder.expected_psn() != packet.headers.bth.psn {
                // It was taken, or had been before.
                self.received.count(&packet.headers, packet.payload.length() as u64);
            }
        })
    }

    /// What answers a request of this QP.
    pub fn response(self: &Arc<Self>, qp: &Qp, packet: &Packet<'_, Foreign>) -> SenderAccess {
        let is_refusal =
            packet.headers.aeth.is_some_and(|aeth| !matches!(Syndrome::decode(aeth.syndrome), Some(Syndrome::Ack(_))));
        // What a peer that is not ready asks for is counted from now on.
        let now = if is_refusal { now_ns() } else { soon_ns() };
        let answer = |sends: &mut Sends<'_>| {
            self.run(sends, |requester, window, host| requester.handle_packet(now, packet, window, host))
        };
        qp.with_sends(self, answer)
    }

    /// The time that its requester asked for has come.
    pub fn timeout(self: &Arc<Self>, qp: &Qp, now: u64) -> SenderAccess {
        let timeout = |sends: &mut Sends<'_>| {
            self.run(sends, |requester, window, host| requester.handle_timeout(now, window, host))
        };
        qp.with_sends(self, timeout)
    }

    /// Whether packets with this operation are for the half of the QP that there is (IBA A14.2.1, 10.3.1).
    pub fn takes(&self, qp: &Qp, operation: u8) -> bool {
        let wrong_way = if opcode::is_request(operation) { QpType::XrcSend } else { QpType::XrcRecv };
        !matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Err) && qp.qp_type() != wrong_way
    }

    /// Whether what comes by `pair` is the peer's: of the process that this QP is connected with, and of no other one.
    pub fn is_with(&self, pair: &Arc<Pair>) -> bool {
        self.pair().is_some_and(|own| Arc::ptr_eq(own, pair))
    }

    /// Whether the peer is putting a message where it was told that it belongs. Waits for no lock.
    pub fn is_put_to(&self) -> bool {
        let has_peer = || self.pair.get().is_some_and(|pair| !pair.is_over() && !pair.is_silent());
        self.has_told.load(Ordering::Relaxed) && has_peer()
    }

    /// Whether it is one of XRC.
    pub fn is_xrc(&self) -> bool {
        self.service == Service::Xrc
    }

    /// Whether nobody answers what is lost.
    pub fn is_unreliable(&self) -> bool {
        self.service == Service::Uc
    }

    /// The QP is reset or gone. What it has acknowledged its peer learns: nothing more may be sent there that would take it along.
    pub fn close(&self) {
        let mut replying = self.replying.lock();
        self.closed.store(true, Ordering::Relaxed);
        replying.1.release();
        drop(replying);
        self.pair().iter().for_each(|pair| pair.flush());
    }
}

impl carrier::Connection for Connection {
    fn advance(&self, sends: &mut Sends<'_>) -> Progress {
        self.me.upgrade().map_or(Progress::Idle, |me| me.run(sends, |_, _, _| ()))
    }

    fn modified(&self, path: &PathAttr) {
        if let Some(requester) = self.sending.lock().0.requester_mut() {
            requester.modify(&self.config(path, path.sq_psn, 0));
        }
        self.replying.lock().0.set_max_dest_rd_atomic(path.max_dest_rd_atomic);
    }

    fn psns(&self) -> Psns {
        let next = self.sending.lock().0.requester().map(Requester::next_psn);
        let expected = self.replying.lock().0.expected_psn();
        let expected = self.received.of_path(expected).wrapping_add(self.put_psns.peers());
        Psns { next: next.map(|psn| self.sent.of_path(psn)), expected: expected & 0x00ff_ffff }
    }

    fn ask_psns(&self) {
        self.ask_put_psns();
    }

    fn has_begun(&self) -> bool {
        self.sending.lock().0.requester().is_some_and(|requester| !requester.is_idle())
    }

    fn waits_for_receive(&self) -> bool {
        self.sending.lock().0.requester().is_some_and(Requester::waits_for_receive)
    }

    fn holds_back(&self, sends: &Sends<'_>) -> bool {
        let sending = self.sending.lock();
        let end = &sending.0;
        let goes_on = match self.pair.get() {
            // It begins as soon as both have met.
            None => !self.wait.is_in_vain.load(Ordering::Relaxed),
            Some(pair) => !pair.is_over() && !pair.is_silent() && !end.waits_for_peer(),
        };
        goes_on && end.has_unsent(sends)
    }

    fn disconnected(&self) {
        let mut sending = self.sending.lock();
        let (end, window, _) = &mut *sending;
        if let Some(mut requester) = end.take() {
            requester.abandon(window);
        }
        self.deadline.store(NEVER, Ordering::SeqCst);
        self.granted.lock().forget();
        self.end_message();
        self.told_reads.lock().clear();
        self.forget_answers();
    }
}
