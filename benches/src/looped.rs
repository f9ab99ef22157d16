//! One process, one RC QP connected to itself: what posting and polling cost without a second processor.

use std::process::Command;

use anyhow::Result;

use crate::process::numbers;
use crate::report::{Row, Section, Target, Unit};
use crate::setup::{LIMIT, Setup};

/// The bound for a write, in ns.
const WRITE_AT_MOST: f64 = 100.0;
/// Operations between two looks at the clock, and batches; the median is that of the batches.
const PER_BATCH: &str = "100";
const BATCHES: &str = "2000";

/// Name for `looped.c`, and what it is.
const OPERATIONS: [(&str, &str); 6] = [
    ("write", "RDMA Write"),
    ("write-inline", "RDMA Write, inline"),
    ("wr-write-inline", "RDMA Write, inline, by ibv_wr_*"),
    ("read", "RDMA Read"),
    ("send-recv", "Send to a Receive: 2 posts, 2 polls"),
    ("fetch-add", "fetch and add"),
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
    let mut ours = vec![Vec::new(); OPERATIONS.len()];
    let mut raw = Vec::new();
    for round in 0..setup.rounds {
        // Begin elsewhere in each round, so that no operation always follows the same one.
        for i in 0..OPERATIONS.len() {
            let i = (i + round) % OPERATIONS.len();
            ours[i].push(operation(setup, OPERATIONS[i].0)?);
        }
        let mut xadd = Command::new(setup.program("raw")?);
        raw.push(numbers(xadd.args(["xadd", BATCHES]), Some(setup.cpus.client), LIMIT)?[0]);
    }
    let rows = OPERATIONS.iter().zip(&ours).filter_map(|((name, what), ours)| {
        let row = match *name {
            "fetch-add" => Row::beside(*what, Unit::Ns, ours, "lock add of the CPU", &raw),
            _ => Row::new(*what, Unit::Ns, ours),
        };
        row.map(|row| if *name == "write" { row.target(Target::AtMost(WRITE_AT_MOST)) } else { row })
    });
    Ok(rows.collect())
}

fn operation(setup: &Setup, name: &str) -> Result<f64> {
    let mut command = setup.under_vervain(&[], setup.program("looped")?);
    Ok(numbers(command.args([name, BATCHES, PER_BATCH]), Some(setup.cpus.client), LIMIT)?[0])
}
