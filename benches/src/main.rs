//! `make bench`: Vervain's speed beside the raw operations that bound it, in one run. Prints tables, marks each target met or
//! missed, and writes the numbers to `benches/results/`. A missed target is no failure of the run.

mod between;
mod idle;
mod instructions;
mod looped;
mod machine;
mod perftest;
mod process;
mod report;
mod setup;
mod stats;
mod switches;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

use crate::report::{Report, Section};
use crate::setup::{Setup, package_directory};

/// Measures Vervain beside the raw operations that bound it.
///
/// Ours and raw are measured alternately, on two processors, so that a ratio of medians stays meaningful on a machine
/// that others use too. Needs perftest, a C compiler and libibverbs-dev; valgrind if it is there.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Fewer rounds: a rough picture in under half a minute
    #[arg(long)]
    quick: bool,
    /// Rounds of each comparison [default: 7, or 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=101))]
    rounds: Option<u8>,
    /// Sections to measure, all unless named
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    only: Vec<Part>,
    /// The vervain command to measure [default: target/release/vervain]
    #[arg(long, value_name = "PATH")]
    vervain: Option<PathBuf>,
    /// Where to write the numbers [default: benches/results/latest.json, if all was measured]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Post and poll in one process
    Looped,
    /// ib_write_lat beside process_vm_writev
    Latency,
    /// ib_write_bw beside process_vm_writev
    Bandwidth,
    /// Context switches
    Switches,
    /// Cost of an open device
    Idle,
    /// Instruction counts
    Instructions,
    /// Other operations
    Others,
}

/// What measures a part.
type Measure = fn(&Setup) -> Section;

const PARTS: [(Part, Measure); 7] = [
    (Part::Looped, looped::section),
    (Part::Latency, between::latency),
    (Part::Bandwidth, between::bandwidth),
    (Part::Switches, switches::section),
    (Part::Idle, idle::section),
    (Part::Instructions, instructions::section),
    (Part::Others, between::others),
];

fn main() -> Result<()> {
    let options = Options::parse();
    let rounds = options.rounds.map_or(if options.quick { 3 } else { 7 }, usize::from);
    let machine = machine::describe();
    let setup = Setup::new(options.vervain, rounds)?;
    Report::print_head(&machine);
    let mut report = Report { machine, perftest: perftest::version(), sections: Vec::new() };
    for (part, measure) in PARTS {
        if options.only.is_empty() || options.only.contains(&part) {
            let section = measure(&setup);
            section.print();
            report.sections.push(section);
        }
    }
    report.print_verdict();
    let output = match options.output {
        None if options.only.is_empty() => Some(package_directory()?.join("results/latest.json")),
        named => named,
    };
    if let Some(output) = output {
        report.save(&output)?;
        println!("Numbers: {}", output.display());
    }
    Ok(())
}
