//! A connected QP over a carrier that loses no packet: its requester with the window of what is under way, its
//! responder, and the carrier's own part, the way to the peer ([`PeerPath`]).

use super::requester::{RequesterEnd, SendQueueHost};
use super::responder::Inbound;
use super::responder_end::ResponderEnd;
use super::terms::Terms;
use super::{AsPieces, PacketOut};
use std::ops::Range;
use std::sync::{Arc, Weak};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Progress;
use vervain_hca::qp::carrier::{self, PathAttr, Psns};
use vervain_hca::qp::remote::{SenderAccess, Sends};
use vervain_hca::{Qp, QpAttr, Status, now_ns, soon_ns};
use vervain_transport::{Data, Nanos, Requester, Responder, Sent, Window};
use vervain_wire::aeth::Syndrome;
use vervain_wire::{Headers, Packet};

/// Packets of an answer that leave before others get their turn.
const ANSWERS: u32 = 16;
/// Bytes of requests that are carried out alone before others get their turn.
const ALONE: u64 = 1 << 20;

/// The side that packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The requester.
    Requester,
    /// The responder.
    Responder,
}

/// The carrier's part of a connection: the way of its packets to the peer.
pub trait PeerPath: Send + Sync + 'static {
    /// Payload of the packets from the peer.
    type Data: AsPieces + ?Sized;
    /// The way out, as long as a call sends packets.
    type Out<'a>: PacketOut<Data = Self::Data>;

    /// The way out of the packets of `qp` that come from `end`.
    fn out<'a>(&'a self, qp: &'a Qp, end: End) -> Self::Out<'a>;

    /// A requester begins; its first PSN.
    fn begins(&self, _psn: u32) {}

    /// Carries out request `n` of `sends` alone, by other means than packets. Returns the bytes that it counts for.
    /// None: it goes in packets.
    fn alone(&self, _sends: &Sends<'_>, _n: u32) -> Option<u64> {
        None
    }

    /// The requester has sent what it can, or as much as a call may (`is_spent`), and wants to be called at `deadline`.
    /// The send queue may hold requests that wait for room if [`Sent::HostFull`].
    fn visited(&self, _qp: &Qp, sent: Sent, _is_spent: bool, _deadline: Option<Nanos>) -> Progress {
        if sent == Sent::HostFull { Progress::More } else { Progress::Idle }
    }

    /// A request's packet with `length` bytes of payload was accepted, now or earlier.
    fn accepted(&self, _headers: &Headers, _length: u64) {}

    /// The PSNs of the path MTU, from those of the packets.
    fn path_psns(&self, psns: Psns) -> Psns {
        psns
    }

    /// [`carrier::Connection::ask_psns`].
    fn ask_psns(&self) {}

    /// Returns true if packets that have not left may leave, or will be able to by themselves; the requester
    /// `waits_for_peer` or not.
    fn goes_on(&self, waits_for_peer: bool) -> bool {
        !waits_for_peer
    }

    /// The send queue has dropped the connection.
    fn disconnected(&self) {}
}

/// A way out that is the same for both ends is a path.
impl<O: PacketOut + Clone + Send + Sync + 'static> PeerPath for O {
    type Data = O::Data;
    type Out<'a> = O;

    fn out<'a>(&'a self, _qp: &'a Qp, _end: End) -> O {
        self.clone()
    }
}

/// A connected QP.
pub struct Connection<P> {
    qp: Weak<Qp>,
    terms: Terms,
    /// The requester, taken under the lock of the QP's send queue only.
    sending: OwnerLock<(RequesterEnd, Window)>,
    responder: ResponderEnd,
    /// The carrier's part.
    pub path: P,
}

impl<P: PeerPath> Connection<P> {
    /// The connection of `qp`, which becomes ready to receive by `attr`, with packets by `terms`; `under_way` bytes of
    /// it at most may be under way.
    pub fn new(qp: &Arc<Qp>, attr: &QpAttr, terms: Terms, under_way: u64, path: P) -> Arc<Self> {
        let sending = OwnerLock::new((RequesterEnd::default(), Window::lossless(terms.mtu, under_way)));
        let responder = ResponderEnd::new(terms.responder(attr));
        Arc::new(Connection { qp: Arc::downgrade(qp), terms, sending, responder, path })
    }

    /// The QP, while there is one.
    #[inline]
    pub fn qp(&self) -> &Weak<Qp> {
        &self.qp
    }

    /// Terms of its packets.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Makes the requester do `f`, and then everything that it can do now.
    fn run(
        &self,
        sends: &mut Sends<'_>,
        f: impl FnOnce(&mut Requester, &mut Window, &mut SendQueueHost<'_, '_, P::Out<'_>>),
    ) -> Progress {
        let mut sending = self.sending.lock();
        let (end, window) = &mut *sending;
        let config = |psn, head| {
            self.path.begins(psn);
            self.terms.requester(&sends.path(), psn, head)
        };
        if end.start(sends, config).is_none() {
            return Progress::Idle;
        }
        let qp = sends.qp();
        let out = || self.path.out(qp, End::Requester);
        if let Some((requester, mut host)) = end.host(sends, out()) {
            f(requester, window, &mut host);
        }
        let mut alone = ALONE;
        let (sent, is_spent) = loop {
            if sends.head() == sends.tail() {
                break (Sent::All, false);
            }
            while alone > 0
                && end.do_alone(sends, |sends, n| {
                    alone = alone.saturating_sub(self.path.alone(sends, n)?);
                    Some(Status::Success)
                })
            {}
            if alone == 0 {
                break (Sent::HostFull, true);
            }
            let Some((requester, mut host)) = end.host(sends, out()) else { return Progress::Idle };
            host.out.goes_on(requester.is_idle());
            // The timeouts that begin now are longer than that clock is ahead.
            let sent = requester.poll_transmit(soon_ns(), window, &mut host);
            let is_spent = host.out.is_spent();
            if !end.do_local(sends) {
                break (sent, is_spent);
            }
        };
        end.count(&qp.tally);
        self.path.visited(qp, sent, is_spent, end.next_timeout())
    }

    /// Makes the responder do `f`, and send the packets that it owes. Returns true if there are more.
    pub fn reply(&self, qp: &Qp, f: impl FnOnce(&mut Responder, &mut Inbound<'_, P::Out<'_>>)) -> bool {
        let more = self.responder.with(
            qp,
            || self.path.out(qp, End::Responder),
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
    pub fn request(&self, qp: &Qp, packet: &Packet<'_, P::Data>) -> bool {
        self.reply(qp, |responder, host| {
            responder.handle_packet(packet, host);
            if responder.expected_psn() != packet.headers.bth.psn {
                self.path.accepted(&packet.headers, packet.payload.length() as u64);
            }
        })
    }

    /// Handles an answer to a request of this QP.
    pub fn response(self: &Arc<Self>, qp: &Qp, packet: &Packet<'_, P::Data>) -> SenderAccess {
        let is_refusal =
            packet.headers.aeth.is_some_and(|aeth| !matches!(Syndrome::decode(aeth.syndrome), Some(Syndrome::Ack(_))));
        // The delay that an RNR NAK asks for begins now.
        let now = if is_refusal { now_ns() } else { soon_ns() };
        let answer = |sends: &mut Sends<'_>| {
            self.run(sends, |requester, window, host| requester.handle_packet(now, packet, window, host))
        };
        qp.with_sends(self, answer)
    }

    /// The requester goes on at `now`, at which its time may have come.
    pub fn timeout(self: &Arc<Self>, qp: &Qp, now: Nanos) -> SenderAccess {
        let timeout = |sends: &mut Sends<'_>| {
            self.run(sends, |requester, window, host| requester.handle_timeout(now, window, host))
        };
        qp.with_sends(self, timeout)
    }

    /// The QP is reset or gone: its responder takes nothing more.
    pub fn close(&self) {
        self.responder.close();
    }
}

impl<P: PeerPath> carrier::Connection for Connection<P> {
    fn advance(&self, sends: &mut Sends<'_>) -> Progress {
        self.run(sends, |_, _, _| ())
    }

    fn modified(&self, path: &PathAttr) {
        self.sending.lock().0.modify(&self.terms.requester(path, path.sq_psn, 0));
        self.responder.set_max_dest_rd_atomic(path.max_dest_rd_atomic);
    }

    fn psns(&self) -> Psns {
        let next = self.sending.lock().0.next_psn();
        self.path.path_psns(Psns { next, expected: self.responder.expected_psn() })
    }

    fn ask_psns(&self) {
        self.path.ask_psns();
    }

    fn has_begun(&self) -> bool {
        self.sending.lock().0.has_begun()
    }

    fn waits_for_receive(&self) -> bool {
        self.sending.lock().0.waits_for_receive()
    }

    fn holds_back(&self, sends: &Sends<'_>) -> bool {
        let end = &self.sending.lock().0;
        end.has_unsent(sends) && self.path.goes_on(end.waits_for_peer())
    }

    fn disconnected(&self) {
        let mut sending = self.sending.lock();
        let (end, window) = &mut *sending;
        end.abandon(window);
        self.path.disconnected();
    }
}
