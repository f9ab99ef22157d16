//! The sources of bytes that a program puts into a container, and the places of those that are in it.

use vervain_acp::{Batch, Error, GlobalAddress, Order, Result, World};
use vervain_acp_heap::Heap;

/// The most bytes that pass through this rank's memory at a time; and of slices, that are put at a time.
pub(crate) const CHUNK: usize = 256 << 10;
/// More bytes than a region has: what a container says to have beyond this is a mistake.
pub(crate) const MAX_BYTES: usize = 1 << 47;

/// Consecutive bytes of global memory.
pub(crate) type Span = (GlobalAddress, usize);

/// Bytes somewhere in global memory (`acp_element_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// The first one.
    pub address: GlobalAddress,
    /// Their number.
    pub size: usize,
}

/// Bytes to be put into a container.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// They lie at a global address, of any rank: they go from there straight to their place.
    At(GlobalAddress, usize),
    /// They are this process's.
    Here(&'a [u8]),
}

impl Source<'_> {
    /// Their number.
    pub fn len(&self) -> usize {
        match self {
            Self::At(_, len) => *len,
            Self::Here(bytes) => bytes.len(),
        }
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that they can be read, as far as this rank knows, so that nothing is refused in the midst of a change.
    pub(crate) fn check(&self, world: &World) -> Result<()> {
        match *self {
            Self::At(address, len) if len > 0 => check(world, address, len),
            _ => Ok(()),
        }
    }

    /// Copies them to `to`.
    pub(crate) fn copy_to(&self, batch: &mut Batch<'_>, to: GlobalAddress, order: Order) -> Result<()> {
        match *self {
            Self::At(address, len) => batch.copy(to, address, len, order),
            Self::Here(bytes) => put(batch, to, bytes, order),
        }
    }
}

/// Checks that `len` bytes at `address` can be accessed, as far as this rank knows: for others' memory it knows only
/// that there is such a rank.
pub(crate) fn check(world: &World, address: GlobalAddress, len: usize) -> Result<()> {
    let Some(rank) = world.rank_of(address) else {
        return Err(Error::refused(format!("{address} is the global address of no rank")));
    };
    if len > MAX_BYTES {
        return Err(Error::refused(format!("{len} bytes are more than a region has")));
    }
    if rank == world.rank() {
        // The end has an address too, and in another region another distance.
        let ends = [address, address.add(len as u64)].map(|end| world.address(end).map(|end| end.addr()));
        if !matches!(ends, [Some(start), Some(end)] if end.checked_sub(start) == Some(len)) {
            return Err(Error::refused(format!("{len} bytes at {address} are outside of their region")));
        }
    }
    Ok(())
}

/// Puts bytes of this process's, a part at a time where they are many: places of the batch from before are lost then.
pub(crate) fn put(batch: &mut Batch<'_>, to: GlobalAddress, bytes: &[u8], order: Order) -> Result<()> {
    for (i, part) in bytes.chunks(CHUNK).enumerate() {
        if i > 0 {
            batch.clear()?;
        }
        batch.put(to.add((i * CHUNK) as u64), part, order)?;
    }
    Ok(())
}

/// Waits for what is done with a new block, and frees it where that was refused, so that nothing of it is left.
pub(crate) fn or_free(heap: &Heap<'_>, batch: &mut Batch<'_>, block: GlobalAddress, done: Result<()>) -> Result<()> {
    let done = done.and_then(|()| batch.wait());
    if done.as_ref().is_err_and(Error::is_refused) {
        // Bytes that are on their way there must not reach the next owner of the block.
        batch.wait()?;
        heap.free(block)?;
    }
    done
}

/// Copies what lies at `from` to `to`, as far as the shorter of them goes.
pub(crate) fn copy_spans(batch: &mut Batch<'_>, to: &[Span], from: &[Span], order: Order) -> Result<()> {
    let (mut to, mut from) = (to.iter().copied(), from.iter().copied());
    let none = (GlobalAddress::NULL, 0);
    let (mut dst, mut src) = (none, none);
    loop {
        while dst.1 == 0 {
            let Some(span) = to.next() else { return Ok(()) };
            dst = span;
        }
        while src.1 == 0 {
            let Some(span) = from.next() else { return Ok(()) };
            src = span;
        }
        let len = dst.1.min(src.1);
        batch.copy(dst.0, src.0, len, order)?;
        dst = (dst.0.add(len as u64), dst.1 - len);
        src = (src.0.add(len as u64), src.1 - len);
    }
}
