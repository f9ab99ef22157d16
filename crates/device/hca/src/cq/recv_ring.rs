//! Receive completions of one lane, from the initiator that delivers to the thread that polls. For the queue of a
//! connected QP they are the receives themselves. For a queue with several claimers there is a ring of CQEs, a cache
//! line each, whose one producer is the initiator; a message that is short enough stands in its CQE, and the thread
//! that polls copies it into the memory of the receive (mlx5 calls that scattering to the CQE). While all CQEs are in
//! use, completions stand in the receives, and a ring of indices that is as long as the queue names those.
//!
//! It is to a lane what [`crate::cq::send_ring`] is to a send queue, and a CQ merges both in the same way.

use crate::arena::layout::{CqShared, CqeRing, INLINE_RECEIVE, IS_INLINE, Inline, Lane, RecvCqe, RecvWqe};
use crate::arena::{ArenaRef, CQES};
use crate::cq::completion::publish;
use crate::cq::send_ring::SendRing;
use crate::host::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::rq::{Receipt, RecvQueue, RqView};
use std::sync::Arc;
use vervain_iba::{Completion, Sge, Status};

/// Completions after which the owner publishes the count that it has taken: often enough that there are free CQEs,
/// seldom enough that the initiator has the line of that count most of the time.
const TELL_AFTER: u32 = CQES.div_ceil(4) as u32;

/// The place of a completion.
enum Stands<'a> {
    InCqe(&'a RecvCqe),
    InReceive,
}

/// The CQE of completion `number`.
#[inline(always)]
fn cqe(ring: &CqeRing, number: u32) -> &RecvCqe {
    &ring.entries[number as usize % CQES]
}

/// The place of completion `number`, whose CQE is `cqe`; None if it has not been published, or if more than `limit`
/// have been published after it.
#[inline(always)]
fn stands(cqe: &RecvCqe, number: u32, limit: u32) -> Option<Stands<'_>> {
    let turn = number.wrapping_add(1);
    if cqe.published.load(Ordering::Acquire).wrapping_sub(turn) > limit {
        return None;
    }
    Some(if cqe.turn.load(Ordering::Relaxed) == turn { Stands::InCqe(cqe) } else { Stands::InReceive })
}

/// The receive completions of one lane, as its initiator makes them.
pub(crate) struct Deliveries<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) ring: &'a ArenaRef<[AtomicU32]>,
    pub(crate) cqes: Option<&'a ArenaRef<CqeRing>>,
    /// The CQ in which they are polled.
    pub(crate) cq: &'a CqShared,
    /// The owner relies on full barriers.
    pub(crate) full_barrier: &'a bool,
}

impl Deliveries<'_> {
    /// Returns true if the next completion has a CQE. The caller is the ring's only producer, so this holds until it
    /// pushes that.
    #[inline(always)]
    pub(crate) fn has_cqe(&self) -> bool {
        self.free_cqe(self.lane.produced.load(Ordering::Relaxed)).is_some()
    }

    #[inline(always)]
    fn free_cqe(&self, number: u32) -> Option<&RecvCqe> {
        let ring = self.cqes?;
        let in_use = |taken: u32| number.wrapping_sub(taken) as usize;
        if in_use(self.lane.taken_seen.load(Ordering::Relaxed)) >= CQES {
            // The owner has read what it took.
            let taken = ring.taken.load(Ordering::Acquire);
            self.lane.taken_seen.store(taken, Ordering::Relaxed);
            if in_use(taken) >= CQES {
                return None;
            }
        }
        Some(cqe(ring, number))
    }

    /// Publishes `receipt` as the completion of receive `index` of `rq`, `wqe`, which the caller has claimed, with the
    /// message itself if that is `inline`: only where [`Deliveries::has_cqe`]. The caller is the ring's only producer.
    /// True when the CQ asks for more.
    #[inline(always)]
    pub(crate) fn push(
        &self,
        rq: &RqView,
        index: u32,
        wqe: &RecvWqe,
        receipt: &Receipt,
        inline: Option<&Inline>,
    ) -> bool {
        let lane = self.lane;
        let produced = lane.produced.load(Ordering::Relaxed);
        let next = produced.wrapping_add(1);
        let into_receive = || receipt.write_into(wqe, self.cq.timestamps.load(Ordering::Relaxed) != 0);
        if rq.exclusive {
            into_receive();
            rq.complete_exclusive(wqe);
        } else if let Some(cqe) = self.free_cqe(produced) {
            cqe.wqe.store(if inline.is_some() { index | IS_INLINE } else { index }, Ordering::Relaxed);
            receipt.write(&cqe.completed);
            for (to, word) in cqe.data.iter().zip(inline.into_iter().flatten()) {
                to.store(*word, Ordering::Relaxed);
            }
            cqe.turn.store(next, Ordering::Relaxed);
            // The owner may take it from now on.
            cqe.published.store(next, Ordering::Release);
        } else {
            into_receive();
            self.ring[produced as usize & (self.ring.len() - 1)].store(index, Ordering::Relaxed);
            if let Some(ring) = self.cqes {
                cqe(ring, produced).published.store(next, Ordering::Release);
            }
        }
        let bit = lane.leads_to.ready_bit.load(Ordering::Relaxed);
        publish(self.cq, &lane.produced, next, &lane.mode, bit, self.full_barrier)
    }
}

/// The receive completions of one lane, as its owner takes them.
pub(crate) struct RecvRing {
    /// The lane.
    pub(crate) lane: &'static Lane,
    ring: &'static [AtomicU32],
    cqes: Option<&'static CqeRing>,
    /// Receive completions taken.
    consumed: AtomicU32,
    /// By CQE: its message was put into the memory of its receive before it was taken. Under the CQ's lock.
    scattered: AtomicU32,
    /// Most that can be published and not taken.
    limit: u32,
    /// The queue that the receives come from.
    pub(crate) rq: Arc<RecvQueue>,
    /// QP number that completions carry.
    qp_num: u32,
    /// CQEs may hold messages.
    inline: bool,
    /// The completions of the same QP's sends, if they come to the same CQ.
    sends: Option<Arc<SendRing>>,
    /// Receives that were found and not taken, for want of room, and in the low half the number of completions of sends
    /// that come before them; 0: there are none.
    found: AtomicU64,
}

impl RecvRing {
    /// The completions of `lane`, with its `cqes`, and its `ring` of indices, which is as long as `rq`; for the queue
    /// of a connected QP without `cqes`, the ring is not used. Messages in CQEs are taken for such if they may be
    /// `inline`. The QP's completions of `sends` come to the same CQ.
    pub(crate) fn new(
        lane: &'static Lane,
        ring: &'static [AtomicU32],
        cqes: Option<&'static CqeRing>,
        rq: Arc<RecvQueue>,
        qp_num: u32,
        inline: bool,
        sends: Option<Arc<SendRing>>,
    ) -> RecvRing {
        let ([consumed, scattered], found) = ([0; 2].map(AtomicU32::new), AtomicU64::new(0));
        RecvRing { lane, ring, cqes, consumed, scattered, limit: rq.max_wr(), rq, qp_num, inline, sends, found }
    }

    /// Returns true if there may be messages in CQEs.
    pub(crate) fn may_hold_messages(&self) -> bool {
        self.inline && self.cqes.is_some()
    }

    /// The initiator has died. It may have published a completion and not have counted it; the next one goes on behind
    /// that.
    pub(crate) fn count_last(&self) {
        let produced = self.lane.produced.load(Ordering::Acquire);
        if self.cqes.is_some_and(|ring| stands(cqe(ring, produced), produced, self.limit).is_some()) {
            self.lane.produced.store(produced.wrapping_add(1), Ordering::Release);
        }
    }

    /// The lane's bit in its CQ.
    pub(crate) fn ready_bit(&self) -> u32 {
        self.lane.leads_to.ready_bit.load(Ordering::Relaxed)
    }

    /// Completions to be taken.
    pub(crate) fn pending(&self) -> u32 {
        let consumed = self.consumed.load(Ordering::Relaxed);
        let mut end = self.lane.produced.load(Ordering::Acquire);
        if let Some(ring) = self.cqes {
            // The last one may have been published, and taken, without being counted.
            if end == consumed.wrapping_sub(1) {
                end = consumed;
            }
            end = end.wrapping_add(u32::from(stands(cqe(ring, end), end, self.limit).is_some()));
        }
        let pending = end.wrapping_sub(consumed);
        // A count that runs further ahead than there are receives is damage by the peer, not data.
        if pending > self.limit { 0 } else { pending }
    }

    /// Returns true if there is a completion to be taken.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        if self.rq.view.exclusive {
            self.rq.is_completed()
        } else {
            self.stands(self.consumed.load(Ordering::Relaxed)).is_some()
        }
    }

    /// The place of completion `number`, the next one to be taken; None if it has not been published. With CQEs the
    /// line of the count stays with the initiator.
    #[inline(always)]
    fn stands(&self, number: u32) -> Option<Stands<'_>> {
        match self.cqes {
            Some(ring) => stands(cqe(ring, number), number, self.limit),
            None => (self.pending() != 0).then_some(Stands::InReceive),
        }
    }

    /// Takes up to `max` completions, before them those of the same QP's sends that were there when they were found;
    /// returns how many. An adapter's CQ is one queue: a program that finds the answer to a message has found the
    /// completion of the message. The caller holds the CQ's queue.
    #[inline(always)]
    pub(crate) fn take_in_turn(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        match &self.sends {
            Some(sends) => self.take_behind(sends, max, sink),
            None => self.take(max, sink),
        }
    }

    #[inline(never)]
    fn take_behind(&self, sends: &SendRing, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        let mut taken = 0;
        while taken < max {
            let (here, until) = match self.found.load(Ordering::Relaxed) {
                0 if !self.is_ready() => break,
                // What came before these is seen after them. The count of one may be to come yet.
                0 => (self.pending().max(1), sends.produced()),
                found => ((found >> 32) as u32, found as u32),
            };
            let before = sends.pending_until(until).min(max - taken);
            if before > 0 {
                taken += sends.take(before, sink);
            }
            let room = (here as usize).min(max - taken);
            let got = self.take(room, sink);
            taken += got;
            let rest = u64::from(here) - got as u64;
            // Completions of sends that come from now on are behind the rest.
            self.found
                .store(if got == room && rest > 0 { rest << 32 | u64::from(until) } else { 0 }, Ordering::Relaxed);
            if got == 0 {
                break;
            }
        }
        taken
    }

    /// Takes all, out of turn: what lies in [`RecvRing::sends`] by then comes before them.
    pub(crate) fn settle(&self, sink: &mut impl FnMut(&Completion)) -> usize {
        self.found.store(0, Ordering::Relaxed);
        self.take(usize::MAX, sink)
    }

    /// The completions of the QP's sends, if they come to the same CQ.
    pub(crate) fn sends(&self) -> Option<&Arc<SendRing>> {
        self.sends.as_ref()
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
        let first = self.consumed.load(Ordering::Relaxed);
        let (mut at, mut taken) = (first, 0);
        // A peer that goes on and on is damaged too.
        while (at.wrapping_sub(first) as usize) < max.min(self.limit as usize) {
            let completion = match self.stands(at) {
                Some(Stands::InCqe(cqe)) => self.take_cqe(at, cqe),
                Some(Stands::InReceive) => {
                    let index = self.ring[at as usize & (self.ring.len() - 1)].load(Ordering::Relaxed);
                    self.rq.take(index, self.qp_num)
                }
                None => break,
            };
            at = at.wrapping_add(1);
            self.consumed.store(at, Ordering::Release);
            if at.is_multiple_of(TELL_AFTER)
                && let Some(ring) = self.cqes
            {
                ring.taken.store(at, Ordering::Release);
            }
            // None for an index of no receive in use: that is damage again, and dropped.
            if let Some(completion) = completion {
                sink(&completion);
                taken += 1;
            }
        }
        taken
    }

    #[inline]
    fn take_cqe(&self, number: u32, cqe: &RecvCqe) -> Option<Completion> {
        let wqe = cqe.wqe.load(Ordering::Relaxed);
        let (index, receipt) = (wqe & !IS_INLINE, Receipt::read(&cqe.completed));
        if !self.inline || wqe & IS_INLINE == 0 || self.is_scattered(number) {
            return self.rq.take_with(index, &receipt, self.qp_num);
        }
        // It is no longer outstanding before its memory is touched, which is the device's until the completion is
        // handed over.
        let memory = self.rq.first_sge(index)?;
        let mut completion = self.rq.take_with(index, &receipt, self.qp_num)?;
        if !self.scatter(cqe, memory, false) {
            completion.status = Status::LocalProtection.to_verbs();
            self.rq.fail_qp(self.lane.leads_to.qp.load(Ordering::Relaxed));
        }
        Some(completion)
    }

    /// Returns true if the message of completion `number` was scattered before; forgets that.
    #[inline]
    fn is_scattered(&self, number: u32) -> bool {
        let scattered = self.scattered.load(Ordering::Relaxed);
        let bit = 1 << (number as usize % CQES);
        if scattered & bit != 0 {
            self.scattered.store(scattered & !bit, Ordering::Relaxed);
        }
        scattered & bit != 0
    }

    /// Puts the message of `cqe` into `memory`, that of its receive; false if that is not possible.
    #[inline]
    fn scatter(&self, cqe: &RecvCqe, memory: Sge, is_revoked: bool) -> bool {
        let message: Inline = std::array::from_fn(|i| cqe.data[i].load(Ordering::Relaxed));
        let length = cqe.completed.byte_len.load(Ordering::Relaxed);
        length as usize <= INLINE_RECEIVE
            && length <= memory.length
            && self.rq.scatter(&Sge { length, ..memory }, &message, is_revoked)
    }

    /// Puts the messages that wait in CQEs for receives with the key `revoked` into their memory, which the program may
    /// take back after that. The caller holds the CQ's queue.
    pub(crate) fn scatter_waiting(&self, revoked: u32) {
        let Some(ring) = self.cqes else { return };
        let first = self.consumed.load(Ordering::Relaxed);
        for number in (0..CQES as u32).map(|i| first.wrapping_add(i)) {
            let cqe = cqe(ring, number);
            let bit = 1 << (number as usize % CQES);
            let scattered = self.scattered.load(Ordering::Relaxed);
            if matches!(stands(cqe, number, self.limit), Some(Stands::InCqe(_)))
                && cqe.wqe.load(Ordering::Relaxed) & IS_INLINE != 0
                && scattered & bit == 0
                && let Some(memory) = self.rq.outstanding_sge(cqe.wqe.load(Ordering::Relaxed) & !IS_INLINE)
                && memory.lkey == revoked
                && self.scatter(cqe, memory, true)
            {
                self.scattered.store(scattered | bit, Ordering::Relaxed);
            }
        }
    }
}
