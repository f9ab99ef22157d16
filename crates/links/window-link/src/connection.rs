//! The window's part of a connection: the way of its packets to the peer, and what the peer is told of them.

use super::direct::Direct;
use super::grantees::Grantees;
use super::no_receive::NoReceive;
use super::pace::NEVER;
use super::pairs::Pairs;
use super::path_psns::PathPsns;
use super::peer_qp::PeerQp;
use super::put_psns::PutPsns;
use super::slot_out::SlotOut;
use super::uc_patience::UcPatience;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use vervain_carrier::Foreign;
use vervain_carrier::connection::{self, End, PeerPath};
use vervain_carrier::terms::Terms;
use vervain_hca::process::Progress;
use vervain_hca::qp::carrier::Psns;
use vervain_hca::qp::remote::Sends;
use vervain_hca::{Qp, QpAttr};
use vervain_transport::{Nanos, Sent, Service};
use vervain_window::pairs::block;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::pairs::ring::Class;
use vervain_wire::Headers;

/// Bytes that one QP has under way at most: more than a ring holds, which alone holds back.
const UNDER_WAY: u64 = 8 * block::LONG_BYTES;
/// Bytes that a Write which is put directly counts for besides its own.
const WRITE: u64 = 8 << 10;

/// A connected QP whose messages go through a window.
pub type Connection = connection::Connection<SendPath>;

/// The way of a connection's packets to its peer.
pub struct SendPath {
    /// The own QP.
    pub qp: Weak<Qp>,
    /// The peer.
    pub peer: PeerQp,
    /// The wait for it, over UC.
    pub uc: UcPatience,
    /// Over UC, for messages that find no receive.
    pub no_receive: NoReceive,
    /// The connection's direct puts.
    pub direct: Direct,
    /// The PSNs of sent and of received packets in those of the path MTU.
    pub sent: PathPsns,
    received: PathPsns,
    /// PSNs of Writes that were put.
    pub put_psns: PutPsns,
    /// Messages of the pair when the connection has sent its last one.
    pub last_sent: AtomicU64,
    /// True if the message under way is a long one; and the answer to a READ.
    pub sends_long: AtomicBool,
    pub answers_long: AtomicBool,
    /// Time of the progress thread's next look: CLOCK_MONOTONIC, nanoseconds.
    next_look: Arc<AtomicU64>,
    /// Time at which the requester wants to be called, on the same clock; [`NEVER`]: it does not.
    deadline: AtomicU64,
    /// Number of the connection's answers that are set aside ([`super::deferred`]).
    pub deferred: AtomicU64,
}

/// Connects `qp` with QP `attr.dest_qp_num` of `process`.
pub fn connect(
    (pairs, grantees, next_look): (&Arc<Pairs>, &Arc<Grantees>, &Arc<AtomicU64>),
    qp: &Arc<Qp>,
    attr: &QpAttr,
    process: PeerId,
) -> Arc<Connection> {
    let terms = Terms { mtu: block::MTU, acks_first: true, ..Terms::new(qp, attr) };
    let path_psns = |first| PathPsns::new(128 << attr.path_mtu, first);
    let path = SendPath {
        qp: Arc::downgrade(qp),
        peer: PeerQp::new(pairs, process, terms.peer_qpn, qp.qp_num()),
        uc: UcPatience::new(terms.service == Service::Uc),
        no_receive: NoReceive::default(),
        direct: Direct::new(grantees),
        sent: path_psns(0),
        received: path_psns(attr.rq_psn),
        put_psns: PutPsns::default(),
        last_sent: AtomicU64::new(0),
        sends_long: AtomicBool::new(false),
        answers_long: AtomicBool::new(false),
        next_look: Arc::clone(next_look),
        deadline: AtomicU64::new(NEVER),
        deferred: AtomicU64::new(0),
    };
    Connection::new(qp, attr, terms, UNDER_WAY, path)
}

impl SendPath {
    /// Messages of the pair when the connection has sent its last one.
    pub fn last_sent(&self) -> u64 {
        self.last_sent.load(Ordering::Relaxed)
    }

    /// Time at which the requester wants to be called: CLOCK_MONOTONIC, nanoseconds.
    pub fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::SeqCst)
    }

    /// Has the progress thread call the requester at `deadline`.
    fn set_deadline(&self, qp: &Qp, deadline: u64) {
        self.deadline.store(deadline, Ordering::SeqCst);
        if deadline < self.next_look.load(Ordering::SeqCst) {
            qp.process().wake_for_packets();
        }
    }

    /// Returns true if the peer is putting a message to its announced destination. Waits for no lock.
    pub fn is_put_to(&self) -> bool {
        let has_peer = || self.peer.used_pair().is_some_and(|pair| !pair.is_over() && !pair.is_silent());
        self.direct.landing.has_told() && has_peer()
    }
}

impl PeerPath for SendPath {
    type Data = Foreign;
    type Out<'a> = SlotOut<'a>;

    #[inline]
    fn out<'a>(&'a self, qp: &'a Qp, end: End) -> SlotOut<'a> {
        SlotOut::new(self, &qp.tally, if end == End::Requester { Class::Request } else { Class::Answer })
    }

    fn begins(&self, psn: u32) {
        self.sent.begin(psn);
    }

    #[inline]
    fn alone(&self, sends: &Sends<'_>, n: u32) -> Option<u64> {
        let len = self.direct.writes.execute(&self.peer, sends, n)?;
        self.put_psns.count(self.sent.skip(len));
        Some(len + WRITE)
    }

    fn visited(&self, qp: &Qp, sent: Sent, is_spent: bool, deadline: Option<Nanos>) -> Progress {
        self.set_deadline(qp, deadline.unwrap_or(NEVER));
        if sent != Sent::HostFull {
            return Progress::Idle;
        }
        if is_spent {
            return Progress::More;
        }
        // The thread that receives has QPs that wait go on when there is room; without a pair, when one begins.
        let pair = self.peer.pair();
        pair.iter().for_each(|pair| pair.wait_for_room(&self.qp));
        self.peer.look_for_process();
        // Room that was made just before woke nobody. An answer that is waited for comes by itself.
        if !self.direct.landing.is_awaited() && pair.is_some_and(|pair| pair.has_room(Class::Request)) {
            return Progress::More;
        }
        if let Some(deadline) = self.uc.deadline(pair) {
            self.deadline.store(deadline, Ordering::SeqCst);
            qp.process().wake_for_packets();
        }
        Progress::Idle
    }

    fn accepted(&self, headers: &Headers, length: u64) {
        self.received.count(headers, length);
    }

    fn path_psns(&self, psns: Psns) -> Psns {
        let expected = self.received.of_path(psns.expected).wrapping_add(self.put_psns.peers());
        Psns { next: psns.next.map(|psn| self.sent.of_path(psn)), expected: expected & 0x00ff_ffff }
    }

    fn ask_psns(&self) {
        self.put_psns.ask(&self.peer);
    }

    fn goes_on(&self, waits_for_peer: bool) -> bool {
        match self.peer.used_pair() {
            // It begins once there is a pair.
            None => !self.peer.is_absent(),
            Some(pair) => !pair.is_over() && !pair.is_silent() && !waits_for_peer,
        }
    }

    fn disconnected(&self) {
        self.deadline.store(NEVER, Ordering::SeqCst);
        self.direct.disconnect();
    }
}
