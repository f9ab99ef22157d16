//! Values in a row, to be gone through fast: a process with 10,000 QPs looks at a word of each in a fraction of a
//! millisecond, most of which the memory takes.

use crate::host::prefetch::prefetch_to_read;
use std::collections::BTreeMap;

/// Number of words that are prefetched: a miss takes as long as about ten looks.
const AHEAD: usize = 16;

/// Values by their keys, in a row.
pub(crate) struct Dense<K, V> {
    row: Vec<(K, V)>,
    /// The place of each in the row.
    places: BTreeMap<K, usize>,
}

impl<K, V> Default for Dense<K, V> {
    fn default() -> Self {
        Dense { row: Vec::new(), places: BTreeMap::new() }
    }
}

impl<K: Copy + Ord, V> Dense<K, V> {
    /// Adds a value, in place of the one that `key` named.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.places.get(&key) {
            Some(place) => self.row[*place].1 = value,
            None => {
                self.places.insert(key, self.row.len());
                self.row.push((key, value));
            }
        }
    }

    pub(crate) fn remove(&mut self, key: K) {
        let Some(place) = self.places.remove(&key) else { return };
        self.row.swap_remove(place);
        if let Some((moved, _)) = self.row.get(place) {
            self.places.insert(*moved, place);
        }
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.places.get(&key).map(|place| &self.row[*place].1)
    }

    /// All values. `word` says where memory is that is looked at for each, and is asked for some values ahead.
    pub(crate) fn look_at<'a, W: 'a>(&'a self, word: impl Fn(&V) -> *const W + 'a) -> impl Iterator<Item = &'a V> {
        self.row.iter().enumerate().map(move |(i, (_, value))| {
            if let Some((_, later)) = self.row.get(i + AHEAD) {
                prefetch_to_read(word(later).cast());
            }
            value
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_is_gone_and_the_rest_is_found() {
        let mut dense = Dense::default();
        for key in 0..40u32 {
            dense.insert(key, u64::from(key) * 10);
        }
        dense.insert(7, 77);
        for key in [39, 0, 20, 20, 100] {
            dense.remove(key);
        }
        let mut left: Vec<u64> = dense.look_at(std::ptr::from_ref).copied().collect();
        left.sort_unstable();
        let mut expected: Vec<u64> = (1..39).filter(|k| *k != 20).map(|k| if k == 7 { 77 } else { k * 10 }).collect();
        expected.sort_unstable();
        assert_eq!(left, expected);
        for key in 0..41u32 {
            let there = (1..39).contains(&key) && key != 20;
            let value = if key == 7 { 77 } else { u64::from(key) * 10 };
            assert_eq!(dense.get(key).copied(), there.then_some(value), "{key}");
        }
    }
}
