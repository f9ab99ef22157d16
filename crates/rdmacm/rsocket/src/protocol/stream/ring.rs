//! Bytes of a buffer that are used one behind the other, and begin anew at its end.

use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    size: u32,
    at: u32,
}

impl Ring {
    pub fn new(size: u32) -> Ring {
        Ring { size, at: 0 }
    }

    /// The parts of the next `length` bytes.
    pub fn parts(&self, length: u32) -> [Range<u32>; 2] {
        let first = length.min(self.size - self.at);
        [self.at..self.at + first, 0..length - first]
    }

    pub fn advance(&mut self, length: u32) {
        self.at += length;
        if self.at >= self.size {
            self.at -= self.size;
        }
    }
}

/// A ring to send from.
#[derive(Debug)]
pub(super) struct SendRing {
    ring: Ring,
    used: u32,
}

impl SendRing {
    pub fn new(size: u32) -> SendRing {
        SendRing { ring: Ring::new(size), used: 0 }
    }

    pub fn size(&self) -> u32 {
        self.ring.size
    }

    pub fn free(&self) -> u32 {
        self.ring.size - self.used
    }

    /// Takes the next `length` bytes, which are free.
    pub fn take(&mut self, length: u32) -> [Range<u32>; 2] {
        let parts = self.ring.parts(length);
        self.ring.advance(length);
        self.used += length;
        parts
    }

    /// Frees the `length` bytes that were taken first.
    pub fn release(&mut self, length: u32) {
        self.used = self.used.saturating_sub(length);
    }
}
