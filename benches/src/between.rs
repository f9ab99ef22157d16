//! Two processes, shared memory: unmodified perftest under `vervain run` beside what the two processors do without any
//! library. Taken in turns, since what the processors need to see each other's stores changes from minute to minute.

use std::process::Command;

use anyhow::Result;

use crate::perftest::Test;
use crate::process::number;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{single, together};
use crate::setup::Setup;

/// The bounds: ns over the ping-pong, parts of memcpy, millions of messages.
const WRITE_OVER_BY: f64 = 80.0;
const SEND_OVER_BY: f64 = 140.0;
const COPY_AT_LEAST: f64 = 0.9;
const RATE_AT_LEAST: f64 = 20.0;

const WRITE_LAT: Test = Test::new("ib_write_lat", 8, 20_000);
const SEND_LAT: Test = Test::new("ib_send_lat", 8, 20_000);
const SLEEPING_SEND_LAT: Test = Test { extra: &["-e"], ..Test::new("ib_send_lat", 8, 5_000) };
const READ_LAT: Test = Test::new("ib_read_lat", 8, 20_000);
const ATOMIC_LAT: Test = Test { size: None, ..Test::new("ib_atomic_lat", 8, 5_000) };
const RATE: Test = Test::new("ib_write_bw", 8, 500_000);
const RATE_LISTS: Test = Test { extra: &["-l", "32"], ..RATE };

/// Bytes of a copy, its name, and copies in a run.
const COPIES: [(usize, &str, usize); 3] =
    [(64 << 10, "64 KiB", 20_000), (1 << 20, "1 MiB", 1_000), (16 << 20, "16 MiB", 60)];

/// Latency of 8 bytes.
pub fn latency(setup: &Setup) -> Section {
    Section::new(
        "Two processes: latency of 8 bytes",
        "perftest's typical time: half a round trip of Writes and Sends, the whole operation of Reads and atomics.\n\
         Beside it: half a round trip of plain stores into memory that both map, with the same two processors.",
        latency_rows(setup),
    )
}

fn latency_rows(setup: &Setup) -> Result<Rows> {
    let columns = together(
        setup.rounds,
        [
            single(|| raw(setup, "raw", &["shared", "20000"])),
            single(|| WRITE_LAT.typical_ns(setup)),
            single(|| SEND_LAT.typical_ns(setup)),
            single(|| READ_LAT.typical_ns(setup)),
            single(|| ATOMIC_LAT.typical_ns(setup)),
            single(|| SLEEPING_SEND_LAT.typical_ns(setup)),
            single(|| raw(setup, "memory", &["wake", "5000", "20"])),
        ],
    )?;
    let [stores, write, send, read, atomic, sleeping, wake] = &columns[..] else { return Ok(Vec::new()) };
    let row = |what: &str, ours: &[f64], over_by| {
        let limit = "a request is posted and completed besides; unshared memory takes a system call (part system-call)";
        let row = Row::beside(what, Unit::Ns, ours, ("ping-pong of stores", stores), Target::OverByAtMost(over_by));
        row.map(|row| row.limit(limit))
    };
    Ok(vec![
        row("ib_write_lat 8 B", write, WRITE_OVER_BY),
        row("ib_send_lat 8 B", send, SEND_OVER_BY),
        Row::new("ib_read_lat 8 B", Unit::Ns, read, None),
        Row::new("ib_atomic_lat 8 B", Unit::Ns, atomic, None),
        Row::beside("ib_send_lat 8 B -e (both sleep)", Unit::Ns, sleeping, ("futex wake and answer", wake), None),
    ])
}

/// Bandwidth of large messages.
pub fn copies(setup: &Setup) -> Section {
    Section::new(
        "Two processes: bandwidth against memcpy",
        "perftest's average. Beside it: a loop of memcpy between one process's own memory and a memfd that both map,\n\
         first touched by the other process, on the same processor; source and destination are the same in every\n\
         copy, as perftest has it from 4 KiB on. Write: from own to shared memory. Read: from shared to own.",
        copy_rows(setup),
    )
}

fn copy_rows(setup: &Setup) -> Result<Rows> {
    let mut rows = Vec::new();
    let programs = [
        ("ib_write_bw", "copy-out", "memcpy to shared memory"),
        ("ib_read_bw", "copy-in", "memcpy from shared memory"),
        ("ib_send_bw", "copy-out", "memcpy to shared memory"),
    ];
    for (program, mode, copy) in programs {
        for (bytes, name, count) in COPIES {
            let test = Test::new(program, bytes, count);
            let measures = [
                single(|| test.bandwidth(setup)),
                single(|| raw(setup, "memory", &[mode, &bytes.to_string(), &count.to_string()])),
            ];
            let columns = together(setup.rounds, measures)?;
            let target = (program != "ib_send_bw").then_some(Target::RatioAtLeast(COPY_AT_LEAST));
            let what = format!("{program} {name}");
            rows.push(Row::beside(what, Unit::MibPerS, &columns[0], (copy, &columns[1]), target));
        }
    }
    Ok(rows)
}

/// Messages a second.
pub fn rate(setup: &Setup) -> Section {
    Section::new(
        "Two processes: message rate, Writes of 8 bytes, one QP",
        "ib_write_bw -s 8; with post lists: -l 32.",
        rate_rows(setup),
    )
}

fn rate_rows(setup: &Setup) -> Result<Rows> {
    let measures = [single(|| RATE_LISTS.message_rate(setup)), single(|| RATE.message_rate(setup))];
    let columns = together(setup.rounds, measures)?;
    Ok(vec![
        Row::new("post lists of 32", Unit::MillionPerS, &columns[0], Target::AtLeast(RATE_AT_LEAST)),
        Row::new("one request in a call", Unit::MillionPerS, &columns[1], None),
    ])
}

/// A mode of `raw.c` or `memory.c` on the two processors.
pub fn raw(setup: &Setup, program: &str, arguments: &[&str]) -> Result<f64> {
    let mut command = Command::new(setup.program(program)?);
    number(command.args(arguments).args(setup.cpus.words()), None)
}
