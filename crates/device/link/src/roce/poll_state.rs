//! What the threads that poll, wait and send, and the progress thread, know of each other: when that comes by, and what
//! waits for it.

use super::idle_probe::IdleProbe;
use super::poll_rate::PollRate;
use super::timers::{NEVER, Timer, Timers};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::host::tid::tid;
use vervain_hca::now_ns;
use vervain_hca::process::Process;

/// The progress thread comes by so often at first, and at last, while the program polls.
pub(super) const FIRST_TICK_NS: u64 = 100_000;
pub(super) const LAST_TICK_NS: u64 = 400_000;

/// What the threads know of each other.
#[derive(Default)]
pub(super) struct PollState {
    /// When requesters want to be called.
    pub timers: Timers,
    /// Packets wait in a batch for others.
    corked: AtomicBool,
    /// How often polls ask for packets.
    pub rate: PollRate,
    /// Threads of the program that sleep for events, and how often one of them has received.
    pub waiters: AtomicU32,
    pub waits: AtomicU32,
    /// When the progress thread wakes by itself; 0 while it is awake.
    pub sleeps_until: AtomicU64,
    /// The earliest time at which it is wanted, as far as it has not heard of it: [`NEVER`] less that, so that 0 is
    /// none.
    pub wanted: AtomicU64,
    /// The progress thread, once it has come by.
    pub thread: AtomicU32,
    /// Of the progress thread alone: the polls of the program that it knows, since when, and the time between two
    /// visits of its own.
    pub polls: AtomicU32,
    pub active_at: AtomicU64,
    pub tick: AtomicU64,
    pub idle_probe: OwnerLock<IdleProbe>,
}

impl PollState {
    /// Makes the progress thread come by at `at`, or at its next visit if it comes by anyway: waking it costs more than
    /// a small message, and while the program polls it sees to everything itself.
    pub(super) fn ensure(&self, process: &'static Process, at: u64) {
        // It says when it wakes and then reads this; so either it sees this, or this sees when it wakes.
        self.wanted.fetch_max(NEVER - at, Ordering::SeqCst);
        if self.sleeps_until.load(Ordering::SeqCst) > at.saturating_add(LAST_TICK_NS) {
            process.wake_for_packets();
        }
    }

    /// Packets of a post wait in a batch for others: the next poll of the program sends them, or the progress thread.
    pub(super) fn cork_post(&self) {
        self.corked.store(true, Ordering::SeqCst);
        if let Some(process) = Process::current() {
            process.set_poll_interval(1);
            self.ensure(process, now_ns() + FIRST_TICK_NS);
        }
    }

    /// Packets that follow from one that has come wait for those that follow from the others: whoever receives sends
    /// them when a poll ends.
    pub(super) fn cork_follow_up(&self) {
        self.corked.store(true, Ordering::SeqCst);
    }

    /// A thread sends. One of the program's that is at it will poll, as far as can be told.
    #[inline]
    pub(super) fn sends(&self) {
        self.rate.activity();
        let Some(process) = Process::current() else { return };
        process.set_poll_interval(1);
        if tid() != self.thread.load(Ordering::Relaxed) {
            process.count_look();
        }
    }

    /// Has a requester called at `deadline`.
    pub(super) fn set_timer(&self, timer: &Timer, deadline: Option<u64>) {
        if self.timers.set(timer, deadline)
            && let (Some(at), Some(process)) = (deadline, Process::current())
        {
            self.ensure(process, at);
        }
    }

    /// Whether packets wait in a batch for others; they do not any more, as the caller sends them.
    #[inline]
    pub(super) fn take_corked(&self) -> bool {
        self.corked.load(Ordering::Relaxed) && self.corked.swap(false, Ordering::SeqCst)
    }
}
