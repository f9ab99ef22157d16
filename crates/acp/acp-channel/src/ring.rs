//! The ring of a channel: records that the sender puts into memory of the receiver, which finds them by looking at its
//! memory.
//!
//! A put stores each aligned word of 8 bytes at once, in whatever order. So a record is there when each of its words
//! says so: a short one has 4 bytes of data in a word, and above them a mark that is not zero. A long one's bytes are
//! as they are: its head, one word, is put behind them. The receiver makes zero what it has read before the sender may
//! use it again, so that what is not zero is new: a quarter of the ring at a time, for the line of a message that has
//! just come is the sender's too, and a store there waits for it.
//!
//! | head, from the lowest bit | |
//! |---|---|
//! | 32 bits | bytes of data |
//! | 32 bits | the kind of record |
//!
//! A record lies in one piece; where that does not fit before the end, one of kind Skip says to go on at the beginning.
//! The receiver returns room a quarter of the ring at a time, and no record is longer than that: so the longest one
//! always finds room at last.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use vervain_acp::{Error, Result};

use crate::memory::{self, WORD};

/// Words of a ring.
pub(crate) const WORDS: usize = (16 << 10) / WORD;
/// Words in which room is returned.
const QUARTER: usize = WORDS / 4;
/// The most bytes of a record whose words have marks.
pub(crate) const SHORT: usize = 64;
/// The most bytes of one whose bytes are as they are.
pub(crate) const LONG: usize = (QUARTER - 1) * WORD;
/// The mark of a word of data.
const DATA: u32 = 15;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message; the words have marks.
    Short = 1,
    /// A message.
    Whole = 2,
    /// The length of a message that comes in parts; the words have marks.
    Begin = 3,
    /// The next part.
    Part = 4,
    /// The address and the length of a message, which the receiver fetches; the words have marks.
    Offer = 5,
    /// Empty up to the end of the ring.
    Skip = 6,
    /// The sender has freed the channel.
    Free = 7,
    /// The place of the sender's words: the first record; the words have marks.
    Hello = 8,
}

impl Kind {
    fn of(number: u32) -> Option<Self> {
        use Kind::*;
        [Short, Whole, Begin, Part, Offer, Skip, Free, Hello].into_iter().find(|kind| *kind as u32 == number)
    }

    fn has_marks(self) -> bool {
        !matches!(self, Kind::Whole | Kind::Part)
    }
}

fn head(kind: Kind, len: usize) -> u64 {
    u64::from(kind as u32) << 32 | len as u64
}

/// Words of a record with `len` bytes.
fn words_of(kind: Kind, len: usize) -> usize {
    1 + if kind.has_marks() { len.div_ceil(4) } else { len.div_ceil(WORD) }
}

/// How records get to the receiver.
pub(crate) trait Wire {
    /// Puts these words of the sender's side to the same ones of the ring; if `behind`, not before those of the put
    /// just before.
    fn put(&mut self, words: Range<usize>, behind: bool) -> Result<()>;
}

/// The sender's side: records are made there, at the places that they have in the ring.
pub(crate) struct Out<'w> {
    side: &'w [AtomicU64],
    /// Words that were used since the beginning, and those that the receiver has read.
    written: u64,
    read: u64,
}

impl<'w> Out<'w> {
    pub fn new(side: &'w [AtomicU64]) -> Self {
        assert_eq!(side.len(), WORDS, "the words of a ring");
        Self { side, written: 0, read: 0 }
    }

    /// The receiver says how many words it has read.
    #[inline]
    pub fn returned(&mut self, read: u64) -> Result<()> {
        if read < self.read || read > self.written {
            return Err(Error::broken(format!(
                "a channel's receiver has read {read} words, after {} of {}",
                self.read, self.written
            )));
        }
        self.read = read;
        Ok(())
    }

    /// A place for this number of words; None if there is none yet. Puts that the receiver has read were carried out:
    /// their words on this side may be written anew, even if the puts are not known to be over.
    #[inline]
    fn place(&mut self, words: usize, wire: &mut impl Wire) -> Result<Option<usize>> {
        let room = WORDS - (self.written - self.read) as usize;
        let at = (self.written % WORDS as u64) as usize;
        let left = WORDS - at;
        let skipped = if words <= left { 0 } else { left };
        if skipped + words > room {
            return Ok(None);
        }
        let start = if skipped > 0 { 0 } else { at };
        if skipped > 0 {
            self.side[at].store(head(Kind::Skip, 0), Ordering::Relaxed);
            wire.put(at..at + 1, false)?;
            self.written += left as u64;
        }
        self.written += words as u64;
        Ok(Some(start))
    }

    /// Returns true if there is room for a short record.
    pub fn has_room(&self) -> bool {
        // At worst it begins anew, behind as many words.
        WORDS - (self.written - self.read) as usize >= 2 * words_of(Kind::Short, SHORT)
    }

    /// Sends a record whose words have marks: one put. False where there is no room yet.
    #[inline]
    pub fn short(&mut self, kind: Kind, bytes: &[u8], wire: &mut impl Wire) -> Result<bool> {
        debug_assert!(kind.has_marks() && bytes.len() <= SHORT);
        let words = words_of(kind, bytes.len());
        let Some(at) = self.place(words, wire)? else { return Ok(false) };
        self.side[at].store(head(kind, bytes.len()), Ordering::Relaxed);
        for (word, chunk) in self.side[at + 1..].iter().zip(bytes.chunks(4)) {
            let mut data = [0; 4];
            data[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from(DATA) << 32 | u64::from(u32::from_le_bytes(data)), Ordering::Relaxed);
        }
        wire.put(at..at + words, false)?;
        Ok(true)
    }

    /// Sends a record of bytes as they are: two puts. False where there is no room yet.
    ///
    /// # Safety
    /// `len` bytes are mapped at `from`, and nobody stores there meanwhile.
    #[inline]
    pub unsafe fn long(&mut self, kind: Kind, from: *const u8, len: usize, wire: &mut impl Wire) -> Result<bool> {
        debug_assert!(!kind.has_marks() && len <= LONG && len > 0);
        let words = words_of(kind, len);
        let Some(at) = self.place(words, wire)? else { return Ok(false) };
        let data = &self.side[at + 1..at + words];
        // The rest of the last word goes with its last byte.
        data[data.len() - 1].store(0, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { memory::copy_in(from, data, len) };
        self.side[at].store(head(kind, len), Ordering::Relaxed);
        wire.put(at + 1..at + words, false)?;
        wire.put(at..at + 1, true)?;
        Ok(true)
    }
}

/// A record that the receiver has found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub kind: Kind,
    /// Bytes of data.
    pub len: usize,
    at: usize,
}

/// The receiver's side.
pub(crate) struct In<'w> {
    ring: &'w [AtomicU64],
    /// Words that were read since the beginning, and of these the ones that the sender knows of.
    read: u64,
    returned: u64,
}

impl<'w> In<'w> {
    pub fn new(ring: &'w [AtomicU64]) -> Self {
        assert_eq!(ring.len(), WORDS, "the words of a ring");
        Self { ring, read: 0, returned: 0 }
    }

    /// The place of the next record's head: zero until it comes.
    #[inline]
    pub fn next(&self) -> &'w AtomicU64 {
        &self.ring[(self.read % WORDS as u64) as usize]
    }

    /// The next record, if its head is there.
    ///
    /// # Errors
    /// What is there is no record.
    #[inline]
    pub fn look(&mut self) -> Result<Option<Record>> {
        loop {
            let word = self.next().load(Ordering::Acquire);
            if word == 0 {
                return Ok(None);
            }
            let at = (self.read % WORDS as u64) as usize;
            let (kind, len) = (Kind::of((word >> 32) as u32), word as u32 as usize);
            let record = kind.map(|kind| Record { kind, len, at }).filter(|record| record.is_sound());
            let record = record.ok_or_else(|| Error::broken(format!("{word:#x} in a channel's ring is no record")))?;
            if record.kind != Kind::Skip {
                return Ok(Some(record));
            }
            self.read += (WORDS - at) as u64;
        }
    }

    /// The data of a record whose words have marks; None until all are there.
    ///
    /// # Errors
    /// The words there are no data.
    #[inline]
    pub fn short(&self, record: &Record) -> Result<Option<[u8; SHORT]>> {
        let mut bytes = [0; SHORT];
        let words = &self.ring[record.at + 1..record.at + words_of(record.kind, record.len)];
        for (word, chunk) in words.iter().zip(bytes.chunks_exact_mut(4)) {
            let word = word.load(Ordering::Acquire);
            if word == 0 {
                return Ok(None);
            }
            if (word >> 32) as u32 != DATA {
                return Err(Error::broken(format!("{word:#x} in a channel's ring is no data")));
            }
            chunk.copy_from_slice(&(word as u32).to_le_bytes());
        }
        Ok(Some(bytes))
    }

    /// Copies the first `len` bytes of a record that are as they are.
    ///
    /// # Safety
    /// `len` bytes are mapped at `to`, and nobody else uses them.
    #[inline]
    pub unsafe fn long(&self, record: &Record, to: *mut u8, len: usize) {
        assert!(len <= record.len, "bytes of the record");
        // SAFETY: the caller's promise.
        unsafe { memory::copy_out(&self.ring[record.at + 1..], to, len) };
    }

    /// The record was read.
    #[inline]
    pub fn consume(&mut self, record: &Record) {
        self.read += words_of(record.kind, record.len) as u64;
    }

    /// The number of words read, if it is time to report it to the sender.
    #[inline]
    pub fn take_room(&mut self) -> Option<u64> {
        if self.read - self.returned < QUARTER as u64 {
            return None;
        }
        self.clear();
        Some(self.read)
    }

    /// Makes zero what was read, all of it by now.
    pub fn clear(&mut self) {
        let begin = (self.returned % WORDS as u64) as usize;
        let end = begin + (self.read - self.returned).min(WORDS as u64) as usize;
        memory::clear(&self.ring[begin..end.min(WORDS)]);
        memory::clear(&self.ring[..end.saturating_sub(WORDS)]);
        self.returned = self.read;
    }
}

impl Record {
    /// Returns true if a sender makes such.
    fn is_sound(&self) -> bool {
        let fits = match self.kind {
            Kind::Short => self.len <= SHORT,
            Kind::Whole | Kind::Part => (1..=LONG).contains(&self.len),
            Kind::Begin | Kind::Hello => self.len == WORD,
            Kind::Offer => self.len == 2 * WORD,
            // Only where some record would not fit: what is behind it was made zero, and it never leads to another one.
            Kind::Skip => self.len == 0 && self.at > WORDS - QUARTER,
            Kind::Free => self.len == 0,
        };
        fits && words_of(self.kind, self.len) <= WORDS - self.at
    }
}

#[cfg(test)]
mod tests;
