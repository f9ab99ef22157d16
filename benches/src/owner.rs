//! The owner's copy: the path for memory that no peer may touch, where a thread of its owner is woken to do the work.

use std::process::Command;

use anyhow::{Context, Result};

use crate::between::raw;
use crate::process::numbers;
use crate::report::{Row, Section, Target, Unit};
use crate::rounds::{Measure, single, together};
use crate::setup::{LIMIT, Setup};

/// The bounds.
const WAKES_AT_MOST: f64 = 3.0;
const COPY_AT_LEAST: f64 = 0.5;
const MIB: usize = 1 << 20;
/// Microseconds between wake-ups, on both sides of the comparison.
const GAP: &str = "50";

/// Latency against a wake-up, bandwidth against a memcpy.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "Two processes: copies by the owner (VERVAIN_SHARE=off, VERVAIN_MEMORY=owner)",
        "One request at a time, from posting to its completion, 8 bytes after a pause of 50 µs; the owner sleeps on the\n\
         other processor. Beside it: a store and FUTEX_WAKE to the answer of a sleeper there, after the same pause, and\n\
         memcpy from own to shared memory.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let columns = together(
        setup.rounds,
        vec![
            owner(setup, "write", "8:2000:50"),
            owner(setup, "fetch-add", "8:2000:50"),
            single(|| raw(setup, "memory", &["wake", "2000", GAP])),
            owner(setup, "write", "1048576:300"),
            single(|| raw(setup, "memory", &["copy-out", &MIB.to_string(), "500"])),
        ],
    )?;
    let [write, add, wake, large, copy] = &columns[..] else { return Ok(Vec::new()) };
    let large: Vec<f64> = large.iter().map(|ns| 1e9 / ns).collect(); // each is one MiB
    let rows = [
        Row::beside("RDMA Write of 8 B", Unit::Ns, write, "futex wake and answer", wake)
            .map(|row| row.target(Target::RatioAtMost(WAKES_AT_MOST))),
        Row::beside("fetch and add", Unit::Ns, add, "futex wake and answer", wake),
        Row::beside("RDMA Write of 1 MiB", Unit::MibPerS, &large, "memcpy of 1 MiB", copy)
            .map(|row| row.target(Target::RatioAtLeast(COPY_AT_LEAST))),
    ];
    Ok(rows.into_iter().flatten().collect())
}

fn owner<'a>(setup: &'a Setup, mode: &'a str, size: &'a str) -> Measure<'a> {
    single(move || {
        let mut command: Command = setup.under_vervain(&[], setup.program("onesided")?);
        command.env("VERVAIN_SHARE", "off").env("VERVAIN_MEMORY", "owner");
        command.args([mode, &setup.cpus.server.to_string(), &setup.cpus.client.to_string(), size]);
        numbers(&mut command, None, LIMIT)?.first().copied().context("onesided printed no number")
    })
}
