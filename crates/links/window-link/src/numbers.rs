//! Maps by QP number. The numbers are this process's own, so nobody chooses them to collide.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by QP number.
pub type ByNumber<T> = HashMap<u32, T, BuildHasherDefault<NumberHasher>>;

/// Spreads a number over all bits of the hash.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    #[inline]
    fn write_u32(&mut self, number: u32) {
        // The golden ratio (Knuth, The Art of Computer Programming, 6.4); maps take bits of both ends.
        let spread = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(self.0 as u32 ^ u32::from(*byte)));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
