//! The attributes of a QP: `ibv_query_qp(3)`.

use vervain_abi::*;

use crate::ah::AddressVector;
use crate::pd::Access;
use crate::port::Mtu;

/// The state of a QP; `enum ibv_qp_state`, IBA volume 1, 10.3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the specification's names")]
pub enum QpState {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    SendQueueDrained,
    SendQueueError,
    Error,
    /// Another number.
    Other(u32),
}

impl QpState {
    pub(crate) fn of(raw: ibv_qp_state) -> Self {
        match raw {
            IBV_QPS_RESET => Self::Reset,
            IBV_QPS_INIT => Self::Init,
            IBV_QPS_RTR => Self::ReadyToReceive,
            IBV_QPS_RTS => Self::ReadyToSend,
            IBV_QPS_SQD => Self::SendQueueDrained,
            IBV_QPS_SQE => Self::SendQueueError,
            IBV_QPS_ERR => Self::Error,
            other => Self::Other(other),
        }
    }
}

/// The sizes of a QP's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapacity {
    /// Requests that the send queue holds: what was asked for, or more.
    pub max_send: u32,
    /// Receives that its own receive queue holds.
    pub max_receive: u32,
    /// SGEs of one send.
    pub max_send_sges: u32,
    /// SGEs of one receive.
    pub max_receive_sges: u32,
    /// Bytes that a request can carry inline.
    pub max_inline: u32,
}

/// The attributes of a QP, in the units of [`PathOptions`](crate::PathOptions). The driver chooses the value, mostly 0,
/// of an attribute that the transport does not have or that was not set yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAttr {
    /// The state that it is in.
    pub state: QpState,
    /// In SQD: whether requests that were begun are still under way.
    pub draining: bool,
    /// The rights of the peer.
    pub access: Access,
    /// The Q_Key of the datagrams that it takes.
    pub qkey: u32,
    /// The peer's number.
    pub peer: u32,
    /// The way to the peer.
    pub address: AddressVector,
    /// Bytes of payload in a packet.
    pub mtu: Option<Mtu>,
    /// The PSN of its next packet, 24 bits; with some drivers that of the first one.
    pub send_psn: u32,
    /// The PSN that it expects of the peer, 24 bits; as above.
    pub receive_psn: u32,
    /// The port that it leaves by, from 1.
    pub port: u8,
    /// Place of the P_Key in the port's table.
    pub pkey_index: u16,
    /// Time to wait for an acknowledgement.
    pub timeout: u8,
    /// How often to send again where none came.
    pub retry_count: u8,
    /// How often to send again where the peer had no receive posted.
    pub rnr_retry: u8,
    /// Time that a peer must wait after it found no receive here.
    pub min_rnr_timer: u8,
    /// Reads and atomics that may be under way from this side.
    pub max_rd_atomic: u8,
    /// Reads and atomics that may be under way from the peer.
    pub max_dest_rd_atomic: u8,
    /// The sizes of its queues.
    pub capacity: QpCapacity,
}

impl QpAttr {
    /// All that is in it.
    pub(crate) const MASK: u32 = IBV_QP_STATE
        | IBV_QP_ACCESS_FLAGS
        | IBV_QP_PKEY_INDEX
        | IBV_QP_PORT
        | IBV_QP_QKEY
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_CAP
        | IBV_QP_DEST_QPN;

    pub(crate) fn of(raw: &ibv_qp_attr) -> Self {
        Self {
            state: QpState::of(raw.qp_state),
            draining: raw.sq_draining != 0,
            access: Access::from_bits_truncate(raw.qp_access_flags),
            qkey: raw.qkey,
            peer: raw.dest_qp_num,
            address: AddressVector::of(&raw.ah_attr),
            mtu: Mtu::of_raw(raw.path_mtu),
            send_psn: raw.sq_psn,
            receive_psn: raw.rq_psn,
            port: raw.port_num,
            pkey_index: raw.pkey_index,
            timeout: raw.timeout,
            retry_count: raw.retry_cnt,
            rnr_retry: raw.rnr_retry,
            min_rnr_timer: raw.min_rnr_timer,
            max_rd_atomic: raw.max_rd_atomic,
            max_dest_rd_atomic: raw.max_dest_rd_atomic,
            capacity: QpCapacity {
                max_send: raw.cap.max_send_wr,
                max_receive: raw.cap.max_recv_wr,
                max_send_sges: raw.cap.max_send_sge,
                max_receive_sges: raw.cap.max_recv_sge,
                max_inline: raw.cap.max_inline_data,
            },
        }
    }
}
