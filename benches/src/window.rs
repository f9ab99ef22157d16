//! The window link between two processes of one machine, through a file that both map: unmodified perftest, and pairs of QPs where
//! perftest has no test, beside stores and copies without any library.

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::between::raw;
use crate::perftest::Test;
use crate::process::numbers;
use crate::report::{Row, Section, Target, Unit};
use crate::rounds::{Measure, interleaved, single, together};
use crate::setup::{LIMIT, Setup};

/// Promises: ns over the ping-pong of stores, parts of memcpy, ms of processor time.
const WRITE_OVER_BY: f64 = 100.0;
const MESSAGE_OVER_BY: f64 = 300.0;
const ROUND_TRIP_OVER_BY: f64 = 500.0;
const COPY_AT_LEAST: f64 = 0.45;
const DIRECT_COPY_AT_LEAST: f64 = 0.85;
const IDLE_AT_MOST: f64 = 10.0;
/// Has the memory of programs in the window.
const HEAP: &str = ",heap=on";
/// What is idle for so long.
const IDLE_SECONDS: &str = "2";

const WRITE_LAT: Test = Test::new("ib_write_lat", 8, 10_000);
const SEND_LAT: Test = Test::new("ib_send_lat", 8, 20_000);
const DATAGRAM_LAT: Test = Test { extra: &["-c", "UD"], ..SEND_LAT };
const SLEEPING_SEND_LAT: Test = Test { extra: &["-e"], ..Test::new("ib_send_lat", 8, 5_000) };
const READ_LAT: Test = Test::new("ib_read_lat", 8, 10_000);
const FETCH_ADD_LAT: Test =
    Test { size: None, extra: &["-A", "FETCH_AND_ADD"], ..Test::new("ib_atomic_lat", 8, 10_000) };
const SWAP_LAT: Test = Test { size: None, extra: &["-A", "CMP_AND_SWAP"], ..Test::new("ib_atomic_lat", 8, 10_000) };
const BYTES: usize = 1 << 20;
const COPIES: usize = 2_000;

/// The tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    vec![latency(setup), bandwidth(setup), idle(setup)]
}

fn latency(setup: &Setup) -> Section {
    let tests = [
        ("ib_write_lat 8 B, heap=on", &WRITE_LAT, HEAP, 1.0, Some(WRITE_OVER_BY)),
        ("ib_write_lat 8 B", &WRITE_LAT, "", 1.0, None),
        ("ib_send_lat 8 B", &SEND_LAT, "", 1.0, Some(MESSAGE_OVER_BY)),
        ("ib_send_lat 8 B -c UD", &DATAGRAM_LAT, "", 1.0, None),
        ("ib_send_lat 8 B -e (both sleep)", &SLEEPING_SEND_LAT, "", 1.0, None),
        ("ib_read_lat 8 B", &READ_LAT, "", 2.0, Some(ROUND_TRIP_OVER_BY)),
        ("ib_atomic_lat, fetch and add", &FETCH_ADD_LAT, "", 2.0, Some(ROUND_TRIP_OVER_BY)),
        ("ib_atomic_lat, compare and swap", &SWAP_LAT, "", 2.0, Some(ROUND_TRIP_OVER_BY)),
    ];
    let pairs = [("Send 8 B, inline", "send"), ("Write with immediate 8 B, inline", "write-imm")];
    let mut measures: Vec<Measure> = vec![single(|| raw(setup, "raw", &["shared", "20000"]))];
    measures.extend(
        tests.map(|(_, test, heap, ..)| single(move || through_window(test, heap, |test| test.typical_ns(setup)))),
    );
    measures.extend(pairs.map(|(_, mode)| single(move || paired_through_file(setup, mode, "20000"))));
    let mut measured = interleaved(setup.rounds, measures).into_iter().map(|result| result.map(|mut c| c.remove(0)));
    let stores = measured.next().and_then(Result::ok).unwrap_or_default();
    let twice: Vec<f64> = stores.iter().map(|ns| 2.0 * ns).collect();
    let names = tests.map(|(what, _, _, trips, over)| (what, trips, over)).into_iter();
    let names = names.chain(pairs.map(|(what, _)| (what, 1.0, Some(MESSAGE_OVER_BY))));
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    for ((what, trips, over), ours) in names.zip(measured) {
        let row = match ours {
            Ok(ours) if trips == 1.0 => Row::beside(what, Unit::Ns, &ours, "ping-pong of stores", &stores),
            Ok(ours) => Row::beside(what, Unit::Ns, &ours, "ping-pong of stores, there and back", &twice),
            Err(e) => {
                skipped.push(format!("{e:#}"));
                None
            }
        };
        rows.extend(row.map(|row| over.into_iter().fold(row, |row, over| row.target(Target::OverByAtMost(over)))));
    }
    let section = Section::new(
        "Through a window: latency of 8 bytes",
        "VERVAIN_LINK=window, a file in memory. perftest's typical time, and where it has no test the median of a ping-pong\n\
         of inline requests: half a round trip of Writes and Sends, the whole operation of Reads and atomics, for whose\n\
         target nobody polls. Beside it: half a round trip of plain stores into memory that both map, for Reads and\n\
         atomics a whole one.",
        Ok(rows),
    );
    Section { skipped, ..section }
}

fn bandwidth(setup: &Setup) -> Section {
    Section::new(
        "Through a window: bandwidth against memcpy",
        "perftest's average. Beside it: a loop of memcpy from a process's own memory into a memfd that both map. What goes through a\n\
         ring is copied twice, by one processor each; with heap=on, once, by who sends or answers.",
        bandwidth_rows(setup),
    )
}

fn bandwidth_rows(setup: &Setup) -> Result<Vec<Row>> {
    let [bytes, copies] = [BYTES, COPIES].map(|n| n.to_string());
    let programs = [
        ("ib_write_bw", HEAP, DIRECT_COPY_AT_LEAST),
        ("ib_send_bw", HEAP, DIRECT_COPY_AT_LEAST),
        ("ib_read_bw", HEAP, DIRECT_COPY_AT_LEAST),
        ("ib_write_bw", "", COPY_AT_LEAST),
        ("ib_send_bw", "", COPY_AT_LEAST),
        ("ib_read_bw", "", COPY_AT_LEAST),
    ];
    let mut measures: Vec<Measure> = vec![single(|| raw(setup, "memory", &["copy-out", &bytes, &copies]))];
    measures.extend(programs.map(|(program, heap, _)| {
        let test = Test::new(program, BYTES, COPIES);
        single(move || through_window(&test, heap, |test| test.bandwidth(setup)))
    }));
    let columns = together(setup.rounds, measures)?;
    let rows = programs.iter().zip(&columns[1..]).filter_map(|((program, heap, at_least), ours)| {
        let what = format!("{program} 1 MiB{}", heap.replace(',', ", "));
        let row = Row::beside(what, Unit::MibPerS, ours, "memcpy to shared memory", &columns[0])?;
        Some(row.target(Target::RatioAtLeast(*at_least)))
    });
    Ok(rows.collect())
}

fn idle(setup: &Setup) -> Section {
    Section::new(
        "Through a window: a process with one connected QP that does nothing",
        "Its processor time while both sleep.",
        (|| {
            let columns =
                together(setup.fewer_rounds(), vec![single(|| paired_through_file(setup, "idle", IDLE_SECONDS))])?;
            let row = Row::new(format!("processor time in {IDLE_SECONDS} s of sleep"), Unit::Ms, &columns[0]);
            Ok(row.into_iter().map(|row| row.target(Target::AtMost(IDLE_AT_MOST))).collect())
        })(),
    )
}

/// A new window's file, and the folder that is gone with this value.
pub(crate) fn new_window() -> Result<(TempDir, String)> {
    let folder = tempfile::tempdir_in("/dev/shm").context("making a window")?;
    let file = folder.path().join("window").to_str().context("a path")?.to_owned();
    Ok((folder, file))
}

/// Measures a test of perftest whose two sides are processes of one window, their memory in it where `heap` says so.
fn through_window<T>(test: &Test<'_>, heap: &str, measure: impl FnOnce(&Test<'_>) -> Result<T>) -> Result<T> {
    let (_folder, file) = new_window()?;
    let window = file + heap;
    measure(&Test { variables: &[("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &window)], ..test.clone() })
}

/// A mode of `paired.c` through a new window's file.
fn paired_through_file(setup: &Setup, mode: &str, length: &str) -> Result<f64> {
    let (_folder, file) = new_window()?;
    paired(setup, &file, mode, length)
}

/// A mode of `paired.c`.
pub(crate) fn paired(setup: &Setup, window: &str, mode: &str, length: &str) -> Result<f64> {
    let mut command = setup.under_vervain(&["--link", "window", "--window", window], setup.program("paired")?);
    let cpus = [setup.cpus.client.to_string(), setup.cpus.server.to_string()];
    Ok(numbers(command.args([mode, length]).args(cpus), None, LIMIT)?[0])
}
