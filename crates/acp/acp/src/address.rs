//! Global addresses: 64 bits that name a byte of registered memory in the whole job.

use std::fmt;

use crate::error::{Error, Result};

/// The largest job: 2^21 ranks, as in the paper.
pub(crate) const MAX_RANK_BITS: u32 = 21;
/// One bit of color: two accessing devices.
const COLOR_BITS: u32 = 1;
/// Bits of key and offset in the paper: the least that any layout has.
const KEY_BITS: u32 = 8;
const OFFSET_BITS: u32 = 34;
/// The most bits that a key gets beyond those. More would only lengthen the table of registrations, which peers read by
/// RDMA.
const MORE_KEY_BITS: u32 = 6;

/// A global address (`acp_ga_t`): rank, color, key of the region and offset in it, from the top. Its bits are private
/// to the job: the width of each part depends on the number of ranks ([`Layout`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct GlobalAddress(pub u64);

impl GlobalAddress {
    /// `ACP_GA_NULL`, the address of nothing.
    pub const NULL: Self = Self(0);

    /// Returns true if it is [`NULL`](Self::NULL).
    pub fn is_null(self) -> bool {
        self == Self::NULL
    }

    /// The address `bytes` further on. Its use fails if it lies outside of the region.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "as of a raw pointer")]
    pub fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::Debug for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GlobalAddress({:#x})", self.0)
    }
}

impl fmt::Display for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The meaning of a global address's bits in a job of a certain size.
///
/// Rank bits are ⌈log2 ranks⌉; the rest of the paper's 21 goes to key and offset, half each, until keys have 14 bits.
/// At 2^21 ranks it is the paper's layout: rank 21, color 1, key 8, offset 34.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    key_bits: u32,
    offset_bits: u32,
    ranks: u32,
}

/// A global address taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    pub rank: u32,
    pub color: u32,
    pub key: u32,
    pub offset: u64,
}

impl Layout {
    /// The layout for a job of `ranks` (1 to 2^21); None for any other number.
    pub fn of(ranks: u32) -> Option<Layout> {
        let rank_bits = u32::BITS - ranks.checked_sub(1)?.leading_zeros();
        let freed = MAX_RANK_BITS.checked_sub(rank_bits)?;
        let key_bits = KEY_BITS + (freed / 2).min(MORE_KEY_BITS);
        let offset_bits = u64::BITS - rank_bits - COLOR_BITS - key_bits;
        debug_assert!(offset_bits >= OFFSET_BITS);
        Some(Layout { key_bits, offset_bits, ranks })
    }

    /// The layout of [`of`](Layout::of), or a sentence about a job that is too large.
    pub(crate) fn of_job(ranks: u32) -> Result<Layout> {
        let large = || Error::broken(format!("a job of {ranks} ranks is larger than global addresses can name"));
        Self::of(ranks).ok_or_else(large)
    }

    /// The number of ranks of the job.
    pub(crate) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The most regions that a rank can have registered at a time, including the three starter memories.
    pub fn max_regions(&self) -> u32 {
        (1 << self.key_bits) - 1
    }

    /// The most bytes of a region.
    pub fn max_region_size(&self) -> u64 {
        (1 << self.offset_bits) - 1
    }

    /// The address of these parts. A key of 0 is no key, so no address of memory is [`GlobalAddress::NULL`].
    #[inline]
    pub(crate) fn address(&self, parts: Parts) -> GlobalAddress {
        let Parts { rank, color, key, offset } = parts;
        let region = (u64::from(rank) << COLOR_BITS | u64::from(color)) << self.key_bits | u64::from(key);
        GlobalAddress(region << self.offset_bits | offset)
    }

    /// The parts of an address; None for an address of no rank, or with no key.
    #[inline]
    pub(crate) fn parts(&self, address: GlobalAddress) -> Option<Parts> {
        let offset = address.0 & ((1 << self.offset_bits) - 1);
        let region = self.region(address);
        let key = (region & ((1 << self.key_bits) - 1)) as u32;
        let color = (region >> self.key_bits) as u32 & ((1 << COLOR_BITS) - 1);
        // A job of one rank has no bits for the rank: the shift is then by 63 at most.
        let rank = (region >> self.key_bits >> COLOR_BITS) as u32;
        (rank < self.ranks && key != 0).then_some(Parts { rank, color, key, offset })
    }

    /// The number of the region in the job: rank, color and key.
    #[inline]
    pub(crate) fn region(&self, address: GlobalAddress) -> u64 {
        address.0 >> self.offset_bits
    }

    /// Rank and color as one number.
    #[inline]
    pub(crate) fn owner(&self, address: GlobalAddress) -> u64 {
        self.region(address) >> self.key_bits
    }

    /// The offset in the region.
    #[inline]
    pub(crate) fn offset(&self, address: GlobalAddress) -> u64 {
        address.0 & ((1 << self.offset_bits) - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_job_has_the_papers_layout() {
        let layout = Layout::of(1 << 21).unwrap();
        assert_eq!((layout.key_bits, layout.offset_bits), (8, 34));
        assert_eq!(layout.max_regions(), 255);
        let small = Layout::of(1_000_000).unwrap();
        assert_eq!((small.key_bits, small.offset_bits), (8, 35));
        let four = Layout::of(4).unwrap();
        assert_eq!((four.key_bits, four.offset_bits), (14, 47));
        assert_eq!(Layout::of(0), None);
        assert_eq!(Layout::of((1 << 21) + 1), None);
    }

    proptest! {
        #[test]
        fn an_address_comes_apart_into_what_it_was_made_of(
            ranks in 1u32..=1 << 21, rank: u32, color in 0u32..2, key: u32, offset: u64,
        ) {
            let layout = Layout::of(ranks).unwrap();
            let parts = Parts {
                rank: rank % ranks,
                color,
                key: key % layout.max_regions() + 1,
                offset: offset % (layout.max_region_size() + 1),
            };
            let address = layout.address(parts);
            prop_assert!(!address.is_null());
            prop_assert_eq!(layout.parts(address), Some(parts));
        }

        #[test]
        fn no_address_is_of_a_rank_that_is_not_there(ranks in 1u32..=1 << 21, address: u64) {
            let layout = Layout::of(ranks).unwrap();
            prop_assert!(layout.parts(GlobalAddress(address)).is_none_or(|parts| parts.rank < ranks && parts.key > 0));
        }
    }
}
