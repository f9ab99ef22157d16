//! The window link between two processes of one machine, through a file that both map: unmodified perftest, and pairs of QPs where
//! perftest has no test, beside stores and copies without any library.

use std::iter;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::between::raw;
use crate::perftest::Test;
use crate::process::number;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Measure, Measured, single, together};
use crate::setup::Setup;

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
    let mut named: Vec<(&str, Measure)> = vec![("stores", single(|| raw(setup, "raw", &["shared", "20000"])))];
    named.extend(tests.map(|(what, test, heap, ..)| {
        (what, single(move || through_window(test, heap, |test| test.typical_ns(setup))))
    }));
    named.extend(pairs.map(|(what, mode)| (what, single(move || paired_through_file(setup, mode, "20000")))));
    let names = tests.map(|(what, _, _, trips, over)| (what, trips, over)).into_iter();
    let names = names.chain(pairs.map(|(what, _)| (what, 1.0, Some(MESSAGE_OVER_BY))));
    Measured::of(setup.rounds, named).section(
        "Through a window: latency of 8 bytes",
        "VERVAIN_LINK=window, a file in memory. perftest's typical time, and where it has no test the median of a ping-pong\n\
         of inline requests: half a round trip of Writes and Sends, the whole operation of Reads and atomics, for whose\n\
         target nobody polls. Beside it: half a round trip of plain stores into memory that both map, for Reads and\n\
         atomics a whole one.",
        |measured| {
            let row = |(what, trips, over): (&str, f64, Option<f64>)| {
                let (ours, stores) = (measured.column((what, 0))?, measured.column(("stores", 0))?);
                let beside = if trips == 1.0 { "ping-pong of stores" } else { "ping-pong of stores, there and back" };
                let stores: Vec<f64> = stores.iter().map(|ns| trips * ns).collect();
                Row::beside(what, Unit::Ns, ours, (beside, &stores), over.map(Target::OverByAtMost))
            };
            names.clone().map(row).collect()
        },
    )
}

fn bandwidth(setup: &Setup) -> Section {
    Section::new(
        "Through a window: bandwidth against memcpy",
        "perftest's average. Beside it: a loop of memcpy from a process's own memory into a memfd that both map. What goes through a\n\
         ring is copied twice, by one processor each; with heap=on, once, by who sends or answers.",
        bandwidth_rows(setup),
    )
}

fn bandwidth_rows(setup: &Setup) -> Result<Rows> {
    let [bytes, copies] = [BYTES, COPIES].map(|n| n.to_string());
    let programs = [
        ("ib_write_bw", HEAP, DIRECT_COPY_AT_LEAST),
        ("ib_send_bw", HEAP, DIRECT_COPY_AT_LEAST),
        ("ib_read_bw", HEAP, DIRECT_COPY_AT_LEAST),
        ("ib_write_bw", "", COPY_AT_LEAST),
        ("ib_send_bw", "", COPY_AT_LEAST),
        ("ib_read_bw", "", COPY_AT_LEAST),
    ];
    let copy = single(|| raw(setup, "memory", &["copy-out", &bytes, &copies]));
    let measures = programs.map(|(program, heap, _)| {
        let test = Test::new(program, BYTES, COPIES);
        single(move || through_window(&test, heap, |test| test.bandwidth(setup)))
    });
    let columns = together(setup.rounds, iter::once(copy).chain(measures))?;
    let copy: (_, &[f64]) = ("memcpy to shared memory", &columns[0]);
    let rows = programs.iter().zip(&columns[1..]).map(|((program, heap, at_least), ours)| {
        let what = format!("{program} 1 MiB{}", heap.replace(',', ", "));
        Row::beside(what, Unit::MibPerS, ours, copy, Target::RatioAtLeast(*at_least))
    });
    Ok(rows.collect())
}

fn idle(setup: &Setup) -> Section {
    let time = single(|| paired_through_file(setup, "idle", IDLE_SECONDS));
    let what = format!("processor time in {IDLE_SECONDS} s of sleep");
    Measured::of(setup.fewer_rounds(), [("idle", time)]).section(
        "Through a window: a process with one connected QP that does nothing",
        "Its processor time while both sleep.",
        |measured| vec![measured.row(&what[..], Unit::Ms, ("idle", 0), Target::AtMost(IDLE_AT_MOST))],
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
    number(command.args([mode, length]).args(setup.cpus.words()), None)
}
