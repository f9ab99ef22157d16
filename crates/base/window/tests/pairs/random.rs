//! Decisions drawn from a seed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

pub struct Random(Xoshiro256PlusPlus);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        ((u128::from(self.word()) * (u128::from(most) + 1)) >> 64) as u64
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.up_to(n - 1) == 0
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.up_to(all.len() as u64 - 1) as usize]
    }
}
