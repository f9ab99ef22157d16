//! Answers that have come before one that is missing: READ responses, of which each has its place in memory, and the
//! answers to atomics. Of the former the PSN is kept, of the latter the word too, so that no more than what is missing
//! is asked for again. Words are delivered in the order of requests: programs have one place for the words of many.

use std::collections::VecDeque;

use crate::psn;

/// Most runs that are remembered. An answer that would begin one more is dropped, and asked for again.
const MOST_RUNS: usize = 256;

/// Runs of PSNs, in order, with a gap before each.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// First PSN, and PSN behind the last.
    runs: VecDeque<(u32, u32)>,
    /// What atomics have found, by PSN: each has a PSN in the runs.
    words: Vec<(u32, u64)>,
}

impl Arrived {
    /// Adds `psn`. Returns false if it is there already, or begins a run too many.
    pub fn add(&mut self, psn: u32) -> bool {
        let behind = psn::add(psn, 1);
        let place = self.runs.partition_point(|&(_, to)| psn::is_before(to, psn));
        // All runs before `place` end before `psn`, with a gap.
        let Some(&(from, to)) = self.runs.get(place) else {
            return self.insert(place, psn);
        };
        if to == psn {
            match self.runs.get(place + 1) {
                Some(&(next, end)) if next == behind => {
                    self.runs[place].1 = end;
                    self.runs.remove(place + 1);
                }
                _ => self.runs[place].1 = behind,
            }
            return true;
        }
        if from == behind {
            self.runs[place].0 = psn;
            return true;
        }
        psn::is_before(psn, from) && self.insert(place, psn)
    }

    /// Adds the answer to an atomic, as [`Arrived::add`] does.
    pub fn add_word(&mut self, psn: u32, word: u64) -> bool {
        let fits = self.words.len() < MOST_RUNS && self.add(psn);
        if fits {
            self.words.push((psn, word));
        }
        fits
    }

    /// The answer to the atomic of `psn`, if it has come.
    pub fn word(&self, psn: u32) -> Option<u64> {
        self.words.iter().find(|(of, _)| *of == psn).map(|(_, word)| *word)
    }

    fn insert(&mut self, place: usize, psn: u32) -> bool {
        if self.runs.len() == MOST_RUNS {
            return false;
        }
        self.runs.insert(place, (psn, psn::add(psn, 1)));
        true
    }

    /// PSN behind the run that has `psn`; None: it has not arrived.
    pub fn end_of(&self, psn: u32) -> Option<u32> {
        let place = self.runs.partition_point(|&(_, to)| to == psn || psn::is_before(to, psn));
        self.runs.get(place).filter(|&&(from, _)| !psn::is_before(psn, from)).map(|&(_, to)| to)
    }

    /// Adds to `missing` what has not arrived from PSN `from` to `to`.
    pub fn add_missing(&self, from: u32, to: u32, missing: &mut Vec<(u32, u32)>) {
        let mut at = from;
        let place = self.runs.partition_point(|&(_, end)| end == from || psn::is_before(end, from));
        for &(start, end) in self.runs.iter().skip(place).take_while(|run| psn::is_before(run.0, to)) {
            if psn::is_before(at, start) {
                missing.push((at, start));
            }
            at = end;
        }
        if psn::is_before(at, to) {
            missing.push((at, to));
        }
    }

    /// Forgets what lies before `psn`.
    pub fn forget_before(&mut self, psn: u32) {
        self.words.retain(|(of, _)| !psn::is_before(*of, psn));
        while self.runs.front().is_some_and(|run| !psn::is_before(psn, run.1)) {
            self.runs.pop_front();
        }
        if let Some(first) = self.runs.front_mut()
            && psn::is_before(first.0, psn)
        {
            first.0 = psn;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// PSNs begin before their wrap.
    const FIRST: u32 = psn::MASK - 30;

    fn at(offset: u32) -> u32 {
        psn::add(FIRST, offset)
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_what_was_added(psns in prop::collection::vec(0..64u32, 0..100), forget in 0..64u32) {
            let (mut arrived, mut set) = (Arrived::default(), std::collections::BTreeSet::new());
            for &offset in &psns {
                prop_assert_eq!(arrived.add(at(offset)), set.insert(offset));
            }
            arrived.forget_before(at(forget));
            set.retain(|offset| *offset >= forget);
            for offset in forget..64 {
                let end = (offset..).find(|offset| !set.contains(offset)).filter(|end| *end != offset);
                prop_assert_eq!(arrived.end_of(at(offset)), end.map(at));
            }
            let mut missing = Vec::new();
            arrived.add_missing(at(forget), at(64), &mut missing);
            let each = |&(from, to): &(u32, u32)| (0..psn::distance(from, to)).map(move |n| psn::add(from, n));
            let missing: Vec<u32> = missing.iter().flat_map(each).collect();
            let expected: Vec<u32> = (forget..64).filter(|offset| !set.contains(offset)).map(at).collect();
            prop_assert_eq!(missing, expected);
        }
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let mut arrived = Arrived::default();
        let taken = (0..1000).filter(|n| arrived.add(at(2 * n))).count();
        assert_eq!((taken, arrived.runs.len()), (MOST_RUNS, MOST_RUNS));
        assert!(arrived.add(at(1)), "it joins two");
        assert!(arrived.add(at(3000)), "there is room for one again");
        let mut arrived = Arrived::default();
        let taken = (0..1000).filter(|n| arrived.add_word(at(*n), u64::from(*n))).count();
        assert_eq!((taken, arrived.word(at(7)), arrived.word(at(999))), (MOST_RUNS, Some(7), None));
        arrived.forget_before(at(8));
        assert_eq!((arrived.word(at(7)), arrived.word(at(8))), (None, Some(8)));
    }
}
