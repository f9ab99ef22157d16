//! A context that stands still: nothing is sent any more, and what was sent is over. Meanwhile messages of others still
//! come, since theirs are to be over too; they are kept in memory of their own, for receives are for those who still
//! send.

use std::collections::{HashMap, VecDeque};

use crate::engine::{Engine, PORT};
use crate::error::{Error, Result};
use crate::rdma::Direction;
use crate::unsent::Unsent;

const NOT_STOPPED: Error = Error::plain(libc::EINVAL, "sending was not stopped");
const IN_FLIGHT: Error = Error::plain(libc::EBUSY, "messages, writes or reads are still under way");

/// Messages that were sent to a node, and received from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub sent: u64,
    pub received: u64,
}

/// A message in memory of its own.
pub(crate) struct Kept {
    pub node: u32,
    len: usize,
    /// The bytes as words, since programs read words from messages.
    words: Box<[u64]>,
}

impl Kept {
    /// A message of these bytes.
    pub fn new(node: u32, bytes: &[u8]) -> Self {
        let mut words = vec![0; bytes.len().div_ceil(8)].into_boxed_slice();
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(all);
        }
        Self { node, len: bytes.len(), words }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the bytes; the program may write to them.
    pub fn memory(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(self.len);
        bytes
    }
}

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
    /// Messages out of their receives, in order, all before those that are in theirs; and the one that the program has.
    pub kept: VecDeque<Kept>,
    pub out: Option<Kept>,
    /// Requests in progress of an image, until they have begun anew.
    pub unsent: Option<Box<Unsent>>,
    /// Writes, or reads, are in an image that was written since sending was stopped. Until it goes on the program is
    /// not told that they are over: after a restore they begin anew, so what it keeps of its memory must be as it was
    /// when they had not ended.
    pub withheld: Withheld,
    /// By connections that were closed, or in the life that an image was made of.
    totals: HashMap<u32, Counts>,
    /// For memory that other nodes had locked when an image was made: its present key, by the node and the key in its
    /// handle.
    far_keys: HashMap<(u32, u32), u32>,
}

impl Rest {
    /// A connection to `node` is over.
    pub fn add_counts(&mut self, node: u32, counts: Counts) {
        if counts != Counts::default() {
            let total = self.totals.entry(node).or_default();
            total.sent += counts.sent;
            total.received += counts.received;
        }
    }

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

impl Engine {
    /// Returns true if the program has a message to receive.
    pub fn has_messages(&self) -> bool {
        !self.queue.is_empty() || !self.rest.kept.is_empty()
    }

    /// Stops all sending, or has it go on.
    pub fn control_send(&mut self, on: bool) -> Result<()> {
        self.check()?;
        if !on {
            self.rest.is_stopped = true;
            return Ok(());
        }
        (self.rest.is_stopped, self.rest.keeps, self.rest.withheld) = (false, false, Withheld::default());
        self.begin_unsent();
        // Wakes a program that sleeps until there is room to send.
        self.news += 1;
        Ok(())
    }

    /// Stops all sending, and keeps what comes, until sending goes on.
    pub fn settle(&mut self) -> Result<()> {
        self.check()?;
        (self.rest.is_stopped, self.rest.keeps) = (true, true);
        self.look_for_messages();
        self.keep_messages();
        Ok(())
    }

    /// # Errors
    /// EINVAL: sending goes on.
    pub fn check_stopped(&self) -> Result<()> {
        self.check()?;
        if self.rest.is_stopped { Ok(()) } else { Err(NOT_STOPPED) }
    }

    /// Checks that no message, write or read of this node is in progress. Those of an image are not until they begin.
    pub fn check_settled(&mut self) -> Result<()> {
        while self.look_for_completions() {}
        self.look_for_messages();
        self.check_stopped()?;
        if self.under_way() { Err(IN_FLIGHT) } else { Ok(()) }
    }

    /// Takes messages out of their receives.
    #[cold]
    pub fn keep_messages(&mut self) {
        while let Some(message) = self.queue.pop_front() {
            let mut bytes = vec![0; message.len as usize];
            self.mesh.read_memory_of(PORT, message.buffer, &mut bytes);
            self.rest.kept.push_back(Kept::new(message.node, &bytes));
            if let Err(error) = self.give_back(message.buffer) {
                self.fail(error);
            }
        }
    }

    /// Messages to and from each node, in the order of their numbers.
    pub fn counts(&self) -> Vec<(u32, Counts)> {
        let mut all = self.rest.totals.clone();
        for link in self.mesh.links() {
            let counts = self.connections[link.index as usize].counts;
            let total = all.entry(self.mesh.peer(link).0).or_default();
            total.sent += counts.sent;
            total.received += counts.received;
        }
        let mut all: Vec<_> = all.into_iter().filter(|(_, counts)| *counts != Counts::default()).collect();
        all.sort_unstable_by_key(|(node, _)| *node);
        all
    }

    /// Takes the counts and messages from an image, and forgets all others.
    pub fn become_restored(
        &mut self,
        counts: Vec<(u32, Counts)>,
        messages: Vec<Kept>,
        unsent: Unsent,
        far_keys: HashMap<(u32, u32), u32>,
    ) {
        self.forget_send_buffer();
        self.discard();
        self.connections.iter_mut().for_each(|connection| connection.counts = Counts::default());
        (self.rest.totals, self.rest.far_keys) = (counts.into_iter().collect(), far_keys);
        self.rest.kept = messages.into();
        (self.rest.unsent, self.rest.withheld) = (unsent.some(), Withheld::default());
        self.rdma.forget_faults();
        self.news += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_kept_has_its_bytes() {
        for len in [1, 7, 8, 9, 8192] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
            let mut kept = Kept::new(3, &bytes);
            assert_eq!((kept.len(), kept.bytes()), (len, bytes));
            assert!(kept.memory().addr().is_multiple_of(8));
        }
    }

    #[test]
    fn counts_of_connections_add_up() {
        let mut rest = Rest::default();
        for _ in 0..2 {
            rest.add_counts(7, Counts { sent: 2, received: 1 });
            rest.add_counts(8, Counts::default());
        }
        assert_eq!(rest.totals, HashMap::from([(7, Counts { sent: 4, received: 2 })]));
    }
}
