//! Datagrams of other ends, and the events that follow from them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use vervain_abi::*;
use vervain_cm::message::{IpHeader, Req, SidrReq, reason, sidr};
use vervain_cm::{CommId, Event, Machine, Service, SidrRepParams};
use vervain_gsi::{ANY, Path};

use super::ident::{Ident, Phase};
use super::parameters::Parameters;
use super::{State, now};
use crate::abi::*;
use crate::address::gid_of;
use crate::device::{Route, Source, is_link_local};
use crate::reports::{ConnParam, Handle, Report, What};

/// Time for which a request may wait to be accepted, for a peer that asks again: 4.096 us x 2^24 is 68 s, the value of
/// the kernel's rdma_cm.
const MRA_TIMEOUT: u8 = 24;

impl State {
    /// What follows of an event; `sources` finds the addresses of the devices.
    pub(super) fn handle_event(&mut self, event: Event, sources: impl Fn() -> Vec<Source>) {
        if is_of_nobody(&event) && self.asks_again(event.conn()) {
            return;
        }
        match event {
            Event::Request { conn, path, req } => self.request(conn, &path, &Asked::Connection(req), sources),
            Event::SidrRequest { conn, path, req } => self.request(conn, &path, &Asked::Datagrams(req), sources),
            Event::MraReceived { .. } => {}
            Event::Reply { conn, rep } => self.of(conn, |ident| {
                // A target's number stands where that of an end-to-end context would (IBA annex A14).
                let qpn = if ident.service() == Service::Xrc { rep.local_eecn } else { rep.local_qpn };
                ident.parameters.answered(&rep, qpn);
                ident.peer_ece = ece(rep.ece_vendor, rep.ece_options);
                let says = ConnParam {
                    private_data: rep.private_data.to_vec(),
                    responder_resources: rep.initiator_depth,
                    initiator_depth: rep.responder_resources,
                    flow_control: u8::from(rep.flow_control),
                    rnr_retry_count: rep.rnr_retry_count,
                    srq: rep.srq,
                    qpn,
                    ..ConnParam::default()
                };
                ident.events.push(Report {
                    kind: RDMA_CM_EVENT_CONNECT_RESPONSE,
                    status: 0,
                    what: What::Connection(says),
                });
            }),
            Event::Established { conn, .. } => self.of(conn, |ident| {
                ident.phase = Phase::Connected;
                ident.events.push(Report::plain(RDMA_CM_EVENT_ESTABLISHED, 0));
            }),
            Event::Rejected { conn, reason, private_data, .. } => self.of(conn, |ident| {
                // A request that the program has not accepted causes no event: accepting it will fail
                // (ucma_event_handler of the kernel). Its context is still the listener's, so the program would take
                // the event for another one's.
                if std::mem::replace(&mut ident.phase, Phase::Disconnected) == Phase::Requested {
                    return;
                }
                let what = What::Connection(ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() });
                ident.events.push(Report { kind: RDMA_CM_EVENT_REJECTED, status: reason.into(), what });
            }),
            Event::Unreachable { conn } => self.of(conn, |ident| {
                ident.phase = Phase::Disconnected;
                ident.events.push(Report::plain(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT));
            }),
            Event::DisconnectRequested { conn, .. } | Event::Disconnected { conn, is_certain: true, .. } => {
                self.of(conn, |ident| ident.disconnected(0))
            }
            Event::Disconnected { conn, is_certain: false, .. } => {
                self.of(conn, |ident| ident.disconnected(-libc::ETIMEDOUT))
            }
            Event::TimewaitExit { conn } => self.of(conn, |ident| {
                ident.events.push(Report::plain(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0));
            }),
            Event::SidrReply { conn, rep } => self.of(conn, |ident| {
                let says = ConnParam { private_data: rep.private_data.to_vec(), qpn: rep.qpn, ..ConnParam::default() };
                if rep.status != 0 {
                    ident.phase = Phase::Disconnected;
                    ident.events.push(Report {
                        kind: RDMA_CM_EVENT_UNREACHABLE,
                        status: rep.status.into(),
                        what: What::Connection(says),
                    });
                    return;
                }
                ident.phase = Phase::Connected;
                ident.peer_ece = ece(rep.ece_vendor, rep.ece_options);
                let ah = ident.route.map(|route| route.ah()).unwrap_or_default();
                let what = What::Datagrams { says, ah, qkey: rep.qkey };
                ident.events.push(Report { kind: RDMA_CM_EVENT_ESTABLISHED, status: 0, what });
            }),
        }
    }

    /// A request has come: to whom, if anybody listens there.
    fn request(&mut self, conn: CommId, path: &Path, asked: &Asked, sources: impl Fn() -> Vec<Source>) {
        let (service, private_data) = asked.service_and_private_data();
        let header = IpHeader::read(private_data);
        let listener = header.as_ref().and_then(|header| self.listener(service, path, header, asked.is_datagram()));
        let (Some(listener), Some(header)) = (listener, header) else {
            return asked.refuse(&mut self.machine, conn, false);
        };
        let Some(listening) = self.ids.get(&listener) else { return };
        if listening.backlog.is_full() {
            return asked.refuse(&mut self.machine, conn, true);
        }
        let sources = sources();
        let Some(source) = path_source(&sources, path) else {
            return asked.refuse(&mut self.machine, conn, true);
        };
        let scope = if is_link_local(&header.source) { source.interface } else { 0 };
        let with_scope = |ip: IpAddr, port: u16| match SocketAddr::new(ip, port) {
            SocketAddr::V6(mut v6) => {
                v6.set_scope_id(scope);
                SocketAddr::V6(v6)
            }
            v4 => v4,
        };
        let qp_type = asked.qp_type(listening.qp_type);
        self.last += 1;
        let new = self.last;
        let mut ident = Ident::new(new, Arc::clone(listening.events.queue()), listening.space, qp_type);
        ident.phase = Phase::Requested;
        ident.listener = Some(listener);
        ident.conn = Some(conn);
        ident.from = Some(with_scope(header.destination, service as u16));
        ident.to = Some(with_scope(header.source, header.source_port));
        let req = if let Asked::Connection(req) = asked { Some(req) } else { None };
        ident.parameters = Parameters::of_request(req);
        ident.route = Some(Route {
            source,
            dgid: ibv_gid { raw: path.dgid },
            is_local: sources.iter().any(|source| source.gid.raw == path.dgid),
            mtu: ident.parameters.mtu(),
            traffic_class: path.traffic_class,
        });
        let mut says = ConnParam { private_data: private_data[IpHeader::BYTES..].to_vec(), ..ConnParam::default() };
        if let Some(req) = req {
            ident.peer_ece = ece(req.ece_vendor, req.ece_options);
            // A peer that asks again gets an MRA.
            let _ = self.machine.prepare_mra(now(), conn, MRA_TIMEOUT, &[]);
            says.responder_resources = req.initiator_depth;
            says.initiator_depth = req.responder_resources;
            says.flow_control = u8::from(req.flow_control);
            says.retry_count = req.retry_count;
            says.rnr_retry_count = req.rnr_retry_count;
            says.srq = req.srq;
            says.qpn = req.local_qpn;
        }
        self.ids.insert(new, ident);
        self.by_conn.insert(conn, new);
        let Some(listening) = self.ids.get_mut(&listener) else { return };
        listening.backlog.push(new);
        let what = What::Request { new, says };
        listening.events.push(Report { kind: RDMA_CM_EVENT_CONNECT_REQUEST, status: 0, what });
    }

    /// Does something with the identifier that has a connection.
    fn of(&mut self, conn: CommId, f: impl FnOnce(&mut Ident)) {
        let Some(id) = self.by_conn.get(&conn) else { return };
        if let Some(ident) = self.ids.get_mut(id) {
            f(ident);
        }
    }

    /// The listener for a request: at the very address, or at any.
    fn listener(&self, service: u64, path: &Path, header: &IpHeader, is_datagram: bool) -> Option<Handle> {
        let takes = |id: &Handle, wanted: &[u8; 16]| {
            let Some(ident) = self.ids.get(id) else { return false };
            let family = ident.from.is_some_and(|from| {
                from.is_ipv4() == header.destination.is_ipv4() || from.is_ipv6() && !ident.sharing.only_its_family
            });
            family && ident.is_datagram() == is_datagram && ident.claim.is_some_and(|claim| claim.is_at(wanted))
        };
        let all = self.listeners.get(&service)?;
        let by = |wanted: &[u8; 16]| all.iter().find(|id| takes(id, wanted)).copied();
        by(&path.sgid).or_else(|| by(&gid_of(header.destination).raw)).or_else(|| by(&ANY))
    }
}

/// The kind of a request.
#[derive(Clone, Copy)]
#[allow(clippy::large_enum_variant, reason = "both are of the size of a MAD")]
enum Asked {
    Connection(Req),
    Datagrams(SidrReq),
}

impl Asked {
    fn is_datagram(&self) -> bool {
        matches!(self, Asked::Datagrams(_))
    }

    fn service_and_private_data(&self) -> (u64, &[u8]) {
        match self {
            Asked::Connection(req) => (req.service_id, &req.private_data),
            Asked::Datagrams(req) => (req.service_id, &req.private_data),
        }
    }

    /// The type of the QP that answers; of one of XRC the program says which end it is.
    fn qp_type(&self, listening: ibv_qp_type) -> ibv_qp_type {
        let Asked::Connection(req) = self else { return IBV_QPT_UD };
        match Service::from_wire(req.transport_service, req.extended_transport) {
            Some(Service::Rc) => IBV_QPT_RC,
            Some(Service::Uc) => IBV_QPT_UC,
            Some(Service::Xrc) => IBV_QPT_XRC_RECV,
            None => listening,
        }
    }

    /// Refuses a request for which there is no listener, or a busy one.
    fn refuse(&self, machine: &mut Machine, conn: CommId, is_busy: bool) {
        if let Asked::Connection(_) = self {
            let reason = if is_busy { reason::CONSUMER_DEFINED } else { reason::INVALID_SERVICE_ID };
            let _ = machine.reject(now(), conn, reason, &[], &[]);
        } else {
            let status = if is_busy { sidr::REJECT } else { sidr::UNSUPPORTED };
            let _ = machine.sidr_reply(now(), conn, &SidrRepParams { status, ..SidrRepParams::default() });
        }
        let _ = machine.destroy(now(), conn);
    }
}

fn ece(vendor_id: u32, options: u32) -> ibv_ece {
    ibv_ece { vendor_id, options, ..ibv_ece::default() }
}

/// The address here that a MAD came to.
fn path_source(sources: &[Source], path: &Path) -> Option<Source> {
    let on = |s: &&Source| s.gid.raw == path.sgid && s.device == path.device as usize;
    sources.iter().filter(on).find(|s| s.index == path.sgid_index).or_else(|| sources.iter().find(on)).copied()
}

/// Returns true if an event is the answer that nobody has what was asked for.
fn is_of_nobody(event: &Event) -> bool {
    match event {
        Event::Rejected { reason, .. } => *reason == reason::INVALID_SERVICE_ID,
        Event::SidrReply { rep, .. } => rep.status == sidr::UNSUPPORTED,
        _ => false,
    }
}
