//! The program that the tests of ACP start as each rank of a job: it uses `vervain-acp`. Its first argument is what it does, the
//! second how much of it, the third the seed.

mod channels;
mod garbage;
mod heap;
mod random;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use vervain_acp::{
    Atomic, Error, Extension, GlobalAddress, GlobalPtr, Library, Order, Region, Result, Settings, World,
};

/// Runs the rank: status 0, or 3 with the sentence of the error.
pub fn main() -> ExitCode {
    crate::acp::rank_main("acp rank", 1000, run)
}

fn run(what: &str, count: u64, seed: u64) -> Result<()> {
    let mut world = World::init(&Settings::from_environment()?)?;
    match what {
        "sync" => (0..count).try_for_each(|_| world.sync())?,
        "random" => random::run(&world, count, seed)?,
        "atomics" => atomics(&world, count)?,
        "commands" => commands(&world, count)?,
        "flood" => flood(&world, count)?,
        "contacts" => contacts(&world, count)?,
        "keys" => keys(&world, count)?,
        "colors" => colors(&world, count)?,
        "libraries" => libraries(&world, count)?,
        "heap-trips" => heap::round_trips(&world)?,
        "heap-threads" => heap::threads(&world, count)?,
        "heap-nonsense" => heap::nonsense(&world, count, seed)?,
        "channels" => channels::run(&world, count)?,
        "garbage" => garbage::run(&world, count, seed)?,
        "reset" => reset(&mut world, count, seed)?,
        "wait" => {
            println!("waits as {}", std::process::id());
            // Somebody ends another rank, so this one does not come back.
            world.sync()?;
            let other = (world.rank() + 1) % world.size();
            loop {
                let (own, far) = (starter(&world, world.rank())?, starter(&world, other)?);
                let handle = world.copy_values::<u64>(far, own, 1, Order::Now)?;
                world.complete(handle)?;
                thread::sleep(Duration::from_millis(1));
            }
        }
        _ => return Err(other(format!("nothing is called '{what}'"))),
    }
    world.finalize()
}

fn other(sentence: String) -> Error {
    Error::from(sentence)
}

fn starter(world: &World, rank: u32) -> Result<GlobalPtr<u64>> {
    world.starter_of(rank).ok_or_else(|| other(format!("no rank {rank}")))
}

/// A region of each rank's, and where those of all are.
fn regions(world: &World, len: usize) -> Result<(Region<'_>, Vec<GlobalPtr<u8>>)> {
    let region = world.region(len, 0)?;
    let here = starter(world, world.rank())?;
    world.store(here.cast(), region.at::<u8>(0))?;
    world.sync()?;
    let mut all = vec![];
    for rank in 0..world.size() {
        world.complete(world.copy_values::<u64>(here.add(1), starter(world, rank)?, 1, Order::Now)?)?;
        all.push(world.load(here.add(1).cast::<GlobalPtr<u8>>())?);
    }
    world.sync()?;
    Ok((region, all))
}

/// All ranks add to one word of rank 0's, and to both halves of another; the sums are exact, with a neighbour that is written to.
fn atomics(world: &World, count: u64) -> Result<()> {
    let (_region, all) = regions(world, 4096)?;
    let (own, far) = (all[world.rank() as usize], all[0]);
    let (rank, size) = (u64::from(world.rank()), u64::from(world.size()));
    let words = far.cast::<u64>();
    let halves = far.add(8).cast::<u32>();
    let (old8, old4) = (own.add(64).cast::<u64>(), own.add(72).cast::<u32>());
    let mut last = 0;
    for i in 0..count {
        world.complete(world.fetch_add(old8, words, rank + 1, Order::Now)?)?;
        let seen = world.load(old8)?;
        if i > 0 && seen < last {
            return Err(other(format!("a sum went back from {last} to {seen}")));
        }
        last = seen;
        world.fetch_add(old4, halves, 3, Order::Now)?;
        world.fetch_add(old4, halves.add(1), u32::MAX, Order::Now)?;
        world.complete_all()?;
        // Each rank's bit of the third word goes on and off; swaps of the fourth make a chain.
        let bit = 1 << rank;
        world.complete(world.fetch_xor(old8, words.add(2), bit, Order::Now)?)?;
        if (world.load(old8)? & bit != 0) != (i % 2 == 1) {
            return Err(other("a bit of this rank's was changed by another".into()));
        }
    }
    world.sync()?;
    if rank == 0 {
        let sum = count * size * (size + 1) / 2;
        let (lower, upper) = ((count * size * 3) as u32, 0u32.wrapping_sub((count * size) as u32));
        let got = (world.load(words)?, world.load(halves)?, world.load(halves.add(1))?);
        if got != (sum, lower, upper) {
            return Err(other(format!("sums are {got:?}, not {:?}", (sum, lower, upper))));
        }
        let bits = if count % 2 == 1 { (1u64 << size) - 1 } else { 0 };
        if world.load(words.add(2))? != bits {
            return Err(other(format!("bits are {:#x}, not {bits:#x}", world.load(words.add(2))?)));
        }
    }
    world.sync()
}

/// What libraries above the basic layer stand on: batches and what they count, segments that ranks ask each other for, sleep and wake.
fn libraries(world: &World, count: u64) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let next = (rank + 1) % size;
    let directory = |of: u32| world.library_starter(Library::Data, of).ok_or_else(|| other(format!("no rank {of}")));
    let mut batch = world.batch();
    // All at once ask each rank for its first segment: it makes one, and the others are told so.
    let mut made = 0;
    for to in 0..size {
        made += u64::from(world.extend(to, Some(0), 1 << 16)? != Extension::Others);
    }
    batch.atomic(starter(world, 0)?.address(), Atomic::Add8(made), Order::Now)?;
    batch.clear()?;
    world.sync()?;
    if rank == 0 {
        same("segments that were made", world.load(starter(world, 0)?)?, u64::from(size))?;
    }
    let mut segments = vec![];
    for of in 0..size {
        let place = batch.get(directory(of)?, 32, Order::Now)?;
        batch.wait()?;
        segments.push(GlobalAddress(batch.word(place, 2)));
        same("its length", batch.word(place, 3), 1 << 16)?;
    }
    batch.clear()?;
    // A batch is one round trip, whatever is in it, and as long as it needs to be.
    let (far, mine) = (segments[next as usize], u64::from(rank));
    let before = world.round_trips();
    let long: Vec<u64> = (0..4096).map(|i| i << 8 | mine).collect();
    batch.put_words(far.add(64), &long, Order::Now)?;
    let old = batch.atomic(far, Atomic::Add8(mine + 1), Order::Now)?;
    let word = batch.get(far, 8, Order::Continue)?;
    let back = batch.get(far.add(64), 8 * long.len(), Order::All)?;
    batch.wait()?;
    same("round trips", world.round_trips() - before, u64::from(size > 1))?;
    same("the word before", batch.word(old, 0), 0)?;
    same("the word after", batch.word(word, 0), mine + 1)?;
    same("what was put", long.iter().enumerate().all(|(i, word)| batch.word(back, i) == *word).into(), 1)?;
    batch.clear()?;
    world.sync()?;
    // In turns: each waits for a word of its own, which the one before stores and then wakes it.
    let (word, far) = (GlobalPtr::<u64>::new(segments[rank as usize].add(8)), segments[next as usize].add(8));
    let place = world.address(word.address()).ok_or_else(|| other("a segment of mine has no address".into()))?;
    // SAFETY: a word of a segment of this rank's, which stays until it is retracted below.
    let arrived = unsafe { std::sync::atomic::AtomicU64::from_ptr(place.cast()) };
    for round in 1..=count {
        let wait = || arrived.load(std::sync::atomic::Ordering::Acquire) >= round;
        if rank > 0 {
            world.wait_until(Duration::from_secs(60), None, wait)?;
        }
        batch.put_words(far, &[round], Order::Now)?;
        batch.clear()?;
        world.wake(next)?;
        if rank == 0 {
            world.wait_until(Duration::from_secs(60), None, wait)?;
        }
    }
    world.sync()?;
    // A segment that is for one comes and goes; its place is used again, and nothing else can be given up.
    let own = |len| match world.extend(next, None, len)? {
        Extension::Segment(segment) => Ok(segment),
        failed => Err(other(format!("a segment of {len} bytes: {failed:?}"))),
    };
    for round in 0..count {
        let segment = own(4096 + round)?;
        let zero = batch.get(segment.add(4088), 8, Order::Now)?;
        batch.put_words(segment.add(4088), &[u64::MAX], Order::Continue)?;
        batch.wait()?;
        same("it is zero", batch.word(zero, 0), 0)?;
        batch.clear()?;
        same("a segment goes", world.retract(next, segment)?.into(), 1)?;
        same("and goes once", world.retract(next, segment)?.into(), 0)?;
    }
    world.sync()?;
    let places = batch.get(directory(next)?, 8, Order::Now)?;
    batch.wait()?;
    let places = batch.word(places, 0);
    same("places that were used", places, 2)?;
    for what in [directory(next)?, segments[next as usize]] {
        same("what is for all stays", world.retract(next, what)?.into(), 0)?;
    }
    for len in [0, u64::MAX, 1 << 60] {
        let none = world.extend(next, None, len)? == Extension::NoMemory;
        same("there is none of nothing, and none too large", none.into(), 1)?;
    }
    world.sync()
}

fn same(what: &str, found: u64, expected: u64) -> Result<()> {
    if found == expected { Ok(()) } else { Err(other(format!("{what}: {found}, not {expected}"))) }
}

/// Copies between the two others, issued by the last rank, in blocks whose times are printed. The last may not take longer.
fn commands(world: &World, count: u64) -> Result<()> {
    let (_region, all) = regions(world, 1 << 20)?;
    if world.rank() == world.size() - 1 {
        let len = 160 << 10;
        let block = count / 10;
        for i in 0..10 {
            let began = Instant::now();
            for _ in 0..block {
                world.copy(all[1].address(), all[0].address(), len, Order::Now)?;
            }
            world.complete_all()?;
            println!("block {i}: {:.3} us each", began.elapsed().as_secs_f64() * 1e6 / block as f64);
        }
    }
    world.sync()
}

/// Each rank issues copies between the others, as many as its queue takes, all at once.
fn flood(world: &World, count: u64) -> Result<()> {
    let (_region, all) = regions(world, 1 << 20)?;
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let (from, to) = ((rank + 1) % size, (rank + 2) % size);
    for i in 0..count {
        // Above what is bounced: commands to `from`, which floods others meanwhile.
        world.copy(all[to].address().add(i % 7), all[from].address(), (160 << 10) + (i % 1000) as usize, Order::Now)?;
    }
    world.complete_all()?;
    world.sync()
}

/// Each rank accesses all others in turn, in another order each time; with few connections each is made anew.
fn contacts(world: &World, count: u64) -> Result<()> {
    let (_region, all) = regions(world, 4096)?;
    let (rank, size) = (u64::from(world.rank()), u64::from(world.size()));
    let own = all[rank as usize];
    let mut random = fastrand::Rng::with_seed(rank);
    for _ in 0..count {
        let peer = random.u64(..size);
        let word = all[peer as usize].add(8 * rank as usize).cast::<u64>();
        world.complete(world.fetch_add(own.add(2048).cast(), word, 1, Order::Now)?)?;
        let (to, from) = (random.u64(..size) as usize, random.u64(..size) as usize);
        let at = 1024 + 8 * rank;
        world.complete(world.copy(all[to].address().add(at), all[from].address().add(at), 8, Order::All)?)?;
    }
    world.sync()?;
    let mut sum = 0;
    for peer in &all {
        let mine = peer.add(8 * rank as usize).cast::<u64>();
        world.complete(world.copy_values(own.add(2048).cast(), mine, 1, Order::Now)?)?;
        sum += world.load(own.add(2048).cast::<u64>())?;
    }
    if sum != count {
        return Err(other(format!("{sum} additions have arrived of {count}")));
    }
    world.sync()
}

/// Rank 0 registers and takes back, over and over, while the others read what it has registered last.
fn keys(world: &World, count: u64) -> Result<()> {
    let turn = starter(world, world.rank())?;
    let (own, old) = (turn, turn.add(8));
    for i in 1..=count {
        if world.rank() == 0 {
            let region = world.region(4096 * (1 + i as usize % 3), 0)?;
            let word = region.at::<u64>(4088);
            world.store(word, i)?;
            world.store(own.add(1).cast(), word)?;
            world.store(own, i)?;
            // All have read it.
            while (1..world.size()).any(|rank| world.load(own.add(1 + rank as usize)).unwrap_or(0) != i) {
                thread::yield_now();
            }
        } else {
            let far = starter(world, 0)?;
            loop {
                world.complete(world.copy_values(old, far, 2, Order::Now)?)?;
                if world.load(old)? == i {
                    break;
                }
                thread::yield_now();
            }
            // The turn is stored last, but both were read at once.
            world.complete(world.copy_values(old.add(1), far.add(1), 1, Order::Now)?)?;
            let word = world.load(old.add(1).cast::<GlobalPtr<u64>>())?;
            world.complete(world.copy_values(old.add(2), word, 1, Order::Now)?)?;
            let seen = world.load(old.add(2))?;
            if seen != i {
                return Err(other(format!("{word:?} has {seen} at turn {i}")));
            }
            world.store(old, i)?;
            world.complete(world.copy_values(far.add(1 + world.rank() as usize), old, 1, Order::Now)?)?;
        }
    }
    world.sync()
}

/// Bytes that went by a device's port through memory or in packets, of this user's processes.
fn moved(device: u32) -> Result<u64> {
    let file = format!("/sys/class/infiniband/vervain{device}/ports/1/counters/port_xmit_data");
    let text = std::fs::read_to_string(&file).map_err(|error| other(format!("{file}: {error}")))?;
    text.trim().parse::<u64>().map(|words| words * 4).map_err(|error| other(format!("{file}: {error}")))
}

/// A region of each color at each rank: accesses go by the device of the region's color, and by no other.
fn colors(world: &World, count: u64) -> Result<()> {
    const LEN: usize = 4096;
    if world.colors() != 2 || world.region(LEN, 2).is_ok() {
        return Err(other(format!("{} colors, and a third one", world.colors())));
    }
    let own = world.region(LEN, 0)?;
    for color in [0, 1] {
        let region = world.region(LEN, color)?;
        let here = starter(world, world.rank())?;
        world.store(here.cast(), region.at::<u8>(0))?;
        world.sync()?;
        if world.rank() == 0 {
            world.complete(world.copy_values::<u64>(here.add(1), starter(world, 1)?, 1, Order::Now)?)?;
            let far = world.load(here.add(1).cast::<GlobalPtr<u64>>())?;
            if world.color_of(far.address()) != Some(color) || world.rank_of(far.address()) != Some(1) {
                return Err(other(format!("{far:?} is not of color {color}")));
            }
            let before = [moved(0)?, moved(1)?];
            for i in 0..count {
                world.write(own.at(0), &[i; LEN / 8])?;
                world.complete(world.copy_values(far, own.at(0), LEN / 8, Order::Now)?)?;
                world.complete(world.fetch_add(own.at(0), far, 1, Order::Now)?)?;
                world.complete(world.copy_values(own.at(0), far, LEN / 8, Order::Now)?)?;
                let mut seen = [0; LEN / 8];
                world.read(own.at(0), &mut seen)?;
                if seen[0] != i + 1 || seen[1..].iter().any(|word| *word != i) {
                    return Err(other(format!("color {color}: {seen:?} in round {i}")));
                }
            }
            let bytes = [moved(0)? - before[0], moved(1)? - before[1]];
            let (by_it, by_the_other) = (bytes[color as usize], bytes[1 - color as usize]);
            if by_it < count * 2 * LEN as u64 || by_the_other > count * LEN as u64 / 4 {
                return Err(other(format!("color {color}: the two devices have moved {bytes:?} bytes")));
            }
        }
        world.sync()?;
    }
    Ok(())
}

/// Renumbers the ranks at random, with data after it.
fn reset(world: &mut World, count: u64, seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..count {
        // All draw the same.
        let mut order: Vec<u32> = (0..world.size()).collect();
        random.shuffle(&mut order);
        let mark = u64::from(world.rank()) + 100;
        world.store(starter(world, world.rank())?, mark)?;
        let rank = order[world.rank() as usize];
        world.reset(rank)?;
        if world.rank() != rank || world.load(starter(world, rank)?)? != 0 {
            return Err(other(format!(
                "rank {rank} is {} and has {}",
                world.rank(),
                world.load(starter(world, rank)?)?
            )));
        }
        // Those that have looked may write now.
        world.sync()?;
        let next = (rank + 1) % world.size();
        let own = starter(world, rank)?;
        world.store(own.add(8), u64::from(rank) + 7)?;
        world.complete(world.copy_values(starter(world, next)?, own.add(8), 1, Order::Now)?)?;
        world.sync()?;
        let before = (rank + world.size() - 1) % world.size();
        if world.load(own)? != u64::from(before) + 7 {
            return Err(other(format!("rank {rank} has {} of rank {before}", world.load(own)?)));
        }
        world.sync()?;
    }
    Ok(())
}
