//! Batches: accesses that a library above issues together and waits for together, through registered memory of this
//! library's own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::address::GlobalAddress;
use crate::error::Result;
use crate::handle::{Handle, Order};
use crate::memory::{self, Pages};
use crate::op::Atomic;
use crate::world::World;

/// Bytes of a block. Most batches need a single one.
const BLOCK: usize = 4 << 10;
/// Blocks that are registered together, since a rank of the largest job has few registrations.
const TOGETHER: usize = 16;
/// The number of longer blocks that are kept for later batches.
const KEPT: usize = 4;

/// Registered memory that one batch has at a time.
struct Block {
    address: GlobalAddress,
    /// Address of the block, and the whole mapping if it is the only block there.
    start: *mut u8,
    len: usize,
    pages: Option<Pages>,
}

// SAFETY: the pointer is to memory that devices and copies access, never references; one batch has it at a time.
unsafe impl Send for Block {}
// SAFETY: as above; a shared batch only reads.
unsafe impl Sync for Block {}

/// The blocks that no batch uses.
#[derive(Default)]
pub(crate) struct Staging {
    blocks: Mutex<Free>,
    round_trips: AtomicU64,
}

#[derive(Default)]
struct Free {
    short: Vec<Block>,
    long: Vec<Block>,
    /// The mappings of short blocks, and those that libraries above have left: kept until the registrations are gone.
    pages: Vec<Pages>,
}

impl Staging {
    /// Keeps pages until the registrations are gone.
    pub fn keep(&self, pages: Pages) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).pages.push(pages);
    }

    /// Leaves all blocks mapped for ever, since the device may still access them.
    pub fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.blocks));
    }

    /// The number of times that batches have waited for accesses to other ranks.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    fn take(&self, world: &World, len: usize) -> Result<Block> {
        let mut free = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if len <= BLOCK {
            if let Some(block) = free.short.pop() {
                return Ok(block);
            }
            let (first, pages) = map(world, BLOCK * TOGETHER)?;
            for i in (0..TOGETHER).rev() {
                let (address, start) = (first.address.add((i * BLOCK) as u64), first.start.wrapping_add(i * BLOCK));
                free.short.push(Block { address, start, len: BLOCK, pages: None });
            }
            free.pages.push(pages);
            return Ok(free.short.pop().expect("just made"));
        }
        if let Some(at) = free.long.iter().position(|block| block.len >= len) {
            return Ok(free.long.swap_remove(at));
        }
        drop(free);
        let (block, pages) = map(world, len.next_power_of_two())?;
        Ok(Block { pages: Some(pages), ..block })
    }

    fn give(&self, world: &World, block: Block) {
        let mut free = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if block.len == BLOCK {
            return free.short.push(block);
        }
        free.long.push(block);
        if free.long.len() > KEPT {
            let Some(at) = (0..free.long.len()).max_by_key(|i| free.long[*i].len) else { return };
            let mut longest = free.long.swap_remove(at);
            drop(free);
            if world.unregister(crate::Key(longest.address.0)).is_err() {
                // The device may still access it.
                std::mem::forget(longest.pages.take());
            }
        }
    }
}

/// Maps and registers memory for one or several blocks.
fn map(world: &World, len: usize) -> Result<(Block, Pages)> {
    let pages = Pages::new(len)?;
    // SAFETY: the pages stay until they are unregistered, or all registrations are gone.
    match unsafe { world.register_foreign(pages.start(), len, 0) } {
        Ok(key) => Ok((Block { address: GlobalAddress(key.0), start: pages.start().cast(), len, pages: None }, pages)),
        Err(error) => {
            pages.unregistered(&error);
            Err(error)
        }
    }
}

/// The place of an access's bytes in a [`Batch`]: the block, and the offset and length in it.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    block: usize,
    offset: usize,
    len: usize,
}

impl Place {
    /// Its length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The part of it that begins at `offset`.
    ///
    /// # Panics
    /// The part does not lie inside the place.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        assert!(offset <= self.len && len <= self.len - offset, "a part of the place");
        Self { offset: self.offset + offset, len, ..self }
    }
}

/// Accesses that are issued together and waited for together: one round trip, if any of them goes to another rank. The
/// bytes that they read and write on this side lie in memory of the batch's own.
pub struct Batch<'w> {
    world: &'w World,
    blocks: Vec<Block>,
    used: usize,
    last: Option<Handle>,
    /// True: an access that has not been waited for goes to another rank.
    is_far: bool,
}

impl<'w> Batch<'w> {
    /// A batch without accesses, of a rank's `world`.
    pub(crate) fn new(world: &'w World) -> Self {
        Self { world, blocks: vec![], used: 0, last: None, is_far: false }
    }

    /// Room for `len` bytes, 8-aligned, for [copies](Batch::copy) that name its [address](Batch::address). Its contents
    /// are not specified.
    ///
    /// # Errors
    /// There is no memory, or no place for another region.
    pub fn room(&mut self, len: usize) -> Result<Place> {
        self.place(len)
    }

    fn place(&mut self, len: usize) -> Result<Place> {
        let offset = self.used.next_multiple_of(8);
        if self.blocks.last().is_none_or(|block| len > block.len.saturating_sub(offset)) {
            let block = self.world.staging().take(self.world, len.max(1))?;
            self.blocks.push(block);
            self.used = len;
            return Ok(Place { block: self.blocks.len() - 1, offset: 0, len });
        }
        self.used = offset + len;
        Ok(Place { block: self.blocks.len() - 1, offset, len })
    }

    /// Waits as [`clear`](Batch::clear), and gets room for `len` bytes of later accesses, each rounded up to 8.
    /// Accesses up to this number of bytes, between two calls of [`clear`](Batch::clear), are not refused for lack of
    /// memory.
    ///
    /// # Errors
    /// As of [`room`](Batch::room), or the job is broken.
    pub fn reserve(&mut self, len: usize) -> Result<()> {
        self.clear()?;
        self.place(len)?;
        self.clear()
    }

    /// The global address of a place, valid until [`clear`](Batch::clear). Bytes that were read there can be copied on
    /// from it directly.
    ///
    /// # Panics
    /// The place is of another batch.
    pub fn address(&self, place: Place) -> GlobalAddress {
        self.blocks[place.block].address.add(place.offset as u64)
    }

    fn pointer(&self, place: Place) -> *mut u8 {
        let block = &self.blocks[place.block];
        assert!(place.offset <= block.len && place.len <= block.len - place.offset, "a place of this batch");
        block.start.wrapping_add(place.offset)
    }

    fn issued(&mut self, handle: Handle, ends: [GlobalAddress; 2]) {
        self.last = Some(handle);
        self.is_far |= ends.iter().any(|end| self.world.rank_of(*end) != Some(self.world.rank()));
    }

    /// Reads `len` bytes. They are at the place after [`wait`](Batch::wait).
    ///
    /// # Errors
    /// As [`World::copy`].
    pub fn get(&mut self, from: GlobalAddress, len: usize, order: Order) -> Result<Place> {
        let place = self.place(len)?;
        let handle = self.world.copy(self.address(place), from, len, order)?;
        self.issued(handle, [from; 2]);
        Ok(place)
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// As [`World::copy`].
    pub fn put(&mut self, to: GlobalAddress, bytes: &[u8], order: Order) -> Result<()> {
        let place = self.place(bytes.len())?;
        // SAFETY: inside the block, which is mapped; peers do not know it, and no reference leads there.
        unsafe { memory::copy(bytes.as_ptr(), self.pointer(place), bytes.len()) };
        let handle = self.world.copy(to, self.address(place), bytes.len(), order)?;
        self.issued(handle, [to; 2]);
        Ok(())
    }

    /// Writes words.
    ///
    /// # Errors
    /// As [`World::copy`].
    pub fn put_words(&mut self, to: GlobalAddress, words: &[u64], order: Order) -> Result<()> {
        self.put(to, bytemuck::cast_slice(words), order)
    }

    /// Copies `len` bytes between any two ranks, without the batch's own memory.
    ///
    /// # Errors
    /// As [`World::copy`].
    pub fn copy(&mut self, dst: GlobalAddress, src: GlobalAddress, len: usize, order: Order) -> Result<()> {
        let handle = self.world.copy(dst, src, len, order)?;
        self.issued(handle, [dst, src]);
        Ok(())
    }

    /// Carries out an atomic on a word. The word's earlier value is at the place after [`wait`](Batch::wait).
    ///
    /// # Errors
    /// As [`World::atomic`].
    pub fn atomic(&mut self, word: GlobalAddress, what: Atomic, order: Order) -> Result<Place> {
        let place = self.place(what.width())?;
        let handle = self.world.atomic(self.address(place), word, what, order)?;
        self.issued(handle, [word; 2]);
        Ok(place)
    }

    /// A word that `issue` stores an answer to.
    pub(crate) fn answer(&mut self, issue: impl FnOnce(GlobalAddress) -> Result<Handle>) -> Result<Place> {
        let place = self.place(size_of::<u64>())?;
        self.last = Some(issue(self.address(place))?);
        self.is_far = true;
        Ok(place)
    }

    /// Waits for all accesses: one round trip.
    ///
    /// # Errors
    /// The job is broken.
    pub fn wait(&mut self) -> Result<()> {
        if let Some(last) = self.last.take() {
            if std::mem::take(&mut self.is_far) {
                self.world.staging().round_trips.fetch_add(1, Ordering::Relaxed);
            }
            self.world.complete(last)?;
        }
        Ok(())
    }

    /// The word with this index at a place, once the access was waited for.
    ///
    /// # Panics
    /// The place ends before the word.
    pub fn word(&self, place: Place, index: usize) -> u64 {
        let mut bytes = [0; 8];
        self.read(place.part(index * 8, 8), &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Copies the bytes at a place, once the access was waited for.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn read(&self, place: Place, to: &mut [u8]) {
        assert_eq!(place.len, to.len(), "a place of this length");
        // SAFETY: inside the block, which is mapped; the bytes are the caller's alone.
        unsafe { memory::copy(self.pointer(place), to.as_mut_ptr(), to.len()) };
    }

    /// The bytes at a place, once the access was waited for.
    pub fn bytes(&self, place: Place) -> Vec<u8> {
        let mut bytes = vec![0; place.len];
        self.read(place, &mut bytes);
        bytes
    }

    /// Waits for all accesses and frees all room: the contents of earlier places are lost.
    ///
    /// # Errors
    /// The job is broken.
    pub fn clear(&mut self) -> Result<()> {
        self.wait()?;
        while self.blocks.len() > 1 {
            let block = self.blocks.remove(0);
            self.world.staging().give(self.world, block);
        }
        self.used = 0;
        Ok(())
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // No access may store to the blocks any more; in a broken job they are not used again.
        if self.wait().is_ok() {
            for block in self.blocks.drain(..) {
                self.world.staging().give(self.world, block);
            }
        } else {
            self.blocks.drain(..).for_each(std::mem::forget);
        }
    }
}
