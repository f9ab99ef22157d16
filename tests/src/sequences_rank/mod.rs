//! The program that the tests of vectors, deques and lists start as each rank of a job. Its first argument is what it does, the second
//! how much of it, the third the seed.

mod broken;
mod bytes;
mod edges;
mod leaks;
mod lists;
mod refused;
mod trips;
mod typed;

use std::process::ExitCode;

use fastrand::Rng;
use vervain_acp::{Error, GlobalAddress, GlobalPtr, Order, Region, Result, Settings, World};
use vervain_acp_containers::{Deque, List, Vector};
use vervain_acp_heap::Heap;

/// Runs the rank: status 0, or 3 with the sentence of the error.
pub fn main() -> ExitCode {
    crate::acp::rank_main("sequences rank", 100, run)
}

fn run(what: &str, count: u64, seed: u64) -> Result<()> {
    let world = World::init(&Settings::from_environment()?)?;
    act(&Heap::new(&world), what, count, seed)?;
    world.finalize()
}

fn act(heap: &Heap<'_>, what: &str, count: u64, seed: u64) -> Result<()> {
    match what {
        "vectors" => bytes::run::<Vector>(heap, count, seed, false),
        "deques" => bytes::run::<Deque>(heap, count, seed, false),
        "long-vectors" => bytes::run::<Vector>(heap, count, seed, true),
        "long-deques" => bytes::run::<Deque>(heap, count, seed, true),
        "lists" => lists::run(heap, count, seed),
        "typed" => typed::run(heap, count),
        "trips" => trips::run(heap),
        "times" => trips::times(heap, count),
        "broken" => broken::run(heap),
        "nowhere" => broken::nowhere(heap),
        "leaks" => leaks::run(heap, count),
        "edges" => edges::run(heap),
        "refused" => refused::run(heap),
        "work" => work(heap),
        _ => Err(wrong(format!("nothing is called '{what}'"))),
    }
}

fn wrong(sentence: impl Into<String>) -> Error {
    Error::broken(sentence)
}

/// What must hold, or else the job ends with this sentence.
fn must(holds: bool, sentence: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(wrong(sentence())) }
}

/// Tells all ranks words that rank 0 has made.
fn shared(
    world: &World,
    make: impl FnOnce() -> Result<Vec<GlobalAddress>>,
    count: usize,
) -> Result<Vec<GlobalAddress>> {
    let starter = |rank| world.starter_of::<u64>(rank).ok_or_else(|| wrong("no starter memory"));
    let (own, first) = (starter(world.rank())?, starter(0)?);
    if world.rank() == 0 {
        let words: Vec<u64> = make()?.iter().map(|address| address.0).collect();
        world.write(first, &words)?;
    }
    world.sync()?;
    if world.rank() != 0 {
        world.complete(world.copy_values(own, first, count, Order::Now)?)?;
    }
    let mut words = vec![0u64; count];
    world.read(own, &mut words)?;
    world.sync()?;
    Ok(words.into_iter().map(GlobalAddress).collect())
}

/// A byte of a rank's source memory.
fn byte(rank: u32, offset: usize) -> u8 {
    let mixed = (offset as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank + 1) << 40;
    (mixed ^ mixed >> 29) as u8
}

/// Memory of each rank's whose bytes all know, to put into containers.
struct Sources<'w> {
    _own: Region<'w>,
    all: Vec<GlobalPtr<u8>>,
    len: usize,
}

impl<'w> Sources<'w> {
    fn new(world: &'w World, len: usize) -> Result<Self> {
        let own = world.region(len, 0)?;
        let bytes: Vec<u8> = (0..len).map(|offset| byte(world.rank(), offset)).collect();
        world.write(own.at(0), &bytes)?;
        let here = world.starter_of::<u64>(world.rank()).ok_or_else(|| wrong("no starter memory"))?;
        world.store(here.cast(), own.at::<u8>(0))?;
        world.sync()?;
        let mut all = vec![];
        for rank in 0..world.size() {
            let there = world.starter_of::<u64>(rank).ok_or_else(|| wrong("no starter memory"))?;
            world.complete(world.copy_values::<u64>(here.add(1), there, 1, Order::Now)?)?;
            all.push(world.load(here.add(1).cast::<GlobalPtr<u8>>())?);
        }
        world.sync()?;
        Ok(Self { _own: own, all, len })
    }

    /// Bytes somewhere, and what they are.
    fn draw(&self, random: &mut Rng, len: usize) -> (GlobalAddress, Vec<u8>) {
        let (rank, offset) = (random.usize(..self.all.len()), random.usize(..=self.len - len));
        let bytes = (offset..offset + len).map(|offset| byte(rank as u32, offset)).collect();
        (self.all[rank].add(offset).address(), bytes)
    }
}

/// Works on containers of other ranks without end: somebody ends one of them.
fn work(heap: &Heap<'_>) -> Result<()> {
    let world = heap.world();
    println!("works as {}", std::process::id());
    let mut made = vec![];
    for rank in 0..world.size() {
        made.push((Vector::create(heap, 0, rank)?, Deque::create(heap, 64, rank)?, List::create(heap, rank)?));
    }
    let value = [7; 24];
    loop {
        for (rank, (vector, deque, list)) in made.iter().enumerate() {
            let source = vervain_acp_containers::Source::Here(&value);
            vector.push_back(heap, source)?;
            vector.pop_back(heap, 24)?;
            deque.push_front(heap, source)?;
            deque.pop_back(heap, 24)?;
            for _ in 0..3 {
                list.push_back(heap, source, (rank as u32 + 1) % world.size())?;
            }
            list.reverse(heap)?;
            list.clear(heap)?;
        }
    }
}
