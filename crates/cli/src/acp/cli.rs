//! The command line of `vervain acp`. No behaviour.

use clap::{Args, Subcommand};

use crate::cli::{DeviceOptions, StarterOptions};

const EXAMPLES: &str = "\
Examples:
  vervain acp memory                           what a rank of 1,000,000 holds, by the library's types and constants
  vervain acp memory --ranks 4096 --starter 1M
  ACP_CONNECTIONS=64 vervain acp memory        with fewer connections";

#[derive(Args, Debug)]
pub struct AcpArgs {
    #[command(subcommand)]
    pub command: AcpCommand,
}

#[derive(Subcommand, Debug)]
pub enum AcpCommand {
    /// Say what one rank holds in memory for a job of many ranks, beside what the paper says of the original
    ///
    /// Settings of ACP are taken from the environment (ACP_CONNECTIONS, ACP_STARTER_MEMORY, ACP_DEVICES …) and from the options. What
    /// Vervain's device takes for its objects is weighed by making them.
    #[command(after_help = EXAMPLES)]
    Memory(MemoryArgs),
    /// Weigh the objects of a device (the process behind `memory`)
    #[command(hide = true)]
    Weigh,
}

#[derive(Args, Debug)]
pub struct MemoryArgs {
    /// Number of ranks of the job, 1 to 2097152
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = ranks)]
    pub ranks: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub starter: StarterOptions,
    #[command(flatten)]
    pub device: DeviceOptions,
}

fn ranks(text: &str) -> Result<u32, String> {
    let most = 1 << 21;
    text.parse().ok().filter(|ranks| (1..=most).contains(ranks)).ok_or_else(|| format!("it can be 1 to {most}"))
}
