//! Deques: bytes that are added and taken at both ends.

use std::ops::Range;

use vervain_acp::{Batch, Error, GlobalAddress, Result};
use vervain_acp_heap::Heap;

use crate::ring::{Kind, Ring, sequence};
use crate::source::{Element, Source};

/// A deque of bytes in global memory (`acp_deque_t`): the address of its header, in the heap of the rank that it was
/// made on, where its bytes are too. Any rank works on it by that; several at a time may read it, or one may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Deque {
    address: GlobalAddress,
}

sequence!(Deque, Kind::Deque);

impl Deque {
    /// Makes one without bytes, and with room for `capacity`, in the heap of `rank`. One round trip, besides two
    /// allocations.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): there is no such rank, or no memory left there. Else the job is broken.
    pub fn create(heap: &Heap<'_>, capacity: usize, rank: u32) -> Result<Self> {
        Ok(Self { address: Ring::create(heap, Kind::Deque, 0, capacity, rank)? })
    }

    /// Adds bytes at the front, which keep their order. Round trips as of [`push_back`](Self::push_back).
    ///
    /// # Errors
    /// Those of [`push_back`](Self::push_back).
    pub fn push_front(self, heap: &Heap<'_>, source: Source<'_>) -> Result<()> {
        self.insert(heap, 0, source)
    }

    /// Erases up to `count` bytes at the front, as many as there are. Two round trips.
    ///
    /// # Errors
    /// As of [`destroy`](Self::destroy).
    pub fn pop_front(self, heap: &Heap<'_>, count: usize) -> Result<()> {
        self.erase(heap, 0..count)
    }

    /// The address of the byte at `index`, until the deque is changed. One round trip.
    ///
    /// # Errors
    /// As of [`destroy`](Self::destroy); refused also if there is none at this index.
    pub fn at(self, heap: &Heap<'_>, index: usize) -> Result<GlobalAddress> {
        Ok(self.extents(heap, index, 1)?[0].address)
    }

    /// The places of up to `count` bytes from `index` on, as many as there are, until the deque is changed: two parts
    /// if they pass the end of the block; else the second one is null and of size 0. One round trip.
    ///
    /// # Errors
    /// As of [`at`](Self::at).
    pub fn extents(self, heap: &Heap<'_>, index: usize, count: usize) -> Result<[Element; 2]> {
        let ring = self.ring(&mut heap.world().batch(), heap)?;
        if index >= ring.size {
            return Err(Error::refused(format!("there is no byte {index} in a deque of {}", ring.size)));
        }
        let spans = ring.spans(index..index.saturating_add(count).min(ring.size))?;
        Ok(spans.map(|(address, size)| Element { address, size }))
    }
}
