//! ACP's global heap (`acp_malloc`, `acp_free`): any rank allocates memory of any rank's, and any rank frees it.
//!
//! The asking rank does all of it, one-sided, by compare and swap in the memory of the rank whose heap it is; that rank
//! may sleep. There are no locks, so no rank waits for one that is slow or was killed: at most the block that that one
//! was just taking is lost. The owner has to act only to map and register more memory, which its thread does.
//!
//! A heap's memory is in *segments*, which the owner makes when somebody misses memory: none at all before the first
//! block, then one of 512 KiB, after that as much as there is already up to 16 MiB, and above 128 MiB an eighth of it;
//! the owner makes it longer where its heap has a limit, for memory of two segments is never one block. They stay until
//! the end of the job, since others may be reading them. A directory in the owner's starter memory has them all.
//!
//! In a segment a tree of words says what is free, two bits for a unit: units of 16 bytes, 32 of which are a unit of
//! 512 bytes, 32 of which are one of 16 KiB, and so on. A block is a run of units in one word, so that one compare and
//! swap takes it, and another one frees it; its length is read from there, and nothing lies in front of it. So freeing
//! what is no block is found out, and a program that writes behind its block's end does not destroy the heap. `tree.rs`
//! says why it is safe. A block of 257 B takes 512 B, one of 513 B takes 1 KiB, one of 16 KiB + 1 B takes 32 KiB:
//! between half of what a block takes and all of it is the program's.
//!
//! A unit is divided when smaller blocks need it, and made whole again when larger ones miss memory, not before, so
//! that a program that allocates and frees in turn does not divide and unite units all the time. Memory of small blocks
//! that were freed so becomes memory of large ones before the heap grows.
//!
//! Blocks above 4 MiB have a segment of their own as long as the directory has places for it, which is given back when
//! they are freed.
//!
//! One way serves the own heap and others': a local allocator's state could not be changed by others one-sidedly. What
//! a rank remembers of heaps is where to look first, in a cache of fixed size: nothing that others need.

#![forbid(unsafe_code)]

mod directory;
mod geometry;
mod hints;
mod remote;
#[cfg(test)]
mod tests;
mod tree;
mod word;

use std::thread;
use std::time::Duration;

use vervain_acp::{Error, Extension, GlobalAddress, Result, World};

use crate::directory::Directory;
use crate::geometry::{LEVELS, Shape};
use crate::hints::{AllHints, Hints, Segment};
use crate::remote::Remote;
use crate::tree::{Outcome, Taken, Tree, search};

/// Blocks of more bytes have a segment of their own.
const LARGE: usize = 4 << 20;
/// Blocks of at least so many bytes may have a segment of their own, which is unmapped when they are freed: where a
/// tree's segment does not fit below the heap's limit any more. Shorter ones stay mapped, so that who still reads them
/// finds any bytes there.
pub const MAY_BE_UNMAPPED: usize = 16 << 10;
/// How often, and a millisecond apart, a heap that cannot grow is searched again while others have some of its memory
/// in hand.
const WAITS: u32 = 16;
/// Segments of one block are whole pages.
const PAGE: u64 = 4096;

/// The heaps of all ranks of a job, as this rank reaches them. Threads share it.
pub struct Heap<'w> {
    world: &'w World,
    hints: AllHints,
}

impl<'w> Heap<'w> {
    /// A heap handle; it allocates nothing.
    pub fn new(world: &'w World) -> Self {
        Self { world, hints: AllHints::new(world.rank()) }
    }

    /// The world that it is of.
    pub fn world(&self) -> &'w World {
        self.world
    }

    /// Allocates `size` bytes of memory of `rank`, aligned to 16 bytes, from 512 bytes on to 512. None if `size` is 0
    /// or there is no memory left. It is not cleared.
    ///
    /// Most often one round trip; three for the first of up to 32 blocks that share a word. In the own heap there are
    /// none. A segment more, which few need, is about six, with one in which `rank` has to act, and a block above 4 MiB
    /// is that one.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): there is no such rank. Else the job is broken.
    pub fn allocate(&self, size: usize, rank: u32) -> Result<Option<GlobalAddress>> {
        if rank >= self.world.size() {
            return Err(Error::refused(format!("there is no rank {rank}: the job has {}", self.world.size())));
        }
        let Some(shape) = Shape::of(size as u64) else { return Ok(None) };
        if size > LARGE
            && let Some(block) = self.allocate_alone(size, rank)?
        {
            return Ok(Some(block));
        }
        let mut hints = self.hints.of(rank);
        let block = match self.allocate_near(shape, &mut hints, rank)? {
            None => self.allocate_anywhere(shape, &mut hints, rank)?,
            block => block,
        };
        self.hints.keep(&hints);
        if block.is_none() && (MAY_BE_UNMAPPED..=LARGE).contains(&size) {
            return self.allocate_alone(size, rank);
        }
        Ok(block)
    }

    /// A segment for the block alone.
    fn allocate_alone(&self, size: usize, rank: u32) -> Result<Option<GlobalAddress>> {
        let Some(len) = (size as u64).checked_next_multiple_of(PAGE) else { return Ok(None) };
        match self.world.extend(rank, None, len)? {
            Extension::Segment(block) => Ok(Some(block)),
            _ => Ok(None),
        }
    }

    fn words(&self, rank: u32, segment: Segment) -> Remote<'w> {
        Remote { world: self.world, rank, base: segment.base }
    }

    /// A block where this rank was last.
    fn allocate_near(&self, shape: Shape, hints: &mut Hints, rank: u32) -> Result<Option<GlobalAddress>> {
        if let Some((segment, mut spot)) = hints.spots[shape.level] {
            let words = self.words(rank, segment);
            let tree = Tree::new(&segment.geometry, &words);
            let outcome = tree.take(shape, &mut spot)?;
            hints.spots[shape.level] = Some((segment, spot));
            match outcome {
                Outcome::Done(offset) => return Ok(Some(segment.base.add(offset))),
                Outcome::Full => {
                    if let Outcome::Done(taken) = tree.take_near(shape, spot.index)? {
                        return Ok(Some(done(hints, segment, taken)));
                    }
                }
                // Others want this word too: one of this rank's own.
                Outcome::Contended => {}
            }
        }
        for level in shape.level + 1..LEVELS {
            let Some((segment, spot)) = hints.spots[level] else { continue };
            let words = self.words(rank, segment);
            if let Outcome::Done(taken) = Tree::new(&segment.geometry, &words).open(shape, level, spot)? {
                return Ok(Some(done(hints, segment, taken)));
            }
        }
        Ok(None)
    }

    /// A block wherever the heap has room, or gets it.
    fn allocate_anywhere(&self, shape: Shape, hints: &mut Hints, rank: u32) -> Result<Option<GlobalAddress>> {
        let mut directory = Directory::read(self.world, rank)?;
        let (mut waits, mut before) = (0, true);
        loop {
            let found = self.search(shape, hints, rank, &directory)?;
            if let Outcome::Done((segment, taken)) = found {
                return Ok(Some(done(hints, segment, taken)));
            }
            // Each turn somebody, this rank or another, has made the heap larger.
            if let Some(larger) = directory.grow(self.world, rank, shape)? {
                directory = larger;
                continue;
            }
            // It cannot be larger, but others may have some of it in hand, or have had it when this rank came there.
            let moves = matches!(found, Outcome::Contended) || self.is_in_hand(rank, &directory)?;
            if waits == WAITS || !before && !moves {
                return Ok(None);
            }
            waits += 1;
            before = moves;
            if moves {
                thread::sleep(Duration::from_millis(1));
            }
            directory = Directory::read(self.world, rank)?;
        }
    }

    /// Looks everywhere, first where this rank was last.
    fn search(
        &self,
        shape: Shape,
        hints: &Hints,
        rank: u32,
        directory: &Directory,
    ) -> Result<Outcome<(Segment, Taken)>> {
        let (begin, index) = match hints.spots[shape.level] {
            Some((segment, spot)) => (directory.segments.iter().position(|s| *s == segment).unwrap_or(0), spot.index),
            // Ranks that come at the same time do not begin at the same place.
            None => (0, u64::from(self.world.rank()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20),
        };
        let order: Vec<Segment> = [&directory.segments[begin..], &directory.segments[..begin]].concat();
        let words: Vec<Remote<'_>> = order.iter().map(|segment| self.words(rank, *segment)).collect();
        let trees: Vec<_> =
            order.iter().zip(&words).map(|(segment, words)| Tree::new(&segment.geometry, words)).collect();
        Ok(match search(&trees, shape, index)? {
            Outcome::Done((at, taken)) => Outcome::Done((order[at], taken)),
            Outcome::Contended => Outcome::Contended,
            Outcome::Full => Outcome::Full,
        })
    }

    /// Returns whether others are dividing units or making them whole.
    fn is_in_hand(&self, rank: u32, directory: &Directory) -> Result<bool> {
        for segment in &directory.segments {
            if Tree::new(&segment.geometry, &self.words(rank, *segment)).is_in_hand()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Frees what [`allocate`](Heap::allocate) has given, by whatever rank. Null is left alone.
    ///
    /// One round trip or two; one in which its rank has to act for a block above 4 MiB. One or two more the first time
    /// in a segment.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): it is no allocated block, which a program that frees twice finds most often. Else
    /// the job is broken.
    pub fn free(&self, block: GlobalAddress) -> Result<()> {
        if block.is_null() {
            return Ok(());
        }
        let (Some(rank), Some(base)) = (self.world.rank_of(block), self.world.region_of(block)) else {
            return Err(Error::refused(format!(
                "{block} is the global address of no rank: the job has {}",
                self.world.size()
            )));
        };
        let none =
            || Error::refused(format!("{block} of rank {rank} is no block that is allocated: freed twice, or never"));
        if block == base {
            return if self.world.retract(rank, block)? { Ok(()) } else { Err(none()) };
        }
        let mut hints = self.hints.of(rank);
        let segment = match hints.segment(base) {
            Some(segment) => segment,
            None => {
                let directory = Directory::read(self.world, rank)?;
                directory.segments.into_iter().find(|segment| segment.base == base).ok_or_else(none)?
            }
        };
        let offset = block.0 - base.0;
        let geometry = segment.geometry;
        let mut likely = None;
        for (level, hint) in hints.spots.iter().enumerate() {
            if let Some((_, spot)) =
                hint.filter(|(s, spot)| *s == segment && geometry.find(level, offset).0 == spot.index)
                && geometry.has_block(level, spot.index, spot.stored, offset)
            {
                likely = Some((level, spot));
            }
        }
        let words = self.words(rank, segment);
        let (level, spot) = Tree::new(&geometry, &words).release(offset, likely)?.ok_or_else(none)?;
        hints.used(segment);
        // The next block may be there, unless this rank is already somewhere with room.
        let better = hints.spots[level].is_none_or(|(s, known)| {
            s == segment && known.index == spot.index
                || s.geometry.room(Shape::unit(level), known.index, known.stored).is_none()
        });
        if better {
            hints.spots[level] = Some((segment, spot));
        }
        self.hints.keep(&hints);
        Ok(())
    }
}

/// The block, and where to look the next time.
fn done(hints: &mut Hints, segment: Segment, taken: Taken) -> GlobalAddress {
    hints.used(segment);
    hints.changed(segment, taken.spots);
    segment.base.add(taken.offset)
}
