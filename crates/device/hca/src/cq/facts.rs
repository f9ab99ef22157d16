//! The facts about a completion queue for [`crate::hang`].

use crate::arena::layout::arm;
use crate::cq::Cq;
use std::sync::atomic::Ordering;

/// A completion queue at one moment.
#[derive(Default)]
pub(crate) struct CqFacts {
    /// Completions to be polled.
    pub(crate) holds: u64,
    /// Polls since the program got or asked for an event.
    pub(crate) polls: u64,
    /// True if at least one poll was empty; a program that sleeps for events polls until one is.
    pub(crate) was_in_vain: bool,
    /// The program has asked for an event that has not been written yet.
    pub(crate) is_armed: bool,
    /// Events that the program has got.
    pub(crate) events: u32,
}

impl Cq {
    /// None while the queue is in use for long. Never waits.
    pub(crate) fn facts(&self) -> Option<CqFacts> {
        let queue = self.queue.try_lock_briefly()?;
        Some(CqFacts {
            holds: queue.local.len() as u64 + queue.rings.pending(),
            polls: queue.since_event.polls(),
            was_in_vain: queue.courtesy.was_in_vain(),
            is_armed: self.shared.armed.load(Ordering::SeqCst) != arm::NONE,
            events: self.events.completions.load(Ordering::Relaxed),
        })
    }
}
