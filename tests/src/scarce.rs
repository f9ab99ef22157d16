//! Ranks that have run out of something, and how much they have left.

use vervain_acp::{Error, Region, Result, World};
use vervain_acp_heap::Heap;

/// Bytes that a rank's heap has left: allocates all, in blocks that never have a segment of their own, and frees them. The heap is as large as
/// it may be then, so the number is the same each time unless something was allocated or freed.
///
/// # Errors
/// The job is broken.
pub fn free_bytes(heap: &Heap<'_>, rank: u32) -> Result<usize> {
    let mut blocks = vec![];
    let mut bytes = 0;
    for size in [8192, 512, 16] {
        while let Some(block) = heap.allocate(size, rank)? {
            blocks.push(block);
            bytes += size;
        }
    }
    blocks.into_iter().try_for_each(|block| heap.free(block))?;
    Ok(bytes)
}

/// Takes all memory of a rank's heap; None is left. What it returns is to be freed.
///
/// # Errors
/// The job is broken.
pub fn exhausted(heap: &Heap<'_>, rank: u32) -> Result<Vec<vervain_acp::GlobalAddress>> {
    let mut blocks = vec![];
    for size in [16 << 10, 512, 48, 16] {
        while let Some(block) = heap.allocate(size, rank)? {
            blocks.push(block);
        }
    }
    Ok(blocks)
}

/// Takes all places for regions that this rank has, so that what needs one more is refused, until they are dropped: accesses of more
/// bytes at a time than the library has registered.
///
/// # Errors
/// The job is broken.
pub fn no_regions(world: &World) -> Result<Vec<Region<'_>>> {
    let mut regions = vec![];
    loop {
        match world.region(8, 0) {
            Ok(region) => regions.push(region),
            Err(error) if error.is_refused() => return Ok(regions),
            Err(error) => return Err(error),
        }
    }
}

/// The sentence unless it was refused.
///
/// # Errors
/// It was not.
pub fn must_be_refused<T>(what: &str, result: Result<T>) -> Result<()> {
    match result {
        Err(error) if error.is_refused() => Ok(()),
        Err(error) => Err(Error::broken(format!("{what}: {error}"))),
        Ok(_) => Err(Error::broken(format!("{what} was not refused"))),
    }
}
