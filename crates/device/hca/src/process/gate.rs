//! The gate of a lane (DESIGN decision 3). The initiator marks itself as in flight and looks if it may come in; the
//! owner closes a way in and looks for marks. The owner stores before a heavy barrier and looks after it, and the
//! initiator stores before a light one and looks after it, so that one of the two sees the other.

use crate::arena::layout::{Lane, QpShared, Switch, closed};
use crate::host::atomic::{Ordering, compiler_fence, fence};
use crate::host::barrier;
use crate::host::clock::now_ns;
use crate::host::dense::Dense;
use crate::host::lock::OwnerLock;
use std::sync::{Arc, Weak};
use vervain_iba::QpState;

// ---- the initiator --------------------------------------------------------------------------------------------------

/// `FUTEX_OWNER_DIED`: the kernel sets it in a robust mutex whose owner died (`man 2 get_robust_list`).
pub(crate) const OWNER_DIED: u32 = 0x4000_0000;

/// The mark of being in flight; ends when dropped.
pub struct InFlight<'a> {
    lane: &'a Lane,
}

impl<'a> InFlight<'a> {
    /// Marks the initiator of `lane` as in flight; visible before anything that it looks at next. `full`: the owner
    /// relies on full barriers. It is passed by reference: loaded after the mark, it costs the fast path no register.
    #[inline(always)]
    pub(crate) fn begin(lane: &'a Lane, full: &bool) -> InFlight<'a> {
        // Plain stores: until its initiator gives a lane back, nobody else has it.
        let gate = lane.gate.load(Ordering::Relaxed) | 1;
        // A waiter for the mark before may see this one first, and goes on: all accesses until now come before it.
        lane.gate.store(gate, Ordering::Release);
        barrier::light(*full);
        InFlight { lane }
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        // Read again rather than kept, which would take a register of the fast path.
        let gate = self.lane.gate.load(Ordering::Relaxed);
        self.lane.gate.store(gate.wrapping_add(1), Ordering::Release);
    }
}

/// Returns true if the way in through `lane` is open, as it is most of the time. Asked inside the mark.
#[inline(always)]
pub(crate) fn is_open(lane: &Lane, qp: &QpShared, switch: &Switch) -> bool {
    let state = qp.state.load(Ordering::Acquire);
    (state == QpState::Rts as u32 || receives_only(state, qp))
        && lane.open.load(Ordering::Relaxed) != 0
        && !has_ended(switch)
        && !is_closed(switch)
}

/// Returns true if the process of `switch` has ended, as the kernel says.
#[inline(always)]
pub(crate) fn has_ended(switch: &Switch) -> bool {
    switch.alive[0].load(Ordering::Relaxed) as u32 & OWNER_DIED != 0
}

/// Returns true if its owner has closed it to all initiators.
#[inline(always)]
pub(crate) fn is_closed(switch: &Switch) -> bool {
    switch.closed.load(Ordering::Acquire) != 0
}

/// Returns true if it is stopped, as opposed to closed for a moment.
#[inline]
pub(crate) fn is_stopped(switch: &Switch) -> bool {
    switch.closed.load(Ordering::Acquire) & closed::STOPPED != 0
}

/// Returns true if it was saved, and has not gone on since: it may be restored from its image.
#[inline]
pub(crate) fn is_saved(switch: &Switch) -> bool {
    switch.closed.load(Ordering::Acquire) & closed::SAVED != 0
}

/// Returns true if `state` is RTR, where passive sides of RDMA Writes often stay, and a message has arrived.
#[inline(always)]
fn receives_only(state: u32, qp: &QpShared) -> bool {
    cold();
    state == QpState::Rtr as u32 && is_established(qp)
}

/// Marks where it is called as the rarer way.
#[cold]
#[inline]
fn cold() {}

/// Returns true if a message has arrived since the QP went to RTR.
#[inline(always)]
pub(crate) fn is_established(qp: &QpShared) -> bool {
    qp.established.load(Ordering::Relaxed) != 0
}

/// Names the memory that the initiator touches next. A revocation of another key then does not wait for this lane, and
/// one that has given up waiting knows the pages that are still written to. A barrier, a look if the lane is open, and
/// the look at the key follow.
#[inline(always)]
pub(crate) fn name(lane: &Lane, key: u32, addr: u64) {
    lane.addr.store(addr, Ordering::Relaxed);
    // Not seen before what the last access has stored.
    lane.key.store(key, Ordering::Release);
}

/// The same inside the mark; false once the lane was cut off.
#[inline(always)]
pub(crate) fn name_next(lane: &Lane, key: u32, addr: u64, full: &bool) -> bool {
    name(lane, key, addr);
    barrier::light(*full);
    !is_cut_off(lane)
}

/// Returns true if the owner has given up waiting for the initiator while that was in flight.
#[inline(always)]
pub(crate) fn is_cut_off(lane: &Lane) -> bool {
    lane.cut_off.load(Ordering::Relaxed) != 0
}

/// Returns true if the accesses inside the mark count; to be called after the last copy or publication. They do not
/// count after the owner has given up waiting: it has flushed the receive, and its program may have taken the memory
/// back.
#[inline(always)]
pub(crate) fn counts(lane: &Lane) -> bool {
    // An owner whose cut-off is not seen here finds all that was published before, for a barrier followed that; copied
    // bytes have landed before its heavy barrier ends, or within nanoseconds after the two seconds that it has waited.
    // And all that was read inside was read before this look.
    fence(Ordering::Acquire);
    compiler_fence(Ordering::SeqCst);
    !is_cut_off(lane)
}

// ---- the owner ------------------------------------------------------------------------------------------------------

/// The gate of one lane of this process.
pub(crate) struct LaneGate {
    /// The lane.
    pub(crate) lane: &'static Lane,
    /// Offset of its start in the arena.
    pub(crate) offset: u64,
    /// The in-flight mark that a waiter has seen last, and when it was first seen.
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

    /// Returns true if the initiator that was in flight as `mark` says still is.
    pub(crate) fn stands(&self, mark: u64) -> bool {
        self.mark() == mark
    }

    /// Takes the lane away from an initiator that stands still. A heavy barrier follows: what is published and not seen
    /// after that does not count for the initiator either.
    pub(crate) fn cut_off(&self) {
        self.lane.cut_off.store(1, Ordering::SeqCst);
        self.lane.open.store(0, Ordering::SeqCst);
    }

    /// Returns true if the initiator stood still while in flight, and the lane was taken away from it.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.lane.cut_off.load(Ordering::Acquire) != 0
    }

    /// Since when (CLOCK_MONOTONIC, ns) the initiator has been in flight as `mark` says, as far as anybody has waited
    /// for it.
    pub(crate) fn in_flight_since(&self, mark: u64) -> u64 {
        let mut standing = self.standing.lock();
        if standing.0 != mark {
            *standing = (mark, now_ns());
        }
        standing.1
    }
}

/// An initiator in flight: the gate of its lane, and its mark.
pub(crate) type Standing = (Arc<LaneGate>, u64);

/// The initiators that are in flight on `gates`.
pub(crate) fn standing(gates: Vec<Arc<LaneGate>>) -> Vec<Standing> {
    let marked = gates.into_iter().map(|gate| (Arc::clone(&gate), gate.mark()));
    marked.filter(|(_, mark)| mark & 1 == 1).collect()
}

/// The gates of all lanes of a process, by where they lie.
#[derive(Default)]
pub(crate) struct Gates(OwnerLock<Dense<u64, (&'static Lane, Weak<LaneGate>)>>);

impl Gates {
    pub(crate) fn add(&self, gate: &Arc<LaneGate>) {
        self.0.lock().insert(gate.offset, (gate.lane, Arc::downgrade(gate)));
    }

    pub(crate) fn remove(&self, gate: &LaneGate) {
        self.0.lock().remove(gate.offset);
    }

    pub(crate) fn which(&self, which: impl Fn(&Lane) -> bool) -> Vec<Arc<LaneGate>> {
        let gates = self.0.lock();
        let looked_at = gates.look_at(|(lane, _)| std::ptr::from_ref(&lane.gate));
        looked_at.filter(|(lane, _)| which(lane)).filter_map(|(_, gate)| gate.upgrade()).collect()
    }

    /// Returns true if `is` holds of any lane.
    pub(crate) fn any(&self, is: impl Fn(&Lane) -> bool) -> bool {
        self.0.lock().look_at(|(lane, _)| std::ptr::from_ref(&lane.initiator)).any(|(lane, _)| is(lane))
    }
}

/// Returns true if an initiator is in flight on `lane`.
pub(crate) fn in_flight(lane: &Lane) -> bool {
    lane.gate.load(Ordering::SeqCst) & 1 == 1
}

/// [`Lane::initiator`] of the memory of a lane that is gone: no QPN, so nobody can take it.
pub(crate) const NOBODY: u64 = u64::MAX;

/// Returns true if the memory of a lane that is gone may become another lane: its holder has given it back, or does not
/// `live`.
pub(crate) fn claim_memory(lane: &Lane, lives: impl FnOnce() -> bool) -> bool {
    let holder = lane.initiator.load(Ordering::Acquire);
    (holder == 0 || holder == NOBODY || !lives())
        && lane.initiator.compare_exchange(holder, NOBODY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
