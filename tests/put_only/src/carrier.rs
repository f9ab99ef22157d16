//! A carrier over a ring that can only be put to ([`crate::window`]), from the process to itself: a way out for the packets
//! of the kit's connections, and a loop that hands them the packets that come.

use crate::window::Ring;
use std::sync::Arc;
use vervain_carrier::by_qp::ByQp;
use vervain_carrier::connection::Connection;
use vervain_carrier::datagrams::{Arrival, Listeners, headers};
use vervain_carrier::terms::{Terms, takes};
use vervain_carrier::{PacketOut, append};
use vervain_hca::device::{Device, grh};
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::process::Process;
use vervain_hca::process::poller::{EventHandler, Poller};
use vervain_hca::qp::carrier::{self, Carrier, Datagram};
use vervain_hca::qp::remote::SenderAccess;
use vervain_hca::{AhAttr, Gid, Qp, QpAttr, Result, now_ns};
use vervain_transport::Refused;
use vervain_wire::{Headers, ICRC_LEN, MAX_HEADERS, opcode, parse};

/// Interval at which the progress thread looks for packets.
const LOOK_NS: u64 = 100_000;
/// Bytes under way at most, and those of the GIDs of sender and receiver, in front of each packet.
const UNDER_WAY: u64 = 1 << 20;
const GIDS: usize = 32;

/// The carrier of a process.
#[derive(Default)]
pub struct PutOnly {
    ring: Arc<Ring>,
    connections: ByQp<Connection<Out>>,
    listeners: Listeners<Gid>,
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
        append(from, &mut message).map_err(|_| Refused::Memory)?;
        message.resize(message.len().next_multiple_of(4) + ICRC_LEN, 0);
        if self.ring.put(&message) { Ok(()) } else { Err(Refused::Full) }
    }
}

impl PutOnly {
    /// The ring as it leads from a QP along an address vector.
    fn out(&self, qp: &Qp, ah: &AhAttr) -> Out {
        let source = qp.device().source(ah.grh.sgid_index.into());
        Out { ring: Arc::clone(&self.ring), gids: [source.map_or([0; 16], |(gid, _)| gid), ah.grh.dgid] }
    }

    /// Hands on the packets that have come, until a QP is busy. Returns true if there were any.
    fn take_in(&self) -> bool {
        let any = self.ring.take(|message| self.handle(message));
        for (connection, qp) in self.connections.all(|_| true).iter().filter_map(|it| Some((it, it.qp().upgrade()?))) {
            connection.reply(&qp, |_, _| ());
            connection.timeout(&qp, now_ns());
        }
        any
    }

    /// Handles one message. Returns false if its QP is busy or stopped.
    fn handle(&self, message: &[u8]) -> bool {
        let (gids, bytes) = message.split_at(GIDS);
        let ([sgid, dgid], _) = gids.as_chunks::<16>() else { return true };
        let Ok(packet) = parse(bytes) else { return true };
        let (headers, bth, payload) = (&packet.headers, &packet.headers.bth, packet.payload);
        if let Some(deth) = headers.deth {
            let route = grh::Route { sgid, dgid, traffic_class: 0, flow_label: 0, hop_limit: 1, roce: true };
            let arrival = Arrival { headers, deth, payload, route, slid: 0, service_level: 0, has_grh: true };
            self.listeners.addressees(dgid, bth.dest_qpn).for_each(|(it, qp)| _ = it.deliver(&qp, &arrival, false));
            return true;
        }
        let Some(connection) = self.connections.get(bth.dest_qpn) else { return true };
        let Some(qp) = connection.qp().upgrade().filter(|qp| takes(qp, bth.opcode)) else { return true };
        if !opcode::is_request(bth.opcode) {
            return connection.response(&qp, &packet) != SenderAccess::Busy;
        }
        (!qp.is_stopped()).then(|| connection.request(&qp, &packet)).is_some()
    }
}

impl Carrier for PutOnly {
    fn carries(&self, device: &Device, _ah: &AhAttr) -> bool {
        device.is_ethernet()
    }

    fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Arc<dyn carrier::Connection>> {
        let connection = Connection::new(qp, attr, Terms::new(qp, attr), UNDER_WAY, self.out(qp, &attr.ah));
        self.connections.insert(qp.qp_num(), Arc::clone(&connection));
        log::info!("QP {:#x} is connected by puts", qp.qp_num());
        Ok(connection)
    }

    fn register_qp(&self, qp: &Arc<Qp>) -> Result<()> {
        self.listeners.register_qp(qp);
        Ok(())
    }

    fn unregister_qp(&self, qpn: u32) {
        self.listeners.unregister_qp(qpn);
        self.connections.remove(qpn).iter().for_each(|connection| connection.close());
    }

    fn send_datagram(&self, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        let pushed = self.out(qp, datagram.ah).push(&headers(qp, datagram, 0), datagram.data);
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
        process.handle_packets(|| self.take_in()).unwrap_or(false)
    }

    fn attend(&self, process: &'static Process) -> (bool, Option<u64>) {
        self.poll(process);
        let is_used = self.connections.has_any() || !self.listeners.is_empty();
        (false, is_used.then(|| now_ns() + LOOK_NS))
    }
}
