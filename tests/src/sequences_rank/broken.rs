//! What a rank finds in the place of a container when others have written there is an error, and nothing else comes of it.

use vervain_acp::{Batch, GlobalAddress, Order, Result};
use vervain_acp_containers::{Deque, List, Source, Vector};
use vervain_acp_heap::Heap;

use super::must;

/// Rank 0 makes containers at the last rank and writes over their words.
pub fn run(heap: &Heap<'_>) -> Result<()> {
    let world = heap.world();
    if world.rank() == 0 {
        let rank = world.size() - 1;
        nothing(heap)?;
        headers(heap, rank)?;
        lists(heap, rank)?;
    }
    world.sync()
}

/// An address of a rank where nothing is registered: the job is broken, also for what comes after. Of 4 ranks.
pub fn nowhere(heap: &Heap<'_>) -> Result<()> {
    let world = heap.world();
    if world.rank() == 0 {
        let starter = world.starter_of::<u64>(1).ok_or_else(|| super::wrong("no starter memory"))?.address();
        all_say([Vector::new(starter).len(heap).err(), List::new(starter).clear(heap).err()], "zero")?;
        // The last region of the last rank.
        for i in 0..3 {
            let error = Vector::new(GlobalAddress(!7)).destroy(heap).err();
            let error = error.filter(|error| error.to_string().contains("nothing is registered there"));
            must(error.is_some_and(|error| !error.is_refused()), || format!("turn {i}: nothing is wrong"))?;
        }
        return Err(super::wrong("it is found three times"));
    }
    world.sync()
}

/// Null, and no rank.
fn nothing(heap: &Heap<'_>) -> Result<()> {
    // A small number has no key of a region in it.
    for address in [GlobalAddress::NULL, GlobalAddress(4096)] {
        let (vector, deque, list) = (Vector::new(address), Deque::new(address), List::new(address));
        let refused = [
            vector.len(heap).err(),
            vector.destroy(heap).err(),
            vector.push_back(heap, Source::Here(&[1])).err(),
            deque.extents(heap, 0, 1).err(),
            list.len(heap).err(),
            list.push_back(heap, Source::Here(&[1]), 0).err(),
            list.sort(heap, |_, _| std::cmp::Ordering::Equal).err(),
            list.end().previous(heap).err(),
        ];
        for (i, error) in refused.into_iter().enumerate() {
            must(error.is_some_and(|error| error.is_refused()), || format!("{address}, case {i}"))?;
        }
    }
    for rank in [heap.world().size(), u32::MAX] {
        let made =
            [Vector::create(heap, 8, rank).err(), Deque::create(heap, 8, rank).err(), List::create(heap, rank).err()];
        must(made.into_iter().all(|error| error.is_some_and(|error| error.is_refused())), || format!("rank {rank}"))?;
    }
    for size in [usize::MAX, (1 << 47) + 1] {
        let made = [Vector::create(heap, size, 0).err(), Deque::create(heap, size, 0).err()];
        must(made.into_iter().all(|error| error.is_some_and(|error| error.is_refused())), || format!("{size} B"))?;
    }
    // A source that is none leaves all as it was.
    let vector = Vector::create(heap, 8, 0)?;
    for (address, len) in [(GlobalAddress::NULL, 8), (vector.at(heap, 0)?, 9), (vector.at(heap, 0)?, usize::MAX)] {
        for at in [0, 8] {
            let error = vector.insert(heap, at, Source::At(address, len)).err();
            must(error.is_some_and(|error| error.is_refused()), || format!("{len} B at {address}"))?;
        }
    }
    must(vector.len(heap)? == 8, || "it has grown".into())?;
    vector.destroy(heap)
}

/// Puts a word in the place of another for the time of `look`.
fn with(heap: &Heap<'_>, at: GlobalAddress, word: u64, look: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut batch: Batch<'_> = heap.world().batch();
    let old = batch.get(at, 8, Order::Now)?;
    batch.put_words(at, &[word], Order::All)?;
    batch.wait()?;
    look()?;
    let old = batch.word(old, 0);
    batch.put_words(at, &[old], Order::Now)?;
    batch.wait()
}

/// All that can be called says that the job is broken.
fn all_say(errors: impl IntoIterator<Item = Option<vervain_acp::Error>>, what: &str) -> Result<()> {
    for (i, error) in errors.into_iter().enumerate() {
        let is_broken = error.as_ref().is_some_and(|error| !error.is_refused() && error.to_string().starts_with("the"));
        must(is_broken, || format!("{what}, function {i}: {error:?}"))?;
    }
    Ok(())
}

fn headers(heap: &Heap<'_>, rank: u32) -> Result<()> {
    let (vector, deque) = (Vector::create(heap, 100, rank)?, Deque::create(heap, 104, rank)?);
    deque.push_back(heap, Source::Here(&[5; 100]))?;
    let addresses = vec![0, 1, u64::MAX];
    let starts = vec![104, 1 << 40, u64::MAX];
    let sizes = vec![105, 1 << 47, u64::MAX];
    let capacities = vec![0, 96, 99, 105, 1 << 48, u64::MAX, u64::MAX - 7];
    let blocks = vec![0, 96, 103, 105, 1 << 48, u64::MAX, u64::MAX - 7];
    let kinds = vec![0, 1, u64::MAX];
    let of_vector = [&addresses, &sizes, &capacities, &blocks, &kinds];
    let of_deque = [&addresses, &starts, &sizes, &capacities, &blocks, &kinds];
    for (word, values) in (0..).zip(of_vector) {
        for &value in values {
            let what = format!("word {word} of a vector is {value:#x}");
            with(heap, vector.address().add(8 * word), value, || {
                let errors = [
                    vector.len(heap).err(),
                    vector.at(heap, 0).err(),
                    vector.push_back(heap, Source::Here(&[1; 50])).err(),
                    vector.pop_back(heap, 1).err(),
                    vector.insert(heap, 1, Source::Here(&[1])).err(),
                    vector.insert_range(heap, 1, vector, 0..2).err(),
                    vector.erase(heap, 0..1).err(),
                    vector.assign(heap, vector).err(),
                    vector.swap(heap, vector).err(),
                    vector.reserve(heap, 1000).err(),
                    vector.clear(heap).err(),
                    vector.read(heap, 0, &mut [0; 8]).err(),
                    vector.write(heap, 0, &[0; 8]).err(),
                    vector.destroy(heap).err(),
                ];
                all_say(errors, &what)
            })?;
        }
    }
    for (word, values) in (0..).zip(of_deque) {
        for &value in values {
            let what = format!("word {word} of a deque is {value:#x}");
            with(heap, deque.address().add(8 * word), value, || {
                let errors = [
                    deque.extents(heap, 0, 100).err(),
                    deque.push_front(heap, Source::Here(&[1; 50])).err(),
                    deque.pop_front(heap, 1).err(),
                    deque.destroy(heap).err(),
                ];
                all_say(errors, &what)
            })?;
        }
    }
    with(heap, vector.address().add(16), 101, || {
        all_say([vector.len(heap).err()], "a capacity that is not whole words")
    })?;
    // One is not the other.
    all_say(
        [
            Vector::new(deque.address()).len(heap).err(),
            Deque::new(vector.address()).len(heap).err(),
            List::new(vector.address()).len(heap).err(),
        ],
        "another kind",
    )?;
    must(vector.len(heap)? == 100 && deque.len(heap)? == 100, || "they have changed".into())?;
    vector.destroy(heap)?;
    deque.destroy(heap)
}

fn lists(heap: &Heap<'_>, rank: u32) -> Result<()> {
    let (list, other) = (List::create(heap, rank)?, List::create(heap, 0)?);
    let mut elements = vec![];
    for i in 0..5 {
        elements.push(list.push_back(heap, Source::Here(&[i; 3]), rank)?.element);
    }
    other.push_back(heap, Source::Here(&[1]), rank)?;
    let walks = || {
        vec![
            list.elements(heap).err(),
            list.clear(heap).err(),
            list.destroy(heap).err(),
            list.assign(heap, other).err(),
            other.assign(heap, list).err(),
            list.reverse(heap).err(),
            list.sort(heap, |_, _| std::cmp::Ordering::Equal).err(),
            list.merge(heap, other, |_, _| std::cmp::Ordering::Equal).err(),
            other.merge(heap, list, |_, _| std::cmp::Ordering::Equal).err(),
            list.unique(heap).err(),
        ]
    };
    let first = elements[0].0;
    // Words: next, before, size. A circle, back to the first or one element, a short cut, and nothing.
    for (word, values) in [
        (0, vec![first, elements[1].0, elements[2].0, elements[4].0, list.address().0, 0, 1]),
        (8, vec![elements[2].0, list.address().0, 0, 1]),
        (16, vec![1 << 48, u64::MAX]),
    ] {
        for value in values {
            with(heap, elements[2].add(word), value, || all_say(walks(), &format!("word {word} is {value:#x}")))?;
        }
    }
    // The header: first, last, number of elements, kind.
    for (word, values) in [
        (0, vec![list.address().0, elements[1].0, 0, 1]),
        (8, vec![list.address().0, elements[1].0, 0, 1]),
        (16, vec![0, 4, 6, 1 << 40, u64::MAX]),
        (24, vec![0, u64::MAX]),
    ] {
        for value in values {
            with(heap, list.address().add(word), value, || all_say(walks(), &format!("header {word} is {value:#x}")))?;
        }
    }
    with(heap, list.address().add(16), 0, || {
        all_say(
            [list.pop_back(heap).err(), list.pop_front(heap).err(), list.erase(heap, list.begin(heap)?).err()],
            "none",
        )
    })?;
    // A position of an element that was erased, and of another list.
    let gone = list.begin(heap)?;
    list.erase(heap, gone)?;
    all_say([gone.value(heap).err(), gone.next(heap).err(), list.erase(heap, gone).err()], "an element that is gone")?;
    let theirs = other.begin(heap)?;
    let refused = [
        list.erase(heap, theirs).err(),
        list.insert(heap, theirs, Source::Here(&[1]), 0).err(),
        list.splice(heap, theirs, theirs).err(),
        list.erase_range(heap, list.begin(heap)?, theirs).err(),
        list.begin(heap)?.distance(heap, theirs).err(),
    ];
    must(refused.into_iter().all(|error| error.is_some_and(|error| error.is_refused())), || "positions".into())?;
    must(list.len(heap)? == 4 && list.elements(heap)?.len() == 4, || "the list has changed".into())?;
    list.destroy(heap)?;
    other.destroy(heap)
}
