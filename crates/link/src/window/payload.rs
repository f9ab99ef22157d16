//! Memory of a QP as the source of a put.

use vervain_hca::mr::transfer::{self, Direction, Pieces};
use vervain_window::{Faulted, Source};

/// Pieces that were checked against their keys, in a mark that does not end before the put.
pub struct PiecesSource<'a>(&'a Pieces);

impl<'a> PiecesSource<'a> {
    pub fn new(pieces: &'a Pieces) -> Self {
        PiecesSource(pieces)
    }
}

// SAFETY: the length of pieces is the sum of theirs, and as many bytes are copied.
unsafe impl Source for PiecesSource<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.0.len() as usize
    }

    #[inline]
    unsafe fn store_to(&self, to: *mut u8) -> Result<(), Faulted> {
        // SAFETY: the caller has room for so many bytes there; the pieces were checked.
        unsafe { transfer::copy_direct(Direction::Write, to, self.0, false) }.map_err(|_| Faulted { address: 0 })
    }
}
