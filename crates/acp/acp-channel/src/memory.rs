//! Memory that peers store to, cut out of few registrations, and memory of the program's.

use std::collections::HashMap;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use vervain_acp::{Error, GlobalAddress, Library, Result, World};

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<u64>();
/// Words that are registered together at first; each further time twice as many, up to the most.
const FIRST: usize = (64 << 10) / WORD;
const MOST: usize = (16 << 20) / WORD;
/// Words that are kept for what has to go on where no registration is left.
const RESERVE: usize = (4 << 10) / WORD;

/// Words of this rank's that peers know, zero at first.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'w> {
    words: &'w [AtomicU64],
    address: GlobalAddress,
}

impl<'w> Piece<'w> {
    pub fn address(&self, word: usize) -> GlobalAddress {
        self.address.add((word * WORD) as u64)
    }

    #[inline]
    pub fn word(&self, at: usize) -> &'w AtomicU64 {
        &self.words[at]
    }

    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Acquire)
    }

    #[inline]
    pub fn store(&self, at: usize, value: u64) {
        self.words[at].store(value, Ordering::Release);
    }

    pub fn words(&self, range: Range<usize>) -> &'w [AtomicU64] {
        &self.words[range]
    }

    pub fn all(&self) -> &'w [AtomicU64] {
        self.words
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        size_of_val(self.words)
    }
}

/// The source of pieces; they return to it when nothing is stored to them any more.
pub(crate) struct Arena<'w> {
    world: &'w World,
    /// The unused rest of the last registration.
    rest: Option<Piece<'w>>,
    next: usize,
    /// Pieces that were given back, by length: there are few lengths.
    free: HashMap<usize, Vec<Piece<'w>>>,
    /// None while it is in use.
    reserve: Option<Piece<'w>>,
}

impl<'w> Arena<'w> {
    pub fn new(world: &'w World) -> Result<Self> {
        let mut arena = Self { world, rest: None, next: FIRST, free: HashMap::new(), reserve: None };
        arena.reserve = Some(arena.take(RESERVE)?);
        Ok(arena)
    }

    /// `count` words, a multiple of 16.
    pub fn take(&mut self, count: usize) -> Result<Piece<'w>> {
        if let Some(piece) = self.free.get_mut(&count).and_then(Vec::pop) {
            return Ok(piece);
        }
        let rest = match self.rest.filter(|rest| rest.words.len() >= count) {
            Some(rest) => rest,
            None => {
                let (address, words) = self.world.lasting_words(self.next.max(count))?;
                self.next = (self.next * 2).min(MOST);
                Piece { words, address }
            }
        };
        let (words, behind) = rest.words.split_at(count);
        self.rest = Some(Piece { words: behind, address: rest.address(count) });
        Ok(Piece { words, address: rest.address })
    }

    /// As [`take`](Arena::take); if that is impossible, the reserve. None while that is in use, by an operation that
    /// goes on by itself. The reserve is not zeroed.
    pub fn take_or_reserve(&mut self, count: usize) -> Result<Option<Piece<'w>>> {
        match self.take(count) {
            Ok(piece) => Ok(Some(piece)),
            Err(error) if error.is_refused() => Ok(self.reserve.take()),
            Err(error) => Err(error),
        }
    }

    /// Takes back what [`take_or_reserve`](Arena::take_or_reserve) gave.
    pub fn give_or_reserve(&mut self, piece: Piece<'w>) {
        match self.reserve {
            None if piece.words.len() == RESERVE => self.reserve = Some(piece),
            _ => self.give(piece, piece.words.len()),
        }
    }

    /// Takes a piece back, whose first `used` words may differ from zero.
    pub fn give(&mut self, piece: Piece<'w>, used: usize) {
        for word in &piece.words[..used] {
            word.store(0, Ordering::Relaxed);
        }
        self.free.entry(piece.words.len()).or_default().push(piece);
    }
}

/// The first word of this rank's starter memory for communication.
pub(crate) fn first_word(world: &World) -> Result<&AtomicU64> {
    let starter = world.library_starter(Library::Communication, world.rank());
    let place = starter.and_then(|starter| {
        // The whole word is there.
        world.address(starter.add(WORD as u64))?;
        world.address(starter)
    });
    let place = place.filter(|place| place.cast::<AtomicU64>().is_aligned());
    let place =
        place.ok_or_else(|| Error::refused("no starter memory (ACP_STARTER_MEMORY_CL) is there for messages"))?;
    // SAFETY: aligned, in starter memory, which stays mapped as long as the world is neither dropped nor reset; it is
    // reached by atomics and by devices.
    Ok(unsafe { AtomicU64::from_ptr(place.cast()) })
}

/// Memory of the program's that a request names.
#[derive(Clone, Copy)]
pub(crate) struct Foreign {
    pub start: *mut u8,
    pub len: usize,
}

impl Foreign {
    /// The memory of a request.
    ///
    /// # Errors
    /// Refused: there are bytes, and they are nowhere.
    #[inline]
    pub fn new(start: *mut u8, len: usize) -> Result<Self> {
        if start.is_null() && len > 0 {
            return Err(Error::refused(format!("{len} bytes at no address are no memory")));
        }
        Ok(Self { start, len })
    }
}

// SAFETY: who makes a request promises that the memory is its own until that is over, in whatever thread.
unsafe impl Send for Foreign {}

/// Copies from memory to words.
///
/// # Safety
/// `len` bytes are mapped at `from`, and nobody stores there meanwhile.
pub(crate) unsafe fn copy_in(from: *const u8, to: &[AtomicU64], len: usize) {
    assert!(len <= to.len() * WORD, "words for {len} bytes");
    // SAFETY: the caller's promise; the words are shared, so that they may be stored to.
    unsafe { ptr::copy_nonoverlapping(from, to.as_ptr().cast::<u8>().cast_mut(), len) };
}

/// Copies from words to memory.
///
/// # Safety
/// `len` bytes are mapped at `to`, and nobody else reads or stores there.
pub(crate) unsafe fn copy_out(from: &[AtomicU64], to: *mut u8, len: usize) {
    assert!(len <= from.len() * WORD, "{len} bytes of words");
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast::<u8>(), to, len) };
}

/// Makes words zero.
pub(crate) fn clear(words: &[AtomicU64]) {
    // SAFETY: words that are shared, so that they may be stored to; none has a type that zero is no value of.
    unsafe { ptr::write_bytes(words.as_ptr().cast::<u8>().cast_mut(), 0, std::mem::size_of_val(words)) };
}
