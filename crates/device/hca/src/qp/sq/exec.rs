//! The progress of the request at the head of a send queue, and its timers: the time until which a silent peer, one
//! without a receive, or one in the handshake is tried (IBA 9.7.5.2.8, 9.7.6.1.3).

use crate::arena::layout::{Switch, request};
use crate::device::port_counters::Word;
use crate::host::clock::now_ns;
use crate::owner_copy::owner::result_of;
use crate::qp::base::QpBase;
use crate::qp::sq::path::Params;
use crate::responder::Responder;
use std::sync::atomic::Ordering;
use vervain_iba::Status;
use vervain_iba::timer::{ack_timeout_ns, rnr_timer_ns};

/// Delay before a process that lets no initiator in is asked again, in ns.
const PAUSED_NS: u64 = 20_000;
/// Longest handshake beyond the QP's own timeout, in ns; a process that is slow gets as much again each time.
const HANDSHAKE_NS: u64 = 1_000_000_000;
/// Base of the delay before the progress thread looks again, in ns, while the peer is silent, has no receive, or is in
/// the handshake. The delay doubles with each look, up to `LAST_LOOK_NS`.
const FIRST_LOOK_NS: u64 = 50_000;
const LAST_LOOK_NS: u64 = 1_000_000;
/// Longest delay before a look at a stopped peer, in ns; a peer that goes on announces it.
const LAST_LOOK_AT_STOPPED_NS: u64 = 50_000_000;

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The request is done, with this status.
    Done(Status),
    /// The budget is spent.
    Again,
    /// Nothing can be done before this time (CLOCK_MONOTONIC, ns).
    Wait(u64),
}

impl Step {
    /// Waits for the peer's process, which lets no initiator in for a moment.
    #[cold]
    pub(crate) fn paused() -> Step {
        Step::Wait(now_ns() + PAUSED_NS)
    }
}

/// Progress of the request at the head.
#[derive(Clone, Copy, Default)]
pub(crate) struct Exec {
    /// Bytes moved.
    pub done: u64,
    /// The receive that this message fills.
    pub claimed: Option<u32>,
    /// Local and remote checks are made.
    pub checked: bool,
    /// The request that the owner was asked to carry out.
    pub asked: Option<Asked>,
    /// The owner has made its bounce buffer as large as it can.
    pub bounced: bool,
    /// Its timers.
    pub retry: Retry,
    /// An atomic has been carried out, and its answer could not be stored.
    pub unanswered: bool,
    /// It had been begun when its QP was saved, and is begun anew.
    pub resumed: bool,
    /// Bytes that process_vm calls have moved.
    pub(crate) by_vm: u64,
    /// Bytes that the owner has moved.
    pub(crate) by_owner: u64,
}

impl Exec {
    /// Returns true if the request may have had an effect.
    pub(crate) fn begun(&self) -> bool {
        self.checked || self.asked.is_some() || self.resumed
    }

    /// Returns true if an adapter would have sent it by now: it waits for a handshake or for an owner, or it has not
    /// been tried, as it has had no looks. A request that was tried and waits for another reason does not count.
    pub(crate) fn is_due(&self) -> bool {
        self.retry.handshake_until != 0 || self.asked.is_some() || self.retry.looks == 0
    }

    /// Returns true if it waits for a receive of the peer's (IBA 9.7.5.2.8).
    pub(crate) fn waits_for_receive(&self) -> bool {
        self.retry.rnr_until != 0 && self.claimed.is_none()
    }

    /// Looks for `target` anew: it was saved and has left its place, and is restored elsewhere or not at all.
    #[cold]
    pub(crate) fn look_anew(&mut self, target: &Responder) -> Step {
        self.start_over(target);
        Step::Wait(now_ns())
    }

    /// Begins the request anew: its bytes are moved again from the start, as by a retransmission.
    pub(crate) fn start_over(&mut self, target: &Responder) {
        self.forget_progress(target);
        target.release();
    }

    /// Forgets the progress of the request; the next try goes through the same lane.
    pub(crate) fn forget_progress(&mut self, target: &Responder) {
        if self.asked.is_some() {
            target.withdraw();
        }
        self.done = 0;
        self.claimed = None;
        self.checked = false;
        self.asked = None;
        // Another lane has another bounce buffer, or none yet.
        self.bounced = false;
    }

    /// Returns true if the owner has done the last piece of this request of `length` bytes, which changes its memory.
    /// The request then counts as done, whatever the owner's program does next: it sees the last byte, and may end its
    /// QP, deregister the memory or exit at once.
    #[cold]
    pub(crate) fn has_answer(&self, length: u64, target: &Responder) -> bool {
        let r = &target.lane.request;
        let ends = |asked: &Asked| asked.changes() && self.done + asked.len == length;
        self.asked.as_ref().is_some_and(ends)
            && self.claimed.is_none()
            && r.state.load(Ordering::Acquire) == request::DONE
            && result_of(r.status.load(Ordering::Relaxed)).is_ok()
            && target.has_lane()
    }

    /// Takes that answer. Returns true if it has come.
    #[cold]
    pub(crate) fn takes_answer(&mut self, length: u64, target: &Responder) -> bool {
        let has = self.has_answer(length, target);
        if has {
            self.by_owner += self.asked.map_or(0, |asked| asked.len);
            self.over(target);
        }
        has
    }

    /// Ends a request to the owner that is answered.
    pub(crate) fn over(&mut self, target: &Responder) {
        target.lane.request.state.store(request::IDLE, Ordering::Relaxed);
        self.asked = None;
        self.retry.answered();
    }
}

/// A request to the owner.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub op: u32,
    pub len: u64,
    /// Bytes that this side has passed through the bounce buffer.
    pub moved: u64,
    /// Bytes that the owner had passed at the last look.
    pub seen: u64,
}

impl Asked {
    /// Returns true if the request changes the owner's memory.
    fn changes(&self) -> bool {
        matches!(self.op, request::WRITE | request::COMPARE_SWAP | request::FETCH_ADD)
    }
}

/// The timers of the request at the head. All times are ns of the QP's [`clock`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Retry {
    /// Time at which silence becomes an error; 0 while the peer answers.
    deadline: u64,
    /// Time at which a handshake under way counts as silence; 0: none is under way.
    handshake_until: u64,
    /// Receiver not ready: the time of the next try (0: the receiver is ready), and the tries left. Those are a word,
    /// so that whole words are reset with each request.
    rnr_until: u64,
    rnr_left: u32,
    /// How often it was looked at without progress.
    looks: u32,
}

impl Retry {
    /// Returns true while the peer answers: no silence is being timed.
    pub(crate) fn is_answered(&self) -> bool {
        self.deadline == 0
    }

    /// The owner is at work, or has answered.
    pub(crate) fn answered(&mut self) {
        (self.deadline, self.looks) = (0, 0);
    }

    /// The way to the peer is found.
    pub(crate) fn reached(&mut self) {
        (self.deadline, self.handshake_until, self.looks) = (0, 0, 0);
    }

    /// No handshake is under way: what comes now is silence.
    pub(crate) fn end_handshake(&mut self) {
        self.handshake_until = 0;
    }

    /// Counts a look without progress. Returns how many there were.
    pub(crate) fn count_look(&mut self) -> u32 {
        self.looks += 1;
        self.looks
    }

    fn next_look(&mut self) -> u64 {
        now_ns() + (FIRST_LOOK_NS << self.count_look().min(5)).min(LAST_LOOK_NS)
    }

    /// Returns true if the peer has been silent for as long as the QP's attributes allow.
    pub(crate) fn deadline_passed(&mut self, params: &Params, switch: &Switch) -> bool {
        let now = clock(switch);
        if self.deadline == 0 {
            self.deadline = retry_ns(params.timeout, params.retry_cnt).map_or(u64::MAX, |ns| now.saturating_add(ns));
        }
        now >= self.deadline
    }

    /// Retries a request without an answer until `retry_cnt` timeouts have passed (IBA 9.7.6.1.3).
    #[cold]
    pub(crate) fn silence(&mut self, params: &Params, switch: &Switch) -> Step {
        if self.deadline_passed(params, switch) {
            Step::Done(Status::RetryExceeded)
        } else {
            Step::Wait(self.next_look())
        }
    }

    /// Waits for a peer that is stopped, with no timer running.
    #[cold]
    pub(crate) fn stopped(&mut self) -> Step {
        (self.deadline, self.handshake_until) = (0, 0);
        Step::Wait(now_ns() + (FIRST_LOOK_NS << self.count_look().min(10)).min(LAST_LOOK_AT_STOPPED_NS))
    }

    /// IBA 9.7.5.2.8: waits for the time that the responder asked for by `code`, at most `rnr_retry` times, 7 meaning
    /// for ever. A receive that is posted meanwhile is used at once: a shortened wait looks the same as a slow message.
    #[cold]
    pub(crate) fn receiver_not_ready(&mut self, qp: &QpBase, params: &Params, target: &Responder, code: u8) -> Step {
        let now = clock(qp.switch);
        if self.rnr_until == 0 {
            self.rnr_left = params.rnr_retry.into();
        } else if now < self.rnr_until {
            // If the QP is not stopped until then.
            let until = self.rnr_until.saturating_add(qp.switch.stood.load(Ordering::SeqCst));
            return Step::Wait(self.next_look().min(until));
        }
        // Counted as a NAK in a packet would be, by its receiver and by its sender.
        qp.tally.add(Word::OutOfBuffer, 1);
        qp.tally.add(Word::RnrNaks, 1);
        if self.rnr_left == 0 {
            return Step::Done(Status::RnrRetryExceeded);
        }
        if self.rnr_left != 7 || params.rnr_retry != 7 {
            self.rnr_left -= 1;
        }
        self.rnr_until = now + rnr_timer_ns(code);
        if target.has_receive() {
            return Step::Wait(now_ns());
        }
        Step::Wait(self.next_look().min(now_ns() + rnr_timer_ns(code)))
    }

    /// Waits for the handshake with the peer process, which is no silence yet. `is_slow`: that process lives, but has
    /// had no CPU.
    #[cold]
    pub(crate) fn connecting(
        &mut self,
        params: &Params,
        switch: &Switch,
        reliable: bool,
        is_slow: impl FnOnce() -> bool,
    ) -> Step {
        let now = clock(switch);
        if self.handshake_until == 0 {
            let retries = retry_ns(params.timeout, params.retry_cnt).unwrap_or(u64::MAX / 2);
            let ns = HANDSHAKE_NS.saturating_add(if reliable { retries } else { 0 });
            self.handshake_until = now.saturating_add(ns);
        }
        if now < self.handshake_until {
            return Step::Wait(self.next_look());
        }
        if reliable && is_slow() {
            // An adapter answers for a process that has no CPU.
            self.handshake_until = now.saturating_add(HANDSHAKE_NS);
            return Step::Wait(self.next_look());
        }
        Step::Done(if reliable { Status::RetryExceeded } else { Status::Success })
    }
}

/// The clock of a QP's timers, in ns: CLOCK_MONOTONIC less the time that the QP has been stopped. `switch`: that of its
/// context.
pub(crate) fn clock(switch: &Switch) -> u64 {
    now_ns() - switch.stood.load(Ordering::SeqCst)
}

/// Time that a silent peer is tried, in ns: the first attempt and `retry_cnt` more, each `4.096 µs × 2^timeout` (IBA
/// 9.7.6.1.3). None for timeout 0, which waits for ever.
fn retry_ns(timeout: u8, retry_cnt: u8) -> Option<u64> {
    ack_timeout_ns(timeout).map(|ns| ns * (u64::from(retry_cnt) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_those_of_the_specification() {
        assert_eq!(retry_ns(0, 7), None);
        assert_eq!(retry_ns(14, 7), Some(4096 * 16384 * 8));
        assert_eq!(
            (rnr_timer_ns(0), rnr_timer_ns(1), rnr_timer_ns(12), rnr_timer_ns(31)),
            (655_360_000, 10_000, 640_000, 491_520_000)
        );
    }
}
