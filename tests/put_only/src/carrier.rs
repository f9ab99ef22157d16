//! A carrier over a ring that can only be put to ([`crate::window`]), from the process to itself. The protocol is that of
//! `vervain-transport`, whose packets go into the slots of the ring; what comes is taken by whoever polls, or by the progress
//! thread.

use crate::window::Ring;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use vervain_carrier::datagrams::{Arrival, Groups, Listener, headers};
use vervain_carrier::requester::{RequesterEnd, SendQueueHost};
use vervain_carrier::responder::Inbound;
use vervain_carrier::responder_end::ResponderEnd;
use vervain_carrier::terms::{Terms, takes};
use vervain_carrier::{AsPieces, Foreign, PacketOut};
use vervain_hca::device::{Device, grh};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::{self, Direction, Pieces};
use vervain_hca::process::poller::{EventHandler, Poller};
use vervain_hca::process::{Process, Progress};
use vervain_hca::qp::carrier::{self, Carrier, Datagram, PathAttr, Psns};
use vervain_hca::qp::remote::{SenderAccess, Sends};
use vervain_hca::{Gid, Qp, QpAttr, Result, now_ns};
use vervain_link::More;
use vervain_transport::{Data, Refused, Requester, Responder, Sent, Window};
use vervain_wire::{Headers, ICRC_LEN, MAX_HEADERS, Packet, opcode, parse};

const NEVER: u64 = u64::MAX;
/// How soon the progress thread looks again while something waits.
const SOON_NS: u64 = 100_000;
/// Packets that a responder answers with before others get their turn.
const ANSWERS: u32 = 16;
/// The GIDs of sender and receiver, in front of each packet.
const GIDS: usize = 32;

/// Makes the carrier of a process.
pub fn make() -> Result<More> {
    // SAFETY: a fresh descriptor, owned at once.
    let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) };
    let engine = Arc::new(Engine {
        devices: vervain_hca::devices()?,
        ring: Ring::default(),
        event,
        connections: OwnerLock::default(),
        datagrams: OwnerLock::default(),
        groups: Groups::default(),
        receiving: OwnerLock::default(),
        next_look: AtomicU64::new(0),
    });
    Ok(More { carrier: Arc::new(PutOnly(Arc::clone(&engine))), poller: Arc::new(PutOnly(engine)) })
}

struct PutOnly(Arc<Engine>);

struct Engine {
    devices: Vec<Arc<Device>>,
    ring: Ring,
    /// Readable when something was put.
    event: OwnedFd,
    connections: OwnerLock<HashMap<u32, Arc<Connection>>>,
    datagrams: OwnerLock<HashMap<u32, Arc<Listener>>>,
    groups: Groups<Gid>,
    receiving: OwnerLock<Receiving>,
    /// When the progress thread comes by.
    next_look: AtomicU64,
}

/// What whoever receives has in hand.
#[derive(Default)]
struct Receiving {
    /// Taken, and not handled because the QP was busy.
    waiting: VecDeque<Vec<u8>>,
    /// Connections that have more to answer.
    unanswered: Vec<Arc<Connection>>,
}

/// A connected QP.
struct Connection {
    engine: Arc<Engine>,
    qp: Weak<Qp>,
    terms: Terms,
    gids: [Gid; 2],
    /// Taken under the lock of the QP's send queue only.
    sending: OwnerLock<(RequesterEnd, Window)>,
    responder: ResponderEnd,
    /// When its requester wants to be called.
    deadline: AtomicU64,
}

/// The ring as packets to one peer go into it.
struct RingOut<'a> {
    engine: &'a Engine,
    gids: &'a [Gid; 2],
}

impl PacketOut for RingOut<'_> {
    type Data = InTwo;

    fn has_room(&self) -> bool {
        self.engine.ring.has_room()
    }

    fn is_taken(&self) -> bool {
        self.engine.ring.is_taken()
    }

    fn push(&mut self, headers: &Headers, from: &Pieces) -> std::result::Result<(), Refused> {
        let mut emitted = [0; MAX_HEADERS];
        let n = headers.emit(&mut emitted);
        let mut message: Vec<u8> = self.gids.iter().flatten().copied().collect();
        message.extend(&emitted[..n]);
        let start = message.len();
        message.resize(start + from.len() as usize, 0);
        // SAFETY: the vector has as many bytes; the pieces are memory that was checked against its key, inside a mark.
        unsafe { transfer::copy_direct(Direction::Write, message[start..].as_mut_ptr(), from, false) }
            .map_err(|_| Refused::Memory)?;
        message.resize(message.len().next_multiple_of(4) + ICRC_LEN, 0);
        if !self.engine.ring.put(&message) {
            return Err(Refused::Full);
        }
        // SAFETY: writes eight bytes of this stack to a descriptor of ours.
        unsafe { libc::write(self.engine.event.as_raw_fd(), (&raw const ONE).cast(), 8) };
        Ok(())
    }
}

static ONE: u64 = 1;

/// A payload as a ring has it that wraps: in two places, each of which others might write to.
struct InTwo([Foreign; 2]);

impl InTwo {
    /// The parts of a payload.
    ///
    /// # Safety
    /// It outlives the value.
    unsafe fn of(payload: &[u8]) -> InTwo {
        let (one, other) = payload.split_at(payload.len() / 3);
        // SAFETY: the caller's promise.
        InTwo([one, other].map(|part| unsafe { Foreign::new(part.as_ptr(), part.len()) }))
    }
}

impl Data for InTwo {
    fn length(&self) -> usize {
        self.0.iter().map(Data::length).sum()
    }

    fn word(&self) -> Option<[u8; 8]> {
        let mut pieces = Pieces::new();
        self.add_to(&mut pieces);
        pieces.word()
    }
}

impl AsPieces for InTwo {
    fn add_to(&self, pieces: &mut Pieces) {
        self.0.iter().for_each(|part| part.add_to(pieces));
    }
}

impl Connection {
    fn out(&self) -> RingOut<'_> {
        RingOut { engine: &self.engine, gids: &self.gids }
    }

    /// Has the requester do `f`, and then everything that it can do now.
    fn run(
        &self,
        sends: &mut Sends<'_>,
        f: impl FnOnce(&mut Requester, &mut Window, &mut SendQueueHost<'_, '_, RingOut<'_>>),
    ) -> Progress {
        let mut sending = self.sending.lock();
        let (end, window) = &mut *sending;
        if end.start(sends, |psn, head| self.terms.requester(&sends.path(), psn, head)).is_none() {
            return Progress::Idle;
        }
        let mut f = Some(f);
        let sent = loop {
            let Some((requester, mut host)) = end.host(sends, self.out()) else { return Progress::Idle };
            if let Some(f) = f.take() {
                f(requester, window, &mut host);
            }
            let sent = requester.poll_transmit(now_ns(), window, &mut host);
            if !end.do_local(sends) {
                break sent;
            }
        };
        end.count(&sends.qp().tally);
        let deadline = end.next_timeout().unwrap_or(NEVER);
        self.deadline.store(deadline, Ordering::SeqCst);
        if deadline < self.engine.next_look.load(Ordering::SeqCst) {
            sends.qp().process().wake_for_packets();
        }
        if sent == Sent::HostFull { Progress::More } else { Progress::Idle }
    }

    /// Has the responder do `f`, and say what it has to say; whether there is more.
    fn reply(&self, qp: &Qp, f: impl FnOnce(&mut Responder, &mut Inbound<'_, RingOut<'_>>)) -> bool {
        let more = self.responder.with(
            qp,
            || self.out(),
            |responder, host| {
                f(responder, host);
                responder.poll_transmit(ANSWERS, host)
            },
        );
        more.unwrap_or(false)
    }
}

impl carrier::Connection for Connection {
    fn advance(&self, sends: &mut Sends<'_>) -> Progress {
        self.run(sends, |_, _, _| ())
    }

    fn modified(&self, path: &PathAttr) {
        self.sending.lock().0.modify(&self.terms.requester(path, path.sq_psn, 0));
        self.responder.set_max_dest_rd_atomic(path.max_dest_rd_atomic);
    }

    fn psns(&self) -> Psns {
        let next = self.sending.lock().0.next_psn();
        Psns { next, expected: self.responder.expected_psn() }
    }

    fn has_begun(&self) -> bool {
        self.sending.lock().0.has_begun()
    }

    fn waits_for_receive(&self) -> bool {
        self.sending.lock().0.waits_for_receive()
    }

    fn holds_back(&self, sends: &Sends<'_>) -> bool {
        let end = &self.sending.lock().0;
        end.has_unsent(sends) && !end.waits_for_peer()
    }

    fn disconnected(&self) {
        let mut sending = self.sending.lock();
        let (end, window) = &mut *sending;
        end.abandon(window);
        self.deadline.store(NEVER, Ordering::SeqCst);
    }
}

impl Engine {
    /// The GIDs from which and to which an address vector leads.
    fn gids(&self, device: u32, attr: &vervain_hca::AhAttr) -> [Gid; 2] {
        let device = &self.devices[device as usize];
        [device.source(attr.grh.sgid_index.into()).map_or([0; 16], |(gid, _)| gid), attr.grh.dgid]
    }

    /// Takes in what has come, and calls those whose time has come; whether there was anything.
    fn look(&self, process: &'static Process) -> bool {
        let Some(mut rx) = self.receiving.try_lock() else { return false };
        let any = process.handle_packets(|| self.take_in(&mut rx));
        any.unwrap_or(false)
    }

    fn take_in(&self, rx: &mut Receiving) -> bool {
        let mut any = false;
        while let Some(message) = rx.waiting.pop_front().or_else(|| self.ring.take()) {
            if !self.handle(rx, &message) {
                rx.waiting.push_front(message);
                break;
            }
            any = true;
        }
        for connection in std::mem::take(&mut rx.unanswered) {
            if let Some(qp) = connection.qp.upgrade()
                && connection.reply(&qp, |_, _| ())
            {
                rx.unanswered.push(connection);
            }
        }
        let now = now_ns();
        let due: Vec<_> = self.connections.lock().values().cloned().collect();
        for connection in due.iter().filter(|c| c.deadline.load(Ordering::SeqCst) <= now) {
            if let Some(qp) = connection.qp.upgrade() {
                let timeout = |sends: &mut Sends<'_>| {
                    connection.run(sends, |requester, window, host| requester.handle_timeout(now, window, host))
                };
                qp.with_sends(connection, timeout);
            }
        }
        any
    }

    /// Handles one message; false if its QP is busy.
    fn handle(&self, rx: &mut Receiving, message: &[u8]) -> bool {
        let (gids, bytes) = message.split_at(GIDS);
        let Ok(packet) = parse(bytes) else { return true };
        let bth = &packet.headers.bth;
        if packet.headers.deth.is_some() {
            self.datagram(gids, &packet);
            return true;
        }
        let connection = self.connections.lock().get(&bth.dest_qpn).cloned();
        let Some(connection) = connection else { return true };
        let is_request = opcode::is_request(bth.opcode);
        // SAFETY: the message stays as long as this call.
        let payload = unsafe { InTwo::of(packet.payload) };
        let packet = Packet { headers: packet.headers, payload: &payload };
        let Some(qp) = connection.qp.upgrade().filter(|qp| takes(qp, bth.opcode)) else { return true };
        if is_request {
            if qp.is_stopped() {
                return false;
            }
            if connection.reply(&qp, |responder, host| responder.handle_packet(&packet, host)) {
                rx.unanswered.push(connection);
            }
            return true;
        }
        let answer = |sends: &mut Sends<'_>| {
            connection.run(sends, |requester, window, host| requester.handle_packet(now_ns(), &packet, window, host))
        };
        qp.with_sends(&connection, answer) != SenderAccess::Busy
    }

    fn datagram(&self, gids: &[u8], packet: &Packet<'_>) {
        let headers = &packet.headers;
        let Some(deth) = headers.deth else { return };
        let gid = |at: usize| -> Gid { gids[at..at + 16].try_into().unwrap_or_default() };
        let (from, to) = (gid(0), gid(16));
        for qpn in self.groups.addressees(&to, headers.bth.dest_qpn) {
            let listener = self.datagrams.lock().get(&qpn).cloned();
            let Some((listener, qp)) = listener.and_then(|listener| Some((listener.clone(), listener.qp()?))) else {
                continue;
            };
            let route =
                grh::Route { sgid: &from, dgid: &to, traffic_class: 0, flow_label: 0, hop_limit: 1, roce: true };
            let payload = packet.payload;
            let arrival = Arrival { headers, deth, payload, route, slid: 0, service_level: 0, has_grh: true };
            listener.deliver(&qp, &arrival, false);
        }
    }
}

impl Carrier for PutOnly {
    fn carries(&self, device: &Device, _ah: &vervain_hca::AhAttr) -> bool {
        device.is_ethernet()
    }

    fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Arc<dyn carrier::Connection>> {
        let terms = Terms::new(qp, attr);
        let connection = Arc::new(Connection {
            engine: Arc::clone(&self.0),
            qp: Arc::downgrade(qp),
            terms,
            gids: self.0.gids(qp.device_index(), &attr.ah),
            sending: OwnerLock::new((RequesterEnd::default(), Window::lossless(terms.mtu, 1 << 20))),
            responder: ResponderEnd::new(terms.responder(attr)),
            deadline: AtomicU64::new(NEVER),
        });
        log::info!("QP {:#x} is connected by puts", qp.qp_num());
        self.0.connections.lock().insert(qp.qp_num(), Arc::clone(&connection));
        qp.process().expect_packets();
        Ok(connection)
    }

    fn register_qp(&self, qp: &Arc<Qp>) -> Result<()> {
        self.0.datagrams.lock().insert(qp.qp_num(), Arc::new(Listener::new(qp)));
        qp.process().expect_packets();
        Ok(())
    }

    fn unregister_qp(&self, qpn: u32) {
        let listener = self.0.datagrams.lock().remove(&qpn);
        listener.iter().for_each(|listener| listener.close());
        let connection = self.0.connections.lock().remove(&qpn);
        connection.iter().for_each(|connection| connection.responder.close());
    }

    fn send_datagram(&self, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        let gids = self.0.gids(qp.device_index(), datagram.ah);
        let pushed = RingOut { engine: &self.0, gids: &gids }.push(&headers(qp, datagram, 0), datagram.data);
        (pushed == Err(Refused::Full)).then(|| now_ns() + SOON_NS)
    }

    fn join(&self, group: &Gid, qp: &Qp) -> Result<()> {
        self.0.groups.join(*group, qp.qp_num());
        Ok(())
    }

    fn leave(&self, group: &Gid, qpn: u32) {
        self.0.groups.leave(*group, qpn);
    }
}

impl EventHandler for PutOnly {}

impl Poller for PutOnly {
    fn poll(&self, process: &'static Process) -> bool {
        self.0.look(process)
    }

    fn wait_for(&self, _process: &'static Process, _fd: RawFd) -> Result<()> {
        // The progress thread takes in what comes meanwhile.
        Ok(())
    }

    fn attend(&self, process: &'static Process) -> (bool, Option<u64>) {
        let mut count = 0u64;
        // SAFETY: reads eight bytes of a descriptor of ours into this stack; it does not block.
        unsafe { libc::read(self.0.event.as_raw_fd(), (&raw mut count).cast(), 8) };
        self.0.look(process);
        let waits = self.0.receiving.try_lock().is_none_or(|rx| !rx.waiting.is_empty() || !rx.unanswered.is_empty());
        let connections = self.0.connections.lock();
        let deadline = connections.values().map(|c| c.deadline.load(Ordering::SeqCst)).min().unwrap_or(NEVER);
        let next = if waits { deadline.min(now_ns() + SOON_NS) } else { deadline };
        self.0.next_look.store(next, Ordering::SeqCst);
        (true, (next != NEVER).then_some(next))
    }

    fn packet_fd(&self) -> Option<RawFd> {
        Some(self.0.event.as_raw_fd())
    }
}
