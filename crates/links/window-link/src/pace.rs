//! Pace of the progress thread's looks for peers' puts. Peers on another kernel cannot wake it. It shares the CPUs with
//! the program, so it stays away while that polls: a thread that polls handles the messages that come.

/// No time: nothing is due.
pub const NEVER: u64 = u64::MAX;
/// Shortest and longest interval in nanoseconds: while messages come, and when none have come for long.
pub const FIRST_LOOK_NS: u64 = 20_000;
pub const LAST_LOOK_NS: u64 = 4_000_000;
/// Longest interval while threads of the program poll: one that stops does not announce that.
const POLLED_NS: u64 = LAST_LOOK_NS / 4;

/// State from which the next pause follows.
pub struct Pace {
    /// Nanoseconds.
    pause: u64,
    /// Time of the last call, and the number of the program's polls by then.
    at: u64,
    looks: u32,
    /// They have polled without a pause, and not stopped since.
    polled: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { pause: FIRST_LOOK_NS, at: 0, looks: 0, polled: false }
    }
}

impl Pace {
    /// Something comes soon, as far as is known.
    pub fn hurry(&mut self) {
        self.pause = FIRST_LOOK_NS;
    }

    /// Nanoseconds until the next look, after one at `now`, up to which threads of the program have polled `looks`
    /// times, and which has `found` something or not.
    ///
    /// A program that polls until its request is done, and then waits for its memory to change, as those do that
    /// measure RDMA Writes, needs the next look as soon as if it had not polled.
    pub fn next(&mut self, now: u64, looks: u32, found: bool) -> u64 {
        let took = now.saturating_sub(std::mem::replace(&mut self.at, now));
        let looks = looks.wrapping_sub(std::mem::replace(&mut self.looks, looks));
        let polls = polls_steadily(looks, took);
        let has_stopped = self.polled && looks == 0;
        self.polled = polls || self.polled && !has_stopped;
        self.pause = if polls {
            (self.pause * 2).min(POLLED_NS)
        } else if found || has_stopped {
            FIRST_LOOK_NS
        } else {
            (self.pause * 2).min(LAST_LOOK_NS)
        };
        self.pause
    }
}

/// Returns true if threads with `looks` polls within `took` nanoseconds poll without a pause.
pub fn polls_steadily(looks: u32, took: u64) -> bool {
    looks > 0 && FIRST_LOOK_NS * u64::from(looks) >= took
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Continues for `rounds` looks, with `looks` polls of threads between two of them. Returns the last pause.
    fn go_on(pace: &mut Pace, rounds: u32, looks: u32, found: bool) -> u64 {
        let mut pause = 0;
        for _ in 0..rounds {
            pause = pace.next(pace.at + pace.pause, pace.looks + looks, found);
        }
        pause
    }

    #[test]
    fn looks_become_rare_while_nothing_comes_and_are_close_when_something_does() {
        let mut pace = Pace::default();
        assert_eq!(go_on(&mut pace, 1, 0, false), 2 * FIRST_LOOK_NS);
        assert_eq!(go_on(&mut pace, 20, 0, false), LAST_LOOK_NS);
        assert_eq!(go_on(&mut pace, 1, 0, true), FIRST_LOOK_NS);
        go_on(&mut pace, 20, 0, false);
        pace.hurry();
        assert_eq!(pace.pause, FIRST_LOOK_NS);
    }

    #[test]
    fn it_stays_away_from_who_polls() {
        let mut pace = Pace::default();
        assert_eq!(go_on(&mut pace, 20, 10_000, true), POLLED_NS);
        assert_eq!(go_on(&mut pace, 1, 0, false), FIRST_LOOK_NS, "it may wait for its memory to change");
        assert_eq!(
            go_on(&mut pace, 20, 1, false),
            LAST_LOOK_NS,
            "a look now and then is none that takes in what comes"
        );
    }

    /// Like `ib_write_lat`: polls for the end of its own Write, and then looks at its memory until the peer's is there.
    #[test]
    fn who_polls_between_two_waits_for_memory_is_looked_after_closely() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            let waits = [(40, false), (0, false), (0, true)].map(|(looks, found)| go_on(&mut pace, 1, looks, found));
            assert_eq!(waits, [2 * FIRST_LOOK_NS, FIRST_LOOK_NS, FIRST_LOOK_NS]);
        }
    }
}
