//! One process, one RC QP connected to itself: what posting and polling cost without a second processor.

use std::iter;
use std::process::Command;

use anyhow::Result;

use crate::process::number;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{single, together};
use crate::setup::Setup;

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

fn rows(setup: &Setup) -> Result<Rows> {
    let client = Some(setup.cpus.client);
    let xadd = single(|| number(Command::new(setup.program("raw")?).args(["xadd", BATCHES]), client));
    let operations = OPERATIONS
        .map(|(name, ..)| single(move || number(setup.ours("looped")?.args([name, BATCHES, PER_BATCH]), client)));
    let columns = together(setup.rounds, iter::once(xadd).chain(operations))?;
    let row = |(&(name, what, at_most), ours): (&(_, _, Option<f64>), &Vec<f64>)| {
        let target = at_most.map(Target::AtMost);
        match name {
            "fetch-add" | "compare-swap" => {
                Row::beside(what, Unit::Ns, ours, ("locked add of the CPU", &columns[0]), target)
            }
            _ => Row::new(what, Unit::Ns, ours, target),
        }
    };
    Ok(OPERATIONS.iter().zip(&columns[1..]).map(row).collect())
}
