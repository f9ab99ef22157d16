//! Events of an identifier, before they are a `struct rdma_cm_event`.

use std::ffi::c_int;

use vervain_abi::{ibv_ah_attr, ibv_gid};

use crate::abi::rdma_cm_event_type;

/// An identifier, for as long as the process lives.
pub(crate) type Handle = u64;

/// An event of an identifier.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub kind: rdma_cm_event_type,
    /// 0, minus an errno value, or the reason of a REJ (IBA 12.6.7.2) or the status of a SIDR_REP (12.11.2.1).
    pub status: c_int,
    pub what: What,
}

/// The data of an event.
#[derive(Debug, Clone)]
pub(crate) enum What {
    Nothing,
    /// A request, with the identifier that was made for it.
    Request {
        new: Handle,
        says: ConnParam,
    },
    Connection(ConnParam),
    Datagrams {
        says: ConnParam,
        ah: ibv_ah_attr,
        qkey: u32,
    },
    /// A group that was joined, or not: which, by the program's word for it.
    Group {
        mgid: ibv_gid,
        ah: ibv_ah_attr,
        context: usize,
    },
    /// The word of an event of the program's own.
    Argument(u64),
}

/// Parameters of `rdma_connect` and `rdma_accept`, of either side.
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
    /// Q_Key, for a UD QP that answers; 0 in what a peer has sent.
    pub qkey: u32,
}

impl Report {
    pub fn plain(kind: rdma_cm_event_type, status: c_int) -> Report {
        Report { kind, status, what: What::Nothing }
    }
}
