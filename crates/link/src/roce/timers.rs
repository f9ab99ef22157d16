//! When requesters want to be called again. A QP stands here at most once; its entry may come too early, never too late, so
//! that a deadline that moves on with every acknowledgement costs nothing.

use super::connection::Connection;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vervain_hca::host::lock::OwnerLock;

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

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

    /// Has `connection` called at `deadline`. Whether that is earlier than all others.
    #[inline]
    pub(super) fn set(&self, connection: &Connection, deadline: Option<u64>) -> bool {
        let Some(at) = deadline else { return false };
        if connection.timer.load(Ordering::Relaxed) <= at {
            return false;
        }
        connection.timer.store(at, Ordering::Relaxed);
        let mut heap = self.heap.lock();
        heap.push(Reverse((at, connection.qpn)));
        self.next.fetch_min(at, Ordering::SeqCst) > at
    }

    /// Takes the QPs whose time has come.
    pub(super) fn take(&self, now: u64, find: impl Fn(u32) -> Option<Arc<Connection>>, due: &mut Vec<Arc<Connection>>) {
        let mut heap = self.heap.lock();
        while let Some(Reverse((at, qpn))) = heap.peek().copied()
            && at <= now
        {
            heap.pop();
            // An entry that a nearer one has replaced is nobody's.
            let own =
                |c: &Arc<Connection>| c.timer.compare_exchange(at, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            due.extend(find(qpn).filter(own));
        }
        self.next.store(heap.peek().map_or(NEVER, |Reverse((at, _))| *at), Ordering::SeqCst);
    }
}
