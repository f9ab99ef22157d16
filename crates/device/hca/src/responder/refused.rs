//! Refusals of a responder, in a sentence for either end (DESIGN decision 11). The thread that finds the fault, by
//! memory the initiator's, leaves it in the QP; the owner reads it when its QP has failed.

use crate::arena::layout::refused::{INVALIDATION, RECEIVE, TOO_LONG, TOO_LONG_SO_FAR};
use crate::arena::layout::{KEY_NULL, KEY_WINDOW2, KeyEntry, QpShared, Refused};
use std::sync::atomic::Ordering;
use vervain_iba::{Right, Status, access};

/// A message and the receive that it does not fit, or the receive's state that is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoilt {
    /// The status that the receive ends with.
    pub status: Status,
    /// Bytes of the message.
    pub length: u64,
    /// True: all of it; else more may follow.
    pub whole: bool,
}

/// The end that the sentence is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Requester,
    Responder,
}

/// A use of a key, to be explained when it was refused.
pub(crate) struct KeyUse<'a> {
    /// "lkey" or "rkey".
    pub(crate) name: &'a str,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// `IBV_ACCESS_*`.
    pub(crate) need: u32,
    /// The protection domain of the QP.
    pub(crate) pd: u32,
    /// Name of the QP in the sentence.
    pub(crate) qp: &'a str,
    /// The place of the key in the sentence: " at the peer", or empty.
    pub(crate) place: &'a str,
}

impl KeyUse<'_> {
    /// The fault that these keys find in it; None if they allow it.
    #[cold]
    pub(crate) fn fault(&self, keys: &[KeyEntry]) -> Option<String> {
        let KeyUse { name, key, addr, len, need, pd, qp, place } = *self;
        let entry = keys.get((key >> 8) as usize).filter(|entry| entry.key.load(Ordering::Acquire) == u64::from(key));
        let Some(entry) = entry else {
            return Some(format!("{name} {key:#x} is not registered{place}"));
        };
        let missing = need & !entry.access.load(Ordering::Relaxed);
        if missing != 0 {
            return Some(format!("the MR of {name} {key:#x} lacks {}", right(missing)));
        }
        if entry.flags() & KEY_NULL == 0 && entry.offset(addr, len).is_none() {
            let (start, size) = (entry.iova.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
            let (last, end) = (addr.wrapping_add(len), start.wrapping_add(size));
            return Some(format!(
                "addresses {addr:#x} to {last:#x} are not all inside the MR of {name} {key:#x}, which is {start:#x} to {end:#x}"
            ));
        }
        if entry.pd() != pd && entry.flags() & KEY_WINDOW2 == 0 {
            return Some(format!("the MR of {name} {key:#x} is of another protection domain than {qp}"));
        }
        None
    }
}

/// Both placements of a Flush.
const FLUSH: u32 = access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;

/// The name of a right, or of the two that a Flush may take.
fn right(need: u32) -> &'static str {
    match need {
        FLUSH => "IBV_ACCESS_FLUSH_GLOBAL and IBV_ACCESS_FLUSH_PERSISTENT",
        access::LOCAL_WRITE => "IBV_ACCESS_LOCAL_WRITE",
        access::REMOTE_WRITE => "IBV_ACCESS_REMOTE_WRITE",
        access::REMOTE_READ => "IBV_ACCESS_REMOTE_READ",
        access::REMOTE_ATOMIC => "IBV_ACCESS_REMOTE_ATOMIC",
        access::FLUSH_GLOBAL => "IBV_ACCESS_FLUSH_GLOBAL",
        access::FLUSH_PERSISTENT => "IBV_ACCESS_FLUSH_PERSISTENT",
        _ => "the rights that it takes",
    }
}

impl Refused {
    /// Notes a request for bytes `[addr, addr + len)` of `rkey` that lacks `right`. Called inside the mark.
    #[cold]
    pub fn note_access(&self, rkey: u32, addr: u64, len: u64, right: Right) {
        self.note(right.access(), rkey, addr, len);
    }

    /// Notes that a receive of `room` bytes was spoilt. `bad_piece`: the first piece of the message whose place the
    /// keys do not allow: lkey, address, length.
    #[cold]
    pub(super) fn note_spoilt(&self, spoilt: Spoilt, room: u64, bad_piece: impl FnOnce() -> Option<(u32, u64, u64)>) {
        let kind = match spoilt.status {
            Status::LocalLength if spoilt.whole => TOO_LONG,
            Status::LocalLength => TOO_LONG_SO_FAR,
            Status::LocalProtection => RECEIVE,
            _ => INVALIDATION,
        };
        match if kind == RECEIVE { bad_piece() } else { None } {
            Some((key, addr, len)) => self.note(kind, key, addr, len),
            None => self.note(kind, 0, room, spoilt.length),
        }
    }

    fn note(&self, kind: u32, key: u32, addr: u64, len: u64) {
        self.kind.store(kind, Ordering::Relaxed);
        self.key.store(key, Ordering::Relaxed);
        self.addr.store(addr, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
    }
}

/// The use of a receive's memory.
pub(super) fn in_receive(lkey: u32, addr: u64, len: u64, pd: u32) -> KeyUse<'static> {
    KeyUse { name: "lkey", key: lkey, addr, len, need: access::LOCAL_WRITE, pd, qp: "its QP", place: "" }
}

/// The status of the receive of the message that was refused last.
pub(crate) fn receive_status(qp: &QpShared) -> Status {
    match qp.refused.kind.load(Ordering::Relaxed) {
        TOO_LONG | TOO_LONG_SO_FAR => Status::LocalLength,
        RECEIVE => Status::LocalProtection,
        _ => Status::RemoteInvalidRequest,
    }
}

/// The sentence for the last note about a request to `qp`. `keys`: those of its process; `pd`: the domain that they are
/// checked against. The sentence follows from the present state of the keys.
#[cold]
pub(crate) fn why(qp: &QpShared, keys: &[KeyEntry], pd: u32, told: End) -> Option<String> {
    let noted = &qp.refused;
    let (key, addr, len) =
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
        RECEIVE if key != 0 => {
            let fault = in_receive(key, addr, len, pd).fault(keys)?;
            return Some(format!("an SGE of the receive{at_the_peer}: {fault}"));
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
    if need == access::REMOTE_ATOMIC && !addr.is_multiple_of(8) {
        return Some(format!("an atomic's address is a multiple of 8, {addr:#x} is not"));
    }
    let used = KeyUse { name: "rkey", key, addr, len, need, pd, qp: qp_is, place: at_the_peer };
    let missing = need & !qp.access.load(Ordering::Relaxed);
    // A Flush is checked against its key first (IBA annex A19.4.2), all others against the QP.
    let fault = if missing != 0 && need & FLUSH == 0 { None } else { used.fault(keys) };
    Some(match fault {
        Some(fault) => fault,
        None if missing != 0 => format!("{qp_is} lacks {} in its qp_access_flags", right(missing)),
        None => format!("the window or MR of rkey {key:#x} does not allow it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicU64};

    const KEY: u32 = 0x107;

    /// The table of a process whose one MR, under [`KEY`], is 0x1000 to 0x2000 in domain 1.
    fn keys(access: u32) -> [KeyEntry; 2] {
        let entry = |key: u32| KeyEntry {
            key: AtomicU64::new(key.into()),
            iova: AtomicU64::new(0x1000),
            len: AtomicU64::new(0x1000),
            host: AtomicU64::new(0x1000),
            at: AtomicU64::new(0),
            domain: AtomicU64::new(1),
            access: AtomicU32::new(access),
            qpn: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            generation: AtomicU32::new(0),
        };
        [entry(0), entry(KEY)]
    }

    #[test]
    fn the_fault_of_a_key_is_named_with_its_numbers() {
        let good = KeyUse {
            name: "lkey",
            key: KEY,
            addr: 0x1fc0,
            len: 64,
            need: access::LOCAL_WRITE,
            pd: 1,
            qp: "the QP",
            place: "",
        };
        let fault = |used: KeyUse<'_>| used.fault(&keys(access::LOCAL_WRITE)).unwrap_or_default();
        assert_eq!(fault(KeyUse { ..good }), "");
        assert_eq!(fault(KeyUse { key: KEY + 1, ..good }), "lkey 0x108 is not registered");
        assert_eq!(
            fault(KeyUse { key: 0xffff_ff00, place: " there", ..good }),
            "lkey 0xffffff00 is not registered there"
        );
        assert_eq!(
            fault(KeyUse { len: 65, ..good }),
            "addresses 0x1fc0 to 0x2001 are not all inside the MR of lkey 0x107, which is 0x1000 to 0x2000"
        );
        assert_eq!(fault(KeyUse { pd: 2, ..good }), "the MR of lkey 0x107 is of another protection domain than the QP");
        assert_eq!(good.fault(&keys(0)).unwrap(), "the MR of lkey 0x107 lacks IBV_ACCESS_LOCAL_WRITE");
        let flush = |access| KeyUse { need: FLUSH, ..good }.fault(&keys(access)).unwrap_or_default();
        assert_eq!(flush(access::FLUSH_GLOBAL), "the MR of lkey 0x107 lacks IBV_ACCESS_FLUSH_PERSISTENT");
        assert_eq!(flush(0), "the MR of lkey 0x107 lacks IBV_ACCESS_FLUSH_GLOBAL and IBV_ACCESS_FLUSH_PERSISTENT");
    }
}
