//! The receive buffer: the data in it, and the room and the credit that the peer has.

use std::collections::VecDeque;
use std::ops::Range;

use super::ring::Ring;
use super::{Sizes, Violation};

#[derive(Debug)]
pub(super) struct Incoming {
    buffer: Ring,
    /// Bytes of half of the buffer.
    half: u32,
    credits: u16,
    /// Lengths of messages that were not read to their end. Never more than credits.
    messages: VecDeque<u32>,
    unread: u32,
    /// Bytes that the peer has room for.
    offered: u32,
    /// Bytes that were read since a half was last offered.
    read: u32,
    /// The place of the half that is offered next.
    next_half: u32,
    /// Messages that were read, and the count at which credit is granted anew; modulo 2^16.
    received: u16,
    next_grant: u16,
}

impl Incoming {
    pub fn new(sizes: &Sizes) -> Incoming {
        let half = sizes.receive_bytes / 2;
        Incoming {
            buffer: Ring::new(sizes.receive_bytes),
            half,
            credits: sizes.credits,
            messages: VecDeque::new(),
            unread: 0,
            offered: half,
            // The second half was never offered.
            read: half,
            next_half: half,
            received: 0,
            next_grant: sizes.credits / 2,
        }
    }

    /// A message with data has come.
    pub fn arrived(&mut self, length: u32) -> Result<(), Violation> {
        if length == 0 {
            self.count_message();
            return Ok(());
        }
        self.offered = self.offered.checked_sub(length).ok_or(Violation::Bytes)?;
        if self.messages.len() >= usize::from(self.credits) {
            return Err(Violation::Messages);
        }
        self.messages.push_back(length);
        self.unread += length;
        Ok(())
    }

    /// Counts a message that took a credit and has nothing, or nothing more, to be read.
    pub fn count_message(&mut self) {
        self.received = self.received.wrapping_add(1);
    }

    /// Bytes that have come and were not read.
    pub fn unread(&self) -> u32 {
        self.unread
    }

    /// The places of the next bytes in the buffer, `length` of them at most.
    pub fn parts(&self, length: usize) -> [Range<u32>; 2] {
        self.buffer.parts(length.min(self.unread as usize) as u32)
    }

    /// They were read.
    pub fn consume(&mut self, length: usize) {
        let mut left = u32::try_from(length).expect("what is there");
        self.unread -= left;
        self.buffer.advance(left);
        self.read += left;
        while left > 0 {
            let message = self.messages.front_mut().expect("as many as unread");
            let part = left.min(*message);
            *message -= part;
            left -= part;
            if *message == 0 {
                self.messages.pop_front();
                self.count_message();
            }
        }
    }

    /// Returns true if a half of the buffer can be offered.
    pub fn has_offer(&self) -> bool {
        self.read >= self.half
    }

    /// Returns true if the peer is to have credit anew.
    pub fn is_grant_due(&self) -> bool {
        self.received.wrapping_sub(self.next_grant) as i16 >= 0
    }

    /// Grants credit: the count of messages up to which the peer has it.
    pub fn grant(&mut self) -> u16 {
        self.next_grant = self.received.wrapping_add(self.credits / 2);
        self.received.wrapping_add(self.credits)
    }

    /// Offers the half of the buffer that [`Incoming::has_offer`] found: its place and length.
    pub fn offer(&mut self) -> (u32, u32) {
        let at = self.next_half;
        self.read -= self.half;
        self.offered += self.half;
        self.next_half = if at == 0 { self.half } else { 0 };
        (at, self.half)
    }
}
