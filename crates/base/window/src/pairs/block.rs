//! A block: memory of the window that a process keeps for one peer, which puts there. It has words that the peer puts,
//! the slots of the low-latency ring, and the bytes of longer messages.

/// Bytes of a word: each is put whole.
pub const WORD: u64 = 8;
/// Slots of the low-latency ring.
pub const SLOTS: u64 = 64;
/// Bytes of a slot: its tag, the headers, and the message as far as it fits.
pub const SLOT: u64 = 128;
/// Offset in a slot at which a short message begins: with 8 bytes of message a slot is one cache line.
pub const INLINE_AT: u64 = 56;
/// Bytes of the longest message that fits into its slot.
pub const INLINE: u64 = SLOT - INLINE_AT;
/// Most bytes of payload of a packet: the transport's `mtu` over this link.
pub const MTU: u32 = 16 << 10;

/// Word of a block: number of slots of this process's ring at the peer that the peer has taken.
pub const TAKEN: u64 = 0;
/// Word of a block: number of times that the peer has announced its sleep. It wants to be woken by the next put.
pub const ASLEEP: u64 = 8;
/// Word of a block: the last of the owner's announcements of sleep that the peer has answered by waking it.
pub const WOKEN: u64 = 16;
/// Word of a block: number of times that the peer has revoked all grants to the owner.
pub const TAKEN_BACK: u64 = 24;
/// Word of a block: the last of the owner's revocations that the peer has followed. No more puts come by earlier
/// grants.
pub const GIVEN_BACK: u64 = 32;
/// Word of a block: heartbeat, which changes while the peer lives ([`super::heartbeat`]).
pub const BEAT: u64 = 40;
/// Offset of the slots.
pub const SLOTS_AT: u64 = 256;
/// Offset of the bytes of longer messages.
pub const BYTES_AT: u64 = SLOTS_AT + SLOTS * SLOT;
/// Number of those bytes.
pub const BYTES: u64 = LEN - BYTES_AT;
/// Bytes of a block.
pub const LEN: u64 = 32 << 10;
/// Bytes of the high-bandwidth ring that a receiver adds for a peer with long messages.
pub const LONG_BYTES: u64 = 1 << 20;

const _: () = assert!(BYTES >= MTU as u64 && BYTES_AT.is_multiple_of(64) && LONG_BYTES >= 4 * MTU as u64);

/// Offset in its block of slot `number` of a ring.
#[inline]
pub fn slot_at(number: u64) -> u64 {
    SLOTS_AT + number % SLOTS * SLOT
}
