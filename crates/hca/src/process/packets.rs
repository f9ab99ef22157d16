//! What a process does about packets, as far as it is not the link's: who looks for them, when they are handled, and what is
//! said at the end.

use crate::host::lock::OwnerLock;
use crate::process::Process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Of so many polls that find completions one looks for packets all the same.
const LOOKS: u32 = 16;

/// The state of it.
#[derive(Default)]
pub(crate) struct Packets {
    /// A link of this process has a port where packets may come.
    expected: AtomicBool,
    /// The progress thread is to come by.
    wanted: AtomicBool,
    /// How often threads of the program have polled, and so may have looked for packets.
    looks: AtomicU32,
    /// Polls in vain that look have a number with none of these bits.
    apart: AtomicU32,
    /// Held while packets are handled.
    pub(crate) in_hand: OwnerLock<()>,
}

impl Process {
    /// From now on threads that poll look for packets too, and so does the progress thread. Called by the link.
    pub fn expect_packets(&self) {
        if !self.packets.expected.swap(true, Ordering::AcqRel) {
            // SAFETY: the handler may run at any time when the process ends, or this library is unloaded.
            unsafe { libc::atexit(at_exit) };
        }
        self.wake_progress();
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
        self.link.poll_packets(process)
    }

    /// Of so many polls in vain one looks for packets, from now on: a power of two. Said by the link.
    pub fn set_poll_interval(&self, polls: u32) {
        let apart = polls.next_power_of_two() - 1;
        if self.packets.apart.load(Ordering::Relaxed) != apart {
            self.packets.apart.store(apart, Ordering::Relaxed);
        }
    }

    /// A thread of the program has polled in vain; whether it is to look for packets.
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

    /// A thread of the program polls, and will look for packets when it finds nothing else; and now and then even so: then
    /// this is true.
    #[inline]
    pub fn count_look(&self) -> bool {
        self.count().is_multiple_of(LOOKS)
    }

    /// Handles packets, which are done whole or not at all: a pause waits for `f`. None while the process is paused. Not to be
    /// nested.
    pub fn handle_packets<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let _in_hand = self.packets.in_hand.lock();
        if self.is_paused() { None } else { Some(f()) }
    }

    /// How often threads of the program have polled; the progress thread keeps away while they do.
    pub fn packet_looks(&self) -> u32 {
        self.packets.looks.load(Ordering::Relaxed)
    }
}

extern "C" fn at_exit() {
    if let Some(process) = Process::current() {
        process.link.shutdown();
    }
}
