//! What registering memory costs.

use anyhow::Result;

use crate::process::number;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{single, together};
use crate::setup::Setup;

/// The bounds, in ns.
const SMALL_AT_MOST: f64 = 10e3;
const LARGE_AT_MOST: f64 = 20e6;

/// Arguments of `register.c` but the count, the count, what it is, the bound.
const CASES: [(&str, &str, &str, &str, Option<f64>); 5] = [
    ("touched", "4096", "10000", "4 KiB", Some(SMALL_AT_MOST)),
    ("untouched", "4096", "10000", "4 KiB, never touched", None),
    ("touched", "1073741824", "5", "1 GiB", Some(LARGE_AT_MOST)),
    ("untouched", "1073741824", "5", "1 GiB, never touched", Some(LARGE_AT_MOST)),
    ("used", "65536", "2000", "64 KiB, with an RDMA Write of it between", None),
];

/// All sizes.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "One process: ibv_reg_mr and ibv_dereg_mr",
        "Memory from malloc's allocator. The Write is posted on a looped QP and polled for.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Rows> {
    let measures = CASES.map(|(mode, bytes, count, ..)| {
        single(move || number(setup.ours("register")?.args([mode, bytes, count]), Some(setup.cpus.client)))
    });
    let columns = together(setup.fewer_rounds(), measures)?;
    let rows = CASES.into_iter().zip(&columns);
    Ok(rows.map(|((.., what, most), ours)| Row::new(what, Unit::Ns, ours, most.map(Target::AtMost))).collect())
}
