//! Two processes: unmodified perftest under `vervain run` beside the same pattern of raw process_vm_writev calls, taken in
//! turns, since what the two processors need to see each other's stores changes from minute to minute.

use std::process::Command;

use anyhow::Result;

use crate::perftest::{Length, Test};
use crate::process::numbers;
use crate::report::{Row, Section, Target, Unit};
use crate::setup::{LIMIT, Setup};

const MIB: usize = 1 << 20;
/// The bounds.
const LATENCY_AT_MOST: f64 = 1.2;
const BANDWIDTH_AT_LEAST: f64 = 0.9;

const WRITE_LAT: Test = Test::new("ib_write_lat", 8, 20_000);
const WRITE_BW: Test = Test::new("ib_write_bw", MIB, 500);
const SEND_LAT: Test = Test::new("ib_send_lat", 8, 20_000);
const READ_LAT: Test = Test::new("ib_read_lat", 8, 20_000);
const ATOMIC_LAT: Test = Test { size: None, ..Test::new("ib_atomic_lat", 8, 5_000) };
const SEND_BW: Test = Test::new("ib_send_bw", 64 << 10, 10_000);
const OWNER_LAT: Test =
    Test { vervain: &["--memory", "owner"], length: Length::Messages(2_000), ..Test::new("ib_write_lat", 8, 0) };

/// Latency of 8 bytes.
pub fn latency(setup: &Setup) -> Section {
    Section::new(
        "Two processes: ib_write_lat, 8 bytes, in memory reached by process_vm",
        "perftest's typical half round trip. Raw: one process_vm_writev call as its caller sees it, and the same ping-pong\n\
         made of such calls (what the target sees starts before the call returns, so this may be the smaller one).",
        latency_rows(setup),
    )
}

fn latency_rows(setup: &Setup) -> Result<Vec<Row>> {
    let (mut ours, mut call, mut pingpong, mut shared) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..setup.rounds {
        let mut beside = || -> Result<()> {
            call.push(raw(setup, &["call", "20000"])?);
            pingpong.push(raw(setup, &["pingpong", "20000"])?);
            shared.push(raw(setup, &["shared", "20000"])?);
            Ok(())
        };
        in_turns(round, || WRITE_LAT.typical_ns(setup).map(|ns| ours.push(ns)), &mut beside)?;
    }
    let at_most = Target::RatioAtMost(LATENCY_AT_MOST);
    let row = |what: &str, raw_what, raw: &[f64]| Row::beside(what, Unit::Ns, &ours, raw_what, raw);
    let rows = [
        row("ib_write_lat 8 B / one call", "one process_vm_writev call", &call).map(|r| r.target(at_most)),
        row("ib_write_lat 8 B / ping-pong", "process_vm_writev ping-pong", &pingpong).map(|r| r.target(at_most)),
        row("ib_write_lat 8 B / shared memory", "ping-pong in shared memory", &shared),
    ];
    Ok(rows.into_iter().flatten().collect())
}

/// Bandwidth of 1 MiB.
pub fn bandwidth(setup: &Setup) -> Section {
    Section::new(
        "Two processes: ib_write_bw, 1 MiB, in memory reached by process_vm",
        "perftest's average. Raw: process_vm_writev of 1 MiB from and to buffers of the same kind, one call after another.\n\
         Each round takes the best of three short runs of either: what disturbs a bandwidth only ever lowers it.",
        bandwidth_rows(setup),
    )
}

fn bandwidth_rows(setup: &Setup) -> Result<Vec<Row>> {
    let (mut ours, mut calls) = (Vec::new(), Vec::new());
    for round in 0..setup.rounds {
        let call = || raw(setup, &["bandwidth", &MIB.to_string(), "500"]);
        let mut beside = || best_of_three(call).map(|v| calls.push(v));
        in_turns(round, || best_of_three(|| WRITE_BW.bandwidth(setup)).map(|v| ours.push(v)), &mut beside)?;
    }
    let row = Row::beside("ib_write_bw 1 MiB", Unit::MibPerS, &ours, "process_vm_writev of 1 MiB", &calls);
    Ok(row.map(|r| r.target(Target::RatioAtLeast(BANDWIDTH_AT_LEAST))).into_iter().collect())
}

/// The rest of the family, without targets.
pub fn others(setup: &Setup) -> Section {
    Section::new(
        "Two processes: other operations, for information",
        "Typical times: half a round trip for sends and writes, the whole operation for reads and atomics.",
        other_rows(setup),
    )
}

fn other_rows(setup: &Setup) -> Result<Vec<Row>> {
    let rounds = setup.rounds.div_ceil(2);
    let mut rows = Vec::new();
    let latencies = [
        ("ib_send_lat 8 B", &SEND_LAT),
        ("ib_read_lat 8 B", &READ_LAT),
        ("ib_atomic_lat 8 B", &ATOMIC_LAT),
        ("ib_write_lat 8 B, VERVAIN_MEMORY=owner", &OWNER_LAT),
    ];
    for (what, test) in latencies {
        let ours = (0..rounds).map(|_| test.typical_ns(setup)).collect::<Result<Vec<_>>>()?;
        rows.extend(Row::new(what, Unit::Ns, &ours));
    }
    let (mut ours, mut calls) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let call = || raw(setup, &["bandwidth", "65536", "10000"]);
        let mut beside = || best_of_three(call).map(|v| calls.push(v));
        in_turns(round, || best_of_three(|| SEND_BW.bandwidth(setup)).map(|v| ours.push(v)), &mut beside)?;
    }
    rows.extend(Row::beside("ib_send_bw 64 KiB", Unit::MibPerS, &ours, "process_vm_writev of 64 KiB", &calls));
    Ok(rows)
}

fn best_of_three(measure: impl Fn() -> Result<f64>) -> Result<f64> {
    let runs = (0..3).map(|_| measure()).collect::<Result<Vec<_>>>()?;
    Ok(runs.into_iter().fold(0.0, f64::max))
}

/// Ours first in one round, the raw calls first in the next.
fn in_turns(round: usize, ours: impl FnOnce() -> Result<()>, beside: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    if round.is_multiple_of(2) {
        ours()?;
        beside()
    } else {
        beside()?;
        ours()
    }
}

/// A mode of `raw.c` on the two processors.
fn raw(setup: &Setup, arguments: &[&str]) -> Result<f64> {
    let mut command = Command::new(setup.program("raw")?);
    command.args(arguments).args([setup.cpus.client.to_string(), setup.cpus.server.to_string()]);
    Ok(numbers(&mut command, None, LIMIT)?[0])
}
