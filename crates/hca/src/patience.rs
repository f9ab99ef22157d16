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
