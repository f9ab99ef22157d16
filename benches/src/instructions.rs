//! Instructions of one write, counted by callgrind, as the test of the same name counts them and with its bound.

use anyhow::{Error, Result, ensure};
use vervain_tests::callgrind::{WRITE_INSTRUCTIONS_AT_MOST, per_operation};

use crate::report::{Row, Section, Target, Unit};
use crate::setup::{Setup, is_installed};

/// The bound.
const AT_MOST: f64 = 400.0;

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
    let looped = setup.program("looped")?;
    let mut rows = Vec::new();
    for (operation, what) in [("write", "ibv_post_send and ibv_poll_cq"), ("wr-write-inline", "inline, by ibv_wr_*")] {
        let count = per_operation(|| setup.under_vervain(&[], "valgrind"), &looped, operation).map_err(Error::msg)?;
        let row = Row::new(what, Unit::Instructions, &[count]).map(|row| row.target(Target::AtMost(AT_MOST)));
        rows.extend(row.map(|row| row.note(format!("the test fails above {WRITE_INSTRUCTIONS_AT_MOST}"))));
    }
    Ok(rows)
}
