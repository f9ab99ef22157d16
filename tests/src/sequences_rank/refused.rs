//! A rank that can have no region more, so that accesses of many bytes at a time are refused, and heaps that are full: what is refused
//! changes nothing and leaves nothing.

use vervain_acp::Result;
use vervain_acp_containers::{Deque, List, Source, Vector};
use vervain_acp_heap::Heap;

use super::must;
use crate::scarce::{exhausted, free_bytes, must_be_refused, no_regions};

/// More than a batch has registered before.
const LONG: usize = 40_000;

/// Rank 0, with containers at all ranks.
pub fn run(heap: &Heap<'_>) -> Result<()> {
    let world = heap.world();
    if world.rank() == 0 {
        for rank in 0..world.size() {
            bytes(heap, rank)?;
            elements(heap, rank)?;
        }
    }
    world.sync()
}

/// It has these bytes.
fn has(heap: &Heap<'_>, vector: Vector, expected: &[u8], what: &str) -> Result<()> {
    let mut seen = vec![0; vector.len(heap)?];
    vector.read(heap, 0, &mut seen)?;
    must(seen == expected, || format!("{what}: a vector of {} B has changed", expected.len()))
}

fn bytes(heap: &Heap<'_>, rank: u32) -> Result<()> {
    let world = heap.world();
    let all = free_bytes(heap, rank)?;
    let text: Vec<u8> = (0..2 * LONG).map(|i| (i / 3) as u8).collect();
    let (long, much) = (Source::Here(&text[..LONG]), text.repeat(6));
    let (vector, short, deque) =
        (Vector::create(heap, 0, rank)?, Vector::create(heap, 10, rank)?, Deque::create(heap, 0, rank)?);
    vector.push_back(heap, Source::Here(&text))?;
    vector.erase(heap, 1000..2 * LONG)?;
    vector.reserve(heap, 2 * much.len())?;
    deque.push_back(heap, long)?;
    short.write(heap, 0, &[7; 10])?;
    let left = free_bytes(heap, rank)?;
    {
        // What is registered is too short for what follows.
        let _all = no_regions(world)?;
        for (what, result) in [
            ("insertion in the midst", vector.insert(heap, 10, Source::Here(&much))),
            ("insertion at the end", vector.push_back(heap, Source::Here(&much))),
            ("insertion anew", short.push_back(heap, Source::Here(&much))),
            ("insertion in a deque", deque.insert(heap, LONG / 2, Source::Here(&much))),
        ] {
            must_be_refused(what, result)?;
        }
        must(free_bytes(heap, rank)? == left, || {
            format!("{} of {left} bytes are left", free_bytes(heap, rank).unwrap_or(0))
        })?;
    }
    has(heap, vector, &text[..1000], "no region")?;
    has(heap, short, &[7; 10], "no region")?;
    must(deque.len(heap)? == LONG, || "a deque has changed".into())?;
    let blocks = exhausted(heap, rank)?;
    must_be_refused("a vector of a full heap", Vector::create(heap, 100, rank))?;
    must_be_refused("a deque of a full heap", Deque::create(heap, 100, rank))?;
    must_be_refused("growth in a full heap", short.push_back(heap, Source::Here(&[1; 100])))?;
    must_be_refused("a copy in a full heap", short.assign(heap, vector))?;
    must_be_refused("room of a full heap", short.reserve(heap, 100))?;
    has(heap, short, &[7; 10], "no memory")?;
    blocks.into_iter().try_for_each(|block| heap.free(block))?;
    must(free_bytes(heap, rank)? == left, || "a full heap has less afterwards".into())?;
    vector.destroy(heap)?;
    short.destroy(heap)?;
    deque.destroy(heap)?;
    must(free_bytes(heap, rank)? == all, || "not all bytes are free again".into())
}

fn elements(heap: &Heap<'_>, rank: u32) -> Result<()> {
    const COUNT: usize = 600;
    let world = heap.world();
    let all = free_bytes(heap, rank)?;
    let text = vec![3; 200_000];
    let (list, other) = (List::create(heap, rank)?, List::create(heap, rank)?);
    for i in 0..COUNT {
        list.push_back(heap, Source::Here(&[i as u8, (i >> 8) as u8]), rank)?;
    }
    let values =
        |list: List| -> Result<Vec<u64>> { Ok(list.elements(heap)?.iter().map(|element| element.address.0).collect()) };
    let (left, before) = (free_bytes(heap, rank)?, values(list)?);
    let (begin, end) = (list.begin(heap)?, list.end());
    {
        let _all = no_regions(world)?;
        // So many links are written from one piece of memory, or none.
        let results = [
            ("a long element", list.push_back(heap, Source::Here(&text), rank).map(drop)),
            ("a long element in front", list.push_front(heap, Source::Here(&text), rank).map(drop)),
        ];
        for (what, result) in results {
            must_be_refused(what, result)?;
        }
        must(free_bytes(heap, rank)? == left, || "an element that was refused is still there".into())?;
    }
    must(values(list)? == before, || "a list has changed".into())?;
    let blocks = exhausted(heap, rank)?;
    must_be_refused("a list of a full heap", List::create(heap, rank))?;
    must_be_refused("an element of a full heap", list.push_back(heap, Source::Here(&[1; 100]), rank))?;
    must_be_refused("copies in a full heap", list.insert_range(heap, end, begin, end))?;
    must_be_refused("a copy in a full heap", other.assign(heap, list))?;
    // Half of the copies have memory.
    let (few, rest) = blocks.split_at(COUNT / 2);
    few.iter().try_for_each(|block| heap.free(*block))?;
    let half = free_bytes(heap, rank)?;
    if half < COUNT * 26 {
        must_be_refused("copies in an almost full heap", list.insert_range(heap, end, begin, end))?;
    }
    must(free_bytes(heap, rank)? == half, || "copies that were refused are still there".into())?;
    rest.iter().try_for_each(|block| heap.free(*block))?;
    must(values(list)? == before && other.is_empty(heap)?, || "a list has changed for want of memory".into())?;
    list.destroy(heap)?;
    other.destroy(heap)?;
    must(free_bytes(heap, rank)? == all, || "not all elements are free again".into())
}
