//! The command line of `vervain acp`. No behaviour.

use clap::{Args, Subcommand};

use crate::cli::{DeviceOptions, StarterOptions};

const EXAMPLES: &str = "\
Examples:
  vervain acp memory                           what a rank of 1,000,000 holds, by the library's types and constants
  vervain acp memory --ranks 4096 --starter 1M
  ACP_CONNECTIONS=64 vervain acp memory        with fewer connections
  vervain acp memory --measure                 measured: a rank that has had to do with 999,999 others, in minutes
  vervain acp memory --measure --leader        measured: one that leads a block of the directory
  vervain acp memory --measure --ranks 10000 --farms 4";

#[derive(Args, Debug)]
pub struct AcpArgs {
    #[command(subcommand)]
    pub command: AcpCommand,
}

#[derive(Subcommand, Debug)]
pub enum AcpCommand {
    /// Say what one rank holds in memory for a job of many ranks, beside what the paper says of the original
    ///
    /// Settings of ACP are taken from the environment (ACP_CONNECTIONS, ACP_STARTER_MEMORY, ACP_DEVICES …) and from the
    /// options. What Vervain's device takes for its objects is weighed by making them.
    #[command(after_help = EXAMPLES)]
    Memory(MemoryArgs),
    /// Weigh the objects of a device (the process behind `memory`)
    #[command(hide = true)]
    Weigh,
    /// Be the rank that is measured, with orders on standard input
    #[command(hide = true)]
    Rank,
    /// Be many ranks, with orders on standard input
    #[command(hide = true)]
    SimulatedRanks(SimulatedRanksArgs),
    /// Be a program that has joined the job and nothing else
    #[command(hide = true)]
    Bare,
}

#[derive(Args, Debug)]
pub struct MemoryArgs {
    /// Number of ranks of the job, 1 to 2097152
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = ranks)]
    pub ranks: u32,
    /// Measure it: one rank has to do with all others, in both directions
    ///
    /// A PMIx server of its own tells the rank that is measured that the job has N ranks. Other processes, the farms,
    /// answer for these, each with its own handshakes and QPs. The rank gets from, puts to, adds to and copies between
    /// all of them; then all of them visit it. For each number of contacts what it holds is printed, less what a
    /// program holds that does nothing but join the job.
    #[arg(long)]
    pub measure: bool,
    /// Processes that answer for the other ranks, 1 to 512; at most one for each 1024 ranks [default: 64]
    #[arg(long, value_name = "K", requires = "measure", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub farms: Option<u32>,
    /// Measure a leader, which tells where the 1024 ranks of its block are and finds other leaders, rather than one of
    /// all others
    #[arg(long, requires = "measure")]
    pub leader: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub starter: StarterOptions,
    #[command(flatten)]
    pub device: DeviceOptions,
}

#[derive(Args, Debug)]
pub struct SimulatedRanksArgs {
    /// The first rank, which this process is
    pub first: u32,
    /// The rank behind the last one
    pub end: u32,
    /// The rank that is measured
    pub measured: u32,
}

fn ranks(text: &str) -> Result<u32, String> {
    let most = 1 << 21;
    text.parse().ok().filter(|ranks| (1..=most).contains(ranks)).ok_or_else(|| format!("it can be 1 to {most}"))
}
