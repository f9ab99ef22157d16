//! Timers of requesters. A QP has at most one entry here, which may expire too early, never too late, so that a
//! deadline that moves on with every acknowledgement costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use vervain_hca::host::lock::OwnerLock;

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// Time at which the requester of a QP is called; [`NEVER`]: it has no entry.
pub(super) struct Timer {
    qpn: u32,
    at: AtomicU64,
}

impl Timer {
    /// A timer of QP `qpn`, not set.
    pub(super) fn new(qpn: u32) -> Timer {
        Timer { qpn, at: AtomicU64::new(NEVER) }
    }

    /// Takes the timer, whose entry for `at` has expired. Returns true if the entry was its own; one that was replaced
    /// by an earlier one belongs to nobody.
    pub(super) fn take(&self, at: u64) -> bool {
        self.at.compare_exchange(at, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Deadlines, the earliest first.
pub(super) struct Timers {
    heap: OwnerLock<BinaryHeap<Reverse<(u64, u32)>>>,
    /// The earliest.
    next: AtomicU64,
}

impl Default for Timers {
    fn default() -> Self {
        Timers { heap: OwnerLock::default(), next: AtomicU64::new(NEVER) }
    }
}

impl Timers {
    /// The earliest deadline (CLOCK_MONOTONIC, ns), [`NEVER`] for none.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Sets `timer` to `deadline` unless it is due earlier; None: no change. Returns true if it is now the first.
    #[inline]
    pub(super) fn set(&self, timer: &Timer, deadline: Option<u64>) -> bool {
        let Some(at) = deadline else { return false };
        if timer.at.load(Ordering::Relaxed) <= at {
            return false;
        }
        timer.at.store(at, Ordering::Relaxed);
        let mut heap = self.heap.lock();
        heap.push(Reverse((at, timer.qpn)));
        self.next.fetch_min(at, Ordering::SeqCst) > at
    }

    /// Calls `due` for the QPs whose entries' time has come: with the number, and the time. The caller takes the
    /// [`Timer`].
    pub(super) fn take(&self, now: u64, mut due: impl FnMut(u32, u64)) {
        let mut heap = self.heap.lock();
        while let Some(Reverse((at, qpn))) = heap.peek().copied()
            && at <= now
        {
            heap.pop();
            due(qpn, at);
        }
        self.next.store(heap.peek().map_or(NEVER, |Reverse((at, _))| *at), Ordering::SeqCst);
    }
}
