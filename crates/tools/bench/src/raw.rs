//! The machine's own figures without the device, taken in each round beside the cases: a latency means little without
//! the time that a cache line takes between the same two CPUs, a bandwidth little without that of memcpy. A worker
//! calls this while the others are idle.

use std::hint::black_box;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use quanta::Clock;

use crate::results::RawFigures;
use crate::stats::median;
use crate::topology::pin;

/// Bytes of the blocks that are copied: about the first cache, the second, the last, and memory.
const BLOCKS: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// The times that copying blocks of one size may take at most and takes at least.
const COPYING: (Duration, Duration) = (Duration::from_millis(3), Duration::from_millis(10));

/// Batches of round trips, and round trips of each.
const TRIPS: (usize, u64) = (50, 100);

/// Time to wait for the other CPU: if it does something else, or is not really there, round trips take time slices.
const PATIENCE: Duration = Duration::from_millis(200);

/// Takes the figures of `round` on the CPUs of requester and responder (None: not pinned) in some 30 ms, or 200 ms more
/// where one of the CPUs is busy. The calling thread stays pinned as it is.
///
/// Each figure is the median of many batches: what the machine usually does, as a case's own median, and not what it
/// did once in a quiet moment.
pub fn measure(round: u32, cpus: (Option<u32>, Option<u32>)) -> RawFigures {
    // The first clock of a process is calibrated, which would count.
    let clock = Clock::new();
    let on_first = || {
        let pinned = cpus.0.is_some_and(|cpu| pin(cpu).is_ok());
        let cross_core_ns = match cpus {
            (Some(here), Some(there)) if pinned && here != there => cross_core(there),
            _ => None,
        };
        RawFigures { round, cross_core_ns, memcpy: memcpy(), clock_ns: clock_ns(&clock) }
    };
    thread::scope(|scope| scope.spawn(on_first).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// A word in cache lines of its own: two, since some CPUs fetch them in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// Says that there is nothing more to come.
const STOP: u64 = u64::MAX;

/// Half the round trip in ns of a store between the CPU of the calling thread, which is pinned, and `there`; None if
/// that CPU cannot be had.
///
/// Both wait by plain loads, as programs that poll for a completion do: a pause instruction takes up to 140 cycles on
/// some CPUs, and in virtual machines may hand the CPU to the host.
fn cross_core(there: u32) -> Option<f64> {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let respond = || {
        if pin(there).is_err() {
            return pong.0.store(STOP, Ordering::Release);
        }
        for expected in 1.. {
            loop {
                match ping.0.load(Ordering::Acquire) {
                    STOP => return,
                    value if value == expected => break,
                    _ => {}
                }
            }
            pong.0.store(expected, Ordering::Release);
        }
    };
    thread::scope(|scope| {
        Builder::new().spawn_scoped(scope, respond).ok()?;
        let mut times = round_trips(&ping.0, &pong.0, Instant::now() + PATIENCE);
        ping.0.store(STOP, Ordering::Release);
        (!times.is_empty()).then(|| median(&mut times) / TRIPS.1 as f64 / 2.0)
    })
}

/// The time in ns of each batch of round trips that was done before the deadline, but for the first, in which the other
/// thread comes to life.
fn round_trips(ping: &AtomicU64, pong: &AtomicU64, deadline: Instant) -> Vec<f64> {
    let mut value = 0;
    let mut batch = || {
        let started = Instant::now();
        for _ in 0..TRIPS.1 {
            value += 1;
            ping.store(value, Ordering::Release);
            let mut looks = 0_u32;
            while pong.load(Ordering::Acquire) != value {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(1024) && (Instant::now() >= deadline || pong.load(Ordering::Acquire) == STOP) {
                    return None;
                }
            }
        }
        Some(nanoseconds(started.elapsed()))
    };
    (0..=TRIPS.0).map_while(|_| batch()).skip(1).collect()
}

/// Bytes per second of copying a block of each size from one buffer to another, both touched before.
fn memcpy() -> Vec<(u64, f64)> {
    let largest = BLOCKS[BLOCKS.len() - 1];
    let (from, mut to) = (vec![1_u8; largest], vec![2_u8; largest]);
    BLOCKS.iter().map(|&size| (size as u64, copy_rate(&from[..size], &mut to[..size]))).collect()
}

fn copy_rate(from: &[u8], to: &mut [u8]) -> f64 {
    // At least 1 MiB, which takes a thousand times as long as reading the clock.
    let copies = (1 << 20_usize).max(from.len()) / from.len();
    let mut batch = || {
        let started = Instant::now();
        for _ in 0..copies {
            black_box(&mut *to).copy_from_slice(black_box(from));
        }
        (copies * from.len()) as f64 * 1e9 / nanoseconds(started.elapsed())
    };
    batch();
    let started = Instant::now();
    let mut rates = Vec::new();
    loop {
        rates.push(batch());
        let spent = started.elapsed();
        if spent >= COPYING.1 || spent >= COPYING.0 && rates.len() >= 3 {
            return median(&mut rates);
        }
    }
}

/// The time of [`Clock::raw`], in ns.
fn clock_ns(clock: &Clock) -> f64 {
    const READS: u32 = 1000;
    let batch = || {
        let started = Instant::now();
        for _ in 0..READS {
            black_box(clock.raw());
        }
        nanoseconds(started.elapsed()) / f64::from(READS)
    };
    median(&mut (0..20).map(|_| batch()).collect::<Vec<_>>())
}

/// Never 0, so that a quotient by it is a number.
fn nanoseconds(time: Duration) -> f64 {
    (time.as_nanos() as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    fn plausible(figures: &RawFigures) {
        let sizes: Vec<_> = figures.memcpy.iter().map(|(size, _)| *size).collect();
        assert_eq!(sizes, [4096, 65536, 1048576, 8388608]);
        // Between a very slow machine in a debug build and more than any machine does.
        assert!(figures.memcpy.iter().all(|(_, rate)| (1e7..1e13).contains(rate)), "{:?}", figures.memcpy);
        assert!((0.1..1e5).contains(&figures.clock_ns), "{}", figures.clock_ns);
    }

    #[test]
    fn a_machine_has_figures_and_the_caller_stays_where_it_was() {
        let all = Topology::read().expect("this machine");
        let cpus = all.order(None);
        let figures = measure(3, (cpus.first().copied(), cpus.get(1).copied()));
        plausible(&figures);
        assert_eq!(figures.round, 3);
        // Without a second CPU to itself it may have given up, but it says nothing that is none.
        assert!(figures.cross_core_ns.is_none_or(|ns| ns > 0.1 && ns < 1e9), "{:?}", figures.cross_core_ns);
        assert_eq!(Topology::read().expect("this machine"), all);
    }

    #[test]
    fn one_cpu_or_none_has_no_way_between_two() {
        let cpu = Topology::read().expect("this machine").cpus()[0];
        for cpus in [(Some(cpu), Some(cpu)), (None, Some(cpu)), (Some(cpu), None), (None, None)] {
            let figures = measure(0, cpus);
            assert_eq!(figures.cross_core_ns, None, "{cpus:?}");
            plausible(&figures);
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_is_not_waited_for() {
        let cpu = Topology::read().expect("this machine").cpus()[0];
        let figures = measure(0, (Some(cpu), Some(1023)));
        assert_eq!(figures.cross_core_ns, None);
        plausible(&figures);
    }

    #[test]
    fn a_cpu_that_never_answers_is_given_up() {
        let (ping, pong) = (AtomicU64::new(0), AtomicU64::new(0));
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(round_trips(&ping, &pong, deadline).is_empty());
        assert!(Instant::now() >= deadline && ping.into_inner() == 1);
    }
}
