//! Descriptors of a board's DMA channels, and the checks by which the board refuses them.

use crate::device::Refused;
use crate::layout::{GRANULE, Layout};

/// Fewest bytes that a descriptor moves; its places and lengths are multiples of this.
pub(super) const ALIGN: u64 = 4;
/// Modulus in bytes by which source and destination must be equal.
pub(super) const CONGRUENT: u64 = 16;
/// Descriptors that a board can keep in its own memory.
pub(super) const INTERNAL: u32 = 1024;
/// DMA channels of a board.
pub(super) const CHANNELS: usize = 4;

/// A transfer of `count` blocks of `block` bytes: they begin `stride` bytes apart in the own region, and are put behind
/// each other into another region. With one block it is a plain transfer, else a block-stride one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Offset of the first block in the own region.
    pub from: u64,
    /// Offset of the destination in the other region.
    pub to: u64,
    pub block: u64,
    pub stride: u64,
    pub count: u64,
}

impl Descriptor {
    /// A transfer of one block.
    pub(super) fn plain(from: u64, to: u64, len: u64) -> Descriptor {
        Descriptor { from, to, block: len, stride: len, count: 1 }
    }

    /// Bytes that it moves.
    pub(super) fn len(&self) -> u64 {
        self.block.saturating_mul(self.count)
    }

    /// Adds a block that is to follow. Returns false, unchanged, if the board has no descriptor for both.
    pub(super) fn join(&mut self, from: u64, to: u64, len: u64) -> bool {
        let follows = to == self.to.wrapping_add(self.len());
        if self.count == 1 && follows && from == self.from.wrapping_add(self.block) {
            self.block += len;
            self.stride = self.block;
            return true;
        }
        if !follows || len != self.block {
            return false;
        }
        let stride = from.wrapping_sub(self.from + (self.count - 1) * self.stride);
        // The board only goes forward; the second block sets the stride.
        if stride > u64::from(u32::MAX) || stride < self.block || self.count > 1 && stride != self.stride {
            return false;
        }
        self.stride = stride;
        self.count += 1;
        true
    }

    /// Checks that the board takes it; `is_claimed` returns true for a granule of the own region that is in use.
    ///
    /// # Errors
    /// The limit that it breaks.
    pub(super) fn check(&self, layout: Layout, is_claimed: impl Fn(u32) -> bool) -> Result<(), Refused> {
        if !(self.from | self.to | self.block | self.stride).is_multiple_of(ALIGN) {
            return Err(Refused::Misaligned);
        }
        // If stride and block length differed modulo this, only the first block would be congruent.
        if !(self.from ^ self.to).is_multiple_of(CONGRUENT)
            || self.count > 1 && !(self.stride ^ self.block).is_multiple_of(CONGRUENT)
        {
            return Err(Refused::Incongruent);
        }
        let end = self.stride.checked_mul(self.count.saturating_sub(1)).and_then(|n| n.checked_add(self.block));
        let end = end.and_then(|n| n.checked_add(self.from));
        if self.count == 0 || end.is_none_or(|end| end > layout.region_len()) {
            return Err(Refused::Outside);
        }
        let granules = (self.from / GRANULE) as u32..end.unwrap_or_default().div_ceil(GRANULE) as u32;
        if !layout.granules().contains(&granules.start) || !is_claimed(granules.start) || !is_claimed(granules.end - 1)
        {
            return Err(Refused::NotMine);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_limit_is_refused() {
        let layout = Layout::new(2, 16 << 20).unwrap();
        let first = u64::from(layout.granules().start) * GRANULE;
        let end = layout.region_len();
        let plain = Descriptor::plain;
        for (descriptor, answer) in [
            (plain(first, first, 4), Ok(())),
            (plain(first + 4, first + 20, 4096), Ok(())),
            (plain(first + 2, first + 2, 4), Err(Refused::Misaligned)),
            (plain(first, first + 2, 4), Err(Refused::Misaligned)),
            (plain(first, first, 6), Err(Refused::Misaligned)),
            (plain(first, first + 4, 4), Err(Refused::Incongruent)),
            (plain(end - 8, first + 8, 8), Ok(())),
            (plain(end - 8, first + 8, 16), Err(Refused::Outside)),
            (plain(u64::MAX - 15, first, 32), Err(Refused::Outside)),
            (plain(first - GRANULE, first, 64), Err(Refused::NotMine)),
            (plain(0, first, 4), Err(Refused::NotMine)),
            (Descriptor { from: first, to: first, block: 16, stride: 64, count: 3 }, Ok(())),
            (Descriptor { from: first, to: first, block: 16, stride: 24, count: 3 }, Err(Refused::Incongruent)),
            (Descriptor { from: first, to: first, block: 8, stride: 8, count: u64::MAX }, Err(Refused::Outside)),
            (Descriptor { from: first, to: first, block: 8, stride: 8, count: 0 }, Err(Refused::Outside)),
        ] {
            assert_eq!(descriptor.check(layout, |_| true), answer, "{descriptor:?}");
        }
        assert_eq!(plain(first, first, 4).check(layout, |_| false), Err(Refused::NotMine));
        let free = layout.granules().start + 1;
        assert_eq!(plain(first, first, GRANULE).check(layout, |granule| granule != free), Ok(()));
        assert_eq!(plain(first, first, GRANULE + 4).check(layout, |granule| granule != free), Err(Refused::NotMine));
    }

    #[test]
    fn blocks_become_one_descriptor_where_the_board_has_one() {
        let joined = |pieces: &[(u64, u64)]| {
            let (mut to, mut all) = (1600, Vec::<Descriptor>::new());
            for (from, len) in pieces {
                if !all.last_mut().is_some_and(|last| last.join(*from, to, *len)) {
                    all.push(Descriptor::plain(*from, to, *len));
                }
                to += len;
            }
            all.iter().map(|d| (d.from, d.block, d.stride, d.count)).collect::<Vec<_>>()
        };
        assert_eq!(joined(&[(0, 16), (16, 16)]), [(0, 32, 32, 1)]);
        assert_eq!(joined(&[(0, 16), (64, 16), (128, 16)]), [(0, 16, 64, 3)]);
        assert_eq!(joined(&[(0, 16), (64, 16), (192, 16)]), [(0, 16, 64, 2), (192, 16, 16, 1)]);
        assert_eq!(joined(&[(64, 16), (0, 16)]), [(64, 16, 16, 1), (0, 16, 16, 1)], "backwards");
        assert_eq!(joined(&[(0, 16), (64, 32)]), [(0, 16, 16, 1), (64, 32, 32, 1)]);
    }
}
