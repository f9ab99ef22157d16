//! Requests in an image that were in progress when it was written: messages that were not with their nodes, and writes
//! and reads that were not over. All of it begins anew when sending goes on, before anything else is sent.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::image::{SavedCopy, SavedMessage};
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

    /// Begins as many as there is room for, and returns those that are left.
    #[cold]
    pub fn begin(self, engine: &mut Engine) -> Unsent {
        let mut left = Unsent::default();
        // Messages to one node keep their order.
        let mut full = HashSet::new();
        for message in self.messages {
            if full.contains(&message.node) || !engine.begin_message(&message) {
                full.insert(message.node);
                left.messages.push(message);
            }
        }
        full.clear();
        for copy in self.copies {
            if full.contains(&copy.node) || !engine.begin_saved_copy(&copy) {
                full.insert(copy.node);
                left.copies.push(copy);
            }
        }
        left
    }
}
