//! A deterministic simulation of the transport: hosts with QPs, memory and receives, lines with faults between them,
//! virtual time. One seed decides all of it. The invariants are in `send.rs`, `receive.rs` (call by call) and
//! `check.rs` (at completions and at the end). `make soak` runs it for long, `make soak SEED=n` runs one seed and
//! prints its packets.

mod check;
mod codec;
mod directed;
mod generate;
mod host;
mod landing;
mod lines;
mod plan;
mod port;
mod random;
mod receive;
mod rings;
mod runner;
mod send;
mod world;

use std::time::Duration;

use runner::{NETWORK, RINGS, run_seed};
use vervain_seeds::{Until, run_seeds, setting};

/// Seeds that an ordinary test run simulates.
const SEEDS: u64 = 4_000;
/// The first seed of `make soak`: no ordinary run comes so far.
const SOAK_FROM: u64 = 10_000;

#[test]
fn every_seed_keeps_the_promises_of_its_service() {
    let count = setting("VERVAIN_SEEDS").unwrap_or(SEEDS);
    run_seeds(NETWORK.name, 0, Until::Count(count), |seed| run_seed(NETWORK, seed, false));
}

#[test]
fn every_seed_keeps_the_promises_over_rings_and_sends_nothing_in_vain() {
    let count = setting("VERVAIN_SEEDS").unwrap_or(SEEDS);
    run_seeds(RINGS.name, 0, Until::Count(count), |seed| run_seed(RINGS, seed, false));
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..100 {
        for scene in [NETWORK, RINGS] {
            assert_eq!(run_seed(scene, seed, false), run_seed(scene, seed, false), "seed {seed} over {}", scene.name);
        }
    }
}

/// `make soak`.
#[test]
#[ignore = "runs for long; make soak"]
fn soak() {
    let seconds = setting("VERVAIN_SOAK_SECONDS").unwrap_or(600);
    for scene in [NETWORK, RINGS] {
        match setting("VERVAIN_SEED") {
            Some(seed) => println!("{}: {:?}", scene.name, run_seed(scene, seed, true)),
            None => run_seeds(
                scene.name,
                setting("VERVAIN_SOAK_FROM").unwrap_or(SOAK_FROM),
                Until::Elapsed(Duration::from_secs(seconds) / 2),
                |seed| run_seed(scene, seed, false),
            ),
        }
    }
}
