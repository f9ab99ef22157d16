//! Changes that the program made to parts of its shared memory by mmap, mprotect, madvise and mlock, if they differ
//! from a plain readable and writable range. Kept by address; a range without an entry is plain.

use std::ffi::c_int;
use std::ops::Range;

use rangemap::RangeMap;

/// The page at an address of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum There {
    /// The object's page of that place.
    Object,
    /// Private memory, or a mapping that the program put there.
    Foreign,
    /// A private copy of the object's page, made because a device's peer may still write to that.
    Copy,
    /// No page.
    Hole,
}

/// The state of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The kind of page.
    pub there: There,
    /// PROT_ bits.
    pub prot: c_int,
    /// MADV_DONTFORK.
    pub dont_fork: bool,
    /// MADV_WIPEONFORK.
    pub wipe: bool,
    /// MADV_GUARD_INSTALL: an access gets SIGSEGV. Kept for the object's pages, and copies of them.
    pub guard: bool,
    /// The kernel keeps an attribute that a new owner of the range must not inherit (a lock, DONTDUMP).
    pub odd: bool,
}

/// The state of a range without an entry.
pub const PLAIN: Mark = Mark {
    there: There::Object,
    prot: libc::PROT_READ | libc::PROT_WRITE,
    dont_fork: false,
    wipe: false,
    guard: false,
    odd: false,
};

/// Ranges and their states.
#[derive(Debug, Default)]
pub struct Marks(RangeMap<usize, Mark>);

impl Marks {
    /// Changes the state of all of `range`.
    pub fn update(&mut self, range: Range<usize>, change: impl Fn(&mut Mark)) {
        for (part, mut mark) in self.pieces(range) {
            change(&mut mark);
            if mark == PLAIN {
                self.0.remove(part);
            } else {
                self.0.insert(part, mark);
            }
        }
    }

    /// Makes all of `range` plain.
    pub fn clear(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.0.remove(range);
        }
    }

    /// Returns true if any of `range` is not plain.
    pub fn any(&self, range: &Range<usize>) -> bool {
        !self.0.is_empty() && self.0.overlaps(range)
    }

    /// Returns true if all of `range` is there.
    pub fn has(&self, range: Range<usize>) -> bool {
        self.pieces(range).iter().all(|(_, m)| m.there != There::Hole)
    }

    /// `range` cut into parts of one state each, in order.
    pub fn pieces(&self, range: Range<usize>) -> Vec<(Range<usize>, Mark)> {
        let mut all = Vec::new();
        let mut at = range.start;
        for (part, mark) in self.0.overlapping(range.clone()) {
            let (start, end) = (part.start.max(range.start), part.end.min(range.end));
            if at < start {
                all.push((at..start, PLAIN));
            }
            all.push((start..end, *mark));
            at = end;
        }
        if at < range.end {
            all.push((at..range.end, PLAIN));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_the_state_changes() {
        let mut marks = Marks::default();
        marks.update(10..20, |m| m.wipe = true);
        marks.update(15..30, |m| m.there = There::Hole);
        let got: Vec<_> = marks.pieces(5..40).into_iter().map(|(r, m)| (r, m.wipe, m.there == There::Hole)).collect();
        assert_eq!(
            got,
            [
                (5..10, false, false),
                (10..15, true, false),
                (15..20, true, true),
                (20..30, false, true),
                (30..40, false, false)
            ]
        );
        marks.update(0..100, |m| *m = PLAIN);
        assert!(!marks.any(&(0..100)));
    }
}
