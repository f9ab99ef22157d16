//! Round trips of the operations; containers that are made and destroyed at one address; slots that others lock, or break.

use std::thread;
use std::time::Duration;

use vervain_acp::{GlobalAddress, Order, Result, World};
use vervain_acp_containers::hashed::{Bytes, Container, Extent, Hashed, Kind, Name, Room};
use vervain_acp_containers::{GMap, GMultiset};

use super::{all_ranks, holds, other, shared, told};
use crate::scarce::must_be_refused;

/// Where the addresses of tables are in a directory.
const ENTRIES: u64 = 48;

/// How many round trips it takes.
fn trips<T>(world: &World, f: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
    let before = world.round_trips();
    let done = f()?;
    Ok((world.round_trips() - before, done))
}

/// The last rank counts the round trips of operations on containers of rank 0.
pub fn run(hashed: Hashed<'_>) -> Result<()> {
    let world = hashed.world();
    let map = shared(hashed, || Ok(hashed.create(Kind::Map, &[0], 1, 0)?.name()))?;
    let wide = shared(hashed, || Ok(hashed.create(Kind::Map, &[0], 10_000, 0)?.name()))?;
    let multiset = shared(hashed, || Ok(hashed.create(Kind::Multiset, &[0], 1, 0)?.name()))?;
    if world.rank() == world.size() - 1 {
        counts(hashed, [map, wide, multiset])?;
    }
    world.sync()
}

fn counts(hashed: Hashed<'_>, [map, wide, multiset]: [Name; 3]) -> Result<()> {
    let world = hashed.world();
    let takes = |what: &str, expected: u64, f: &dyn Fn() -> Result<bool>| -> Result<()> {
        let (trips, done) = trips(world, f)?;
        println!("{what}: {trips}");
        holds(trips == expected && done, || format!("{what} takes {trips} round trips, not {expected}, and is {done}"))
    };
    let map = Container::of(hashed, Kind::Map, map);
    let (a, b, c) = (Bytes::Here(b"a"), Bytes::Here(b"b"), Bytes::Here(b"c"));
    let long = [7; 3000];
    // The directory is read once.
    takes("the first search", 3, &|| Ok(map.count(a)? == 0))?;
    takes("a search in an empty slot", 1, &|| Ok(map.count(a)? == 0))?;
    // What allocating takes differs, so that is counted beside it.
    let heap = vervain_acp_heap::Heap::new(world);
    heap.allocate(48, 0)?;
    let (allocation, _) = trips(world, || heap.allocate(48, 0))?;
    let mut seen = vec![];
    let wide = Container::of(hashed, Kind::Map, wide);
    for key in 0..40u64 {
        let key = key.to_ne_bytes();
        let slots = trips(world, || wide.count(Bytes::Here(&key)))?;
        if slots != (1, 0) {
            // A part of the table that this rank did not know, or a slot with elements.
            continue;
        }
        seen.push(trips(world, || wide.insert(Bytes::Here(&key), Bytes::Here(&key)))?.0);
    }
    println!("insertions: {seen:?}, an allocation: {allocation}");
    holds(seen.iter().any(|trips| *trips == 3 + allocation), || format!("insertions take {seen:?} round trips"))?;
    for key in [a, b] {
        holds(map.insert(key, Bytes::Here(b"a value"))?, || "a key is there".into())?;
    }
    map.insert(c, Bytes::Here(&long))?;
    takes("a search", 2, &|| Ok(map.count(a)? == 1))?;
    takes("a search behind another", 3, &|| Ok(map.find(b)? != map.end()))?;
    takes("a search for what is not there", 4, &|| Ok(map.count(Bytes::Here(b"d"))? == 0))?;
    takes("an insertion of what is there", 2, &|| Ok(!map.insert(a, a)?))?;
    takes("a value", 2, &|| Ok(map.retrieve(a, Room::Here(&mut [0; 7]))? == Some(7)))?;
    takes("a long value", 5, &|| Ok(map.retrieve(c, Room::Here(&mut [0; 3000]))? == Some(3000)))?;
    takes("the beginning", 1, &|| Ok(map.begin()? != map.end()))?;
    let first = map.begin()?;
    takes("an increment", 1, &|| Ok(map.next(&first)? != map.end()))?;
    takes("a dereference", 1, &|| Ok(map.parts(&first)?.is_some()))?;
    takes("the length", 3, &|| Ok(map.len(Extent::All)? == 3))?;
    let (free, ()) = trips(world, || heap.free(heap.allocate(48, 0)?.unwrap_or(GlobalAddress::NULL)))?;
    let (removal, _) = trips(world, || map.remove(a, 1))?;
    println!("a removal: {removal}; an allocation and freeing: {free}");
    holds((4..=4 + free).contains(&removal), || format!("a removal takes {removal} round trips"))?;
    // Two elements are left in one slot: the directory, the slots, that slot, and them.
    let (cleared, ()) = trips(world, || map.clear(Extent::All))?;
    println!("clearing: {cleared}");
    holds((9..=9 + 2 * free).contains(&cleared), || format!("clearing takes {cleared} round trips"))?;
    let multiset = GMultiset::<u64>::open(hashed, multiset);
    multiset.insert(&1)?;
    takes("once more", 4, &|| multiset.insert(&1).map(|()| true))?;
    takes("how often", 2, &|| Ok(multiset.count(&1)? == 2))?;
    takes("once less", 4, &|| multiset.remove(&1))?;
    // The directory, the slots, that slot twice, its element and its key; and what it takes to allocate here.
    heap.allocate(48, world.rank())?;
    let (here, _) = trips(world, || heap.allocate(48, world.rank()))?;
    let copy = hashed.create(Kind::Multiset, &[world.rank()], 1, world.rank())?;
    let copy = GMultiset::<u64>::open(hashed, copy.name());
    takes("a merge into a container of this rank", 7 + here, &|| copy.merge(&multiset, Extent::All).map(|()| true))?;
    takes("a copy of this rank", 0, &|| Ok(copy.count(&1)? == 1))
}

/// Containers that come and go, mostly at the same addresses: what ranks remember of those of before never leads them astray.
pub fn stale(hashed: Hashed<'_>, count: u64) -> Result<()> {
    let world = hashed.world();
    let mut at = vec![];
    for round in 0..count {
        // Of two shapes, so that tables are where other tables and elements have been.
        let slots = if round % 3 == 0 { 700 } else { 40 };
        let name = shared(hashed, || Ok(GMap::<u64, u64>::create(hashed, &all_ranks(world), slots, 0)?.name()))?;
        at.push(name);
        let map = GMap::<u64, u64>::open(hashed, name);
        let own = u64::from(world.rank());
        for i in 0..20 {
            let key = own * 100 + i;
            holds(map.get(&key)?.is_none(), || format!("key {key} of before"))?;
            holds(map.insert(&key, &(key + round))?, || format!("key {key} is there"))?;
        }
        world.sync()?;
        for i in 0..20 {
            let key = (own + 1) % u64::from(world.size()) * 100 + i;
            let found = map.get(&key)?;
            holds(found == Some(key + round), || format!("key {key} has {found:?} in round {round}"))?;
        }
        world.sync()?;
        if world.rank() == 0 {
            map.destroy()?;
        }
    }
    at.sort_by_key(|name| (name.address, name.slots));
    at.dedup();
    println!("{} names in {count} rounds", at.len());
    world.sync()
}

/// A container whose directory has a segment of its own, in part: a rank that remembers it is refused when it is destroyed.
pub fn unmapped(hashed: Hashed<'_>) -> Result<()> {
    let (world, heap) = (hashed.world(), hashed.heap());
    let mut held = vec![];
    let name = shared(hashed, || {
        while let Some(block) = heap.allocate(16 << 10, 0)? {
            held.push(block);
        }
        // No two of those that are free then are one behind the other, so that a longer block has to have a segment.
        held.sort_unstable();
        let is_alone = |block: &GlobalAddress| world.region_of(*block) == Some(*block);
        let (free, kept): (Vec<_>, Vec<_>) =
            held.drain(..).enumerate().partition(|(i, block)| is_alone(block) || *i < 40 && i % 2 == 0);
        held = kept.into_iter().map(|(_, block)| block).collect();
        free.into_iter().try_for_each(|(_, block)| heap.free(block))?;
        let name = hashed.create(Kind::Map, &[0; 2100], 1, 0)?.name();
        let mut batch = world.batch();
        let addresses = batch.get(name.address.add(40), 8, Order::Now)?;
        batch.wait()?;
        let addresses = GlobalAddress(batch.word(addresses, 0));
        holds(is_alone(&addresses), || {
            format!("the addresses of its chunks are at {addresses}, in no segment of their own")
        })?;
        Ok(name)
    })?;
    let map = GMap::<u64, u64>::open(hashed, name);
    for key in 0..100 {
        map.insert(&(key << 32 | u64::from(world.rank())), &key)?;
    }
    world.sync()?;
    holds(map.len(Extent::All)? == 100 * u64::from(world.size()), || "another number of elements".into())?;
    world.sync()?;
    if world.rank() == 0 {
        GMap::<u64, u64>::open(hashed, name).destroy()?;
    }
    world.sync()?;
    must_be_refused("a search in what was destroyed", map.get(&0))?;
    must_be_refused("an insertion into what was destroyed", map.insert(&7, &7))?;
    must_be_refused("the length of what was destroyed", map.len(Extent::All))?;
    must_be_refused("all of what was destroyed", map.iter(Extent::All).map(drop))?;
    must_be_refused("destroying it again", map.destroy())?;
    held.into_iter().try_for_each(|block| heap.free(block))?;
    world.sync()
}

/// Where the only slot of a container is.
pub fn slot_of(world: &World, name: Name) -> Result<GlobalAddress> {
    let mut batch = world.batch();
    let entry = batch.get(name.address.add(ENTRIES), 8, Order::Now)?;
    batch.wait()?;
    Ok(GlobalAddress(batch.word(entry, 0)))
}

fn store(world: &World, at: GlobalAddress, word: u64) -> Result<()> {
    let mut batch = world.batch();
    batch.put_words(at, &[word], Order::Now)?;
    batch.wait()
}

/// A slot that another rank has for long: whoever wants it waits.
pub fn locked(hashed: Hashed<'_>) -> Result<()> {
    let world = hashed.world();
    let name = shared(hashed, || Ok(GMap::<u64, u64>::create(hashed, &[0], 1, 0)?.name()))?;
    let map = GMap::<u64, u64>::open(hashed, name);
    let slot = slot_of(world, name)?;
    if world.rank() == 1 {
        store(world, slot, 1 << 63 | 1 << 32)?;
    }
    world.sync()?;
    if world.rank() == 1 {
        // Long enough that the others look whether this rank lives.
        thread::sleep(Duration::from_millis(700));
        store(world, slot, 0)?;
    } else {
        map.insert(&u64::from(world.rank()), &1)?;
    }
    world.sync()?;
    holds(map.len(Extent::All)? == u64::from(world.size()) - 1, || "another number of elements".into())?;
    world.sync()
}

/// Rank 1 breaks a slot of rank 0's, and then looks for what is not there: a sentence ends the job.
pub fn hostile(hashed: Hashed<'_>, what: &str) -> Result<()> {
    let world = hashed.world();
    let name = shared(hashed, || Ok(GMap::<u64, u64>::create(hashed, &[0], 1, 0)?.name()))?;
    let map = GMap::<u64, u64>::open(hashed, name);
    if world.rank() == 1 {
        (0..3).try_for_each(|key| map.insert(&key, &key).map(drop))?;
        let slot = slot_of(world, name)?;
        let mut batch = world.batch();
        let head = batch.get(slot.add(8), 8, Order::Now)?;
        batch.wait()?;
        let head = batch.word(head, 0);
        match what {
            "loop" => store(world, GlobalAddress(head & !15), head)?,
            // One element, in the word's upper half.
            "uncounted" => store(world, slot, 1 << 32)?,
            // Bytes of the value.
            "long" => store(world, GlobalAddress(head & !15).add(24), 1 << 40)?,
            "astray" => {
                let own = world.starter_of::<u64>(1).ok_or_else(|| other("no rank 1".into()))?;

                store(world, slot.add(8), own.address().0)?;
            }
            _ => store(world, slot, 1 << 63 | 0x1f_fff0 << 32)?,
        }
        let found = map.contains(&7);
        return found.and_then(|found| Err(other(format!("found: {found}"))));
    }
    // It comes to no end by itself.
    told(world, &[0])?;
    Ok(())
}
