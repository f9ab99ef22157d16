//! The owner's copy: the path for memory that no peer may touch, where a thread of its owner is woken to do the work.

use anyhow::Result;

use crate::between::raw;
use crate::process::number;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Measure, single, together};
use crate::setup::Setup;

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

fn rows(setup: &Setup) -> Result<Rows> {
    let columns = together(
        setup.rounds,
        [
            owner(setup, "write", "8:2000:50"),
            owner(setup, "fetch-add", "8:2000:50"),
            single(|| raw(setup, "memory", &["wake", "2000", GAP])),
            owner(setup, "write", "1048576:300"),
            single(|| raw(setup, "memory", &["copy-out", &MIB.to_string(), "500"])),
        ],
    )?;
    let [write, add, wake, large, copy] = &columns[..] else { return Ok(Vec::new()) };
    let large: Vec<f64> = large.iter().map(|ns| 1e9 / ns).collect(); // each is one MiB
    let (wake, copy) = (("futex wake and answer", &wake[..]), ("memcpy of 1 MiB", &copy[..]));
    Ok(vec![
        Row::beside("RDMA Write of 8 B", Unit::Ns, write, wake, Target::RatioAtMost(WAKES_AT_MOST)),
        Row::beside("fetch and add", Unit::Ns, add, wake, None),
        Row::beside("RDMA Write of 1 MiB", Unit::MibPerS, &large, copy, Target::RatioAtLeast(COPY_AT_LEAST)),
    ])
}

fn owner<'a>(setup: &'a Setup, mode: &'a str, size: &'a str) -> Measure<'a> {
    single(move || {
        let (mut command, [client, server]) = (setup.ours("onesided")?, setup.cpus.words());
        command.env("VERVAIN_SHARE", "off").env("VERVAIN_MEMORY", "owner");
        number(command.args([mode, &server, &client, size]), None)
    })
}
