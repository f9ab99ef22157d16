//! A deterministic simulation of pairs: processes of several nodes meet, send, stop, die and return in a simulated
//! window, beside some that put anything anywhere. One seed decides all of it. The invariants are in `process.rs` (for
//! each message) and `fabric.rs` (at any time, and at the end).

mod fabric;
mod message;
mod process;
mod random;
mod runner;
mod scribbler;
#[allow(dead_code)] // each test file uses a part of it
#[path = "../simulated/mod.rs"]
mod simulated;

use runner::run_seed;
use std::time::Duration;
use vervain_seeds::{Until, run_seeds, setting};

/// Number of seeds that an ordinary test run simulates.
const SEEDS: u64 = 2_000;
/// The first seed of `make soak`: no ordinary run comes so far.
const SOAK_FROM: u64 = 10_000;

#[test]
fn every_seed_keeps_the_promises_of_pairs() {
    let count = setting("VERVAIN_SEEDS").unwrap_or(SEEDS);
    run_seeds("pairs", 0, Until::Count(count), |seed| run_seed(seed, false));
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..50 {
        assert_eq!(run_seed(seed, false), run_seed(seed, false), "seed {seed}");
    }
}

/// `make soak`.
#[test]
#[ignore = "runs for long; make soak"]
fn soak() {
    match setting("VERVAIN_SEED") {
        Some(seed) => println!("{:?}", run_seed(seed, true)),
        None => run_seeds(
            "pairs",
            setting("VERVAIN_SOAK_FROM").unwrap_or(SOAK_FROM),
            Until::Elapsed(Duration::from_secs(setting("VERVAIN_SOAK_SECONDS").unwrap_or(600))),
            |seed| run_seed(seed, false),
        ),
    }
}
