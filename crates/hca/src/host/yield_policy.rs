//! When a thread that polls a CQ in vain offers its CPU to others.
//!
//! It may hold the CPU that its peer needs: on a machine with few cores, peers that spin would take turns by the scheduler's
//! tick, some milliseconds each. But the CPU may also go to one that makes no use of it: a program's other thread that spins
//! for a lock of the program's, which the poller holds while it polls (UCX with threads), and so each time that it yields.
//! So where several threads poll, what came of it counts: a long absence after which there is nothing makes offers rarer, one
//! that helped makes them frequent again. Whoever offers seldom loses the CPU by the tick, at any moment, also where it holds
//! no lock. A program's only thread has none that spins for it, and many such programs on few CPUs need each other's turns.

use crate::host::clock::now_ns;

/// How many polls in vain pass between two looks at the clock.
const PATIENT_POLLS: u32 = 64;
/// How long they last before the CPU is offered, at least and at most: a yield costs up to half a microsecond, so a fiftieth
/// of the time.
const LEAST_NS: u64 = 20_000;
const MOST_NS: u64 = 20_000_000;
/// Whoever gets the CPU and polls in vain as well offers it again after [`LEAST_NS`]; so long an absence is no such turn.
const LONG_NS: u64 = 1_000_000;

/// What is known of offers of one CQ's pollers.
pub(crate) struct Courtesy {
    /// Polls in vain since the last completion.
    polls: u32,
    /// The CPU was offered at the last look at the clock. Of what came of it the next look learns, so that a poll which finds
    /// something costs no more for it.
    offered: bool,
    /// When it was offered last, or the first look since the last completion.
    since: u64,
    patience: u64,
    /// The thread that polled in vain last, and whether others have before.
    poller: u32,
    several: bool,
}

impl Default for Courtesy {
    fn default() -> Self {
        Courtesy { polls: 0, offered: false, since: 0, patience: LEAST_NS, poller: 0, several: false }
    }
}

impl Courtesy {
    /// A poll has found something.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.polls = 0;
    }

    /// A poll of thread `tid` was in vain; whether the CPU is to be offered.
    #[inline]
    pub(crate) fn in_vain(&mut self, tid: u32) -> bool {
        if self.poller != tid {
            self.several |= self.poller != 0;
            self.poller = tid;
        }
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(PATIENT_POLLS) && self.look(now_ns())
    }

    fn look(&mut self, now: u64) -> bool {
        let gone = now.saturating_sub(self.since);
        let is_first = self.polls == PATIENT_POLLS;
        if is_first || self.offered {
            match (is_first, self.offered) {
                // Something was found at once after the offer.
                (true, true) => self.patience = LEAST_NS,
                (false, true) if self.several && gone > LONG_NS => self.patience = (self.patience * 2).min(MOST_NS),
                _ => {}
            }
            (self.offered, self.since) = (false, now);
            return false;
        }
        if gone > self.patience {
            (self.offered, self.since) = (true, now);
        }
        self.offered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls in vain until the CPU is offered; after how many nanoseconds, when each 64 polls take 3 µs.
    fn until_offered(courtesy: &mut Courtesy, now: &mut u64) -> u64 {
        let begin = *now;
        loop {
            *now += 3000;
            courtesy.polls += PATIENT_POLLS;
            if courtesy.look(*now) {
                return *now - begin;
            }
        }
    }

    #[test]
    fn one_that_polls_in_vain_offers_its_cpu_after_a_while_and_again() {
        let (mut courtesy, mut now) = (Courtesy::default(), 1);
        for _ in 0..100 {
            let after = until_offered(&mut courtesy, &mut now);
            assert!((LEAST_NS..2 * LEAST_NS).contains(&after), "{after}");
            // Others do the same in turn.
            now += 100_000;
        }
    }

    #[test]
    fn offers_that_bring_nothing_but_a_long_absence_become_rare() {
        let (mut courtesy, mut now) = (Courtesy::default(), 1);
        courtesy.in_vain(7);
        courtesy.in_vain(8);
        courtesy.found();
        for _ in 0..20 {
            until_offered(&mut courtesy, &mut now);
            now += 3_000_000;
        }
        assert!(until_offered(&mut courtesy, &mut now) > MOST_NS);
        // What comes while the thread has its CPU is no reason to offer it.
        courtesy.look(now);
        courtesy.found();
        assert!(until_offered(&mut courtesy, &mut now) > MOST_NS);
        // What is there after an absence is.
        now += 3_000_000;
        courtesy.found();
        assert!(until_offered(&mut courtesy, &mut now) < 2 * LEAST_NS);
    }

    #[test]
    fn a_programs_only_thread_offers_its_cpu_whatever_comes_of_it() {
        let (mut courtesy, mut now) = (Courtesy::default(), 1);
        courtesy.in_vain(7);
        courtesy.in_vain(7);
        courtesy.found();
        for _ in 0..20 {
            assert!(until_offered(&mut courtesy, &mut now) < 2 * LEAST_NS);
            now += 3_000_000;
        }
    }

    #[test]
    fn the_clock_is_looked_at_seldom() {
        let mut courtesy = Courtesy::default();
        assert!((1..PATIENT_POLLS).all(|_| !courtesy.in_vain(7)));
        assert_eq!(courtesy.since, 0);
        courtesy.in_vain(7);
        assert_ne!(courtesy.since, 0);
    }
}
