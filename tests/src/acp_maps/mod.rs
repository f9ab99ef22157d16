//! The program that the tests of ACP's sets, multisets and maps start as each rank of a job: it uses `vervain-acp-containers`. Its
//! first argument is what it does, the second how much of it, the third the seed.

mod between;
mod contend;
mod model;
mod odd;
mod refused;
mod replace;
mod trips;

use std::process::ExitCode;
use std::time::Instant;

use vervain_acp::{Error, GlobalAddress, GlobalPtr, Order, Result, Settings, World};
use vervain_acp_containers::GMap;
use vervain_acp_containers::hashed::{Hashed, Name, Places};
use vervain_acp_heap::Heap;

/// Runs the rank: status 0, or 3 with the sentence of the error.
pub fn main() -> ExitCode {
    crate::acp::rank_main("acp maps rank", 1000, run)
}

fn run(what: &str, count: u64, seed: u64) -> Result<()> {
    let world = World::init(&Settings::from_environment()?)?;
    {
        let heap = Heap::new(&world);
        let places = Places::new();
        let hashed = Hashed::new(&heap, &places);
        match what {
            "model" => model::run(hashed, count, seed)?,
            "contend" => contend::run(hashed, count)?,
            "churn" => contend::churn(hashed, count, seed)?,
            "swap" => contend::swap_without_memory(hashed, count)?,
            "forever" => contend::forever(hashed)?,
            "cursors" => between::cursors(hashed)?,
            "unlinked" => between::unlinked(hashed, count)?,
            "elsewhere" => between::elsewhere(hashed, count)?,
            "replace" => replace::run(hashed, count, seed)?,
            "odd" => odd::run(hashed)?,
            "refused" => refused::run(hashed)?,
            "trips" => trips::run(hashed)?,
            "stale" => trips::stale(hashed, count)?,
            "unmapped" => trips::unmapped(hashed)?,
            "locked" => trips::locked(hashed)?,
            "loop" | "uncounted" | "long" | "astray" | "unlocked-by-nobody" => trips::hostile(hashed, what)?,
            "times" => times(hashed, count)?,
            _ => return Err(other(format!("nothing is called '{what}'"))),
        }
    }
    world.finalize()
}

fn other(sentence: String) -> Error {
    Error::from(sentence)
}

/// An error with this sentence unless it holds.
fn holds(is: bool, sentence: impl FnOnce() -> String) -> Result<()> {
    if is { Ok(()) } else { Err(other(sentence())) }
}

fn starter(world: &World, rank: u32) -> Result<GlobalPtr<u64>> {
    world.starter_of(rank).ok_or_else(|| other(format!("no rank {rank}")))
}

/// The words that rank 0 has told, `own` if it is this one. All ranks call it.
fn told(world: &World, own: &[u64]) -> Result<Vec<u64>> {
    let here = starter(world, 0)?;
    if world.rank() == 0 {
        world.write(here, own)?;
    }
    world.sync()?;
    let mut batch = world.batch();
    let words = batch.get(here.address(), own.len() * 8, Order::Now)?;
    batch.wait()?;
    let words = (0..own.len()).map(|index| batch.word(words, index)).collect();
    world.sync()?;
    Ok(words)
}

/// The name that rank 0 has made a container of.
fn shared<'a>(hashed: Hashed<'a>, make: impl FnOnce() -> Result<Name>) -> Result<Name> {
    let world: &'a World = hashed.world();
    let name = if world.rank() == 0 { make()? } else { Name::NONE };
    let words = told(world, &[name.address.0, name.ranks, name.slots])?;
    Ok(Name { address: GlobalAddress(words[0]), ranks: words[1], slots: words[2] })
}

/// All ranks of the job.
fn all_ranks(world: &World) -> Vec<u32> {
    (0..world.size()).collect()
}

/// Prints what rank 1 needs for operations on a map of rank 0, beside reading a word there.
fn times(hashed: Hashed<'_>, count: u64) -> Result<()> {
    let world = hashed.world();
    let name = shared(hashed, || Ok(GMap::<u64, u64>::create(hashed, &[0], count * 2, 0)?.name()))?;
    let map = GMap::<u64, u64>::open(hashed, name);
    if world.rank() == world.size() - 1 {
        let timed = |what: &str, f: &dyn Fn(u64) -> Result<bool>| -> Result<()> {
            for part in 0..4 {
                let (from, to) = (count / 4 * part, count / 4 * (part + 1));
                let began = Instant::now();
                for i in from..to {
                    holds(f(i)?, || format!("{what} {i}"))?;
                }
                println!("{what}: {:.0} ns", began.elapsed().as_secs_f64() * 1e9 / (to - from) as f64);
            }
            Ok(())
        };
        let word = starter(world, 0)?;
        let own = starter(world, world.rank())?;
        let get = |_| {
            let handle = world.copy_values(own.add(8), word, 1, Order::Now)?;
            world.complete(handle)?;
            Ok(true)
        };
        timed("get of 8 B", &get)?;
        timed("insert", &|i| map.insert(&i, &(i * 3)))?;
        timed("insert of one that is there", &|i| Ok(!map.insert(&i, &i)?))?;
        timed("get", &|i| Ok(map.get(&i)? == Some(i * 3)))?;
        timed("get of one that is not there", &|i| Ok(map.get(&(i + (1 << 40)))?.is_none()))?;
        timed("remove", &|i| map.remove(&i))?;
        timed("get of 8 B", &get)?;
    }
    world.sync()
}
