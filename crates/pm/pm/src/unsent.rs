//! Requests in an image that were in progress when it was written: messages that were not with their nodes, and writes
//! and reads that were not over. All of it begins anew when sending goes on, before anything else is sent.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::error::Error;
use crate::image::{SavedCopy, SavedMessage};
use crate::locks::AddrHandle;
use crate::rdma::Direction;

/// Each in the order in which it was sent, or begun. The nodes are those to which they go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unsent {
    pub messages: Vec<SavedMessage>,
    pub copies: Vec<SavedCopy>,
}

impl Unsent {
    /// None if it is empty, since each call that sends looks at it.
    pub fn some(self) -> Option<Box<Unsent>> {
        (!self.is_empty()).then(|| Box::new(self))
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.copies.is_empty()
    }

    pub fn has(&self, direction: Direction) -> bool {
        self.copies.iter().any(|copy| copy.direction == direction)
    }
}

impl Engine {
    /// Returns true if there is something that may begin.
    pub fn begins(&self) -> bool {
        self.rest.unsent.is_some() && (!self.rest.is_stopped || self.discarding)
    }

    /// Begins as many of them as there is room for; returns true if none is left.
    #[cold]
    pub fn begin_unsent(&mut self) -> bool {
        if !self.begins() {
            return self.rest.unsent.is_none();
        }
        let Some(unsent) = self.rest.unsent.take() else { return true };
        let mut left = Unsent::default();
        // Messages to one node keep their order.
        let mut full = HashSet::new();
        for message in unsent.messages {
            if full.contains(&message.node) || !self.begin_message(&message) {
                full.insert(message.node);
                left.messages.push(message);
            }
        }
        full.clear();
        for copy in unsent.copies {
            if full.contains(&copy.node) || !self.begin_saved_copy(&copy) {
                full.insert(copy.node);
                left.copies.push(copy);
            }
        }
        self.rest.unsent = left.some();
        self.rest.unsent.is_none()
    }

    /// Returns true if it has begun, or never will: its node is lost.
    fn begin_message(&mut self, message: &SavedMessage) -> bool {
        if self.lost.contains_key(&message.node) || self.failure.is_some() {
            return true;
        }
        if self.free.is_empty() {
            self.look_for_completions();
        }
        let Some(link) = self.connection_with_room(message.node) else { return false };
        let Some(slot) = self.free.pop() else { return false };
        self.mesh.hold(link);
        self.buffers.write(slot as usize * self.mtu, &message.bytes);
        if let Err(error) = self.post_taken(slot, message.bytes.len() as u32, message.node, link) {
            self.fail(error);
        }
        true
    }

    /// As for a message. A request that is refused at once is reported as if the device had refused it.
    fn begin_saved_copy(&mut self, copy: &SavedCopy) -> bool {
        if self.failure.is_some() {
            return true;
        }
        let (remote, local) = (AddrHandle(copy.remote), AddrHandle(copy.local));
        let begun = self
            .check_node(copy.node)
            .and_then(|()| self.begin_copy(copy.direction, copy.node, remote, local, copy.len as usize));
        match begun {
            Err(error) if error.is_temporary() => false,
            Err(error) => {
                self.rdma.add_fault(copy.direction, error);
                true
            }
            Ok(()) => true,
        }
    }

    /// Reports a write or a read to memory that its node has not locked, as if the device had refused it.
    pub fn refuse_copy(&mut self, copy: &SavedCopy) {
        let what = if copy.direction == Direction::Write { "a write to" } else { "a read from" };
        let sentence = format!("{what} node {} failed: the memory is not locked there", copy.node);
        self.rdma.add_fault(copy.direction, Error::new(libc::EFAULT, sentence));
    }
}
