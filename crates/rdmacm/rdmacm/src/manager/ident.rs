//! The state of an identifier.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use vervain_abi::*;
use vervain_cm::{CommId, Service};
use vervain_gsi::Path;

use super::claims::{Claim, Sharing};
use super::connections::Attempt;
use crate::abi::{RDMA_CM_EVENT_DISCONNECTED, rdma_cm_id};
use crate::device::Route;
use crate::queue::{Outstanding, Queue, Queued};
use crate::reports::{Handle, Report};

/// Exponent of the local ACK timeout that the kernel's rdma_cm gives RoCE: the packet lifetime of 2^18 x 4.096 us,
/// twice.
const ACK_TIMEOUT: u8 = 19;

/// The phase of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Bound,
    ResolvingAddress,
    AddressResolved,
    RouteResolved,
    Connecting,
    /// A request for it has come.
    Requested,
    Accepted,
    Connected,
    Disconnected,
    Listening,
}

/// The state of an identifier.
pub(super) struct Ident {
    pub queue: Arc<Queue>,
    /// Events of it that the program has and has not acknowledged.
    pub outstanding: Arc<Outstanding>,
    /// The program's object for it; None for a request that it has not seen.
    pub object: Option<Object>,
    pub space: u32,
    pub qp_type: ibv_qp_type,
    pub phase: Phase,
    pub from: Option<SocketAddr>,
    pub to: Option<SocketAddr>,
    pub claim: Option<Claim>,
    pub route: Option<Route>,
    pub conn: Option<CommId>,
    /// Its request, until that is answered.
    pub attempt: Option<Attempt>,
    /// The number of requests that may wait, and those that do: the program has not seen them.
    pub backlog: usize,
    pub waiting: Vec<Handle>,
    /// The listener that it came from.
    pub listener: Option<Handle>,
    pub own_psn: u32,
    pub peer_psn: u32,
    pub peer_qpn: u32,
    pub own_depth: u8,
    pub own_resources: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub ack_timeout: u8,
    pub mtu: ibv_mtu,
    pub sharing: Sharing,
    pub traffic_class: u8,
    pub own_ece: ibv_ece,
    pub peer_ece: ibv_ece,
    pub groups: Vec<Group>,
}

/// The program's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object(pub *mut rdma_cm_id);

// SAFETY: an address; each use of it has a reason of its own.
unsafe impl Send for Object {}

#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub mgid: ibv_gid,
    pub address: IpAddr,
}

/// Parameters of `rdma_connect` and `rdma_accept`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnParam {
    pub private_data: Vec<u8>,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: bool,
    pub qpn: u32,
    /// Q_Key, for a UD QP that answers.
    pub qkey: u32,
}

/// The part of an identifier that `struct rdma_cm_id` shows.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub from: Option<SocketAddr>,
    pub to: Option<SocketAddr>,
    pub route: Option<Route>,
    pub has_path: bool,
    pub ack_timeout: u8,
}

impl Ident {
    pub fn new(queue: Arc<Queue>, space: u32, qp_type: ibv_qp_type) -> Ident {
        Ident {
            queue,
            outstanding: Arc::default(),
            object: None,
            space,
            qp_type,
            phase: Phase::Idle,
            from: None,
            to: None,
            claim: None,
            route: None,
            conn: None,
            attempt: None,
            backlog: 0,
            waiting: Vec::new(),
            listener: None,
            own_psn: 0,
            peer_psn: 0,
            peer_qpn: 0,
            own_depth: 0,
            own_resources: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            ack_timeout: ACK_TIMEOUT,
            mtu: IBV_MTU_1024,
            sharing: Sharing::default(),
            traffic_class: 0,
            own_ece: ibv_ece::default(),
            peer_ece: ibv_ece::default(),
            groups: Vec::new(),
        }
    }

    pub fn is_datagram(&self) -> bool {
        self.qp_type == IBV_QPT_UD
    }

    pub fn service(&self) -> Service {
        match self.qp_type {
            IBV_QPT_UC => Service::Uc,
            IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Service::Xrc,
            _ => Service::Rc,
        }
    }

    pub fn tell(&self, id: Handle, report: Report) {
        self.queue.push(Queued { id, outstanding: Arc::clone(&self.outstanding), report });
    }

    /// The connection has ended, by what is known of it.
    pub fn disconnected(&mut self, id: Handle, status: c_int) {
        self.phase = Phase::Disconnected;
        self.tell(id, Report::plain(RDMA_CM_EVENT_DISCONNECTED, status));
    }

    /// The way of its MADs.
    pub fn path(&self) -> Option<Path> {
        let route = self.route?;
        Some(Path {
            device: route.source.device as u32,
            flow_label: 0,
            port: route.source.port,
            sgid_index: route.source.index,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit(),
            sgid: route.source.gid.raw,
            dgid: route.dgid.raw,
        })
    }
}
