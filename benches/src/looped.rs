//! One process, one RC QP connected to itself: what posting and polling cost without a second processor.

use std::process::Command;

use anyhow::Result;

use crate::process::numbers;
use crate::report::{Row, Section, Target, Unit};
use crate::rounds::{Measure, single, together};
use crate::setup::{LIMIT, Setup};

/// The bounds, in ns.
const WRITE_AT_MOST: f64 = 45.0;
const ATOMIC_AT_MOST: f64 = 60.0;
/// Operations between two looks at the clock, and batches; the median is that of the batches.
const PER_BATCH: &str = "100";
const BATCHES: &str = "2000";

/// Name for `looped.c`, what it is, and the bound.
const OPERATIONS: [(&str, &str, Option<f64>); 7] = [
    ("write", "RDMA Write", Some(WRITE_AT_MOST)),
    ("write-inline", "RDMA Write, inline", None),
    ("wr-write-inline", "RDMA Write, inline, by ibv_wr_*", None),
    ("read", "RDMA Read", None),
    ("send-recv", "Send to a Receive: 2 posts, 2 polls", None),
    ("fetch-add", "fetch and add", Some(ATOMIC_AT_MOST)),
    ("compare-swap", "compare and swap", Some(ATOMIC_AT_MOST)),
];

/// Measures all operations in each round.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "One process: post and poll 8 bytes",
        "One RC QP connected to itself; each request is signalled and polled for before the next is posted.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let xadd = || -> Result<f64> {
        let mut xadd = Command::new(setup.program("raw")?);
        Ok(numbers(xadd.args(["xadd", BATCHES]), Some(setup.cpus.client), LIMIT)?[0])
    };
    let mut measures: Vec<Measure> = vec![single(xadd)];
    measures.extend(OPERATIONS.map(|(name, ..)| single(move || operation(setup, name))));
    let columns = together(setup.rounds, measures)?;
    let rows = OPERATIONS.iter().zip(&columns[1..]).filter_map(|(&(name, what, at_most), ours)| {
        let row = match name {
            "fetch-add" | "compare-swap" => Row::beside(what, Unit::Ns, ours, "locked add of the CPU", &columns[0]),
            _ => Row::new(what, Unit::Ns, ours),
        };
        row.map(|row| at_most.into_iter().fold(row, |row, most| row.target(Target::AtMost(most))))
    });
    Ok(rows.collect())
}

fn operation(setup: &Setup, name: &str) -> Result<f64> {
    let mut command = setup.under_vervain(&[], setup.program("looped")?);
    Ok(numbers(command.args([name, BATCHES, PER_BATCH]), Some(setup.cpus.client), LIMIT)?[0])
}
