//! Small blocks at page boundaries, as posix_memalign(3) gives them: slots of one size in a block of the heap. A block
//! of its own for each would take a mapping each, of which a process may have 65,530 (vm.max_map_count).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::room::GRANULE;
use crate::settings::THRESHOLD;
use crate::sys::{page, round_up};

/// Bytes of a slab.
pub const LENGTH: usize = 1 << 20;

/// Most slots: a page is 4 KiB at least.
const MOST: usize = LENGTH / 4096;

/// A set of slots.
#[derive(Debug, Clone, Copy, Default)]
struct Slots([u64; MOST / 64]);

impl Slots {
    fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 != 0
    }

    fn set(&mut self, i: usize, on: bool) {
        let bit = 1 << (i % 64);
        if on {
            self.0[i / 64] |= bit;
        } else {
            self.0[i / 64] &= !bit;
        }
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn first_absent(&self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != u64::MAX)?;
        Some(word * 64 + self.0[word].trailing_ones() as usize)
    }
}

/// A block cut into slots.
#[derive(Debug)]
struct Slab {
    /// Bytes of a slot: whole pages.
    slot: usize,
    used: Slots,
    /// Used slots that the program has given back while a device works on them.
    parked: Slots,
}

impl Slab {
    fn slots(&self) -> usize {
        LENGTH / self.slot
    }
}

/// Bytes of the slot for such a request; none if it is not one for a slab.
pub(crate) fn slot_for(size: usize, align: usize) -> Option<usize> {
    let len = round_up(size.max(1), page());
    if align < page() || align > GRANULE || size >= THRESHOLD {
        return None;
    }
    // Four steps between two powers of two.
    let slot = round_up(round_up(len, (len.next_power_of_two() / 8).max(page())), align);
    (slot <= THRESHOLD).then_some(slot)
}

/// All slabs of a heap.
#[derive(Debug, Default)]
pub struct Slabs {
    /// By address.
    all: BTreeMap<usize, Slab>,
    /// Those that have a free slot: bytes of a slot, and address.
    with_room: BTreeSet<(usize, usize)>,
}

impl Slabs {
    /// Cuts the block at `start` into slots of `slot` bytes.
    pub(crate) fn add(&mut self, start: usize, slot: usize) {
        self.all.insert(start, Slab { slot, used: Slots::default(), parked: Slots::default() });
        self.with_room.insert((slot, start));
    }

    /// A slot of `slot` bytes that nobody has.
    pub(crate) fn take(&mut self, slot: usize) -> Option<usize> {
        let (_, start) = *self.with_room.range((slot, 0)..=(slot, usize::MAX)).next()?;
        let slab = self.all.get_mut(&start)?;
        let i = slab.used.first_absent().filter(|&i| i < slab.slots())?;
        slab.used.set(i, true);
        if slab.used.count() == slab.slots() {
            self.with_room.remove(&(slot, start));
        }
        Some(start + i * slot)
    }

    /// The slab around an address, the number of the slot there and its range.
    fn at(&mut self, addr: usize) -> Option<(&mut Slab, usize, Range<usize>)> {
        let (&start, slab) = self.all.range_mut(..=addr).next_back()?;
        let i = (addr - start) / slab.slot;
        let range = start + i * slab.slot..start + (i + 1) * slab.slot;
        (addr < start + LENGTH && i < slab.slots()).then_some((slab, i, range))
    }

    /// The slot around an address, and whether it is parked.
    pub(crate) fn slot_at(&mut self, addr: usize) -> Option<(Range<usize>, bool)> {
        self.at(addr).map(|(slab, i, range)| (range, slab.parked.has(i)))
    }

    /// The slot that begins at `addr`, if the program has it.
    pub(crate) fn live(&mut self, addr: usize) -> Option<Range<usize>> {
        let (slab, i, range) = self.at(addr)?;
        (range.start == addr && slab.used.has(i) && !slab.parked.has(i)).then_some(range)
    }

    /// Keeps the slot at `addr`, which the program has given back, for the device that works on it.
    pub(crate) fn park(&mut self, addr: usize) {
        if let Some((slab, i, _)) = self.at(addr) {
            slab.parked.set(i, true);
        }
    }

    /// Takes the slot at `addr` back. Returns the address of its block if that has no other, and is no slab any more.
    pub(crate) fn free(&mut self, addr: usize) -> Option<usize> {
        let (slab, i, range) = self.at(addr)?;
        slab.used.set(i, false);
        slab.parked.set(i, false);
        let (slot, is_empty, start) = (slab.slot, slab.used.count() == 0, range.start - i * slab.slot);
        if !is_empty {
            self.with_room.insert((slot, start));
            return None;
        }
        self.all.remove(&start);
        self.with_room.remove(&(slot, start));
        Some(start)
    }

    /// In a child of fork, which has no device.
    pub(crate) fn forget_parked(&mut self) {
        for (&start, slab) in &mut self.all {
            if slab.parked.count() != 0 {
                slab.used.0.iter_mut().zip(&slab.parked.0).for_each(|(used, parked)| *used &= !parked);
                slab.parked = Slots::default();
                self.with_room.insert((slab.slot, start));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_what_is_asked_for_at_its_alignment() {
        for (size, align, want) in [
            (0, 4096, Some(4096)),
            (4096, 4096, Some(4096)),
            (4097, 4096, Some(8192)),
            (20_000, 4096, Some(20_480)),
            (36_000, 4096, Some(40_960)),
            (100_000, 4096, Some(114_688)),
            (4096, 65_536, Some(65_536)),
            (100_000, 65_536, Some(131_072)),
            (131_072, 4096, None),
            (4096, 131_072, None),
            (100, 16, None),
        ] {
            assert_eq!(slot_for(size, align), want, "{size} at {align}");
        }
    }

    #[test]
    fn the_first_free_slot_is_found() {
        let mut slots = Slots::default();
        for i in 0..MOST {
            assert_eq!(slots.first_absent(), Some(i));
            slots.set(i, true);
        }
        assert_eq!((slots.first_absent(), slots.count()), (None, MOST));
        slots.set(77, false);
        assert_eq!((slots.first_absent(), slots.has(77), slots.has(78)), (Some(77), false, true));
    }
}
