//! The process's part in handling packets: which threads look for them, and when they are handled. The rest is the
//! carrier's.

use crate::error::Result;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::poller::EventHandler;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One poll in this many that find completions looks for packets all the same.
const LOOKS: u32 = 16;

/// The state of it.
#[derive(Default)]
pub(crate) struct Packets {
    /// A carrier of this process has a port where packets may come.
    expected: AtomicBool,
    /// The progress thread is to come by.
    wanted: AtomicBool,
    /// Number of polls of threads of the program that may have looked for packets; it wraps.
    looks: AtomicU32,
    /// Of empty polls, those look for packets whose number has none of these bits.
    apart: AtomicU32,
    /// Held while packets are handled.
    pub(crate) in_hand: OwnerLock<()>,
}

impl Process {
    /// From now on threads that poll look for packets too, and so does the progress thread. Called by the carrier.
    pub fn expect_packets(&self) {
        self.packets.expected.store(true, Ordering::Release);
        self.wake_for_packets();
    }

    #[inline(always)]
    pub(crate) fn expects_packets(&self) -> bool {
        self.packets.expected.load(Ordering::Relaxed)
    }

    /// Has the progress thread come by and see to packets.
    pub fn wake_for_packets(&self) {
        self.packets.wanted.store(true, Ordering::SeqCst);
        self.wake_progress();
    }

    pub(crate) fn take_packets_wanted(&self) -> bool {
        self.packets.wanted.swap(false, Ordering::SeqCst)
    }

    /// Looks for packets, in a thread that polls.
    pub(crate) fn poll_packets(&self) -> bool {
        let Some(process) = Process::current() else { return false };
        if process.is_paused() {
            return false;
        }
        // All of them, whichever has something.
        self.pollers.iter().fold(false, |any, poller| poller.poll(process) | any)
    }

    /// All that hear in the progress thread, those that are polled too.
    pub(super) fn handlers(&self) -> impl Iterator<Item = &dyn EventHandler> {
        let pollers = self.pollers.iter().map(|poller| &**poller as &dyn EventHandler);
        pollers.chain(self.handlers.iter().map(|handler| &**handler))
    }

    /// A QP has become ready to send.
    pub(crate) fn qp_is_ready(&self) {
        self.handlers().for_each(|handler| handler.qp_is_ready(self));
    }

    /// Takes in all packets that have come until now, in the progress thread; false if another thread is at it.
    pub fn take_in_packets(&'static self) -> bool {
        !self.expects_packets() || self.pollers.iter().fold(true, |all, poller| poller.take_in(self) & all)
    }

    /// Takes packets in until `fd` is readable, in a thread that sleeps for it. With several carriers, the progress
    /// thread does, and this returns at once.
    pub(crate) fn wait_for_fd(&'static self, fd: RawFd) -> Result<()> {
        let mut open = self.pollers.iter().filter(|poller| poller.packet_fd().is_some());
        match (open.next(), open.next()) {
            (Some(only), None) => only.wait_for(self, fd),
            _ => Ok(()),
        }
    }

    /// The looks of all pollers in the progress thread: calls `watch` for each descriptor to be watched, and says when
    /// the first of them wants to be called again (CLOCK_MONOTONIC, ns).
    pub(super) fn attend_pollers(&'static self, mut watch: impl FnMut(RawFd)) -> Option<u64> {
        let mut next = None;
        for poller in &self.pollers {
            let (watched, at) = poller.attend(self);
            if let Some(fd) = poller.packet_fd().filter(|_| watched) {
                watch(fd);
            }
            next = next.into_iter().chain(at).min();
        }
        next
    }

    /// Lets one empty poll in `polls` ask the carrier for packets, from now on; rounded up to a power of two. Called by
    /// the carrier.
    pub fn set_poll_interval(&self, polls: u32) {
        let apart = polls.next_power_of_two() - 1;
        if self.packets.apart.load(Ordering::Relaxed) != apart {
            self.packets.apart.store(apart, Ordering::Relaxed);
        }
    }

    /// Counts an empty poll of a thread of the program. Returns true if it is to look for packets.
    #[inline(always)]
    pub(crate) fn should_poll(&self) -> bool {
        self.count() & self.packets.apart.load(Ordering::Relaxed) == 0
    }

    /// Lost counts do no harm: it is a change that matters.
    #[inline(always)]
    fn count(&self) -> u32 {
        let looks = self.packets.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.packets.looks.store(looks, Ordering::Relaxed);
        looks
    }

    /// A thread of the program polls, and will look for packets when it finds nothing else; and now and then even so:
    /// then this is true.
    #[inline]
    pub fn count_look(&self) -> bool {
        self.count().is_multiple_of(LOOKS)
    }

    /// Handles packets, each completely or not at all: a pause waits for `f`. None while the process is paused. Not to
    /// be nested.
    pub fn handle_packets<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let _in_hand = self.packets.in_hand.lock();
        if self.is_paused() { None } else { Some(f()) }
    }

    /// How often threads of the program have polled; the progress thread keeps away while they do.
    pub fn packet_looks(&self) -> u32 {
        self.packets.looks.load(Ordering::Relaxed)
    }
}
