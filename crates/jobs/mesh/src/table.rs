//! A hash table of fixed size for numbers: a lookup is a multiplication and mostly one load.

/// No key is this.
const EMPTY: u64 = u64::MAX;

/// Maps at most as many keys as it was made for; linear probing, at most a quarter full.
pub struct Table<V> {
    slots: Box<[(u64, V)]>,
    /// Bits of the product that are not used.
    shift: u32,
}

/// The key of a rank and a color.
#[inline]
pub fn key(rank: u32, color: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(color)
}

impl<V: Copy> Table<V> {
    /// A table for `keys` keys, at least 1; `nothing` is what stands where there is none.
    pub fn new(keys: usize, nothing: V) -> Self {
        let slots = Self::slots(keys);
        Self { slots: vec![(EMPTY, nothing); slots].into(), shift: u64::BITS - slots.trailing_zeros() }
    }

    fn slots(keys: usize) -> usize {
        (keys.max(1) * 4).next_power_of_two()
    }

    /// Bytes of a table for `keys` keys.
    pub fn bytes(keys: usize) -> usize {
        Self::slots(keys) * size_of::<(u64, V)>()
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        // 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4).
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The slot of the key, or the one that it would get.
    #[inline]
    fn slot(&self, key: u64) -> usize {
        let mut slot = self.home(key);
        while self.slots[slot].0 != key && self.slots[slot].0 != EMPTY {
            slot = self.after(slot);
        }
        slot
    }

    #[inline]
    pub fn get(&self, key: u64) -> Option<V> {
        let (found, value) = self.slots[self.slot(key)];
        (found == key).then_some(value)
    }

    pub fn insert(&mut self, key: u64, value: V) {
        debug_assert_ne!(key, EMPTY);
        let slot = self.slot(key);
        self.slots[slot] = (key, value);
    }

    pub fn remove(&mut self, key: u64) {
        let mut gap = self.slot(key);
        if self.slots[gap].0 != key {
            return;
        }
        let mut next = self.after(gap);
        while self.slots[next].0 != EMPTY {
            let mask = self.slots.len() - 1;
            let home = self.home(self.slots[next].0);
            // It may move to the gap if that is not before its home.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(gap) & mask) {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = self.after(next);
        }
        self.slots[gap].0 = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_is_a_map() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let (mut table, mut model) = (Table::new(4, 0), HashMap::new());
            for step in 0..500 {
                let wanted = key(rng.u32(0..12) * 0x1000, rng.u32(0..2));
                // Fuller than promised, for collisions and wrapping round.
                if rng.bool() && model.len() < 15 {
                    table.insert(wanted, step);
                    model.insert(wanted, step);
                } else {
                    table.remove(wanted);
                    model.remove(&wanted);
                }
                for rank in 0..12 {
                    for color in 0..2 {
                        let wanted = key(rank * 0x1000, color);
                        assert_eq!(table.get(wanted), model.get(&wanted).copied());
                    }
                }
            }
        }
    }
}
