//! UC and UD messages that find no receive, and the time that a QP gets to post one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Nanoseconds that a QP that had receives may be without one before messages for it are dropped: a program that has
/// not seen yet the last ones cannot post more.
const NO_RECEIVE_NS: u64 = 50_000_000;

/// State of a message that may wait for a receive of its QP.
#[derive(Default)]
pub struct NoReceive {
    /// The QP had a receive for a message, and no wait has run out since.
    served: AtomicBool,
    /// CLOCK_MONOTONIC, ns; 0: no message waits.
    since: AtomicU64,
}

impl NoReceive {
    /// The QP has a receive.
    pub fn serve(&self) {
        self.served.store(true, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
    }

    /// Notes that the QP has no receive. Returns true if the message is to wait.
    pub fn waits(&self, now: u64) -> bool {
        if !self.served.load(Ordering::Relaxed) {
            return false;
        }
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 {
            self.since.store(now, Ordering::Relaxed);
            return true;
        }
        let waits = now.saturating_sub(since) < NO_RECEIVE_NS;
        if !waits {
            self.served.store(false, Ordering::Relaxed);
        }
        waits
    }
}
