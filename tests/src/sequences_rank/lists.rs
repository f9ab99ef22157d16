//! Random programs on lists against vectors of std; as those on bytes. Elements have few values, so that there are equal ones.

use std::cmp::Ordering;
use std::ops::Range;

use fastrand::Rng;
use vervain_acp::{Batch, Order, Result};
use vervain_acp_containers::{Cursor, Element, List, Source};
use vervain_acp_heap::Heap;

use super::{Sources, must, shared, wrong};

const LISTS: usize = 3;
/// Elements above which a list shrinks.
const MOST: usize = 40;

/// An element of the model: its bytes, and of which rank it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    bytes: Vec<u8>,
    rank: u32,
}

#[derive(Debug)]
enum Act {
    Insert(usize, Value, Option<vervain_acp::GlobalAddress>),
    PushBack(Value),
    PushFront(Value),
    PopBack,
    PopFront,
    Erase(usize),
    EraseRange(Range<usize>),
    InsertRange(usize, usize, Range<usize>),
    Assign(usize),
    AssignRange(usize, Range<usize>),
    /// The bytes, and the index of an element that has them.
    Remove(Vec<u8>, Option<usize>),
    Unique,
    Reverse,
    Sort,
    Merge(usize),
    Splice(usize, usize, usize),
    SpliceRange(usize, usize, Range<usize>),
    Swap(usize),
    Clear,
}

/// Sorted by what comes first, so that what is behind it shows that equal ones keep their order.
fn order(one: &[u8], other: &[u8]) -> Ordering {
    one.first().cmp(&other.first())
}

/// `count` turns.
pub fn run(heap: &Heap<'_>, count: u64, seed: u64) -> Result<()> {
    let world = heap.world();
    let mut random = Rng::with_seed(seed);
    let sources = Sources::new(world, 700 << 10)?;
    let make = || (0..LISTS as u32).map(|i| Ok(List::create(heap, (i + 1) % world.size())?.address())).collect();
    let lists: Vec<List> = shared(world, make, LISTS)?.into_iter().map(List::new).collect();
    let mut model: Vec<Vec<Value>> = vec![vec![]; LISTS];
    for turn in 0..count {
        let (actor, observer) = (random.u32(..world.size()), random.u32(..world.size()));
        for _ in 0..random.u32(1..8) {
            let at = random.usize(..LISTS);
            let act = draw(&mut random, &sources, &model, at, world.size());
            let sizes: Vec<usize> = model.iter().map(Vec::len).collect();
            let allowed = apply(&act, &mut model, at);
            if actor == world.rank() {
                let done = carry_out(heap, &act, &lists, at);
                match (allowed, done) {
                    (true, Ok(())) => {}
                    (false, Err(error)) if error.is_refused() => {}
                    (_, done) => {
                        return Err(wrong(format!(
                            "turn {turn}, seed {seed}, {at} of {sizes:?}: {act:.200?}: {done:?}"
                        )));
                    }
                }
            }
        }
        world.sync()?;
        if observer == world.rank() {
            compare(heap, &lists, &model).map_err(|error| wrong(format!("turn {turn}, seed {seed}: {error}")))?;
        }
        world.sync()?;
    }
    if world.rank() == world.size() - 1 {
        lists.iter().try_for_each(|list| list.destroy(heap))?;
        must(lists[0].len(heap).is_err_and(|error| !error.is_refused()), || "one that was destroyed is there".into())?;
    }
    world.sync()
}

fn load(heap: &Heap<'_>, element: Element) -> Result<Vec<u8>> {
    let mut batch: Batch<'_> = heap.world().batch();
    let place = batch.get(element.address, element.size, Order::Now)?;
    batch.wait()?;
    Ok(batch.bytes(place))
}

/// Along the elements forwards, and back.
fn compare(heap: &Heap<'_>, lists: &[List], model: &[Vec<Value>]) -> Result<()> {
    for (i, (list, model)) in lists.iter().zip(model).enumerate() {
        must(list.len(heap)? == model.len() && list.is_empty(heap)? == model.is_empty(), || {
            format!("list {i} has another length than {}", model.len())
        })?;
        let mut at = list.begin(heap)?;
        let mut seen = vec![];
        for value in model {
            let element = at.value(heap)?;
            let rank = heap.world().rank_of(element.address);
            let bytes = load(heap, element)?;
            must(bytes == value.bytes && rank == Some(value.rank), || {
                format!("list {i} has {bytes:.20?} of rank {rank:?} in place of {value:.20?}")
            })?;
            seen.push(at);
            at = at.next(heap)?;
        }
        must(at == list.end(), || format!("list {i} goes on"))?;
        must(at.next(heap).is_err_and(|error| error.is_refused()), || format!("list {i} goes on behind its end"))?;
        must(at.value(heap).is_err_and(|error| error.is_refused()), || format!("list {i} has something at its end"))?;
        for before in seen.iter().rev() {
            at = at.previous(heap)?;
            must(at == *before, || format!("list {i} has other elements from behind"))?;
        }
        must(at.previous(heap).is_err_and(|error| error.is_refused()), || format!("list {i} begins before it begins"))?;
    }
    Ok(())
}

/// A range of the elements; now and then one that ends before it begins.
fn range(random: &mut Rng, len: usize) -> Range<usize> {
    let (a, b) = (random.usize(..=len), random.usize(..=len));
    if random.u32(..10) == 0 { a..b } else { a.min(b)..a.max(b) }
}

fn draw(random: &mut Rng, sources: &Sources<'_>, model: &[Vec<Value>], at: usize, ranks: u32) -> Act {
    let len = model[at].len();
    let index = random.usize(..=len);
    let other = random.usize(..model.len());
    let theirs = model[other].len();
    let rank = random.u32(..ranks);
    let kind = random.u32(..100);
    // It stays within bounds by shrinking when it has grown.
    let kind = if len > MOST { 46 + kind % 15 } else { kind };
    let value = |random: &mut Rng| {
        let bytes = (0..random.usize(..3)).map(|_| random.u8(..3)).collect();
        Value { bytes, rank }
    };
    match kind {
        0..=7 => Act::PushBack(value(random)),
        8..=15 => Act::PushFront(value(random)),
        16..=25 => Act::Insert(index, value(random), None),
        26..=29 => {
            // Long ones are rare, and of sizes that are compared in one part or in several.
            let len = if random.u32(..20) == 0 { 300 << 10 } else { random.usize(..200) };
            let (address, bytes) = sources.draw(random, len);
            Act::Insert(index, Value { bytes, rank }, Some(address))
        }
        30..=33 if theirs + len < MOST => Act::InsertRange(index, other, range(random, theirs)),
        34..=36 => Act::Assign(other),
        37..=39 => Act::AssignRange(other, range(random, theirs)),
        40..=45 => Act::Sort,
        46..=49 => Act::PopBack,
        50..=53 => Act::PopFront,
        54..=58 => Act::Erase(index),
        59..=60 => Act::EraseRange(range(random, len)),
        61..=64 if len > 0 => {
            let index = random.usize(..len);
            Act::Remove(model[at][index].bytes.clone(), random.bool().then_some(index))
        }
        65..=69 => Act::Unique,
        70..=73 => Act::Reverse,
        74..=77 => Act::Merge(other),
        78..=87 => Act::Splice(index, other, random.usize(..=theirs)),
        88..=95 => Act::SpliceRange(index, other, range(random, theirs)),
        96..=98 => Act::Swap(other),
        _ => Act::Clear,
    }
}

/// The position with this index.
fn cursor(heap: &Heap<'_>, list: List, index: usize) -> Result<Cursor> {
    let at = list.begin(heap)?.advance(heap, index as i64)?;
    // From behind it is the same.
    let back = list.len(heap)? - index;
    must(list.end().advance(heap, -(back as i64))? == at, || format!("there are two elements {index}"))?;
    Ok(at)
}

fn carry_out(heap: &Heap<'_>, act: &Act, lists: &[List], at: usize) -> Result<()> {
    let list = lists[at];
    let here = |value: &Value, what: &dyn Fn(Source<'_>) -> Result<Cursor>| -> Result<()> {
        let made = what(Source::Here(&value.bytes))?;
        must(load(heap, made.value(heap)?)? == value.bytes, || "another element than was inserted".into())
    };
    let bounds = |of: usize, range: &Range<usize>| -> Result<[Cursor; 2]> {
        Ok([cursor(heap, lists[of], range.start)?, cursor(heap, lists[of], range.end)?])
    };
    let compared = |one: Element, other: Element| {
        let values = [load(heap, one), load(heap, other)];
        let [Ok(one), Ok(other)] = values else { return Ordering::Equal };
        order(&one, &other)
    };
    match act {
        Act::Insert(index, value, None) => {
            let before = cursor(heap, list, *index)?;
            here(value, &|source| list.insert(heap, before, source, value.rank))
        }
        Act::Insert(index, value, Some(address)) => {
            let before = cursor(heap, list, *index)?;
            let made = list.insert(heap, before, Source::At(*address, value.bytes.len()), value.rank)?;
            must(made.distance(heap, before)? == 1, || "it is inserted elsewhere".into())
        }
        Act::PushBack(value) => here(value, &|source| list.push_back(heap, source, value.rank)),
        Act::PushFront(value) => here(value, &|source| list.push_front(heap, source, value.rank)),
        Act::PopBack => list.pop_back(heap).map(drop),
        Act::PopFront => list.pop_front(heap).map(drop),
        Act::Erase(index) => {
            let one = cursor(heap, list, *index)?;
            let next = if one.is_end() { one } else { one.next(heap)? };
            must(list.erase(heap, one)? == next, || "another element follows".into())
        }
        Act::EraseRange(range) => {
            let [first, end] = bounds(at, range)?;
            must(list.erase_range(heap, first, end)? == end, || "another element follows".into())
        }
        Act::InsertRange(index, other, range) => {
            let before = cursor(heap, list, *index)?;
            let [first, end] = bounds(*other, range)?;
            let made = list.insert_range(heap, before, first, end)?;
            must(made.distance(heap, before)? == range.len(), || "another number of elements is inserted".into())
        }
        Act::Assign(other) => list.assign(heap, lists[*other]),
        Act::AssignRange(other, range) => {
            let [first, end] = bounds(*other, range)?;
            list.assign_range(heap, first, end)
        }
        Act::Remove(bytes, index) => {
            let value = match index {
                // Its own bytes, which are erased too.
                Some(index) => cursor(heap, list, *index)?.value(heap)?,
                None => {
                    let region = heap.world().region(bytes.len().max(1), 0)?;
                    heap.world().write(region.at(0), bytes)?;
                    let address = region.at::<u8>(0).address();
                    return list.remove(heap, Element { address, size: bytes.len() }).map(drop);
                }
            };
            list.remove(heap, value).map(drop)
        }
        Act::Unique => list.unique(heap).map(drop),
        Act::Reverse => list.reverse(heap),
        Act::Sort => list.sort(heap, compared),
        Act::Merge(other) => {
            if at != *other {
                list.sort(heap, compared)?;
                lists[*other].sort(heap, compared)?;
            }
            list.merge(heap, lists[*other], compared)
        }
        Act::Splice(index, other, which) => {
            let [before, one] = [cursor(heap, list, *index)?, cursor(heap, lists[*other], *which)?];
            list.splice(heap, before, one)
        }
        Act::SpliceRange(index, other, range) => {
            let before = cursor(heap, list, *index)?;
            let [first, end] = bounds(*other, range)?;
            list.splice_range(heap, before, first, end)
        }
        Act::Swap(other) => list.swap(heap, lists[*other]),
        Act::Clear => list.clear(heap),
    }
}

/// Does it to the model; false if it is to be refused.
fn apply(act: &Act, model: &mut [Vec<Value>], at: usize) -> bool {
    let range_of = |of: usize, range: &Range<usize>, model: &[Vec<Value>]| Some(model[of].get(range.clone())?.to_vec());
    match act {
        Act::Insert(index, value, _) => model[at].insert(*index, value.clone()),
        Act::PushBack(value) => model[at].push(value.clone()),
        Act::PushFront(value) => model[at].insert(0, value.clone()),
        Act::PopBack => drop(model[at].pop()),
        Act::PopFront => drop(model[at].drain(..model[at].len().min(1))),
        Act::Erase(index) if *index == model[at].len() => return false,
        Act::Erase(index) => drop(model[at].remove(*index)),
        Act::EraseRange(range) if range.start > range.end => return false,
        Act::EraseRange(range) => drop(model[at].drain(range.clone())),
        Act::InsertRange(index, other, range) => match range_of(*other, range, model) {
            Some(values) => drop(model[at].splice(index..index, values)),
            None => return false,
        },
        Act::Assign(other) => model[at] = model[*other].clone(),
        Act::AssignRange(other, range) => match range_of(*other, range, model) {
            Some(values) => model[at] = values,
            None => return false,
        },
        Act::Remove(bytes, _) => model[at].retain(|value| value.bytes != *bytes),
        Act::Unique => model[at].dedup_by(|one, other| one.bytes == other.bytes),
        Act::Reverse => model[at].reverse(),
        Act::Sort => model[at].sort_by(|one, other| order(&one.bytes, &other.bytes)),
        Act::Merge(other) => {
            if at == *other {
                return true;
            }
            let mut theirs = std::mem::take(&mut model[*other]);
            theirs.sort_by(|one, other| order(&one.bytes, &other.bytes));
            model[at].extend(theirs);
            model[at].sort_by(|one, other| order(&one.bytes, &other.bytes));
        }
        Act::Splice(_, other, which) if *which == model[*other].len() => return false,
        Act::Splice(index, other, which) => {
            let one = model[*other].remove(*which);
            let index = if at == *other && which < index { index - 1 } else { *index };
            model[at].insert(index, one);
        }
        Act::SpliceRange(index, other, range) => {
            if range.start > range.end || (at == *other && range.start < *index && *index < range.end) {
                return false;
            }
            let moved: Vec<Value> = model[*other].drain(range.clone()).collect();
            let index = if at == *other && *index >= range.end { index - moved.len() } else { *index };
            model[at].splice(index..index, moved);
        }
        Act::Swap(other) => model.swap(at, *other),
        Act::Clear => model[at].clear(),
    }
    true
}
