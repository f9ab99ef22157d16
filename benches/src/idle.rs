//! What an open device costs a process that does nothing with it.

use anyhow::{Context, Result};

use crate::process::numbers;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::setup::Setup;

/// Seconds of doing nothing.
const SECONDS: &str = "2";
/// The bounds: ms to open, KiB of memory. "No CPU" is read as less than a thousandth of one processor.
const OPEN_AT_MOST: f64 = 5.0;
const MEMORY_AT_MOST: f64 = 1024.0;
const CPU_AT_MOST: f64 = 2.0;

/// Opening and idling.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "One process: a device open and unused",
        "The memory is the growth of the process's proportional set size (PSS in /proc/self/smaps_rollup): most of it is pages of\n\
         the libraries' code, each counted by the part that falls to this one of the processes that map it. So it is as\n\
         large as it gets while nothing else runs under Vervain, and half of that beside a second program.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Rows> {
    let mut columns: [Vec<f64>; 5] = Default::default();
    let mut threads = 0.0;
    for _ in 0..setup.fewer_rounds() {
        let numbers = numbers(setup.ours("idle")?.arg(SECONDS), Some(setup.cpus.client))?;
        let [opening, loaded, opened, written, cpu, count]: [f64; 6] =
            numbers.try_into().ok().context("idle printed another number of numbers")?;
        columns
            .iter_mut()
            .zip([opening, loaded, opened, written, cpu])
            .for_each(|(column, number)| column.push(number));
        threads = count;
    }
    let [opening, loaded, opened, written, cpu] = &columns;
    Ok(vec![
        Row::new("ibv_get_device_list and ibv_open_device", Unit::Ms, opening, Target::AtMost(OPEN_AT_MOST)),
        Row::new("memory: the library loaded and a device open", Unit::Kib, loaded, Target::AtMost(MEMORY_AT_MOST)),
        Row::new("memory: of that, by opening", Unit::Kib, opened, None),
        Row::new("memory: of that, written by the process", Unit::Kib, written, None),
        Row::new("processor time in 2 s of sleep", Unit::Ms, cpu, Target::AtMost(CPU_AT_MOST))
            .map(|row| row.note(format!("{threads} threads"))),
    ])
}
