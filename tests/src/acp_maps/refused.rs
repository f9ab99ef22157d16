//! A rank that can have no region more, and heaps that are full: what is refused changes nothing, leaves nothing, and locks nothing.

use vervain_acp::{Order, Result};
use vervain_acp_containers::hashed::{Bytes, Container, Extent, Hashed, Kind, Name, Room};

use super::trips::slot_of;
use super::{holds, shared};
use crate::scarce::{exhausted, free_bytes, must_be_refused, no_regions};

/// More than a batch has registered before.
const LONG: usize = 70_000;

/// Rank 0, with containers at the last rank.
pub fn run(hashed: Hashed<'_>) -> Result<()> {
    let world = hashed.world();
    let last = world.size() - 1;
    let make = |on: u32| shared(hashed, || Ok(hashed.create(Kind::Map, &[on], 1, on)?.name()));
    let (there, other, here) = (make(last)?, make(last)?, make(0)?);
    let key = [5; LONG];
    if world.rank() == last {
        // Not rank 0, so that this has registered nothing there.
        let map = Container::of(hashed, Kind::Map, there);
        for (key, value) in [(&key[..], &[1; 3][..]), (b"short", &[2; LONG]), (b"small", &[3; 5])] {
            map.insert(Bytes::Here(key), Bytes::Here(value))?;
        }
    }
    world.sync()?;
    if world.rank() == 0 {
        let left = [free_bytes(hashed.heap(), 0)?, free_bytes(hashed.heap(), last)?];
        no_room(hashed, [there, other, here], &key)?;
        no_memory(hashed, [there, here])?;
        for (rank, left) in [(0, left[0]), (last, left[1])] {
            let now = free_bytes(hashed.heap(), rank)?;
            holds(now == left, || format!("{now} of {left} bytes of rank {rank} are left"))?;
        }
    }
    world.sync()
}

/// Nobody has the only slot.
fn is_free(hashed: Hashed<'_>, name: Name, what: &str) -> Result<()> {
    let world = hashed.world();
    let mut batch = world.batch();
    let word = batch.get(slot_of(world, name)?, 8, Order::Now)?;
    batch.wait()?;
    holds(batch.word(word, 0) >> 63 == 0, || format!("{what} leaves the slot locked"))
}

fn no_room(hashed: Hashed<'_>, [there, other, here]: [Name; 3], key: &[u8]) -> Result<()> {
    let [map, other, own] = [there, other, here].map(|name| Container::of(hashed, Kind::Map, name));
    let _all = no_regions(hashed.world())?;
    let (long, mut room) = ([4; LONG], [0; LONG]);
    let key = Bytes::Here(key);
    must_be_refused("a search for a long key", map.find(key))?;
    is_free(hashed, there, "a search")?;
    must_be_refused("its value", map.retrieve(key, Room::Here(&mut [0; 3])))?;
    is_free(hashed, there, "its value")?;
    must_be_refused("its insertion", map.insert(key, Bytes::Here(&[1])))?;
    is_free(hashed, there, "its insertion")?;
    must_be_refused("its removal", map.remove(key, 1))?;
    is_free(hashed, there, "its removal")?;
    must_be_refused("a long value", map.retrieve(Bytes::Here(b"short"), Room::Here(&mut room)))?;
    is_free(hashed, there, "a long value")?;
    must_be_refused("insertion of a long value", map.insert(Bytes::Here(b"new"), Bytes::Here(&long)))?;
    is_free(hashed, there, "insertion of a long value")?;
    // Elements go back where there is no room to copy them, and go on where none is needed.
    must_be_refused("a move to another rank", own.take_from(&map, Extent::All))?;
    is_free(hashed, there, "a move")?;
    holds(map.len(Extent::All)? == 3 || own.len(Extent::All)? + map.len(Extent::All)? == 3, || {
        "elements are lost".into()
    })?;
    other.take_from(&map, Extent::All)?;
    map.take_from(&other, Extent::All)?;
    map.take_from(&own, Extent::All)?;
    holds(map.len(Extent::All)? == 3 && own.is_empty(Extent::All)?, || "elements have not come back".into())
}

fn no_memory(hashed: Hashed<'_>, [there, here]: [Name; 2]) -> Result<()> {
    let [map, own] = [there, here].map(|name| Container::of(hashed, Kind::Map, name));
    let heap = hashed.heap();
    for (rank, map) in [(0, own), (hashed.world().size() - 1, map)] {
        let blocks = exhausted(heap, rank)?;
        let before = map.len(Extent::All)?;
        must_be_refused("an insertion in a full heap", map.insert(Bytes::Here(b"new"), Bytes::Here(&[1])))?;
        must_be_refused("a container in a full heap", hashed.create(Kind::Map, &[rank], 3, rank).map(drop))?;
        // The table has no memory, and the directory has.
        let other = hashed.world().size() - 1 - rank;
        must_be_refused("a table in a full heap", hashed.create(Kind::Map, &[other, rank], 3, other).map(drop))?;
        must_be_refused(
            "a copy in a full heap",
            if rank == 0 {
                own.merge(&Container::of(hashed, Kind::Map, there), Extent::All)
            } else {
                map.insert(Bytes::Here(&[9; 50]), Bytes::Here(&[])).map(drop)
            },
        )?;
        holds(
            !map.insert(Bytes::Here(b"small"), Bytes::Here(&[1])).is_ok_and(|new| new)
                && map.len(Extent::All)? == before,
            || "another number of elements in a full heap".into(),
        )?;
        blocks.into_iter().try_for_each(|block| heap.free(block))?;
    }
    Ok(())
}
