//! Signs that the program sleeps until an event of a CQ comes, but not in `ibv_get_cq_event`, which receives packets:
//! it waits for the descriptor of a completion channel by poll(2) or epoll(7), so that no thread of it receives any,
//! and no poll sends what waits for others. Threads that do different things blur the signs; what follows from them is
//! a matter of speed only.

use std::sync::atomic::{AtomicU32, Ordering};

/// A program that has asked for an event so often without waiting in `ibv_get_cq_event` sleeps in another way. One that
/// calls that finds its event there most of the time while many come, but not so often in a row.
const ASKED_UNWAITED: u32 = 64;
/// Polls that leave a CQ empty after the program has asked for an event, before it sleeps: one for each of its CQs. One
/// that polls on has made as many within microseconds.
const BEFORE_SLEEP: u32 = 16;
/// Posts between two times at which the program asks for an event that do not wait for others, as each costs a system
/// call.
const LONE_POSTS: u32 = 2;

/// What the program has done since it last asked for an event.
#[derive(Default)]
pub struct Sleeper {
    /// Times it has asked since it last waited in `ibv_get_cq_event`, up to [`ASKED_UNWAITED`].
    asked: AtomicU32,
    /// Polls since it last asked that have left a CQ empty, up to [`BEFORE_SLEEP`].
    emptied: AtomicU32,
    /// Posts since it last asked, and between that time and the one before.
    posts: AtomicU32,
    posts_before: AtomicU32,
}

impl Sleeper {
    /// The program asks for an event.
    #[inline]
    pub(crate) fn asked(&self) {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked < ASKED_UNWAITED {
            self.asked.store(asked + 1, Ordering::Relaxed);
        }
        self.emptied.store(0, Ordering::Relaxed);
        self.posts_before.store(self.posts.load(Ordering::Relaxed), Ordering::Relaxed);
        self.posts.store(0, Ordering::Relaxed);
    }

    /// A thread of the program waits in `ibv_get_cq_event`, for an event that has not come yet.
    pub fn waits_for_event(&self) {
        self.asked.store(0, Ordering::Relaxed);
    }

    /// A poll of the program has left a CQ empty.
    #[inline(always)]
    pub(crate) fn left_empty(&self) {
        let emptied = self.emptied.load(Ordering::Relaxed);
        if emptied < BEFORE_SLEEP {
            self.emptied.store(emptied + 1, Ordering::Relaxed);
        }
    }

    /// The program posts.
    #[inline]
    pub fn posts(&self) {
        if self.sleeps() {
            self.posts.store(self.posts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Returns true if the program most likely sleeps: it has asked for an event, and hardly polled since.
    #[inline]
    pub fn sleeps(&self) -> bool {
        self.asked.load(Ordering::Relaxed) == ASKED_UNWAITED && self.emptied.load(Ordering::Relaxed) < BEFORE_SLEEP
    }

    /// Returns true if a post may wait for others: a poll that sends them together most likely follows, or there are
    /// many.
    #[inline]
    pub fn posts_may_wait(&self) -> bool {
        let is_many = |posts: &AtomicU32| posts.load(Ordering::Relaxed) > LONE_POSTS;
        !self.sleeps()
            || self.emptied.load(Ordering::Relaxed) == 0
            || is_many(&self.posts)
            || is_many(&self.posts_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that has asked for an event several times, and polls in vain once after that.
    fn asleep() -> Sleeper {
        let sleeper = Sleeper::default();
        (0..ASKED_UNWAITED).for_each(|_| sleeper.asked());
        sleeper.left_empty();
        assert!(sleeper.sleeps());
        sleeper
    }

    #[test]
    fn a_program_sleeps_that_asks_for_events_and_hardly_polls() {
        let sleeper = Sleeper::default();
        sleeper.left_empty();
        assert!(!sleeper.sleeps(), "it has not asked");
        for _ in 1..ASKED_UNWAITED {
            sleeper.asked();
            assert!(!sleeper.sleeps(), "it may be about to call ibv_get_cq_event");
        }
        sleeper.asked();
        for _ in 0..BEFORE_SLEEP {
            assert!(sleeper.sleeps());
            sleeper.left_empty();
        }
        assert!(!sleeper.sleeps(), "it polls on");
        sleeper.asked();
        assert!(sleeper.sleeps());
        sleeper.waits_for_event();
        assert!(!sleeper.sleeps(), "it receives packets itself");
    }

    #[test]
    fn posts_wait_for_a_poll_that_follows_and_where_there_are_many() {
        let may_wait = |sleeper: &Sleeper| {
            sleeper.posts();
            sleeper.posts_may_wait()
        };
        assert!(may_wait(&Sleeper::default()), "it polls");
        let sleeper = asleep();
        assert!((0..LONE_POSTS).all(|_| !may_wait(&sleeper)), "nobody would send them");
        assert!(may_wait(&sleeper), "many");
        sleeper.asked();
        assert!(may_wait(&sleeper), "it has not polled since it asked");
        sleeper.left_empty();
        assert!(may_wait(&sleeper), "there were many before");
        sleeper.asked();
        sleeper.left_empty();
        assert!(!may_wait(&sleeper));
    }
}
