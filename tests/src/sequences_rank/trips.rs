//! How many round trips operations on another rank's containers take, and how long.

use std::cmp::Ordering;
use std::time::Instant;

use vervain_acp::{Order, Result};
use vervain_acp_containers::{Deque, Element, List, Source, Vector};
use vervain_acp_heap::Heap;

use super::must;

/// Counts the round trips of `what`, which must be as many.
fn takes(heap: &Heap<'_>, trips: u64, name: &str, what: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = heap.world().round_trips();
    what()?;
    let took = heap.world().round_trips() - before;
    must(took == trips, || format!("{name} takes {took} round trips, not {trips}"))
}

/// As [`takes`], of what also allocates or frees blocks: the fewest of several tries, less the fewest that the heap takes for the
/// same, whose way differs now and then.
fn takes_besides(
    heap: &Heap<'_>,
    trips: u64,
    name: &str,
    heaps: impl Fn() -> Result<()>,
    what: impl Fn() -> Result<()>,
) -> Result<()> {
    let fewest = |what: &dyn Fn() -> Result<()>| -> Result<u64> {
        let mut fewest = u64::MAX;
        for _ in 0..10 {
            let before = heap.world().round_trips();
            what()?;
            fewest = fewest.min(heap.world().round_trips() - before);
        }
        Ok(fewest)
    };
    let (own, all) = (fewest(&heaps)?, fewest(&what)?);
    must(all == own + trips, || format!("{name} takes {all} round trips, not {trips} and {own} of the heap"))
}

/// Rank 0 counts, of containers of the next rank, with elements of the one after that.
pub fn run(heap: &Heap<'_>) -> Result<()> {
    let world = heap.world();
    if world.rank() == 0 {
        bytes(heap)?;
        lists(heap)?;
    }
    world.sync()
}

fn bytes(heap: &Heap<'_>) -> Result<()> {
    let world = heap.world();
    let far = 1 % world.size();
    let source = world.region(1 << 20, 0)?;
    let at = |len| Source::At(source.at::<u8>(0).address(), len);
    let vector = Vector::create(heap, 4096, far)?;
    let other = Vector::create(heap, 64, far)?;
    let deque = Deque::create(heap, 8192, far)?;
    let block = |len| {
        move || -> Result<()> {
            if let Some(block) = heap.allocate(len, far)? {
                heap.free(block)?;
            }
            Ok(())
        }
    };
    let (alike, pair) = (block(48), || block(48)().and_then(|()| block(48)()));
    takes_besides(heap, 3, "making and destroying a vector", pair, || Vector::create(heap, 48, far)?.destroy(heap))?;
    takes_besides(heap, 3, "making and destroying a deque", pair, || Deque::create(heap, 48, far)?.destroy(heap))?;
    takes_besides(heap, 3, "the same of one without room", alike, || Vector::create(heap, 0, far)?.destroy(heap))?;
    vector.reserve(heap, 2 << 20)?;
    takes(heap, 1, "the size of a vector", || vector.len(heap).map(drop))?;
    takes(heap, 1, "its capacity", || vector.capacity(heap).map(drop))?;
    takes(heap, 1, "where a byte lies", || vector.at(heap, 5).map(drop))?;
    takes(heap, 1, "room that there is", || vector.reserve(heap, 1 << 20))?;
    takes(heap, 2, "push_back of a vector", || vector.push_back(heap, at(8)))?;
    takes(heap, 2, "the same of bytes of the program", || vector.push_back(heap, Source::Here(&[1; 100])))?;
    takes(heap, 2, "pop_back of a vector", || vector.pop_back(heap, 108))?;
    takes(heap, 3, "insertion into a vector", || vector.insert(heap, 100, at(8)))?;
    takes(heap, 3, "insertion of its own bytes", || vector.insert_range(heap, 100, vector, 90..110))?;
    takes(heap, 3, "erasure in a vector", || vector.erase(heap, 100..128))?;
    takes(heap, 2, "erasure of all behind", || vector.erase(heap, 4000..4096))?;
    takes(heap, 2, "assignment", || other.assign_range(heap, vector, 0..60))?;
    takes(heap, 3, "assignment of its own bytes", || vector.assign_range(heap, vector, 10..3000))?;
    takes(heap, 2, "exchange", || vector.swap(heap, other))?;
    takes(heap, 2, "exchange", || other.swap(heap, vector))?;
    takes(heap, 2, "reading", || vector.read(heap, 0, &mut [0; 500]))?;
    takes(heap, 2, "writing", || vector.write(heap, 0, &[0; 500]))?;
    // 1 MiB that moves by 8: four parts of 256 KiB.
    takes(heap, 2, "push_back of 1 MiB", || vector.push_back(heap, at((1 << 20) - 2990)))?;
    takes(heap, 2 + 4, "insertion before 1 MiB", || vector.insert(heap, 0, at(8)))?;
    takes(heap, 2 + 4, "erasure before 1 MiB", || vector.erase(heap, 0..8))?;
    takes(heap, 2, "insertion of as much as moves", || vector.insert(heap, 0, at(1 << 20)))?;
    takes(heap, 2, "clear", || vector.clear(heap))?;
    takes(heap, 2, "push_back of a deque", || deque.push_back(heap, at(4000)))?;
    takes(heap, 2, "push_front of a deque", || deque.push_front(heap, at(8)))?;
    takes(heap, 1, "where its bytes lie", || deque.extents(heap, 0, 4008).map(drop))?;
    takes(heap, 3, "insertion near its front", || deque.insert(heap, 100, at(8)))?;
    takes(heap, 3, "insertion near its end", || deque.insert(heap, 3900, at(8)))?;
    takes(heap, 3, "erasure near its front", || deque.erase(heap, 100..108))?;
    takes(heap, 2, "pop_front of a deque", || deque.pop_front(heap, 8))?;
    takes(heap, 2, "pop_back of a deque", || deque.pop_back(heap, 8))?;
    takes(heap, 2, "assignment of its own bytes", || deque.assign_range(heap, deque, 10..3000))?;
    takes(heap, 2, "push_back across the end", || deque.push_back(heap, at(5000)))?;
    vector.destroy(heap)?;
    other.destroy(heap)?;
    deque.destroy(heap)
}

fn lists(heap: &Heap<'_>) -> Result<()> {
    const COUNT: u64 = 10;
    let world = heap.world();
    let (far, further) = (1 % world.size(), 2 % world.size());
    let (list, other) = (List::create(heap, far)?, List::create(heap, far)?);
    let value = Source::Here(&[3; 16]);
    let blocks = |count: u64| {
        move || -> Result<()> {
            let mut blocks = vec![];
            for _ in 0..count {
                blocks.extend(heap.allocate(48, further)?);
            }
            blocks.into_iter().try_for_each(|block| heap.free(block))
        }
    };
    takes_besides(heap, 2 + 3, "push_back and pop_back", blocks(1), || {
        list.push_back(heap, value, further)?;
        list.pop_back(heap).map(drop)
    })?;
    takes_besides(heap, 2 + 3, "push_front and pop_front", blocks(1), || {
        list.push_front(heap, value, further)?;
        list.pop_front(heap).map(drop)
    })?;
    takes_besides(heap, 2 + 2, "insertion and erasure", blocks(1), || {
        let made = list.insert(heap, list.end(), value, further)?;
        list.erase(heap, made).map(drop)
    })?;
    let fill = |list: List| {
        (0..COUNT as u8).try_for_each(|i| list.push_back(heap, Source::Here(&[i % 3; 16]), further).map(drop))
    };
    takes_besides(heap, 2 * COUNT + COUNT + 2, "filling and clear", blocks(COUNT), || {
        fill(list)?;
        list.clear(heap)
    })?;
    fill(list)?;
    fill(other)?;
    let same = |_: Element, _: Element| Ordering::Equal;
    takes(heap, 1, "the number of elements", || list.len(heap).map(drop))?;
    takes(heap, 1, "begin", || list.begin(heap).map(drop))?;
    takes(heap, 0, "end", || list.end().is_end().then_some(()).ok_or_else(|| super::wrong("no end")))?;
    let begin = list.begin(heap)?;
    takes(heap, 1, "the next position", || begin.next(heap).map(drop))?;
    takes(heap, 1, "the position before", || list.end().previous(heap).map(drop))?;
    takes(heap, 4, "four positions further", || begin.advance(heap, 4).map(drop))?;
    takes(heap, COUNT + 1, "a distance", || begin.distance(heap, list.end()).map(drop))?;
    takes(heap, 1, "where an element lies", || begin.value(heap).map(drop))?;
    takes(heap, COUNT + 1, "where all lie", || list.elements(heap).map(drop))?;
    takes(heap, COUNT + 2, "reverse", || list.reverse(heap))?;
    takes(heap, COUNT + 2, "sort", || list.sort(heap, same))?;
    takes(heap, 2, "exchange", || list.swap(heap, other))?;
    let [one, two] = [list.begin(heap)?, other.begin(heap)?];
    takes(heap, 2, "splice", || list.splice(heap, one, two))?;
    let (first, end) = (other.begin(heap)?, other.end());
    takes(heap, COUNT - 1 + 3, "splice of a range", || list.splice_range(heap, one, first, end))?;
    let (first, end) = (list.begin(heap)?, list.end());
    takes(heap, 2 * COUNT + 3, "splice of a range back", || other.splice_range(heap, other.end(), first, end))?;
    takes(heap, 2 * COUNT + 3, "merge", || list.merge(heap, other, same))?;
    let absent = world.region(16, 0)?;
    world.write(absent.at(0), &[77u8; 16])?;
    let absent = Element { address: absent.at::<u8>(0).address(), size: 16 };
    takes(heap, 2 * COUNT + 2, "remove of what is not there", || list.remove(heap, absent).map(drop))?;
    takes(heap, 2 * COUNT + 1, "remove of a size that none has", || {
        list.remove(heap, Element { size: 15, ..absent }).map(drop)
    })?;
    // Ten that differ, and one more.
    list.clear(heap)?;
    (0..COUNT as u8).try_for_each(|i| list.push_back(heap, Source::Here(&[i; 16]), further).map(drop))?;
    takes_besides(heap, 2 + COUNT + 4, "push_front and unique", blocks(1), || {
        list.push_front(heap, Source::Here(&[0; 16]), further)?;
        must(list.unique(heap)? == 1, || "not one is erased".into())
    })?;
    takes_besides(heap, 2 + COUNT + 4, "push_front and remove", blocks(1), || {
        let made = list.push_front(heap, Source::Here(&[77; 16]), further)?;
        let element = Element { address: made.element.add(24), size: 16 };
        must(list.remove(heap, element)? == 1, || "not one is erased".into())
    })?;
    takes_besides(heap, 1 + COUNT + 3 + COUNT + 2, "copies of a range and their erasure", blocks(COUNT), || {
        let made = other.insert_range(heap, other.end(), list.begin(heap)?, list.end())?;
        other.erase_range(heap, made, other.end()).map(drop)
    })?;
    takes_besides(heap, COUNT + 3 + COUNT + 2, "assignment and clear", blocks(COUNT), || {
        other.assign(heap, list)?;
        other.clear(heap)
    })?;
    list.destroy(heap)?;
    other.destroy(heap)
}

/// How long operations take between ranks 0 and 1: the best of ten blocks.
pub fn times(heap: &Heap<'_>, count: u64) -> Result<()> {
    let world = heap.world();
    if world.rank() == 0 {
        let far = 1 % world.size();
        let source = world.region(4096, 0)?;
        let source = |len| Source::At(source.at::<u8>(0).address(), len);
        let time = |name: &str, what: &mut dyn FnMut() -> Result<()>| -> Result<()> {
            let mut best = f64::MAX;
            for _ in 0..10 {
                let began = Instant::now();
                (0..count).try_for_each(|_| what())?;
                best = best.min(began.elapsed().as_secs_f64() * 1e6 / count as f64);
            }
            println!("{name}: {best:.2} us");
            Ok(())
        };
        let vector = Vector::create(heap, 0, far)?;
        vector.reserve(heap, 10 * count as usize * 8)?;
        time("vector push_back 8 B", &mut || vector.push_back(heap, source(8)))?;
        time("vector pop_back 8 B", &mut || vector.pop_back(heap, 8))?;
        vector.push_back(heap, source(4096))?;
        time("vector at", &mut || vector.at(heap, 8).map(drop))?;
        time("vector insert and erase 8 B before 4 KiB", &mut || {
            vector.insert(heap, 0, source(8))?;
            vector.erase(heap, 0..8)
        })?;
        let deque = Deque::create(heap, 4096, far)?;
        time("deque push_front and pop_back 8 B", &mut || {
            deque.push_front(heap, source(8))?;
            deque.pop_back(heap, 8)
        })?;
        let list = List::create(heap, far)?;
        time("list push_back and pop_front 8 B", &mut || {
            list.push_back(heap, source(8), far)?;
            list.pop_front(heap).map(drop)
        })?;
        for i in 0..100 {
            list.push_back(heap, Source::Here(&[i * 37 % 100; 8]), far)?;
        }
        time("list sort of 100, by a get for each comparison's two", &mut || {
            list.sort(heap, |one, other| {
                let mut batch = world.batch();
                let places = [one, other].map(|element| batch.get(element.address, 8, Order::Now));
                let ([Ok(one), Ok(other)], Ok(())) = (places, batch.wait()) else { return Ordering::Equal };
                batch.word(one, 0).cmp(&batch.word(other, 0))
            })?;
            list.reverse(heap)
        })?;
    }
    world.sync()
}
