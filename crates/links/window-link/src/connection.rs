//! A connected QP whose messages go through a window: its requester and its responder.

use super::direct::Direct;
use super::grantees::Grantees;
use super::no_receive::NoReceive;
use super::pace::NEVER;
use super::pairs::Pairs;
use super::path_psns::PathPsns;
use super::peer_qp::PeerQp;
use super::put_psns::PutPsns;
use super::slot_out::{SendPath, SlotOut};
use super::uc_patience::UcPatience;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use vervain_carrier::Foreign;
use vervain_carrier::requester::{RequesterEnd, SendQueueHost};
use vervain_carrier::responder::Inbound;
use vervain_carrier::responder_end::ResponderEnd;
use vervain_carrier::terms::Terms;
use vervain_hca::device::port_counters::Tally;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Progress;
use vervain_hca::qp::carrier::{self, PathAttr, Psns};
use vervain_hca::qp::remote::{SenderAccess, Sends};
use vervain_hca::{Qp, QpAttr, Status, now_ns, soon_ns};
use vervain_transport::{Data, Requester, Responder, Sent, Service, Window};
use vervain_window::pairs::block;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::pairs::ring::Class;
use vervain_wire::aeth::Syndrome;
use vervain_wire::{Headers, Packet};

/// Packets of a READ's answer before others get their turn.
const ANSWERS: u32 = 16;
/// Bytes that one QP has under way at most: more than a ring holds, which alone holds back.
const UNDER_WAY: u64 = 8 * block::LONG_BYTES;
/// Bytes that one call puts directly before others get their turn, and what a Write counts besides.
const DIRECT: u64 = 1 << 20;
const WRITE: u64 = 8 << 10;

/// A connected QP.
pub struct Connection {
    me: Weak<Connection>,
    terms: Terms,
    /// The way to the peer.
    path: SendPath,
    /// Its requester; taken under the lock of the QP's send queue only.
    sending: OwnerLock<(RequesterEnd, Window)>,
    responder: ResponderEnd,
    /// The PSNs of received packets in those of the path MTU.
    received: PathPsns,
    /// PSNs of Writes that were put.
    put_psns: PutPsns,
    /// Time of the progress thread's next look.
    next_look: Arc<AtomicU64>,
    /// Time at which its requester wants to be called.
    deadline: AtomicU64,
    /// Its answers that are set aside ([`super::deferred`]).
    deferred: AtomicU64,
    /// Over UC, for messages that find no receive.
    no_receive: NoReceive,
}

impl Connection {
    /// The connection of `qp` with QP `attr.dest_qp_num` of `process`.
    pub fn new(
        (pairs, grantees, next_look): (&Arc<Pairs>, &Arc<Grantees>, &Arc<AtomicU64>),
        qp: &Arc<Qp>,
        attr: &QpAttr,
        process: PeerId,
    ) -> Arc<Self> {
        let terms = Terms { mtu: block::MTU, acks_first: true, ..Terms::new(qp, attr) };
        let peer = PeerQp::new(pairs, process, terms.peer_qpn, qp.qp_num());
        let path_psns = |first| PathPsns::new(128 << attr.path_mtu, first);
        let (uc, direct) = (UcPatience::new(terms.service == Service::Uc), Direct::new(grantees));
        let window = Window::lossless(block::MTU, UNDER_WAY);
        Arc::new_cyclic(|me| Connection {
            me: me.clone(),
            terms,
            path: SendPath::new(Arc::downgrade(qp), peer, uc, direct, path_psns(0)),
            sending: OwnerLock::new((RequesterEnd::default(), window)),
            responder: ResponderEnd::new(terms.responder(attr)),
            received: path_psns(attr.rq_psn),
            put_psns: PutPsns::default(),
            next_look: Arc::clone(next_look),
            deadline: AtomicU64::new(NEVER),
            deferred: AtomicU64::new(0),
            no_receive: NoReceive::default(),
        })
    }

    /// The QP, while there is one.
    #[inline]
    pub fn qp(&self) -> &Weak<Qp> {
        &self.path.qp
    }

    /// The peer.
    #[inline]
    pub fn peer(&self) -> &PeerQp {
        &self.path.peer
    }

    /// The connection's direct puts.
    #[inline]
    pub fn direct(&self) -> &Direct {
        &self.path.direct
    }

    /// PSNs of Writes that were put.
    pub fn put_psns(&self) -> &PutPsns {
        &self.put_psns
    }

    /// State of UC messages that may wait for a receive.
    pub fn no_receive(&self) -> &NoReceive {
        &self.no_receive
    }

    /// Number of its answers that are set aside.
    #[inline]
    pub fn deferred(&self) -> &AtomicU64 {
        &self.deferred
    }

    /// Time at which its requester wants to be called: CLOCK_MONOTONIC, nanoseconds.
    pub fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::SeqCst)
    }

    /// Messages of the pair when it has sent its last one.
    pub fn last_sent(&self) -> u64 {
        self.path.last_sent()
    }

    fn out<'a>(&'a self, tally: &'a Tally, class: Class) -> SlotOut<'a> {
        SlotOut::new(&self.path, tally, class)
    }

    /// Makes the requester do `f`, and then everything that it can do now.
    fn run(
        self: &Arc<Self>,
        sends: &mut Sends<'_>,
        f: impl FnOnce(&mut Requester, &mut Window, &mut SendQueueHost<'_, '_, SlotOut<'_>>),
    ) -> Progress {
        let mut sending = self.sending.lock();
        let (end, window) = &mut *sending;
        let config = |psn, head| {
            self.path.sent.begin(psn);
            self.terms.requester(&sends.path(), psn, head)
        };
        if end.start(sends, config).is_none() {
            return Progress::Idle;
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
                    let len = self.path.direct.writes.execute(&self.path.peer, sends, n)?;
                    self.put_psns.count(self.path.sent.skip(len));
                    budget = budget.saturating_sub(len + WRITE);
                    Some(Status::Success)
                })
            {}
            if budget == 0 {
                break (Sent::HostFull, 0);
            }
            let Some((requester, mut host)) = end.host(sends, self.out(tally, Class::Request)) else {
                return Progress::Idle;
            };
            host.out.is_busy = !requester.is_idle();
            // The timeouts that begin now are longer than that clock is ahead.
            let sent = requester.poll_transmit(soon_ns(), window, &mut host);
            let left = host.out.left;
            if !end.do_local(sends) {
                break (sent, left);
            }
        };
        end.count(tally);
        let deadline = end.next_timeout().unwrap_or(NEVER);
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
        // The thread that receives has QPs that wait go on when there is room; without a pair, when one begins.
        let SendPath { qp, peer, uc, direct, .. } = &self.path;
        let pair = peer.pair();
        pair.iter().for_each(|pair| pair.wait_for_room(qp));
        peer.look_for_process();
        // Room that was made just before woke nobody. An answer that is waited for comes by itself.
        if !direct.landing.is_awaited() && pair.is_some_and(|pair| pair.has_room(Class::Request)) {
            return Progress::More;
        }
        if let Some(deadline) = uc.deadline(pair) {
            self.deadline.store(deadline, Ordering::SeqCst);
            sends.qp().process().wake_for_packets();
        }
        Progress::Idle
    }

    /// Makes the responder do `f`, and send the packets that it owes. Returns true if there are more.
    pub fn reply(&self, qp: &Qp, f: impl FnOnce(&mut Responder, &mut Inbound<'_, SlotOut<'_>>)) -> bool {
        let more = self.responder.with(
            qp,
            || self.out(&qp.tally, Class::Answer),
            |responder, host| {
                f(responder, host);
                responder.poll_transmit(ANSWERS, host)
            },
        );
        more.unwrap_or(false)
    }

    /// A message of the peer is announced by the headers of its first packet: the memory that it belongs to, and the
    /// key of that.
    pub fn announced(&self, qp: &Qp, headers: &Headers, length: u64) -> Option<(u32, Range<u64>)> {
        let mut memory = None;
        self.reply(qp, |responder, host| {
            memory = responder.announce(headers, length, host).and_then(|target| host.landing(target));
        });
        memory
    }

    /// Handles a request of the peer. Returns true if there is more to answer.
    pub fn request(&self, qp: &Qp, packet: &Packet<'_, Foreign>) -> bool {
        self.reply(qp, |responder, host| {
            responder.handle_packet(packet, host);
            if responder.expected_psn() != packet.headers.bth.psn {
                // It was accepted, now or earlier.
                self.received.count(&packet.headers, packet.payload.length() as u64);
            }
        })
    }

    /// Handles an answer to a request of this QP.
    pub fn response(self: &Arc<Self>, qp: &Qp, packet: &Packet<'_, Foreign>) -> SenderAccess {
        let is_refusal =
            packet.headers.aeth.is_some_and(|aeth| !matches!(Syndrome::decode(aeth.syndrome), Some(Syndrome::Ack(_))));
        // The delay that an RNR NAK asks for begins now.
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

    /// Returns true if the peer is putting a message to its announced destination. Waits for no lock.
    pub fn is_put_to(&self) -> bool {
        let has_peer = || self.path.peer.used_pair().is_some_and(|pair| !pair.is_over() && !pair.is_silent());
        self.path.direct.landing.has_told() && has_peer()
    }

    /// Returns true if the QP is an XRC QP.
    pub fn is_xrc(&self) -> bool {
        self.terms.service == Service::Xrc
    }

    /// Returns true if lost packets are not reported.
    pub fn is_unreliable(&self) -> bool {
        self.terms.service == Service::Uc
    }

    /// The QP is reset or gone. What it has acknowledged its peer learns: nothing more may be sent there that would
    /// take it along.
    pub fn close(&self) {
        self.responder.close();
        self.path.peer.pair().iter().for_each(|pair| pair.flush());
    }
}

impl carrier::Connection for Connection {
    fn advance(&self, sends: &mut Sends<'_>) -> Progress {
        self.me.upgrade().map_or(Progress::Idle, |me| me.run(sends, |_, _, _| ()))
    }

    fn modified(&self, path: &PathAttr) {
        self.sending.lock().0.modify(&self.terms.requester(path, path.sq_psn, 0));
        self.responder.set_max_dest_rd_atomic(path.max_dest_rd_atomic);
    }

    fn psns(&self) -> Psns {
        let next = self.sending.lock().0.next_psn();
        let expected = self.received.of_path(self.responder.expected_psn()).wrapping_add(self.put_psns.peers());
        Psns { next: next.map(|psn| self.path.sent.of_path(psn)), expected: expected & 0x00ff_ffff }
    }

    fn ask_psns(&self) {
        self.put_psns.ask(&self.path.peer);
    }

    fn has_begun(&self) -> bool {
        self.sending.lock().0.has_begun()
    }

    fn waits_for_receive(&self) -> bool {
        self.sending.lock().0.waits_for_receive()
    }

    fn holds_back(&self, sends: &Sends<'_>) -> bool {
        let sending = self.sending.lock();
        let (end, peer) = (&sending.0, &self.path.peer);
        let goes_on = match peer.used_pair() {
            // It begins once there is a pair.
            None => !peer.is_absent(),
            Some(pair) => !pair.is_over() && !pair.is_silent() && !end.waits_for_peer(),
        };
        goes_on && end.has_unsent(sends)
    }

    fn disconnected(&self) {
        let mut sending = self.sending.lock();
        let (end, window) = &mut *sending;
        end.abandon(window);
        self.deadline.store(NEVER, Ordering::SeqCst);
        self.path.direct.disconnect();
    }
}
