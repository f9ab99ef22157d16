//! The tree of a segment: how blocks are taken and freed by compare and swap alone.
//!
//! Two rules make it safe whatever the others do, and however late they do it:
//!
//! * A word that is not closed has all units above it divided. Only who has divided a unit opens the word below it, and
//!   only who has closed a word makes the unit above it free again; in between nobody else can change either. So a
//!   compare and swap of a word that is not closed has succeeded in memory that may be taken, though the words above
//!   were read long before, or never.
//! * A word says all about its units. If it is again what somebody has once read, what follows from that holds again.
//!
//! Who is killed in between leaves a divided unit with a closed word: nobody has it any more, and nobody waits for it.

use crate::geometry::{CLOSED, Geometry, LEVELS, Shape};
use crate::word::{UNITS, Unit, Word};

/// The words of a segment, in memory that others change. A loop over one of these functions ends unless others succeed
/// over and over.
pub trait Words {
    /// The reason why a word cannot be reached, or is none of a tree.
    type Error;

    /// Reads words that lie behind each other, the first of them at this offset.
    fn load(&self, at: u64, into: &mut [u64]) -> Result<(), Self::Error>;

    /// Reads words that lie anywhere.
    fn load_each<const N: usize>(&self, at: [u64; N], count: usize) -> Result<[u64; N], Self::Error>;

    /// Compares and swaps each of the words, one after the other if `in_turn`, whether or not they succeed. Else in any
    /// order.
    fn swap(&self, swaps: &mut [Swap], in_turn: bool) -> Result<(), Self::Error>;

    /// The error for a value that no word can have.
    fn broken(&self, at: u64, value: u64) -> Self::Error;
}

/// A compare and swap.
#[derive(Debug, Clone, Copy)]
pub struct Swap {
    /// The word's offset.
    pub at: u64,
    pub expected: u64,
    pub new: u64,
    /// The word that the swap has found; set by it.
    pub found: u64,
}

impl Swap {
    /// Returns true if it has happened.
    pub fn done(&self) -> bool {
        self.found == self.expected
    }
}

/// A word of a level and what it has been found to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    pub index: u64,
    pub stored: u64,
}

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<T> {
    Done(T),
    /// There is no room.
    Full,
    /// Others have changed the word each time.
    Contended,
}

/// A block, and the words that were seen on the way: good places to begin with the next time.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    pub offset: u64,
    pub spots: [Option<Spot>; LEVELS],
}

/// Times that a word is tried before another one is.
const TRIES: u32 = 3;
/// More failures than any number of others can cause: the word does not keep what is stored to it.
const ENDLESS: u32 = 1 << 24;
/// How often all is looked through again because something has changed meanwhile, before the heap grows: others that
/// allocate and free in turn change something for ever.
const SEARCHES: u32 = 8;
/// Words that are read together by a thorough search.
const CHUNK: usize = 512;
/// Words that are read together in passing.
const NEAR: u64 = 64;

/// A segment's tree.
pub struct Tree<'a, W> {
    geometry: &'a Geometry,
    words: &'a W,
}

impl<'a, W: Words> Tree<'a, W> {
    pub fn new(geometry: &'a Geometry, words: &'a W) -> Self {
        Self { geometry, words }
    }

    fn load(&self, level: usize, first: u64, into: &mut [u64]) -> Result<(), W::Error> {
        self.words.load(self.geometry.word(level, first), into)
    }

    /// Compares and swaps a word once; the spot has then what is there.
    fn replace(&self, level: usize, spot: &mut Spot, word: Word) -> Result<bool, W::Error> {
        let new = self.geometry.stored(level, spot.index, word);
        let at = self.geometry.word(level, spot.index);
        let mut swap = [Swap { at, expected: spot.stored, new, found: 0 }];
        self.words.swap(&mut swap, false)?;
        spot.stored = if swap[0].done() { new } else { swap[0].found };
        Ok(swap[0].done())
    }

    /// Takes a block in the word of a spot: one round trip if the spot is true.
    pub fn take(&self, shape: Shape, spot: &mut Spot) -> Result<Outcome<u64>, W::Error> {
        self.try_in(shape, spot, |word, unit| word.take(unit, shape.units))
    }

    fn try_in(
        &self,
        shape: Shape,
        spot: &mut Spot,
        change: impl Fn(Word, u32) -> Word,
    ) -> Result<Outcome<u64>, W::Error> {
        for _ in 0..TRIES {
            let word = self.geometry.read(shape.level, spot.index, spot.stored);
            let (Some(word), Some(unit)) = (word, self.geometry.room(shape, spot.index, spot.stored)) else {
                return Ok(Outcome::Full);
            };
            if self.replace(shape.level, spot, change(word, unit))? {
                return Ok(Outcome::Done(self.geometry.offset(shape.level, spot.index, unit)));
            }
        }
        Ok(Outcome::Contended)
    }

    /// Takes a block in a word that it opens, by dividing a unit of the word of a spot, of a higher level: two round
    /// trips if the spot is true.
    pub fn open(&self, shape: Shape, level: usize, mut spot: Spot) -> Result<Outcome<Taken>, W::Error> {
        let divided = self.try_in(Shape::unit(level), &mut spot, Word::divide)?;
        let offset = match divided {
            Outcome::Done(offset) => offset,
            Outcome::Full => return Ok(Outcome::Full),
            Outcome::Contended => return Ok(Outcome::Contended),
        };
        // The words in between have their first unit divided. None is open yet, and only this rank can open them, the
        // upper ones first: units that others take in the last one are found again.
        let mut spots = [None; LEVELS];
        spots[level] = Some(spot);
        let mut swaps = [Swap { at: 0, expected: CLOSED, new: 0, found: 0 }; LEVELS];
        for below in (shape.level..level).rev() {
            let (index, _) = self.geometry.find(below, offset);
            let word = if below == shape.level { Word::EMPTY.take(0, shape.units) } else { Word::EMPTY.divide(0) };
            let new = self.geometry.stored(below, index, word);
            let swap = &mut swaps[level - 1 - below];
            *swap = Swap { at: self.geometry.word(below, index), new, ..*swap };
            spots[below] = Some(Spot { index, stored: new });
        }
        let swaps = &mut swaps[..level - shape.level];
        self.words.swap(swaps, true)?;
        match swaps.iter().find(|swap| !swap.done()) {
            Some(swap) => Err(self.words.broken(swap.at, swap.found)),
            None => Ok(Outcome::Done(Taken { offset, spots })),
        }
    }

    /// Takes a block in one of the words around a spot: two round trips.
    pub fn take_near(&self, shape: Shape, index: u64) -> Result<Outcome<Taken>, W::Error> {
        let first = index & !(NEAR - 1);
        let mut words = [0; NEAR as usize];
        let words = &mut words[..(self.geometry.count(shape.level) - first).min(NEAR) as usize];
        self.load(shape.level, first, words)?;
        self.take_among(shape, first, words, (index - first) as usize)
    }

    /// Takes a block in one of the words that were read, beginning with the one of this number.
    fn take_among(&self, shape: Shape, first: u64, words: &[u64], begin: usize) -> Result<Outcome<Taken>, W::Error> {
        let mut contended = false;
        for i in (begin..words.len()).chain(0..begin) {
            let mut spot = Spot { index: first + i as u64, stored: words[i] };
            match self.take(shape, &mut spot)? {
                Outcome::Done(offset) => return Ok(Outcome::Done(taken(shape.level, offset, spot))),
                Outcome::Contended => contended = true,
                Outcome::Full => {}
            }
        }
        Ok(if contended { Outcome::Contended } else { Outcome::Full })
    }

    /// Takes a block in any word that is open, looked for from this one on.
    pub fn find(&self, shape: Shape, begin: u64) -> Result<Outcome<Taken>, W::Error> {
        if shape.level > self.geometry.top() {
            return Ok(Outcome::Full);
        }
        let begin = begin % self.geometry.count(shape.level) / CHUNK as u64;
        let mut contended = false;
        for chunk in self.chunks(shape.level, begin) {
            let (first, words) = chunk?;
            match self.take_among(shape, first, &words.0[..words.1], 0)? {
                Outcome::Full => {}
                Outcome::Contended => contended = true,
                done => return Ok(done),
            }
        }
        Ok(if contended { Outcome::Contended } else { Outcome::Full })
    }

    /// Takes a block in a word that it opens, wherever a unit can be divided; the smallest.
    pub fn open_any(&self, shape: Shape) -> Result<Outcome<Taken>, W::Error> {
        let mut contended = false;
        for level in shape.level + 1..=self.geometry.top() {
            for chunk in self.chunks(level, 0) {
                let (first, words) = chunk?;
                for (i, stored) in words.0[..words.1].iter().enumerate() {
                    match self.open(shape, level, Spot { index: first + i as u64, stored: *stored })? {
                        Outcome::Full => {}
                        Outcome::Contended => contended = true,
                        done => return Ok(done),
                    }
                }
            }
        }
        Ok(if contended { Outcome::Contended } else { Outcome::Full })
    }

    /// The words of a level as they are now, from a chunk on, round to that before it.
    fn chunks(&self, level: usize, begin: u64) -> impl Iterator<Item = Result<(u64, Chunk), W::Error>> {
        let count = self.geometry.count(level);
        let chunks = count.div_ceil(CHUNK as u64);
        (0..chunks).map(move |i| {
            let first = (begin + i) % chunks * CHUNK as u64;
            let mut words = ([0; CHUNK], (count - first).min(CHUNK as u64) as usize);
            self.load(level, first, &mut words.0[..words.1])?;
            Ok((first, words))
        })
    }

    /// Frees the block at this offset: two round trips, or one if it is in the word of a spot that is up to date.
    /// Returns its place and the word afterwards; None if there is no such block. The offset lies in the units of the
    /// spot's word.
    pub fn release(&self, offset: u64, spot: Option<(usize, Spot)>) -> Result<Option<(usize, Spot)>, W::Error> {
        if !self.geometry.has(offset) {
            return Ok(None);
        }
        if let Some((level, mut spot)) = spot {
            let (_, unit) = self.geometry.find(level, offset);
            let word = self.geometry.read(level, spot.index, spot.stored);
            if let Some((word, units)) = word.and_then(|word| self.block(level, word, unit, offset))
                && self.replace(level, &mut spot, word.release(unit, units))?
            {
                return Ok(Some((level, spot)));
            }
        }
        let levels = self.geometry.top() + 1;
        let mut at = [0; LEVELS];
        for (level, at) in at[..levels].iter_mut().enumerate() {
            *at = self.geometry.word(level, self.geometry.find(level, offset).0);
        }
        let words = self.words.load_each(at, levels)?;
        for level in (0..levels).rev() {
            let (index, unit) = self.geometry.find(level, offset);
            let divided = |word: Word| word.unit(unit) == Unit::Divided;
            let is_boundary = self.geometry.is_boundary(level, self.geometry.unit(index, unit));
            let word = self.geometry.read(level, index, words[level]);
            if !is_boundary && !word.is_some_and(divided) {
                return self.release_in(level, Spot { index, stored: words[level] }, offset);
            }
        }
        Ok(None)
    }

    /// The word, and the units of the block that begins at this offset, with this unit.
    fn block(&self, level: usize, word: Word, unit: u32, offset: u64) -> Option<(Word, u32)> {
        match word.unit(unit) {
            Unit::First(units) if self.geometry.is_first(level, offset) => Some((word, units)),
            _ => None,
        }
    }

    fn release_in(&self, level: usize, mut spot: Spot, offset: u64) -> Result<Option<(usize, Spot)>, W::Error> {
        let (_, unit) = self.geometry.find(level, offset);
        for _ in 0..ENDLESS {
            let word = self.geometry.read(level, spot.index, spot.stored);
            let Some((word, units)) = word.and_then(|word| self.block(level, word, unit, offset)) else {
                return Ok(None);
            };
            if self.replace(level, &mut spot, word.release(unit, units))? {
                return Ok(Some((level, spot)));
            }
        }
        Err(self.words.broken(self.geometry.word(level, spot.index), spot.stored))
    }

    /// Closes all words below a level in which nothing is allocated, so that the units above are whole again. Returns
    /// true if there were any.
    pub fn close_empty(&self, level: usize) -> Result<bool, W::Error> {
        let mut any = false;
        for level in 0..level.min(self.geometry.top()) {
            for chunk in self.chunks(level, 0) {
                let (first, words) = chunk?;
                let is_empty = |index: &u64| {
                    let empty = self.geometry.stored(level, *index, Word::EMPTY);
                    words.0[(index - first) as usize] == empty && !self.geometry.is_permanent(level, *index)
                };
                let empty: Vec<u64> = (first..first + words.1 as u64).filter(is_empty).collect();
                let (Some(least), Some(last)) = (empty.first(), empty.last()) else { continue };
                let (above, parents) = self.parents(level, *least, *last)?;
                // Unit by unit, so that a rank that is killed in between has few in hand.
                for siblings in empty.chunk_by(|a, b| self.geometry.parent(*a).0 == self.geometry.parent(*b).0) {
                    let index = self.geometry.parent(siblings[0]).0;
                    any |= self.close(level, siblings, Spot { index, stored: parents[(index - above) as usize] })?;
                }
            }
        }
        Ok(any)
    }

    /// The words above those from the one to the other, which are in one chunk, and the first one's number.
    fn parents(&self, level: usize, first: u64, last: u64) -> Result<(u64, [u64; CHUNK / UNITS as usize]), W::Error> {
        let above = self.geometry.parent(first).0;
        let mut parents = [0; CHUNK / UNITS as usize];
        let count = (self.geometry.parent(last).0 - above + 1) as usize;
        self.load(level + 1, above, &mut parents[..count])?;
        Ok((above, parents))
    }

    /// Returns whether somebody has a unit in hand: it is divided, and the word below is closed. Soon there is room,
    /// unless that one was killed.
    pub fn is_in_hand(&self) -> Result<bool, W::Error> {
        for level in 0..self.geometry.top() {
            for chunk in self.chunks(level, 0) {
                let (first, words) = chunk?;
                let is_closed =
                    |index: &u64| self.geometry.read(level, *index, words.0[(index - first) as usize]).is_none();
                let (above, parents) = self.parents(level, first, first + words.1 as u64 - 1)?;
                let is_divided = |index: u64| {
                    let (parent, unit) = self.geometry.parent(index);
                    let word = self.geometry.read(level + 1, parent, parents[(parent - above) as usize]);
                    word.is_some_and(|word| word.unit(unit) == Unit::Divided)
                };
                if (first..first + words.1 as u64).filter(is_closed).any(is_divided) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Closes those of the words, all of one parent, in which still nothing is allocated, and makes their units free.
    fn close(&self, level: usize, siblings: &[u64], mut parent: Spot) -> Result<bool, W::Error> {
        let mut swaps = [Swap { at: 0, expected: CLOSED, new: CLOSED, found: CLOSED }; UNITS as usize];
        let swaps = &mut swaps[..siblings.len()];
        for (swap, index) in swaps.iter_mut().zip(siblings) {
            let expected = self.geometry.stored(level, *index, Word::EMPTY);
            *swap = Swap { at: self.geometry.word(level, *index), expected, ..*swap };
        }
        self.words.swap(swaps, false)?;
        let closed = || siblings.iter().zip(&*swaps).filter(|(_, swap)| swap.done());
        let units = || closed().map(|(index, _)| self.geometry.parent(*index).1);
        if units().next().is_none() {
            return Ok(false);
        }
        // The value that was read may be older than the opening of the words.
        let mut is_old = true;
        for _ in 0..ENDLESS {
            let word = self.geometry.read(level + 1, parent.index, parent.stored);
            match word.filter(|word| units().all(|unit| word.unit(unit) == Unit::Divided)) {
                Some(word) => {
                    if self.replace(level + 1, &mut parent, units().fold(word, |word, unit| word.release(unit, 1)))? {
                        return Ok(true);
                    }
                }
                None if is_old => self.load(level + 1, parent.index, std::slice::from_mut(&mut parent.stored))?,
                None => break,
            }
            is_old = false;
        }
        Err(self.words.broken(self.geometry.word(level + 1, parent.index), parent.stored))
    }
}

/// Looks everywhere: first where words are open, then for the smallest unit that can be divided, then again when words
/// in which nothing is allocated any more are closed. Done with the tree it was in, contended if others were at it
/// until the last.
pub fn search<W: Words>(trees: &[Tree<'_, W>], shape: Shape, index: u64) -> Result<Outcome<(usize, Taken)>, W::Error> {
    let mut contended = true;
    for _ in 0..SEARCHES {
        contended = false;
        for anywhere in [false, true] {
            for (at, tree) in trees.iter().enumerate() {
                match if anywhere { tree.open_any(shape)? } else { tree.find(shape, index)? } {
                    Outcome::Done(taken) => return Ok(Outcome::Done((at, taken))),
                    Outcome::Contended => contended = true,
                    Outcome::Full => {}
                }
            }
        }
        for tree in trees {
            contended |= tree.close_empty(shape.level)?;
        }
        // If others were faster each time, there was room.
        if !contended {
            break;
        }
    }
    Ok(if contended { Outcome::Contended } else { Outcome::Full })
}

/// Words that were read together, and how many there are.
type Chunk = ([u64; CHUNK], usize);

fn taken(level: usize, offset: u64, spot: Spot) -> Taken {
    let mut spots = [None; LEVELS];
    spots[level] = Some(spot);
    Taken { offset, spots }
}
