//! The two ends of a connection by packets, over any carrier: the requester and the responder of `vervain-transport`,
//! the hosts by which they act on a QP, and their configuration; and UD QPs. A carrier adds the way that packets leave
//! ([`PacketOut`]), and delivers those that come.

pub mod by_qp;
pub mod closed;
pub mod connection;
pub mod counters;
pub mod datagrams;
pub mod requester;
pub mod responder;
pub mod responder_end;
pub mod saved;
pub mod terms;

use std::ops::Range;
use vervain_hca::Request;
use vervain_hca::mr::transfer::{Direction, Fault, Pieces, copy_direct};
use vervain_transport::{Data, Refused};
use vervain_wire::Headers;

/// Payload of a received packet, as the device model takes it.
pub trait AsPieces: Data {
    /// Adds the payload to `pieces`, which are only read, and only while it exists.
    fn add_to(&self, pieces: &mut Pieces);
}

impl AsPieces for [u8] {
    #[inline(always)]
    fn add_to(&self, pieces: &mut Pieces) {
        pieces.push(self.as_ptr().cast_mut(), self.len() as u64);
    }
}

/// Adds a copy of `pieces`, which are read once, to `bytes`. Nothing is added if memory is missing.
///
/// # Errors
/// The side that lacks the memory.
pub fn append(pieces: &Pieces, bytes: &mut Vec<u8>) -> Result<(), Fault> {
    let begin = bytes.len();
    bytes.resize(begin + pieces.len() as usize, 0);
    // SAFETY: the vector has as many bytes; the pieces were checked against their keys, in a mark that has not ended.
    let copied = unsafe { copy_direct(Direction::Write, bytes[begin..].as_mut_ptr(), pieces, false) };
    copied.inspect_err(|_| bytes.truncate(begin))
}

/// Payload in memory that its sender can still write, such as a ring's. No slice of it may exist, and two reads of it
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
    /// They are memory of this process while this value is used. A page that is missing faults at its reader;
    /// concurrent writes by others do no harm.
    pub unsafe fn new(at: *const u8, len: usize) -> Foreign {
        Foreign { at, len, landed: false }
    }

    /// `len` bytes that are at their destination already, and are not read.
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

/// The way out for the packets to one peer.
pub trait PacketOut {
    /// Payload of the packets from that peer.
    type Data: AsPieces + ?Sized;

    /// True if it carries out requests by other means than packets, and so is consulted when they begin.
    const HAS_SHORTCUTS: bool = false;

    /// The requester is about to send what it can, and has nothing under way if it `is_idle`.
    fn goes_on(&mut self, _is_idle: bool) {}

    /// Returns true if as many packets have left as a call may send.
    fn is_spent(&self) -> bool {
        false
    }

    /// Returns true if `request` must not begin while another is under way, because it is better carried out alone.
    fn holds(&self, _request: &Request) -> bool {
        false
    }

    /// Packets to send as one, of the `left` that remain of the message in progress
    /// ([`vervain_transport::RequesterHost::landing`]).
    fn landing(&self, _left: u32) -> u32 {
        1
    }

    /// Packets to send as one, of the `left` that remain of the answer to a READ, from this PSN on
    /// ([`vervain_transport::ResponderHost::landing`]).
    fn answer_landing(&self, _psn: u32, _left: u32) -> u32 {
        1
    }

    /// Announces that the next packet is a READ request: destination of its answer in this process, and its key, if it
    /// is one piece.
    fn asks(&mut self, _destination: Option<(u32, Range<u64>)>) {}

    /// Announces that the next packet begins a message, or an answer to a READ, of `length` bytes.
    fn begins_message(&mut self, _length: u64) {}

    /// Returns true if another packet may be pushed now.
    fn has_room(&self) -> bool;

    /// Adds a packet; `from` is copied, and only read during this call.
    ///
    /// # Errors
    /// [`Refused::Memory`]: `from` cannot be read; [`Refused::Full`]: to be tried again later.
    fn push(&mut self, headers: &Headers, from: &Pieces) -> Result<(), Refused>;

    /// Returns true if the peer has taken all packets ([`vervain_transport::RequesterHost::is_taken`]).
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
