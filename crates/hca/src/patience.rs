//! How long to look out for what comes soon before sleeping until it does.

use crate::types::now_ns;

/// Where something has just come there is often more soon: how long to look out for it before sleeping, since waking costs
/// some ten times more than taking it. Longer while that pays, hardly at all when it does not.
pub struct Patience {
    ns: u64,
    most: u64,
    /// Looks in vain since the last that was not, as far as they count, and sleeps to sit out for them before the next try.
    failures: u32,
    rests: u32,
}

/// Looks of at most 60 µs: what a process takes to wake on a virtual machine, and to answer.
impl Default for Patience {
    fn default() -> Self {
        Patience::new(60_000)
    }
}

impl Patience {
    const LEAST_NS: u64 = 4_000;
    /// A sleep of so many times the longest look might have been none, had the other side been awake too.
    const SHORT_SLEEP: u64 = 3;
    const MOST_FAILURES: u32 = 7;

    /// For looks of at most `most` nanoseconds.
    pub const fn new(most: u64) -> Patience {
        Patience { ns: Self::LEAST_NS, most, failures: 0, rests: 0 }
    }

    /// Looks out for `found`; whether it came in time.
    pub fn look_out(&mut self, found: impl FnMut() -> bool) -> bool {
        let found = look_out(self.ns, found);
        if found {
            (self.ns, self.failures, self.rests) = (self.most, 0, 0);
        } else if self.ns > Self::LEAST_NS {
            self.ns = (self.ns / 2).max(Self::LEAST_NS);
            self.failures = (self.failures + 1).min(Self::MOST_FAILURES);
            self.rests = 1 << self.failures;
        }
        found
    }

    /// It had to sleep for `ns`. After a short one it looks out longer, but where that has been in vain seldom.
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

/// Looks out for `found` for at most `ns`, and says whether it came.
fn look_out(ns: u64, mut found: impl FnMut() -> bool) -> bool {
    let begin = now_ns();
    loop {
        if found() {
            return true;
        }
        let gone = now_ns() - begin;
        if gone >= ns {
            return false;
        }
        rest(gone / 1024);
    }
}

/// A moment's rest of one who looks out for something; now and then the CPU goes to whoever waits for it.
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

    #[test]
    fn what_came_in_time_is_looked_out_for_longer() {
        let mut patience = Patience::new(MOST);
        assert!(patience.look_out(|| true));
        assert_eq!(patience.ns, MOST);
    }

    #[test]
    fn what_never_comes_is_hardly_looked_out_for() {
        let mut patience = Patience::new(MOST);
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
        let mut patience = Patience::new(MOST);
        patience.slept(Patience::SHORT_SLEEP * MOST + 1);
        assert_eq!(patience.ns, Patience::LEAST_NS);
        patience.slept(SHORT);
        assert_eq!(patience.ns, MOST);
    }

    #[test]
    fn one_success_makes_up_for_all_failures() {
        let mut patience = Patience { ns: MOST, most: MOST, failures: 7, rests: 100 };
        assert!(patience.look_out(|| true));
        patience.slept(SHORT);
        assert_eq!((patience.ns, patience.failures, patience.rests), (MOST, 0, 0));
    }
}
