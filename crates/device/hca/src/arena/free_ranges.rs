//! The free ranges of an arena, best fit. A process may have some hundred thousand holes, for example between the lanes
//! of QPs that are gone. So a search tree answers both questions: the neighbours of a range that is freed, and the
//! smallest hole that is large enough.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Free ranges, none of which touches another.
#[derive(Debug, Default)]
pub(crate) struct FreeRanges {
    /// End by start.
    ends: BTreeMap<u64, u64>,
    /// Length and start.
    by_length: BTreeSet<(u64, u64)>,
}

impl FreeRanges {
    pub(crate) fn new(range: Range<u64>) -> FreeRanges {
        let mut free = FreeRanges::default();
        free.insert(range);
        free
    }

    fn insert(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.ends.insert(range.start, range.end);
            self.by_length.insert((range.end - range.start, range.start));
        }
    }

    fn remove(&mut self, range: &Range<u64>) {
        self.ends.remove(&range.start);
        self.by_length.remove(&(range.end - range.start, range.start));
    }

    /// Takes `len` bytes from the front of the smallest hole that has them, the first of several.
    pub(crate) fn take(&mut self, len: u64) -> Option<Range<u64>> {
        let (have, start) = *self.by_length.range((len, 0)..).next()?;
        self.remove(&(start..start + have));
        self.insert(start + len..start + have);
        Some(start..start + len)
    }

    /// Frees what was taken, or a part of it.
    pub(crate) fn give_back(&mut self, range: Range<u64>) {
        let mut whole = range;
        if let Some((&start, &end)) = self.ends.range(..whole.start).next_back()
            && end == whole.start
        {
            self.remove(&(start..end));
            whole.start = start;
        }
        if let Some(&end) = self.ends.get(&whole.end) {
            self.remove(&(whole.end..end));
            whole.end = end;
        }
        self.insert(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_hole_that_is_large_enough_is_used() {
        let mut free = FreeRanges::new(0..1000);
        let all: Vec<_> = [100, 30, 100, 40, 100].map(|len| free.take(len).unwrap()).into();
        free.give_back(all[1].clone());
        free.give_back(all[3].clone());
        assert_eq!(free.take(40), Some(230..270));
        assert_eq!(free.take(25), Some(100..125));
        assert_eq!(free.take(1000), None);
    }

    proptest! {
        #[test]
        fn what_is_taken_overlaps_nothing_and_all_comes_back(
            steps in prop::collection::vec((1_u64..300, any::<prop::sample::Index>(), any::<bool>()), 1..200)
        ) {
            let mut free = FreeRanges::new(64..4096);
            let mut taken: Vec<Range<u64>> = Vec::new();
            for (len, which, gives_back) in steps {
                if gives_back && !taken.is_empty() {
                    free.give_back(taken.swap_remove(which.index(taken.len())));
                } else if let Some(range) = free.take(len) {
                    prop_assert!(range.end - range.start == len && range.start >= 64 && range.end <= 4096);
                    prop_assert!(taken.iter().all(|t| t.end <= range.start || range.end <= t.start));
                    taken.push(range);
                }
                prop_assert_eq!(free.ends.len(), free.by_length.len());
            }
            taken.into_iter().for_each(|range| free.give_back(range));
            prop_assert_eq!(free.ends.into_iter().collect::<Vec<_>>(), vec![(64, 4096)]);
        }
    }
}
