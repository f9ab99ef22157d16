//! A payload padded with zeros, for a device that puts only multiples of some bytes.

use crate::device::{Faulted, Source};

/// A source with zeros behind it.
pub(super) struct Padded<'a> {
    source: &'a dyn Source,
    len: usize,
}

impl<'a> Padded<'a> {
    /// Pads to the next multiple of `grain`.
    pub(super) fn new(source: &'a dyn Source, grain: usize) -> Padded<'a> {
        Padded { source, len: source.len().next_multiple_of(grain) }
    }
}

// SAFETY: the length is that of a source, rounded up, and as many bytes are written.
unsafe impl Source for Padded<'_> {
    fn len(&self) -> usize {
        self.len
    }

    unsafe fn store_to(&self, to: *mut u8) -> Result<(), Faulted> {
        // SAFETY: the caller has room for so many bytes.
        unsafe { self.store_part_to(0, self.len, to) }
    }

    unsafe fn store_part_to(&self, from: usize, len: usize, to: *mut u8) -> Result<(), Faulted> {
        let there = len.min(self.source.len().saturating_sub(from));
        // SAFETY: the caller has room for `len` bytes, of which `there` are the source's.
        unsafe {
            to.add(there).write_bytes(0, len - there);
            if there == self.source.len() {
                self.source.store_to(to)
            } else {
                self.source.store_part_to(from, there, to)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_stand_behind_what_is_there() {
        let bytes = &b"abcde"[..];
        let padded = Padded::new(&bytes, 4);
        let mut all = [9; 9];
        // SAFETY: nine bytes have room for eight.
        unsafe { padded.store_to(all.as_mut_ptr()) }.unwrap();
        assert_eq!((padded.len(), &all), (8, b"abcde\0\0\0\x09"));
        for (from, len, answer) in [(0, 4, &b"abcd"[..]), (4, 4, b"e\0\0\0"), (0, 5, b"abcde")] {
            let mut part = [9; 8];
            // SAFETY: as above.
            unsafe { padded.store_part_to(from, len, part.as_mut_ptr()) }.unwrap();
            assert_eq!((&part[..len], part[len]), (answer, 9));
        }
    }
}
