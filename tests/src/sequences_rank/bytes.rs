//! Random programs on vectors or deques against vectors of std. All ranks draw the same program and keep the same model; in each turn
//! one of them carries its part out, and another one compares.

use std::ops::Range;

use fastrand::Rng;
use vervain_acp::{GlobalAddress, Result};
use vervain_acp_containers::{Deque, Source, Vector};
use vervain_acp_heap::Heap;

use super::{Sources, must, shared, wrong};

const CONTAINERS: usize = 4;

/// What both kinds do.
pub trait Bytes: Copy + PartialEq {
    const IS_DEQUE: bool;
    fn make(heap: &Heap<'_>, size: usize, rank: u32) -> Result<Self>;
    fn of(address: GlobalAddress) -> Self;
    fn address(self) -> GlobalAddress;
    /// Where bytes lie, in at most two parts.
    fn lie(self, heap: &Heap<'_>, range: Range<usize>) -> Result<Vec<(GlobalAddress, usize)>>;
    fn push_front(self, heap: &Heap<'_>, source: Source<'_>) -> Result<()>;
    fn pop_front(self, heap: &Heap<'_>, count: usize) -> Result<()>;
    fn call(self, heap: &Heap<'_>, act: &Act, others: &[Self]) -> Result<()>;
    fn contents(self, heap: &Heap<'_>) -> Result<(Vec<u8>, usize)>;
    fn destroy(self, heap: &Heap<'_>) -> Result<()>;
}

/// What is drawn.
#[derive(Debug)]
pub enum Act {
    PushBack(From),
    PushFront(From),
    PopBack(usize),
    PopFront(usize),
    Insert(usize, From),
    InsertRange(usize, usize, Range<usize>),
    Erase(Range<usize>),
    Assign(usize),
    AssignRange(usize, Range<usize>),
    Swap(usize),
    Reserve(usize),
    Clear,
    Write(usize, Vec<u8>),
}

/// Where bytes come from.
#[derive(Debug)]
pub enum From {
    Here(Vec<u8>),
    Far(GlobalAddress, Vec<u8>),
    /// Of the container itself, where they lie in one part.
    Own(Range<usize>),
}

macro_rules! bytes {
    ($name:ident, $is_deque:literal, |$this:ident, $heap:ident, $source:ident, $count:ident| $push:expr, $pop:expr,
     |$lie_heap:ident, $range:ident| $lie:expr) => {
        impl Bytes for $name {
            const IS_DEQUE: bool = $is_deque;

            fn make(heap: &Heap<'_>, size: usize, rank: u32) -> Result<Self> {
                Self::create(heap, size, rank)
            }

            fn of(address: GlobalAddress) -> Self {
                Self::new(address)
            }

            fn address(self) -> GlobalAddress {
                $name::address(self)
            }

            fn lie(self, $lie_heap: &Heap<'_>, $range: Range<usize>) -> Result<Vec<(GlobalAddress, usize)>> {
                let $this = self;
                $lie
            }

            fn push_front(self, $heap: &Heap<'_>, $source: Source<'_>) -> Result<()> {
                let $this = self;
                $push
            }

            fn pop_front(self, $heap: &Heap<'_>, $count: usize) -> Result<()> {
                let $this = self;
                $pop
            }

            fn call(self, heap: &Heap<'_>, act: &Act, others: &[Self]) -> Result<()> {
                let with = |from: &From, what: &dyn Fn(Source<'_>) -> Result<()>| match from {
                    From::Here(bytes) => what(Source::Here(bytes)),
                    From::Far(address, bytes) => what(Source::At(*address, bytes.len())),
                    From::Own(range) => match self.lie(heap, range.clone())?[..] {
                        [(address, len)] if len == range.len() => what(Source::At(address, len)),
                        // In two parts, each of which is a source.
                        _ => {
                            let mut bytes = vec![0; range.len()];
                            self.read(heap, range.start, &mut bytes)?;
                            what(Source::Here(&bytes))
                        }
                    },
                };
                match act {
                    Act::PushBack(from) => with(from, &|source| self.push_back(heap, source)),
                    Act::PushFront(from) => with(from, &|source| Bytes::push_front(self, heap, source)),
                    Act::PopBack(count) => self.pop_back(heap, *count),
                    Act::PopFront(count) => Bytes::pop_front(self, heap, *count),
                    Act::Insert(at, from) => with(from, &|source| self.insert(heap, *at, source)),
                    Act::InsertRange(at, other, range) => self.insert_range(heap, *at, others[*other], range.clone()),
                    Act::Erase(range) => self.erase(heap, range.clone()),
                    Act::Assign(other) => self.assign(heap, others[*other]),
                    Act::AssignRange(other, range) => self.assign_range(heap, others[*other], range.clone()),
                    Act::Swap(other) => self.swap(heap, others[*other]),
                    Act::Reserve(capacity) => {
                        self.reserve(heap, *capacity)?;
                        let got = self.capacity(heap)?;
                        must(got >= *capacity && has_whole_words::<Self>(got), || {
                            format!("{got} B of room for {capacity}")
                        })
                    }
                    Act::Clear => self.clear(heap),
                    Act::Write(at, bytes) => self.write(heap, *at, bytes),
                }
            }

            fn contents(self, heap: &Heap<'_>) -> Result<(Vec<u8>, usize)> {
                let mut bytes = vec![0; self.len(heap)?];
                self.read(heap, 0, &mut bytes)?;
                must(self.is_empty(heap)? == bytes.is_empty(), || "is_empty and len differ".into())?;
                Ok((bytes, self.capacity(heap)?))
            }

            fn destroy(self, heap: &Heap<'_>) -> Result<()> {
                $name::destroy(self, heap)
            }
        }
    };
}

bytes!(
    Vector,
    false,
    |this, heap, source, count| this.insert(heap, 0, source),
    this.erase(heap, 0..count),
    |heap, range| Ok(vec![(this.at(heap, range.start)?, range.len())])
);
bytes!(
    Deque,
    true,
    |this, heap, source, count| this.push_front(heap, source),
    this.pop_front(heap, count),
    |heap, range| {
        let parts = this.extents(heap, range.start, range.len())?;
        must(parts[1].size > 0 || parts[1].address.is_null(), || "nothing lies somewhere".into())?;
        Ok(parts.into_iter().filter(|part| part.size > 0).map(|part| (part.address, part.size)).collect())
    }
);

/// A vector's capacity is a multiple of 8; a deque grows to the bytes that there are.
fn has_whole_words<C: Bytes>(capacity: usize) -> bool {
    C::IS_DEQUE || capacity.is_multiple_of(8)
}

/// `count` turns.
pub fn run<C: Bytes>(heap: &Heap<'_>, count: u64, seed: u64, long: bool) -> Result<()> {
    let world = heap.world();
    let mut random = Rng::with_seed(seed);
    let sources = Sources::new(world, if long { 800 << 10 } else { 16 << 10 })?;
    let sizes: Vec<usize> = (0..CONTAINERS).map(|_| random.usize(..100)).collect();
    let all = shared(
        world,
        || {
            let made = sizes.iter().enumerate().map(|(i, size)| {
                let made = C::make(heap, *size, (i as u32 + 1) % world.size())?;
                if !C::IS_DEQUE {
                    // What it has is not specified.
                    made.call(heap, &Act::Write(0, vec![i as u8; *size]), &[])?;
                }
                Ok(made.address())
            });
            made.collect()
        },
        CONTAINERS,
    )?;
    let all: Vec<C> = all.into_iter().map(C::of).collect();
    let mut model: Vec<Vec<u8>> =
        sizes.iter().enumerate().map(|(i, size)| vec![i as u8; if C::IS_DEQUE { 0 } else { *size }]).collect();
    for turn in 0..count {
        let (actor, observer) = (random.u32(..world.size()), random.u32(..world.size()));
        for _ in 0..random.u32(1..8) {
            let at = random.usize(..CONTAINERS);
            let act = draw(&mut random, &sources, &model, at, long);
            let allowed = apply(&act, &mut model, at);
            if actor == world.rank() {
                let done = all[at].call(heap, &act, &all);
                match (allowed, done) {
                    (true, Ok(())) => {}
                    (false, Err(error)) if error.is_refused() => {}
                    (_, done) => {
                        let size = model[at].len();
                        return Err(wrong(format!(
                            "turn {turn}, seed {seed}, {at} of {size} B: {act:.200?}: {done:?}"
                        )));
                    }
                }
            }
        }
        world.sync()?;
        if observer == world.rank() {
            compare(heap, &all, &model).map_err(|error| wrong(format!("turn {turn}, seed {seed}: {error}")))?;
        }
        world.sync()?;
    }
    if world.rank() == world.size() - 1 {
        all.iter().try_for_each(|container| container.destroy(heap))?;
        must(all[0].contents(heap).is_err_and(|error| !error.is_refused()), || {
            "one that was destroyed is there".into()
        })?;
    }
    world.sync()
}

fn compare<C: Bytes>(heap: &Heap<'_>, all: &[C], model: &[Vec<u8>]) -> Result<()> {
    for (i, (container, model)) in all.iter().zip(model).enumerate() {
        let (bytes, capacity) = container.contents(heap)?;
        let differs = bytes.iter().zip(model).position(|(a, b)| a != b);
        must(bytes.len() == model.len() && differs.is_none(), || {
            format!("container {i} has {} bytes of {}, and another one at {differs:?}", bytes.len(), model.len())
        })?;
        must(capacity >= bytes.len() && has_whole_words::<C>(capacity), || format!("a capacity of {capacity}"))?;
        if !model.is_empty() {
            let len: usize = container.lie(heap, 0..model.len())?.iter().map(|part| part.1).sum();
            must(len == model.len(), || format!("{len} bytes of {} lie somewhere", model.len()))?;
        }
        must(container.lie(heap, model.len()..model.len() + 1).is_err_and(|error| error.is_refused()), || {
            "there is a byte at the end".into()
        })?;
    }
    Ok(())
}

/// A range of the bytes; now and then one that is not.
fn range(random: &mut Rng, len: usize) -> Range<usize> {
    let a = random.usize(..=len);
    let b = random.usize(..=len);
    match random.u32(..30) {
        0 => a..len + 1 + random.usize(..10),
        #[expect(clippy::reversed_empty_ranges, reason = "it is to be refused")]
        1 => 5..2,
        _ => a.min(b)..a.max(b),
    }
}

fn draw(random: &mut Rng, sources: &Sources<'_>, model: &[Vec<u8>], at: usize, long: bool) -> Act {
    let len = model[at].len();
    let most = if long { 3 << 20 } else { 6000 };
    let count = match random.u32(..20) {
        0 => 0,
        1..=3 => random.usize(..sources.len),
        4..=6 => random.usize(..=sources.len / 10),
        _ => random.usize(..64),
    };
    let index = if random.u32(..30) == 0 { len + 1 + random.usize(..50) } else { random.usize(..=len) };
    let other = random.usize(..model.len());
    let from = |random: &mut Rng| match random.u32(..4) {
        0 => From::Here((0..count).map(|_| random.u8(..)).collect()),
        1 if len > 0 => {
            let start = random.usize(..len);
            From::Own(start..start + count.min(len - start))
        }
        _ => {
            let (address, bytes) = sources.draw(random, count);
            From::Far(address, bytes)
        }
    };
    let kind = random.u32(..100);
    // It stays within bounds by shrinking when it has grown.
    let kind = if len > most { 40 + kind % 30 } else { kind };
    match kind {
        0..=13 => Act::PushBack(from(random)),
        14..=27 => Act::PushFront(from(random)),
        28..=39 => Act::Insert(index, from(random)),
        40..=46 => Act::PopBack(if random.u32(..10) == 0 { len + 5 } else { random.usize(..=len) }),
        47..=53 => Act::PopFront(if random.u32(..10) == 0 { usize::MAX } else { random.usize(..=len) }),
        54..=67 => Act::Erase(range(random, len)),
        68..=69 => Act::Clear,
        70..=79 if model[other].len() + len < most => Act::InsertRange(index, other, range(random, model[other].len())),
        80..=82 => Act::Assign(other),
        83..=88 => Act::AssignRange(other, range(random, model[other].len())),
        89..=92 => Act::Swap(other),
        93..=94 => Act::Reserve(random.usize(..most)),
        _ => Act::Write(index, (0..count).map(|_| random.u8(..)).collect()),
    }
}

/// Does it to the model; false if it is to be refused.
fn apply(act: &Act, model: &mut [Vec<u8>], at: usize) -> bool {
    let own = model[at].clone();
    let bytes = |from: &From| match from {
        From::Here(bytes) | From::Far(_, bytes) => bytes.clone(),
        From::Own(range) => own[range.clone()].to_vec(),
    };
    let of =
        |other: usize, range: &Range<usize>, model: &[Vec<u8>]| model[other].get(range.clone()).map(<[u8]>::to_vec);
    let insert = |to: &mut Vec<u8>, at: usize, bytes: Vec<u8>| {
        let fits = at <= to.len();
        if fits {
            to.splice(at..at, bytes);
        }
        fits
    };
    match act {
        Act::PushBack(from) => model[at].extend(bytes(from)),
        Act::PushFront(from) => return insert(&mut model[at], 0, bytes(from)),
        Act::PopBack(count) => model[at].truncate(own.len().saturating_sub(*count)),
        Act::PopFront(count) => drop(model[at].drain(..own.len().min(*count))),
        Act::Insert(index, from) => return insert(&mut model[at], *index, bytes(from)),
        Act::InsertRange(index, other, range) => match of(*other, range, model) {
            Some(bytes) => return insert(&mut model[at], *index, bytes),
            None => return false,
        },
        Act::Erase(range) => {
            if range.start > range.end || range.start > own.len() {
                return false;
            }
            model[at].drain(range.start..range.end.min(own.len()));
        }
        Act::Assign(other) => model[at] = model[*other].clone(),
        Act::AssignRange(other, range) => match of(*other, range, model) {
            Some(bytes) => model[at] = bytes,
            None => return false,
        },
        Act::Swap(other) => model.swap(at, *other),
        Act::Reserve(_) => {}
        Act::Clear => model[at].clear(),
        Act::Write(index, bytes) => match model[at].get_mut(*index..*index + bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            None => return false,
        },
    }
    true
}
