//! Whether the progress thread lets packets wake it while the program polls. A program that polls takes them itself, and a
//! thread that is woken for each would only be in its way. But one that polls until its own message has completed, and then
//! looks for the answer in its memory, is in between: it has polled a moment ago, and polls no more.
//!
//! So the thread is woken, and where packets then wait, for a moment later: whoever polls has taken them by then. While that
//! shows nothing but that the program polls, it is tried ever more seldom.

/// After so long a program that polls has taken what has come.
pub(super) const MOMENT_NS: u64 = 20_000;

/// What is known of it.
#[derive(Default)]
pub(super) struct Watch {
    stage: Stage,
    /// When the thread came by last.
    visited: u64,
    /// Wakes in a row for packets that the program took itself, and sleeps to sit out for them before the next try.
    vain: u32,
    rests: u32,
}

/// What the thread did when the program polled last.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// It waited for the time alone.
    #[default]
    Away,
    /// It waited for packets too.
    Watching,
    /// It had found packets, and left them to the program for a moment.
    Doubting,
}

/// What the thread does next while the program polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Sleeps until its time has come.
    Sleep,
    /// The same, or until packets come.
    Watch,
    /// Comes again in a moment.
    Doubt,
}

impl Watch {
    /// So many wakes in vain are no reason to rest: what comes while the program waits for its own message is such a one.
    const FREE: u32 = 2;
    /// Sleeps in between are four to the power of at most this.
    const MOST: u32 = 4;

    /// The thread has come by; whether the last time is too short ago to say that the program does not poll: it may not have
    /// had the CPU since.
    pub(super) fn is_too_soon(&mut self, now: u64) -> bool {
        let gone = now.saturating_sub(std::mem::replace(&mut self.visited, now));
        self.stage != Stage::Away && gone < MOMENT_NS
    }

    /// The thread has come by, and the program has polled since the last time; `early` if it was woken before its time.
    /// `waiting` tells whether there are packets.
    pub(super) fn polled(&mut self, early: bool, waiting: impl FnOnce() -> bool) -> Next {
        let stage = std::mem::take(&mut self.stage);
        if stage == Stage::Doubting {
            self.in_vain();
        }
        if let Some(rests) = self.rests.checked_sub(1) {
            self.rests = rests;
            return Next::Sleep;
        }
        if stage != Stage::Doubting && waiting() {
            self.stage = Stage::Doubting;
            return Next::Doubt;
        }
        if stage == Stage::Watching && early {
            self.in_vain();
        }
        self.stage = Stage::Watching;
        Next::Watch
    }

    /// The thread has come by, and the program had not polled; `found` if there were packets.
    pub(super) fn missed(&mut self, found: bool) {
        self.stage = Stage::Away;
        if found {
            (self.vain, self.rests) = (0, 0);
        }
    }

    fn in_vain(&mut self) {
        self.vain = (self.vain + 1).min(Self::FREE + Self::MOST);
        self.rests = (1 << (2 * self.vain.saturating_sub(Self::FREE))) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_stay_are_doubted_for_a_moment_and_then_taken() {
        let mut watch = Watch::default();
        for _ in 0..100 {
            // An acknowledgement, which the program takes while it waits for it; and the answer, which it does not.
            watch.polled(true, || false);
            assert_eq!(watch.polled(true, || true), Next::Doubt);
            watch.missed(true);
        }
    }

    #[test]
    fn a_program_that_always_polls_is_hardly_watched() {
        for waiting in [false, true] {
            let mut watch = Watch::default();
            let woken = (0..10_000).filter(|_| watch.polled(true, || waiting) != Next::Sleep).count();
            assert!((40..100).contains(&woken), "{woken}");
        }
    }

    #[test]
    fn a_quiet_program_is_watched_all_the_time() {
        let mut watch = Watch::default();
        assert!((0..1000).all(|_| watch.polled(false, || false) == Next::Watch));
    }

    #[test]
    fn a_program_that_has_had_no_time_to_poll_is_not_taken_for_one_that_does_not() {
        let mut watch = Watch::default();
        assert!(!watch.is_too_soon(1_000_000));
        watch.polled(false, || false);
        assert!(watch.is_too_soon(1_000_000 + MOMENT_NS - 1));
        watch.polled(true, || true);
        assert!(!watch.is_too_soon(1_000_000 + 2 * MOMENT_NS));
        watch.missed(true);
        assert!(!watch.is_too_soon(1_000_000 + 2 * MOMENT_NS + 1), "it is awake because nobody polls");
    }

    #[test]
    fn what_is_missed_once_is_watched_for_at_once() {
        let mut watch = Watch::default();
        while watch.polled(true, || true) != Next::Sleep {}
        watch.missed(false);
        assert_eq!(watch.polled(false, || true), Next::Sleep);
        watch.missed(true);
        assert_eq!(watch.polled(false, || true), Next::Doubt);
    }
}
