//! Operations that wait for a connection to open.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a copy that is served waits for its connection before the issuer is told to do it itself. A pool whose
/// connections are all held by peers that wait for answers would wait for ever.
const SERVED_WAIT: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Contacts {
    /// Operations by the rank and color that they wait for.
    waiting: HashMap<(u32, u32), VecDeque<u32>>,
    /// Served copies among them with the time at which they began to wait, oldest first. Some may wait no longer.
    served: VecDeque<(Instant, u32)>,
}

impl Contacts {
    /// Has operation `i` wait for a connection to `rank` of `color`.
    pub fn wait(&mut self, i: u32, rank: u32, color: u32, is_served: bool) {
        if is_served {
            self.served.push_back((Instant::now(), i));
        }
        self.waiting.entry((rank, color)).or_default().push_back(i);
    }

    /// Whether an operation waits for a connection to `rank` of `color`.
    pub fn are_waiting(&self, rank: u32, color: u32) -> bool {
        self.waiting.contains_key(&(rank, color))
    }

    /// Takes the operations that have waited for a connection to `rank` of `color`.
    pub fn take(&mut self, rank: u32, color: u32) -> VecDeque<u32> {
        self.waiting.remove(&(rank, color)).unwrap_or_default()
    }

    /// Takes a served copy that has waited for too long. `is_waiting`: whether one still waits for a connection.
    pub fn take_late(&mut self, is_waiting: impl Fn(u32) -> bool) -> Option<u32> {
        while let Some(&(since, i)) = self.served.front() {
            let waits = is_waiting(i);
            if waits && Instant::now() < since + SERVED_WAIT {
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

    /// When the oldest served copy will have waited for too long.
    pub fn due(&self) -> Option<Instant> {
        self.served.front().map(|(since, _)| *since + SERVED_WAIT)
    }
}
