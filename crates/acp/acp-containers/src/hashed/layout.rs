//! How a hashed container lies in global memory: words of its slots, pointers to its elements, and the elements'
//! headers.

use crc::{CRC_64_XZ, Crc, Table};
use vervain_acp::GlobalAddress;

/// Bytes up to which a block of the heap stays mapped after it was freed, so that a read by a stale pointer gives bytes
/// without meaning, and does not end the job. Larger ones may have a segment of their own, which goes with them.
pub const STAYS: usize = vervain_acp_heap::MAY_BE_UNMAPPED - 16;

/// Bytes of a slot: its word, the pointer to its first element, the id of its container.
pub const SLOT: u64 = 24;
pub const HEAD: u64 = 8;
/// Slots of a chunk, which is one block that [stays](STAYS).
pub const CHUNK: u64 = STAYS as u64 / SLOT;

/// Bytes of a directory's header, behind which the addresses of its chunks are unless these are many: what it is,
/// nothing, the container's id, its ranks, its slots, and where those addresses are.
pub const DIRECTORY: u64 = 48;

/// Bytes of an element's header: the pointer to the next one, the mark, bytes of the key, bytes of the value or the
/// counter.
pub const HEADER: usize = 32;
pub const MARK: u64 = 8;
pub const COUNTER: u64 = 24;

/// More than any region has: what claims so many bytes is no element.
pub const MOST: u64 = 1 << 47;

const CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_XZ);

/// The place of a key: CRC-64/XZ without its lowest 16 bits. The slot is its remainder, and the index of the rank comes
/// from the part above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    pub index: u64,
    pub slot: u64,
}

impl Spot {
    /// None without ranks or slots.
    pub fn of(key: &[u8], ranks: u64, slots: u64) -> Option<Self> {
        let crc = CRC.checksum(key) >> 16;
        Some(Self { index: crc.checked_div(slots)?.checked_rem(ranks)?, slot: crc.checked_rem(slots)? })
    }
}

/// The word of a slot: free, with the number of elements and the version, which goes up with each change; or locked,
/// with the rank that has it. Where a locked word becomes free again all of it is as the holder says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(pub u64);

const LOCKED: u64 = 1 << 63;
const COUNT_SHIFT: u32 = 32;
const VERSION: u64 = (1 << COUNT_SHIFT) - 1;

impl State {
    /// Elements that a slot can have.
    pub const MOST: u64 = (1 << 31) - 1;

    pub fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// Elements of a free slot.
    pub fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT & Self::MOST
    }

    /// The rank that has a locked slot.
    pub fn holder(self) -> u32 {
        (self.0 >> COUNT_SHIFT & Self::MOST) as u32
    }

    /// This one locked by `rank`.
    #[must_use]
    pub fn locked_by(self, rank: u32) -> Self {
        Self(LOCKED | u64::from(rank) << COUNT_SHIFT | self.0 & VERSION)
    }

    /// The word of a free slot after a change that leaves `count` elements.
    #[must_use]
    pub fn changed(self, count: u64) -> Self {
        Self((count & Self::MOST) << COUNT_SHIFT | self.0.wrapping_add(1) & VERSION)
    }
}

/// A pointer to an element: its address, a multiple of 16, and in the lowest bits how many bytes are there for certain.
/// So one read gets header and key without going beyond the block, whatever has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer(pub u64);

const CLASS: u64 = 15;
/// Bytes that are there by class; the last class has more than [`STAYS`], or not known how many.
const SAFE: [usize; 15] = [48, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024, 2048, 4096, 8192];

impl Pointer {
    pub const NULL: Self = Self(0);

    /// To a block of `bytes`, which [`block`] has rounded.
    pub fn new(address: GlobalAddress, bytes: usize) -> Self {
        let class = if bytes > STAYS { SAFE.len() } else { SAFE.partition_point(|safe| *safe <= bytes).max(1) - 1 };
        Self(address.0 & !CLASS | class as u64)
    }

    pub fn is_null(self) -> bool {
        self == Self::NULL
    }

    pub fn address(self) -> GlobalAddress {
        GlobalAddress(self.0 & !CLASS)
    }

    /// Bytes that can also be read there after the element is gone; None if only the holder of the slot may read.
    pub fn safe(self) -> Option<usize> {
        SAFE.get((self.0 & CLASS) as usize).copied()
    }
}

/// A count of steps along pointers, which finds out if they lead in a circle: the place at the last power of two of
/// steps comes again then.
#[derive(Debug)]
pub struct Steps {
    been: Pointer,
    taken: u64,
}

impl Steps {
    pub fn new() -> Self {
        Self { been: Pointer::NULL, taken: 0 }
    }

    /// Goes to the next element; whether this is one where it was before.
    pub fn again(&mut self, to: Pointer) -> bool {
        if to == self.been {
            return true;
        }
        self.taken += 1;
        if self.taken.is_power_of_two() {
            self.been = to;
        }
        false
    }
}

/// The first words of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub next: Pointer,
    pub mark: u64,
    pub key: u64,
    /// Bytes of a map's value, the counter of a multiset, 0 for a set.
    pub more: u64,
}

impl Header {
    pub fn words(&self) -> [u64; 4] {
        [self.next.0, self.mark, self.key, self.more]
    }

    pub fn of(words: [u64; 4]) -> Self {
        Self { next: Pointer(words[0]), mark: words[1], key: words[2], more: words[3] }
    }
}

/// The mark of a slot's elements while they are in it: another one for each slot, and no address.
pub fn mark(slot: GlobalAddress) -> u64 {
    !slot.0
}

/// Offset of the value in an element with a key of this size: aligned to 8 bytes.
pub fn value_offset(key: usize) -> usize {
    (HEADER + key).next_multiple_of(8)
}

/// Bytes of the block for an element; None if no memory is as large.
pub fn block(key: usize, value: usize) -> Option<usize> {
    let fits = key.checked_add(value).is_some_and(|sum| (sum as u64) < MOST);
    fits.then(|| (value_offset(key) + value).next_multiple_of(16))
}

/// Chunks of a table of so many slots.
pub fn chunks(slots: u64) -> u64 {
    slots.div_ceil(CHUNK)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_placed_by_crc_64_xz() {
        // The check value of the catalogue of CRCs.
        let crc = 0x995d_c9bb_df19_39fa_u64 >> 16;
        assert_eq!(Spot::of(b"123456789", 5, 7), Some(Spot { index: crc / 7 % 5, slot: crc % 7 }));
        assert_eq!(Spot::of(b"123456789", 1, 1), Some(Spot { index: 0, slot: 0 }));
        assert_eq!(Spot::of(b"1", 0, 1), None);
        assert_eq!(Spot::of(b"1", 1, 0), None);
    }

    #[test]
    fn a_slots_word_is_free_or_locked() {
        let free = State(0).changed(3);
        assert_eq!((free.is_locked(), free.count()), (false, 3));
        let locked = free.locked_by((1 << 21) - 1);
        assert!(locked.is_locked() && locked.holder() == (1 << 21) - 1);
        assert_ne!(free.changed(3), free);
        let last = State(VERSION | 9 << COUNT_SHIFT);
        assert_eq!(last.changed(State::MOST), State(State::MOST << COUNT_SHIFT));
        assert!(!last.changed(State::MOST).is_locked());
    }

    proptest! {
        #[test]
        fn a_pointer_never_promises_more_than_there_is(
            at in (1u64..1 << 58).prop_map(|n| n * 16), key in 1usize..40_000, value in 0usize..40_000,
        ) {
            let bytes = block(key, value).unwrap();
            let pointer = Pointer::new(GlobalAddress(at), bytes);
            prop_assert!(bytes >= value_offset(key) + value && bytes.is_multiple_of(16));
            prop_assert_eq!(pointer.address(), GlobalAddress(at));
            prop_assert_eq!(pointer.safe().is_some(), bytes <= STAYS);
            prop_assert!(pointer.safe().is_none_or(|safe| safe <= bytes && safe >= HEADER));
        }
    }

    proptest! {
        #[test]
        fn circles_are_found_and_nothing_else_is(before in 0u64..50, circle in 1u64..50) {
            let mut steps = Steps::new();
            let at = |step: u64| Pointer(16 * (1 + if step < before { step } else { before + (step - before) % circle }));
            let found = (0..1000).find(|step| steps.again(at(*step)));
            prop_assert!(found.is_some_and(|step| step >= before + circle && step <= 4 * (before + circle)));
            let mut steps = Steps::new();
            prop_assert!(!(1..1000).any(|step| steps.again(Pointer(step * 16))));
        }
    }

    #[test]
    fn there_is_no_block_for_more_than_all_memory() {
        assert_eq!(block(usize::MAX, 1), None);
        assert_eq!(block(1 << 47, 0), None);
        assert_eq!(block(1, 0), Some(48));
    }
}
