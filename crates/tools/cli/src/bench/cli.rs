//! The command line of `vervain bench`. No behaviour.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::DeviceOptions;

pub const EXAMPLES: &str = "\
Examples:
  vervain bench run                          a look at the first device of this host, in half a minute
  vervain bench run paper --local -o paper   the figures of Akimoto et al. 2012, on this host
  vervain bench run acp -o acp               ACP beside the MPI ping-pong, as Ajima et al. 2015
  vervain bench run tca -o tca               a model of PEACH2 beside TCA Verbs (2015)
  vervain bench run pm -o pm                 PM's messages and copies beside Sumimoto et al. 2004
  vervain bench serve                        on the far host, then here:
  vervain bench run paper --peer node7 --device mlx5_0
  vervain bench plans paper > mine.toml      a plan to change; then: vervain bench run mine.toml
  vervain bench compare before after         two directories of runs";

#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Carry out a plan, or resume an interrupted run
    ///
    /// Each measurement is written to DIR/journal.jsonl at once; results.json, report.html and figures/ follow at the
    /// end, also at an early one (Ctrl-C, a lost peer). Exit status: 0 if all is measured; 1 if something failed or is
    /// missing; 130 if interrupted.
    Run(RunArgs),
    /// Be the far host of a run, until Ctrl-C
    ///
    /// Everybody who reaches the port can have this host measured: use it on trusted networks.
    Serve(ServeArgs),
    /// Compare two runs, and mark the differences that are more than chance
    Compare(CompareArgs),
    /// Write results.json, report.html and figures/ of a run again
    Report(ReportArgs),
    /// List the plans that are built in, or print one
    Plans(PlansArgs),
    /// A worker, with its orders on standard input
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// Which device.
#[derive(Args, Debug, Clone)]
pub struct Which {
    /// The device [default: the first]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Index in the port's GID table [default: the best]
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,
    /// The libibverbs to measure
    #[arg(long, value_enum, default_value_t = Verbs::Auto)]
    pub verbs: Verbs,
    #[command(flatten)]
    pub options: DeviceOptions,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbs {
    /// The one that the dynamic linker finds, if it has the device; else Vervain's
    Auto,
    /// The one that the dynamic linker finds
    System,
    /// Vervain's, as under `vervain run`
    Vervain,
}

#[derive(Args, Debug)]
pub struct RunArgs {
    /// The name of a built-in plan, or a file
    #[arg(default_value = "quick", conflicts_with = "resume")]
    pub plan: String,
    /// The far host, on which `vervain bench serve` runs
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["local", "resume"])]
    pub peer: Option<String>,
    /// Both ends on this host [default without --peer]
    #[arg(long)]
    pub local: bool,
    /// The directory for all results [default: vervain-bench-PLAN-TIME]
    #[arg(short, long, value_name = "DIR", conflicts_with = "resume")]
    pub out: Option<PathBuf>,
    /// Go on with the run in this directory
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Rounds of each case, instead of the plan's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "resume")]
    pub rounds: Option<u32>,
    /// Also cases with more ranks than this host has processors, and the iterations that the plan has for a full run
    #[arg(long, conflicts_with = "resume")]
    pub full: bool,
    /// Seed of order and resampling, instead of the plan's
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    pub seed: Option<u64>,
    /// The port of the device, from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub port: u8,
    #[command(flatten)]
    pub which: Which,
}

#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Address to listen on [default: port 4790 of all addresses]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub bind: Option<SocketAddr>,
    #[command(flatten)]
    pub which: Which,
}

#[derive(Args, Debug)]
pub struct CompareArgs {
    /// The run to compare with: its directory or its results.json
    pub a: PathBuf,
    /// The run that is compared
    pub b: PathBuf,
    /// The HTML file for the comparison; figures and values are written beside it
    #[arg(short, long, value_name = "FILE", default_value = "vervain-bench-compare.html")]
    pub out: PathBuf,
}

#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The directory of the run
    pub dir: PathBuf,
}

#[derive(Args, Debug)]
pub struct PlansArgs {
    /// The plan to print
    pub name: Option<String>,
}

#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// The device if the coordinator names none
    #[arg(long)]
    pub device: Option<String>,
    /// The GID if the coordinator names none
    #[arg(long)]
    pub gid_index: Option<u8>,
    /// Be a rank of the job that this process was started in, with orders from the coordinator of this name
    #[arg(long, requires = "interface")]
    pub join: Option<String>,
    /// What the ranks of the job use
    #[arg(long, requires = "join")]
    pub interface: Option<String>,
}
