//! Probes that decide if packets wake the progress thread while the program polls. A program that polls receives them
//! itself, and a thread woken for each would only be in its way. But a program that polls until its own message has
//! completed, and then looks for the answer in its memory, is in between: it has polled recently, and polls no more.
//!
//! So packets wake the thread, and if some wait then, it comes again a moment later: a program that polls has received
//! them by then. As long as probes only show that the program polls, they become rarer and rarer.

/// Nanoseconds after which a program that polls has received the packets that had come.
pub(super) const MOMENT_NS: u64 = 20_000;

/// Finds out whether a program that has polled still does.
#[derive(Default)]
pub(super) struct IdleProbe {
    stage: Stage,
    /// Time of the thread's last visit.
    visited: u64,
    /// Consecutive wakes for packets that the program received itself, and sleeps without a probe until the next one.
    failures: u32,
    skips: u32,
}

/// The thread's last sleep.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Until a time, without a probe.
    #[default]
    Timed,
    /// Until packets came, too.
    ForPackets,
    /// For a moment: it had found packets, and left them to the program.
    Rechecking,
}

/// The thread's next sleep while the program polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// Until its time has come.
    Timed,
    /// Until its time has come or there are packets.
    ForPackets,
    /// For [`MOMENT_NS`], to see if the program receives the packets that there are.
    Recheck,
}

impl IdleProbe {
    /// Failures that are no reason to back off: packets that come while the program waits for its own message cause
    /// some.
    const FREE_FAILURES: u32 = 2;
    /// Largest exponent of the back-off: at least one sleep in 4 to the power of this has a probe.
    const MAX_BACKOFF: u32 = 4;

    /// Notes a visit. Returns true if the last one is too short ago to show that the program does not poll: it may not
    /// have had the CPU since.
    pub(super) fn is_too_soon(&mut self, now: u64) -> bool {
        let gone = now.saturating_sub(std::mem::replace(&mut self.visited, now));
        self.stage != Stage::Timed && gone < MOMENT_NS
    }

    /// Notes that the program has polled since the last visit; `early` if the thread was woken before its time.
    pub(super) fn program_polled(&mut self, early: bool, has_packets: impl FnOnce() -> bool) -> ProbeStep {
        let stage = std::mem::take(&mut self.stage);
        if stage == Stage::Rechecking {
            self.failed();
        }
        if let Some(skips) = self.skips.checked_sub(1) {
            self.skips = skips;
            return ProbeStep::Timed;
        }
        if stage != Stage::Rechecking && has_packets() {
            self.stage = Stage::Rechecking;
            return ProbeStep::Recheck;
        }
        if stage == Stage::ForPackets && early {
            self.failed();
        }
        self.stage = Stage::ForPackets;
        ProbeStep::ForPackets
    }

    /// Notes that the program had not polled; `found` if there were packets.
    pub(super) fn program_was_idle(&mut self, found: bool) {
        self.stage = Stage::Timed;
        if found {
            (self.failures, self.skips) = (0, 0);
        }
    }

    fn failed(&mut self) {
        self.failures = (self.failures + 1).min(Self::FREE_FAILURES + Self::MAX_BACKOFF);
        self.skips = (1 << (2 * self.failures.saturating_sub(Self::FREE_FAILURES))) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_stay_are_left_to_the_program_for_a_moment_and_then_taken() {
        let mut probe = IdleProbe::default();
        for _ in 0..100 {
            // An acknowledgement, which the program receives while it waits for it; and the answer, which it does not.
            probe.program_polled(true, || false);
            assert_eq!(probe.program_polled(true, || true), ProbeStep::Recheck);
            probe.program_was_idle(true);
        }
    }

    #[test]
    fn a_program_that_always_polls_is_hardly_ever_probed() {
        for has_packets in [false, true] {
            let mut probe = IdleProbe::default();
            let woken = (0..10_000).filter(|_| probe.program_polled(true, || has_packets) != ProbeStep::Timed).count();
            assert!((40..100).contains(&woken), "{woken}");
        }
    }

    #[test]
    fn while_no_packet_comes_the_thread_always_sleeps_for_packets() {
        let mut probe = IdleProbe::default();
        assert!((0..1000).all(|_| probe.program_polled(false, || false) == ProbeStep::ForPackets));
    }

    #[test]
    fn a_program_that_has_had_no_time_to_poll_is_not_taken_for_one_that_does_not() {
        let mut probe = IdleProbe::default();
        assert!(!probe.is_too_soon(1_000_000));
        probe.program_polled(false, || false);
        assert!(probe.is_too_soon(1_000_000 + MOMENT_NS - 1));
        probe.program_polled(true, || true);
        assert!(!probe.is_too_soon(1_000_000 + 2 * MOMENT_NS));
        probe.program_was_idle(true);
        assert!(!probe.is_too_soon(1_000_000 + 2 * MOMENT_NS + 1), "it is awake because nobody polls");
    }

    #[test]
    fn after_packets_that_an_idle_program_left_there_is_no_back_off() {
        let mut probe = IdleProbe::default();
        while probe.program_polled(true, || true) != ProbeStep::Timed {}
        probe.program_was_idle(false);
        assert_eq!(probe.program_polled(false, || true), ProbeStep::Timed);
        probe.program_was_idle(true);
        assert_eq!(probe.program_polled(false, || true), ProbeStep::Recheck);
    }
}
