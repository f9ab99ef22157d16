//! The threads of the program that wait for packets themselves. A signal handler may end a thread at any instruction
//! (`pthread_exit`), and the thread's end must leave none here. So a thread has a place with its id rather than a part
//! of a count: leaving twice, or without having entered, does no harm.

use std::sync::atomic::{AtomicU32, Ordering};

/// Places. Threads beyond wait without one: it is enough that somebody is seen to wait.
const PLACES: usize = 64;

/// Ids of threads; 0: free.
pub(super) struct Waiters([AtomicU32; PLACES]);

impl Default for Waiters {
    fn default() -> Self {
        Waiters([const { AtomicU32::new(0) }; PLACES])
    }
}

impl Waiters {
    /// `thread` waits from now on.
    pub(super) fn enter(&self, thread: u32) {
        let takes = |place: &AtomicU32| {
            let taken = place.compare_exchange(0, thread, Ordering::SeqCst, Ordering::SeqCst);
            taken.is_ok() || taken == Err(thread)
        };
        let first = thread as usize % PLACES;
        self.0[first..].iter().chain(&self.0[..first]).find(|place| takes(place));
    }

    /// `thread` waits no longer. Returns true if nobody does by then.
    pub(super) fn leave(&self, thread: u32) -> bool {
        for place in &self.0 {
            if place.load(Ordering::Relaxed) == thread {
                place.store(0, Ordering::SeqCst);
            }
        }
        !self.any()
    }

    /// Returns true if a thread waits.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|place| place.load(Ordering::SeqCst) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_is_gone_however_often_it_has_entered() {
        let waiters = Waiters::default();
        assert!(!waiters.any() && waiters.leave(7), "nobody has entered");
        waiters.enter(7);
        waiters.enter(7);
        // Two threads of one first place.
        waiters.enter(7 + PLACES as u32);
        assert!(waiters.any() && !waiters.leave(7) && !waiters.leave(7));
        assert!(waiters.leave(7 + PLACES as u32) && !waiters.any());
    }

    #[test]
    fn more_threads_than_places_wait_and_leave() {
        let waiters = Waiters::default();
        let threads = 1..=2 * PLACES as u32;
        threads.clone().for_each(|thread| waiters.enter(thread));
        let left = threads.map(|thread| waiters.leave(thread)).filter(|is_last| *is_last).count();
        assert!(left > 0 && !waiters.any());
    }
}
