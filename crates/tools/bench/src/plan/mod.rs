//! Plans: what to measure, and how. TOML in, cases out. docs/bench.md is the guide to the format.
//!
//! The tree that the `toml` crate parses is walked by hand ([`parse`]), so that each mistake has its place, its key and
//! what was expected there, and that one look shows all of them.

mod block;
mod environments;
mod error;
mod parse;
mod quantity;
mod read;
mod settings;

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::time::Duration;

pub use error::{Place, PlanError, PlanErrors};
pub use parse::parse;

use crate::case::{Case, EnvironmentName, Measure, Placement};
use crate::environment::Environment;

/// The plans that come with the program: their names and their TOML.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("quick", include_str!("../../plans/quick.toml")),
    ("paper", include_str!("../../plans/paper.toml")),
    ("interference", include_str!("../../plans/interference.toml")),
    ("atomics", include_str!("../../plans/atomics.toml")),
    ("scaling", include_str!("../../plans/scaling.toml")),
    ("acp", include_str!("../../plans/acp.toml")),
    ("tca", include_str!("../../plans/tca.toml")),
    ("pm", include_str!("../../plans/pm.toml")),
];

/// Bytes of a plan's text: far more than one by hand has, far less than would take long to look through.
const TEXT_MOST: usize = 256 << 10;

/// Time of one measurement besides its own: the coordinator's orders to the workers and their answers, and warming up.
const OVERHEAD: Duration = Duration::from_millis(25);

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
    /// The CPUs of the processes.
    pub pinning: Pinning,
    /// The environments that cases may be measured in.
    pub environments: BTreeMap<EnvironmentName, Environment>,
    /// The cases, in the order of the file; some may be there twice ([`Plan::cases`]).
    pub blocks: Vec<Block>,
}

/// A case of a plan, and how to measure it. `placement` is None where the plan leaves it to the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// With [`Placement::Loopback`] where `placement` is None.
    pub case: Case,
    /// The placement of the responder that the plan asks for.
    pub placement: Option<Placement>,
    /// How it is measured.
    pub settings: Settings,
}

/// How a case is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Operations of a run, where `at_least` and `at_most` do not say otherwise; 1 to 10^9.
    pub iterations: u64,
    /// And those of a run that is to be full.
    pub full_iterations: Option<u64>,
    /// Measured in full runs only.
    pub only_full: bool,
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
    /// Bytes that a measurement by ranks of a job moves at most, as far as one iteration allows. In place of `at_least`
    /// and `at_most`, which bound the others.
    pub volume: u64,
}

/// The CPUs of the four processes.
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
    /// NUMA node of all registered memory of the host; None: that of the CPU.
    pub memory_node: Option<u32>,
    /// The GPU, at both ends, as CUDA counts them; None: the first one on the device's NUMA node.
    pub gpu: Option<u32>,
}

/// A place for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pin {
    /// A CPU of its own near the device, as far as there are any.
    #[default]
    Auto,
    /// Any CPU that the scheduler chooses.
    Free,
    /// This CPU.
    Cpu(u32),
}

/// Reads a plan: a built-in one of that name, or else the file.
///
/// # Errors
/// There is neither, or the plan has mistakes: all of them.
pub fn load(name_or_path: &str) -> Result<Plan, PlanErrors> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
        return parse(name, text);
    }
    let mut text = Vec::new();
    let file = std::fs::File::open(name_or_path);
    if let Err(why) = file.and_then(|file| file.take(TEXT_MOST as u64 + 1).read_to_end(&mut text)) {
        let names = BUILT_IN.iter().map(|(name, _)| *name);
        let help = error::did_you_mean(name_or_path, names.clone());
        let names = error::one_of(names);
        let what = format!("expected a file, or the name of a built-in plan, {names}; the file: {why}{help}");
        return Err(PlanErrors::unreadable(name_or_path, what));
    }
    match std::str::from_utf8(&text) {
        Ok(text) => parse(name_or_path, text),
        Err(why) => Err(parse::not_utf8(name_or_path, &text, why.valid_up_to())),
    }
}

impl Plan {
    /// The cases to measure, in the plan's order: with `placement` if the plan leaves it to the run, and each case
    /// once, with the settings of its first occurrence.
    pub fn cases(&self, placement: Placement) -> Vec<(Case, Settings)> {
        let mut seen = HashSet::new();
        // A launcher starts the ranks of a job on this host, and workers of another one have the environment of that.
        let is_here = |case: &Case| case.interface.has_ranks() || case.environment.is_some();
        let of_block = |block: &Block| if is_here(&block.case) { Placement::Loopback } else { placement };
        let case = |block: &Block| Case { placement: block.placement.unwrap_or(of_block(block)), ..block.case };
        let all = self.blocks.iter().map(|block| (case(block), block.settings));
        all.filter(|(case, _)| seen.insert(*case)).collect()
    }

    /// About how long a run takes: all rounds over [`Plan::cases`]. A rough forecast, for the first "time left" and for
    /// who chooses a plan; see [`Settings::forecast`].
    pub fn estimate(&self, placement: Placement) -> Duration {
        let cases = self.cases(placement);
        let measured = cases.iter().filter(|(_, settings)| !settings.only_full);
        let round: Duration = measured.map(|(case, settings)| settings.forecast(case)).sum();
        round * self.rounds
    }
}

impl Settings {
    /// Iterations of a measurement by ranks of a job, of messages of so many bytes: the Intel MPI Benchmarks' rule
    /// (IMB-MPI1, its -iter and the volume behind its comma), without the limit of time.
    pub fn of_ranks(&self, case: &Case) -> u64 {
        if case.operation.is_jacobi() {
            return self.iterations;
        }
        self.iterations.min(self.volume / case.size.max(1)).max(1)
    }

    /// About how long one measurement of a case takes, with what is around it. It supposes a device that takes 1 µs for
    /// a message alone, 0.3 µs for one of many, and moves 5 GB/s, which is wrong for any device in particular;
    /// `at_least` and `at_most` bound how wrong it can be.
    pub fn forecast(&self, case: &Case) -> Duration {
        let per_message = match case.measure {
            // By 2 GFLOPS, 17 operations for each two bytes of the pressure.
            _ if case.operation.is_jacobi() => case.size as f64 * 8.5 / 2e9,
            Measure::Latency if case.operation.is_answered() => 2.0 * (1e-6 + case.size as f64 / 5e9),
            Measure::Latency => 1e-6 + case.size as f64 / 5e9,
            Measure::Bandwidth => 0.3e-6 + case.size as f64 / 5e9,
        };
        if case.interface.has_ranks() {
            let iterations = self.of_ranks(case) + self.warm_up;
            return OVERHEAD + Duration::from_secs_f64(per_message * iterations as f64);
        }
        let planned = per_message * self.iterations as f64;
        let bounded = planned.max(self.at_least.as_secs_f64()).min(self.at_most.as_secs_f64());
        OVERHEAD + Duration::from_secs_f64(bounded.max(16.0 * per_message))
    }
}

#[cfg(test)]
mod tests;
