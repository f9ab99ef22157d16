//! Decisions drawn from a seed.

use crate::simulated::faults::Chance;

pub struct Random(Chance);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Chance::new(seed))
    }

    pub fn word(&mut self) -> u64 {
        self.up_to(u64::MAX)
    }

    /// From 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        self.0.up_to(most)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.up_to(n - 1) == 0
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.up_to(all.len() as u64 - 1) as usize]
    }
}
