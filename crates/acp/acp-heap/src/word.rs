//! Words of the tree: what 32 units of one size are, by two bits each.
//!
//! | bits | the unit |
//! |---|---|
//! | 00 | is free |
//! | 01 | goes on a block that begins before |
//! | 10 | is the first of a block |
//! | 11 | is divided: a word of the level below says into what |
//!
//! A block is a run of units inside one word, so that one compare and swap takes it and one frees it.

/// Units of a word.
pub const UNITS: u32 = 32;
/// The lower bit of each unit.
const LOW: u64 = 0x5555_5555_5555_5555;

const FREE: u64 = 0b00;
const MORE: u64 = 0b01;
const FIRST: u64 = 0b10;
const DIVIDED: u64 = 0b11;

/// The state of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Free,
    More,
    /// With the units of its block.
    First(u32),
    Divided,
}

/// 32 units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// All units are free.
    pub const EMPTY: Self = Self(0);

    fn bits(self, unit: u32) -> u64 {
        self.0 >> (2 * unit) & 0b11
    }

    fn with(self, unit: u32, bits: u64) -> Self {
        Self(self.0 & !(0b11 << (2 * unit)) | bits << (2 * unit))
    }

    /// The state of this unit.
    pub fn unit(self, unit: u32) -> Unit {
        match self.bits(unit) {
            FREE => Unit::Free,
            MORE => Unit::More,
            FIRST => Unit::First(1 + (unit + 1..UNITS).take_while(|unit| self.bits(*unit) == MORE).count() as u32),
            _ => Unit::Divided,
        }
    }

    /// The first of `units` free ones in a row, all of `available`, which has the lower bit of each unit that may be
    /// taken.
    pub fn room(self, units: u32, available: u64) -> Option<u32> {
        let mut runs = !(self.0 | self.0 >> 1) & LOW & available;
        // After each step a bit says that so many units from its own on are free.
        let mut have = 1;
        while have < units {
            let more = have.min(units - have);
            runs &= runs >> (2 * more);
            have += more;
        }
        (runs != 0).then(|| runs.trailing_zeros() / 2)
    }

    /// With a block of `units` from this unit on, which are free.
    pub fn take(self, unit: u32, units: u32) -> Self {
        (unit + 1..unit + units).fold(self.with(unit, FIRST), |word, unit| word.with(unit, MORE))
    }

    /// With `units` from this one on free.
    pub fn release(self, unit: u32, units: u32) -> Self {
        (unit..unit + units).fold(self, |word, unit| word.with(unit, FREE))
    }

    /// With this unit divided.
    pub fn divide(self, unit: u32) -> Self {
        self.with(unit, DIVIDED)
    }
}

/// The lower bits of the units from `from` up to `to`.
pub fn units(from: u32, to: u32) -> u64 {
    let below = |unit: u32| if unit >= UNITS { LOW } else { LOW & ((1 << (2 * unit)) - 1) };
    below(to) & !below(from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_is_found_as_it_was_taken() {
        for units in 1..=UNITS {
            for at in 0..=UNITS - units {
                let word = Word::EMPTY.take(at, units);
                assert_eq!(word.unit(at), Unit::First(units));
                assert_eq!(word.release(at, units), Word::EMPTY);
                assert!((at + 1..at + units).all(|unit| word.unit(unit) == Unit::More));
            }
        }
        // One behind another is not its continuation.
        assert_eq!(Word::EMPTY.take(3, 2).take(5, 4).unit(3), Unit::First(2));
    }

    proptest! {
        #[test]
        fn room_is_the_first_run_of_free_units(word: u64, available: u64, length in 1u32..=UNITS) {
            let free = |unit: u32| word >> (2 * unit) & 0b11 == 0 && available >> (2 * unit) & 1 == 1;
            let first = (0..=UNITS - length).find(|at| (*at..at + length).all(free));
            prop_assert_eq!(Word(word).room(length, available), first);
        }

        #[test]
        fn any_bits_are_a_word(word: u64, unit in 0..UNITS) {
            if let Unit::First(units) = Word(word).unit(unit) {
                prop_assert!(units >= 1 && unit + units <= UNITS);
            }
        }

        #[test]
        fn units_are_those_between(from in 0..=UNITS, to in 0..=UNITS) {
            let bits = (from..to).fold(0, |bits, unit| bits | 1u64 << (2 * unit));
            prop_assert_eq!(units(from, to), bits);
        }
    }
}
