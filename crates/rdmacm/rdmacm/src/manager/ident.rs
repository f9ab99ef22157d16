//! The state of an identifier.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use vervain_abi::*;
use vervain_cm::{CommId, Service};
use vervain_gsi::Path;

use super::claims::{Claim, Sharing};
use super::connections::Attempt;
use super::parameters::Parameters;
use crate::abi::{RDMA_CM_EVENT_DISCONNECTED, rdma_cm_id};
use crate::device::Route;
use crate::queue::{Events, Queue};
use crate::reports::{Handle, Report};

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
    pub events: Events,
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
    pub backlog: Backlog,
    /// The listener that it came from.
    pub listener: Option<Handle>,
    pub parameters: Parameters,
    pub sharing: Sharing,
    pub traffic_class: u8,
    pub own_ece: ibv_ece,
    pub peer_ece: ibv_ece,
    pub groups: Vec<Group>,
}

/// The requests for a listener that the program has not seen.
#[derive(Default)]
pub(super) struct Backlog {
    most: usize,
    waiting: Vec<Handle>,
}

impl Backlog {
    /// Lets so many wait from now on.
    pub fn open(&mut self, most: usize) {
        self.most = most;
    }

    pub fn is_full(&self) -> bool {
        self.waiting.len() >= self.most
    }

    pub fn push(&mut self, request: Handle) {
        self.waiting.push(request);
    }

    pub fn remove(&mut self, request: Handle) {
        self.waiting.retain(|waiting| *waiting != request);
    }

    /// All of them.
    pub fn into_waiting(self) -> Vec<Handle> {
        self.waiting
    }
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
    pub fn new(id: Handle, queue: Arc<Queue>, space: u32, qp_type: ibv_qp_type) -> Ident {
        Ident {
            events: Events::new(id, queue),
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
            backlog: Backlog::default(),
            listener: None,
            parameters: Parameters::new(),
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

    /// The connection has ended, by what is known of it.
    pub fn disconnected(&mut self, status: c_int) {
        self.phase = Phase::Disconnected;
        self.events.push(Report::plain(RDMA_CM_EVENT_DISCONNECTED, status));
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
