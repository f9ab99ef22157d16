//! Memory of a QP as the source of a put, and of a peer as that of a copy.

use vervain_carrier::{AsPieces, Foreign, append};
use vervain_hca::mr::transfer::{self, Direction, Pieces};
use vervain_window::{Faulted, Source};

/// Pieces that were checked against their keys, in a mark that does not end before the put.
pub struct PiecesSource<'a> {
    pieces: &'a Pieces,
    ends: bool,
}

impl<'a> PiecesSource<'a> {
    /// `ends`: the last of the bytes end a message, and are seen after all others.
    pub fn new(pieces: &'a Pieces, ends: bool) -> Self {
        PiecesSource { pieces, ends }
    }
}

// SAFETY: the length of pieces is the sum of theirs, and as many bytes are copied.
unsafe impl Source for PiecesSource<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.pieces.len() as usize
    }

    #[inline]
    unsafe fn store_to(&self, to: *mut u8) -> Result<(), Faulted> {
        // SAFETY: the caller has room for so many bytes there; the pieces were checked.
        unsafe { transfer::copy_direct(Direction::Write, to, self.pieces, self.ends) }
            .map_err(|_| Faulted { address: 0 })
    }

    unsafe fn store_part_to(&self, from: usize, len: usize, to: *mut u8) -> Result<(), Faulted> {
        let ends = self.ends && from + len == self.pieces.len() as usize;
        let mut part = Pieces::new();
        self.pieces.slice_into(from as u64, len as u64, &mut part);
        // SAFETY: as above.
        unsafe { PiecesSource::new(&part, ends).store_to(to) }
    }

    fn pieces(&self, each: &mut dyn FnMut(*const u8, usize)) -> bool {
        self.pieces.iter().for_each(|(address, len)| each(address, len));
        !self.pieces.has_null()
    }
}

/// Copies a payload, once, out of memory that its sender may change; false where that is gone.
pub fn copy_out(payload: &Foreign, to: &mut Vec<u8>) -> bool {
    let mut pieces = Pieces::new();
    payload.add_to(&mut pieces);
    to.clear();
    append(&pieces, to).is_ok()
}
