//! All ranks and threads replace all keys of a map, with values of any size, and read them; afterwards no memory is gone.

use fastrand::Rng;
use vervain_acp::{Region, Result, World};
use vervain_acp_containers::hashed::{Bytes, Container, Extent, Hashed, Kind, Room};

use super::contend::{in_threads, sum, value, version};
use super::{all_ranks, holds, other, shared, starter};
use crate::scarce::free_bytes;

/// Keys, which are few to a slot.
const KEYS: u64 = 16;
/// The largest value: only who has the slot reads so large ones.
const LARGEST: usize = 80_000;

/// Of any length: those of more than 1,000 bytes are read in parts, those of 16 KiB in the slot only.
fn key(number: u64) -> Vec<u8> {
    let len = [8, 24, 200, 1500, 6000, 40_000][number as usize % 6];
    let mut key = number.to_ne_bytes().to_vec();
    key.resize(len, number as u8);
    key
}

fn a_length(random: &mut Rng) -> usize {
    8 * match random.u8(..20) {
        0..10 => random.usize(1..20),
        10..19 => random.usize(100..1700),
        _ => random.usize(2000..=LARGEST / 8),
    }
}

/// `count` operations of each rank's threads. `seed` makes them others.
pub fn run(hashed: Hashed<'_>, count: u64, seed: u64) -> Result<()> {
    let world = hashed.world();
    let (rank, heap) = (world.rank(), hashed.heap());
    let left = free_bytes(heap, rank)?;
    world.sync()?;
    let name = shared(hashed, || Ok(hashed.create(Kind::Map, &all_ranks(world), 2, 0)?.name()))?;
    let map = Container::of(hashed, Kind::Map, name);
    let tallies = in_threads(|thread| {
        let mut random = Rng::with_seed(seed << 20 | u64::from(rank) << 8 | thread);
        let room = world.region(LARGEST, 0)?;
        let mut tally = [0; KEYS as usize];
        for turn in 0..count {
            let number = random.u64(..KEYS);
            let key = key(number);
            match random.u8(..100) {
                0..45 => {
                    let mine = u64::from(rank) << 56 | thread << 48 | turn;
                    map.insert(Bytes::Here(&key), Bytes::Here(&value(mine, a_length(&mut random))))?;
                }
                45..75 => tally[number as usize] += u64::from(map.remove(Bytes::Here(&key), 1)?),
                75..98 => (0..3).try_for_each(|_| read(world, &map, &key, &room, &mut random))?,
                _ => all(&map)?,
            }
        }
        Ok(tally)
    })?;
    for number in 0..KEYS as usize {
        let replaced = sum(hashed, number, tallies.iter().map(|tally| tally[number]).sum())?;
        // How often is chance: in short runs some 15 times.
        holds(replaced > 0, || format!("key {number} was replaced {replaced} times"))?;
    }
    for number in 0..KEYS as usize {
        // The next turn begins with sums of nothing.
        if rank == 0 {
            world.store(starter(world, 0)?.add(16 + number), 0)?;
        }
    }
    if rank == 0 {
        all(&map)?;
        map.destroy()?;
    }
    world.sync()?;
    let now = free_bytes(heap, rank)?;
    holds(now == left, || format!("{now} of {left} bytes are left"))?;
    world.sync()
}

/// The value of a key is whole, as far as there is room for it.
fn read(world: &World, map: &Container<'_>, key: &[u8], room: &Region<'_>, random: &mut Rng) -> Result<()> {
    let len = if random.bool() { LARGEST } else { 8 * random.usize(1..2000) };
    let mut seen = vec![0; len];
    let is_here = random.bool();
    let there = Room::At(room.at::<u8>(0).address(), len);
    let stored = map.retrieve(Bytes::Here(key), if is_here { Room::Here(&mut seen) } else { there })?;
    let Some(stored) = stored else { return Ok(()) };
    holds(stored <= LARGEST as u64 && stored.is_multiple_of(8), || format!("{stored} bytes are stored"))?;
    let len = len.min(stored as usize);
    if !is_here {
        world.read(room.at::<u8>(0), &mut seen[..len])?;
    }
    holds(version(&seen[..len]).is_some(), || {
        format!("a value of {stored} bytes, of which {len} were read, is not whole")
    })
}

/// All elements are whole, in their slots.
fn all(map: &Container<'_>) -> Result<()> {
    for item in map.iter(Extent::All)? {
        let item = item?;
        let number = item.key.first_chunk().map(|first| u64::from_ne_bytes(*first));
        let number =
            number.filter(|number| *number < KEYS).ok_or_else(|| other("a key that nobody has inserted".into()))?;
        holds(item.key == key(number), || format!("key {number} is not whole"))?;
        holds(version(&item.value).is_some(), || format!("the value of key {number} is not whole"))?;
    }
    Ok(())
}
