//! Plans: what to measure, and how. TOML in, cases out.

use std::time::Duration;

use crate::case::{Case, Placement};

/// A plan as it was read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// `paper`, or the path of the file.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// The TOML itself.
    pub text: String,
    /// How often each case is measured, in rounds over all cases; 1 to 1000.
    pub rounds: u32,
    /// Order of the cases in each round and bootstrap; None: a new one for each run.
    pub seed: Option<u64>,
    /// The share of a value by which its runs may differ before it is flagged.
    pub spread: f64,
    /// Who runs where.
    pub pinning: Pinning,
    /// The cases, in the order of the file.
    pub blocks: Vec<Block>,
}

/// A case of a plan, and how to measure it. `placement` is None where the plan leaves it to the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// With [`Placement::Loopback`] where `placement` is None.
    pub case: Case,
    /// Where the plan wants the responder.
    pub placement: Option<Placement>,
    /// How it is measured.
    pub settings: Settings,
}

/// How a case is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Operations of a run, where `at_least` and `at_most` do not say otherwise; 1 to 10^9.
    pub iterations: u64,
    /// Operations before the measurement that do not count.
    pub warm_up: u64,
    /// More operations are made where they would take less than this.
    pub at_least: Duration,
    /// Fewer operations are made where they would take longer, but at least 16.
    pub at_most: Duration,
    /// Bytes up to which a message is posted inline; None: 220 for latency where the device can, else 0, as perftest.
    pub inline: Option<u32>,
    /// Requests for one completion, at most the depth; bandwidth only.
    pub signal_every: u32,
}

/// Where the four processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pinning {
    /// The measured requester.
    pub client: Pin,
    /// Its responder.
    pub server: Pin,
    /// The interfering requester.
    pub background_client: Pin,
    /// Its responder.
    pub background_server: Pin,
    /// NUMA node of all registered memory; None: that of the CPU.
    pub memory_node: Option<u32>,
}

/// A place for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pin {
    /// A CPU of its own near the device, as far as there are any.
    #[default]
    Auto,
    /// Where the scheduler likes.
    Free,
    /// This CPU.
    Cpu(u32),
}
