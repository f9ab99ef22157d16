//! Waking a process that sleeps, on devices that can ([`crate::PutDevice::wakes`]). One thread of a process sleeps
//! until its *waking word* changes. Before that it announces its sleep by a count that it puts into its block at each
//! peer, and looks once more. A peer that has put something and then finds an announcement that it has not answered
//! does three things: it puts the count back as its answer, puts a new waking word, and wakes. So a sender pays only a
//! look at a word of its own memory while nobody sleeps, and each announcement is good for one waking.
//!
//! A barrier on either side, between its put and its look, ensures that neither misses the other.

use super::rendezvous::{PeerId, Rendezvous};
use crate::device::{Channel, Origin, Put};
use crate::layout::{CELL, Layout};
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// Reasons for waking. Wakers for different reasons need not agree about counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// A message of a pair.
    Pair = 0,
    /// A state put into a door; from the sleeper's own process, any other event that it is to look at.
    Door = 1,
}

/// A way to wake a process.
#[derive(Clone, Copy, Debug)]
pub struct Waking {
    at: u64,
    /// Bits that no other waker's words have.
    mark: u64,
}

impl Waking {
    /// A way for `me` to wake `peer`.
    pub fn new(layout: Layout, peer: PeerId, me: PeerId, occasion: Occasion) -> Waking {
        let mark = (me.cell() / CELL) << 20 | (occasion as u64) << 19;
        Waking { at: Rendezvous::waking_word(layout, peer), mark }
    }

    /// The waking word; its lower half counts. Another `count` makes another word, unless a multiple of 2^19 lies
    /// between them.
    pub fn word(&self, count: u64) -> u64 {
        self.mark | count & ((1 << 19) - 1)
    }

    /// Puts the word of `count`, and wakes the peer.
    pub fn wake(&self, channel: &mut dyn Channel, count: u64) {
        if channel.put(&[Put { to: self.at, from: Origin::Words(&[self.word(count)]) }]).is_ok() {
            channel.wake(self.at);
        }
    }
}

/// Barriers between a sender's put and its look for an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// A full barrier.
    Full,
    /// A barrier for the compiler only: the announcer makes the CPUs of all others pass a barrier (membarrier(2)).
    Compiler,
}

impl Barrier {
    #[inline]
    pub(super) fn pass(self) {
        match self {
            Barrier::Full => fence(Ordering::SeqCst),
            Barrier::Compiler => compiler_fence(Ordering::SeqCst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_puts_a_waking_word_that_was_there() {
        let layout = Layout::new(64, 4 << 30).unwrap();
        let peer = PeerId { node: 1, process: 2 };
        let mut words = std::collections::HashSet::new();
        for node in [0, 1, 63] {
            for process in [0, 1, 63] {
                for occasion in [Occasion::Pair, Occasion::Door] {
                    let waking = Waking::new(layout, peer, PeerId { node, process }, occasion);
                    for count in [0, 1, 2, (1 << 19) - 1] {
                        assert!(words.insert(waking.word(count) as u32), "{node} {process} {occasion:?} {count}");
                    }
                }
            }
        }
    }
}
