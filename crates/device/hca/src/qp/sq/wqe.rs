//! Send work: the request that the program posts ([`SendRequest`]), and the send queue's copy of it.

use crate::error::Error;
use crate::mr::Mr;
use crate::mr::mw::Mw;
use crate::qp::ah::{Ah, Route};
use crate::qp::base::QpBase;
use std::sync::Arc;
use vervain_iba::{AhAttr, Flush, Opcode, QpState, QpType, Request, Sge, send_flags};

/// One send work request, as the ABI hands it over. Everything borrowed is only read during the call.
#[derive(Default)]
pub struct SendRequest<'a> {
    /// The program's cookie.
    pub wr_id: u64,
    /// The operation.
    pub opcode: Opcode,
    /// `IBV_SEND_*`.
    pub flags: u32,
    /// Immediate data as on the wire, or the key to invalidate.
    pub imm_or_rkey: u32,
    /// Remote address (RDMA, atomics, flush).
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Compare value or addend.
    pub compare_add: u64,
    /// Swap value.
    pub swap: u64,
    /// The payload, or the memory for the answer.
    pub data: Data<'a>,
    /// Destination (UD).
    pub ud: Option<UdDest<'a>>,
    /// Destination SRQ (XRC).
    pub srqn: u32,
    /// Window to bind.
    pub bind: Option<Bind<'a>>,
    /// Placement and extent of a flush.
    pub flush: Flush,
}

/// A request's payload.
#[derive(Default)]
pub enum Data<'a> {
    /// No payload.
    #[default]
    None,
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Buffers that are copied at posting.
    Inline(&'a [&'a [u8]]),
}

/// A datagram's destination.
pub struct UdDest<'a> {
    /// Address handle.
    pub ah: &'a Ah,
    /// QP number.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
}

/// A bind of a memory window.
pub struct Bind<'a> {
    /// The window.
    pub mw: &'a Arc<Mw>,
    /// Its new key.
    pub new_rkey: u32,
    /// The region under it; None unbinds.
    pub mr: Option<&'a Arc<Mr>>,
    /// First address.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// Access rights.
    pub access: u32,
}

/// A posted request. Fields that its operation does not use are left from an earlier one.
#[derive(Default)]
pub(crate) struct Wqe {
    /// The program's cookie.
    pub wr_id: u64,
    /// The request to the peer.
    pub request: Request,
    /// Scatter/gather elements of its data.
    pub num_sge: u32,
    /// True: its data was copied when it was posted.
    pub is_inline: bool,
    /// The bind of a window, if it is one.
    pub bind: Option<Box<BindWork>>,
}

/// A [`Bind`] that waits its turn.
pub(crate) struct BindWork {
    pub mw: Arc<Mw>,
    pub new_rkey: u32,
    pub mr: Option<Arc<Mr>>,
    pub addr: u64,
    pub length: u64,
    pub access: u32,
}

impl BindWork {
    pub(crate) fn of(bind: &Bind<'_>) -> Box<BindWork> {
        Box::new(BindWork {
            mw: Arc::clone(bind.mw),
            new_rkey: bind.new_rkey,
            mr: bind.mr.cloned(),
            addr: bind.addr,
            length: bind.length,
            access: bind.access,
        })
    }
}

/// A datagram's destination that waits its turn; kept beside the WQEs of UD QPs only.
#[derive(Clone, Copy, Default)]
pub(crate) struct UdAddress {
    pub ah: AhAttr,
    pub route: Route,
    pub qpn: u32,
    pub qkey: u32,
}

/// A work request in the program's own layout; each part is read when it is needed.
pub trait WorkRequest {
    /// The program's cookie.
    fn wr_id(&self) -> u64;
    /// `IBV_SEND_*`.
    fn flags(&self) -> u32;
    /// Local memory, in one piece; with `IBV_SEND_INLINE` the program's bytes.
    fn data(&self) -> Sge;
    /// Immediate data as on the wire.
    fn imm(&self) -> u32;
    /// Remote address and key of a read or write.
    fn remote(&self) -> (u64, u32);
    /// Remote address and key, compare value or addend, and swap value of an atomic.
    fn atomic(&self) -> (u64, u32, u64, u64);
}

/// A WQE with at most one piece of data, as the fast path reads it.
pub(crate) struct Queued<'a> {
    pub wqe: &'a Wqe,
    /// Flags of the request; `IBV_SEND_INLINE` if the queue has a copy of the data.
    pub flags: u32,
    pub data: Sge,
}

impl WorkRequest for Queued<'_> {
    fn wr_id(&self) -> u64 {
        self.wqe.wr_id
    }

    fn flags(&self) -> u32 {
        self.flags
    }

    fn data(&self) -> Sge {
        self.data
    }

    fn imm(&self) -> u32 {
        self.wqe.request.imm_or_rkey
    }

    fn remote(&self) -> (u64, u32) {
        (self.wqe.request.remote_addr, self.wqe.request.rkey)
    }

    fn atomic(&self) -> (u64, u32, u64, u64) {
        let Request { remote_addr, rkey, compare_add, swap, .. } = self.wqe.request;
        (remote_addr, rkey, compare_add, swap)
    }
}

/// Operations of a service type, one bit for each opcode (IBA 10.8.3, table 91; annexes A14, A19).
pub(crate) fn allowed(qp_type: QpType) -> u32 {
    use Opcode::*;
    let bits = |list: &[Opcode]| list.iter().fold(0, |bits, o| bits | 1 << *o as u32);
    let unreliable = bits(&[Write, WriteImm, Send, SendImm, SendInv, LocalInv, BindMw]);
    match qp_type {
        QpType::Rc | QpType::XrcSend => unreliable | bits(&[Read, CompareSwap, FetchAdd, Flush, AtomicWrite]),
        QpType::Uc => unreliable,
        QpType::Ud => bits(&[Send, SendImm]),
        QpType::XrcRecv => 0,
    }
}

/// The reason why a request cannot be posted on `qp` as it is.
#[cold]
#[inline(never)]
pub(crate) fn refusal(qp: &QpBase, request: &SendRequest<'_>) -> Error {
    if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Rtr) {
        return Error::invalid(format!("QP {:#x}: cannot post sends in {}", qp.qp_num(), qp.state()));
    }
    if allowed(qp.qp_type()) >> request.opcode as u32 & 1 == 0 {
        return Error::invalid(format!("{:?} is not possible on a QP of type {}", request.opcode, qp.qp_type()));
    }
    if request.flags & send_flags::IP_CSUM != 0 {
        return Error::invalid("checksum offload is not offered");
    }
    if request.flags & send_flags::INLINE != 0 && request.opcode.answers() {
        return Error::invalid("an operation that fetches data cannot be inline");
    }
    Error::invalid("a datagram needs an address handle")
}
