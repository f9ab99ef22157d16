//! An application that never opens a device, under `vervain run` and without: the same program in turns.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use vervain_bench::stats::median;

use crate::process::{LIMIT, number, output};
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Measure, single, together};
use crate::setup::{Setup, package_directory};

/// "Nothing measurable": what rounds on this kind of machine differ by anyway.
const AT_MOST: f64 = 1.05;

const LIMIT_TOLD: &str = "a start has the loader map and bind one more library, the preload";

/// Mode of `bystander.c`, its count, what it is.
const CASES: [(&str, &str, &str); 5] = [
    ("small", "2000000", "malloc and free, 16 to 256 B"),
    ("mixed", "300000", "malloc, touch, free: 16 B to 4 MiB"),
    ("large", "400", "malloc, touch, free: 1 to 8 MiB"),
    ("map", "200", "mmap, touch, munmap: 4 MiB"),
    ("spawn", "300", "start of /bin/true by a program under it"),
];

/// Start-up, allocation, numpy.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "A program that never opens a device: under vervain run, and bare",
        "The same program in turns, on one processor. Processor time; wall time for what starts programs.",
        Ok(rows(setup)),
    )
}

fn rows(setup: &Setup) -> Rows {
    let cases = CASES.map(|(mode, count, what)| {
        let measure = |vervain| bystander(setup, mode, count, vervain);
        beside(setup, what, measure(true), measure(false), true)
    });
    let whole = |vervain: bool| single(move || start(setup, vervain));
    let whole = beside(setup, "vervain run -- /bin/true, whole", whole(true), whole(false), false);
    cases.into_iter().chain([whole, numpy(setup)]).collect()
}

fn numpy(setup: &Setup) -> Result<Row> {
    let imports = |python: &&str| output(Command::new(python).args(["-c", "import numpy"]), None, LIMIT).is_ok();
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(imports) else {
        bail!("numpy stencil: python3 cannot import numpy (Debian: apt install python3-numpy)");
    };
    let script = package_directory()?.join("py/stencil.py");
    let stencil = |vervain: bool| {
        let script = &script;
        single(move || {
            let mut command = program(setup, Path::new(python), vervain);
            let milliseconds = number(command.arg(script).args(["1000", "30"]), Some(setup.cpus.client))?;
            Ok(milliseconds * 1e6)
        })
    };
    beside(setup, "numpy stencil, 1000 × 1000 doubles", stencil(true), stencil(false), true)
}

fn beside(setup: &Setup, what: &str, under: Measure, bare: Measure, promised: bool) -> Result<Row> {
    let columns = together(setup.rounds, [under, bare])?;
    let target = promised.then_some(Target::RatioAtMost(AT_MOST));
    let row = Row::beside(what, Unit::Ns, &columns[0], ("bare", &columns[1]), target)?;
    Ok(row.limit(promised.then_some(LIMIT_TOLD)))
}

fn bystander<'a>(setup: &'a Setup, mode: &'a str, count: &'a str, vervain: bool) -> Measure<'a> {
    single(move || {
        let mut command = program(setup, &setup.program("bystander")?, vervain);
        number(command.args([mode, count]), Some(setup.cpus.client))
    })
}

/// ns to start and end, with the work of the `vervain` command itself; the middle of several.
fn start(setup: &Setup, vervain: bool) -> Result<f64> {
    let mut times = [0.0; 50];
    for time in &mut times {
        let mut command = program(setup, Path::new("/bin/true"), vervain);
        let begin = Instant::now();
        output(&mut command, Some(setup.cpus.client), LIMIT)?;
        *time = begin.elapsed().as_nanos() as f64;
    }
    Ok(median(&mut times))
}

fn program(setup: &Setup, path: &Path, vervain: bool) -> Command {
    if vervain { setup.under_vervain(&[], path) } else { Command::new(path) }
}
