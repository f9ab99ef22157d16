//! The two clocks of a worker: ticks of the processor for durations (some 10 ns to read, which is part of every
//! latency), and CLOCK_MONOTONIC, which the processes of a host share, for what happened when.

use rustix::time::{ClockId, clock_gettime};

/// A moment, on the ticks of one process.
pub type Ticks = u64;

/// Both clocks.
pub struct Clock(quanta::Clock);

impl Clock {
    /// Calibrates the ticks, which takes up to 0.2 s once in a process. Where the processor has no steady counter the
    /// ticks are CLOCK_MONOTONIC's.
    pub fn new() -> Self {
        Self(quanta::Clock::new())
    }

    /// Now, in ticks.
    #[inline]
    pub fn now(&self) -> Ticks {
        self.0.raw()
    }

    /// From one moment to a later one.
    #[inline]
    pub fn picoseconds(&self, from: Ticks, to: Ticks) -> u64 {
        self.0.delta_as_nanos(from, to) * 1000
    }

    /// Seconds from one moment to a later one.
    pub fn seconds(&self, from: Ticks, to: Ticks) -> f64 {
        self.0.delta_as_nanos(from, to) as f64 * 1e-9
    }

    /// Now, in ns of CLOCK_MONOTONIC.
    pub fn monotonic(&self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        // Neither is ever negative on this clock.
        now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
    }
}
