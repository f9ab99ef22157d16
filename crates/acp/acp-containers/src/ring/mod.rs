//! Rings: bytes in a block of a heap, which begin anywhere in it and go on at its start where it ends. A deque is one;
//! a vector is one that begins at the block's start always, so that its bytes are consecutive.
//!
//! A header names the block. Its first words are those of ACP 3.0.0, for programs read them through
//! `acp_query_address`; behind them is what only this library knows:
//!
//! | word | vector | deque |
//! |---|---|---|
//! | 0 | address of the block | address of the block |
//! | 1 | bytes | where the bytes begin |
//! | 2 | capacity | bytes |
//! | 3 | bytes of the block | capacity |
//! | 4 | what it is | bytes of the block |
//! | 5 | | what it is |
//!
//! The capacity grows as in ACP 3.0.0: to the bytes that there are, a vector's to a multiple of 8. The block grows
//! twofold, so that the capacity mostly grows in it. Bytes of a deque go on at the block's start behind its *capacity*.
//!
//! Whoever works on a ring reads the header first, believes of it what can be, and writes back the words that have
//! changed, after the bytes.

mod edit;
mod sequence;

pub(crate) use sequence::sequence;

use std::ops::Range;

use vervain_acp::{Batch, Error, GlobalAddress, Order, Place, Result, World};
use vervain_acp_heap::Heap;

use crate::source::{CHUNK, MAX_BYTES, Span, check, or_free};

/// Words of a header; a vector's last one is 0.
const WORDS: usize = 6;

/// Which container a ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Vector,
    Deque,
}

impl Kind {
    /// The mark of its header: other memory has another word there.
    fn word(self) -> u64 {
        u64::from_le_bytes(match self {
            Self::Vector => *b"a vector",
            Self::Deque => *b"a deque:",
        })
    }

    /// Which word of the header has the mark.
    fn place(self) -> usize {
        match self {
            Self::Vector => 4,
            Self::Deque => 5,
        }
    }

    /// The capacity that one grows to for so many bytes.
    fn grown(self, bytes: usize) -> Result<usize> {
        let rounded = rounded(bytes)?;
        Ok(if self == Self::Deque { bytes } else { rounded })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Vector => "vector",
            Self::Deque => "deque",
        }
    }
}

/// A block, and where the bytes in it begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    data: GlobalAddress,
    /// Bytes of the block, at least the capacity.
    block: usize,
    capacity: usize,
    start: usize,
}

impl Room {
    /// The same block with a larger capacity. None if it is too small, or if the `size` bytes from `start` on pass the
    /// end of the capacity so far: by the new one they would lie elsewhere.
    fn widened(&self, capacity: usize, size: usize) -> Option<Self> {
        (capacity <= self.block && size <= self.capacity - self.start).then_some(Self { capacity, ..*self })
    }

    /// The offset in the block of byte `index`, which is at most the capacity.
    fn at(&self, index: usize) -> usize {
        let at = self.start + index;
        if at >= self.capacity { at - self.capacity } else { at }
    }

    /// The places of these bytes: two parts if they pass the block's end. The range ends within the capacity.
    fn spans(&self, range: Range<usize>) -> [Span; 2] {
        let (at, len) = (self.at(range.start), range.len());
        let first = len.min(self.capacity - at);
        [
            (self.data.add(at as u64), first),
            if first < len { (self.data, len - first) } else { (GlobalAddress::NULL, 0) },
        ]
    }
}

/// A ring as its header was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    header: GlobalAddress,
    kind: Kind,
    room: Room,
    pub size: usize,
}

impl Ring {
    /// Makes a ring of `size` bytes, and with room for `capacity`, in the heap of `rank`. One round trip, besides two
    /// allocations.
    pub fn create(heap: &Heap<'_>, kind: Kind, size: usize, capacity: usize, rank: u32) -> Result<GlobalAddress> {
        let capacity = rounded(capacity.max(size))?;
        let header = allocate(heap, WORDS * 8, rank)?;
        let data = match capacity {
            0 => GlobalAddress::NULL,
            _ => match allocate(heap, capacity, rank) {
                Ok(data) => data,
                Err(error) => {
                    heap.free(header)?;
                    return Err(error);
                }
            },
        };
        let mut batch = heap.world().batch();
        let made = Self { header, kind, room: Room { data, block: capacity, capacity, start: 0 }, size };
        let put = batch.put_words(header, &made.words(), Order::Now);
        let put = or_free(heap, &mut batch, header, put);
        // To free null does nothing.
        or_free(heap, &mut batch, data, put)?;
        Ok(header)
    }

    /// Has a batch get a header.
    pub fn begin(batch: &mut Batch<'_>, header: GlobalAddress) -> Result<Place> {
        if header.is_null() {
            return Err(Error::refused("there is no container at a null address"));
        }
        batch.get(header, WORDS * 8, Order::Now)
    }

    /// Reads the header that a batch has got.
    ///
    /// # Errors
    /// The job is broken: there is no ring of this kind.
    pub fn read(world: &World, batch: &Batch<'_>, place: Place, kind: Kind, header: GlobalAddress) -> Result<Self> {
        let words: [u64; WORDS] = std::array::from_fn(|i| batch.word(place, i));
        let broken = |why: String| Err(Error::broken(format!("there is no {} at {header}: {why}", kind.name())));
        let mark = words[kind.place()];
        if mark != kind.word() {
            return broken(format!("it is marked {mark:#x}, as one that was destroyed or never made"));
        }
        let (data, [start, size, capacity, block]) = match kind {
            Kind::Vector => (words[0], [0, words[1], words[2], words[3]]),
            Kind::Deque => (words[0], [words[1], words[2], words[3], words[4]]),
        };
        let [start, size, capacity, block] = [start, size, capacity, block].map(|word| word as usize);
        let is_whole = kind == Kind::Deque || capacity.is_multiple_of(8);
        if block > MAX_BYTES || !block.is_multiple_of(8) || capacity > block || !is_whole {
            return broken(format!("room for {capacity} bytes in a block of {block}"));
        }
        if size > capacity || (start > 0 && start >= capacity) {
            return broken(format!("{size} bytes from {start} on, with room for {capacity}"));
        }
        let data = GlobalAddress(data);
        if block > 0
            && let Err(error) = check(world, data, block)
        {
            return broken(error.to_string());
        }
        Ok(Self { header, kind, room: Room { data, block, capacity, start }, size })
    }

    /// The header's words.
    fn words(&self) -> [u64; WORDS] {
        let Room { data, block, capacity, start } = self.room;
        let [block, capacity, start, size] = [block, capacity, start, self.size].map(|bytes| bytes as u64);
        match self.kind {
            Kind::Vector => [data.0, size, capacity, block, self.kind.word(), 0],
            Kind::Deque => [data.0, start, size, capacity, block, self.kind.word()],
        }
    }

    /// Reads the header: one round trip.
    pub fn fetch(batch: &mut Batch<'_>, world: &World, kind: Kind, header: GlobalAddress) -> Result<Self> {
        let place = Self::begin(batch, header)?;
        batch.wait()?;
        Self::read(world, batch, place, kind, header)
    }

    /// Reads two headers at once: one round trip.
    pub fn fetch_two(
        batch: &mut Batch<'_>,
        world: &World,
        kind: Kind,
        headers: [GlobalAddress; 2],
    ) -> Result<[Self; 2]> {
        let places = [Self::begin(batch, headers[0])?, Self::begin(batch, headers[1])?];
        batch.wait()?;
        Ok([
            Self::read(world, batch, places[0], kind, headers[0])?,
            Self::read(world, batch, places[1], kind, headers[1])?,
        ])
    }

    /// Bytes that there is room for.
    pub fn capacity(&self) -> usize {
        self.room.capacity
    }

    /// Returns true if both are the same ring.
    pub fn is(&self, other: &Self) -> bool {
        self.header == other.header
    }

    /// Checks that the range is of its bytes.
    pub fn check(&self, range: &Range<usize>) -> Result<()> {
        if range.start <= range.end && range.end <= self.size {
            return Ok(());
        }
        Err(Error::refused(format!(
            "bytes {} to {} are not in a {} of {}",
            range.start,
            range.end,
            self.kind.name(),
            self.size
        )))
    }

    /// The places of these bytes.
    pub fn spans(&self, range: Range<usize>) -> Result<[Span; 2]> {
        self.check(&range)?;
        Ok(self.room.spans(range))
    }

    /// Reads bytes into this process's memory, at most 256 KiB at a time.
    pub fn read_bytes(&self, batch: &mut Batch<'_>, at: usize, to: &mut [u8]) -> Result<()> {
        self.check(&(at..at.saturating_add(to.len())))?;
        for (i, part) in to.chunks_mut(CHUNK).enumerate() {
            batch.clear()?;
            let place = batch.room(part.len())?;
            let from = at + i * CHUNK;
            let spans = self.room.spans(from..from + part.len());
            crate::source::copy_spans(batch, &[(batch.address(place), part.len())], &spans, Order::Now)?;
            batch.wait()?;
            batch.read(place, part);
        }
        Ok(())
    }

    /// Writes the words of the header that have changed, behind everything else.
    fn put_header(&self, batch: &mut Batch<'_>, old: &Self) -> Result<()> {
        let (words, old) = (self.words(), old.words());
        let differs = |i: &usize| words[*i] != old[*i];
        let (Some(first), Some(last)) = ((0..WORDS).find(differs), (0..WORDS).rfind(differs)) else { return Ok(()) };
        batch.put_words(self.header.add(8 * first as u64), &words[first..=last], Order::All)
    }
}

/// Bytes of a block, in whole words.
fn rounded(bytes: usize) -> Result<usize> {
    if bytes > MAX_BYTES {
        return Err(no_memory(bytes, None));
    }
    Ok(bytes.next_multiple_of(8))
}

fn no_memory(bytes: usize, rank: Option<u32>) -> Error {
    let whose = rank.map_or_else(|| "no rank has".into(), |rank| format!("rank {rank} has not the"));
    Error::refused(format!("{whose} memory for {bytes} bytes"))
}

/// A block of the heap of `rank`.
pub(crate) fn allocate(heap: &Heap<'_>, bytes: usize, rank: u32) -> Result<GlobalAddress> {
    if rank >= heap.world().size() {
        return Err(Error::refused(format!("there is no rank {rank}: the job has {}", heap.world().size())));
    }
    heap.allocate(bytes, rank)?.ok_or_else(|| no_memory(bytes, Some(rank)))
}
