//! A block: what a process keeps for one peer in its own memory of the window, where that peer puts. Words that the
//! peer tells, the slots of the low-latency ring, and the bytes of longer messages.

/// Bytes of a word: each is put whole.
pub const WORD: u64 = 8;
/// Slots of the low-latency ring.
pub const SLOTS: u64 = 64;
/// Bytes of a slot: its tag, the headers, the message as far as it fits.
pub const SLOT: u64 = 128;
/// Where in a slot a short message begins: with 8 bytes of it a slot is one cache line.
pub const INLINE_AT: u64 = 56;
/// The longest message that stands in its slot.
pub const INLINE: u64 = SLOT - INLINE_AT;
/// The most bytes of payload of a packet: `mtu` of the transport over this link.
pub const MTU: u32 = 16 << 10;

/// Word of a block: the peer has taken so many slots of this process's ring at the peer.
pub const TAKEN: u64 = 0;
/// Word of a block: how often the peer has said that it goes to sleep, and is to be woken when something is put there.
pub const ASLEEP: u64 = 8;
/// Word of a block: which of these announcements of the owner the peer has answered by waking it.
pub const WOKEN: u64 = 16;
/// Word of a block: how often the peer has taken back all that it had granted the owner.
pub const TAKEN_BACK: u64 = 24;
/// Word of a block: up to which of those of the owner the peer has followed; nothing more comes by what was granted
/// before.
pub const GIVEN_BACK: u64 = 32;
/// Word of a block: another count, while the peer lives ([`super::heartbeat`]).
pub const BEAT: u64 = 40;
/// Where the slots begin.
pub const SLOTS_AT: u64 = 256;
/// Where the bytes begin.
pub const BYTES_AT: u64 = SLOTS_AT + SLOTS * SLOT;
/// How many they are.
pub const BYTES: u64 = LEN - BYTES_AT;
/// Bytes of a block.
pub const LEN: u64 = 32 << 10;
/// Bytes of the high-bandwidth ring that a receiver adds for a peer with long messages.
pub const LONG_BYTES: u64 = 1 << 20;

const _: () = assert!(BYTES >= MTU as u64 && BYTES_AT.is_multiple_of(64) && LONG_BYTES >= 4 * MTU as u64);

/// Where slot `number` of a ring begins in its block.
#[inline]
pub fn slot_at(number: u64) -> u64 {
    SLOTS_AT + number % SLOTS * SLOT
}
