//! Datagrams may be lost: who waits for an answer asks again.

use std::time::{Duration, Instant};

/// The first repetition comes after this time, the next ones after twice the time before.
pub const FIRST: Duration = Duration::from_millis(5);
/// The longest time between two repetitions.
pub const LONGEST: Duration = Duration::from_millis(100);

/// When to ask again, and since when nobody has answered.
#[derive(Debug, Clone, Copy)]
pub struct Repeat {
    next: Instant,
    interval: Duration,
    silent_since: Instant,
}

impl Repeat {
    /// Asked now for the first time.
    pub fn new(now: Instant, rng: &mut fastrand::Rng) -> Self {
        Self { next: now + jitter(FIRST, rng), interval: FIRST, silent_since: now }
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// Returns true if it is time to ask again; then the next time is later.
    pub fn is_due(&mut self, now: Instant, rng: &mut fastrand::Rng) -> bool {
        if now < self.next {
            return false;
        }
        self.interval = (self.interval * 2).min(LONGEST);
        self.next = now + jitter(self.interval, rng);
        true
    }

    /// The peer has said that it has not forgotten.
    pub fn heard(&mut self, now: Instant) {
        self.silent_since = now;
    }

    pub fn is_silent(&self, now: Instant, give_up: Duration) -> bool {
        now.saturating_duration_since(self.silent_since) >= give_up
    }
}

/// Three to five quarters of it, so that those who began together do not stay together.
fn jitter(interval: Duration, rng: &mut fastrand::Rng) -> Duration {
    interval.mul_f64(0.75 + 0.5 * rng.f64())
}

/// Time to rest after the peer had no place for the `rounds`-th time.
pub fn rest(rounds: u32, rng: &mut fastrand::Rng) -> Duration {
    let longest = (FIRST * 2u32.pow(rounds.min(5))).min(LONGEST);
    longest.mul_f64(0.1 + 0.9 * rng.f64())
}
