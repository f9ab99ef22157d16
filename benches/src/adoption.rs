//! What it costs to adopt private memory, which is shared while it is registered (docs/adoption.md), and to give it back.

use anyhow::Result;

use crate::process::numbers;
use crate::report::{Row, Rows, Section, Unit};
use crate::rounds::{Measure, all};
use crate::setup::Setup;

/// Arguments of `register.c`: bytes and count; what that is.
const CASES: [(&str, &str, &str); 4] =
    [("4096", "2000", "4 KiB"), ("65536", "1000", "64 KiB"), ("1048576", "200", "1 MiB"), ("67108864", "9", "64 MiB")];

/// All sizes.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "One process: adoption (VERVAIN_SHARE=off, VERVAIN_ADOPT=on)",
        "Private memory becomes shared in ibv_reg_mr, and private again in ibv_dereg_mr. Its pages are written before each.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Rows> {
    let measures = CASES.map(|(bytes, count, _)| -> Measure {
        Box::new(move || {
            let mut command = setup.ours("register")?;
            command.env("VERVAIN_SHARE", "off").env("VERVAIN_ADOPT", "on");
            numbers(command.args(["adopted", bytes, count]), Some(setup.cpus.client))
        })
    });
    let mut rows = Vec::new();
    for ((.., what), both) in CASES.iter().zip(all(setup.fewer_rounds(), measures)?) {
        let calls = ["ibv_reg_mr", "ibv_dereg_mr"].iter().zip(both);
        rows.extend(calls.map(|(call, ns)| Row::new(format!("{what}, {call}"), Unit::Ns, &ns, None)));
    }
    Ok(rows)
}
