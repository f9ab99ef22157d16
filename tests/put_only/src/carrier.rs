//! A carrier over a ring that can only be put to ([`crate::window`]), from the process to itself: a way out for the packets
//! of the kit's connections, and a loop that hands them the packets that come.

use crate::window::Ring;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use vervain_carrier::PacketOut;
use vervain_carrier::by_qp::ByQp;
use vervain_carrier::datagrams::{Arrival, Listeners, headers};
use vervain_carrier::requester::{RequesterEnd, SendQueueHost};
use vervain_carrier::responder::Inbound;
use vervain_carrier::responder_end::ResponderEnd;
use vervain_carrier::terms::{Terms, takes};
use vervain_hca::device::{Device, grh};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::{self, Direction, Pieces};
use vervain_hca::process::poller::{EventHandler, Poller};
use vervain_hca::process::{Process, Progress};
use vervain_hca::qp::carrier::{self, Carrier, Datagram, PathAttr, Psns};
use vervain_hca::qp::remote::{SenderAccess, Sends};
use vervain_hca::{AhAttr, Gid, Qp, QpAttr, Result, now_ns};
use vervain_link::More;
use vervain_transport::{Refused, Requester, Responder, Sent, Window};
use vervain_wire::{Headers, ICRC_LEN, MAX_HEADERS, Packet, opcode, parse};

/// Interval at which the progress thread looks for packets.
const LOOK_NS: u64 = 100_000;
/// Packets that a responder answers with before others get their turn.
const ANSWERS: u32 = 16;
/// Bytes of the GIDs of sender and receiver, in front of each packet.
const GIDS: usize = 32;

/// Makes the carrier of a process.
pub fn make() -> Result<More> {
    let carrier = Arc::new(PutOnly {
        devices: vervain_hca::devices()?,
        ring: Arc::default(),
        connections: ByQp::default(),
        listeners: Listeners::default(),
        receiving: OwnerLock::default(),
    });
    Ok(More { carrier: carrier.clone(), poller: carrier })
}

struct PutOnly {
    devices: Vec<Arc<Device>>,
    ring: Arc<Ring>,
    connections: ByQp<Connection>,
    listeners: Listeners<Gid>,
    /// A message that was taken while its QP was busy.
    receiving: OwnerLock<Option<Vec<u8>>>,
}

/// The ring, for packets between two addresses.
#[derive(Clone)]
struct Out {
    ring: Arc<Ring>,
    gids: [Gid; 2],
}

impl PacketOut for Out {
    type Data = [u8];

    fn has_room(&self) -> bool {
        self.ring.has_room()
    }

    fn is_taken(&self) -> bool {
        self.ring.waiting() == 0
    }

    fn push(&mut self, headers: &Headers, from: &Pieces) -> std::result::Result<(), Refused> {
        let mut emitted = [0; MAX_HEADERS];
        let n = headers.emit(&mut emitted);
        let mut message = [self.gids.as_flattened(), &emitted[..n]].concat();
        let start = message.len();
        message.resize(start + from.len() as usize, 0);
        // SAFETY: the vector has as many bytes; the pieces are memory that was checked against its key, inside a mark.
        unsafe { transfer::copy_direct(Direction::Write, message[start..].as_mut_ptr(), from, false) }
            .map_err(|_| Refused::Memory)?;
        message.resize(message.len().next_multiple_of(4) + ICRC_LEN, 0);
        if self.ring.put(&message) { Ok(()) } else { Err(Refused::Full) }
    }
}

/// A connected QP.
struct Connection {
    qp: Weak<Qp>,
    out: Out,
    terms: Terms,
    /// Taken under the lock of the QP's send queue only.
    sending: OwnerLock<(RequesterEnd, Window)>,
    responder: ResponderEnd,
}

impl Connection {
    /// Makes the requester do `f`, and then everything that it can do now.
    fn run(
        &self,
        sends: &mut Sends<'_>,
        f: impl FnOnce(&mut Requester, &mut Window, &mut SendQueueHost<'_, '_, Out>),
    ) -> Progress {
        let mut sending = self.sending.lock();
        let (end, window) = &mut *sending;
        if end.start(sends, |psn, head| self.terms.requester(&sends.path(), psn, head)).is_none() {
            return Progress::Idle;
        }
        if let Some((requester, mut host)) = end.host(sends, self.out.clone()) {
            f(requester, window, &mut host);
        }
        let sent = loop {
            let Some((requester, mut host)) = end.host(sends, self.out.clone()) else { return Progress::Idle };
            let sent = requester.poll_transmit(now_ns(), window, &mut host);
            if !end.do_local(sends) {
                break sent;
            }
        };
        end.count(&sends.qp().tally);
        if sent == Sent::HostFull { Progress::More } else { Progress::Idle }
    }

    /// Makes the responder do `f`, and send what it owes.
    fn reply(&self, qp: &Qp, f: impl FnOnce(&mut Responder, &mut Inbound<'_, Out>)) {
        self.responder.with(
            qp,
            || self.out.clone(),
            |responder, host| {
                f(responder, host);
                responder.poll_transmit(ANSWERS, host)
            },
        );
    }

    /// Handles a packet of the peer. Returns false if the QP is busy.
    fn handle(self: &Arc<Self>, packet: &Packet<'_>) -> bool {
        let code = packet.headers.bth.opcode;
        let Some(qp) = self.qp.upgrade().filter(|qp| takes(qp, code)) else { return true };
        if opcode::is_request(code) {
            let may_enter = !qp.is_stopped();
            if may_enter {
                self.reply(&qp, |responder, host| responder.handle_packet(packet, host));
            }
            return may_enter;
        }
        let answer = |sends: &mut Sends<'_>| {
            self.run(sends, |requester, window, host| requester.handle_packet(now_ns(), packet, window, host))
        };
        qp.with_sends(self, answer) != SenderAccess::Busy
    }

    /// Sends what is due by now, or could not leave before.
    fn go_on(self: &Arc<Self>) {
        let Some(qp) = self.qp.upgrade() else { return };
        self.reply(&qp, |_, _| ());
        let timeout = |sends: &mut Sends<'_>| {
            self.run(sends, |requester, window, host| {
                let now = now_ns();
                if requester.next_timeout().is_some_and(|at| at <= now) {
                    requester.handle_timeout(now, window, host);
                }
            })
        };
        qp.with_sends(self, timeout);
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
        Psns { next: self.sending.lock().0.next_psn(), expected: self.responder.expected_psn() }
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
    }
}

impl PutOnly {
    /// The ring as it leads from a device along an address vector.
    fn out(&self, device: u32, ah: &AhAttr) -> Out {
        let source = self.devices[device as usize].source(ah.grh.sgid_index.into());
        Out { ring: Arc::clone(&self.ring), gids: [source.map_or([0; 16], |(gid, _)| gid), ah.grh.dgid] }
    }

    /// Hands on the packets that have come, until a QP is busy. Returns true if there were any.
    fn take_in(&self, waiting: &mut Option<Vec<u8>>) -> bool {
        let mut any = false;
        while let Some(message) = waiting.take().or_else(|| self.ring.take()) {
            if !self.handle(&message) {
                *waiting = Some(message);
                break;
            }
            any = true;
        }
        self.connections.all(|_| true).iter().for_each(Connection::go_on);
        any
    }

    /// Handles one message. Returns false if its QP is busy.
    fn handle(&self, message: &[u8]) -> bool {
        let (gids, bytes) = message.split_at(GIDS);
        let Ok(packet) = parse(bytes) else { return true };
        if packet.headers.deth.is_some() {
            self.deliver(gids, &packet);
            return true;
        }
        self.connections.get(packet.headers.bth.dest_qpn).is_none_or(|connection| connection.handle(&packet))
    }

    /// Delivers a datagram to its QP, or to the members of its group.
    fn deliver(&self, gids: &[u8], packet: &Packet<'_>) {
        let Packet { headers, payload } = packet;
        let (Some(deth), ([sgid, dgid], _)) = (headers.deth, gids.as_chunks::<16>()) else { return };
        for (listener, qp) in self.listeners.addressees(dgid, headers.bth.dest_qpn) {
            let route = grh::Route { sgid, dgid, traffic_class: 0, flow_label: 0, hop_limit: 1, roce: true };
            let arrival = Arrival { headers, deth, payload, route, slid: 0, service_level: 0, has_grh: true };
            listener.deliver(&qp, &arrival, false);
        }
    }
}

impl Carrier for PutOnly {
    fn carries(&self, device: &Device, _ah: &AhAttr) -> bool {
        device.is_ethernet()
    }

    fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Arc<dyn carrier::Connection>> {
        let terms = Terms::new(qp, attr);
        let connection = Arc::new(Connection {
            qp: Arc::downgrade(qp),
            out: self.out(qp.device_index(), &attr.ah),
            terms,
            sending: OwnerLock::new((RequesterEnd::default(), Window::lossless(terms.mtu, 1 << 20))),
            responder: ResponderEnd::new(terms.responder(attr)),
        });
        log::info!("QP {:#x} is connected by puts", qp.qp_num());
        self.connections.insert(qp.qp_num(), Arc::clone(&connection));
        qp.process().expect_packets();
        Ok(connection)
    }

    fn register_qp(&self, qp: &Arc<Qp>) -> Result<()> {
        self.listeners.register_qp(qp);
        qp.process().expect_packets();
        Ok(())
    }

    fn unregister_qp(&self, qpn: u32) {
        self.listeners.unregister_qp(qpn);
        self.connections.remove(qpn).iter().for_each(|connection| connection.responder.close());
    }

    fn send_datagram(&self, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        let pushed = self.out(qp.device_index(), datagram.ah).push(&headers(qp, datagram, 0), datagram.data);
        (pushed == Err(Refused::Full)).then(|| now_ns() + LOOK_NS)
    }

    fn join(&self, group: &Gid, qp: &Qp) -> Result<()> {
        self.listeners.groups.join(*group, qp.qp_num());
        Ok(())
    }

    fn leave(&self, group: &Gid, qpn: u32) {
        self.listeners.groups.leave(*group, qpn);
    }
}

impl EventHandler for PutOnly {}

impl Poller for PutOnly {
    fn poll(&self, process: &'static Process) -> bool {
        let Some(mut waiting) = self.receiving.try_lock() else { return false };
        process.handle_packets(|| self.take_in(&mut waiting)).unwrap_or(false)
    }

    fn wait_for(&self, _process: &'static Process, _fd: RawFd) -> Result<()> {
        // The progress thread takes in what comes meanwhile.
        Ok(())
    }

    fn attend(&self, process: &'static Process) -> (bool, Option<u64>) {
        self.poll(process);
        let is_used = self.connections.has_any() || !self.listeners.is_empty();
        (false, is_used.then(|| now_ns() + LOOK_NS))
    }

    fn packet_fd(&self) -> Option<RawFd> {
        None
    }
}
