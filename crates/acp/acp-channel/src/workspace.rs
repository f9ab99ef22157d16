//! Workspaces: memory in blocks of consecutive ranks, which any rank reads and writes by offsets.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use vervain_acp::{Error, GlobalAddress, GlobalPtr, Library, Order, Region, Result, World};

use crate::memory::WORD;

/// Bytes of a block, unless [`Workspaces::set`] says otherwise. It is the original's, whose hexadecimal number
/// was to be 2^20.
const BLOCK: usize = 0x1048576;
/// The most: sizes of blocks are told as `int`.
const MOST: usize = i32::MAX as usize;
/// Words that each rank announces: the address of its block, and all arguments of the call.
const TOLD: usize = 4;
/// Their place in the starter memory for communication.
const PLACE: u64 = 8;

/// A block of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its first byte.
    pub start: GlobalAddress,
    /// Its rank.
    pub rank: u32,
    /// Its bytes.
    pub size: usize,
}

/// Memory in blocks of the same size, the last one perhaps shorter, each of another rank's. While one is there it is
/// registered; one that is dropped and not [destroyed](Workspace::destroy) stays so until this rank leaves the job.
pub struct Workspace<'w> {
    world: &'w World,
    size: usize,
    block: usize,
    blocks: Vec<Block>,
    /// The region of this rank.
    own: ManuallyDrop<Option<Region<'w>>>,
}

/// The making of this rank's workspaces. Threads share it.
pub struct Workspaces<'w> {
    world: &'w World,
    /// The first rank of the next workspace, and the bytes of its blocks.
    next: Mutex<(u32, usize)>,
}

impl<'w> Workspaces<'w> {
    /// The first workspace begins at rank 0.
    pub fn new(world: &'w World) -> Self {
        Self { world, next: Mutex::new((0, BLOCK)) }
    }

    /// Has the next workspace begin at rank `start`, with blocks of `block` bytes, at most 2^31 - 1. All ranks say the
    /// same.
    ///
    /// # Errors
    /// Refused: there is no such rank, or no such block.
    pub fn set(&self, start: usize, block: usize) -> Result<()> {
        let size = self.world.size();
        let rank = u32::try_from(start).ok().filter(|rank| *rank < size);
        let rank = rank.ok_or_else(|| Error::refused(format!("there is no rank {start}: the job has {size}")))?;
        if !(1..=MOST).contains(&block) {
            return Err(Error::refused(format!("a block of {block} B is none: 1 to {MOST}")));
        }
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = (rank, block);
        Ok(())
    }

    /// Creates a workspace of `size` bytes, zero at first, in blocks of as many consecutive ranks as it needs; the next
    /// one begins behind them. All ranks call it, with the same size, and it returns once all have. Two barriers and a
    /// round trip.
    ///
    /// # Errors
    /// Refused, at all ranks: no bytes, not enough ranks, no memory somewhere. Else the job is broken, also where ranks
    /// say different things.
    pub fn create(&self, size: usize) -> Result<Workspace<'w>> {
        let world = self.world;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, block) = *next;
        let count = size.div_ceil(block);
        let end = u32::try_from(count).ok().and_then(|count| start.checked_add(count));
        let end = end.filter(|end| count > 0 && *end <= world.size()).ok_or_else(|| {
            let ranks = world.size();
            Error::refused(format!(
                "{count} blocks of {block} B from rank {start} on are not there: the job has {ranks} ranks"
            ))
        })?;
        let size_of = |rank: u32| (size - (rank - start) as usize * block).min(block);
        let place = |rank| {
            let starter = world.library_starter(Library::Communication, rank);
            starter.map(|starter| starter.add(PLACE)).ok_or_else(|| Error::refused(format!("there is no rank {rank}")))
        };
        let rank = world.rank();
        let room = (world.library_starter_len(Library::Communication) as usize).saturating_sub(PLACE as usize);
        let together = (room / (TOLD * WORD)).saturating_sub(1);
        if together == 0 {
            return Err(Error::refused(
                "no starter memory (ACP_STARTER_MEMORY_CL) is there for workspaces: 72 bytes are the least",
            ));
        }
        let mine = if (start..end).contains(&rank) { world.region(size_of(rank), 0).ok() } else { None };
        let address = mine.as_ref().map_or(0, |region| region.key().0);
        let said = [size as u64, u64::from(start), block as u64];
        let told: [u64; TOLD] = [address, said[0], said[1], said[2]];
        world.write(GlobalPtr::<u64>::new(place(rank)?), &told)?;
        world.sync()?;
        let mut blocks = Vec::with_capacity(count);
        let mut missing = None;
        let owners: Vec<u32> = (start..end).collect();
        // The words of others land in starter memory too: there might be no registration left, and a refusal of this
        // rank alone would leave it one barrier behind.
        let own = place(rank)?;
        let landing = |i: usize| own.add(((i + 1) * TOLD * WORD) as u64);
        for some in owners.chunks(together) {
            for (i, owner) in some.iter().enumerate() {
                world.copy(landing(i), place(*owner)?, TOLD * WORD, Order::Now)?;
            }
            world.complete_all()?;
            for (i, owner) in some.iter().enumerate() {
                let mut heard = [0; TOLD];
                world.read(GlobalPtr::<u64>::new(landing(i)), &mut heard)?;
                if heard[1..] != said {
                    return Err(Error::broken(format!(
                        "ranks create different workspaces (bytes, first rank, bytes of a block): rank {owner} {:?}, rank {rank} {said:?}",
                        &heard[1..]
                    )));
                }
                let block = Block { start: GlobalAddress(heard[0]), rank: *owner, size: size_of(*owner) };
                if heard[0] == 0 {
                    missing = Some(block);
                } else if world.rank_of(block.start) != Some(*owner) {
                    return Err(Error::broken(format!("{} is not where rank {owner} has a block", block.start)));
                }
                blocks.push(block);
            }
        }
        // The next words must not come before all ranks have read these.
        world.sync()?;
        if let Some(block) = missing {
            return Err(Error::refused(format!("rank {} has no memory for {} B", block.rank, block.size)));
        }
        next.0 = end;
        Ok(Workspace { world, size, block, blocks, own: ManuallyDrop::new(mine) })
    }
}

impl<'w> Workspace<'w> {
    /// Its bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The bytes of its blocks, the last one of which may have less.
    pub fn block_size(&self) -> usize {
        self.block
    }

    /// Its blocks, in order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Copies `size` bytes from `offset` of the workspace to `to`, and waits: a round trip, however many blocks they
    /// are in.
    ///
    /// # Errors
    /// Refused: they are not inside, or `to` cannot be. Else the job is broken.
    pub fn read(&self, to: GlobalAddress, size: usize, offset: usize) -> Result<()> {
        self.parts(size, offset, |block, done| (to.add(done), block))
    }

    /// Copies `size` bytes from `from` to `offset` of the workspace, and waits; as [`read`](Workspace::read).
    ///
    /// # Errors
    /// Those of [`read`](Workspace::read).
    pub fn write(&self, from: GlobalAddress, size: usize, offset: usize) -> Result<()> {
        self.parts(size, offset, |block, done| (block, from.add(done)))
    }

    fn parts(
        &self,
        size: usize,
        offset: usize,
        ends: impl Fn(GlobalAddress, u64) -> (GlobalAddress, GlobalAddress),
    ) -> Result<()> {
        let end = offset.checked_add(size).filter(|end| *end <= self.size).ok_or_else(|| {
            Error::refused(format!("{size} B from {offset} on are outside of a workspace of {} B", self.size))
        })?;
        let mut batch = self.world.batch();
        let mut at = offset;
        while at < end {
            let block = &self.blocks[at / self.block];
            let within = at % self.block;
            let len = (block.size - within).min(end - at);
            let (to, from) = ends(block.start.add(within as u64), (at - offset) as u64);
            batch.copy(to, from, len, Order::Now)?;
            at += len;
        }
        batch.wait()
    }

    /// Destroys the workspace: all ranks call it, and it returns once all have. A barrier.
    ///
    /// # Errors
    /// The job is broken.
    pub fn destroy(mut self) -> Result<()> {
        self.world.complete_all()?;
        self.world.sync()?;
        drop(self.own.take());
        Ok(())
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        // Other ranks may still use it.
        if let Some(own) = self.own.take() {
            own.leave();
        }
    }
}
