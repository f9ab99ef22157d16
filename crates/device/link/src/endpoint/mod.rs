//! The two ends of a connection whose messages go as packets, over whatever carries them: the hosts by which the requester and
//! the responder of `vervain-transport` act on a QP. A carrier adds where packets leave ([`PacketOut`]) and how they come.

pub mod counters;
pub mod requester;
pub mod responder;
pub mod saved;

use std::ops::Range;
use vervain_hca::Request;
use vervain_hca::mr::transfer::Pieces;
use vervain_transport::{Data, Refused};
use vervain_wire::Headers;

/// Payload of a packet that has come, as the device model takes it.
pub trait AsPieces: Data {
    /// Adds it to `pieces`, which are only read, and no longer than it is there.
    fn add_to(&self, pieces: &mut Pieces);
}

impl AsPieces for [u8] {
    #[inline(always)]
    fn add_to(&self, pieces: &mut Pieces) {
        pieces.push(self.as_ptr().cast_mut(), self.len() as u64);
    }
}

/// Payload in memory that its sender can still write to, such as a ring's: nobody may have a slice of it, and what is read twice
/// may differ.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    at: *const u8,
    len: usize,
    landed: bool,
}

impl Foreign {
    /// `len` bytes at `at`.
    ///
    /// # Safety
    /// They are memory of this process, and stay that as long as this value is used. What a page lacks is found by whoever
    /// reads it; that others write to it meanwhile does no harm.
    pub unsafe fn new(at: *const u8, len: usize) -> Foreign {
        Foreign { at, len, landed: false }
    }

    /// `len` bytes that are where they belong, and are not read.
    pub fn landed(len: usize) -> Foreign {
        Foreign { at: std::ptr::null(), len, landed: true }
    }
}

impl Data for Foreign {
    #[inline(always)]
    fn length(&self) -> usize {
        self.len
    }

    fn word(&self) -> Option<[u8; 8]> {
        let mut pieces = Pieces::new();
        self.add_to(&mut pieces);
        pieces.word().filter(|_| !self.landed)
    }

    #[inline(always)]
    fn has_landed(&self) -> bool {
        self.landed
    }
}

impl AsPieces for Foreign {
    #[inline(always)]
    fn add_to(&self, pieces: &mut Pieces) {
        if !self.landed {
            pieces.push(self.at.cast_mut(), self.len as u64);
        }
    }
}

/// Where the packets of one peer leave.
pub trait PacketOut {
    /// The payload of the packets that come from there.
    type Data: AsPieces + ?Sized;

    /// Whether it carries out requests by other means than packets, and so has its say at their beginning.
    const HAS_SHORTCUTS: bool = false;

    /// Whether `request` is not to begin while another is under way, because it is better carried out alone then.
    fn holds(&self, _request: &Request) -> bool {
        false
    }

    /// See [`vervain_transport::RequesterHost::landing`].
    fn landing(&self, _left: u32) -> u32 {
        1
    }

    /// See [`vervain_transport::ResponderHost::landing`].
    fn answer_landing(&self, _psn: u32, _left: u32) -> u32 {
        1
    }

    /// The next packet is a READ request: where in this process its answer belongs, and the key of that, if it is one piece.
    fn asks(&mut self, _destination: Option<(u32, Range<u64>)>) {}

    /// The next packet begins a message, or an answer to a READ, of `length` bytes.
    fn begins_message(&mut self, _length: u64) {}

    /// Whether another packet may be pushed now.
    fn has_room(&self) -> bool;

    /// Adds a packet; `from`, which is copied, is only read during this call.
    ///
    /// # Errors
    /// [`Refused::Memory`] where `from` is not there, [`Refused::Full`] where it is to be tried again later.
    fn push(&mut self, headers: &Headers, from: &Pieces) -> Result<(), Refused>;

    /// See [`vervain_transport::RequesterHost::is_taken`].
    fn is_taken(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{AsPieces, Foreign};
    use vervain_hca::mr::transfer::Pieces;
    use vervain_transport::Data;

    #[test]
    fn a_payload_is_the_same_whatever_it_lies_in() {
        let bytes: Vec<u8> = (0..9).collect();
        for len in [0, 7, 8, 9] {
            let slice = &bytes[..len];
            // SAFETY: the vector outlives it.
            let foreign = unsafe { Foreign::new(slice.as_ptr(), len) };
            let word = (len == 8).then_some([0, 1, 2, 3, 4, 5, 6, 7]);
            assert_eq!((slice.length(), slice.word()), (len, word));
            assert_eq!((foreign.length(), foreign.word()), (len, word));
            let pieces = |data: &dyn Fn(&mut Pieces)| {
                let mut pieces = Pieces::new();
                data(&mut pieces);
                pieces.iter().collect::<Vec<_>>()
            };
            let expected = if len == 0 { vec![] } else { vec![(bytes.as_ptr(), len)] };
            assert_eq!(pieces(&|to| slice.add_to(to)), expected);
            assert_eq!(pieces(&|to| foreign.add_to(to)), expected);
        }
    }
}
