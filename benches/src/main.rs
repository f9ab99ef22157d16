//! `make bench`: Vervain's speed beside the raw operations that bound it and beside its peers, in one run. Prints
//! tables, marks each target met or missed, and writes the numbers to `docs/results.json` and from there into the
//! documents. A missed target is no failure of the run.

mod acp;
mod adoption;
mod atomics;
mod between;
mod bystander;
mod connections;
mod containers;
mod idle;
mod instructions;
mod jobs;
mod looped;
mod machine;
mod many;
mod messages;
mod mpi;
mod owner;
mod peach2;
mod peers;
mod perftest;
mod pm;
mod process;
mod ranks;
mod raw_udp;
mod registration;
mod render;
mod report;
mod roce;
mod rounds;
mod setup;
mod switches;
mod system_call;
mod table;
mod ucx;
mod window;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;

use crate::report::{Report, Section};
use crate::setup::{Setup, package_directory};

/// Measures Vervain beside the raw operations that bound it, and beside UCX and MPI.
///
/// What is compared is measured in turns, on two processors, so that a ratio of medians stays meaningful on a
/// machine that others use too. Needs perftest, a C compiler and libibverbs-dev; ucx_perftest, Open MPI, MPICH,
/// numpy and valgrind for the parts that use them.
#[derive(Parser, Debug)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Options {
    #[command(subcommand)]
    instead: Option<Instead>,
    /// Fewer rounds and sizes: a rough picture in under three minutes
    #[arg(long)]
    quick: bool,
    /// Rounds of each comparison [default: 7, or 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=101))]
    rounds: Option<u8>,
    /// Parts to measure, all unless named
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// The vervain command to measure [default: target/release/vervain]
    #[arg(long, value_name = "PATH")]
    vervain: Option<PathBuf>,
    /// Where to write the numbers [default: docs/results.json, if all was measured; then the tables are written anew]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(clap::Subcommand, Debug)]
enum Instead {
    /// Measure nothing: write the tables of docs/results.md anew, from the files of runs that it names
    Render,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Post and poll in one process
    Looped,
    /// Latencies beside a ping-pong of stores
    Latency,
    /// Bandwidths beside memcpy
    Bandwidth,
    /// Message rate
    Rate,
    /// Contended atomics
    Atomics,
    /// UCX and MPI
    Peers,
    /// UCX
    Ucx,
    /// One-sided MPI
    Mpi,
    /// Open MPI over Vervain
    Messages,
    /// ACP, beside verbs and one-sided MPI
    Acp,
    /// PM, beside verbs
    Pm,
    /// Checkpoint and restart of jobs; as root
    Jobs,
    /// Connections by rdma_cm
    Connections,
    /// RoCE packets over the loopback interface
    Roce,
    /// The window link
    Window,
    /// Windows by a model of PEACH2 boards
    Peach2,
    /// Registering memory
    Registration,
    /// Registering private memory, which is shared meanwhile
    Adoption,
    /// Copies by the owner
    Owner,
    /// Memory reached by process_vm
    SystemCall,
    /// Programs that open no device
    Bystander,
    /// More processes than processors
    Many,
    /// Context switches
    Switches,
    /// Cost of an open device
    Idle,
    /// Instruction counts
    Instructions,
}

/// What measures a part.
type Measure = fn(&Setup) -> Vec<Section>;

const PARTS: [(Part, Measure); 24] = [
    (Part::Looped, |setup| vec![looped::section(setup)]),
    (Part::Latency, |setup| vec![between::latency(setup)]),
    (Part::Bandwidth, |setup| vec![between::copies(setup)]),
    (Part::Rate, |setup| vec![between::rate(setup)]),
    (Part::Atomics, |setup| vec![atomics::section(setup)]),
    (Part::Ucx, ucx::sections),
    (Part::Mpi, mpi::sections),
    (Part::Messages, messages::sections),
    (Part::Acp, acp::sections),
    (Part::Pm, pm::sections),
    (Part::Jobs, |setup| vec![jobs::section(setup)]),
    (Part::Connections, |setup| vec![connections::section(setup)]),
    (Part::Roce, roce::sections),
    (Part::Window, window::sections),
    (Part::Peach2, peach2::sections),
    (Part::Registration, |setup| vec![registration::section(setup)]),
    (Part::Adoption, |setup| vec![adoption::section(setup)]),
    (Part::Owner, |setup| vec![owner::section(setup)]),
    (Part::SystemCall, |setup| vec![system_call::section(setup)]),
    (Part::Bystander, |setup| vec![bystander::section(setup)]),
    (Part::Many, |setup| vec![many::section(setup)]),
    (Part::Switches, |setup| vec![switches::section(setup)]),
    (Part::Idle, |setup| vec![idle::section(setup)]),
    (Part::Instructions, |setup| vec![instructions::section(setup)]),
];

impl Options {
    fn wants(&self, part: Part) -> bool {
        let of_peers = matches!(part, Part::Ucx | Part::Mpi) && self.only.contains(&Part::Peers);
        self.only.is_empty() || self.only.contains(&part) || of_peers
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(Instead::Render) = options.instead {
        return render::documents();
    }
    let rounds = options.rounds.map_or(if options.quick { 3 } else { 7 }, usize::from);
    let machine = machine::describe()?;
    let setup = Setup::new(options.vervain.clone(), rounds, options.quick)?;
    Report::print_head(&machine);
    let started = Instant::now();
    let mut report = Report { machine, perftest: perftest::version(), seconds: 0, sections: Vec::new() };
    for (part, measure) in PARTS {
        if options.wants(part) {
            let sections = measure(&setup);
            sections.iter().for_each(Section::print);
            report.sections.extend(sections);
        }
    }
    report.seconds = started.elapsed().as_secs();
    report.print_verdict();
    if let Some(output) = options.output {
        report.save(&output)?;
        println!("Numbers: {}", output.display());
    } else if options.only.is_empty() {
        let output = package_directory()?.join("../docs/results.json");
        report.save(&output)?;
        println!("Numbers: {}", output.display());
        render::documents()?;
    }
    Ok(())
}
