//! The free requests of the send queue: those for data, and [`CONTROLS`] for what is no data.

use super::{CONTROLS, Sizes, Tag};
use crate::protocol::wire::SGE_BYTES;

#[derive(Debug)]
pub(super) struct Requests {
    /// Requests for data, free or not.
    most: u16,
    /// Requests that one message takes.
    per_message: u16,
    free: u16,
    free_controls: u16,
    /// Places in the send memory of entries that were written.
    places_used: u32,
}

impl Requests {
    pub fn new(sizes: &Sizes) -> Requests {
        let most = sizes.send_requests - CONTROLS;
        let per_message = if sizes.separate { 2 } else { 1 };
        Requests { most, per_message, free: most, free_controls: CONTROLS, places_used: 0 }
    }

    /// Returns true if there are enough for a message with data.
    pub fn have_room(&self) -> bool {
        self.free >= self.per_message
    }

    /// Takes those of a Write, which is a message or not.
    pub fn take(&mut self, is_message: bool) {
        self.free -= if is_message { self.per_message } else { 1 };
    }

    /// Takes one of the control requests; false if there is none.
    pub fn take_control(&mut self) -> bool {
        self.take_controls(1)
    }

    /// Takes the control requests of a message with an entry of the peer's target SGL; false if there are too few.
    pub fn take_entry(&mut self) -> bool {
        self.take_controls(self.per_message)
    }

    fn take_controls(&mut self, count: u16) -> bool {
        let left = self.free_controls.checked_sub(count);
        self.free_controls = left.unwrap_or(self.free_controls);
        left.is_some()
    }

    /// The place of the next entry that is written, in bytes behind the send ring.
    pub fn entry_place(&mut self) -> u32 {
        let place = self.places_used % u32::from(CONTROLS) * SGE_BYTES as u32;
        self.places_used = self.places_used.wrapping_add(1);
        place
    }

    /// One has been completed.
    pub fn completed(&mut self, tag: Tag) {
        match tag {
            Tag::Data(_) => self.free = (self.free + 1).min(self.most),
            Tag::Control | Tag::Disconnect => self.free_controls = (self.free_controls + 1).min(CONTROLS),
        }
    }

    /// Returns true if all are completed.
    pub fn are_done(&self) -> bool {
        self.free == self.most && self.free_controls == CONTROLS
    }
}
