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

impl SendQueue {
    /// The requests that have not completed, the oldest first, and its progress.
    pub(crate) fn save(&self) -> (Vec<SavedSend>, SavedProgress) {
        let count = self.wq.waiting();
        let sends = (0..count).map(|n| self.save_request(self.wq.head().wrapping_add(n))).collect();
        let begun = count != 0 && self.has_begun();
        (sends, SavedProgress { begun, unanswered: count != 0 && self.exec.unanswered })
    }

    fn save_request(&self, n: u32) -> SavedSend {
        let i = self.wq.place(n);
        let w = &self.wq[i];
        let request = &w.request;
        let is = |kinds: &[Opcode]| kinds.contains(&request.opcode);
        let data = match self.wq.inline_data(i) {
            Some(bytes) => SavedData::Inline(bytes.to_vec()),
            None => SavedData::Sges(self.wq.sges(i).to_vec()),
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
            ud: (self.is_ud).then(|| self.wq.ud_address(i)).map(|to| (to.ah, to.qpn, to.qkey)),
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

    /// Gives the oldest request this progress.
    pub(crate) fn resume(&mut self, progress: SavedProgress) {
        self.exec.resumed = progress.begun && !self.wq.is_empty();
        self.exec.unanswered = progress.unanswered && !self.wq.is_empty();
    }
}

impl Qp {
    /// Posts requests again. The QP is stopped, in a state in which they may be posted.
    pub(crate) fn post_again(&self, sends: &[SavedSend], objects: &impl Restored) -> Result<()> {
        for send in sends {
            let lost = || Error::invalid("a request names a memory window or region that is not there");
            let ah = match (&send.ud, self.pd()) {
                (Some((attr, ..)), Some(pd)) => Some(Ah::create(pd, attr)?),
                _ => None,
            };
            let bind = send.bind.map(|bind| {
                let mw = objects.window(bind.mw >> 8).ok_or_else(lost)?;
                let mr = bind.mr.map(|key| objects.region(key).ok_or_else(lost)).transpose()?;
                let SavedBind { new_rkey, addr, length, access, .. } = bind;
                Ok::<_, Error>(Bind { mw, new_rkey, mr, addr, length, access })
            });
            let inline: &[&[u8]] = &[match &send.data {
                SavedData::Inline(bytes) => bytes,
                SavedData::Sges(_) => &[],
            }];
            let request = SendRequest {
                wr_id: send.wr_id,
                opcode: send.opcode,
                flags: send.flags,
                imm_or_rkey: send.imm_or_rkey,
                remote_addr: send.remote_addr,
                rkey: send.rkey,
                compare_add: send.compare_add,
                swap: send.swap,
                data: match &send.data {
                    SavedData::Sges(sges) => Data::Sges(sges),
                    SavedData::Inline(_) => Data::Inline(inline),
                },
                ud: match (&ah, send.ud) {
                    (Some(ah), Some((_, qpn, qkey))) => Some(UdDest { ah, qpn, qkey }),
                    _ => None,
                },
                srqn: send.srqn,
                bind: bind.transpose()?,
                flush: send.flush,
            };
            let posted = self.post_send(|poster| poster.push(&request));
            ah.iter().try_for_each(|ah| ah.destroy())?;
            posted?;
        }
        Ok(())
    }
}
