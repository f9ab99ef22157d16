//! Number of deferred packets of one peer process ([`super::rx`]), and the age of the first.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vervain_transport::Nanos;

/// Packets of one peer that wait at most; more are lost.
const MAX_DEFERRED: u32 = 1024;
/// Nanoseconds that packets for other QPs wait behind them.
const ORDER_NS: u64 = 10_000_000;

/// The deferred packets of one peer process. Only the thread that receives, which has the packets, changes this.
#[derive(Default)]
pub(super) struct Backlog {
    packets: AtomicU32,
    /// Arrival of the first of them.
    since: AtomicU64,
}

impl Backlog {
    /// Returns true if there are any.
    #[inline]
    pub(super) fn has_packets(&self) -> bool {
        self.packets.load(Ordering::Relaxed) > 0
    }

    /// Returns true if the first of them is so young that packets for other QPs wait behind them.
    #[inline]
    pub(super) fn holds_others(&self, now: Nanos) -> bool {
        now.saturating_sub(self.since.load(Ordering::Relaxed)) < ORDER_NS
    }

    /// Counts one that came at `since`; false if there are too many.
    pub(super) fn add(&self, since: Nanos) -> bool {
        let packets = self.packets.load(Ordering::Relaxed);
        if packets == MAX_DEFERRED {
            return false;
        }
        if packets == 0 {
            self.since.store(since, Ordering::Relaxed);
        }
        self.packets.store(packets + 1, Ordering::Relaxed);
        true
    }

    /// There is none any more.
    pub(super) fn clear(&self) {
        self.packets.store(0, Ordering::Relaxed);
    }
}
