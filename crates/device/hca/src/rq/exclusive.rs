//! The receive queue of a connected QP. One initiator at a time takes from it, in order, so a receive is a cache line
//! that goes back and forth: the owner posts by writing its turn, the initiator takes it, fills the buffer and writes
//! the completion into the same line, and the owner polls that line. Nothing else of the queue moves between the two
//! CPUs.

use crate::arena::layout::RecvWqe;
use crate::error::Result;
use crate::host::atomic::Ordering;
use crate::rq::{RecvQueue, RqView};
use vervain_iba::{Completion, Sge};

/// [`RecvWqe::turn`] of a receive that was posted at `position`, and waits.
fn posted(position: u64) -> u32 {
    (position as u32) << 1
}

/// [`RecvWqe::turn`] of a receive that was posted at `position`, and is completed.
fn completed(position: u64) -> u32 {
    posted(position) | 1
}

impl RqView {
    /// Takes the oldest receive. Only the holder of the QP's lane calls it.
    #[inline]
    pub(crate) fn claim_exclusive(&self) -> Option<u32> {
        let head = self.shared.head.first.load(Ordering::Relaxed);
        let wqe = (head & self.mask) as u32;
        if self.wqe(wqe)?.turn.load(Ordering::Acquire) != posted(head) {
            return None;
        }
        self.shared.head.first.store(head.wrapping_add(1), Ordering::Relaxed);
        Some(wqe)
    }

    /// Publishes the completion that was written into `wqe`, which the caller has claimed.
    #[inline]
    pub(crate) fn complete_exclusive(&self, wqe: &RecvWqe) {
        let turn = wqe.turn.load(Ordering::Relaxed);
        wqe.turn.store(turn | 1, Ordering::Release);
    }

    /// Puts `wqe` back, which was claimed last and not completed: the message that it was for is dropped. Only the
    /// holder of the QP's lane calls it.
    #[cold]
    pub(crate) fn unclaim_exclusive(&self, wqe: u32) {
        let last = self.shared.head.first.load(Ordering::Relaxed).wrapping_sub(1);
        let waits = || self.wqe(wqe).is_some_and(|w| w.turn.load(Ordering::Acquire) == posted(last));
        if (last & self.mask) as u32 == wqe && waits() {
            self.shared.head.first.store(last, Ordering::Relaxed);
        }
    }
}

impl RecvQueue {
    /// Posts one receive.
    #[inline]
    pub(crate) fn post_exclusive(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let mut state = self.state.lock();
        let tail = state.tail;
        if tail - self.taken.load(Ordering::Acquire) >= u64::from(self.max_wr) {
            return Err(self.full());
        }
        let wqe = self.fill((tail & self.view.mask) as u32, wr_id, sges)?;
        wqe.turn.store(posted(tail), Ordering::Release);
        state.tail = tail + 1;
        self.view.shared.tail.first.store(tail + 1, Ordering::Release);
        Ok(())
    }

    /// Returns true if the oldest receive is completed.
    #[inline]
    pub(crate) fn is_completed(&self) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        let wqe = self.view.wqe((taken & self.view.mask) as u32);
        wqe.is_some_and(|w| w.turn.load(Ordering::Acquire) == completed(taken))
    }

    /// Takes the oldest receive if it is completed. The caller holds the CQ's queue.
    #[inline]
    pub(crate) fn take_completed(&self, qp_num: u32) -> Option<Completion> {
        let taken = self.taken.load(Ordering::Relaxed);
        let index = (taken & self.view.mask) as u32;
        let wqe = self.view.wqe(index)?;
        if wqe.turn.load(Ordering::Acquire) != completed(taken) {
            return None;
        }
        let completion = self.completion(wqe, index, qp_num);
        self.taken.store(taken + 1, Ordering::Release);
        Some(completion)
    }

    /// Puts the receive back that was claimed and not completed, if there is one. Its claimer has ended.
    pub(crate) fn unclaim_last(&self) {
        let head = &self.view.shared.head.first;
        let taken = self.taken.load(Ordering::Relaxed);
        let is_claimed = head.load(Ordering::Relaxed) == taken + 1 && !self.is_completed();
        if self.view.exclusive && is_claimed {
            head.store(taken, Ordering::Relaxed);
        }
    }

    /// Takes all that are posted: their cookies. Nobody is in flight, and what was completed has been taken.
    pub(crate) fn flush_exclusive(&self) -> Vec<u64> {
        let state = self.state.lock();
        let taken = self.taken.load(Ordering::Relaxed);
        let cookie =
            |p: u64| self.posted.get((p & self.view.mask) as usize).map(|posted| posted.wr_id.load(Ordering::Relaxed));
        let cookies = (taken..state.tail).filter_map(cookie).collect();
        self.view.shared.head.first.store(state.tail, Ordering::Release);
        self.taken.store(state.tail, Ordering::Release);
        cookies
    }
}
