//! A deterministic simulation of connection managers: processes of two hosts that ask each other for connections and
//! QPs, a network that loses, repeats, delays and reorders, somebody elsewhere who sends what he has seen as his own,
//! and processes that are killed and come again with their slot. One seed decides all of it. `make soak` runs it for
//! long, `make soak SEED=n` runs one seed and prints what happens.

mod nonsense;
mod program;
mod random;
mod world;

use std::time::Duration;

use vervain_seeds::{Until, run_seeds, setting};
use world::{Tally, World};

/// Seeds that an ordinary test run simulates.
const SEEDS: u64 = 2_000;
/// The first seed of `make soak`: no ordinary run comes so far.
const SOAK_FROM: u64 = 10_000;

fn run_seed(seed: u64, verbose: bool) -> Tally {
    World::new(seed, verbose).run()
}

#[test]
fn every_seed_has_both_ends_agree_and_answers_all_that_was_asked() {
    let count = setting("VERVAIN_SEEDS").unwrap_or(SEEDS);
    match setting("VERVAIN_SEED") {
        Some(seed) => println!("{:?}", run_seed(seed, true)),
        None => run_seeds("connection managers", 0, Until::Count(count), |seed| run_seed(seed, false)),
    }
}

#[test]
fn every_seed_ends_whatever_the_peer_says_and_the_program_calls() {
    let count = setting("VERVAIN_SEEDS").unwrap_or(SEEDS);
    run_seeds("nonsense", 0, Until::Count(count), nonsense::run_seed);
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
    let seconds = setting("VERVAIN_SOAK_SECONDS").unwrap_or(600);
    match setting("VERVAIN_SEED") {
        Some(seed) => println!("{:?}", run_seed(seed, true)),
        None => run_seeds(
            "connection managers",
            setting("VERVAIN_SOAK_FROM").unwrap_or(SOAK_FROM),
            Until::Elapsed(Duration::from_secs(seconds)),
            |seed| run_seed(seed, false),
        ),
    }
}
