//! A request of a send queue and its outcome: its operation, the right that it takes to the peer's memory, the
//! responder's refusal and the status of its completion.

use crate::{access, event, send_flags};
use serde::{Deserialize, Serialize};

verbs_enum! {
    /// Send-side operations (`enum ibv_wr_opcode`).
    Opcode {
        /// RDMA Write.
        Write = 0,
        /// RDMA Write with immediate.
        WriteImm = 1,
        /// Send.
        Send = 2,
        /// Send with immediate.
        SendImm = 3,
        /// RDMA Read.
        Read = 4,
        /// Compare and swap.
        CompareSwap = 5,
        /// Fetch and add.
        FetchAdd = 6,
        /// Local invalidate.
        LocalInv = 7,
        /// Bind a memory window.
        BindMw = 8,
        /// Send with invalidate.
        SendInv = 9,
        /// Flush (IBA annex A19).
        Flush = 14,
        /// Atomic write of 8 bytes (IBA annex A19).
        AtomicWrite = 15,
    }
}

/// The specification's name.
impl std::fmt::Display for Opcode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Opcode::Write => "RDMA Write",
            Opcode::WriteImm => "RDMA Write with immediate",
            Opcode::Send => "Send",
            Opcode::SendImm => "Send with immediate",
            Opcode::Read => "RDMA Read",
            Opcode::CompareSwap => "compare and swap",
            Opcode::FetchAdd => "fetch and add",
            Opcode::LocalInv => "local invalidate",
            Opcode::BindMw => "bind of a memory window",
            Opcode::SendInv => "Send with invalidate",
            Opcode::Flush => "flush",
            Opcode::AtomicWrite => "atomic write",
        })
    }
}

/// Send, which every service has.
impl Default for Opcode {
    fn default() -> Self {
        Opcode::Send
    }
}

impl Opcode {
    /// `enum ibv_wc_opcode` of its completion.
    #[inline]
    pub fn wc_opcode(self) -> u32 {
        match self {
            Opcode::Send | Opcode::SendImm | Opcode::SendInv => 0,
            Opcode::Write | Opcode::WriteImm => 1,
            Opcode::Read => 2,
            Opcode::CompareSwap => 3,
            Opcode::FetchAdd => 4,
            Opcode::BindMw => 5,
            Opcode::LocalInv => 6,
            Opcode::Flush => 8,
            Opcode::AtomicWrite => 9,
        }
    }

    /// Returns true for an operation that this process does alone: nothing of it goes to the peer.
    #[inline]
    pub fn is_local(self) -> bool {
        matches!(self, Opcode::LocalInv | Opcode::BindMw)
    }

    /// Returns true for an operation whose message goes into a receive WQE of the peer.
    #[inline]
    pub fn is_send(self) -> bool {
        matches!(self, Opcode::Send | Opcode::SendImm | Opcode::SendInv)
    }

    /// Returns true for an operation that answers with data: Read and the two fetching atomics.
    #[inline]
    pub fn answers(self) -> bool {
        matches!(self, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd)
    }
}

/// The right to remote memory that a request takes (IBA 9.7.4.1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// RDMA Write and atomic write.
    Write,
    /// RDMA Read.
    Read,
    /// Atomics that fetch.
    Atomic,
    /// Flush to this placement: bit 0 global visibility, bit 1 persistence.
    Flush(u32),
}

impl Right {
    /// `IBV_ACCESS_*` of the memory.
    #[inline]
    pub fn access(self) -> u32 {
        match self {
            Right::Write => access::REMOTE_WRITE,
            Right::Read => access::REMOTE_READ,
            Right::Atomic => access::REMOTE_ATOMIC,
            Right::Flush(placement) => {
                let of = |bit: u32, right| if placement & bit != 0 { right } else { 0 };
                of(1, access::FLUSH_GLOBAL) | of(2, access::FLUSH_PERSISTENT)
            }
        }
    }
}

/// The extent and placement of an RDMA Flush (IBA annex A19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flush {
    /// `enum ibv_placement_type` bits: 1 global visibility, 2 persistence.
    pub placement: u32,
    /// `enum ibv_selectivity_level`: 0 range, 1 region.
    pub level: u32,
    /// Bytes of the range.
    pub length: u64,
}

/// A request of a send queue, as the peer sees it. Fields that its operation does not use have no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub opcode: Opcode,
    /// `IBV_SEND_*`.
    pub flags: u32,
    /// Bytes of payload, or of the answer.
    pub length: u64,
    /// Remote address (RDMA, atomics, flush).
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Immediate data as on the wire, or the key to invalidate.
    pub imm_or_rkey: u32,
    /// Compare value or addend.
    pub compare_add: u64,
    /// Swap value.
    pub swap: u64,
    /// Destination SRQ (XRC); 0: none.
    pub srqn: u32,
    /// Extent and placement of a flush.
    pub flush: Flush,
}

impl Request {
    /// The remote memory that it reaches, in bytes, and the right to it that it takes; None: it reaches none.
    pub fn reaches(&self) -> Option<(u64, Right)> {
        match self.opcode {
            Opcode::Write | Opcode::WriteImm | Opcode::AtomicWrite => Some((self.length, Right::Write)),
            Opcode::Read => Some((self.length, Right::Read)),
            Opcode::CompareSwap | Opcode::FetchAdd => Some((self.length, Right::Atomic)),
            Opcode::Flush => Some((self.flush.length, Right::Flush(self.flush.placement))),
            _ => None,
        }
    }

    /// Returns true if it waits for earlier reads and atomics.
    #[inline]
    pub fn is_fenced(&self) -> bool {
        self.flags & send_flags::FENCE != 0
    }

    /// Returns true if it asks for a solicited event at the peer.
    #[inline]
    pub fn is_solicited(&self) -> bool {
        self.flags & send_flags::SOLICITED != 0
    }
}

verbs_enum! {
    /// The outcome of a request (`enum ibv_wc_status`). Images of a context name a variant by its place here: a new one
    /// goes last.
    Status {
        /// Success.
        Success = 0,
        /// Local length error.
        LocalLength = 1,
        /// Local QP operation error.
        LocalQpOperation = 2,
        /// Local protection error.
        LocalProtection = 4,
        /// Bad response error.
        BadResponse = 7,
        /// Remote invalid request error.
        RemoteInvalidRequest = 9,
        /// Remote access error.
        RemoteAccess = 10,
        /// Remote operation error.
        RemoteOperation = 11,
        /// Transport retry counter exceeded.
        RetryExceeded = 12,
        /// RNR retry counter exceeded.
        RnrRetryExceeded = 13,
        /// Work request flushed error.
        Flushed = 5,
        /// Memory management operation error, which the verbs call `MW_BIND_ERR`.
        MwBind = 6,
    }
}

/// The name in `verbs.h`: `IBV_WC_SUCCESS`.
impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Status::Success => "IBV_WC_SUCCESS",
            Status::LocalLength => "IBV_WC_LOC_LEN_ERR",
            Status::LocalQpOperation => "IBV_WC_LOC_QP_OP_ERR",
            Status::LocalProtection => "IBV_WC_LOC_PROT_ERR",
            Status::BadResponse => "IBV_WC_BAD_RESP_ERR",
            Status::RemoteInvalidRequest => "IBV_WC_REM_INV_REQ_ERR",
            Status::RemoteAccess => "IBV_WC_REM_ACCESS_ERR",
            Status::RemoteOperation => "IBV_WC_REM_OP_ERR",
            Status::RetryExceeded => "IBV_WC_RETRY_EXC_ERR",
            Status::RnrRetryExceeded => "IBV_WC_RNR_RETRY_EXC_ERR",
            Status::Flushed => "IBV_WC_WR_FLUSH_ERR",
            Status::MwBind => "IBV_WC_MW_BIND_ERR",
        })
    }
}

/// The reasons why a responder refuses a request (IBA 9.7.5.2.8, 9.9.3). Images of a context name a variant by its
/// place: a new one goes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nak {
    /// No answer: the QP is gone, not ready, in error, or connected elsewhere. A packet counts as lost.
    Silence,
    /// Receiver not ready; the encoded timer (IBA table 45).
    ReceiverNotReady(u8),
    /// Invalid request.
    InvalidRequest,
    /// Remote access error.
    RemoteAccess,
    /// Remote operational error.
    RemoteOperation,
}

impl Nak {
    /// The affiliated asynchronous event with which it ends the QP of a reliable service (IBA 9.9.3, class C;
    /// 11.6.3.2). None if the QP goes on.
    pub fn event(self) -> Option<u32> {
        match self {
            Nak::RemoteAccess => Some(event::QP_ACCESS_ERR),
            Nak::InvalidRequest => Some(event::QP_REQ_ERR),
            Nak::RemoteOperation => Some(event::QP_FATAL),
            Nak::Silence | Nak::ReceiverNotReady(_) => None,
        }
    }
}
