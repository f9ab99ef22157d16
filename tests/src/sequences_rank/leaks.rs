//! Whatever goes into containers and out of them, the heap is as empty afterwards: all of it would be more than there is.

use vervain_acp::Result;
use vervain_acp_containers::{Deque, List, Source, Vector};
use vervain_acp_heap::Heap;

use super::must;

/// `count` times, by rank 0, at all ranks.
pub fn run(heap: &Heap<'_>, count: u64) -> Result<()> {
    let world = heap.world();
    if world.rank() == 0 {
        for turn in 0..count {
            let rank = turn as u32 % world.size();
            bytes(heap, rank)?;
            for _ in 0..800 {
                Vector::create(heap, 0, rank)?.destroy(heap)?;
                List::create(heap, rank)?.destroy(heap)?;
            }
            for _ in 0..10 {
                lists(heap, rank)?;
            }
        }
    }
    world.sync()
}

fn bytes(heap: &Heap<'_>, rank: u32) -> Result<()> {
    let (part, some) = ([1; 30_000], Source::Here(&[2; 100]));
    let (vector, other) = (Vector::create(heap, 0, rank)?, Vector::create(heap, 1000, rank)?);
    let (deque, short) = (Deque::create(heap, 0, rank)?, Deque::create(heap, 10, rank)?);
    for _ in 0..10 {
        vector.push_back(heap, Source::Here(&part))?;
        deque.push_front(heap, Source::Here(&part))?;
    }
    other.assign(heap, vector)?;
    short.assign_range(heap, deque, 5..100_000)?;
    other.swap(heap, vector)?;
    other.insert(heap, 7, some)?;
    deque.reserve(heap, 500_000)?;
    // What is refused gives back what it has taken.
    for size in [1 << 40, 1 << 35] {
        must(vector.reserve(heap, size).is_err_and(|error| error.is_refused()), || format!("room for {size} B"))?;
        must(Vector::create(heap, size, rank).is_err_and(|error| error.is_refused()), || {
            format!("a vector of {size} B")
        })?;
    }
    vector.destroy(heap)?;
    other.destroy(heap)?;
    deque.destroy(heap)?;
    short.destroy(heap)
}

fn lists(heap: &Heap<'_>, rank: u32) -> Result<()> {
    let (list, other) = (List::create(heap, rank)?, List::create(heap, rank)?);
    for i in 0..20 {
        list.push_back(heap, Source::Here(&[i / 3; 3000]), rank)?;
    }
    other.assign(heap, list)?;
    other.assign_range(heap, list.begin(heap)?.advance(heap, 3)?, list.end())?;
    list.insert_range(heap, list.end(), other.begin(heap)?, other.end())?;
    list.unique(heap)?;
    list.remove(heap, list.begin(heap)?.value(heap)?)?;
    list.pop_back(heap)?;
    list.pop_front(heap)?;
    list.erase(heap, list.begin(heap)?)?;
    list.erase_range(heap, list.begin(heap)?, list.begin(heap)?.next(heap)?)?;
    list.splice(heap, list.end(), other.begin(heap)?)?;
    other.merge(heap, list, |_, _| std::cmp::Ordering::Equal)?;
    list.push_front(heap, Source::Here(&[9; 50]), rank)?;
    other.clear(heap)?;
    list.destroy(heap)?;
    other.destroy(heap)
}
