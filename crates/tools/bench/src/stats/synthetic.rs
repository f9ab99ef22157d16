//! Runs of a machine whose true value is known: what tests hold the statistics against.

use fastrand::Rng;

use super::Recorder;
use super::bootstrap::normal;
use crate::case::{Case, Measure};
use crate::results::Run;
use crate::sample::write_case;

/// How a machine's figures vary.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// The median latency in ns, or messages per second.
    pub truth: f64,
    /// Deviation of the runs, as a share of `truth`.
    pub between: f64,
    /// Deviation of iterations (latency) or segments (bandwidth) within a run, as a share.
    pub within: f64,
    /// Correlation of one iteration with the next.
    pub memory: f64,
}

impl Default for Machine {
    fn default() -> Self {
        Self { truth: 1e4, between: 0.01, within: 0.05, memory: 0.0 }
    }
}

impl Machine {
    /// One run: 20 segments of 50 iterations.
    pub fn run(&self, case: &Case, round: u32, rng: &mut Rng) -> Run {
        let level = self.truth * (self.between * normal(rng)).exp();
        // Large, and of no use to bandwidth.
        let mut recorder = (case.measure == Measure::Latency).then(Recorder::new);
        let mut state = normal(rng);
        let mut segment = || {
            let seconds: f64 = match case.measure {
                Measure::Bandwidth => 50.0 / (level * (self.within * normal(rng)).exp()),
                Measure::Latency => (0..50)
                    .map(|_| {
                        state = self.memory * state + (1.0 - self.memory.powi(2)).sqrt() * normal(rng);
                        let ns = level * (self.within * state).exp();
                        if let Some(recorder) = &mut recorder {
                            recorder.record((ns * 1000.0) as u64);
                        }
                        ns / 1e9
                    })
                    .sum(),
            };
            (50, seconds)
        };
        let segments: Vec<_> = (0..20).map(|_| segment()).collect();
        Run {
            round,
            at: f64::from(round),
            iterations: 1000,
            seconds: segments.iter().map(|(_, seconds)| seconds).sum(),
            segments,
            histogram: recorder.map(Recorder::into_buckets).unwrap_or_default(),
            lost: 0,
            interference: None,
        }
    }
}

/// 8 B write latency.
pub fn latency() -> Case {
    Case { measure: Measure::Latency, depth: 1, ..write_case(8) }
}

/// Write bandwidth of messages of so many bytes.
pub fn bandwidth(size: u64) -> Case {
    Case { measure: Measure::Bandwidth, size, depth: 16, ..latency() }
}
