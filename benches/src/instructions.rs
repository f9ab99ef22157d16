//! Instructions of one operation and of one call, counted by callgrind, as the test of the same name counts them and with
//! its bounds.

use anyhow::{Error, Result};
use vervain_tests::callgrind::{CALL_INSTRUCTIONS_AT_MOST, INSTRUCTIONS_AT_MOST, per_call, per_operation};

use crate::report::{Row, Rows, Section, Target, Unit};
use crate::setup::{Setup, installed};

/// The count.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "One process: instructions of one operation of 8 bytes, post and poll",
        "callgrind's counts of two runs of different length, subtracted and divided; the library alone, and the program's \
         own loop around it. Calls: the median of many, packets over loopback, without what the kernel does.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Rows> {
    installed("valgrind", "valgrind")?;
    let looped = setup.program("looped")?;
    let mut rows = Vec::new();
    for (operation, at_most) in INSTRUCTIONS_AT_MOST {
        let (count, program) =
            per_operation(|| setup.under_vervain(&[], "valgrind"), &looped, operation).map_err(Error::msg)?;
        let row = Row::new(operation, Unit::Instructions, &[count], Target::AtMost(at_most));
        let note = format!("the program around it: {program:.0}; the test fails above the bound");
        rows.push(row.map(|row| row.note(note)));
    }
    for call in &CALL_INSTRUCTIONS_AT_MOST {
        let count = per_call(|| setup.under_vervain(&[], "valgrind"), &looped, call).map_err(Error::msg)?;
        let row = Row::new(call.what, Unit::Instructions, &[count], Target::AtMost(call.at_most));
        rows.push(row.map(|row| row.note("the test fails above the bound")));
    }
    Ok(rows)
}
