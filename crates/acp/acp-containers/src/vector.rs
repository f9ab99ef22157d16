//! Vectors: bytes that lie one behind the other.

use std::ops::Range;

use vervain_acp::{Batch, Error, GlobalAddress, Result};
use vervain_acp_heap::Heap;

use crate::ring::{Kind, Ring, sequence};
use crate::source::Source;

/// A vector of bytes in global memory (`acp_vector_t`): the address of its header, in the heap of the rank that it was
/// made on, where its bytes are too. Any rank works on it by that; several at a time may read it, or one may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vector {
    address: GlobalAddress,
}

sequence!(Vector, Kind::Vector);

impl Vector {
    /// Makes one of `size` bytes, which are anything, in the heap of `rank`. One round trip, besides two allocations.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): there is no such rank, or no memory left there. Else the job is broken.
    pub fn create(heap: &Heap<'_>, size: usize, rank: u32) -> Result<Self> {
        Ok(Self { address: Ring::create(heap, Kind::Vector, size, size, rank)? })
    }

    /// The address of the byte at `index`, behind which those up to the end lie, until the vector is changed. One round
    /// trip.
    ///
    /// # Errors
    /// As of [`destroy`](Self::destroy); refused also if there is none at this index.
    pub fn at(self, heap: &Heap<'_>, index: usize) -> Result<GlobalAddress> {
        let ring = self.ring(&mut heap.world().batch(), heap)?;
        if index >= ring.size {
            return Err(Error::refused(format!("there is no byte {index} in a vector of {}", ring.size)));
        }
        Ok(ring.spans(index..index + 1)?[0].0)
    }
}
