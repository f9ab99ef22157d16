//! Rings: bytes in a block of a heap, which begin anywhere in it and go on at its start where it ends. A deque is one; a vector is
//! one that begins at the block's start always, so that its bytes are consecutive.
//!
//! A header of five words names the block: kind, address, capacity, where the bytes begin, and how many they are. Whoever works on a
//! ring reads the header first, believes of it what can be, and writes back the words that have changed, behind the bytes.

mod edit;
mod sequence;

pub(crate) use sequence::sequence;

use std::ops::Range;

use vervain_acp::{Batch, Error, GlobalAddress, Order, Place, Result, World};
use vervain_acp_heap::Heap;

use crate::source::{CHUNK, MAX_BYTES, Span, check, or_free};

/// Words of a header.
const WORDS: usize = 5;
/// Where they are: those behind the kind change.
const DATA: u64 = 8;
const START: u64 = 24;
const SIZE: u64 = 32;

/// Which container a ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Vector,
    Deque,
}

impl Kind {
    /// The first word of its header: memory that is none has another one.
    fn word(self) -> u64 {
        u64::from_le_bytes(match self {
            Self::Vector => *b"a vector",
            Self::Deque => *b"a deque:",
        })
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
    capacity: usize,
    start: usize,
}

impl Room {
    /// Where in the block the byte `index` is; `index` is at most the capacity.
    fn at(&self, index: usize) -> usize {
        let at = self.start + index;
        if at >= self.capacity { at - self.capacity } else { at }
    }

    /// Where these bytes lie: in two parts where they pass the block's end. The range ends within the capacity.
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
    /// Makes a ring of `size` bytes, and with room for `capacity`, in the heap of `rank`. One round trip, besides two allocations.
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
        let put = batch.put_words(header, &[kind.word(), data.0, capacity as u64, 0, size as u64], Order::Now);
        let put = or_free(heap, &mut batch, header, put);
        // Nothing is done to free null.
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

    /// What the header says that a batch has got.
    ///
    /// # Errors
    /// The job is broken: what is there is no ring of this kind.
    pub fn read(world: &World, batch: &Batch<'_>, place: Place, kind: Kind, header: GlobalAddress) -> Result<Self> {
        let [word, data, capacity, start, size] = std::array::from_fn(|i| batch.word(place, i));
        let broken = |why: String| Err(Error::broken(format!("there is no {} at {header}: {why}", kind.name())));
        if word != kind.word() {
            return broken(format!("it begins with {word:#x}, as one that was destroyed or never made"));
        }
        let (capacity, start, size) = (capacity as usize, start as usize, size as usize);
        if capacity > MAX_BYTES || !capacity.is_multiple_of(8) || size > capacity || (start > 0 && start >= capacity) {
            return broken(format!("{size} bytes from {start} on, with room for {capacity}"));
        }
        if kind == Kind::Vector && start != 0 {
            return broken(format!("its bytes begin at {start}"));
        }
        let data = GlobalAddress(data);
        if capacity > 0
            && let Err(error) = check(world, data, capacity)
        {
            return broken(error.to_string());
        }
        Ok(Self { header, kind, room: Room { data, capacity, start }, size })
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

    /// Whether both are the same ring.
    pub fn is(&self, other: &Self) -> bool {
        self.header == other.header
    }

    /// Whether the range is of its bytes.
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

    /// Where these bytes lie.
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

    /// Writes the words that tell where the bytes are, behind everything else.
    fn put_header(&self, batch: &mut Batch<'_>, old: &Self) -> Result<()> {
        let Room { data, capacity, start } = self.room;
        let words = [data.0, capacity as u64, start as u64, self.size as u64];
        if (self.room.data, self.room.capacity) != (old.room.data, old.room.capacity) {
            return batch.put_words(self.header.add(DATA), &words, Order::All);
        }
        if self.room.start != old.room.start {
            return batch.put_words(self.header.add(START), &words[2..], Order::All);
        }
        if self.size != old.size {
            return batch.put_words(self.header.add(SIZE), &words[3..], Order::All);
        }
        Ok(())
    }
}

/// A capacity, in whole words.
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
