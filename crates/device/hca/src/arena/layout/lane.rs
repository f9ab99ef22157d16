//! Lanes: how one initiator reaches one QP, and what it asks the QP's owner for.

use crate::arena::layout::Shared;
use crate::host::atomic::{AtomicU32, AtomicU64, Ordering};
use vervain_iba::PSN_MASK;

/// How one initiator reaches one QP: its in-flight mark, its receive completions and its requests to the owner.
/// RC, UC and XRC target QPs have one; UD QPs and XRC SRQs one for each initiating QP.
#[repr(C, align(64))]
pub struct Lane {
    // -- written by the initiator --
    /// In flight: 0, or an odd count while the initiator touches the owner's memory or queues.
    pub gate: AtomicU64,
    /// The key of the memory that the initiator touches, named before it looks the key up; that of its last access
    /// while it is elsewhere.
    pub key: AtomicU32,
    _initiator: AtomicU32,
    /// The address of the access, as users of the key name it; the access ends at most [`super::DIRECT_CHUNK`] bytes
    /// behind.
    pub addr: AtomicU64,
    /// Base of PSNs: the initiator's next request begins with the PSN `psn_base` + `gate` / 2. Bit 31 is clear until
    /// the base is known. A request of one packet that is carried out in one access leaves the base as it is.
    pub psn_base: AtomicU32,
    /// [`super::CqeRing::taken`] as the initiator has seen it last.
    pub taken_seen: AtomicU32,
    _line0: [AtomicU32; 8],
    // -- written by the initiator, and looked at by the owner now and then --
    /// Receive completions published.
    pub produced: AtomicU32,
    _line1: [AtomicU32; 15],
    // -- written by the owner --
    /// The initiator, `nonce << 32 | qpn`, or 0. Taken by CAS from 0, cleared by the initiator, or by the owner when
    /// the initiator's process has ended. Until then nobody else writes what is the initiator's.
    pub initiator: AtomicU64,
    /// 1 after the owner has given up waiting for an initiator in flight: the effects of that initiator do not count
    /// any more. Owner.
    pub cut_off: AtomicU32,
    /// How the owner finds what is published here: see [`found`].
    pub mode: AtomicU32,
    /// The objects that the lane leads to. Owner, once.
    pub leads_to: LeadsTo,
    /// Attention number, for requests. Owner, once.
    pub attention: AtomicU32,
    /// 0 once the owner has taken the lane away from its initiator. Owner.
    pub open: AtomicU32,
    /// Offset of the bounce buffer for owner copies, 0 until asked for. Owner.
    pub bounce: AtomicU64,
    /// Its bytes. Owner.
    pub bounce_len: AtomicU64,
    /// Remote addresses for process_vm calls. They lie here, in the owner's arena, so that the owner can take them away
    /// from an initiator that was stopped between its last check and the system call: the kernel reads them inside it.
    pub iov: [Iov; IOVS],
    /// Work for the owner's progress thread.
    pub request: OwnerRequest,
}

impl Lane {
    /// Takes the address away that the initiator's process_vm call is aimed at; what is in flight afterwards is in the
    /// kernel already.
    pub fn unaim(&self) {
        for iov in &self.iov {
            iov.len.store(0, Ordering::SeqCst);
        }
    }
}
// SAFETY: atomics only.
unsafe impl Shared for Lane {}

/// The objects that a lane leads to, as offsets in the owner's arena. The owner writes them once.
#[repr(C)]
pub struct LeadsTo {
    /// Offset of the ring: [`AtomicU32`] × (`mask` + 1), indices of receive WQEs of completions that have no CQE.
    pub ring: AtomicU64,
    /// Offset of the [`super::CqeRing`], or 0 if all completions stand in the receives.
    pub cqes: AtomicU64,
    /// Ring size less one.
    pub mask: AtomicU32,
    /// The lane's bit in its CQ's ready bitmap.
    pub ready_bit: AtomicU32,
    /// Offset of the [`super::CqShared`] that gets the receive completions.
    pub cq: AtomicU64,
    /// Offset of the QP.
    pub qp: AtomicU64,
    /// Offset of the [`super::RqShared`] that its receives come from, the QP's own or an SRQ's.
    pub rq: AtomicU64,
}
// SAFETY: atomics only.
unsafe impl Shared for LeadsTo {}

/// The bit of [`Lane::psn_base`] that says that an initiator has written it.
const PSN_IS_KNOWN: u32 = 1 << 31;

impl Lane {
    /// Stores the PSN that the initiator's next request begins with (24 bits). To be called outside of the mark of
    /// being in flight, by the writer of the initiator's fields.
    #[inline]
    pub fn tell_psn(&self, next: u32) {
        let accesses = (self.gate.load(Ordering::Relaxed) >> 1) as u32;
        self.psn_base.store((next.wrapping_sub(accesses) & PSN_MASK) | PSN_IS_KNOWN, Ordering::Relaxed);
    }

    /// That PSN; None before the first request.
    pub fn next_psn(&self) -> Option<u32> {
        let base = self.psn_base.load(Ordering::Relaxed);
        let accesses = (self.gate.load(Ordering::Acquire) >> 1) as u32;
        (base & PSN_IS_KNOWN != 0).then(|| base.wrapping_add(accesses) & PSN_MASK)
    }
}

/// How the owner of a CQ finds what a lane has published ([`Lane::mode`]).
pub mod found {
    /// By the lane's ready bit, which is not set. The initiator sets it, by CAS of this word to [`SIGNALLED`].
    pub const QUIET: u32 = 0;
    /// By the lane's ready bit, which is set or about to be. The owner goes back to [`QUIET`].
    pub const SIGNALLED: u32 = 1;
    /// The owner looks at the lane by itself; the initiator does nothing. Owner.
    pub const WATCHED: u32 = 2;
}

/// Remote pieces of one process_vm call.
pub const IOVS: usize = 2;

/// A `struct iovec` whose fields both sides may write.
#[repr(C)]
pub struct Iov {
    /// Address in the owner's address space.
    pub base: AtomicU64,
    /// Bytes; the owner stores 0 to revoke.
    pub len: AtomicU64,
}
// SAFETY: atomics only.
unsafe impl Shared for Iov {}

/// [`OwnerRequest::state`] values.
pub mod request {
    /// No request.
    pub const IDLE: u32 = 0;
    /// The initiator asks.
    pub const POSTED: u32 = 1;
    /// The owner is at it.
    pub const RUNNING: u32 = 2;
    /// Done; the result may be read.
    pub const DONE: u32 = 3;
    /// Begun; the owner waits for the other side of the bounce buffer, which fills or empties it and then posts again.
    pub const WAITING: u32 = 4;
    /// Copy from memory of the initiator, through the bounce buffer, into memory of the owner.
    pub const WRITE: u32 = 1;
    /// The other way.
    pub const READ: u32 = 2;
    /// Compare and swap.
    pub const COMPARE_SWAP: u32 = 3;
    /// Fetch and add.
    pub const FETCH_ADD: u32 = 4;
    /// Only provide a bounce buffer of `len` bytes, if there is none that is as large.
    pub const BOUNCE: u32 = 5;
    /// Finish a datagram: copy the bounce buffer into receive WQE `key` and publish it; `local` marks it solicited.
    pub const DATAGRAM: u32 = 6;
    /// Bytes of a bounce buffer, and of the longest message that goes through it in one piece.
    pub const BOUNCE_BYTES: u64 = 64 << 10;
    /// Bytes of a bounce buffer for longer messages, which stream through it as through a ring. Measured with 1 MiB:
    /// 0.57 of memcpy's speed with a ring of 64 to 256 KiB, 0.68 with this; it also takes in what comes while the owner
    /// wakes.
    pub const LARGE_BOUNCE_BYTES: u64 = 512 << 10;
    /// Bytes that a longer message is moved by: both sides copy at once, one a piece behind the other.
    pub const PIECE_BYTES: u64 = 32 << 10;
    /// Bytes of a bounce buffer for datagrams: a payload of one MTU and its header.
    pub const DATAGRAM_BYTES: u64 = 8 << 10;
}

/// One request to the owner (DESIGN decision 4d). Written by the initiator while IDLE or DONE. A copy is a stream: the
/// bounce buffer is a ring, `moved` and `taken` count the bytes that either side has put in or taken out.
#[repr(C, align(64))]
pub struct OwnerRequest {
    /// See [`request`]. Both.
    pub state: AtomicU32,
    /// Which operation.
    pub op: AtomicU32,
    /// The key that covers the address; an lkey of the owner when `local` is set.
    pub key: AtomicU32,
    /// 1 when the owner's own receive WQE names the memory.
    pub local: AtomicU32,
    /// Address as users of the key name it.
    pub addr: AtomicU64,
    /// Bytes in all.
    pub len: AtomicU64,
    /// Compare value, or the addend.
    pub compare: AtomicU64,
    /// Swap value.
    pub swap: AtomicU64,
    /// Bytes that the initiator has put into the bounce buffer (write) or taken out (read). Initiator.
    pub moved: AtomicU64,
    _line0: AtomicU64,
    /// Bytes that the owner has passed. The initiator sets it to 0 with a new request. Owner.
    pub taken: AtomicU64,
    /// The word before an atomic. Owner.
    pub result: AtomicU64,
    /// 0, or [`vervain_iba::Nak`] as a number. Owner.
    pub status: AtomicU32,
    _line1: [AtomicU32; 11],
}
// SAFETY: atomics only.
unsafe impl Shared for OwnerRequest {}
