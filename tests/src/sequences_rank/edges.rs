//! What random programs seldom come to: bytes of a container's own block in another order than they have in it, and large moves whose
//! source is overwritten behind them.

use vervain_acp::{GlobalAddress, Result};
use vervain_acp_containers::{Deque, GList, Source, Vector};
use vervain_acp_heap::Heap;

use super::must;

/// Rank 0, with containers at all ranks.
pub fn run(heap: &Heap<'_>) -> Result<()> {
    if heap.world().rank() == 0 {
        for rank in 0..heap.world().size() {
            across_the_beginning(heap, rank)?;
            outside_of_the_bytes(heap, rank)?;
            large_moves(heap, rank)?;
            many_elements(heap, rank)?;
        }
    }
    heap.world().sync()
}

/// All of a deque, whose block begins in the midst of it.
fn across_the_beginning(heap: &Heap<'_>, rank: u32) -> Result<()> {
    for at in [0, 30, 64] {
        let deque = Deque::create(heap, 64, rank)?;
        let bytes: Vec<u8> = (0..64).collect();
        deque.push_back(heap, Source::Here(&bytes[20..]))?;
        deque.push_front(heap, Source::Here(&bytes[..20]))?;
        let [first, second] = deque.extents(heap, 0, 64)?;
        must((first.size, second.size) == (20, 44), || format!("parts of {} and {}", first.size, second.size))?;
        deque.insert(heap, at, Source::At(second.address, 64))?;
        let block = [&bytes[20..], &bytes[..20]].concat();
        let expected = [&bytes[..at], &block, &bytes[at..]].concat();
        let mut seen = vec![0; deque.len(heap)?];
        deque.read(heap, 0, &mut seen)?;
        must(seen == expected, || format!("insertion at {at} makes {seen:?}"))?;
        deque.destroy(heap)?;
    }
    Ok(())
}

/// Sources in a container's block that are not of its bytes are refused.
fn outside_of_the_bytes(heap: &Heap<'_>, rank: u32) -> Result<()> {
    let (vector, deque) = (Vector::create(heap, 100, rank)?, Deque::create(heap, 64, rank)?);
    deque.push_back(heap, Source::Here(&[1; 40]))?;
    deque.pop_front(heap, 10)?;
    let (data, block) = (vector.at(heap, 0)?, GlobalAddress(deque.at(heap, 0)?.0 - 10));
    for (from, len) in [(data.add(96), 8), (GlobalAddress(data.0 - 8), 16), (data.add(50), 1000), (data.add(100), 1)] {
        let error = vector.push_back(heap, Source::At(from, len)).err();
        must(error.is_some_and(|error| error.is_refused()), || format!("{len} B at {from} of a vector at {data}"))?;
    }
    for (from, len) in
        [(block, 64), (block, 11), (block.add(39), 2), (block.add(60), 1), (GlobalAddress(block.0 - 1), 60)]
    {
        let error = deque.push_back(heap, Source::At(from, len)).err();
        must(error.is_some_and(|error| error.is_refused()), || format!("{len} B at {from} of a deque at {block}"))?;
    }
    must(vector.len(heap)? == 100 && deque.len(heap)? == 30, || "they have changed".into())?;
    vector.destroy(heap)?;
    deque.destroy(heap)
}

/// As many bytes as move come to where those were, at once by this rank, while another one moves them.
fn large_moves(heap: &Heap<'_>, rank: u32) -> Result<()> {
    const LEN: usize = 1 << 20;
    let vector = Vector::create(heap, LEN, rank)?;
    vector.reserve(heap, 3 * LEN)?;
    let source = heap.world().region(LEN, 0)?;
    for i in 0..10 {
        let old = vec![2 * i; LEN];
        vector.write(heap, 0, &old)?;
        let new = vec![2 * i + 1; LEN];
        heap.world().write(source.at(0), &new)?;
        let here = if i % 2 == 0 { Source::Here(&new) } else { Source::At(source.at::<u8>(0).address(), LEN) };
        vector.insert(heap, 0, here)?;
        let mut seen = vec![0; 2 * LEN];
        vector.read(heap, 0, &mut seen)?;
        let differs = seen.iter().zip(new.iter().chain(&old)).position(|(one, other)| one != other);
        must(differs.is_none(), || format!("turn {i}: another byte at {differs:?}"))?;
        vector.erase(heap, 0..LEN)?;
        vector.read(heap, 0, &mut seen[..LEN])?;
        must(seen[..LEN] == old, || format!("turn {i}: other bytes after erasure"))?;
    }
    vector.destroy(heap)
}

/// More elements than accesses are outstanding at a time.
fn many_elements(heap: &Heap<'_>, rank: u32) -> Result<()> {
    const COUNT: u32 = 2300;
    let (list, other) = (GList::<u32>::create(heap, rank)?, GList::<u32>::create(heap, rank)?);
    let has = |list: &GList<'_, '_, u32>, what: &str, values: &mut dyn Iterator<Item = u32>| -> Result<()> {
        let (seen, values) = (list.iter()?.collect::<Result<Vec<u32>>>()?, values.collect::<Vec<_>>());
        must(seen == values && list.len()? == values.len(), || format!("{what}: other values than {}", values.len()))
    };
    for i in 0..COUNT {
        list.push_back(i / 2, rank)?;
    }
    list.bytes().reverse(heap)?;
    has(&list, "reversed", &mut (0..COUNT).rev().map(|i| i / 2))?;
    list.sort_by(Ord::cmp)?;
    has(&list, "sorted", &mut (0..COUNT).map(|i| i / 2))?;
    other.bytes().assign(heap, list.bytes())?;
    must(list.bytes().unique(heap)? == COUNT as usize / 2, || "another number was not unique".into())?;
    has(&list, "unique", &mut (0..COUNT / 2))?;
    let (first, end) = (list.bytes().begin(heap)?, list.bytes().end());
    list.bytes().insert_range(heap, end, first, end)?;
    has(&list, "twice", &mut (0..COUNT / 2).chain(0..COUNT / 2))?;
    list.bytes().erase_range(heap, first, end)?;
    has(&list, "erased", &mut std::iter::empty())?;
    list.bytes().splice_range(heap, end, other.bytes().begin(heap)?, other.bytes().end())?;
    has(&list, "moved", &mut (0..COUNT).map(|i| i / 2))?;
    list.destroy()?;
    other.destroy()
}
