//! The clocks of the device.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds of CLOCK_MONOTONIC_RAW: the HCA's free-running clock.
pub fn hca_clock_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC_RAW)
}

/// Nanoseconds of CLOCK_MONOTONIC, for timers.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// [`now_ns`], or some milliseconds more: for deadlines that are much later, where the time itself would cost as much
/// as a short put. It takes no look at the processor's counter. Where the kernel's tick is late, as in a virtual
/// machine that waits for a processor, it is less than now by what the tick is late beyond one.
pub fn soon_ns() -> u64 {
    // The clock stands still between two ticks of the kernel.
    clock_ns(libc::CLOCK_MONOTONIC_COARSE) + 2 * tick_ns()
}

/// Nanoseconds between two ticks of the kernel.
fn tick_ns() -> u64 {
    static TICK: AtomicU64 = AtomicU64::new(0);
    match TICK.load(Ordering::Relaxed) {
        0 => {
            let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: fills the timespec on this stack; this clock always exists.
            unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut t) };
            let tick = t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64;
            TICK.store(tick, Ordering::Relaxed);
            tick
        }
        tick => tick,
    }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the timespec on this stack; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soon_is_two_ticks_behind_the_last_one() {
        let last = || clock_ns(libc::CLOCK_MONOTONIC_COARSE);
        let (before, soon, after) = (last(), soon_ns(), last());
        let ahead = 2 * tick_ns();
        assert!((before + ahead..=after + ahead).contains(&soon), "{before}, {soon}, {after}");
        assert!(before <= now_ns(), "the last tick is over");
        assert!((100_000..=10_000_000).contains(&tick_ns()), "{} ns", tick_ns());
    }
}
