//! Round trip times of a path (RFC 6298), and when an answer is late by them.

use crate::host::Nanos;

/// An answer is never called late before this time: the peer's process may have to be scheduled first. The first probe
/// is one packet, and a pipe that has run dry waits for it; what is sent after it is more, and may be late once more.
const SHORTEST_FIRST: Nanos = 300_000;
const SHORTEST: Nanos = 1_000_000;
/// Assumed before anything has been measured.
const INITIAL: Nanos = 20_000_000;
/// Repeated probes wait at most this long.
const LONGEST: Nanos = 1_000_000_000;

/// Smoothed round trip time and its variation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    smoothed: Nanos,
    variation: Nanos,
}

impl Rtt {
    /// The smoothed round trip time; none before the first answer.
    pub fn smoothed(&self) -> Option<Nanos> {
        (self.smoothed > 0).then_some(self.smoothed)
    }

    /// The smoothed round trip time, or what is assumed before the first answer.
    pub(crate) fn assumed(&self) -> Nanos {
        self.smoothed().unwrap_or(INITIAL)
    }

    /// Takes a measured time of a packet that was sent once (RFC 6298, 2.2, 2.3 and 3).
    pub(crate) fn sample(&mut self, time: Nanos) {
        let time = time.max(1);
        if self.smoothed == 0 {
            self.smoothed = time;
            self.variation = time / 2;
        } else {
            self.variation = (3 * self.variation + self.smoothed.abs_diff(time)) / 4;
            self.smoothed = (7 * self.smoothed + time) / 8;
        }
    }

    /// Nanoseconds to wait for an answer before a probe is sent, after `probes` fruitless ones (RFC 6298, 2.3 and 5.5;
    /// RFC 8985, 7).
    pub(crate) fn probe_delay(&self, probes: u32) -> Nanos {
        let delay = match self.smoothed {
            0 => INITIAL,
            smoothed => smoothed + 4 * self.variation,
        };
        match probes {
            0 => delay.clamp(SHORTEST_FIRST, LONGEST),
            _ => (delay.max(SHORTEST) << (probes - 1).min(16)).min(LONGEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_path_is_probed_a_little_after_its_round_trip_time() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.smoothed(), None);
        assert_eq!(rtt.probe_delay(0), INITIAL);
        for _ in 0..100 {
            rtt.sample(100_000_000);
        }
        assert_eq!(rtt.smoothed(), Some(100_000_000));
        assert!((100_000_000..105_000_000).contains(&rtt.probe_delay(0)));
        assert_eq!(rtt.probe_delay(1), rtt.probe_delay(0));
        assert_eq!(rtt.probe_delay(2), 2 * rtt.probe_delay(1));
        assert_eq!(rtt.probe_delay(40), LONGEST);
    }

    #[test]
    fn a_fast_path_is_not_probed_before_the_floor() {
        let mut rtt = Rtt::default();
        rtt.sample(10_000);
        assert_eq!((rtt.probe_delay(0), rtt.probe_delay(1)), (SHORTEST_FIRST, SHORTEST));
    }
}
