//! Seeded decisions of scenarios and hosts, and bytes that tell where they belong. Values never change with a version
//! of the generator, so that a seed replays for ever.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A seeded source of decisions.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high - low) + 1;
        low + ((u128::from(self.bits()) * span) >> 64) as u64
    }

    /// From `low` to `high`, each order of magnitude as likely as another.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let (bottom, top) = ((low as f64).ln(), (high as f64).ln());
        let part = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        ((bottom + part * (top - bottom)).exp() as u64).clamp(low, high)
    }

    /// True so many times in a thousand.
    pub fn permille(&mut self, part: u64) -> bool {
        self.between(0, 999) < part
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.between(0, of.len() as u64 - 1) as usize]
    }
}

/// A number that differs for each `(a, b)`.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

/// Bytes `[offset, offset + out.len())` of the endless data that `key` names.
pub fn pattern(key: u64, offset: u64, out: &mut [u8]) {
    let mut at = 0;
    while at < out.len() {
        let position = offset + at as u64;
        let word = mix(key, position / 8).to_le_bytes();
        let skip = (position % 8) as usize;
        let part = (8 - skip).min(out.len() - at);
        out[at..at + part].copy_from_slice(&word[skip..skip + part]);
        at += part;
    }
}
