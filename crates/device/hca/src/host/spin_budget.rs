//! The budget of spinning before a sleep: nanoseconds to look for an event that is expected soon.

use crate::host::clock::now_ns;

/// Nanoseconds to spin before sleeping. More often comes soon after an event, and waking costs about ten times more
/// than finding it by a look. The budget grows while spinning pays, and is almost nothing while it does not.
pub struct Patience {
    ns: u64,
    least: u64,
    most: u64,
    /// The CPU goes to others now and then.
    yields: bool,
    /// Moments between two looks of a thread that does not yield.
    apart: u32,
    /// Consecutive fruitless spins (capped).
    failures: u32,
    rests: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Patience::for_packets()
    }
}

impl Patience {
    /// A sleep that is shorter than this many times the longest look might have been avoided, had the other side been
    /// awake too.
    const SHORT_SLEEP: u64 = 3;
    const MOST_FAILURES: u32 = 7;

    /// For requests of peers whose memory we copy: they wait for us, perhaps on the same CPU.
    pub const fn for_requests() -> Patience {
        Patience::new(4_000, 30_000, true)
    }

    /// For packets: as long as a process takes to wake on a virtual machine, and to answer. A thread that yields is not
    /// woken by a packet, and gets the CPU back only when a program that spins on it has used up its time. So this one
    /// does not yield; if it is in the way of such a program it soon gives up.
    pub const fn for_packets() -> Patience {
        Patience::new(0, 60_000, false)
    }

    /// For what others put into memory, where a look takes nothing away from them: without yielding, as for packets,
    /// but for a moment each time, for between the messages of one that sends many there is less.
    pub const fn for_puts() -> Patience {
        Patience { apart: 4, ..Patience::new(5_000, 30_000, false) }
    }

    /// For packets that are on their way.
    pub const fn for_rest() -> Patience {
        Patience { ns: 60_000, ..Patience::for_packets() }
    }

    const fn new(least: u64, most: u64, yields: bool) -> Patience {
        Patience { ns: least, least, most, yields, apart: 64, failures: 0, rests: 0 }
    }

    /// Looks out for `found`; whether it came in time.
    pub fn look_out(&mut self, mut found: impl FnMut() -> bool) -> bool {
        if found() {
            return true;
        }
        let begin = now_ns();
        loop {
            let gone = now_ns() - begin;
            if gone >= self.ns {
                break;
            }
            if self.yields {
                rest(gone / 1024);
            } else {
                // Each look takes the lock of the socket's queue, which its senders need.
                (0..self.apart).for_each(|_| std::hint::spin_loop());
            }
            if found() {
                (self.ns, self.failures, self.rests) = (self.most, 0, 0);
                return true;
            }
        }
        if self.ns > self.least {
            self.ns = if self.yields { (self.ns / 2).max(self.least) } else { self.least };
            self.failures = (self.failures + 1).min(Self::MOST_FAILURES);
            self.rests = 1 << self.failures;
        }
        false
    }

    /// Notes a sleep of `ns`. After a short one the budget grows, but seldom if spinning has been fruitless.
    pub fn slept(&mut self, ns: u64) {
        if ns > Self::SHORT_SLEEP * self.most {
            return;
        }
        match self.rests.checked_sub(1) {
            Some(rests) => self.rests = rests,
            None => self.ns = self.most,
        }
    }
}

/// A short rest between two looks of a thread that spins; now and then it offers the CPU to others.
pub(crate) fn rest(turns: u64) {
    if turns % 2 == 1 {
        std::thread::yield_now();
    }
    (0..16).for_each(|_| std::hint::spin_loop());
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 20_000;
    const SHORT: u64 = MOST;

    fn patience() -> Patience {
        Patience::new(0, MOST, false)
    }

    /// Something that comes at the `n`th look.
    fn at(n: u32) -> impl FnMut() -> bool {
        let mut looks = 0;
        move || {
            looks += 1;
            looks == n
        }
    }

    #[test]
    fn what_came_in_time_is_looked_out_for_longer() {
        let mut patience = Patience { ns: u64::MAX, ..patience() };
        assert!(patience.look_out(at(2)));
        assert_eq!(patience.ns, MOST);
    }

    #[test]
    fn what_was_there_already_is_no_reason_to_wait() {
        let mut patience = patience();
        assert!(patience.look_out(|| true));
        assert_eq!(patience.ns, 0);
        assert!(!patience.look_out(at(2)), "it does not wait");
    }

    #[test]
    fn what_never_comes_is_hardly_looked_out_for() {
        let mut patience = patience();
        let mut longest = 0;
        for _ in 0..200 {
            patience.slept(SHORT);
            longest += u32::from(patience.ns == MOST);
            assert!(!patience.look_out(|| false));
        }
        // Half of the looks at first, one of more than a hundred in the end.
        assert!((2..16).contains(&longest), "{longest}");
        assert_eq!(patience.failures, Patience::MOST_FAILURES);
    }

    #[test]
    fn a_short_sleep_is_a_reason_to_try_and_a_long_one_is_none() {
        let mut patience = patience();
        patience.slept(Patience::SHORT_SLEEP * MOST + 1);
        assert_eq!(patience.ns, 0);
        patience.slept(SHORT);
        assert_eq!(patience.ns, MOST);
    }

    #[test]
    fn a_request_that_soon_wakes_the_owner_again_is_looked_out_for_longer() {
        let mut patience = Patience::for_requests();
        assert_eq!(patience.ns, 4_000);
        patience.slept(91_000);
        assert_eq!(patience.ns, 4_000);
        patience.slept(60_000);
        assert_eq!(patience.ns, 30_000);
    }

    #[test]
    fn what_is_on_its_way_is_looked_out_for() {
        assert!(Patience::for_rest().look_out(at(2)));
    }

    #[test]
    fn one_success_makes_up_for_all_failures() {
        let mut patience = Patience { ns: u64::MAX, failures: 7, rests: 100, ..patience() };
        assert!(patience.look_out(at(2)));
        patience.slept(SHORT);
        assert_eq!((patience.ns, patience.failures, patience.rests), (MOST, 0, 0));
    }
}
