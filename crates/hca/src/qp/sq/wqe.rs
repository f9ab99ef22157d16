//! Send work: what the program posts ([`SendRequest`]) and what the send queue keeps of it.

use crate::mr::Mr;
use crate::mr::mw::Mw;
use crate::qp::ah::{Ah, Route};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use vervain_iba::{AhAttr, Opcode, Sge};

/// One send work request, as the ABI hands it over. Everything borrowed is only read during the call.
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
    /// The payload, or where the answer goes.
    pub data: Data<'a>,
    /// Destination (UD).
    pub ud: Option<UdDest<'a>>,
    /// Destination SRQ (XRC).
    pub srqn: u32,
    /// Window to bind.
    pub bind: Option<Bind<'a>>,
    /// What to flush.
    pub flush: Flush,
}

impl Default for SendRequest<'_> {
    fn default() -> Self {
        SendRequest {
            wr_id: 0,
            opcode: Opcode::Send,
            flags: 0,
            imm_or_rkey: 0,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            data: Data::None,
            ud: None,
            srqn: 0,
            bind: None,
            flush: Flush::default(),
        }
    }
}

/// A request's payload.
pub enum Data<'a> {
    /// Nothing.
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
    /// The region under it; none unbinds.
    pub mr: Option<&'a Arc<Mr>>,
    /// First address.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// Access rights.
    pub access: u32,
}

/// What an RDMA Flush asks for (IBA annex A19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flush {
    /// `enum ibv_placement_type` bits: 1 global visibility, 2 persistence.
    pub placement: u32,
    /// `enum ibv_selectivity_level`: 0 range, 1 region.
    pub level: u32,
    /// Bytes.
    pub length: u64,
}

/// A posted request. What does not belong to its operation is left from an earlier one.
pub(crate) struct Wqe {
    pub wr_id: u64,
    pub opcode: Opcode,
    pub flags: u32,
    pub num_sge: u32,
    /// Bytes of inline data, if the data is inline.
    pub inline_len: Option<u32>,
    /// Bytes in all.
    pub length: u64,
    pub imm_or_rkey: u32,
    pub rkey: u32,
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub srqn: u32,
    pub flush: Flush,
    pub bind: Option<Box<BindWork>>,
}

impl Default for Wqe {
    fn default() -> Self {
        Wqe {
            wr_id: 0,
            opcode: Opcode::Send,
            flags: 0,
            num_sge: 0,
            inline_len: None,
            length: 0,
            imm_or_rkey: 0,
            rkey: 0,
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            srqn: 0,
            flush: Flush::default(),
            bind: None,
        }
    }
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

/// A work request as the program laid it out; each part is read when it is needed.
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

/// A WQE with at most one piece of data.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    pub wr_id: u64,
    pub flags: u32,
    pub data: Sge,
    pub imm: u32,
    pub rkey: u32,
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
}

impl WorkRequest for Queued {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn flags(&self) -> u32 {
        self.flags
    }

    fn data(&self) -> Sge {
        self.data
    }

    fn imm(&self) -> u32 {
        self.imm
    }

    fn remote(&self) -> (u64, u32) {
        (self.remote_addr, self.rkey)
    }

    fn atomic(&self) -> (u64, u32, u64, u64) {
        (self.remote_addr, self.rkey, self.compare_add, self.swap)
    }
}
