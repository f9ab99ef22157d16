//! Operations that wait for a connection to open.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The longest time that a served copy waits for its connection, before the issuer is told to do it itself. A pool
/// whose connections are all held by peers that wait for answers would wait for ever.
const SERVED_WAIT: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Contacts {
    /// Operations by the rank and color that they wait for.
    waiting: HashMap<(u32, u32), VecDeque<u32>>,
    /// Served copies among them with the time at which they began to wait, oldest first. Some may no longer wait.
    served: VecDeque<(Instant, u32)>,
}

impl Contacts {
    /// Has operation `i` wait for a connection to `rank` of `color`. `since`: the time, if it is a served copy.
    pub fn wait(&mut self, i: u32, rank: u32, color: u32, since: Option<Instant>) {
        self.served.extend(since.map(|since| (since, i)));
        self.waiting.entry((rank, color)).or_default().push_back(i);
    }

    /// Returns true if an operation waits for a connection to `rank` of `color`.
    pub fn are_waiting(&self, rank: u32, color: u32) -> bool {
        self.waiting.contains_key(&(rank, color))
    }

    /// Takes the operations that have waited for a connection to `rank` of `color`.
    pub fn take(&mut self, rank: u32, color: u32) -> VecDeque<u32> {
        self.waiting.remove(&(rank, color)).unwrap_or_default()
    }

    /// Takes a served copy that has waited for too long. `is_waiting` returns true if a copy still waits for a
    /// connection. `now` is called only if one does.
    pub fn take_late(&mut self, now: impl Fn() -> Instant, is_waiting: impl Fn(u32) -> bool) -> Option<u32> {
        while let Some(&(since, i)) = self.served.front() {
            let waits = is_waiting(i);
            if waits && now() < since + SERVED_WAIT {
                return None;
            }
            self.served.pop_front();
            if waits {
                for waiting in self.waiting.values_mut() {
                    waiting.retain(|waits| *waits != i);
                }
                self.waiting.retain(|_, waiting| !waiting.is_empty());
                return Some(i);
            }
        }
        None
    }

    /// The time at which the oldest served copy will have waited for too long.
    pub fn due(&self) -> Option<Instant> {
        self.served.front().map(|(since, _)| *since + SERVED_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_wait_for_the_peer_that_they_need() {
        let mut contacts = Contacts::default();
        for (i, color) in [(1, 0), (2, 1), (3, 0)] {
            contacts.wait(i, 7, color, None);
        }
        assert!(contacts.are_waiting(7, 0) && contacts.are_waiting(7, 1) && !contacts.are_waiting(8, 0));
        assert_eq!(contacts.take(7, 0), [1, 3]);
        assert!(!contacts.are_waiting(7, 0) && contacts.are_waiting(7, 1));
        assert_eq!(contacts.due(), None);
    }

    #[test]
    fn a_served_copy_that_is_late_waits_no_longer() {
        let mut contacts = Contacts::default();
        let start = Instant::now();
        for i in 1..=4 {
            contacts.wait(i, 7, 0, (i != 4).then_some(start));
        }
        let due = contacts.due().expect("three served copies wait");
        assert_eq!(contacts.take_late(|| start, |_| true), None);
        // The first has begun meanwhile.
        assert_eq!([(); 3].map(|()| contacts.take_late(|| due, |i| i != 1)), [Some(2), Some(3), None]);
        assert_eq!(contacts.take(7, 0), [1, 4]);
        assert_eq!(contacts.due(), None);
    }
}
