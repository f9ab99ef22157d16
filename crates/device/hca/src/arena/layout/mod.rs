//! The contents of an arena: the structs that processes share, each line marked with its writer.
//!
//! Every field is an atomic, so that a torn or hostile value is only ever a wrong number; offsets and indices are
//! checked by [`crate::arena::View`] on use. A change of any struct here, or in `lane` and `queues`,
//! changes [`VERSION`].

mod lane;
mod queues;

use crate::host::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
pub use lane::*;
pub use queues::*;
use vervain_iba::QpState;

/// Types that may be read from shared memory: any bytes are a valid value, and all access is atomic.
///
/// # Safety
/// `repr(C)`, made of atomics (or arrays and structs of such) only, without padding that is read.
pub unsafe trait Shared {}

// SAFETY: an atomic integer is valid for any bytes.
unsafe impl Shared for AtomicU8 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU32 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU64 {}

/// Marks an arena ("VERVAIN" and a zero).
pub const MAGIC: u64 = u64::from_le_bytes(*b"VERVAIN\0");
/// Version of everything in this file; peers of another version are refused.
pub const VERSION: u32 = 9;

/// Bits of a QPN or SRQN that count inside a process slot.
pub const INDEX_BITS: u32 = 14;
/// Bytes that an initiator moves through a mapping in one visit; the gate is checked again before the next (DESIGN
/// decision 3).
pub const DIRECT_CHUNK: u64 = 64 << 10;
/// Objects per process slot.
pub const PER_SLOT: usize = 1 << INDEX_BITS;
/// Process slots per user and network namespace; 0 and the last stay unused, so that QPNs 0, 1 and 0xffffff never
/// occur.
pub const SLOTS: u32 = 1 << (24 - INDEX_BITS);
/// Slots that one process may hold: 65,536 QPs.
pub const SLOTS_PER_PROCESS: usize = 4;
/// Memory keys per process: 24-bit index space of the key would allow more; this bounds the table.
pub const KEYS: usize = 1 << 20;
/// Shared objects per process: what peers may map of its memory. Number 0 stands for the arena.
pub const OBJECTS: usize = 4096;
/// Number of the object that large allocations are served from; it is never withdrawn.
pub const HEAP: u32 = 1;
/// Bits of [`KeyEntry::at`] that are the offset in the object; the object's number is above.
pub const OFFSET_BITS: u32 = 48;
/// A bit of the initiator number under which a process receives packets for its own QPs. It distinguishes that lane
/// from one of the QP of the same number, which may send to itself by memory.
pub const BY_PACKETS: u32 = 1 << 24;
/// Objects that can ask their owner for attention.
pub const ATTENTION: usize = 1 << 17;
/// Ready bits of a CQ; lanes beyond share bits.
pub const READY_BITS: usize = 4096;
/// [`QpShared::rq_psn`] of a QP that was restored: the PSN that its peer has next, whatever that is.
pub const ANY_PSN: u32 = u32::MAX;
/// The QPN that stands for a multicast group (IBA 11.2.5).
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// The process slot of a QPN or SRQN.
#[inline]
pub fn slot_of(number: u32) -> u32 {
    (number & 0x00ff_ffff) >> INDEX_BITS
}

/// The index inside its slot of a QPN or SRQN.
#[inline]
pub fn index_of(number: u32) -> usize {
    (number as usize) & (PER_SLOT - 1)
}

/// Start of every arena.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`]. Owner, once, last.
    pub magic: AtomicU64,
    /// [`VERSION`]. Owner, once.
    pub version: AtomicU32,
    /// The owner's process id in its own pid namespace, for messages only. Owner, once.
    pub pid: AtomicU32,
    /// Random identity of this process image. Owner, once.
    pub incarnation: [AtomicU64; 2],
    /// Offset of the key table, [`KeyEntry`] × [`KEYS`]. Owner, once.
    pub keys: AtomicU64,
    /// Offset of the attention words. Owner, once.
    pub attention: AtomicU64,
    /// Offset of the table of shared objects, [`ObjectEntry`] × [`OBJECTS`]. Owner, once.
    pub objects: AtomicU64,
    /// 1 when the owner interrupts all CPUs before it looks for initiators in flight (`barrier::heavy`), so that
    /// initiators may mark themselves with a plain store. Owner, once.
    pub heavy: AtomicU32,
    _line0: AtomicU32,
    /// The switch of the process as a whole, and of contexts beyond [`SWITCHES`].
    pub switch: Switch,
    /// The slots this process holds. Owner.
    pub slots: [SlotEntry; SLOTS_PER_PROCESS],
    _line2: [AtomicU64; 12],
    /// A number of its own for each sleep of the progress thread, 0 while it is awake or has been woken. Owner sets,
    /// anyone takes.
    pub sleeping: AtomicU32,
    /// 1 when a bit of `attention_summary` may be set. Peers set, owner takes.
    pub attention_any: AtomicU32,
    _line3: [AtomicU32; 14],
    /// One bit per attention word. Peers set, owner takes.
    pub attention_summary: [AtomicU64; ATTENTION / 64 / 64],
}
// SAFETY: atomics only.
unsafe impl Shared for Header {}

/// Contexts of a process that have a switch of their own. The kernel looks at 2,048 robust mutexes of a thread at most.
pub const SWITCHES: usize = 255;

/// The switch that lets initiators in to the QPs of a context. It lies in one line and is all that an initiator reads
/// of the other process as such: that it lives, and that its owner has not closed it. One store closes it.
#[repr(C, align(64))]
pub struct Switch {
    /// A robust pthread mutex held by the progress thread: the kernel marks its first word when the process dies.
    /// Owner.
    pub alive: [AtomicU64; 6],
    /// Not 0 while nobody may begin to touch the memory or queues of the context: how many pauses last
    /// (`Process::pause`), and bits of [`closed`]. Owner.
    pub closed: AtomicU32,
    _pad: AtomicU32,
    /// For how many nanoseconds it has been stopped in all, until it was let go last. Owner.
    pub stood: AtomicU64,
}
// SAFETY: atomics only.
unsafe impl Shared for Switch {}

/// Bits of [`Switch::closed`], above the count of pauses.
pub mod closed {
    /// The context is stopped.
    pub const CONTEXT: u32 = 1 << 16;
    /// The process is stopped as a whole.
    pub const PROCESS: u32 = 1 << 17;
    /// Either: an initiator waits until it is let go, however long that takes.
    pub const STOPPED: u32 = CONTEXT | PROCESS;
    /// It was saved since it was stopped: initiators wait even if its QPs or its process end, for it may be restored.
    pub const SAVED: u32 = 1 << 18;
}

/// One process slot and its tables.
#[repr(C)]
pub struct SlotEntry {
    /// Slot number, 0 while unused.
    pub slot: AtomicU32,
    _pad: AtomicU32,
    /// Offset of the QP table: [`AtomicU64`] × [`PER_SLOT`], each the offset of a [`QpShared`] or 0.
    pub qps: AtomicU64,
    /// Offset of the XRC SRQ table: each the offset of an [`RqShared`] or 0.
    pub srqs: AtomicU64,
}
// SAFETY: atomics only.
unsafe impl Shared for SlotEntry {}

/// Bit of [`KeyEntry::flags`]: a memory window, not a region.
pub const KEY_WINDOW: u32 = 1;
/// Bit of [`KeyEntry::flags`]: the null MR: reads zeros, drops writes, local use only.
pub const KEY_NULL: u32 = 2;
/// Bit of [`KeyEntry::flags`]: a type 2 window, bound to [`KeyEntry::qpn`].
pub const KEY_WINDOW2: u32 = 4;
/// [`KeyEntry::at`] of memory that peers cannot map.
pub const NOT_SHARED: u64 = !0;

/// A memory region or window. All fields but `key` change only while the key is invalid and drained.
#[repr(C, align(64))]
pub struct KeyEntry {
    /// The key, which is never 0, or 0 while it is not good. Owner; for a type 2 window a peer's Send with Invalidate
    /// too, by CAS.
    pub key: AtomicU64,
    /// First address that users of the key name. Owner.
    pub iova: AtomicU64,
    /// Bytes. Owner.
    pub len: AtomicU64,
    /// Address of its first byte in the owner's address space. Owner.
    pub host: AtomicU64,
    /// Its place for peers: object number << [`OFFSET_BITS`] | offset in the object, or [`NOT_SHARED`]. Owner.
    pub at: AtomicU64,
    /// The protection domain, and `KEY_*` flags in the high half, so that for a plain region one comparison checks
    /// both. Owner.
    pub domain: AtomicU64,
    /// `IBV_ACCESS_*`. Owner.
    pub access: AtomicU32,
    /// The QP a type 2 window is bound to. Owner.
    pub qpn: AtomicU32,
    /// For a window: the key of the region under it, which must be good too. Owner.
    pub parent: AtomicU32,
    /// [`ObjectEntry::generation`] of the object meant by `at`: a mapping of another is not used for it. Owner.
    pub generation: AtomicU32,
}
// SAFETY: atomics only.
unsafe impl Shared for KeyEntry {}

impl KeyEntry {
    /// The protection domain.
    #[inline]
    pub fn pd(&self) -> u32 {
        self.domain.load(Ordering::Relaxed) as u32
    }

    /// `KEY_*` flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        (self.domain.load(Ordering::Relaxed) >> 32) as u32
    }

    /// The offset of `[addr, addr + len)` in the region that `key` names. None for a window, and if the key does not
    /// allow the access.
    #[inline(always)]
    pub(crate) fn plain_offset(&self, key: u32, addr: u64, len: u64, need: u32, pd: u32) -> Option<u64> {
        if self.key.load(Ordering::Acquire) != u64::from(key)
            || self.domain.load(Ordering::Relaxed) != u64::from(pd)
            || (need != 0 && self.access.load(Ordering::Relaxed) & need != need)
        {
            return None;
        }
        self.offset(addr, len)
    }

    /// The offset of `[addr, addr + len)` in the region; the key is not checked.
    #[inline(always)]
    pub(crate) fn offset(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.wrapping_sub(self.iova.load(Ordering::Relaxed));
        let size = self.len.load(Ordering::Relaxed);
        if offset > size || len > size - offset { None } else { Some(offset) }
    }
}

/// [`ObjectEntry::kind`]: a memfd sealed against shrinking; its descriptor is asked for over the link.
pub const OBJECT_MEMFD: u32 = 1;
/// [`ObjectEntry::kind`]: a System V segment, attached by its number.
pub const OBJECT_SYSV: u32 = 2;

/// A piece of the owner's memory that peers may map. Its number may be used again for another, with another generation;
/// an entry changes only when no key leads to it and nobody who saw such a key is in flight.
#[repr(C, align(64))]
pub struct ObjectEntry {
    /// Which object this is; no two objects of a process have the same. 0 for none. Owner, last.
    pub generation: AtomicU32,
    /// `OBJECT_*`. Owner.
    pub kind: AtomicU32,
    /// The identity that the owner knows it by, for messages only. Owner.
    pub identity: AtomicU64,
    /// Bytes; may grow. Owner.
    pub length: AtomicU64,
    /// For a segment: its number. Owner.
    pub shmid: AtomicU32,
    /// For a segment: the user that made it. Owner.
    pub cuid: AtomicU32,
    /// For a segment: the IPC namespace that its number belongs to. Owner.
    pub ipc_namespace: AtomicU64,
    /// For a segment: the time of its last change, in seconds, as IPC_STAT reports it. Owner.
    pub ctime: AtomicU64,
    _pad: [AtomicU64; 2],
}
// SAFETY: atomics only.
unsafe impl Shared for ObjectEntry {}

/// The part of a QP that initiators read.
#[repr(C, align(64))]
pub struct QpShared {
    /// `enum ibv_qp_state`. Owner; an initiator may CAS a receiving state to ERR together with [`QpShared::fault`].
    pub state: AtomicU32,
    /// Counts resets: work begun before a reset must not go on after it. Owner.
    pub generation: AtomicU32,
    /// The QP number. Owner, once.
    pub qpn: AtomicU32,
    /// `enum ibv_qp_type`. Owner, once.
    pub qp_type: AtomicU32,
    /// Protection domain. Owner, once.
    pub pd: AtomicU32,
    /// The connected peer's QPN (RC, UC, XRC). Owner.
    pub dest_qpn: AtomicU32,
    /// Q_Key (UD). Owner.
    pub qkey: AtomicU32,
    /// `qp_access_flags`. Owner.
    pub access: AtomicU32,
    /// Encoded min_rnr_timer. Owner.
    pub min_rnr_timer: AtomicU32,
    /// `max_dest_rd_atomic`. Owner.
    pub max_dest_rd_atomic: AtomicU32,
    /// Offset of the [`Lane`] of the connected initiator (RC, UC). Owner, once.
    pub lane: AtomicU64,
    /// XRC domain. Owner, once.
    pub xrcd: AtomicU64,
    /// Slot and port of the device: `device << 8 | port`. Owner.
    pub port: AtomicU32,
    /// This QP's attention number. Owner, once.
    pub attention: AtomicU32,
    /// Set by an initiator that moved the QP to ERR: the async event to raise, plus 1, or 0. Peers.
    pub fault: AtomicU32,
    /// 1 when a message arrived while the QP was in RTR. Peers.
    pub established: AtomicU32,
    /// `rq_psn`: the PSN of the first request that it takes (RC). Owner.
    pub rq_psn: AtomicU32,
    /// The request that was refused, written before [`QpShared::fault`]. Peers.
    pub refused: Refused,
    /// Offset of the [`Switch`] of its context. Owner, once.
    pub switch: AtomicU64,
    _pad: [AtomicU32; 2],
}
// SAFETY: atomics only.
unsafe impl Shared for QpShared {}

impl QpShared {
    /// Moves a QP that receives to ERR; whether this call did. Its owner is to be told.
    pub(crate) fn fail(&self, event: Option<u32>) -> bool {
        let state = self.state.load(Ordering::Acquire);
        let failed = (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&state)
            && self.state.compare_exchange(state, QpState::Err as u32, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if failed {
            self.fault.store(event.map_or(u32::MAX, |e| e + 1), Ordering::SeqCst);
        }
        failed
    }
}

/// The request that a responder has refused, for the messages of both ends: see `responder::refused`.
#[repr(C)]
pub struct Refused {
    /// Which fault it is: [`refused`].
    pub kind: AtomicU32,
    /// The rkey of an operation on memory.
    pub key: AtomicU32,
    /// Its address; the room of a receive.
    pub addr: AtomicU64,
    /// Its length, that of a message.
    pub len: AtomicU64,
}

/// [`Refused::kind`]: 0 where nothing is known, the access rights (`IBV_ACCESS_*`) that an operation on memory needs,
/// or one of these, which are beyond them.
pub mod refused {
    /// A message is longer than its receive.
    pub const TOO_LONG: u32 = 1 << 31;
    /// A message of which this much had come is longer than its receive.
    pub const TOO_LONG_SO_FAR: u32 = TOO_LONG | 1;
    /// An SGE of the receive names memory that cannot be written to.
    pub const RECEIVE: u32 = TOO_LONG | 2;
    /// The key that a Send invalidates is not one that it can.
    pub const INVALIDATION: u32 = TOO_LONG | 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_where_their_writers_expect_them() {
        assert_eq!(size_of::<KeyEntry>(), 64);
        assert_eq!(size_of::<ObjectEntry>(), 64);
        assert_eq!(size_of::<RecvWqe>() + size_of::<WqeSge>(), 64);
        assert_eq!(size_of::<Switch>(), 64);
        assert_eq!(std::mem::offset_of!(Header, switch) % 64, 0);
        assert_eq!(std::mem::offset_of!(Header, sleeping) % 64, 0);
        assert_eq!(std::mem::offset_of!(Lane, produced), 64);
        assert_eq!((size_of::<RecvCqe>(), std::mem::offset_of!(CqeRing, entries)), (64, 64));
        assert_eq!(std::mem::offset_of!(Lane, initiator), 128);
        assert_eq!(std::mem::offset_of!(Lane, leads_to), 144);
        assert_eq!((std::mem::offset_of!(Lane, attention), std::mem::offset_of!(Lane, request)), (192, 256));
        assert_eq!(std::mem::offset_of!(OwnerRequest, taken), 64);
        assert_eq!(std::mem::offset_of!(CqShared, watch), 64);
        assert_eq!(std::mem::offset_of!(CqShared, consumed), 128);
        assert_eq!(std::mem::offset_of!(CqShared, summary), 192);
        assert_eq!(std::mem::offset_of!(RqShared, tail), 64);
        assert_eq!(std::mem::offset_of!(RqShared, head), 128);
        assert_eq!(std::mem::offset_of!(RqShared, limit), 192);
    }

    #[test]
    fn numbers_split_into_slot_and_index() {
        let qpn = 5 << INDEX_BITS | 77;
        assert_eq!((slot_of(qpn), index_of(qpn)), (5, 77));
    }
}
