//! Lanes, seen by their owner: one initiator's way into one QP. The owner polls receive completions out of it, closes
//! it and waits until nobody is in flight on it (DESIGN decision 3), and takes back what a dead initiator held.

use crate::arena::Block;
use crate::arena::layout::{CqeRing, Lane, QpShared, Switch, found, request};
use crate::cq::Cq;
use crate::cq::completion::Source;
use crate::cq::recv_ring::RecvRing;
use crate::cq::send_ring::SendRing;
use crate::error::Result;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::gate::LaneGate;
use crate::process::inline_receive::InlineReceives;
use crate::rq::RecvQueue;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// A lane of this process.
pub(crate) struct OwnedLane {
    pub(crate) process: &'static Process,
    /// The switch of its QP.
    pub(crate) switch: &'static Switch,
    /// Shared part.
    pub shared: &'static Lane,
    /// The gate, which holds the initiator's mark of being in flight.
    pub gate: Arc<LaneGate>,
    /// Its completions.
    pub ring: Arc<RecvRing>,
    blocks: [Block; 2],
    /// Receives that come through it.
    pub rq: Arc<RecvQueue>,
    /// The CQ of those receives.
    pub cq: Arc<Cq>,
    /// QP number that completions carry.
    pub qp_num: u32,
    /// The initiator it was made for (UD, XRC); 0 for a connected QP's own lane.
    pub granted: u32,
    /// The owner copies' bounce buffer.
    bounce: OwnerLock<Option<Block>>,
    /// Held by the thread that carries out the initiator's request.
    pub(crate) server: OwnerLock<()>,
    /// Offset of the lane in the arena.
    pub offset: u64,
}

impl OwnedLane {
    /// Makes a lane into the QP at `qp_offset`, whose receives complete on `cq`, behind its `sends` if those do too.
    pub fn create(
        process: &'static Process,
        rq: &Arc<RecvQueue>,
        cq: &Arc<Cq>,
        qp_offset: u64,
        qp_num: u32,
        granted: u32,
        sends: Option<Arc<SendRing>>,
    ) -> Result<Arc<OwnedLane>> {
        // The completions of a connected QP lie in the receives themselves, and so does the time at which they were
        // made.
        let has_cqes = !rq.view.exclusive && !cq.has_timestamps();
        let slots = if rq.view.exclusive { 1 } else { u64::from(rq.max_wr().max(1).next_power_of_two()) };
        let before = if has_cqes { size_of::<CqeRing>() as u64 } else { 0 };
        let ring_block = process.arena.alloc(before + slots * 4)?;
        let lane_block = match process.lane_block() {
            Ok(b) => b,
            Err(e) => {
                process.release(ring_block);
                return Err(e);
            }
        };
        let view = process.arena.view();
        let switch = view.get::<QpShared>(qp_offset).expect("its QP").switch.load(Ordering::Relaxed);
        let switch = view.get::<Switch>(switch).expect("the switch of its QP");
        let offset = lane_block.offset();
        let shared = view.get::<Lane>(offset).expect("just allocated");
        let ring = view.slice::<AtomicU32>(ring_block.offset() + before, slots as usize).expect("just allocated");
        let cqes = has_cqes.then(|| view.get::<CqeRing>(ring_block.offset()).expect("just allocated"));
        clear(shared);
        cqes.into_iter().for_each(clear_cqes);
        let to = &shared.leads_to;
        to.ring.store(ring_block.offset() + before, Ordering::Relaxed);
        to.cqes.store(if has_cqes { ring_block.offset() } else { 0 }, Ordering::Relaxed);
        to.mask.store(slots as u32 - 1, Ordering::Relaxed);
        to.ready_bit.store(cq.next_ready_bit(), Ordering::Relaxed);
        to.cq.store(cq.offset(), Ordering::Relaxed);
        to.qp.store(qp_offset, Ordering::Relaxed);
        to.rq.store(rq.offset, Ordering::Relaxed);
        shared.open.store(1, Ordering::Release);
        let lane = Arc::new_cyclic(|weak: &Weak<OwnedLane>| {
            shared.attention.store(process.attention.add(weak.clone()), Ordering::Relaxed);
            OwnedLane {
                process,
                switch,
                shared,
                gate: Arc::new(LaneGate::new(shared, offset)),
                ring: Arc::new(RecvRing::new(shared, ring, cqes, Arc::clone(rq), qp_num, granted == 0, sends)),
                blocks: [lane_block, ring_block],
                rq: Arc::clone(rq),
                cq: Arc::clone(cq),
                qp_num,
                granted,
                bounce: OwnerLock::new(None),
                server: OwnerLock::default(),
                offset,
            }
        });
        cq.add_source(Source::Receives(Arc::clone(&lane.ring)));
        process.lanes.gates.add(&lane.gate);
        if lane.ring.may_hold_messages() {
            process.lanes.inline.add(offset, Arc::downgrade(&lane) as Weak<dyn InlineReceives>);
        }
        Ok(lane)
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
        // Waits for the end of a piece; a thread that serves the request sees between two pieces that it is gone.
        self.process.lanes.while_not_serving(|| self.shared.request.state.store(request::IDLE, Ordering::SeqCst));
        let psn = self.shared.next_psn();
        let gate = self.shared.gate.load(Ordering::Relaxed);
        self.shared.gate.store((gate | 1).wrapping_add(1), Ordering::Release);
        psn.into_iter().for_each(|psn| self.shared.tell_psn(psn));
        self.ring.count_last();
        // One that died between saying so and setting the ready bit would hide what its successors deliver.
        self.cq.look_at(self.ring.ready_bit());
        self.shared.initiator.store(0, Ordering::Release);
    }

    /// Returns true if nobody has the lane.
    pub(crate) fn is_free(&self) -> bool {
        self.initiator_qpn() == 0
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
    pub(crate) fn close(&self) {
        self.process.shut(std::slice::from_ref(&self.gate));
        self.cq.remove_source(&Source::Receives(Arc::clone(&self.ring)));
        self.process.lanes.gates.remove(&self.gate);
        self.process.lanes.inline.remove(self.offset);
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
        // A peer may keep the lane's address and look at it any time later, so its memory only ever becomes another
        // lane; and not before its initiator, who writes its mark without asking, has given it back.
        self.shared.open.store(0, Ordering::SeqCst);
        self.process.lanes.return_block(lane);
    }
}

impl InlineReceives for OwnedLane {
    fn scatter_waiting(&self, revoked: u32) {
        if self.ring.is_ready() {
            let _polls = self.cq.hold_count();
            self.ring.scatter_waiting(revoked);
        }
    }
}

/// Makes the words of an old lane those of a new one. The in-flight count goes on, even, so that nobody who still knows
/// the old lane can take a mark of the new one for its own.
fn clear(lane: &Lane) {
    let gate = lane.gate.load(Ordering::Relaxed);
    lane.gate.store(gate.wrapping_add(gate & 1), Ordering::Relaxed);
    lane.open.store(0, Ordering::Relaxed);
    lane.cut_off.store(0, Ordering::Relaxed);
    lane.key.store(0, Ordering::Relaxed);
    lane.psn_base.store(0, Ordering::Relaxed);
    lane.produced.store(0, Ordering::Relaxed);
    lane.taken_seen.store(0, Ordering::Relaxed);
    lane.mode.store(found::QUIET, Ordering::Relaxed);
    lane.bounce.store(0, Ordering::Relaxed);
    lane.bounce_len.store(0, Ordering::Relaxed);
    lane.request.state.store(request::IDLE, Ordering::Relaxed);
    lane.unaim();
    // Until now it was nobody's, see `process::gate`.
    lane.initiator.store(0, Ordering::Release);
}

/// Makes an old ring of CQEs an empty one.
fn clear_cqes(ring: &CqeRing) {
    ring.taken.store(0, Ordering::Relaxed);
    for cqe in &ring.entries {
        cqe.turn.store(0, Ordering::Relaxed);
        cqe.published.store(0, Ordering::Relaxed);
    }
}
