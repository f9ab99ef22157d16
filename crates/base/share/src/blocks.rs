//! The blocks of a heap: a table outside of them. Those that the program has given back are kept for the next request,
//! while they are still warm.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Index, Range};

use crate::settings::KEEP_MS;

/// The caller that a block was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// malloc and its kin; ended by free.
    Allocation,
    /// mmap; ended by munmap of all its pages.
    Mapping,
    /// Small allocations at page boundaries ([`crate::slab::Slabs`]); ended when all are free.
    Slab,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The program has it.
    Live(Kind),
    /// The program has given it back while it was pinned.
    Parked,
    /// Kept for the next request since that time (ms).
    Cached(u64),
    /// A thread is making or releasing it; or something else was found at its place, and it stays unused.
    Busy,
}

/// One block: a range of the object and of addresses.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Room that belongs to it, in bytes.
    pub room: usize,
    /// Bytes from its start that are mapped (with the exceptions in `marks`).
    pub mapped: usize,
    /// Bytes from its start that may have pages.
    pub dirty: usize,
    /// Bytes from its start that are known to have pages.
    pub full: usize,
    /// See [`State`].
    pub state: State,
}

/// A block on its way out: address, bytes mapped, bytes that may have pages, room.
pub(crate) struct Leaving {
    pub start: usize,
    pub mapped: usize,
    pub dirty: usize,
    pub room: usize,
}

impl Leaving {
    pub fn of(start: usize, block: &Block) -> Leaving {
        Leaving { start, mapped: block.mapped, dirty: block.dirty, room: block.room }
    }
}

/// All blocks of a heap.
#[derive(Debug, Default)]
pub struct Blocks {
    /// By address.
    all: BTreeMap<usize, Block>,
    /// Cached blocks: room and address.
    by_size: BTreeSet<(usize, usize)>,
    /// Cached blocks, oldest first: since when, and address. Entries of blocks in use again are stale.
    by_age: VecDeque<(u64, usize)>,
    /// Sum of `dirty` of the cached blocks.
    cached: usize,
}

impl Index<usize> for Blocks {
    type Output = Block;

    fn index(&self, start: usize) -> &Block {
        &self.all[&start]
    }
}

impl Blocks {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn get(&self, start: usize) -> Option<&Block> {
        self.all.get(&start)
    }

    /// Not to change the room of a block, nor anything of one that is cached.
    pub fn get_mut(&mut self, start: usize) -> Option<&mut Block> {
        self.all.get_mut(&start)
    }

    pub fn insert(&mut self, start: usize, block: Block) {
        self.all.insert(start, block);
    }

    pub fn remove(&mut self, start: usize) {
        self.all.remove(&start);
    }

    /// By address.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Block)> {
        self.all.iter().map(|(&start, block)| (start, block))
    }

    /// Blocks in a state, by the addresses that they have mapped.
    pub fn overlapping(&self, range: &Range<usize>, which: impl Fn(State) -> bool) -> Vec<usize> {
        let first = self.at(range.start).map_or(range.start, |(start, _)| start);
        let blocks = self.all.range(first..range.end.max(first));
        blocks.filter(|(s, b)| which(b.state) && *s + b.mapped > range.start).map(|(&start, _)| start).collect()
    }

    /// The block that has `addr` in its room.
    pub fn at(&self, addr: usize) -> Option<(usize, &Block)> {
        let (&start, block) = self.all.range(..=addr).next_back()?;
        (addr < start + block.room).then_some((start, block))
    }

    /// Live blocks that overlap `range`, with the part of it that they have mapped.
    pub fn live_parts(&self, range: &Range<usize>) -> Vec<(usize, Kind, Range<usize>)> {
        let first = self.at(range.start).map_or(range.start, |(start, _)| start);
        let mut all = Vec::new();
        for (&start, block) in self.all.range(first..range.end.max(first)) {
            let part = range.start.max(start)..range.end.min(start + block.mapped);
            if let State::Live(kind) = block.state
                && !part.is_empty()
            {
                all.push((start, kind, part));
            }
        }
        all
    }

    /// Blocks in a state, by the addresses that they have room for.
    pub fn in_room(&self, range: &Range<usize>, which: impl Fn(State) -> bool) -> Vec<usize> {
        let first = self.at(range.start).map_or(range.start, |(start, _)| start);
        self.all.range(first..range.end).filter(|(_, b)| which(b.state)).map(|(&start, _)| start).collect()
    }

    /// Keeps a block for the next request, from `now` (ms) on.
    pub fn keep(&mut self, start: usize, now: u64) {
        let Some(block) = self.all.get_mut(&start) else { return };
        block.state = State::Cached(now);
        self.cached += block.dirty;
        self.by_size.insert((block.room, start));
        self.by_age.push_back((now, start));
    }

    /// Takes a cached block off the lists.
    fn uncache(&mut self, start: usize) -> Option<Block> {
        let block = self.all.get_mut(&start)?;
        let taken = *block;
        block.state = State::Busy;
        self.by_size.remove(&(taken.room, start));
        self.cached -= taken.dirty;
        Some(taken)
    }

    /// Takes the cached block that fits a request best.
    pub fn reuse(&mut self, room: usize, align: usize) -> Option<(usize, Block)> {
        let largest = room + room / 4;
        let fits = |&&(room, start): &&(usize, usize)| room <= largest && start.is_multiple_of(align);
        let (_, start) = *self.by_size.range((room, 0)..=(largest, usize::MAX)).find(fits)?;
        self.uncache(start).map(|block| (start, block))
    }

    /// Takes a cached block out of use.
    pub fn evict(&mut self, start: usize) -> Option<Leaving> {
        self.uncache(start).map(|block| Leaving::of(start, &block))
    }

    /// Since when (ms) the first entry of the cached ones is kept, which may be stale.
    pub fn oldest(&self) -> Option<u64> {
        self.by_age.front().map(|(since, _)| *since)
    }

    /// Takes out of use what has been kept too long, and the oldest while there are more than `limit` bytes.
    pub fn expired(&mut self, now: u64, limit: usize) -> Vec<Leaving> {
        let mut out = Vec::new();
        while let Some(&(since, start)) = self.by_age.front() {
            let current = self.all.get(&start).is_some_and(|b| b.state == State::Cached(since));
            if current && now.saturating_sub(since) < KEEP_MS && self.cached <= limit {
                break;
            }
            self.by_age.pop_front();
            if current {
                out.extend(self.evict(start));
            }
        }
        out
    }

    /// In a child of fork: removes what nobody has any more; addresses and room.
    pub fn remove_unused(&mut self) -> Vec<(usize, usize)> {
        let unused = self.all.iter().filter(|(_, b)| matches!(b.state, State::Cached(_) | State::Parked));
        let gone: Vec<_> = unused.map(|(&start, b)| (start, b.room)).collect();
        gone.iter().for_each(|(start, _)| _ = self.all.remove(start));
        self.by_size.clear();
        self.by_age.clear();
        self.cached = 0;
        gone
    }
}
