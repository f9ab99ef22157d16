//! Buffers for copies between two other ranks.

use std::collections::VecDeque;

use vervain_rdma::Sge;

use crate::error::Result;
use crate::memory::{Domain, Mapped};

/// Bytes of a buffer, and the longest copy that goes through one: see docs/acp.md.
pub(crate) const BOUNCE: u64 = 128 << 10;
/// Number of buffers, and so of such copies at a time.
const BUFFERS: u16 = 16;

/// The buffers, and the operations that wait for one.
pub(super) struct Buffers {
    memory: Mapped,
    free: Vec<u16>,
    waiting: VecDeque<u32>,
}

impl Buffers {
    /// Bytes of all buffers.
    pub const BYTES: usize = BUFFERS as usize * BOUNCE as usize;

    pub fn new(domains: &[Domain<'_>]) -> Result<Self> {
        let memory = Mapped::new(domains, Self::BYTES)?;
        Ok(Self { memory, free: (0..BUFFERS).rev().collect(), waiting: VecDeque::new() })
    }

    /// Takes a buffer for operation `i`. None: the operation waits until [`give`](Buffers::give) returns it.
    pub fn take(&mut self, i: u32) -> Option<u16> {
        let buffer = self.free.pop();
        if buffer.is_none() {
            self.waiting.push_back(i);
        }
        buffer
    }

    /// Gives a buffer back. Returns the operation that has waited longest for one; it may start again.
    pub fn give(&mut self, buffer: u16) -> Option<u32> {
        self.free.push(buffer);
        self.waiting.pop_front()
    }

    /// The first `len` bytes of a buffer, for a request at `port`.
    #[inline]
    pub fn sge(&self, port: usize, buffer: u16, len: u64) -> Sge<'_> {
        let at = usize::from(buffer) * BOUNCE as usize;
        self.memory.sge(port, at..at + len as usize)
    }
}
