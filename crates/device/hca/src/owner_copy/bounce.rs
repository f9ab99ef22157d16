//! The bounce buffer of an owner copy, used as a ring: one side fills it, the other empties it, piece by piece and at
//! the same time. Which bytes come next follows from two counts alone, so either side may stop and go on later.

use crate::arena::layout::request::{BOUNCE_BYTES, PIECE_BYTES};

/// A message of `len` bytes that passes through a ring of `ring` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub len: u64,
    pub ring: u64,
}

impl Stream {
    /// Returns true if the counts can be true: what the other side says is never taken on trust.
    fn holds(self, filled: u64, emptied: u64) -> bool {
        filled <= self.len && emptied <= filled && filled - emptied <= self.ring && self.ring >= PIECE_BYTES
    }

    /// A short message is never parted, for programs rely on aligned words; a long one is parted at whole lines.
    fn piece(self) -> u64 {
        if self.len <= BOUNCE_BYTES { self.len } else { PIECE_BYTES }
    }

    /// Bytes that may be filled in next, 0 while there is no room; None if the counts are impossible.
    pub(crate) fn fill(self, filled: u64, emptied: u64) -> Option<u64> {
        if !self.holds(filled, emptied) {
            return None;
        }
        let n = self.piece().min(self.len - filled).min(self.ring - filled % self.ring);
        Some(if self.ring - (filled - emptied) < n { 0 } else { n })
    }

    /// Bytes that may be taken out next, 0 while there are none.
    pub(crate) fn empty(self, filled: u64, emptied: u64) -> Option<u64> {
        self.holds(filled, emptied).then(|| self.piece().min(filled - emptied).min(self.ring - emptied % self.ring))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_passes_once_and_in_order_whoever_is_faster() {
        for ring in [BOUNCE_BYTES, 8 * BOUNCE_BYTES] {
            for len in [0, 1, 8, 4096, BOUNCE_BYTES, BOUNCE_BYTES + 1, PIECE_BYTES * 3, (1 << 20) + 13] {
                for greed in 1..4 {
                    let s = Stream { len, ring };
                    let (mut filled, mut emptied, mut turns) = (0, 0, 0);
                    while emptied < len {
                        for _ in 0..greed {
                            let n = s.fill(filled, emptied).unwrap();
                            assert!(n == 0 || filled % ring + n <= ring && filled + n - emptied <= ring);
                            filled += n;
                        }
                        for _ in 0..4 - greed {
                            let n = s.empty(filled, emptied).unwrap();
                            assert!(emptied % ring + n <= ring && emptied + n <= filled);
                            assert!(emptied + n == len || n.is_multiple_of(64), "parted inside a line");
                            emptied += n;
                        }
                        turns += 1;
                        assert!(turns < 10_000, "stuck at {emptied} of {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_short_message_passes_in_one_piece() {
        let s = Stream { len: BOUNCE_BYTES, ring: BOUNCE_BYTES };
        assert_eq!((s.fill(0, 0), s.empty(BOUNCE_BYTES, 0)), (Some(BOUNCE_BYTES), Some(BOUNCE_BYTES)));
    }

    #[test]
    fn counts_that_cannot_be_true_are_refused() {
        let s = Stream { len: 100, ring: BOUNCE_BYTES };
        for (filled, emptied) in [(101, 0), (0, 1), (u64::MAX, 0), (5, u64::MAX)] {
            assert_eq!((s.fill(filled, emptied), s.empty(filled, emptied)), (None, None));
        }
        assert_eq!(Stream { len: 100, ring: 0 }.fill(0, 0), None);
    }
}
