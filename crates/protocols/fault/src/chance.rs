//! Decisions by a seed. The generator is one whose values never change with its version, so that a seed replays for
//! ever; what is drawn from it is computed here for the same reason.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A probability, as a threshold of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probability(u64);

impl Probability {
    /// Happens every time.
    pub(crate) const ALWAYS: Self = Self(1 << 32);

    /// A chance of `part`, from 0 to 1.
    pub(crate) fn of(part: f64) -> Self {
        Self((part * (1u64 << 32) as f64) as u64)
    }
}

/// A seeded source of decisions.
#[derive(Clone, Debug)]
pub(crate) struct Chance(Xoshiro256PlusPlus);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns true if something of this probability happens. Always draws once, so that rules do not shift each
    /// other's numbers.
    pub(crate) fn happens(&mut self, probability: Probability) -> bool {
        (self.0.next_u64() >> 32) < probability.0
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high - low) + 1;
        low + ((u128::from(self.0.next_u64()) * span) >> 64) as u64
    }
}
