//! Completion queues and receive queues, and the completions of receives.

use crate::arena::CQES;
use crate::arena::layout::{READY_BITS, Shared};
use crate::host::atomic::{AtomicU32, AtomicU64};

/// Bytes of a message that fit into its completion.
pub const INLINE_RECEIVE: usize = 28;
/// Such a message.
pub type Inline = [u32; INLINE_RECEIVE / 4];
/// Bit of [`RecvCqe::wqe`]: the message stands in [`RecvCqe::data`], and not yet in the memory of its receive.
pub const IS_INLINE: u32 = 1 << 31;

/// The receive completions of a lane into a queue with several claimers, a cache line each. One that comes while all
/// are in use stands in its receive.
#[repr(C, align(64))]
pub struct CqeRing {
    /// Completions that the owner has taken, told now and then. Owner.
    pub taken: AtomicU32,
    _line: [AtomicU32; 15],
    /// By the number of the completion modulo [`CQES`]. Initiator.
    pub entries: [RecvCqe; CQES],
}
// SAFETY: atomics only.
unsafe impl Shared for CqeRing {}

/// A receive completion, but for the time.
#[repr(C, align(64))]
pub struct RecvCqe {
    /// The number plus one of the last completion with this entry that was published; stored last.
    pub published: AtomicU32,
    /// The number plus one of the one that stands here. Later ones stand in their receives.
    pub turn: AtomicU32,
    /// Index of the WQE, and [`IS_INLINE`].
    pub wqe: AtomicU32,
    /// As in the WQE.
    pub completed: Completed,
    /// The message, if it is so short.
    pub data: [AtomicU32; INLINE_RECEIVE / 4],
}

/// The completion of a receive, written by its claimer.
#[repr(C)]
pub struct Completed {
    /// `enum ibv_wc_status` in the low byte, `enum ibv_wc_opcode` above.
    pub status_opcode: AtomicU32,
    /// Bytes received.
    pub byte_len: AtomicU32,
    /// Immediate data as on the wire, or the invalidated key.
    pub imm: AtomicU32,
    /// The sender's QPN.
    pub src_qp: AtomicU32,
    /// `IBV_WC_*` flags; bit 31 set for a solicited event.
    pub wc_flags: AtomicU32,
    /// The sender's LID in the low half, then service level and path bits.
    pub slid_sl: AtomicU32,
}
// SAFETY: atomics only.
unsafe impl Shared for Completed {}

/// Bits of [`CqShared::watch`].
pub mod watch {
    /// More completions may come than fit: each is counted.
    pub const COUNT: u32 = 1;
    /// The program has asked for events: a producer of completions must look at [`super::CqShared::armed`].
    pub const EVENTS: u32 = 2;
}

/// [`CqShared::armed`] values.
pub mod arm {
    /// No notification wanted.
    pub const NONE: u32 = 0;
    /// For any completion.
    pub const ANY: u32 = 1;
    /// For a solicited one.
    pub const SOLICITED: u32 = 2;
    /// Bit beside these: somebody is about to raise the event.
    pub const FIRING: u32 = 4;
}

/// The part of a CQ that initiators touch.
#[repr(C, align(64))]
pub struct CqShared {
    /// Completions published in all rings, while [`watch::COUNT`] is set. Producers of completions.
    pub produced: AtomicU64,
    _line0: [AtomicU64; 7],
    /// Further duties of producers: bits of [`watch`], 0 for a CQ that is large enough and only polled. Owner.
    pub watch: AtomicU32,
    /// See [`arm`]. The owner arms; the producer that notifies disarms.
    pub armed: AtomicU32,
    /// Attention number. Owner, once.
    pub attention: AtomicU32,
    /// 1 when a peer cannot write into the channel and the owner must raise the event. Peers.
    pub notify: AtomicU32,
    /// 1 when more completions came than fit. Peers.
    pub overrun: AtomicU32,
    /// 1 when completions are to carry the time they were made. Owner, once.
    pub timestamps: AtomicU32,
    /// Number of the completion channel, 0 for none. Owner, once.
    pub channel: AtomicU32,
    /// The value that is written into the channel for this CQ. Owner, once.
    pub event: AtomicU32,
    _line1: [AtomicU32; 8],
    /// Completions that the owner has taken out of rings, while they are counted. Owner.
    pub consumed: AtomicU64,
    /// Capacity. Owner.
    pub capacity: AtomicU64,
    /// Completions waiting in the owner's own queue. Owner.
    pub local: AtomicU64,
    _line2: [AtomicU64; 5],
    /// One bit for each word of `ready`. Peers set, owner takes.
    pub summary: AtomicU64,
    _line3: [AtomicU64; 7],
    /// One bit for each lane (folded) with something to poll. Peers set, owner takes.
    pub ready: [AtomicU64; READY_BITS / 64],
}
// SAFETY: atomics only.
unsafe impl Shared for CqShared {}

/// A receive queue, a QP's own or an SRQ.
#[repr(C, align(64))]
pub struct RqShared {
    /// Offset of the ring: [`AtomicU64`] × (`mask` + 1), and of the second one of a queue with several claimers, which
    /// follows it. Owner, once.
    pub ring: AtomicU64,
    /// Offset of the WQEs. Owner, once.
    pub wqes: AtomicU64,
    /// Bytes from one WQE to the next. Owner, once.
    pub stride: AtomicU32,
    /// Ring size less one. Owner, once.
    pub mask: AtomicU32,
    /// Number of WQEs. Owner, once.
    pub count: AtomicU32,
    /// Most SGEs in a WQE. Owner, once.
    pub max_sge: AtomicU32,
    /// Protection domain of the WQEs' keys. Owner, once.
    pub pd: AtomicU32,
    /// Attention number. Owner, once.
    pub attention: AtomicU32,
    /// XRC domain, 0 for none. Owner, once.
    pub xrcd: AtomicU64,
    /// 1 while receives may be taken. Owner.
    pub open: AtomicU32,
    /// 1 when there is one claimer at most: the queue of a connected QP. Owner, once.
    pub exclusive: AtomicU32,
    /// 1 when receives have been posted to the second ring. Owner.
    pub uses_again: AtomicU32,
    _line0: AtomicU32,
    /// Position after the last posted WQE. Owner.
    pub tail: OfRings,
    /// First position not known to be claimed. Claimers.
    pub head: OfRings,
    /// SRQ limit, 0 unarmed. Owner arms, the claimer that crosses it takes.
    pub limit: AtomicU32,
    /// 1 when a claimer crossed the limit. Claimers.
    pub limit_reached: AtomicU32,
    _line3: [AtomicU32; 14],
}
// SAFETY: atomics only.
unsafe impl Shared for RqShared {}

/// A position in each ring of a receive queue, on a line of its own.
#[repr(C, align(64))]
pub struct OfRings {
    /// Of the ring in the order of posting.
    pub first: AtomicU64,
    /// Of the second one, for receives that are used again.
    pub again: AtomicU64,
}

/// Head of a receive WQE; its SGEs (address, then length and key) follow, the first one in the same cache line.
#[repr(C)]
pub struct RecvWqe {
    /// In the queue of a connected QP: the position it was posted at, and whether it is completed (`rq::exclusive`).
    /// The owner posts, the claimer completes.
    pub turn: AtomicU32,
    /// SGEs in use. Owner.
    pub num_sge: AtomicU32,
    /// In a queue with several claimers: QPN of the initiator that holds this WQE, 0 for none, as the ring said. Owner.
    pub claimer: AtomicU32,
    /// The completion. Claimer.
    pub completed: Completed,
    _pad: AtomicU32,
    /// Nanoseconds of CLOCK_MONOTONIC_RAW when the completion was made.
    pub timestamp: AtomicU64,
    /// SGEs.
    pub sges: [WqeSge; 0],
}
// SAFETY: atomics only.
unsafe impl Shared for RecvWqe {}

/// An SGE in shared memory.
#[repr(C)]
pub struct WqeSge {
    /// Address.
    pub addr: AtomicU64,
    /// Length in the low half, lkey in the high half.
    pub len_key: AtomicU64,
}
// SAFETY: atomics only.
unsafe impl Shared for WqeSge {}
