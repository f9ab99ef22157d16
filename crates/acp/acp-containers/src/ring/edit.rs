//! Changes of a ring: bytes go in and out at any place, between memory of any ranks, and the shorter side moves.

use std::ops::Range;

use vervain_acp::{Batch, Error, GlobalAddress, Order, Result};
use vervain_acp_heap::Heap;

use super::{Kind, MAX_BYTES, Ring, Room, WORDS, allocate, no_memory, rounded};
use crate::source::{CHUNK, Source, Span, copy_spans, or_free, put};

/// A part of what is inserted.
#[derive(Clone)]
enum Piece<'a> {
    Here(&'a [u8]),
    Far(Span),
    /// Bytes of the ring itself, by their index before anything moves.
    Own(Range<usize>),
}

impl Piece<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Far((_, len)) => *len,
            Self::Own(range) => range.len(),
        }
    }
}

impl Ring {
    /// Inserts bytes before the one at `at`, those of this ring among them. Their place and the header are one round
    /// trip, if nothing else moves and there is room.
    pub fn insert(&mut self, heap: &Heap<'_>, batch: &mut Batch<'_>, at: usize, source: Source<'_>) -> Result<()> {
        self.check(&(at..at))?;
        source.check(heap.world())?;
        let pieces = match source {
            Source::Here(bytes) => vec![Piece::Here(bytes)],
            Source::At(address, len) => self.pieces(address, len)?,
        };
        self.insert_pieces(heap, batch, at, pieces)
    }

    /// Inserts bytes of a ring, which may be this one.
    pub fn insert_from(
        &mut self,
        heap: &Heap<'_>,
        batch: &mut Batch<'_>,
        at: usize,
        other: &Self,
        range: Range<usize>,
    ) -> Result<()> {
        self.check(&(at..at))?;
        let spans = other.spans(range.clone())?;
        let pieces = if self.is(other) { vec![Piece::Own(range)] } else { spans.map(Piece::Far).into() };
        self.insert_pieces(heap, batch, at, pieces)
    }

    /// Tells bytes of the ring's own from others.
    fn pieces<'a>(&self, address: GlobalAddress, len: usize) -> Result<Vec<Piece<'a>>> {
        let Room { data, block, capacity, start } = self.room;
        // Addresses of one block are consecutive numbers.
        let (ahead, behind) = (address.0.wrapping_sub(data.0), data.0.wrapping_sub(address.0));
        if len == 0 || (ahead >= block as u64 && behind >= len as u64) || block == 0 {
            return Ok(vec![Piece::Far((address, len))]);
        }
        let outside = || {
            let kind = self.kind.name();
            Error::refused(format!(
                "{len} bytes at {address} are partly in the {kind}'s own memory, and not of its bytes"
            ))
        };
        let from = ahead as usize;
        if ahead >= capacity as u64 || len > capacity - from {
            return Err(outside());
        }
        let index = |at: usize| if at >= start { at - start } else { at + capacity - start };
        // If the ring begins in the midst of them, its last bytes come before its first ones.
        let cut = if (from + 1..from + len).contains(&start) { start } else { from + len };
        let ranges = [index(from)..index(from) + (cut - from), 0..from + len - cut];
        if ranges.iter().any(|range| range.end > self.size) {
            return Err(outside());
        }
        Ok(ranges.into_iter().filter(|range| !range.is_empty()).map(Piece::Own).collect())
    }

    fn insert_pieces(
        &mut self,
        heap: &Heap<'_>,
        batch: &mut Batch<'_>,
        at: usize,
        pieces: Vec<Piece<'_>>,
    ) -> Result<()> {
        let count: usize = pieces.iter().map(Piece::len).sum();
        if count == 0 {
            return Ok(());
        }
        let old = *self;
        let size =
            old.size.checked_add(count).filter(|size| *size <= MAX_BYTES).ok_or_else(|| no_memory(count, None))?;
        if size > old.room.capacity {
            match old.room.widened(old.kind.grown(size)?, old.size) {
                Some(room) => self.room = room,
                None => return self.insert_anew(heap, batch, at, &pieces, size),
            }
        }
        // The present place of the bytes, by the capacity that goes on.
        let from = self.room;
        self.size = size;
        let behind = old.size - at;
        let is_front = old.kind == Kind::Deque && at < behind;
        let mut is_read = true;
        // At the end nothing is changed before the header is.
        if behind > 0 {
            let here = pieces.iter().map(|piece| if let Piece::Here(bytes) = piece { bytes.len() } else { 0 }).sum();
            reserve(batch, if is_front { at } else { behind }, here)?;
        }
        if is_front {
            let Room { start, capacity, .. } = from;
            self.room.start = if start >= count { start - count } else { start + capacity - count };
            is_read = slide(batch, (&from, 0), (&self.room, 0), at, count, false)?;
        } else if behind > 0 {
            is_read = slide(batch, (&from, at), (&from, at + count), behind, count, true)?;
        }
        let mut to = at;
        for piece in &pieces {
            let place = self.room.spans(to..to + piece.len());
            match piece {
                // The bytes at their destination may still have to be read.
                Piece::Here(_) | Piece::Far(_) if is_read => fill(batch, &place, piece, Order::Now)?,
                Piece::Here(_) | Piece::Far(_) => fill(batch, &place, piece, Order::All)?,
                // Bytes behind the gap have moved by its length.
                Piece::Own(range) => {
                    let parts = [range.start..range.end.min(at), range.start.max(at) + count..range.end + count];
                    let from = parts.into_iter().filter(|part| part.start < part.end);
                    let from: Vec<Span> = from.flat_map(|part| self.room.spans(part)).collect();
                    copy_spans(batch, &place, &from, Order::All)?;
                }
            }
            to += piece.len();
        }
        self.put_header(batch, &old)?;
        batch.wait()
    }

    /// Inserts into a new block, of twice the old one's bytes at least, and frees the old one.
    fn insert_anew(
        &mut self,
        heap: &Heap<'_>,
        batch: &mut Batch<'_>,
        at: usize,
        pieces: &[Piece<'_>],
        size: usize,
    ) -> Result<()> {
        let old = *self;
        let room = self.new_room(heap, size)?;
        (self.room, self.size) = (room, size);
        let copied = self.copy_around(batch, &old, at, pieces);
        self.move_in(heap, batch, &old, copied)
    }

    /// Copies the bytes of `old` into the room, with those of the pieces before the one at `at`.
    fn copy_around(&self, batch: &mut Batch<'_>, old: &Self, at: usize, pieces: &[Piece<'_>]) -> Result<()> {
        let (room, size, count) = (self.room, self.size, self.size - old.size);
        copy_spans(batch, &room.spans(0..at), &old.room.spans(0..at), Order::Now)?;
        copy_spans(batch, &room.spans(at + count..size), &old.room.spans(at..old.size), Order::Now)?;
        let mut to = at;
        for piece in pieces {
            let place = room.spans(to..to + piece.len());
            match piece {
                Piece::Own(range) => copy_spans(batch, &place, &old.room.spans(range.clone()), Order::Now)?,
                _ => fill(batch, &place, piece, Order::Now)?,
            }
            to += piece.len();
        }
        Ok(())
    }

    /// A block for `size` bytes, which are more than there is room for: it grows twofold, or as far as memory allows.
    fn new_room(&self, heap: &Heap<'_>, size: usize) -> Result<Room> {
        let rank = heap.world().rank_of(self.header).unwrap_or_default();
        let (capacity, least) = (self.kind.grown(size)?, rounded(size)?);
        let twice = least.max((2 * self.room.block).min(MAX_BYTES));
        let data = allocate(heap, twice, rank).map(|data| (data, twice));
        let (data, block) = match data {
            Err(error) if error.is_refused() && least < twice => (allocate(heap, least, rank)?, least),
            found => found?,
        };
        Ok(Room { data, block, capacity, start: 0 })
    }

    /// Writes the header, and frees the block that it has named before. Where that or copying the bytes was refused,
    /// the new block goes.
    fn move_in(&self, heap: &Heap<'_>, batch: &mut Batch<'_>, old: &Self, copied: Result<()>) -> Result<()> {
        let named = copied.and_then(|()| self.put_header(batch, old));
        or_free(heap, batch, self.room.data, named)?;
        if old.room.block > 0 { heap.free(old.room.data) } else { Ok(()) }
    }

    /// Erases bytes: the shorter side of a deque moves, or what is behind them in a vector.
    pub fn erase(&mut self, batch: &mut Batch<'_>, range: Range<usize>) -> Result<()> {
        self.check(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        let (old, count, behind) = (*self, range.len(), self.size - range.end);
        self.size -= count;
        let is_front = old.kind == Kind::Deque && range.start < behind;
        reserve(batch, if is_front { range.start } else { behind }, 0)?;
        if is_front {
            self.room.start = old.room.at(count);
            slide(batch, (&old.room, 0), (&old.room, count), range.start, count, true)?;
        } else if behind > 0 {
            slide(batch, (&old.room, range.end), (&old.room, range.start), behind, count, false)?;
        }
        self.put_header(batch, &old)?;
        batch.wait()
    }

    /// Makes these bytes of a ring, which may be this one, be all that there are.
    pub fn replace(&mut self, heap: &Heap<'_>, batch: &mut Batch<'_>, other: &Self, range: Range<usize>) -> Result<()> {
        let from = other.spans(range.clone())?;
        let old = *self;
        self.size = range.len();
        if self.is(other) {
            if old.kind == Kind::Deque {
                self.room.start = if self.size > 0 { old.room.at(range.start) } else { 0 };
            } else if range.start > 0 && self.size > 0 {
                reserve(batch, self.size, 0)?;
                slide(batch, (&old.room, range.start), (&old.room, 0), range.len(), range.start, false)?;
            }
            self.put_header(batch, &old)?;
            return batch.wait();
        }
        if self.size > old.room.block {
            self.size = old.size;
            self.room = self.new_room(heap, range.len())?;
            self.size = range.len();
            let copied = copy_spans(batch, &self.room.spans(0..range.len()), &from, Order::Now);
            return self.move_in(heap, batch, &old, copied);
        }
        self.room = Room { start: 0, capacity: old.room.capacity.max(old.kind.grown(self.size)?), ..old.room };
        copy_spans(batch, &self.room.spans(0..range.len()), &from, Order::Now)?;
        self.put_header(batch, &old)?;
        batch.wait()
    }

    /// Makes room for `capacity` bytes at least.
    pub fn reserve(&mut self, heap: &Heap<'_>, batch: &mut Batch<'_>, capacity: usize) -> Result<()> {
        let old = *self;
        let (block, capacity) = (rounded(capacity)?, old.kind.grown(capacity)?);
        if capacity <= old.room.capacity {
            return Ok(());
        }
        if let Some(room) = old.room.widened(capacity, old.size) {
            self.room = room;
            self.put_header(batch, &old)?;
            return batch.wait();
        }
        let rank = heap.world().rank_of(self.header).unwrap_or_default();
        self.room = Room { data: allocate(heap, block, rank)?, block, capacity, start: 0 };
        let copied = copy_spans(batch, &self.room.spans(0..self.size), &old.room.spans(0..old.size), Order::Now);
        self.move_in(heap, batch, &old, copied)
    }

    /// Overwrites bytes with those of this process's.
    pub fn overwrite(&self, batch: &mut Batch<'_>, at: usize, bytes: &[u8]) -> Result<()> {
        let place = self.spans(at..at.saturating_add(bytes.len()))?;
        reserve(batch, 0, bytes.len())?;
        fill(batch, &place, &Piece::Here(bytes), Order::Now)?;
        batch.wait()
    }

    /// Exchanges what two rings have: their blocks stay where they are.
    pub fn exchange(batch: &mut Batch<'_>, one: &Self, other: &Self) -> Result<()> {
        for (to, from) in [(one, other), (other, one)] {
            Self { header: to.header, ..*from }.put_header(batch, to)?;
        }
        batch.wait()
    }

    /// Frees the block and the header, which is no ring's any more then.
    pub fn destroy(self, heap: &Heap<'_>, batch: &mut Batch<'_>) -> Result<()> {
        batch.put_words(self.header.add(8 * self.kind.place() as u64), &[0], Order::Now)?;
        batch.wait()?;
        if self.room.block > 0 {
            heap.free(self.room.data)?;
        }
        heap.free(self.header)
    }
}

/// Gets room for moving `moved` bytes of a ring, then putting `here` bytes of this process's, and the header: in their
/// midst nothing may be refused.
fn reserve(batch: &mut Batch<'_>, moved: usize, here: usize) -> Result<()> {
    // Both parts of a place begin with a chunk that is not waited for.
    batch.reserve(2 * moved.min(CHUNK) + here.min(2 * CHUNK) + (WORDS + 4) * 8)
}

/// Copies a piece that is not of the ring's own.
fn fill(batch: &mut Batch<'_>, place: &[Span; 2], piece: &Piece<'_>, order: Order) -> Result<()> {
    match piece {
        Piece::Far(span) => copy_spans(batch, place, &[*span], order),
        Piece::Here(bytes) => {
            let (first, rest) = bytes.split_at(place[0].1);
            put(batch, place[0].0, first, order)?;
            if rest.is_empty() { Ok(()) } else { put(batch, place[1].0, rest, order) }
        }
        Piece::Own(_) => Ok(()),
    }
}

/// Moves `len` bytes of a block by `distance`, to higher addresses (`up`) or lower ones: from an index on to an index
/// on, in rooms of the same block. Where the two overlap, they go through this rank's memory in parts, each a round
/// trip, those first that others would overwrite. The last ones are not waited for; whether all have been read is the
/// answer.
fn slide(
    batch: &mut Batch<'_>,
    (from_room, from): (&Room, usize),
    (to_room, to): (&Room, usize),
    len: usize,
    distance: usize,
    up: bool,
) -> Result<bool> {
    if len == 0 {
        return Ok(true);
    }
    if distance >= len {
        let (to, from) = (to_room.spans(to..to + len), from_room.spans(from..from + len));
        copy_spans(batch, &to, &from, Order::Now)?;
        return Ok(false);
    }
    let part = len.min(CHUNK);
    let mut scratch = [batch.room(part)?, batch.room(if len > part { part } else { 0 })?];
    let mut done = 0;
    while done < len {
        let now = part.min(len - done);
        let at = if up { len - done - now } else { done };
        let middle = [(batch.address(scratch[0]), now)];
        copy_spans(batch, &middle, &from_room.spans(from + at..from + at + now), Order::Now)?;
        // The part before is put meanwhile.
        batch.wait()?;
        copy_spans(batch, &to_room.spans(to + at..to + at + now), &middle, Order::Now)?;
        scratch.swap(0, 1);
        done += now;
    }
    Ok(true)
}
