//! The requests of a stopped send queue, for an image of it. The data of the oldest one is moved again from the start.

use crate::error::{Error, Result};
use crate::mr::Mr;
use crate::mr::mw::Mw;
use crate::qp::Qp;
use crate::qp::ah::Ah;
use crate::qp::sq::SendQueue;
use crate::qp::sq::wqe::{Bind, Data, SendRequest, UdDest};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use vervain_iba::{AhAttr, Flush, Opcode, Sge};

/// The data of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedData {
    /// Registered memory.
    Sges(Vec<Sge>),
    /// Data that was copied when it was posted.
    Inline(Vec<u8>),
}

/// A bind of a memory window that waits its turn ([`Bind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBind {
    /// A key that the window has had.
    pub mw: u32,
    /// Its new key.
    pub new_rkey: u32,
    /// The key of the region under it.
    pub mr: Option<u32>,
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// `IBV_ACCESS_*`.
    pub access: u32,
}

/// A request that has not completed ([`SendRequest`]). Fields that its operation does not use are 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SavedSend {
    pub wr_id: u64,
    pub opcode: Opcode,
    pub flags: u32,
    pub imm_or_rkey: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub compare_add: u64,
    pub swap: u64,
    pub data: SavedData,
    /// Address, QP number and Q_Key of a datagram.
    pub ud: Option<(AhAttr, u32, u32)>,
    pub srqn: u32,
    pub flush: Flush,
    pub bind: Option<SavedBind>,
}

/// Progress of the oldest request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedProgress {
    /// True: it was begun, so that a send queue that drains finishes it (IBA 10.3.1.5).
    pub begun: bool,
    /// True: it is an atomic that was carried out, but its answer could not be stored: it is not carried out again.
    pub unanswered: bool,
}

/// Restored objects that requests refer to.
pub trait Restored {
    /// The window with this index of keys.
    fn window(&self, index: u32) -> Option<&Arc<Mw>>;

    /// The region with this key.
    fn region(&self, key: u32) -> Option<&Arc<Mr>>;
}

impl SavedProgress {
    /// That of `sq`.
    pub(crate) fn of(sq: &SendQueue) -> SavedProgress {
        let waits = !sq.wq.is_empty();
        SavedProgress { begun: waits && sq.has_begun(), unanswered: waits && sq.exec.unanswered }
    }
}

impl SavedSend {
    /// The requests of `sq` that have not completed, the oldest first.
    pub(crate) fn all_of(sq: &SendQueue) -> Vec<SavedSend> {
        (0..sq.wq.waiting()).map(|n| Self::of(sq, sq.wq.head().wrapping_add(n))).collect()
    }

    /// Request `n` of `sq`.
    fn of(sq: &SendQueue, n: u32) -> SavedSend {
        let i = sq.wq.place(n);
        let w = &sq.wq[i];
        let request = &w.request;
        let is = |kinds: &[Opcode]| kinds.contains(&request.opcode);
        let data = match sq.wq.inline_data(i) {
            Some(bytes) => SavedData::Inline(bytes.to_vec()),
            None => SavedData::Sges(sq.wq.sges(i).to_vec()),
        };
        let atomic = is(&[Opcode::CompareSwap, Opcode::FetchAdd]);
        SavedSend {
            wr_id: w.wr_id,
            opcode: request.opcode,
            flags: request.flags,
            imm_or_rkey: request.imm_or_rkey,
            remote_addr: request.remote_addr,
            rkey: request.rkey,
            compare_add: if atomic { request.compare_add } else { 0 },
            swap: if atomic { request.swap } else { 0 },
            data,
            ud: sq.is_ud.then(|| sq.wq.ud_address(i)).map(|to| (to.ah, to.qpn, to.qkey)),
            srqn: request.srqn,
            flush: if is(&[Opcode::Flush]) { request.flush } else { Flush::default() },
            bind: w.bind.as_ref().map(|bind| SavedBind {
                mw: bind.mw.rkey(),
                new_rkey: bind.new_rkey,
                mr: bind.mr.as_ref().map(|mr| mr.lkey()),
                addr: bind.addr,
                length: bind.length,
                access: bind.access,
            }),
        }
    }

    /// Posts the request again. `qp` is stopped, in a state in which requests may be posted.
    pub(crate) fn post(&self, qp: &Qp, objects: &impl Restored) -> Result<()> {
        let lost = || Error::invalid("a request names a memory window or region that is not there");
        let ah = match (&self.ud, qp.pd()) {
            (Some((attr, ..)), Some(pd)) => Some(Ah::create(pd, attr)?),
            _ => None,
        };
        let bind = self.bind.map(|bind| {
            let mw = objects.window(bind.mw >> 8).ok_or_else(lost)?;
            let mr = bind.mr.map(|key| objects.region(key).ok_or_else(lost)).transpose()?;
            let SavedBind { new_rkey, addr, length, access, .. } = bind;
            Ok::<_, Error>(Bind { mw, new_rkey, mr, addr, length, access })
        });
        let inline: &[&[u8]] = &[match &self.data {
            SavedData::Inline(bytes) => bytes,
            SavedData::Sges(_) => &[],
        }];
        let request = SendRequest {
            wr_id: self.wr_id,
            opcode: self.opcode,
            flags: self.flags,
            imm_or_rkey: self.imm_or_rkey,
            remote_addr: self.remote_addr,
            rkey: self.rkey,
            compare_add: self.compare_add,
            swap: self.swap,
            data: match &self.data {
                SavedData::Sges(sges) => Data::Sges(sges),
                SavedData::Inline(_) => Data::Inline(inline),
            },
            ud: match (&ah, self.ud) {
                (Some(ah), Some((_, qpn, qkey))) => Some(UdDest { ah, qpn, qkey }),
                _ => None,
            },
            srqn: self.srqn,
            bind: bind.transpose()?,
            flush: self.flush,
        };
        let posted = qp.post_send(|poster| poster.push(&request));
        ah.iter().try_for_each(|ah| ah.destroy())?;
        posted
    }
}
