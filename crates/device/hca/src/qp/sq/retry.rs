//! The outcome of a request that is refused or not answered (IBA 9.7.5.2.8, 9.7.6.1.3): a status, or another try later.

use crate::arena::layout::slot_of;
use crate::device::port_counters::Word;
use crate::host::clock::now_ns;
use crate::qp::base::QpBase;
use crate::qp::sq::SendQueue;
use crate::qp::sq::requester::Step;
use crate::responder::Responder;
use std::sync::atomic::Ordering;
use vervain_iba::timer::{ack_timeout_ns, rnr_timer_ns};
use vervain_iba::{Nak, QpType, Status};

/// Delay before a process that lets no initiator in is asked again, in ns.
const PAUSED_NS: u64 = 20_000;
/// Longest handshake beyond the QP's own timeout, in ns; a process that is slow gets as much again each time.
const HANDSHAKE_NS: u64 = 1_000_000_000;

/// Time that a silent peer is tried, in ns: the first attempt and `retry_cnt` more, each `4.096 µs × 2^timeout` (IBA
/// 9.7.6.1.3). None for timeout 0, which waits for ever.
pub(crate) fn retry_ns(timeout: u8, retry_cnt: u8) -> Option<u64> {
    ack_timeout_ns(timeout).map(|ns| ns * (u64::from(retry_cnt) + 1))
}

impl SendQueue {
    /// The clock of the QP's timers, in ns: CLOCK_MONOTONIC less the time that the QP has been stopped.
    pub(crate) fn clock(&self) -> u64 {
        now_ns() - self.switch.stood.load(Ordering::SeqCst)
    }

    /// A time of [`SendQueue::clock`] as one of CLOCK_MONOTONIC, if the QP is not stopped until then.
    fn to_monotonic(&self, time: u64) -> u64 {
        time.saturating_add(self.switch.stood.load(Ordering::SeqCst))
    }

    pub(crate) fn deadline_passed(&mut self) -> bool {
        let now = self.clock();
        if self.exec.deadline == 0 {
            self.exec.deadline =
                retry_ns(self.params.timeout, self.params.retry_cnt).map_or(u64::MAX, |ns| now.saturating_add(ns));
        }
        now >= self.exec.deadline
    }

    #[cold]
    pub(crate) fn refused(&mut self, qp: &QpBase, i: usize, target: &Responder, nak: Nak) -> Step {
        let reliable = qp.qp_type().is_reliable();
        let w = &self.wq[i].request;
        let note = |target: &Responder| {
            if let Some((length, right)) = w.reaches() {
                target.note_access(w.rkey, w.remote_addr, length, right);
            }
        };
        match nak {
            Nak::ReceiverNotReady(code) if reliable => self.receiver_not_ready(qp, target, code),
            Nak::Silence => {
                self.start_over(target);
                if reliable { self.silence() } else { Step::Done(Status::Success) }
            }
            // Unreliable services get no answer (IBA 9.8.2.2.6).
            Nak::ReceiverNotReady(_) => {
                qp.tally.add(Word::OutOfBuffer, 1);
                Step::Done(Status::Success)
            }
            _ if !reliable => Step::Done(Status::Success),
            // The request is tried again from the start after the pause, and refused then.
            _ if !target.refuse(nak, note) => {
                self.forget_progress(target);
                Step::Wait(now_ns() + PAUSED_NS)
            }
            Nak::InvalidRequest => Step::Done(Status::RemoteInvalidRequest),
            Nak::RemoteAccess => Step::Done(Status::RemoteAccess),
            Nak::RemoteOperation => Step::Done(Status::RemoteOperation),
        }
    }

    /// IBA 9.7.5.2.8: waits for the time that the responder asked for, at most `rnr_retry` times, 7 meaning for ever. A
    /// receive that is posted meanwhile is used at once: a shortened wait looks the same as a slow message.
    #[cold]
    pub(crate) fn receiver_not_ready(&mut self, qp: &QpBase, target: &Responder, code: u8) -> Step {
        let (now, until) = (self.clock(), self.to_monotonic(self.exec.rnr_until));
        let e = &mut self.exec;
        if e.rnr_until == 0 {
            e.rnr_left = self.params.rnr_retry;
        } else if now < e.rnr_until {
            return Step::Wait(e.next_look().min(until));
        }
        // Counted as a NAK in a packet would be, by its receiver and by its sender.
        qp.tally.add(Word::OutOfBuffer, 1);
        qp.tally.add(Word::RnrNaks, 1);
        if e.rnr_left == 0 {
            return Step::Done(Status::RnrRetryExceeded);
        }
        if e.rnr_left != 7 || self.params.rnr_retry != 7 {
            e.rnr_left -= 1;
        }
        e.rnr_until = now + rnr_timer_ns(code);
        if target.has_receive() {
            return Step::Wait(now_ns());
        }
        Step::Wait(e.next_look().min(now_ns() + rnr_timer_ns(code)))
    }

    /// Waits for the peer's process, which lets no initiator in for a moment.
    pub(crate) fn paused(&self) -> Step {
        Step::Wait(now_ns() + PAUSED_NS)
    }

    /// Waits for a peer that is stopped, with no timer running.
    pub(crate) fn stopped(&mut self) -> Step {
        (self.exec.deadline, self.exec.handshake_until) = (0, 0);
        Step::Wait(self.exec.next_look_at_stopped())
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
    fn forget_progress(&mut self, target: &Responder) {
        if self.exec.asked.is_some() {
            target.withdraw();
        }
        self.exec.done = 0;
        self.exec.claimed = None;
        self.exec.checked = false;
        self.exec.asked = None;
        // Another lane has another bounce buffer, or none yet.
        self.exec.bounced = false;
    }

    /// Retries a request without an answer until `retry_cnt` timeouts have passed (IBA 9.7.6.1.3).
    #[cold]
    pub(crate) fn silence(&mut self) -> Step {
        if self.deadline_passed() { Step::Done(Status::RetryExceeded) } else { Step::Wait(self.exec.next_look()) }
    }

    /// Waits for the handshake with the peer process, which is no silence yet.
    #[cold]
    pub(crate) fn connecting(&mut self, reliable: bool) -> Step {
        let now = self.clock();
        if self.exec.handshake_until == 0 {
            let retries = retry_ns(self.params.timeout, self.params.retry_cnt).unwrap_or(u64::MAX / 2);
            let ns = HANDSHAKE_NS.saturating_add(if reliable { retries } else { 0 });
            self.exec.handshake_until = now.saturating_add(ns);
        }
        if now < self.exec.handshake_until {
            return Step::Wait(self.exec.next_look());
        }
        if reliable && self.process.rendezvous.is_slow(slot_of(self.params.dest_qpn)) {
            // An adapter answers for a process that has no CPU.
            self.exec.handshake_until = now.saturating_add(HANDSHAKE_NS);
            return Step::Wait(self.exec.next_look());
        }
        Step::Done(if reliable { Status::RetryExceeded } else { Status::Success })
    }

    /// Handles a PSN other than the expected one. The responder takes it for a lost or an old request (IBA 9.7.2);
    /// either way it acknowledges nothing.
    #[cold]
    fn other_psn(&mut self, qp: &QpBase, target: &Responder) -> Step {
        target.release();
        if self.exec.deadline == 0 {
            log::info!(
                "QP {:#x}: QP {:#x} expects PSN {:#x}, not {:#x}: the rq_psn of one must be the sq_psn of the other",
                qp.qp_num(),
                self.params.dest_qpn,
                target.expected_psn().unwrap_or_default(),
                self.next_psn()
            );
        }
        self.exec.handshake_until = 0;
        self.silence()
    }

    #[cold]
    pub(crate) fn find_target(&mut self, qp: &QpBase, srqn: Option<u32>) -> Result<Box<Responder>, Step> {
        use crate::qp::sq::resolve::Resolved;
        let reliable = qp.qp_type().is_reliable();
        match crate::qp::sq::resolve::find(self.process, qp, &self.params, srqn) {
            Resolved::Responder(t)
                if qp.qp_type() == QpType::Rc && t.expected_psn().is_some_and(|psn| psn != self.next_psn()) =>
            {
                Err(self.other_psn(qp, &t))
            }
            Resolved::Responder(t) => {
                t.space.tell_of_way(qp.qp_num());
                (self.exec.deadline, self.exec.handshake_until, self.exec.looks) = (0, 0, 0);
                Ok(t)
            }
            Resolved::Connecting => Err(self.connecting(reliable)),
            Resolved::Suspended => Err(self.stopped()),
            Resolved::Nobody if reliable => {
                self.exec.handshake_until = 0;
                Err(self.silence())
            }
            Resolved::Nobody => Err(Step::Done(Status::Success)),
            Resolved::NoSuchSrq => Err(Step::Done(Status::RemoteInvalidRequest)),
        }
    }
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
