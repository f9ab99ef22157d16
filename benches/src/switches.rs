//! Who sleeps and who is woken while data moves: context switches of every thread of both sides, read from /proc in the
//! middle of a run, so that connecting and reporting do not count.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::perftest::{Length, Test, numbers_of};
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::setup::Setup;

/// "No thread wakes": fewer sleeps than one in a hundred operations. The progress thread looks up a few times a second.
const AT_MOST: f64 = 0.01;
/// perftest runs for `DURATION`; the window begins after connecting and its own warm-up.
const DURATION: u32 = 4;
const BEFORE: Duration = Duration::from_millis(1_500);
const WINDOW: Duration = Duration::from_millis(1_500);

const LATENCY: Test = Test { length: Length::Seconds(DURATION), ..Test::new("ib_write_lat", 8, 0) };
const BANDWIDTH: Test = Test { length: Length::Seconds(DURATION), ..Test::new("ib_write_bw", 1 << 20, 0) };

/// Both paths.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "No thread wakes: context switches per operation while data moves",
        "All threads of a process together. Voluntary: the thread slept and was woken. What the scheduler took away\n\
         (others wanted the processor) is said below.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Rows> {
    let mut rows = Vec::new();
    // A side of the latency test does one operation in a round trip, which is twice what perftest calls its latency.
    rows.extend(test(setup, "ib_write_lat 8 B", &LATENCY, |n| n.get(2).map(|t_avg| 1e6 / (2.0 * t_avg)))?);
    rows.extend(test(setup, "ib_write_bw 1 MiB", &BANDWIDTH, |n| n.get(4).map(|millions| 1e6 * millions))?);
    Ok(rows)
}

/// Runs `test` and watches both sides; `rate` finds the operations per second in the client's numbers.
fn test(setup: &Setup, what: &str, test: &Test, rate: impl Fn(&[f64]) -> Option<f64>) -> Result<Rows> {
    let mut pair = test.start(setup)?;
    let pids = [("client", pair.client.pid()), ("server", pair.server.pid())];
    sleep(BEFORE);
    let started = Instant::now();
    let before = pids.map(|(_, pid)| Switches::of(pid));
    sleep(WINDOW);
    let after = pids.map(|(_, pid)| Switches::of(pid));
    let window = started.elapsed().as_secs_f64();
    ensure!(pair.client.is_alive() && pair.server.is_alive(), "{what} ended before it was looked at");
    let operations = window * rate(&numbers_of(&pair.finish()?)?).context("the client's line of numbers is short")?;
    let sides = pids.iter().zip(before.into_iter().zip(after));
    let rows = sides.map(|((side, _), (before, after))| {
        let (before, after) = (before?, after?);
        let voluntary = after.voluntary.saturating_sub(before.voluntary);
        let forced = after.forced.saturating_sub(before.forced);
        let per_operation = voluntary as f64 / operations;
        let target = Target::AtMost(AT_MOST);
        let row = Row::new(format!("{what}, {side}"), Unit::PerOperation, &[per_operation], target)?;
        let note = format!(
            "{voluntary} sleeps and {forced} preemptions of {} threads in {operations:.0} operations",
            after.threads
        );
        Ok(row.note(note))
    });
    Ok(rows.collect())
}

/// Context switches of all threads of a process.
#[derive(Debug, Default, Clone, Copy)]
struct Switches {
    voluntary: u64,
    forced: u64,
    threads: usize,
}

impl Switches {
    fn of(pid: u32) -> Result<Switches> {
        let mut sum = Switches::default();
        for task in fs::read_dir(format!("/proc/{pid}/task")).context("listing threads")? {
            let status = fs::read_to_string(task?.path().join("status")).context("reading a thread's status")?;
            sum.voluntary += field(&status, "voluntary_ctxt_switches:")?;
            sum.forced += field(&status, "nonvoluntary_ctxt_switches:")?;
            sum.threads += 1;
        }
        Ok(sum)
    }
}

fn field(status: &str, name: &str) -> Result<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)).context("no such field in a status file")?;
    value.trim().parse().context("a status file with a strange number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_a_voluntary_switch() {
        let pid = std::process::id();
        let before = Switches::of(pid).unwrap();
        (0..20).for_each(|_| sleep(Duration::from_millis(1)));
        let after = Switches::of(pid).unwrap();
        assert!(after.voluntary - before.voluntary >= 20, "{before:?} {after:?}");
        assert!(after.threads >= 1);
    }
}
