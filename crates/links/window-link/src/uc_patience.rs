//! Time that UC messages wait for a peer that is absent, or takes nothing. Then they are lost, as on a network: the UC
//! protocol has no timer.

use super::pair::Pair;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vervain_hca::now_ns;

/// Nanoseconds that a message waits for a peer without progress.
const ABSENT_NS: u64 = 1_000_000_000;

/// The wait of a connection over UC; of others it is never over.
#[derive(Default)]
pub struct UcPatience {
    is_uc: bool,
    /// CLOCK_MONOTONIC, ns; 0 while none waits.
    since: AtomicU64,
    /// Messages that the peer had taken then.
    taken: AtomicU64,
}

impl UcPatience {
    /// For a connection that `is_uc` or not.
    pub fn new(is_uc: bool) -> Self {
        UcPatience { is_uc, ..Self::default() }
    }

    /// Since when messages have waited, while the peer has taken nothing.
    fn waits_since(&self, pair: Option<&Arc<Pair>>) -> u64 {
        let (since, taken) = (self.since.load(Ordering::Relaxed), pair.map_or(0, |pair| pair.taken()));
        if since != 0 && self.taken.load(Ordering::Relaxed) == taken {
            return since;
        }
        let now = now_ns();
        self.since.store(now, Ordering::Relaxed);
        self.taken.store(taken, Ordering::Relaxed);
        now
    }

    /// Messages wait, by `pair` if there is one: when the wait is over. None but over UC.
    pub fn deadline(&self, pair: Option<&Arc<Pair>>) -> Option<u64> {
        self.is_uc.then(|| self.waits_since(pair) + ABSENT_NS)
    }

    /// A message was sent, `sent` of the pair so far, and not lost (`u64::MAX`): the next one waits anew.
    #[inline]
    pub fn restart(&self, sent: u64) {
        if self.is_uc && sent != u64::MAX {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// UC only: the peer has taken nothing for [`ABSENT_NS`], and what finds no room is lost.
    #[cold]
    pub fn is_over_by(&self, pair: &Arc<Pair>) -> bool {
        self.is_uc && now_ns() >= self.waits_since(Some(pair)) + ABSENT_NS
    }

    /// UC only: waited [`ABSENT_NS`] without progress.
    pub fn is_over(&self) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        self.is_uc && since != 0 && now_ns() >= since + ABSENT_NS
    }
}
