//! What a responder has refused, in a sentence for either end (DESIGN decision 11). Whoever finds the fault, which by memory is
//! the initiator, leaves it in the QP; the owner reads it there when it hears that its QP has failed.

use crate::arena::layout::refused::{INVALIDATION, RECEIVE, TOO_LONG, TOO_LONG_SO_FAR};
use crate::arena::layout::{KeyEntry, QpShared};
use crate::responder::Responder;
use std::sync::atomic::Ordering;
use vervain_iba::{access, wc};

/// A message and the receive that it does not fit, or the state of it that is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoilt {
    /// `enum ibv_wc_status` of the receive.
    pub status: u32,
    /// Bytes of the message.
    pub length: u64,
    /// All of it; else more may follow.
    pub whole: bool,
}

/// Who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Requester,
    Responder,
}

impl Responder {
    /// Notes an operation that needs the rights `need` to bytes `[addr, addr + len)` of `rkey`, and does not have them. Inside
    /// the mark.
    #[cold]
    pub fn note_access(&self, rkey: u32, addr: u64, len: u64, need: u32) {
        self.note(need, rkey, addr, len);
    }

    /// Notes why receive `wqe` was spoilt.
    #[cold]
    pub(super) fn note_spoilt(&self, wqe: u32, spoilt: Spoilt) {
        let kind = match spoilt.status {
            wc::LOC_LEN_ERR if spoilt.whole => TOO_LONG,
            wc::LOC_LEN_ERR => TOO_LONG_SO_FAR,
            wc::LOC_PROT_ERR => RECEIVE,
            _ => INVALIDATION,
        };
        self.note(kind, 0, self.receive_room(wqe), spoilt.length);
    }

    fn note(&self, kind: u32, key: u32, addr: u64, len: u64) {
        let refused = &self.qp.refused;
        refused.kind.store(kind, Ordering::Relaxed);
        refused.key.store(key, Ordering::Relaxed);
        refused.addr.store(addr, Ordering::Relaxed);
        refused.len.store(len, Ordering::Relaxed);
    }

    /// What was noted last, for the initiator that has noted it.
    #[cold]
    pub(crate) fn why_refused(&self) -> Option<String> {
        why(&self.qp, &*self.keys, self.pd(), End::Requester)
    }
}

/// The status of the receive whose message was refused so (`enum ibv_wc_status`).
pub(crate) fn receive_status(qp: &QpShared) -> u32 {
    match qp.refused.kind.load(Ordering::Relaxed) {
        TOO_LONG | TOO_LONG_SO_FAR => wc::LOC_LEN_ERR,
        RECEIVE => wc::LOC_PROT_ERR,
        _ => wc::REM_INV_REQ_ERR,
    }
}

/// What was noted last of a request to `qp`, whose process has these keys and which holds them against domain `pd`: as far as the
/// keys tell it now.
#[cold]
pub(crate) fn why(qp: &QpShared, keys: &[KeyEntry], pd: u32, told: End) -> Option<String> {
    let noted = &qp.refused;
    let (rkey, addr, len) =
        (noted.key.load(Ordering::Relaxed), noted.addr.load(Ordering::Relaxed), noted.len.load(Ordering::Relaxed));
    let (at_the_peer, qp_is) = match told {
        End::Requester => (" at the peer", "the peer's QP"),
        End::Responder => ("", "the QP"),
    };
    let need = match noted.kind.load(Ordering::Relaxed) {
        0 => return None,
        TOO_LONG => return Some(format!("the message of {len} bytes is longer than the receive of {addr}")),
        TOO_LONG_SO_FAR => {
            return Some(format!("the message, of which {len} bytes have come, is longer than the receive of {addr}"));
        }
        RECEIVE => {
            return Some(format!(
                "an SGE of the receive{at_the_peer} names memory that its lkey does not cover or that lacks \
                 IBV_ACCESS_LOCAL_WRITE"
            ));
        }
        INVALIDATION => return Some(format!("the key that the Send invalidates is no window of {qp_is}")),
        need => need,
    };
    let right = match need {
        access::REMOTE_WRITE => "IBV_ACCESS_REMOTE_WRITE",
        access::REMOTE_READ => "IBV_ACCESS_REMOTE_READ",
        access::REMOTE_ATOMIC => "IBV_ACCESS_REMOTE_ATOMIC",
        access::FLUSH_GLOBAL => "IBV_ACCESS_FLUSH_GLOBAL",
        access::FLUSH_PERSISTENT => "IBV_ACCESS_FLUSH_PERSISTENT",
        _ => "the rights that it takes",
    };
    if need == access::REMOTE_ATOMIC && !addr.is_multiple_of(8) {
        return Some(format!("an atomic's address is a multiple of 8, {addr:#x} is not"));
    }
    if qp.access.load(Ordering::Relaxed) & need != need {
        return Some(format!("{qp_is} lacks {right} in its qp_access_flags"));
    }
    let entry = keys.get((rkey >> 8) as usize).filter(|entry| entry.key.load(Ordering::Acquire) == u64::from(rkey));
    let Some(entry) = entry else {
        return Some(format!("rkey {rkey:#x} is not registered{at_the_peer}"));
    };
    if entry.access.load(Ordering::Relaxed) & need != need {
        return Some(format!("the MR of rkey {rkey:#x} lacks {right}"));
    }
    let (start, size) = (entry.iova.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
    let offset = addr.wrapping_sub(start);
    if offset > size || len > size - offset {
        let (last, end) = (addr.wrapping_add(len), start.wrapping_add(size));
        return Some(format!(
            "addresses {addr:#x} to {last:#x} are not all inside the MR of rkey {rkey:#x}, which is {start:#x} to {end:#x}"
        ));
    }
    if entry.pd() != pd {
        return Some(format!("the MR of rkey {rkey:#x} is of another protection domain than {qp_is}"));
    }
    Some(format!("the window or MR of rkey {rkey:#x} does not allow it"))
}
