//! Receive completions of one lane, from the initiator that delivers to the thread that polls: a ring beside the lane whose one
//! producer is the initiator, or for the queue of a connected QP the receives themselves.
//!
//! It is to a lane what [`crate::cq::send_ring`] is to a send queue, and a CQ merges both in the same way.

use crate::arena::ArenaRef;
use crate::arena::layout::{CqShared, Lane, RECENT, RecvWqe};
use crate::cq::completion::publish;
use crate::host::atomic::{AtomicU32, Ordering, fence};
use crate::rq::{Receipt, RecvQueue, RqView};
use std::sync::Arc;
use vervain_iba::Completion;

/// The receive completions of one lane, as its initiator makes them.
pub(crate) struct Deliveries<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) ring: &'a ArenaRef<[AtomicU32]>,
    /// Where they are polled.
    pub(crate) cq: &'a CqShared,
    /// The owner relies on full barriers.
    pub(crate) full_barrier: &'a bool,
}

impl Deliveries<'_> {
    /// Publishes `receipt` as the completion of receive `index` of `rq`, `wqe`, which the caller has claimed. The caller is the
    /// ring's only producer. True when the CQ asks for more.
    #[inline(always)]
    pub(crate) fn push(&self, rq: &RqView, index: u32, wqe: &RecvWqe, receipt: &Receipt) -> bool {
        let lane = self.lane;
        receipt.write_into(wqe, self.cq.timestamps.load(Ordering::Relaxed) != 0);
        let produced = lane.produced.load(Ordering::Relaxed);
        if rq.exclusive {
            rq.complete_exclusive(wqe);
        } else {
            self.ring[produced as usize & (self.ring.len() - 1)].store(index, Ordering::Relaxed);
            // Not before the last count: see `RecvRing::recent`.
            fence(Ordering::Release);
            let recent = &lane.recent[produced as usize % RECENT];
            recent.wqe.store(index, Ordering::Relaxed);
            receipt.write(&recent.completed);
        }
        let bit = lane.ready_bit.load(Ordering::Relaxed);
        publish(self.cq, &lane.produced, produced.wrapping_add(1), &lane.mode, bit, self.full_barrier)
    }
}

/// The receive completions of one lane, as its owner takes them.
pub(crate) struct RecvRing {
    /// The lane.
    pub(crate) lane: &'static Lane,
    ring: &'static [AtomicU32],
    /// Receive completions taken.
    consumed: AtomicU32,
    /// Most that can be published and not taken.
    limit: u32,
    /// Where the receives come from.
    pub(crate) rq: Arc<RecvQueue>,
    /// QP number that completions carry.
    qp_num: u32,
    /// Completions carry the time at which they were made, which stands in the receives only.
    timestamps: bool,
}

impl RecvRing {
    /// The completions of `lane`, whose `ring` of indices is as long as `rq`, or one where the receives themselves are it.
    pub(crate) fn new(
        lane: &'static Lane,
        ring: &'static [AtomicU32],
        rq: Arc<RecvQueue>,
        qp_num: u32,
        timestamps: bool,
    ) -> RecvRing {
        RecvRing { lane, ring, consumed: AtomicU32::new(0), limit: rq.max_wr(), rq, qp_num, timestamps }
    }

    /// The lane's bit in its CQ.
    pub(crate) fn ready_bit(&self) -> u32 {
        self.lane.ready_bit.load(Ordering::Relaxed)
    }

    /// Completions to be taken.
    pub(crate) fn pending(&self) -> u32 {
        let pending = self.lane.produced.load(Ordering::Acquire).wrapping_sub(self.consumed.load(Ordering::Relaxed));
        // A count that runs further ahead than there are receives is damage by the peer, not data.
        if pending > self.limit { 0 } else { pending }
    }

    /// Whether there is a completion to be taken.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        if self.rq.view.exclusive { self.rq.is_completed() } else { self.pending() != 0 }
    }

    /// Takes up to `max` completions, oldest first; returns how many. The caller holds the CQ's queue.
    #[inline(never)]
    pub(crate) fn take(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        if self.rq.view.exclusive { self.take_in_order(max, sink) } else { self.take_from_ring(max, sink) }
    }

    #[inline]
    fn take_in_order(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        let mut taken = 0;
        while taken < max {
            let Some(completion) = self.rq.take_completed(self.qp_num) else { break };
            sink(&completion);
            taken += 1;
        }
        self.consumed.store(self.consumed.load(Ordering::Relaxed).wrapping_add(taken as u32), Ordering::Relaxed);
        taken
    }

    fn take_from_ring(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        let mut at = self.consumed.load(Ordering::Relaxed);
        let end = at.wrapping_add((self.pending() as usize).min(max) as u32);
        let mut taken = 0;
        while at != end {
            let completion = match self.recent(at) {
                Some((index, receipt)) => self.rq.take_with(index, &receipt, self.qp_num),
                None => {
                    let index = self.ring[at as usize & (self.ring.len() - 1)].load(Ordering::Relaxed);
                    self.rq.take(index, self.qp_num)
                }
            };
            at = at.wrapping_add(1);
            self.consumed.store(at, Ordering::Release);
            // None for an index that is not one of a receive in use: damage again, and dropped.
            if let Some(completion) = completion {
                sink(&completion);
                taken += 1;
            }
        }
        taken
    }

    /// Completion `at`, which has been published and not been taken, from beside the count, if it still stands there.
    #[inline]
    fn recent(&self, at: u32) -> Option<(u32, Receipt)> {
        let recent = &self.lane.recent[at as usize % RECENT];
        let recent = (recent.wqe.load(Ordering::Relaxed), Receipt::read(&recent.completed));
        fence(Ordering::Acquire);
        // While fewer were published since, none has been written over it, nor is being written now: each is written after
        // the one before it was counted.
        let since = self.lane.produced.load(Ordering::Relaxed).wrapping_sub(at);
        ((since as usize) < RECENT && !self.timestamps).then_some(recent)
    }
}
