//! Hints of this rank about others' heaps, in a size that does not depend on the number of ranks: they only say where
//! to look first.

use std::sync::{Mutex, PoisonError};

use vervain_acp::GlobalAddress;

use crate::geometry::{Geometry, LEVELS};
use crate::tree::Spot;

/// Ranks, besides this one, that are remembered.
const RANKS: usize = 32;
/// Segments of a rank that are remembered.
const SEGMENTS: usize = 4;

/// A segment that has a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub base: GlobalAddress,
    pub geometry: Geometry,
}

/// The hints about one rank's heap.
#[derive(Debug, Clone, Copy)]
pub struct Hints {
    rank: u32,
    /// The words that were changed last, one of each level: what this rank left there.
    pub spots: [Option<(Segment, Spot)>; LEVELS],
    /// The last ones that blocks were taken from or freed in. They are never given up, so it stays true.
    segments: [Option<Segment>; SEGMENTS],
}

impl Hints {
    fn new(rank: u32) -> Self {
        Self { rank, spots: [None; LEVELS], segments: [None; SEGMENTS] }
    }

    /// The segment that begins there.
    pub fn segment(&self, base: GlobalAddress) -> Option<Segment> {
        let of_spots = self.spots.iter().flatten().map(|(segment, _)| segment);
        self.segments.iter().flatten().chain(of_spots).find(|segment| segment.base == base).copied()
    }

    /// A block was taken there, or freed.
    pub fn used(&mut self, segment: Segment) {
        let at = self.segments.iter().position(|known| *known == Some(segment)).unwrap_or(SEGMENTS - 1);
        self.segments[at] = Some(segment);
        self.segments[..=at].rotate_right(1);
    }

    /// These words were changed.
    pub fn changed(&mut self, segment: Segment, spots: [Option<Spot>; LEVELS]) {
        for (hint, spot) in self.spots.iter_mut().zip(spots) {
            *hint = spot.map(|spot| (segment, spot)).or(*hint);
        }
    }
}

/// The hints of several ranks.
pub struct AllHints {
    own: u32,
    hints: Mutex<Vec<Hints>>,
}

impl AllHints {
    /// Those of rank `own` have a place of their own.
    pub fn new(own: u32) -> Self {
        let hints = (0..=RANKS).map(|_| Hints::new(own)).collect();
        Self { own, hints: Mutex::new(hints) }
    }

    fn place(&self, rank: u32) -> usize {
        if rank == self.own { RANKS } else { rank as usize % RANKS }
    }

    /// Those of a rank.
    pub fn of(&self, rank: u32) -> Hints {
        let hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner)[self.place(rank)];
        if hints.rank == rank { hints } else { Hints::new(rank) }
    }

    /// Keeps them for the next time.
    pub fn keep(&self, hints: &Hints) {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner)[self.place(hints.rank)] = *hints;
    }
}
