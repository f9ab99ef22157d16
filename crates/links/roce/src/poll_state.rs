//! State shared by the threads that poll, wait and send, and the progress thread: the time of its next visit, and the
//! work that waits for it.

use super::idle_probe::IdleProbe;
use super::poll_rate::PollRate;
use super::timers::{NEVER, Timer, Timers};
use super::waiters::Waiters;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vervain_hca::Qp;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::host::tid::tid;
use vervain_hca::now_ns;
use vervain_hca::process::Process;

/// The progress thread comes by so often at first, and at last, while the program polls.
pub(super) const FIRST_TICK_NS: u64 = 100_000;
pub(super) const LAST_TICK_NS: u64 = 400_000;
/// Nanoseconds within which the program's last poll is recent.
pub(super) const RECENT_NS: u64 = 1_000_000;

/// State shared by the threads.
#[derive(Default)]
pub(super) struct PollState {
    /// Timers of requesters.
    pub timers: Timers,
    /// Packets wait in a batch for others, or requests of `corked_qps`.
    corked: AtomicBool,
    corked_qps: OwnerLock<Vec<Weak<Qp>>>,
    /// Rate at which polls ask for packets.
    pub rate: PollRate,
    /// Threads of the program that sleep for events, and how often one of them has received.
    pub waiters: Waiters,
    pub waits: AtomicU32,
    /// Time at which the progress thread wakes by itself; 0: it is awake.
    pub sleeps_until: AtomicU64,
    /// Earliest time at which it is wanted and that it has not read yet, as [`NEVER`] less that time; 0: none.
    pub wanted: AtomicU64,
    /// The progress thread, once it has come by.
    pub thread: AtomicU32,
    /// Of the progress thread alone: the number of the program's polls, the time of the last of them, and the interval
    /// of its own visits.
    pub polls: AtomicU32,
    pub active_at: AtomicU64,
    pub tick: AtomicU64,
    pub idle_probe: OwnerLock<IdleProbe>,
    /// The program's answers to what that thread takes in.
    pub answers: Answers,
}

/// Nanoseconds after an acknowledgement within which a post is taken for the answer to what was acknowledged.
const ANSWER_NS: u64 = 200_000;

/// The answers of a program that does not poll. One that looks for messages in its memory gives them soon: what the
/// progress thread takes in for it is acknowledged along with the answer, so that the peer's program polls until that
/// comes. One that only lends its memory gives none, and its peer waits for acknowledgements.
#[derive(Default)]
pub(super) struct Answers {
    /// Time of the thread's last acknowledgement.
    acknowledged_at: AtomicU64,
    are_expected: AtomicBool,
}

impl Answers {
    /// Returns true if an acknowledgement may wait for an answer.
    #[inline]
    pub(super) fn are_expected(&self) -> bool {
        self.are_expected.load(Ordering::Relaxed)
    }

    /// The thread acknowledges something at `now`: no answer has come in time.
    pub(super) fn acknowledged(&self, now: u64) {
        self.are_expected.store(false, Ordering::Relaxed);
        self.acknowledged_at.store(now, Ordering::Relaxed);
    }

    /// The program posts at `now`.
    #[inline]
    pub(super) fn posted(&self, now: u64) {
        if now.wrapping_sub(self.acknowledged_at.load(Ordering::Relaxed)) < ANSWER_NS {
            self.are_expected.store(true, Ordering::Relaxed);
        }
    }
}

impl PollState {
    /// Makes the progress thread come by at `at`, or at its next visit if it comes anyway: waking it costs more than a
    /// small message, and while the program polls, that does the work itself.
    pub(super) fn ensure(&self, process: &'static Process, at: u64) {
        // That thread stores its waking time and then reads this; so either it reads this value, or this reads its
        // waking time.
        self.wanted.fetch_max(NEVER - at, Ordering::SeqCst);
        if self.sleeps_until.load(Ordering::SeqCst) > at.saturating_add(LAST_TICK_NS) {
            process.wake_for_packets();
        }
    }

    /// At a visit of the progress thread, after `looks` polls of the program: whether the program has polled since the
    /// last visit, and so receives packets itself, as one that now `sleeps` does not; and whether its last poll is
    /// recent.
    pub(super) fn activity(&self, now: u64, looks: u32, sleeps: bool) -> (bool, bool) {
        let polls = looks.wrapping_add(self.waits.load(Ordering::Relaxed));
        let too_soon = self.idle_probe.lock().is_too_soon(now);
        let is_active = polls != self.polls.swap(polls, Ordering::Relaxed) || too_soon;
        if is_active {
            self.active_at.store(now, Ordering::Relaxed);
        }
        let recent = now.saturating_sub(self.active_at.load(Ordering::Relaxed)) < RECENT_NS;
        (is_active && !sleeps, recent)
    }

    /// Returns true if posts may wait for others ([`vervain_hca::process::packets::Sleeper`]).
    #[inline]
    pub(super) fn posts_may_wait(&self) -> bool {
        Process::current().is_none_or(|process| process.packets.sleeper().posts_may_wait())
    }

    /// Packets of a post wait in a batch for others: the next poll of the program sends them, or the progress thread.
    /// The caller holds the batch. If others wait there already, the thread that is to send those sends these too: it
    /// clears the mark before it locks the batch.
    #[inline]
    pub(super) fn cork_post(&self, now: impl FnOnce() -> u64) {
        if self.corked.load(Ordering::Relaxed) || self.corked.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(process) = Process::current() {
            process.packets.set_poll_interval(1);
            self.ensure(process, now() + FIRST_TICK_NS);
        }
    }

    /// Requests that were posted to `qp` wait for others to be begun with: the thread that sends the packets which wait
    /// for others begins them.
    pub(super) fn cork_requests(&self, qp: &Weak<Qp>) {
        let mut corked = self.corked_qps.lock();
        if !corked.iter().any(|other| other.ptr_eq(qp)) {
            corked.push(Weak::clone(qp));
        }
        drop(corked);
        self.cork_post(now_ns);
    }

    /// Begins the requests that wait for others, unless their QP is in the hands of another thread: then they wait on.
    pub(super) fn begin_corked(&self) {
        let qps = std::mem::take(&mut *self.corked_qps.lock());
        for qp in qps {
            if qp.upgrade().is_some_and(|qp| !qp.go_on()) {
                self.cork_requests(&qp);
            }
        }
    }

    /// Makes packets that result from a received one wait for those that result from others: the receiving thread sends
    /// them when a poll ends.
    #[inline]
    pub(super) fn cork_follow_up(&self) {
        if !self.corked.load(Ordering::Relaxed) {
            self.corked.store(true, Ordering::SeqCst);
        }
    }

    /// A thread sends. One of the program's that is at it will poll, as far as can be told.
    #[inline]
    pub(super) fn sends(&self) {
        self.rate.activity();
        let Some(process) = Process::current() else { return };
        process.packets.set_poll_interval(1);
        if tid() != self.thread.load(Ordering::Relaxed) {
            process.packets.count_look();
        }
    }

    /// Sets a requester's timer to `deadline`.
    pub(super) fn set_timer(&self, timer: &Timer, deadline: Option<u64>) {
        if self.timers.set(timer, deadline)
            && let (Some(at), Some(process)) = (deadline, Process::current())
        {
            self.ensure(process, at);
        }
    }

    /// Returns true if packets or requests wait.
    #[inline]
    pub(super) fn is_corked(&self) -> bool {
        self.corked.load(Ordering::Relaxed)
    }

    /// Returns true if packets wait in a batch for others, and clears that: the caller sends them, and before that what
    /// [`PollState::begin_corked`] adds.
    #[inline]
    pub(super) fn take_corked(&self) -> bool {
        self.corked.load(Ordering::Relaxed) && self.corked.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_sleeps_for_an_event_receives_nothing_though_it_has_just_polled() {
        let (state, now) = (PollState::default(), 1 << 40);
        assert_eq!(state.activity(now, 1, false), (true, true));
        assert_eq!(state.activity(now + 1, 2, true), (false, true), "its acknowledgements may wait for its answer");
        assert_eq!(state.activity(now + 2, 3, false), (true, true));
        assert_eq!(state.activity(now + 2 + RECENT_NS, 3, false), (false, false));
    }

    #[test]
    fn requests_that_wait_are_marked_until_the_next_thread_that_sends_begins_them() {
        let state = PollState::default();
        // A QP that is gone has nothing to begin, and nothing of it stays.
        let qp = Weak::new();
        for round in 0..3 {
            (0..5).for_each(|_| state.cork_requests(&qp));
            assert_eq!(state.corked_qps.lock().len(), 1, "round {round}: each QP waits once");
            assert!(state.take_corked(), "round {round}");
            state.begin_corked();
            assert!(state.corked_qps.lock().is_empty() && !state.take_corked(), "round {round}");
        }
    }

    #[test]
    fn an_answer_is_expected_after_one_that_came_soon_until_one_does_not() {
        let answers = Answers::default();
        answers.posted(1_000_000);
        assert!(!answers.are_expected(), "nothing was acknowledged");
        answers.acknowledged(2_000_000);
        answers.posted(2_000_000 + ANSWER_NS);
        assert!(!answers.are_expected(), "too late");
        answers.acknowledged(3_000_000);
        answers.posted(3_000_000 + ANSWER_NS - 1);
        assert!(answers.are_expected());
        answers.acknowledged(4_000_000);
        assert!(!answers.are_expected(), "it did not come");
    }
}
