//! The carriers of a process, and its part in handling packets: which threads look for them, and when they are handled.
//! The rest is the carrier's.

use crate::error::Result;
use crate::host::lock::{OwnerGuard, OwnerLock};
use crate::process::Process;
use crate::process::poller::{EventHandler, Poller};
use crate::process::sleeper::Sleeper;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One poll in this many that find completions looks for packets all the same.
const LOOKS: u32 = 16;

/// The carriers, and the state of their packets.
pub struct Packets {
    pollers: Vec<Arc<dyn Poller>>,
    /// Further handlers for the progress thread.
    handlers: Vec<Arc<dyn EventHandler>>,
    /// A carrier of this process has a port where packets may come.
    expected: AtomicBool,
    /// The progress thread is to come by.
    wanted: AtomicBool,
    /// Number of polls of threads of the program that may have looked for packets; it wraps.
    looks: AtomicU32,
    /// Of empty polls, those look for packets whose number has none of these bits.
    apart: AtomicU32,
    sleeper: Sleeper,
    /// Held while packets are handled.
    in_hand: OwnerLock<()>,
}

impl Packets {
    /// None are expected.
    pub(super) fn new(pollers: Vec<Arc<dyn Poller>>, handlers: Vec<Arc<dyn EventHandler>>) -> Packets {
        Packets {
            pollers,
            handlers,
            expected: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            apart: AtomicU32::new(0),
            sleeper: Sleeper::default(),
            in_hand: OwnerLock::default(),
        }
    }

    /// The signs that the program sleeps.
    #[inline(always)]
    pub fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// From now on threads that poll look for packets too, and so does the progress thread.
    pub(super) fn expect(&self) {
        self.expected.store(true, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn are_expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    /// Has the progress thread see to packets when it wakes.
    pub(super) fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    pub(super) fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::SeqCst)
    }

    /// The process has slot `slot` from now on.
    pub(super) fn expect_slot(&self, slot: u32) -> Result<()> {
        self.pollers.iter().try_for_each(|poller| poller.expect_slot(slot))
    }

    /// Looks for packets, in a thread that polls.
    pub(super) fn poll(&self, process: &'static Process) -> bool {
        // All of them, whichever has something.
        self.pollers.iter().fold(false, |any, poller| poller.poll(process) | any)
    }

    /// All that hear in the progress thread, those that are polled too.
    pub(super) fn handlers(&self) -> impl Iterator<Item = &dyn EventHandler> {
        let pollers = self.pollers.iter().map(|poller| &**poller as &dyn EventHandler);
        pollers.chain(self.handlers.iter().map(|handler| &**handler))
    }

    /// Takes in all packets that have come until now, in the progress thread; false if another thread is at it.
    pub fn take_in(&self, process: &'static Process) -> bool {
        !self.are_expected() || self.pollers.iter().fold(true, |all, poller| poller.take_in(process) & all)
    }

    /// Takes packets in until `fd` is readable, in a thread that sleeps for it. With several carriers, the progress
    /// thread does, and this returns at once.
    pub(crate) fn wait_for_fd(&self, process: &'static Process, fd: RawFd) -> Result<()> {
        let mut open = self.pollers.iter().filter(|poller| poller.packet_fd().is_some());
        match (open.next(), open.next()) {
            (Some(only), None) => only.wait_for(process, fd),
            _ => Ok(()),
        }
    }

    /// The looks of all pollers in the progress thread: calls `watch` for each descriptor to be watched, and says when
    /// the first of them wants to be called again (CLOCK_MONOTONIC, ns).
    pub(super) fn attend(&self, process: &'static Process, mut watch: impl FnMut(RawFd)) -> Option<u64> {
        let mut next = None;
        for poller in &self.pollers {
            let (watched, at) = poller.attend(process);
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
        if self.apart.load(Ordering::Relaxed) != apart {
            self.apart.store(apart, Ordering::Relaxed);
        }
    }

    /// Counts an empty poll of a thread of the program. Returns true if it is to look for packets.
    #[inline(always)]
    pub(crate) fn should_poll(&self) -> bool {
        self.sleeper.left_empty();
        self.count() & self.apart.load(Ordering::Relaxed) == 0
    }

    /// Lost counts do no harm: it is a change that matters.
    #[inline(always)]
    fn count(&self) -> u32 {
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        looks
    }

    /// A thread of the program polls, and will look for packets when it finds nothing else; and now and then even so:
    /// then this is true.
    #[inline]
    pub fn count_look(&self) -> bool {
        self.count().is_multiple_of(LOOKS)
    }

    /// How often threads of the program have polled; the progress thread keeps away while they do.
    pub fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Keeps packets from being handled by others.
    #[inline]
    pub(super) fn take_in_hand(&self) -> OwnerGuard<'_, ()> {
        self.in_hand.lock()
    }

    /// Waits until no packet is being handled.
    pub(super) fn wait_for(&self) {
        // In a signal handler it may be this thread's own.
        if !self.in_hand.raw().held_by_me() {
            drop(self.in_hand.lock());
        }
    }

    /// Sends what is due before the process ends. Returns true if all that carriers have to say is said.
    pub(super) fn shut_down(&self) -> bool {
        !self.are_expected() || self.pollers.iter().fold(true, |all, poller| poller.shutdown() & all)
    }
}
