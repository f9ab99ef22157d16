//! What programs seldom do: containers with themselves, elements without bytes and very long ones, keys that share a slot, and
//! iterators that are older than what they name.

use vervain_acp::Result;
use vervain_acp_containers::hashed::{Bytes, Container, Extent, Hashed, Kind, Room};
use vervain_acp_containers::{List, Source, Vector};

use super::{all_ranks, holds};
use crate::scarce::{free_bytes, must_be_refused};

/// The last rank, with containers at all ranks; nothing is left.
pub fn run(hashed: Hashed<'_>) -> Result<()> {
    let (world, heap) = (hashed.world(), hashed.heap());
    let ranks = all_ranks(world);
    if world.rank() == world.size() - 1 {
        let free = || ranks.iter().map(|rank| free_bytes(heap, *rank)).collect::<Result<Vec<_>>>();
        let left = free()?;
        for kind in [Kind::Set, Kind::Multiset, Kind::Map] {
            with_itself(hashed, kind, &ranks)?;
        }
        long(hashed, &ranks)?;
        for rank in &ranks {
            sequences(hashed, *rank)?;
        }
        let now = free()?;
        holds(now == left, || format!("{now:?} bytes are left of {left:?}"))?;
    }
    world.sync()
}

/// All keys are in the one slot of the one table.
fn with_itself(hashed: Hashed<'_>, kind: Kind, ranks: &[u32]) -> Result<()> {
    let one = hashed.create(kind, &ranks[..1], 1, ranks[0])?;
    let value = |number: u8| if kind == Kind::Map { vec![number; 9] } else { vec![] };
    for number in 0..50 {
        one.insert(Bytes::Here(&[number, 1]), Bytes::Here(&value(number)))?;
    }
    let before: Vec<_> = one.iter(Extent::All)?.collect::<Result<_>>()?;
    let first = one.begin()?;
    one.swap(&one)?;
    one.assign(&one, Extent::All)?;
    one.merge(&one, Extent::All)?;
    one.take_from(&one, Extent::All)?;
    let after: Vec<_> = one.iter(Extent::All)?.collect::<Result<_>>()?;
    holds(before == after && one.begin()? == first, || format!("{kind:?} with itself has {} elements", after.len()))?;
    // An element's own key is a key, and its value the value of another.
    if let Some(parts) = one.parts(&first)? {
        let (key, value) =
            (Bytes::At(parts.key.0, parts.key.1 as usize), Bytes::At(parts.value.0, parts.value.1 as usize));
        holds(one.insert(key, value)? == (kind == Kind::Multiset), || "its own key is not there".into())?;
        holds(one.insert(Bytes::Here(b"another"), value)?, || "another key with its value".into())?;
        holds(one.remove(key, u64::MAX)?, || "its own key is not there to remove".into())?;
    }
    holds(one.parts(&first)?.is_none(), || "an element that was removed by its own key".into())?;
    holds(one.next(&first)? == one.begin()?, || "what comes behind an element that was removed".into())?;
    must_be_refused("a map of no ranks", hashed.create(kind, &[], 1, 0).map(drop))?;
    must_be_refused("a map of no slots", hashed.create(kind, ranks, 0, 0).map(drop))?;
    must_be_refused("a map of no rank", hashed.create(kind, &[u32::MAX], 1, 0).map(drop))?;
    one.clear(Extent::All)?;
    holds(one.next(&first)? == one.end() && one.is_empty(Extent::All)?, || "elements after clear".into())?;
    one.destroy()
}

/// Keys and values of a MiB, and of no bytes.
fn long(hashed: Hashed<'_>, ranks: &[u32]) -> Result<()> {
    const LEN: usize = 1 << 20;
    let map = hashed.create(Kind::Map, ranks, 3, 0)?;
    let twin = hashed.create(Kind::Map, &ranks[..1], 1, 0)?;
    let mut key = vec![1; LEN];
    for number in 0..4 {
        // They differ in the last byte only.
        key[LEN - 1] = number;
        holds(map.insert(Bytes::Here(&key), Bytes::Here(&vec![number; LEN]))?, || "a long key is there".into())?;
        holds(!map.insert(Bytes::Here(&key), Bytes::Here(&[]))?, || "a long key is not there".into())?;
    }
    holds(map.insert(Bytes::Here(b"empty"), Bytes::Here(&[]))?, || "a value of no bytes".into())?;
    holds(!map.insert(Bytes::Here(&[]), Bytes::Here(&[1]))?, || "a key of no bytes".into())?;
    twin.assign(&map, Extent::All)?;
    map.swap(&twin)?;
    let has = |map: &Container<'_>| -> Result<()> {
        let mut key = vec![1; LEN];
        let mut room = vec![9; LEN];
        for number in 0..4 {
            key[LEN - 1] = number;
            let stored = map.retrieve(Bytes::Here(&key), Room::Here(&mut room))?;
            holds(stored == Some(LEN as u64) && room.iter().all(|byte| *byte == number), || {
                format!("{stored:?} of key {number}")
            })?;
        }
        holds(map.retrieve(Bytes::Here(b"empty"), Room::Here(&mut room))? == Some(0), || "no value of no bytes".into())
    };
    has(&map)?;
    has(&twin)?;
    holds(twin.remove(Bytes::Here(b"empty"), 1)?, || "it is not there to remove".into())?;
    map.destroy()?;
    twin.destroy()
}

fn sequences(hashed: Hashed<'_>, rank: u32) -> Result<()> {
    let heap = hashed.heap();
    let (list, vector) = (List::create(heap, rank)?, Vector::create(heap, 0, rank)?);
    for len in [0, 1 << 20, 0, 5] {
        list.push_back(heap, Source::Here(&vec![7; len]), rank)?;
    }
    let sizes = || -> Result<Vec<usize>> { Ok(list.elements(heap)?.iter().map(|element| element.size).collect()) };
    list.swap(heap, list)?;
    list.assign(heap, list)?;
    list.merge(heap, list, |_, _| std::cmp::Ordering::Greater)?;
    list.assign_range(heap, list.begin(heap)?, list.end())?;
    holds(sizes()? == [0, 1 << 20, 0, 5], || format!("a list with itself has {:?}", sizes()))?;
    let (begin, end) = (list.begin(heap)?, list.end());
    list.insert_range(heap, begin, begin, end)?;
    let long = list.begin(heap)?.next(heap)?.value(heap)?;
    list.insert(heap, end, Source::At(long.address, long.size), rank)?;
    holds(sizes()? == [0, 1 << 20, 0, 5, 0, 1 << 20, 0, 5, 1 << 20], || format!("copies of its own: {:?}", sizes()))?;
    holds(list.remove(heap, long)? == 3, || "not all that are alike are removed".into())?;
    must_be_refused("an element behind the end", end.next(heap))?;
    must_be_refused("an element before the first", list.begin(heap)?.previous(heap))?;
    must_be_refused("the value at the end", end.value(heap))?;
    vector.push_back(heap, Source::Here(&[1, 2, 3]))?;
    vector.insert_range(heap, 1, vector, 0..3)?;
    vector.swap(heap, vector)?;
    vector.assign(heap, vector)?;
    vector.push_back(heap, Source::Here(&[]))?;
    let mut seen = [0; 6];
    vector.read(heap, 0, &mut seen)?;
    holds(seen == [1, 1, 2, 3, 2, 3] && vector.len(heap)? == 6, || format!("a vector with itself has {seen:?}"))?;
    list.destroy(heap)?;
    vector.destroy(heap)
}
