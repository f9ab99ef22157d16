//! All ranks at once, and threads of theirs.

use std::thread;

use fastrand::Rng;
use vervain_acp::{Atomic, Error, Order, Result};
use vervain_acp_containers::hashed::{Bytes, Container, Extent, Hashed, Kind, Room};
use vervain_acp_containers::{GMap, GMultiset, GSet};

use super::{all_ranks, holds, other, shared, starter};

/// Threads of each rank.
const THREADS: u64 = 2;
const KEYS: u64 = 12;
/// A word of starter memory for sums, behind what ranks tell.
const SUMS: usize = 16;

/// The sum of a number of each rank.
pub fn sum(hashed: Hashed<'_>, at: usize, own: u64) -> Result<u64> {
    let world = hashed.world();
    let word = starter(world, 0)?.add(SUMS + at).address();
    let mut batch = world.batch();
    batch.atomic(word, Atomic::Add8(own), Order::Now)?;
    batch.wait()?;
    world.sync()?;
    let sum = batch.get(word, 8, Order::Now)?;
    batch.wait()?;
    let sum = batch.word(sum, 0);
    world.sync()?;
    Ok(sum)
}

/// Runs `f` in each of the rank's threads.
pub fn in_threads<T: Send>(f: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    let f = &f;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || f(thread))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| other("a thread has panicked".into()))?).collect()
    })
}

/// Few keys for all: what they have counted adds up, and of those that insert the same key one succeeds.
pub fn run(hashed: Hashed<'_>, count: u64) -> Result<()> {
    let world = hashed.world();
    let (rank, ranks) = (u64::from(world.rank()), all_ranks(world));
    let name = shared(hashed, || Ok(GMultiset::<u64>::create(hashed, &ranks, 2, 0)?.name()))?;
    let counted = GMultiset::<u64>::open(hashed, name);
    let tallies = in_threads(|thread| {
        let mut random = Rng::with_seed(rank * THREADS + thread);
        let mut tally = [0; KEYS as usize];
        for _ in 0..count {
            let key = random.u64(..KEYS);
            let mine = &mut tally[key as usize];
            if *mine > 0 && random.u8(..5) < 2 {
                holds(counted.remove(&key)?, || format!("key {key}, which is there {mine} times for me, was not"))?;
                *mine -= 1;
            } else {
                counted.insert(&key)?;
                *mine += 1;
            }
        }
        Ok(tally)
    })?;
    let mut all = 0;
    for key in 0..KEYS {
        let own = tallies.iter().map(|tally| tally[key as usize]).sum();
        let expected = sum(hashed, key as usize, own)?;
        let found = counted.count(&key)?;
        holds(found == expected, || format!("key {key} is there {found} times, not {expected}"))?;
        all += u64::from(expected > 0);
    }
    holds(counted.len(Extent::All)? == all, || format!("not {all} keys"))?;
    let name = shared(hashed, || Ok(GMap::<u64, u64>::create(hashed, &ranks, 7, 0)?.name()))?;
    let map = GMap::<u64, u64>::open(hashed, name);
    let name = shared(hashed, || Ok(GSet::<u64>::create(hashed, &ranks, 7, 0)?.name()))?;
    let set = GSet::<u64>::open(hashed, name);
    let won = in_threads(|thread| {
        let mut won = vec![];
        for key in 0..count / 8 {
            if map.insert(&key, &(rank * THREADS + thread))? {
                won.push((key, rank * THREADS + thread));
            }
            // Who removes it has it alone: the number of insertions less that of removals is what is left.
            set.insert(&(key % 5))?;
            set.remove(&(key % 5))?;
        }
        Ok(won)
    })?
    .concat();
    let all = sum(hashed, KEYS as usize, won.len() as u64)?;
    holds(all == count / 8, || format!("{all} insertions of {} keys have succeeded", count / 8))?;
    for (key, value) in &won {
        let found = map.get(key)?;
        holds(found == Some(*value), || format!("key {key} has {found:?}, not {value}"))?;
    }
    holds(map.len(Extent::All)? == count / 8 && set.is_empty(Extent::All)?, || "another number of elements".into())?;
    world.sync()?;
    // All remove all: each key goes once.
    let removed = in_threads(|_| (0..count / 8).map(|key| Ok(u64::from(map.remove(&key)?))).sum::<Result<u64>>())?;
    let all = sum(hashed, KEYS as usize + 1, removed.iter().sum())?;
    holds(all == count / 8 && map.is_empty(Extent::All)?, || format!("{all} removals of {}", count / 8))?;
    world.sync()
}

pub fn value(version: u64, len: usize) -> Vec<u8> {
    version.to_ne_bytes().repeat(len / 8)
}

/// The version that a value is of, if it is whole.
pub fn version(value: &[u8]) -> Option<u64> {
    let mut words = value.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
    let first = words.next()?;
    words.all(|word| word == first).then_some(first)
}

/// Each rank inserts and removes keys of its own, with values that get higher; all read those of others meanwhile, go through all,
/// and find every value whole and none older than before.
pub fn churn(hashed: Hashed<'_>, count: u64, largest: u64) -> Result<()> {
    let world = hashed.world();
    let (rank, size) = (u64::from(world.rank()), u64::from(world.size()));
    let name = shared(hashed, || Ok(hashed.create(Kind::Map, &all_ranks(world), 2, 0)?.name()))?;
    let map = Container::of(hashed, Kind::Map, name);
    let key_of = |rank: u64, number: u64| [rank, number].map(u64::to_ne_bytes).concat();
    let own = |thread: u64| -> Result<()> {
        let mut random = Rng::with_seed(rank);
        for round in 1..=count {
            if thread == 0 {
                let number = random.u64(..3);
                // More of those that take a segment of the heap's each.
                let often = if largest > 4 << 20 { 2 } else { 64 };
                let len = if round % often == 0 { largest as usize } else { random.usize(1..40) * 8 };
                let key = key_of(rank, number);
                map.remove(Bytes::Here(&key), 1)?;
                let inserted = map.insert(Bytes::Here(&key), Bytes::Here(&value(round, len)))?;
                holds(inserted, || "a key of mine that I have removed was there".into())?;
                let mut room = vec![0; len];
                let stored = map.retrieve(Bytes::Here(&key), Room::Here(&mut room))?;
                holds(stored == Some(len as u64) && version(&room) == Some(round), || {
                    format!("{stored:?} bytes of version {:?}, not {len} of {round}", version(&room))
                })?;
            } else if round % 4 == 0 || largest > 4 << 20 {
                reads(&map, &mut random, size, largest as usize)?;
            }
        }
        Ok(())
    };
    in_threads(own)?;
    world.sync()?;
    let left = map.len(Extent::All)?;
    holds(left <= 3 * size && left >= size, || format!("{left} elements"))?;
    world.sync()
}

/// Two maps, on rank 0 and on rank 1, change places where rank 1 has no memory left: all is as it was.
pub fn swap_without_memory(hashed: Hashed<'_>, count: u64) -> Result<()> {
    let world = hashed.world();
    if world.rank() == 0 {
        let [large, small] = [0, 1].map(|on| GMap::<u64, u64>::create(hashed, &[on], 16, on));
        let (large, small) = (large?, small?);
        for key in 0..count {
            large.insert(&key, &(key + 1))?;
            if key < 10 {
                // The same keys, with other values.
                small.insert(&key, &(key + 2))?;
            }
        }
        let mut blocks = vec![];
        for size in [16 << 10, 512, 48, 16] {
            while let Some(block) = hashed.heap().allocate(size, 1)? {
                blocks.push(block);
            }
        }
        let error = large.swap(&small).err();
        holds(error.as_ref().is_some_and(Error::is_refused), || format!("without memory: {error:?}"))?;
        for (map, number, more) in [(&large, count, 1), (&small, 10, 2)] {
            let found = (0..number).filter(|key| map.get(key).is_ok_and(|value| value == Some(key + more))).count();
            holds(found as u64 == number && map.len(Extent::All)? == number, || {
                format!("{found} of {number} elements")
            })?;
        }
        // What is no map is found out before anything moves.
        let gone = GMap::<u64, u64>::create(hashed, &[0], 16, 0)?;
        let name = gone.name();
        gone.destroy()?;
        let gone = GMap::open(hashed, name);
        for refused in [large.swap(&gone), large.assign(&gone, Extent::All)] {
            holds(refused.is_err(), || "a map that is gone has elements".into())?;
        }
        holds(large.len(Extent::All)? == count, || "elements are gone".into())?;
        blocks.into_iter().try_for_each(|block| hashed.heap().free(block))?;
        large.swap(&small)?;
        holds(large.len(Extent::All)? == 10 && small.len(Extent::All)? == count, || {
            "they have not changed places".into()
        })?;
        large.destroy()?;
        small.destroy()?;
    }
    world.sync()
}

/// What others insert and remove.
fn reads(map: &Container<'_>, random: &mut Rng, size: u64, largest: usize) -> Result<()> {
    let key = [random.u64(..size), random.u64(..3)].map(u64::to_ne_bytes).concat();
    let mut room = vec![0; largest];
    let mut last = 0;
    for _ in 0..3 {
        if let Some(len) = map.retrieve(Bytes::Here(&key), Room::Here(&mut room))? {
            let seen = room.get(..len as usize).and_then(version);
            let seen = seen.ok_or_else(|| other(format!("a value of {len} bytes is not whole")))?;
            holds(seen >= last, || format!("version {seen} after {last}"))?;
            last = seen;
        }
    }
    let mut cursor = map.begin()?;
    // Others may insert as fast as this goes on.
    for _ in 0..20 * size {
        if cursor == map.end() {
            break;
        }
        if let Some(parts) = map.parts(&cursor)? {
            holds(parts.key.1 == 16 && parts.value.1 > 0 && parts.value.1 <= largest as u64, || format!("{parts:?}"))?;
        }
        cursor = map.next(&cursor)?;
    }
    for item in map.iter(Extent::All)? {
        let item = item?;
        holds(item.key.len() == 16 && version(&item.value).is_some(), || "an item that is not whole".into())?;
    }
    Ok(())
}

/// Inserts and removes until somebody ends the job.
pub fn forever(hashed: Hashed<'_>) -> Result<()> {
    let world = hashed.world();
    let name = shared(hashed, || Ok(GMap::<u64, u64>::create(hashed, &all_ranks(world), 1, 0)?.name()))?;
    let map = GMap::<u64, u64>::open(hashed, name);
    println!("works as {}", std::process::id());
    for i in 0.. {
        map.insert(&(i % 4), &i)?;
        map.remove(&(i % 4))?;
    }
    Ok(())
}
