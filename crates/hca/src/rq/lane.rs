//! Lanes, seen by their owner: one initiator's way into one QP. The owner polls receive completions out of it, closes it
//! and waits until nobody is in flight on it (DESIGN decision 3), and takes back what a dead initiator held.

use crate::arena::Block;
use crate::arena::layout::{Lane, RECENT, found, request};
use crate::cq::Cq;
use crate::cq::completion::Source;
use crate::error::Result;
use crate::host::clock::now_ns;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::rq::{Receipt, RecvQueue};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Weak};
use vervain_iba::Completion;

/// A lane of this process.
pub struct OwnedLane {
    pub(crate) process: &'static Process,
    /// Shared part.
    pub shared: &'static Lane,
    ring: &'static [AtomicU32],
    /// Receive completions taken.
    consumed: AtomicU32,
    /// Most that can be published and not taken.
    limit: u32,
    blocks: [Block; 2],
    /// Receives that come through it.
    pub rq: Arc<RecvQueue>,
    /// The CQ of those receives.
    pub cq: Arc<Cq>,
    /// QP number that completions carry.
    pub qp_num: u32,
    /// The initiator it was made for (UD, XRC); 0 for a connected QP's own lane.
    pub granted: u32,
    /// The in-flight mark that was seen last by somebody who waited, and when it was first seen.
    standing: OwnerLock<(u64, u64)>,
    /// The owner copies' bounce buffer.
    bounce: OwnerLock<Option<Block>>,
    /// Held by the thread that carries out the initiator's request.
    pub(crate) server: OwnerLock<()>,
    /// Where the lane starts in the arena.
    pub offset: u64,
}

impl OwnedLane {
    /// Makes a lane into the QP at `qp_offset`, whose receives complete on `cq`.
    pub fn create(
        process: &'static Process,
        rq: &Arc<RecvQueue>,
        cq: &Arc<Cq>,
        qp_offset: u64,
        qp_num: u32,
        granted: u32,
    ) -> Result<Arc<OwnedLane>> {
        // The completions of a connected QP lie in the receives themselves.
        let slots = if rq.view.exclusive { 1 } else { u64::from(rq.max_wr().max(1).next_power_of_two()) };
        let ring_block = process.arena.alloc(slots * 4)?;
        let lane_block = match process.lane_block() {
            Ok(b) => b,
            Err(e) => {
                process.release(ring_block);
                return Err(e);
            }
        };
        let view = process.arena.view();
        let offset = lane_block.offset();
        let shared = view.get::<Lane>(offset).expect("just allocated");
        let ring = view.slice::<AtomicU32>(ring_block.offset(), slots as usize).expect("just allocated");
        clear(shared);
        shared.ring.store(ring_block.offset(), Ordering::Relaxed);
        shared.mask.store(slots as u32 - 1, Ordering::Relaxed);
        shared.ready_bit.store(cq.next_ready_bit(), Ordering::Relaxed);
        shared.cq.store(cq.offset(), Ordering::Relaxed);
        shared.qp.store(qp_offset, Ordering::Relaxed);
        shared.rq.store(rq.offset, Ordering::Relaxed);
        shared.open.store(1, Ordering::Release);
        let lane = Arc::new_cyclic(|weak: &Weak<OwnedLane>| {
            shared.attention.store(process.attention.add(weak.clone()), Ordering::Relaxed);
            OwnedLane {
                process,
                shared,
                ring,
                consumed: AtomicU32::new(0),
                limit: rq.max_wr(),
                blocks: [lane_block, ring_block],
                rq: Arc::clone(rq),
                cq: Arc::clone(cq),
                qp_num,
                granted,
                standing: OwnerLock::default(),
                bounce: OwnerLock::new(None),
                server: OwnerLock::default(),
                offset,
            }
        });
        cq.add_source(Source::Receives(Arc::clone(&lane)));
        process.add_lane(&lane);
        Ok(lane)
    }

    /// This lane's bit in its CQ.
    pub fn ready_bit(&self) -> u32 {
        self.shared.ready_bit.load(Ordering::Relaxed)
    }

    /// Completions to be taken.
    pub(crate) fn pending(&self) -> u32 {
        let pending = self.shared.produced.load(Ordering::Acquire).wrapping_sub(self.consumed.load(Ordering::Relaxed));
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
        let recent = &self.shared.recent[at as usize % RECENT];
        let recent = (recent.wqe.load(Ordering::Relaxed), Receipt::read(&recent.completed));
        fence(Ordering::Acquire);
        // While fewer were published since, none has been written over it, nor is being written now: each is written after
        // the one before it was counted.
        let since = self.shared.produced.load(Ordering::Relaxed).wrapping_sub(at);
        ((since as usize) < RECENT && !self.cq.has_timestamps()).then_some(recent)
    }

    /// The QP that this lane is for: the one it was made for, or the one that has taken it; 0 for none.
    pub fn holder(&self) -> u32 {
        if self.granted != 0 { self.granted } else { self.initiator_qpn() }
    }

    /// The initiator's QPN, 0 for none.
    pub fn initiator_qpn(&self) -> u32 {
        self.shared.initiator.load(Ordering::Acquire) as u32
    }

    /// Frees the lane for another initiator. The last one has given it back, or its process has ended.
    pub(crate) fn reset(&self) {
        self.shared.unaim();
        // Not in the middle of a piece; whoever is at the request sees between two that it is no longer there.
        self.process.while_not_serving(|| self.shared.request.state.store(request::IDLE, Ordering::SeqCst));
        let psn = self.shared.next_psn();
        let gate = self.shared.gate.load(Ordering::Relaxed);
        self.shared.gate.store((gate | 1).wrapping_add(1), Ordering::Release);
        psn.into_iter().for_each(|psn| self.shared.tell_psn(psn));
        // One that died between saying so and setting the ready bit would hide what its successors deliver.
        self.cq.look_at(self.ready_bit());
        self.shared.initiator.store(0, Ordering::Release);
    }

    /// Whether nobody has the lane.
    pub(crate) fn is_free(&self) -> bool {
        self.initiator_qpn() == 0
    }

    /// Whether the initiator stood still while in flight, and the lane was taken away from it.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.shared.cut_off.load(Ordering::Acquire) != 0
    }

    /// Since when the initiator has been in flight as `gate` says, as far as anybody has waited for it.
    pub(crate) fn in_flight_since(&self, gate: u64) -> u64 {
        let mut standing = self.standing.lock();
        if standing.0 != gate {
            *standing = (gate, now_ns());
        }
        standing.1
    }

    /// The bounce buffer for owner copies, made when first asked for, and anew when a larger one is. The initiator asks
    /// when it has nothing in the old one.
    pub(crate) fn make_bounce(&self, bytes: u64) -> Option<Range<u64>> {
        let mut bounce = self.bounce.lock();
        if bounce.as_ref().is_none_or(|b| b.len() < bytes) {
            match self.process.arena.alloc(bytes) {
                Ok(block) => {
                    if let Some(old) = bounce.replace(block) {
                        self.process.release(old);
                    }
                }
                Err(_) if bounce.is_some() => {}
                Err(_) => return None,
            }
        }
        let block = bounce.as_ref()?;
        self.shared.bounce.store(block.offset(), Ordering::Release);
        self.shared.bounce_len.store(block.len(), Ordering::Release);
        Some(block.offset()..block.offset() + block.len())
    }

    /// The bounce buffer, if there is one.
    pub(crate) fn bounce(&self) -> Option<Range<u64>> {
        self.bounce.lock().as_ref().map(|b| b.offset()..b.offset() + b.len())
    }

    /// Closes the lane for good: nobody can enter any more, and nobody is inside.
    pub(crate) fn close(self: &Arc<Self>) {
        self.process.shut(std::slice::from_ref(self));
        self.cq.remove_source(&Source::Receives(Arc::clone(self)));
        self.process.remove_lane(self);
        self.process.attention.remove(self.shared.attention.load(Ordering::Relaxed));
    }
}

impl Drop for OwnedLane {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        if let Some(b) = self.bounce.lock().take() {
            self.process.release(b);
        }
        let [lane, ring] = std::mem::replace(&mut self.blocks, [Block::empty(), Block::empty()]);
        self.process.release(ring);
        // A peer may keep the lane's address and look at it any time later, so its memory only ever becomes another lane;
        // and not before its initiator, who writes its mark without asking, has given it back.
        self.shared.open.store(0, Ordering::SeqCst);
        self.process.return_lane_block(lane);
    }
}

/// Makes the words of an old lane those of a new one. The in-flight count goes on, even, so that nobody who still knows the
/// old lane can take a mark of the new one for its own.
fn clear(lane: &Lane) {
    let gate = lane.gate.load(Ordering::Relaxed);
    lane.gate.store(gate.wrapping_add(gate & 1), Ordering::Relaxed);
    lane.open.store(0, Ordering::Relaxed);
    lane.cut_off.store(0, Ordering::Relaxed);
    lane.key.store(0, Ordering::Relaxed);
    lane.psn_base.store(0, Ordering::Relaxed);
    lane.produced.store(0, Ordering::Relaxed);
    lane.mode.store(found::QUIET, Ordering::Relaxed);
    lane.bounce.store(0, Ordering::Relaxed);
    lane.bounce_len.store(0, Ordering::Relaxed);
    lane.request.state.store(request::IDLE, Ordering::Relaxed);
    lane.unaim();
    // Until now it was nobody's, see [`NOBODY`].
    lane.initiator.store(0, Ordering::Release);
}

/// [`Lane::initiator`] of the memory of a lane that is gone: no QPN, so nobody can take it.
const NOBODY: u64 = u64::MAX;

/// Whether the memory of a lane that is gone may become another lane: whoever had it has given it back or has ended.
pub(crate) fn claim_memory(process: &Process, lane: &Lane) -> bool {
    let holder = lane.initiator.load(Ordering::Acquire);
    (holder == 0 || holder == NOBODY || !process.initiator_lives(lane))
        && lane.initiator.compare_exchange(holder, NOBODY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
