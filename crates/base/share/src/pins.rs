//! Ranges of the heap that a device works on, counted: their pages stay where they are until the last unpin.

use std::ops::Range;

use rangemap::{RangeMap, RangeSet};

/// Pinned ranges.
#[derive(Debug, Default)]
pub struct Pins {
    /// How often each range is pinned; a range without an entry is not.
    counts: RangeMap<usize, u32>,
    /// Those whose pages have no address any more.
    parked: RangeSet<usize>,
}

impl Pins {
    /// Pins a range once more.
    pub fn add(&mut self, range: Range<usize>) {
        let old = self.parts(&range);
        let gaps: Vec<_> = self.counts.gaps(&range).collect();
        for (part, count) in old {
            self.counts.insert(part, count.saturating_add(1));
        }
        for gap in gaps {
            self.counts.insert(gap, 1);
        }
    }

    /// Takes one pin back; the parts that are free of pins now.
    pub fn remove(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut free = Vec::new();
        for (part, count) in self.parts(&range) {
            if count > 1 {
                self.counts.insert(part, count - 1);
            } else {
                self.counts.remove(part.clone());
                free.push(part);
            }
        }
        free
    }

    /// Returns true if any of `range` is pinned.
    pub fn any(&self, range: &Range<usize>) -> bool {
        !self.counts.is_empty() && self.counts.overlaps(range)
    }

    /// `range` cut into parts that are pinned or not, in order.
    pub fn split(&self, range: Range<usize>) -> Vec<(Range<usize>, bool)> {
        let mut all: Vec<(Range<usize>, bool)> = Vec::new();
        let mut at = range.start;
        for (part, _) in self.parts(&range) {
            if at < part.start {
                all.push((at..part.start, false));
            }
            at = part.end;
            match all.last_mut() {
                Some((last, true)) if last.end == part.start => last.end = part.end,
                _ => all.push((part, true)),
            }
        }
        if at < range.end {
            all.push((at..range.end, false));
        }
        all
    }

    /// Keeps the pages of a pinned range, which the program has given up.
    pub fn park(&mut self, range: Range<usize>) {
        self.parked.insert(range);
    }

    /// Returns true if pages are kept for any of `range`.
    pub fn any_parked(&self, range: &Range<usize>) -> bool {
        self.parked.overlaps(range)
    }

    /// Takes the parts of `range`, which has no pins any more, for which pages were kept.
    pub fn take_parked(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let cut = |part: &Range<usize>| part.start.max(range.start)..part.end.min(range.end);
        let parts: Vec<_> = self.parked.overlapping(range).map(cut).collect();
        self.parked.remove(range.clone());
        parts
    }

    /// Forgets everything: a child of fork has no device.
    pub fn clear(&mut self) {
        self.counts.clear();
        self.parked.clear();
    }

    fn parts(&self, range: &Range<usize>) -> Vec<(Range<usize>, u32)> {
        let cut = |part: &Range<usize>| part.start.max(range.start)..part.end.min(range.end);
        self.counts.overlapping(range.clone()).map(|(part, count)| (cut(part), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_pins_are_counted_apart() {
        let mut pins = Pins::default();
        pins.add(0..20);
        pins.add(10..30);
        assert_eq!(pins.split(5..35), [(5..30, true), (30..35, false)]);
        assert_eq!(pins.remove(0..20), vec![Range { start: 0, end: 10 }]);
        assert_eq!(pins.split(0..40), [(0..10, false), (10..30, true), (30..40, false)]);
        assert_eq!(pins.remove(10..30), vec![Range { start: 10, end: 30 }]);
        assert!(!pins.any(&(0..100)));
    }
}
