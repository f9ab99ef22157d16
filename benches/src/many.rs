//! Many processes on the two processors, more than can run at once.

use anyhow::Result;

use crate::process::number;
use crate::report::{Row, Rows, Section, Unit};
use crate::rounds::{single, together};
use crate::setup::Setup;

/// Mode of `many.c`, processes or initiators, messages of each to each, what it is.
const CASES: [(&str, &str, &str, &str); 6] = [
    ("fan-in", "1", "100000", "1 initiator to one SRQ and CQ"),
    ("fan-in", "2", "50000", "2 initiators to one SRQ and CQ"),
    ("fan-in", "4", "25000", "4 initiators to one SRQ and CQ"),
    ("fan-in", "16", "6000", "16 initiators to one SRQ and CQ"),
    ("all-to-all", "2", "50000", "2 processes, all to all"),
    ("all-to-all", "16", "500", "16 processes, all to all"),
];

/// Rates.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "Many processes on two processors: Sends of 8 bytes, messages a second, all together",
        "One SRQ and one CQ for each process; up to 8 Sends outstanding on each QP, each signalled; who finds nothing\n\
         yields.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Rows> {
    let measures = CASES.map(|(mode, processes, messages, _)| {
        single(move || {
            let mut command = setup.ours("many")?;
            Ok(number(command.args([mode, processes, messages]).args(setup.cpus.words()), None)? / 1e3)
        })
    });
    let columns = together(setup.fewer_rounds(), measures)?;
    Ok(CASES.iter().zip(&columns).map(|(case, ours)| Row::new(case.3, Unit::MillionPerS, ours, None)).collect())
}
