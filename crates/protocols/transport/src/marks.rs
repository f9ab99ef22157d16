//! What congestion notification packets (IBA annex A17.9.3) say of a path: the share of its round trips in which the
//! network had marked packets. The window closes by half of that, as with DCTCP (RFC 8257, 3.3) and DCQCN: a queue that
//! is now and then too long costs little, one that always is halves the window.

use crate::host::Nanos;

/// The whole, for shares.
const WHOLE: u64 = 1 << 16;
/// Weight of one round trip is 1 / 2^WEIGHT (RFC 8257, 4.2: 1/16).
const WEIGHT: u32 = 4;
/// A round is no shorter than the time in which a receiver sends one notification (DCQCN: 50 us).
const SHORTEST_ROUND: Nanos = 50_000;
/// After so many rounds without a notification, less than a hundredth of a share is left.
const MOST_ROUNDS: u64 = 72;

/// A share of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(u64);

impl Share {
    /// What is left of `bytes` when half of the share is taken away.
    pub(crate) fn taken_from(self, bytes: u64) -> u64 {
        bytes - (u128::from(bytes) * u128::from(self.0) / u128::from(2 * WHOLE)) as u64
    }
}

/// The share of rounds with a notification.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    share: u64,
    /// The round of the last notification ends then.
    until: Nanos,
}

impl Default for Marks {
    /// The first notification halves the window: it ends slow start, which has doubled it in the last round.
    fn default() -> Marks {
        Marks { share: WHOLE, until: 0 }
    }
}

impl Marks {
    /// A notification has come. The share of rounds that had one; none if it is not the first of its round.
    pub(crate) fn notified(&mut self, now: Nanos, round_trip: Nanos) -> Option<Share> {
        if now < self.until {
            return None;
        }
        let round = round_trip.max(SHORTEST_ROUND);
        if self.until != 0 {
            let quiet = (now - self.until) / round;
            for _ in 0..quiet.min(MOST_ROUNDS) {
                self.share -= self.share >> WEIGHT;
            }
            self.share += (WHOLE - self.share) >> WEIGHT;
        }
        self.until = now + round;
        Some(Share(self.share))
    }

    /// Returns true if the round of the last answer is not over.
    pub(crate) fn is_answered(&self, now: Nanos) -> bool {
        now < self.until
    }

    /// The window has been made smaller for another reason: notifications of this round change nothing.
    pub(crate) fn answered(&mut self, now: Nanos, round_trip: Nanos) {
        self.until = self.until.max(now + round_trip.max(SHORTEST_ROUND));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = 1 << 19;

    #[test]
    fn the_share_follows_how_often_notifications_come() {
        for (every, expected) in [(1, 500), (2, 250), (4, 125), (10, 50)] {
            let mut marks = Marks::default();
            let shares = (1..=1000).map(|n| marks.notified(n * every * 100_000, 100_000).unwrap());
            let last = shares.skip(900).map(|share| 1000 - share.taken_from(1000)).sum::<u64>() / 100;
            // The share is taken just behind a notification, where it is largest.
            assert!((expected..expected + 40).contains(&last), "each {every} rounds: {last}");
        }
    }

    #[test]
    fn a_round_is_no_shorter_than_what_a_receiver_waits_between_notifications() {
        let mut marks = Marks::default();
        assert!(marks.notified(1_000, 10).is_some());
        assert!(marks.notified(1_000, 10).is_none() && marks.notified(50_999, 10).is_none());
        assert!(marks.notified(51_000, 10).is_some());
        marks.answered(60_000, 10);
        assert!(marks.notified(109_999, 10).is_none() && marks.notified(110_000, 10).is_some());
    }

    #[test]
    fn any_time_and_any_size_is_taken() {
        let mut marks = Marks::default();
        for now in [0, 1, u64::MAX / 2, 5, u64::MAX / 2 + 100_000_000] {
            let share = marks.notified(now, u64::MAX / 4);
            assert!(share.is_none_or(|share| (u64::MAX / 2..=u64::MAX).contains(&share.taken_from(u64::MAX))));
        }
        assert_eq!(Share(WHOLE).taken_from(2 * HALF), HALF);
        assert_eq!(Share(0).taken_from(HALF), HALF);
    }
}
