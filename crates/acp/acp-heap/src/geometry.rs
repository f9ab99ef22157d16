//! The places of the words of a segment's tree, and the units of memory that they are about.

use crate::word::{self, UNITS, Unit, Word};

/// Levels that the largest segment has.
pub const LEVELS: usize = 8;
/// log2 of the bytes of the smallest segment, and of the largest.
pub const SMALLEST: u32 = 14;
pub const LARGEST: u32 = 44;
/// Levels whose units are small.
const SMALL: usize = 2;
/// log2 of the units of a word.
const FANOUT: u32 = UNITS.trailing_zeros();
/// log2 of the smallest unit's bytes.
const UNIT: u32 = 4;

/// log2 of the bytes of a unit at a level.
pub fn unit_log(level: usize) -> u32 {
    UNIT + FANOUT * level as u32
}

/// log2 of the bytes that a word of a level is about.
fn span_log(level: usize) -> u32 {
    unit_log(level) + FANOUT
}

/// The units of a block: of the lowest level at which one word has enough of them. A block does not take so many small
/// units that a second one has no room in the word; it rather takes one unit of the level above, in a word for 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub level: usize,
    pub units: u32,
}

impl Shape {
    /// One unit of a level.
    pub fn unit(level: usize) -> Self {
        Self { level, units: 1 }
    }

    /// None for 0 bytes, and for more than any segment has.
    pub fn of(bytes: u64) -> Option<Self> {
        let level = (0..LEVELS).find(|level| bytes <= 1 << span_log(*level))?;
        let units = bytes.div_ceil(1 << unit_log(level)) as u32;
        let most = if level < SMALL { UNITS / 2 } else { UNITS - 1 };
        if units > most && level + 1 < LEVELS {
            return Some(Self::unit(level + 1));
        }
        (units > 0).then_some(Self { level, units })
    }
}

/// The tree of a segment of 2^log bytes. The words come first, the root foremost, then each level in turn; what they
/// are about is the whole segment. Units that the words themselves lie in, and in a root those behind the segment's
/// end, are taken for good; one that they lie in a part of is divided for good, and the word that says into what is
/// always open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    log: u32,
    /// The root's level.
    top: usize,
    /// Bytes of all words.
    words: u64,
}

impl Geometry {
    /// A segment of 2^log bytes; None if there is none of that size.
    pub fn new(log: u32) -> Option<Self> {
        let top = log.checked_sub(span_log(0))?.div_ceil(FANOUT) as usize;
        let mut geometry = Self { log, top, words: 0 };
        geometry.words = (0..=top).map(|level| geometry.count(level)).sum::<u64>() * 8;
        geometry.words = geometry.words.next_multiple_of(1 << UNIT);
        (SMALLEST..=LARGEST).contains(&log).then_some(geometry)
    }

    /// log2 of its bytes.
    pub fn log(&self) -> u32 {
        self.log
    }

    /// The root's level.
    pub fn top(&self) -> usize {
        self.top
    }

    /// Words of a level.
    pub fn count(&self, level: usize) -> u64 {
        if level < self.top { 1 << (self.log - span_log(level)) } else { 1 }
    }

    /// The offset of a word, in bytes.
    pub fn word(&self, level: usize, index: u64) -> u64 {
        assert!(level <= self.top && index < self.count(level), "a word of the tree");
        let above: u64 = (level + 1..=self.top).map(|level| self.count(level)).sum();
        (above + index) * 8
    }

    /// Which unit of the whole level a unit of a word is.
    pub fn unit(&self, index: u64, unit: u32) -> u64 {
        index << FANOUT | u64::from(unit)
    }

    /// The word that a unit of the whole level, or the word below it, belongs to, and which one it is there.
    pub fn parent(&self, unit: u64) -> (u64, u32) {
        (unit >> FANOUT, unit as u32 % UNITS)
    }

    /// The offset of a unit's first byte.
    pub fn offset(&self, level: usize, index: u64, unit: u32) -> u64 {
        self.unit(index, unit) << unit_log(level)
    }

    /// The word and the unit that the byte at this offset is in.
    pub fn find(&self, level: usize, offset: u64) -> (u64, u32) {
        self.parent(offset >> unit_log(level))
    }

    /// Returns true if the byte is the first of a unit.
    pub fn is_first(&self, level: usize, offset: u64) -> bool {
        offset.trailing_zeros() >= unit_log(level)
    }

    /// Returns true if the offset is of memory for blocks.
    pub fn has(&self, offset: u64) -> bool {
        (self.words..1 << self.log).contains(&offset)
    }

    /// The unit of a level that the words lie in a part of.
    fn boundary(&self, level: usize) -> Option<u64> {
        let unit = 1 << unit_log(level);
        (!self.words.is_multiple_of(unit)).then_some(self.words / unit)
    }

    /// Returns true if a unit is divided for good.
    pub fn is_boundary(&self, level: usize, unit: u64) -> bool {
        self.boundary(level) == Some(unit)
    }

    /// Returns true if a word is always open: the root, and that of a unit that is divided for good.
    pub fn is_permanent(&self, level: usize, index: u64) -> bool {
        level == self.top || self.is_boundary(level + 1, index)
    }

    /// The lower bits of the units of a word that blocks may have.
    pub fn available(&self, level: usize, index: u64) -> u64 {
        let of = |units: u64| units.saturating_sub(index << FANOUT).min(UNITS.into()) as u32;
        let from = of(self.words.div_ceil(1 << unit_log(level)));
        word::units(from, of(1 << (self.log - unit_log(level))))
    }

    /// Reads a word in memory; None if it is closed: its unit of the level above is not divided.
    ///
    /// A closed word is zero, so that a new segment needs no preparation. So in words that can be closed the lowest bit
    /// is turned: what would have been zero then begins with the continuation of a block.
    pub fn read(&self, level: usize, index: u64, stored: u64) -> Option<Word> {
        if self.is_permanent(level, index) {
            return Some(Word(stored));
        }
        (stored != CLOSED).then_some(Word(stored ^ 1))
    }

    /// A word as it is in memory.
    pub fn stored(&self, level: usize, index: u64, word: Word) -> u64 {
        if self.is_permanent(level, index) { word.0 } else { word.0 ^ 1 }
    }

    /// Returns true if a block begins at this offset, in this word.
    pub fn has_block(&self, level: usize, index: u64, stored: u64, offset: u64) -> bool {
        let (at, unit) = self.find(level, offset);
        let is_first = |word: Word| matches!(word.unit(unit), Unit::First(_));
        at == index && self.is_first(level, offset) && self.read(level, index, stored).is_some_and(is_first)
    }

    /// The place in a word with room for a shape; None also if the word is closed.
    pub fn room(&self, shape: Shape, index: u64, stored: u64) -> Option<u32> {
        self.read(shape.level, index, stored)?.room(shape.units, self.available(shape.level, index))
    }

    /// Returns true if a segment in which nothing is allocated has room for a shape.
    pub fn fits(&self, shape: Shape) -> bool {
        if shape.level > self.top {
            return false;
        }
        // The words that the metadata ends in, and whole ones behind.
        let (index, _) = self.find(shape.level, self.words);
        Word::EMPTY.room(shape.units, self.available(shape.level, index)).is_some()
            || index + 1 < self.count(shape.level)
    }
}

/// A closed word.
pub const CLOSED: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_of_the_lowest_level_that_has_room_for_two() {
        assert_eq!(Shape::of(0), None);
        for (bytes, level, units) in [
            (1, 0, 1),
            (17, 0, 2),
            (256, 0, 16),
            (257, 1, 1),
            (513, 1, 2),
            (8193, 2, 1),
            (16385, 2, 2),
            (496 << 10, 2, 31),
            ((496 << 10) + 1, 3, 1),
            (1 << 44, 7, 32),
        ] {
            assert_eq!(Shape::of(bytes), Some(Shape { level, units }), "{bytes} B");
        }
        assert_eq!(Shape::of((1 << 44) + 1), None);
        assert_eq!(Shape::of(u64::MAX), None);
    }

    /// Each byte behind the words is in exactly one available unit of a permanent word, or in none below but one above,
    /// and none in front of their end is.
    #[test]
    fn what_is_available_covers_all_behind_the_words() {
        for log in SMALLEST..=LARGEST {
            let geometry = Geometry::new(log).unwrap();
            let mut bytes = 0;
            for level in 0..=geometry.top {
                let (index, _) = geometry.find(level, geometry.words);
                assert!(geometry.is_permanent(level, index));
                let available = geometry.available(level, index);
                bytes += u64::from(available.count_ones()) << unit_log(level);
                if let Some(first) = Word::EMPTY.room(1, available) {
                    assert!(geometry.offset(level, index, first) >= geometry.words);
                    let last = available.ilog2() / 2;
                    assert!(geometry.offset(level, index, last) + (1 << unit_log(level)) <= 1 << log);
                }
            }
            assert_eq!(bytes, (1 << log) - geometry.words, "2^{log} B");
        }
        assert_eq!((Geometry::new(SMALLEST - 1), Geometry::new(LARGEST + 1)), (None, None));
    }

    #[test]
    fn words_lie_behind_each_other() {
        for log in [14, 15, 19, 20, 24, 27] {
            let geometry = Geometry::new(log).unwrap();
            let mut next = 0;
            for level in (0..=geometry.top).rev() {
                for index in [0, geometry.count(level) - 1] {
                    assert_eq!(geometry.word(level, index), next + 8 * index);
                }
                next += 8 * geometry.count(level);
            }
            assert_eq!(next.next_multiple_of(16), geometry.words);
            // Less than a fiftieth, except for the smallest.
            assert!(geometry.words * 50 <= 1 << log || log < 16, "{}", geometry.words);
        }
    }
}
