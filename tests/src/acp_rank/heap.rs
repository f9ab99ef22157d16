//! The global heap by its Rust crate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use vervain_acp::{GlobalAddress, Library, Order, Result, World};
use vervain_acp_heap::Heap;

use super::other;

/// The sentence unless `holds`.
fn must(holds: bool, sentence: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(other(sentence())) }
}

fn block(heap: &Heap<'_>, size: usize, rank: u32) -> Result<GlobalAddress> {
    heap.allocate(size, rank)?.ok_or_else(|| other(format!("rank {rank} has no {size} bytes")))
}

/// How many round trips `f` takes.
fn trips<T>(world: &World, f: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
    let before = world.round_trips();
    let value = f()?;
    Ok((world.round_trips() - before, value))
}

/// Rank 0 counts round trips, to the last rank and to itself.
pub fn round_trips(world: &World) -> Result<()> {
    let heap = Heap::new(world);
    let far = world.size() - 1;
    if world.rank() == 0 {
        let expect = |what: &str, most: u64, got: u64| {
            println!("{what}: {got} round trips");
            must(got <= most && (got == most || most > 3), || format!("{what} takes {got} round trips, not {most}"))
        };
        // Directory, segment, directory, search on each level, two to take.
        let (n, first) = trips(world, || block(&heap, 64, far))?;
        expect("the first block", 9, n)?;
        let (n, second) = trips(world, || block(&heap, 64, far))?;
        expect("another one", 1, n)?;
        let (n, ()) = trips(world, || heap.free(second))?;
        expect("freeing it", 1, n)?;
        let mut many = vec![];
        // Two share a word: one opens it, and sometimes has to look for where it can.
        let mut sum = 0;
        for i in 0..1000 {
            let (n, at) = trips(world, || block(&heap, 256, far))?;
            must(n <= 12, || format!("block {i}: {n} round trips"))?;
            sum += n;
            many.push(at);
        }
        println!("1000 blocks of half a word: {sum} round trips");
        must(sum <= 2200, || format!("1000 blocks take {sum} round trips"))?;
        for at in many {
            let (n, ()) = trips(world, || heap.free(at))?;
            must((1..=2).contains(&n), || format!("freeing takes {n} round trips"))?;
        }
        // A process that knows nothing yet.
        let (n, ()) = trips(world, || Heap::new(world).free(first))?;
        expect("freeing by who was never there", 3, n)?;
        let (n, large) = trips(world, || block(&heap, 8 << 20, far))?;
        expect("a large block", 1, n)?;
        let (n, ()) = trips(world, || heap.free(large))?;
        expect("freeing a large block", 1, n)?;
        let own = block(&heap, 64, 0)?;
        let (n, again) = trips(world, || block(&heap, 64, 0))?;
        expect("a block here", 0, n)?;
        let (n, ()) = trips(world, || heap.free(own).and_then(|()| heap.free(again)))?;
        expect("freeing here", 0, n)?;
    }
    world.sync()
}

/// Threads of all ranks allocate and free at once on all ranks; each finds in its blocks what it has put there.
pub fn threads(world: &World, count: u64) -> Result<()> {
    let heap = Heap::new(world);
    let failed = AtomicUsize::new(0);
    let work = |thread: u64| -> Result<()> {
        let mut held = vec![];
        for i in 0..count {
            let rank = (i / 7) as u32 % world.size();
            let mark = u64::from(world.rank()) << 48 | thread << 32 | i;
            let size = [8, 40, 600, 9000][(i % 4) as usize];
            let at = block(&heap, size, rank)?;
            let mut batch = world.batch();
            for place in [at, at.add(size as u64 - 8)] {
                batch.put_words(place, &[mark], Order::Now)?;
            }
            batch.wait()?;
            held.push((at, size, mark));
            if i % 3 != 0 || held.len() > 50 {
                let (at, size, mark) = held.swap_remove((i * 7) as usize % held.len());
                let places = [batch.get(at, 8, Order::Now)?, batch.get(at.add(size as u64 - 8), 8, Order::Now)?];
                batch.wait()?;
                must(places.iter().all(|place| batch.word(*place, 0) == mark), || format!("{at} was given twice"))?;
                heap.free(at)?;
            }
        }
        held.into_iter().try_for_each(|(at, ..)| heap.free(at))
    };
    thread::scope(|scope| {
        for thread in 0..3 {
            let (work, failed) = (&work, &failed);
            scope.spawn(move || {
                if let Err(error) = work(thread) {
                    eprintln!("thread {thread}: {error}");
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    must(failed.into_inner() == 0, || "a thread has failed".into())?;
    world.sync()
}

/// What peers write into a directory and into a tree never leads outside of the segment, and nowhere without an end.
pub fn nonsense(world: &World, count: u64, seed: u64) -> Result<()> {
    if world.rank() == 0 {
        let mut random = fastrand::Rng::with_seed(seed);
        let far = world.size() - 1;
        let start = world.library_starter(Library::Data, far).ok_or_else(|| other("no starter memory".into()))?;
        let first = block(&Heap::new(world), 64, far)?;
        let base = world.region_of(first).ok_or_else(|| other("no region".into()))?;
        let put = |at: GlobalAddress, words: &[u64]| -> Result<()> {
            let mut batch = world.batch();
            batch.put_words(at, words, Order::Now)?;
            batch.wait()
        };
        let mut batch = world.batch();
        let directory = batch.get(start, 64, Order::Now)?;
        batch.wait()?;
        let directory: [u64; 8] = std::array::from_fn(|i| batch.word(directory, i));
        let len = directory[3];
        must(directory[2] == base.0 && len == 512 << 10, || format!("the directory is {directory:x?}"))?;
        // The words of a tree of 512 KiB: one root, 32, and 1024.
        let words = 1057u64;
        for _ in 0..count {
            let density = random.u32(0..4);
            let nonsense: Vec<u64> =
                (0..words).map(|_| (0..density).fold(random.u64(..), |word, _| word & random.u64(..))).collect();
            put(base, &nonsense)?;
            let heap = Heap::new(world);
            let mut held = vec![];
            for _ in 0..20 {
                let size = 1 << random.u32(0..19);
                match heap.allocate(size, far) {
                    Ok(Some(at)) if world.region_of(at) == Some(base) => {
                        let offset = at.0 - base.0;
                        must(offset >= words * 8 && offset + size as u64 <= len, || {
                            format!("{size} B at {offset:#x}")
                        })?;
                        held.push(at);
                    }
                    Ok(at) => held.extend(at),
                    Err(error) => must(error.to_string().contains("is broken"), || error.to_string())?,
                }
                let at = if random.bool() { held.pop() } else { Some(base.add(random.u64(1..len))) };
                if let Some(Err(error)) = at.map(|at| heap.free(at)) {
                    let text = error.to_string();
                    must(text.contains("is broken") || text.contains("is no block"), || text)?;
                }
            }
        }
        for (index, value) in
            [(0, u64::MAX), (0, 256), (2, first.0), (2, 8), (3, 1000), (3, 1 << 62), (3, 2), (2, base.0 ^ 1 << 62)]
        {
            let mut wrong = directory;
            wrong[0] = 1;
            wrong[index] = value;
            put(start, &wrong)?;
            let heap = Heap::new(world);
            for result in [heap.allocate(64, far).map(drop), heap.free(first)] {
                let text = result.err().map(|error| error.to_string()).unwrap_or_default();
                must(text.contains("of rank") && text.contains("is broken"), || {
                    format!("word {index} {value:#x}: '{text}'")
                })?;
            }
        }
        // It says that others have had segments made that nobody finds, or never has any.
        for wrong in [[1, 1 << 40, base.0, len], [0, 1, 0, 0]] {
            put(start, &wrong)?;
            let text = Heap::new(world).allocate(1 << 20, far).err().map(|error| error.to_string()).unwrap_or_default();
            must(text.contains("is broken"), || format!("{wrong:x?}: '{text}'"))?;
        }
        println!("survived");
    }
    world.sync()
}
