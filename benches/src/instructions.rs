//! Instructions of one write, counted by callgrind: a number that no neighbour on the machine can disturb.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::process::Running;
use crate::report::{Row, Section, Unit};
use crate::setup::{LIMIT, Setup, is_installed};

/// Two lengths of the same run; what they differ by is free of loading, opening and connecting.
const SHORT: u32 = 1_000;
const LONG: u32 = 6_000;

/// The count.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "One process: instructions of one 8-byte RDMA Write, post and poll",
        "callgrind's counts of two runs of different length, subtracted and divided; the program's own loop is in it.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Vec<Row>> {
    ensure!(is_installed("valgrind"), "valgrind is not installed (Debian: apt install valgrind)");
    let mut rows = Vec::new();
    for (operation, what) in [("write", "ibv_post_send and ibv_poll_cq"), ("wr-write-inline", "inline, by ibv_wr_*")] {
        let (short, long) = (count(setup, operation, SHORT)?, count(setup, operation, LONG)?);
        rows.extend(Row::new(what, Unit::Instructions, &[(long - short) / f64::from(LONG - SHORT)]));
    }
    Ok(rows)
}

/// Instructions of a whole run of `operations`.
fn count(setup: &Setup, operation: &str, operations: u32) -> Result<f64> {
    let log = setup.directory.path().join("callgrind.log");
    let mut command = setup.under_vervain(&[], "valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(format!("--log-file={}", log.display()));
    command.arg(setup.program("looped")?).args([operation, "1", &operations.to_string()]);
    Running::start(&mut command, None, LIMIT)?.finish()?;
    collected(&log)
}

/// The number in callgrind's line "Collected : N".
fn collected(log: &Path) -> Result<f64> {
    let text = fs::read_to_string(log).context("reading callgrind's log")?;
    let number = text.lines().find_map(|line| line.split_once("Collected :").map(|(_, number)| number.trim()));
    number.and_then(|n| n.parse().ok()).context("callgrind told no count")
}
