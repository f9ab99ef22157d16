//! How a process that sleeps is woken by its peers, where the device can ([`crate::PutDevice::wakes`]). One thread of a process sleeps
//! until its *waking word* changes. Before, it announces that to each peer by a count that it puts into its block there, and looks once
//! more; a peer that has put something and then finds an announcement that it has not answered answers: it tells the count, puts
//! another waking word and wakes. So while nobody sleeps, a sender pays a look at a word of its own memory, and each announcement
//! is good for one waking.
//!
//! That neither misses the other takes a barrier on either side, between its put and its look.

use super::rendezvous::{PeerId, Rendezvous};
use crate::device::{Channel, Origin, Put};
use crate::layout::{CELL, Layout};
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// For what somebody is woken: those who wake for different ones need not agree about counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// A message of a pair.
    Pair = 0,
    /// A state put into a door; by the sleeper's own process, something else that it is to look at.
    Door = 1,
}

/// A way to wake a process.
#[derive(Clone, Copy, Debug)]
pub struct Waking {
    at: u64,
    /// What no other waker's words have there.
    mark: u64,
}

impl Waking {
    /// For waking `peer` by `me`.
    pub fn new(layout: Layout, peer: PeerId, me: PeerId, occasion: Occasion) -> Waking {
        let mark = (me.cell() / CELL) << 20 | (occasion as u64) << 19;
        Waking { at: Rendezvous::waking_word(layout, peer), mark }
    }

    /// The waking word, of which the lower half counts: another `count` each time makes another word, unless some 2^19 were between.
    pub fn word(&self, count: u64) -> u64 {
        self.mark | count & ((1 << 19) - 1)
    }

    /// Wakes.
    pub fn wake(&self, channel: &mut dyn Channel, count: u64) {
        if channel.put(&[Put { to: self.at, from: Origin::Words(&[self.word(count)]) }]).is_ok() {
            channel.wake(self.at);
        }
    }
}

/// What a sender does between its put and its look for an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// A full barrier.
    Full,
    /// Nothing but for the compiler: who announces makes the CPUs of all others pass a barrier (`man 2 membarrier`).
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
