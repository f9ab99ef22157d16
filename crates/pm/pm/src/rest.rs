//! A context that stands still: nothing is sent any more, and what was sent is over. Meanwhile messages of others still
//! come, since theirs are to be over too; they are kept in memory of their own, for receives are for those who still
//! send.

use std::collections::HashMap;

use crate::error::Error;
use crate::rdma::Direction;
use crate::unsent::Unsent;

pub(crate) const STOPPED: Error = Error::plain(libc::ENOBUFS, "sending is stopped");

/// The kinds whose end is not reported to the program.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Withheld {
    pub writes: bool,
    pub reads: bool,
}

/// How a context stands still.
#[derive(Default)]
pub(crate) struct Rest {
    /// True while nothing is sent, written or read.
    pub is_stopped: bool,
    /// True while messages that come are kept, so that no sender waits for receives here.
    pub keeps: bool,
    /// Requests in progress of an image, until they have begun anew.
    pub unsent: Option<Box<Unsent>>,
    /// Writes, or reads, are in an image that was written since sending was stopped. Until it goes on the program is
    /// not told that they are over: after a restore they begin anew, so what it keeps of its memory must be as it was
    /// when they had not ended.
    pub withheld: Withheld,
    /// For memory that other nodes had locked when an image was made: its present key, by the node and the key in its
    /// handle.
    pub far_keys: HashMap<(u32, u32), u32>,
}

impl Rest {
    /// Returns true if the program is not to be told that these are over: they have not begun, or are in an image.
    pub fn withholds(&self, direction: Direction) -> bool {
        let is_withheld = match direction {
            Direction::Write => self.withheld.writes,
            Direction::Read => self.withheld.reads,
        };
        is_withheld || self.unsent.as_ref().is_some_and(|unsent| unsent.has(direction))
    }

    /// The key by which the device knows memory of `node` whose handle has `key`.
    #[inline]
    pub fn key_at(&self, node: u32, key: u32) -> u32 {
        if self.far_keys.is_empty() { key } else { self.far_keys.get(&(node, key)).copied().unwrap_or(key) }
    }
}
