//! The gate of a lane, seen by its owner: whether the initiator is in flight, since when it has been, and whether it was cut
//! off (DESIGN decision 3).

use crate::arena::layout::Lane;
use crate::host::clock::now_ns;
use crate::host::lock::OwnerLock;
use std::sync::atomic::Ordering;

/// The gate of one lane of this process.
pub(crate) struct LaneGate {
    /// The lane.
    pub(crate) lane: &'static Lane,
    /// Where it starts in the arena.
    pub(crate) offset: u64,
    /// The in-flight mark that was seen last by somebody who waited, and when it was first seen.
    standing: OwnerLock<(u64, u64)>,
}

impl LaneGate {
    pub(crate) fn new(lane: &'static Lane, offset: u64) -> LaneGate {
        LaneGate { lane, offset, standing: OwnerLock::default() }
    }

    /// The in-flight mark as it stands now: odd while the initiator is inside.
    pub(crate) fn mark(&self) -> u64 {
        self.lane.gate.load(Ordering::Acquire)
    }

    /// Whether the initiator stood still while in flight, and the lane was taken away from it.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.lane.cut_off.load(Ordering::Acquire) != 0
    }

    /// Since when (CLOCK_MONOTONIC, ns) the initiator has been in flight as `mark` says, as far as anybody has waited for it.
    pub(crate) fn in_flight_since(&self, mark: u64) -> u64 {
        let mut standing = self.standing.lock();
        if standing.0 != mark {
            *standing = (mark, now_ns());
        }
        standing.1
    }
}

/// Whether an initiator is in flight on `lane`.
pub(crate) fn in_flight(lane: &Lane) -> bool {
    lane.gate.load(Ordering::SeqCst) & 1 == 1
}

/// [`Lane::initiator`] of the memory of a lane that is gone: no QPN, so nobody can take it.
const NOBODY: u64 = u64::MAX;

/// Whether the memory of a lane that is gone may become another lane: whoever had it has given it back, or does not `live`.
pub(crate) fn claim_memory(lane: &Lane, lives: impl FnOnce() -> bool) -> bool {
    let holder = lane.initiator.load(Ordering::Acquire);
    (holder == 0 || holder == NOBODY || !lives())
        && lane.initiator.compare_exchange(holder, NOBODY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
