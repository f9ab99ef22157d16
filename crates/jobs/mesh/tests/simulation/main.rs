//! A deterministic simulation of the protocol: machines with small pools, a network between their doors that loses,
//! repeats, delays and reorders, and owners that want connections, hold them, and send by them. One seed decides all of
//! it; VERVAIN_SEED runs that seed alone and prints what happens.

mod directed;
mod fabric;
mod few;
mod hostile;
mod world;

use world::{Setting, World};

/// Seeds of an ordinary run; VERVAIN_SEEDS asks for more.
const SEEDS: u64 = 300;
/// Far more virtual time than any of it takes, in microseconds.
const LONG: u64 = 600_000_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn setting(seed: u64) -> Setting {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let harsh = rng.bool();
    Setting {
        seed,
        machines: rng.u32(2..=20),
        colors: rng.u32(1..=2),
        block: rng.u32(1..=8),
        connections: rng.usize(2..=8),
        lost: if harsh { rng.u32(0..30) } else { 0 },
        repeated: if harsh { rng.u32(0..30) } else { 0 },
        late: if harsh { rng.u32(0..20) } else { 0 },
        hold: [0, 1_000, 20_000][rng.usize(0..3)],
        jobs: rng.u32(5..60),
        at_once: rng.usize(1..12),
        verbose: number("VERVAIN_SEED").is_some(),
    }
}

/// Runs it to its end: all wishes fulfilled, then nothing more happens.
fn run(setting: Setting) -> World {
    let mut world = World::new(setting);
    while !world.is_done() {
        assert!(world.step(), "nothing more happens: {:#?}", world.unfinished());
        assert!(world.now < LONG, "not done: {:#?}", world.unfinished());
    }
    let quiet = world.datagrams + 40 * (1 + world.machines.len() as u64) * world.setting.connections as u64;
    while world.step() {
        assert!(world.datagrams < quiet, "datagrams without end");
    }
    world
}

#[test]
fn every_wish_is_fulfilled_and_nothing_is_lost() {
    let seeds: Vec<u64> = match number("VERVAIN_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("VERVAIN_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let (mut closed, mut longest) = (0, (0, 0));
    for seed in seeds {
        let setting = setting(seed);
        let about = format!("VERVAIN_SEED={seed}: {setting:?}");
        let result = std::panic::catch_unwind(|| run(setting));
        let world = result.unwrap_or_else(|_| panic!("{about}"));
        closed += world.closed;
        longest = longest.max((world.now, seed));
    }
    println!("{closed} connections closed; seed {} took longest, {} ms", longest.1, longest.0 / 1000);
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..20 {
        let again = || {
            let world = run(setting(seed));
            (world.trace, world.now, world.datagrams)
        };
        assert_eq!(again(), again(), "seed {seed}");
    }
}
