//! The tree against a model of it, without a network: one rank, several at once in any order of steps, and memory full
//! of nonsense.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::geometry::{Geometry, Shape, unit_log};
use crate::tree::{self, Outcome, Spot, Swap, Taken, Tree, Words};

/// The reason why an operation has not come to its end.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// Its rank was killed.
    Killed,
    Broken,
}

/// A segment's words here.
struct Memory {
    words: Arc<Vec<AtomicU64>>,
    /// Called before each access that others may notice.
    step: Box<dyn Fn() -> Result<(), Stop>>,
}

impl Memory {
    fn new(log: u32, step: impl Fn() -> Result<(), Stop> + 'static) -> Self {
        let words = (0..count(log)).map(|_| AtomicU64::new(0)).collect();
        Self { words: Arc::new(words), step: Box::new(step) }
    }

    fn is_zero(&self) -> bool {
        self.words.iter().all(|word| word.load(SeqCst) == 0)
    }

    fn read(&self, at: u64) -> Result<u64, Stop> {
        let word = &self.words[at as usize / 8];
        // Most words are zero in a search: such a look is no step, so that steps are at words that are used.
        if word.load(SeqCst) != 0 {
            (self.step)()?;
        }
        Ok(word.load(SeqCst))
    }
}

fn count(log: u32) -> u64 {
    let geometry = geometry(log);
    (0..=geometry.top()).map(|level| geometry.count(level)).sum()
}

fn geometry(log: u32) -> Geometry {
    Geometry::new(log).expect("a segment")
}

impl Words for Memory {
    type Error = Stop;

    fn load(&self, at: u64, into: &mut [u64]) -> Result<(), Stop> {
        into.iter_mut().enumerate().try_for_each(|(i, word)| {
            *word = self.read(at + 8 * i as u64)?;
            Ok(())
        })
    }

    fn load_each<const N: usize>(&self, at: [u64; N], count: usize) -> Result<[u64; N], Stop> {
        let mut words = [0; N];
        for i in 0..count {
            words[i] = self.read(at[i])?;
        }
        Ok(words)
    }

    fn swap(&self, swaps: &mut [Swap], in_turn: bool) -> Result<(), Stop> {
        let count = swaps.len();
        for i in 0..count {
            let swap = &mut swaps[if in_turn { i } else { count - 1 - i }];
            (self.step)()?;
            let word = &self.words[swap.at as usize / 8];
            swap.found = word.compare_exchange(swap.expected, swap.new, SeqCst, SeqCst).unwrap_or_else(|found| found);
        }
        Ok(())
    }

    fn broken(&self, _at: u64, _value: u64) -> Stop {
        Stop::Broken
    }
}

/// In one segment.
fn search(tree: &Tree<'_, Memory>, shape: Shape) -> Result<Option<Taken>, Stop> {
    Ok(match tree::search(slice::from_ref(tree), shape, 0)? {
        Outcome::Done((_, taken)) => Some(taken),
        _ => None,
    })
}

/// Memory of which all that somebody has read is changed by others before it is swapped: they allocate and free in
/// turn, for ever.
struct Restless {
    memory: Memory,
    /// The number of failed attempts, caused by changes of others.
    changes: Cell<u32>,
}

impl Words for Restless {
    type Error = Stop;

    fn load(&self, at: u64, into: &mut [u64]) -> Result<(), Stop> {
        self.memory.load(at, into)
    }

    fn load_each<const N: usize>(&self, at: [u64; N], count: usize) -> Result<[u64; N], Stop> {
        self.memory.load_each(at, count)
    }

    fn swap(&self, swaps: &mut [Swap], _in_turn: bool) -> Result<(), Stop> {
        self.changes.set(self.changes.get() + 1);
        assert!(self.changes.get() < 100_000, "a search goes on for ever");
        for swap in swaps {
            // The first unit is taken and free in turn.
            let word = &self.memory.words[swap.at as usize / 8];
            swap.found = word.fetch_xor(0b10, SeqCst) ^ 0b10;
        }
        Ok(())
    }

    fn broken(&self, _at: u64, _value: u64) -> Stop {
        Stop::Broken
    }
}

#[test]
fn a_search_ends_beside_others_that_change_all_for_ever() {
    let geometry = geometry(19);
    for shape in [Shape::unit(0), shape(512), shape(16 << 10), Shape::unit(geometry.top())] {
        let memory = Restless { memory: Memory::new(19, || Ok(())), changes: Cell::new(0) };
        let tree = Tree::new(&geometry, &memory);
        let found = tree::search(&[tree], shape, 0);
        assert!(matches!(found, Ok(Outcome::Contended)), "{shape:?}: {found:?}");
        assert!(memory.changes.get() > 8, "{} changes", memory.changes.get());
    }
}

#[test]
fn what_somebody_has_in_hand_is_seen() {
    let geometry = geometry(19);
    let left = Rc::new(Cell::new(u32::MAX));
    let counted = Rc::clone(&left);
    let memory = Memory::new(19, move || {
        counted.set(counted.get() - 1);
        if counted.get() == 0 { Err(Stop::Killed) } else { Ok(()) }
    });
    let tree = Tree::new(&geometry, &memory);
    let (mut seen, mut not) = (0, 0);
    for steps in 1..200 {
        memory.words.iter().for_each(|word| word.store(0, SeqCst));
        left.set(u32::MAX);
        assert!(!tree.is_in_hand().unwrap());
        let Outcome::Done(block) = tree.open_any(shape(16)).unwrap() else { panic!("no block") };
        assert!(!tree.is_in_hand().unwrap());
        tree.release(block.offset, None).unwrap();
        // The rank that makes all whole is killed after this number of steps: divided units are free again, or in hand.
        left.set(steps);
        let killed = tree.close_empty(2).is_err();
        left.set(u32::MAX);
        let is_in_hand = tree.is_in_hand().unwrap();
        assert!(killed || !is_in_hand);
        *if is_in_hand { &mut seen } else { &mut not } += 1;
    }
    assert!(seen > 0 && not > 0, "{seen} seen and {not} not");
}

/// The allocated blocks, in units of 16 bytes.
struct Model {
    units: Vec<bool>,
}

impl Model {
    fn new(log: u32) -> Self {
        Self { units: vec![false; 1 << (log - 4)] }
    }

    fn range(offset: u64, shape: Shape) -> std::ops::Range<usize> {
        assert!(offset.is_multiple_of(1 << unit_log(shape.level)), "{offset:#x} is not aligned");
        let first = (offset >> 4) as usize;
        first..first + ((shape.units as usize) << (unit_log(shape.level) - 4))
    }

    fn take(&mut self, log: u32, offset: u64, shape: Shape) {
        assert!(offset >= count(log) * 8, "a block where the words are");
        let units = &mut self.units[Self::range(offset, shape)];
        assert!(units.iter().all(|taken| !taken), "{shape:?} at {offset:#x} overlaps with another block");
        units.fill(true);
    }

    fn release(&mut self, offset: u64, shape: Shape) {
        self.units[Self::range(offset, shape)].fill(false);
    }
}

fn shape(bytes: u64) -> Shape {
    Shape::of(bytes).expect("a shape")
}

#[derive(Debug, Clone)]
enum Action {
    Allocate(u64),
    /// Allocate at the last place, and in a word to open below it.
    Near(u64),
    Free(prop::sample::Index),
    FreeTwice(prop::sample::Index),
    FreeInside(prop::sample::Index, u64),
    Close(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let bytes = || prop_oneof![1u64..600, 500u64..20_000, 16_000u64..200_000];
    let action = prop_oneof![
        4 => bytes().prop_map(Action::Allocate),
        3 => bytes().prop_map(Action::Near),
        5 => any::<prop::sample::Index>().prop_map(Action::Free),
        1 => any::<prop::sample::Index>().prop_map(Action::FreeTwice),
        1 => (any::<prop::sample::Index>(), any::<u64>()).prop_map(|(index, at)| Action::FreeInside(index, at)),
        1 => (1usize..4).prop_map(Action::Close),
    ];
    prop::collection::vec(action, 1..200)
}

proptest! {
    /// Blocks do not overlap; what is freed twice, or inside of a block, is found; and all is whole again at the end.
    #[test]
    fn blocks_are_apart_and_come_back(actions in actions(), log in 14u32..=20) {
        let geometry = geometry(log);
        let memory = Memory::new(log, || Ok(()));
        let tree = Tree::new(&geometry, &memory);
        let mut model = Model::new(log);
        let mut blocks: Vec<(u64, Shape)> = vec![];
        let mut spots = [None; crate::geometry::LEVELS];
        for action in actions {
            match action {
                Action::Allocate(bytes) => {
                    if let Some(taken) = search(&tree, shape(bytes)).unwrap() {
                        model.take(log, taken.offset, shape(bytes));
                        blocks.push((taken.offset, shape(bytes)));
                        spots = taken.spots;
                    }
                }
                Action::Near(bytes) => {
                    let shape = shape(bytes);
                    let here: Option<Spot> = spots[shape.level];
                    let above = (shape.level + 1..=geometry.top()).find_map(|level| Some((level, spots[level]?)));
                    let mut offset = match here {
                        Some(mut spot) => tree.take(shape, &mut spot).unwrap(),
                        None => Outcome::Full,
                    };
                    if let (Outcome::Full, Some((level, spot))) = (offset, above)
                        && let Outcome::Done(taken) = tree.open(shape, level, spot).unwrap()
                    {
                        offset = Outcome::Done(taken.offset);
                        spots = taken.spots;
                    }
                    if let Outcome::Done(offset) = offset {
                        model.take(log, offset, shape);
                        blocks.push((offset, shape));
                    }
                }
                Action::Free(index) | Action::FreeTwice(index) if !blocks.is_empty() => {
                    let (offset, shape) = blocks.swap_remove(index.index(blocks.len()));
                    model.release(offset, shape);
                    prop_assert_eq!(tree.release(offset, None).unwrap().map(|at| at.0), Some(shape.level));
                    if matches!(action, Action::FreeTwice(_)) {
                        prop_assert_eq!(tree.release(offset, None), Ok(None));
                    }
                }
                Action::FreeInside(index, at) if !blocks.is_empty() => {
                    let (offset, shape) = blocks[index.index(blocks.len())];
                    let bytes = u64::from(shape.units) << unit_log(shape.level);
                    prop_assert_eq!(tree.release(offset + 1 + at % (bytes - 1), None), Ok(None));
                }
                Action::Close(level) => drop(tree.close_empty(level).unwrap()),
                _ => {}
            }
        }
        for (offset, _) in blocks {
            prop_assert!(tree.release(offset, None).unwrap().is_some());
            prop_assert_eq!(tree.release(offset, None), Ok(None));
        }
        tree.close_empty(geometry.top()).unwrap();
        prop_assert!(memory.is_zero());
    }

    /// Nonsense in all words leads nowhere outside of the segment, and to an end.
    #[test]
    fn nonsense_is_survived(log in 14u32..=20, seed: u64, density in 0u32..4, bytes in 1u64..1 << 18, at: u64, level in 1usize..4) {
        let geometry = geometry(log);
        let memory = Memory::new(log, || Ok(()));
        let mut random = fastrand(seed);
        for word in memory.words.iter() {
            word.store((0..density).fold(random(), |word, _| word & random()), SeqCst);
        }
        let tree = Tree::new(&geometry, &memory);
        let inside = |offset: u64, bytes: u64| offset >= count(log) * 8 && offset + bytes <= 1 << log;
        for i in 0..20 {
            if let Ok(Some(taken)) = search(&tree, shape(bytes >> i | 1)) {
                prop_assert!(inside(taken.offset, bytes >> i | 1));
            }
            if let Ok(Some(_)) = tree.release(at >> i, None) {
                prop_assert!(inside(at >> i, 1));
            }
            let _ = tree.close_empty(level);
        }
    }
}

/// Numbers by chance.
fn fastrand(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[test]
fn a_segment_is_used_up_and_refilled() {
    for (log, bytes) in [(14, 16), (15, 512), (19, 16 << 10), (19, 40), (20, 512 << 10), (24, 512 << 10)] {
        let geometry = geometry(log);
        let memory = Memory::new(log, || Ok(()));
        let tree = Tree::new(&geometry, &memory);
        let shape = shape(bytes);
        let size = u64::from(shape.units) << unit_log(shape.level);
        let mut counts = vec![];
        for _ in 0..2 {
            let mut blocks = vec![];
            while let Some(taken) = search(&tree, shape).unwrap() {
                blocks.push(taken.offset);
            }
            counts.push(blocks.len() as u64);
            // Units that do not fill a word stay free, and so do those of which the words take a part.
            let most = ((1 << log) - count(log) * 8) / size;
            let words = (size * 32).min(1 << log) / size;
            assert!(blocks.len() as u64 + words > most * 3 / 4, "{} of {most} blocks of {bytes} B", blocks.len());
            blocks.iter().for_each(|block| assert!(tree.release(*block, None).unwrap().is_some()));
        }
        assert_eq!(counts[0], counts[1], "2^{log} B of {bytes}");
        // The small ones do not stand in the way of the largest.
        let largest =
            (0..=geometry.top()).rev().flat_map(|level| (1..=32).rev().map(move |units| Shape { level, units }));
        let largest = largest.clone().find(|shape| geometry.fits(*shape)).expect("a block");
        assert!(search(&tree, largest).unwrap().is_some(), "{largest:?} in 2^{log} B");
    }
}

/// A heap of 16 MiB is one segment, see `engine::segments` of `vervain-acp`.
#[test]
fn freed_small_blocks_are_large_ones_again() {
    let geometry = geometry(24);
    let memory = Memory::new(24, || Ok(()));
    let tree = Tree::new(&geometry, &memory);
    let fill = |bytes: u64| {
        let mut blocks = vec![];
        // Each search begins at the first word: of the smallest, all would take minutes.
        while blocks.len() < 4000
            && let Some(taken) = search(&tree, shape(bytes)).unwrap()
        {
            blocks.push(taken.offset);
        }
        blocks.iter().for_each(|block| assert!(tree.release(*block, None).unwrap().is_some()));
        blocks.len()
    };
    let large = [4 << 20, 5 << 20, 15 << 20];
    assert_eq!(large.map(fill), [3, 3, 1]);
    for small in [40, 600, 20_000] {
        assert!(fill(small) > 256, "{small} B");
        assert_eq!(large.map(fill), [3, 3, 1], "after blocks of {small} B");
    }
    // Only the units that the words themselves lie in are still divided.
    tree.close_empty(geometry.top()).unwrap();
    assert!(memory.is_zero());
}

/// Bytes of the segments of ranks that go on side by side: trees of two and of three levels.
const LOGS: [u32; 2] = [14, 15];

/// Steps after which a run goes round in circles.
const STEPS: usize = 1_000_000;

fn config() -> Config {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    config
}

/// Runs the model with each seed, with threads that are interrupted anywhere, and a few times.
fn check(runs: usize, model: fn(u64)) {
    for seed in 0..runs as u64 {
        let schedulers: [Box<dyn Scheduler + Send>; 2] =
            [Box::new(RandomScheduler::new_from_seed(seed, 4)), Box::new(PctScheduler::new_from_seed(seed, 3, 4))];
        for scheduler in schedulers {
            Runner::new(scheduler, config()).run(move || model(seed));
        }
    }
}

/// The state that ranks running side by side share.
struct Shared {
    log: u32,
    words: Arc<Vec<AtomicU64>>,
    model: Mutex<Model>,
    /// Blocks that one rank gives to others to free.
    given: Mutex<Vec<(u64, Shape)>>,
}

/// One rank: it allocates, frees what it has and what others have given to it, and begins with what it has seen long
/// ago. It is killed after some steps, if it has a number of them. Returns what it has at the end.
fn rank(shared: &Shared, seed: u64, life: Option<u32>) -> Vec<(u64, Shape)> {
    let geometry = geometry(shared.log);
    let left = Cell::new(life);
    let turn = shuttle::sync::atomic::AtomicU64::new(0);
    let step = move || {
        // Here another one may go on.
        turn.load(shuttle::sync::atomic::Ordering::SeqCst);
        match left.get() {
            Some(0) => Err(Stop::Killed),
            n => {
                left.set(n.map(|n| n - 1));
                Ok(())
            }
        }
    };
    let memory = Memory { words: Arc::clone(&shared.words), step: Box::new(step) };
    let tree = Tree::new(&geometry, &memory);
    let random = RefCell::new(fastrand(seed));
    let chance = |of: u64| random.borrow_mut()() % of;
    let mut own = vec![];
    let mut spots = [None; crate::geometry::LEVELS];
    // The root is always there.
    spots[geometry.top()] = Some(Spot { index: 0, stored: 0 });
    for _ in 0..12 {
        // All of a word, a part of it, or all of the segment that can be.
        let shape = match chance(6) {
            0..3 => Shape { level: 0, units: [1, 16, 31, 32][chance(4) as usize] },
            3..5 => Shape { level: 1, units: [1, 2, 16][chance(3) as usize] },
            _ => Shape::unit(geometry.top()),
        };
        let action = chance(12);
        let result = match action {
            0 => search(&tree, shape).map(|taken| {
                taken.map(|taken| {
                    spots = taken.spots;
                    taken.offset
                })
            }),
            1 => tree.take_near(shape, chance(geometry.count(shape.level))).map(|outcome| match outcome {
                Outcome::Done(taken) => {
                    spots[shape.level] = taken.spots[shape.level];
                    Some(taken.offset)
                }
                _ => None,
            }),
            2..4 => match spots[shape.level].as_mut() {
                Some(spot) => tree.take(shape, spot).map(|outcome| match outcome {
                    Outcome::Done(offset) => Some(offset),
                    _ => None,
                }),
                None => Ok(None),
            },
            4..6 => match spots
                .iter()
                .enumerate()
                .skip(shape.level + 1)
                .filter(|_| chance(2) == 0)
                .find_map(|(level, spot)| Some((level, (*spot)?)))
            {
                Some((level, spot)) => tree.open(shape, level, spot).map(|outcome| match outcome {
                    Outcome::Done(taken) => {
                        for (spot, new) in spots.iter_mut().zip(taken.spots) {
                            *spot = new.or(*spot);
                        }
                        Some(taken.offset)
                    }
                    _ => None,
                }),
                None => Ok(None),
            },
            6..8 => tree.close_empty(1 + chance(2) as usize).map(|_| None),
            _ => {
                let given = if chance(2) == 0 { shared.given.lock().unwrap().pop() } else { None };
                let block = given.or_else(|| own.pop());
                match block {
                    Some((offset, shape)) => {
                        // Once it is freed others may have it.
                        shared.model.lock().unwrap().release(offset, shape);
                        let is_there = |spot: &Spot| geometry.find(shape.level, offset).0 == spot.index;
                        let likely = spots[shape.level].filter(|spot| is_there(spot) && chance(2) == 0);
                        tree.release(offset, likely.map(|spot| (shape.level, spot))).map(|freed| {
                            assert_eq!(freed.map(|at| at.0), Some(shape.level), "a block was not found");
                            None
                        })
                    }
                    None => Ok(None),
                }
            }
        };
        match result {
            Ok(Some(offset)) => {
                shared.model.lock().unwrap().take(shared.log, offset, shape);
                if chance(3) == 0 {
                    shared.given.lock().unwrap().push((offset, shape));
                } else {
                    own.push((offset, shape));
                }
            }
            Ok(None) => {}
            Err(stop) => {
                assert_eq!(stop, Stop::Killed);
                return own;
            }
        }
    }
    own
}

/// Three ranks side by side; returns what they share, and what is still allocated.
fn ranks(seed: u64, killed: bool) -> (Arc<Shared>, Vec<(u64, Shape)>) {
    let mut random = fastrand(seed ^ shuttle_seed());
    let log = LOGS[(random() % 2) as usize];
    let words = Arc::new((0..count(log)).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    let model = Mutex::new(Model::new(log));
    let shared = Arc::new(Shared { log, words, model, given: Mutex::default() });
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let (shared, seed) = (Arc::clone(&shared), random());
            let life = (killed && i == 0).then_some((random() % 60) as u32);
            shuttle::thread::spawn(move || rank(&shared, seed, life))
        })
        .collect();
    let mut blocks: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    blocks.append(&mut shared.given.lock().unwrap());
    (shared, blocks)
}

/// Another number in each run of a seed.
fn shuttle_seed() -> u64 {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().r#gen()
}

/// Frees all and closes all; how many units of 16 bytes can be had then.
fn free_all(shared: &Shared, blocks: Vec<(u64, Shape)>) -> (u64, bool) {
    let geometry = geometry(shared.log);
    let memory = Memory { words: Arc::clone(&shared.words), step: Box::new(|| Ok(())) };
    let tree = Tree::new(&geometry, &memory);
    for (offset, _) in blocks {
        assert!(tree.release(offset, None).unwrap().is_some());
    }
    tree.close_empty(geometry.top()).unwrap();
    let whole = memory.is_zero();
    let mut units = 0;
    while search(&tree, Shape::unit(0)).unwrap().is_some() {
        units += 1;
    }
    (units, whole)
}

#[test]
fn ranks_side_by_side_never_share_a_block() {
    check(150, |seed| {
        let (shared, blocks) = ranks(seed, false);
        let (units, whole) = free_all(&shared, blocks);
        assert!(whole, "something stays allocated");
        assert_eq!(units, (1 << (shared.log - 4)) - (count(shared.log) * 8).div_ceil(16));
    });
}

/// Words are opened and closed all the time, so that what was read of their parents is old.
#[test]
fn units_are_divided_and_made_whole_side_by_side() {
    check(100, |_| {
        let words = Arc::new((0..count(14)).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        let work = |words: Arc<Vec<AtomicU64>>| {
            let turn = shuttle::sync::atomic::AtomicU64::new(0);
            let step = move || {
                turn.load(shuttle::sync::atomic::Ordering::SeqCst);
                Ok(())
            };
            let memory = Memory { words, step: Box::new(step) };
            let geometry = geometry(14);
            let tree = Tree::new(&geometry, &memory);
            for _ in 0..4 {
                if let Outcome::Done(taken) = tree.open(Shape::unit(0), 1, Spot { index: 0, stored: 0 }).unwrap() {
                    assert!(tree.release(taken.offset, None).unwrap().is_some());
                }
                tree.close_empty(1).unwrap();
            }
        };
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let words = Arc::clone(&words);
                shuttle::thread::spawn(move || work(words))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(words.iter().all(|word| word.load(SeqCst) == 0));
    });
}

#[test]
fn a_killed_rank_takes_with_it_what_it_was_at_only() {
    check(150, |seed| {
        let (shared, blocks) = ranks(seed, true);
        let (units, _) = free_all(&shared, blocks);
        // The block that it was taking or freeing, or the unit that it was dividing or making whole.
        let geometry = geometry(shared.log);
        let lost = (1 << (shared.log - 4)) - (count(shared.log) * 8).div_ceil(16) - units;
        let largest = (16 << (unit_log(1) - 4)).max(1 << (unit_log(geometry.top()) - 4));
        assert!(lost <= largest, "{lost} units are lost");
    });
}
