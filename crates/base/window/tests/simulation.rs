//! The simulated window: what its faults do and what they never do, and the same run for the same seed.

#[allow(dead_code)] // each test file uses a part of it
mod simulated;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use simulated::{MemoryDevice, Plan, World};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vervain_window::{Channel, Faulted, GRANULE, Layout, Origin, Put, PutDevice, REST_MS, Refused, Source};

fn layout() -> Layout {
    Layout::new(3, 4 << 20).unwrap()
}

fn world(plan: Plan, seed: u64) -> (World, [MemoryDevice; 3]) {
    let world = World::new(layout(), plan, seed);
    let devices = [0, 1, 2].map(|node| world.device(node).unwrap());
    (world, devices)
}

/// The place of the nth word for puts.
fn at(n: u64) -> u64 {
    layout().doors() + 8 * n
}

fn read(device: &MemoryDevice, at: u64) -> u64 {
    device.own().word(at).load(Ordering::Acquire)
}

fn put(channel: &mut dyn Channel, to: u64, words: &[u64]) {
    channel.put(&[Put { to, from: Origin::Words(words) }]).unwrap();
}

const DELAY: u64 = 6;
const FULL: u64 = u64::MAX;
/// Words of a put.
const WORDS: u64 = 3;
const PUTS: u64 = 12;

/// Observations of a run.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct Seen {
    /// A word that was half there, a put that was partly there, and one of its words before another below it.
    torn: u32,
    partial: u32,
    disordered: u32,
    /// A put of the second channel before one of the first that was put earlier.
    overtaken: u32,
    /// All that was ever there, step by step.
    history: Vec<u64>,
}

/// Two channels to node 1, each with puts of three words, some in chains and at different times.
fn run(seed: u64, torn_words: bool) -> Seen {
    let (world, [a, b, _]) = world(Plan { delay: DELAY, torn_words, ..Plan::default() }, seed);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut channels = [a.channel(1).unwrap(), a.channel(1).unwrap()];
    let word = |channel: u64, put: u64, i: u64| at((channel * PUTS + put) * WORDS + i);
    let (mut seen, mut posted, mut last_post) = (Seen::default(), [0, 0], 0);
    while posted != [PUTS; 2] || world.is_moving() {
        for (channel, posted) in posted.iter_mut().enumerate() {
            let more = (random.next_u64() % 4).min(PUTS - *posted);
            if more > 0 && random.next_u64() % 2 == 0 {
                let puts = (*posted..*posted + more).map(|put| word(channel as u64, put, 0));
                let chain = puts.map(|to| Put { to, from: Origin::Words(&[FULL; WORDS as usize]) });
                channels[channel].put(&chain.collect::<Vec<_>>()).unwrap();
                *posted += more;
                last_post = world.now();
            }
        }
        world.step();
        let mut whole = [0, 0];
        for channel in [0, 1] {
            for n in 0..PUTS {
                let there = [0, 1, 2].map(|i| read(&b, word(channel, n, i)));
                assert!(n < posted[channel as usize] || there == [0; 3], "seed {seed}: seen before it was put");
                let whole = &mut whole[channel as usize];
                assert!(there == [0; 3] || *whole >= n, "seed {seed}: put {n} is seen before all of that before it");
                let is_torn = there.iter().any(|w| ![0, FULL].contains(w));
                assert!(!is_torn || torn_words, "seed {seed}: half a word is seen");
                seen.torn += u32::from(is_torn);
                seen.partial += u32::from(there != [0; 3] && there != [FULL; 3]);
                seen.disordered += u32::from(there[0] == 0 && there[2] != 0);
                *whole += u64::from(there == [FULL; 3] && *whole == n);
                seen.history.extend(there);
            }
        }
        seen.overtaken += u32::from(whole[1] > whole[0]);
        assert!(world.now() - last_post <= (DELAY + 1) * PUTS * 2, "seed {seed}: a put takes for ever");
    }
    seen
}

#[test]
fn puts_of_a_channel_are_seen_in_their_order_and_all_else_happens() {
    for torn_words in [false, true] {
        let all: Vec<Seen> = (0..200).map(|seed| run(seed, torn_words)).collect();
        let sum = |of: fn(&Seen) -> u32| all.iter().map(of).sum::<u32>();
        assert_eq!(sum(|seen| seen.torn) > 100, torn_words);
        assert!(sum(|s| s.partial) > 100 && sum(|s| s.disordered) > 100 && sum(|s| s.overtaken) > 100);
    }
}

#[test]
fn a_seed_gives_the_same_run_and_another_one_another() {
    assert_eq!(run(5, true), run(5, true));
    assert_ne!(run(5, true), run(6, true));
}

/// Memory of a program, in which a put may find other bytes later.
struct Program {
    word: Rc<[AtomicU64; 2]>,
    kept: Option<Arc<Kept>>,
}

struct Kept {
    word: [AtomicU64; 2],
    gone: AtomicBool,
    reads: AtomicU64,
}

// SAFETY: 16 bytes, always.
unsafe impl Source for Program {
    fn len(&self) -> usize {
        16
    }

    unsafe fn store_to(&self, to: *mut u8) -> Result<(), Faulted> {
        // SAFETY: the caller's promise of 16 bytes.
        unsafe { to.copy_from_nonoverlapping((&raw const *self.word).cast(), 16) };
        Ok(())
    }

    unsafe fn store_part_to(&self, from: usize, len: usize, to: *mut u8) -> Result<(), Faulted> {
        let mut all = [0; 16];
        // SAFETY: sixteen bytes here, and the caller's promise there.
        unsafe {
            self.store_to(all.as_mut_ptr())?;
            to.copy_from_nonoverlapping(all[from..from + len].as_ptr(), len);
        }
        Ok(())
    }

    fn keep(&self) -> Option<Box<dyn Source + Send>> {
        Some(Box::new(Handle(self.kept.clone()?)))
    }
}

struct Handle(Arc<Kept>);

// SAFETY: 16 bytes, always.
unsafe impl Source for Handle {
    fn len(&self) -> usize {
        16
    }

    unsafe fn store_to(&self, to: *mut u8) -> Result<(), Faulted> {
        if self.0.gone.load(Ordering::Relaxed) {
            return Err(Faulted { address: 4096 });
        }
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise of 16 bytes.
        unsafe { to.copy_from_nonoverlapping((&raw const self.0.word).cast(), 16) };
        Ok(())
    }

    unsafe fn store_part_to(&self, from: usize, len: usize, to: *mut u8) -> Result<(), Faulted> {
        let mut all = [0; 16];
        // SAFETY: sixteen bytes here, and the caller's promise there.
        unsafe {
            self.store_to(all.as_mut_ptr())?;
            to.copy_from_nonoverlapping(all[from..from + len].as_ptr(), len);
        }
        Ok(())
    }
}

fn kept() -> Arc<Kept> {
    Arc::new(Kept { word: [1, 1].map(AtomicU64::new), gone: AtomicBool::new(false), reads: AtomicU64::new(0) })
}

#[test]
fn a_source_that_can_be_kept_is_read_late_and_until_it_is_let_go() {
    let mut mixed = 0;
    for seed in 0..100 {
        let (world, [a, b, _]) = world(Plan { delay: DELAY, ..Plan::default() }, seed);
        let kept = kept();
        let program = Program { word: Rc::new([9, 9].map(AtomicU64::new)), kept: Some(kept.clone()) };
        a.channel(1).unwrap().put(&[Put { to: at(0), from: Origin::Source(&program) }]).unwrap();
        assert_eq!(kept.reads.load(Ordering::Relaxed), 0, "not before time goes on");
        drop(program);
        world.step();
        if Arc::strong_count(&kept) > 1 {
            // Its bytes may still be read.
            kept.word.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        }
        while world.is_moving() {
            world.step();
        }
        assert_eq!(Arc::strong_count(&kept), 1, "let go");
        let there = [read(&b, at(0)), read(&b, at(1))];
        mixed += u32::from(there != [1, 1] && there != [u64::MAX; 2]);
    }
    assert!(mixed > 10, "{mixed} puts saw the bytes before and after");
}

#[test]
fn a_source_that_cannot_be_kept_is_read_at_once() {
    let (world, [a, b, _]) = world(Plan { delay: DELAY, ..Plan::default() }, 1);
    let word = Rc::new([3, 4].map(AtomicU64::new));
    let program = Program { word: word.clone(), kept: None };
    a.channel(1).unwrap().put(&[Put { to: at(0) + 3, from: Origin::Source(&program) }]).unwrap();
    word[0].store(9, Ordering::Relaxed);
    while world.is_moving() {
        world.step();
    }
    assert_eq!(read(&b, at(0)), 3 << 24);
}

#[test]
fn a_source_that_faults_late_closes_its_channel_and_nothing_after_it_is_seen() {
    let (world, [a, b, _]) = world(Plan { delay: DELAY, ..Plan::default() }, 1);
    let kept = kept();
    kept.gone.store(true, Ordering::Relaxed);
    let program = Program { word: Rc::new([9, 9].map(AtomicU64::new)), kept: Some(kept) };
    let mut channel = a.channel(1).unwrap();
    let flag = Put { to: at(2), from: Origin::Words(&[1]) };
    channel.put(&[Put { to: at(0), from: Origin::Source(&program) }, flag]).unwrap();
    (0..100).for_each(|_| world.step());
    assert_eq!([0, 1, 2].map(|n| read(&b, at(n))), [0; 3]);
    assert_eq!(channel.put(&[flag]), Err(Refused::Faulted(Faulted { address: 4096 })));
}

#[test]
fn without_a_delay_puts_are_seen_at_once_and_out_of_bounds_never() {
    let (_world, [a, b, _]) = world(Plan::default(), 0);
    let mut channel = a.channel(1).unwrap();
    put(&mut *channel, at(1), &[5, 6]);
    assert_eq!([read(&b, at(1)), read(&b, at(2))], [5, 6]);
    let bad = Put { to: layout().region_len(), from: Origin::Words(&[1]) };
    assert_eq!(channel.put(&[bad]), Err(Refused::Outside));
    assert!(a.facts().coherent && a.channel(3).is_err());
}

#[test]
fn what_a_stalled_node_puts_and_gets_waits() {
    let (world, [a, b, c]) = world(Plan { delay: 1, ..Plan::default() }, 3);
    world.stall(1, 50);
    let mut ways = [(&a, 1), (&b, 2), (&a, 2)].map(|(from, to)| from.channel(to).unwrap());
    ways.iter_mut().zip(0..).for_each(|(way, n)| put(&mut **way, at(n), &[1]));
    (0..49).for_each(|_| world.step());
    assert_eq!([read(&b, at(0)), read(&c, at(1)), read(&c, at(2))], [0, 0, 1]);
    (0..4).for_each(|_| world.step());
    assert_eq!([read(&b, at(0)), read(&c, at(1))], [1, 1]);
}

#[test]
fn what_is_put_to_a_lost_node_is_gone_and_its_memory_is_not() {
    let (world, [a, b, _]) = world(Plan { delay: DELAY, ..Plan::default() }, 3);
    let mut way = a.channel(1).unwrap();
    put(&mut *way, at(0), &[1]);
    while world.is_moving() {
        world.step();
    }
    world.stall(1, 10);
    put(&mut *way, at(1), &[2]);
    world.lose(1);
    put(&mut *way, at(2), &[3]);
    world.find(1);
    put(&mut *way, at(3), &[4]);
    (0..100).for_each(|_| world.step());
    assert_eq!([0, 1, 2, 3].map(|n| read(&b, at(n))), [1, 0, 0, 4]);
}

#[test]
fn memory_rests_where_a_peer_has_another_kernel() {
    for (kernel_each, rests) in [(false, false), (true, true)] {
        let plan = Plan { kernel_each, steps_per_ms: 1, ..Plan::default() };
        let (world, [dead, heir, _]) = {
            let world = World::new(layout(), plan, 0);
            (world.clone(), [0, 0, 1].map(|node| world.device(node).unwrap()))
        };
        let pass = |ms| (0..ms).for_each(|_| world.step());
        pass(20_000);
        let process = dead.claims().process().unwrap();
        let all = layout().granules().len() as u32;
        let claim = process.claim(all).unwrap();
        pass(3_000);
        process.beat();
        pass(1_000);
        dead.kill();
        drop((claim, process));
        // The same number again does not make its memory free.
        let next = heir.claims().process().unwrap();
        assert_eq!(next.number(), 0);
        assert_eq!(next.claim(1).is_err(), rests);
        pass(REST_MS - 1_001);
        next.beat();
        assert_eq!(next.claim(1).is_err(), rests, "nothing before its time");
        pass(1);
        let claim = next.claim(all).unwrap();
        // Memory given back rests too.
        drop(claim);
        assert_eq!(next.claim(1).is_err(), rests);
        pass(REST_MS);
        drop(next.claim(1).unwrap());
        // Times that cannot be are those of an earlier life of the machine.
        let table = |granule: u32| heir.own().word(8 * (64 + u64::from(granule)));
        layout().granules().for_each(|granule| table(granule).store(u64::MAX << 8, Ordering::Relaxed));
        heir.own().word(8 * 9).store(u64::MAX, Ordering::Relaxed);
        table(layout().granules().start).store(10, Ordering::Relaxed);
        next.claim(all).unwrap();
    }
}

#[test]
fn memory_of_a_dead_heap_rests_from_when_it_is_found() {
    for (kernel_each, rests) in [(false, false), (true, true)] {
        let plan = Plan { kernel_each, steps_per_ms: 1, ..Plan::default() };
        let world = World::new(Layout::new(2, 24 << 20).unwrap(), plan, 0);
        let [dead, heir, _other] = [0, 0, 1].map(|node| world.device(node).unwrap());
        let pass = |ms| (0..ms).for_each(|_| world.step());
        pass(20_000);
        let heap = dead.claims().heap().unwrap();
        let all = heap.granules().len() as u32;
        let claim = heap.claim(all, 1).unwrap();
        let next = heir.claims().heap().unwrap();
        assert!(next.claim(1, 1).is_err());
        // Living processes do not show if a heap's owner lives.
        let process = heir.claims().process().unwrap();
        let pass = |ms| {
            pass(ms);
            process.beat();
        };
        pass(60_000);
        dead.kill();
        drop((claim, heap));
        pass(60_000);
        // Nobody knows when it died.
        assert_eq!(next.claim(1, 1).is_err(), rests);
        pass(REST_MS - 1);
        assert_eq!(next.claim(1, 1).is_err(), rests, "nothing before its time");
        pass(REST_MS);
        let claim = next.claim(all, 1).unwrap();
        drop(claim);
        assert_eq!(next.claim(1, 1).is_err(), rests);
        pass(REST_MS);
        next.claim(all, 1).unwrap();
    }
}

#[test]
fn a_claim_is_where_its_granules_are() {
    let (_world, [a, ..]) = world(Plan::default(), 0);
    let process = a.claims().process().unwrap();
    let claim = process.claim(2).unwrap();
    assert_eq!(claim.bytes(), u64::from(claim.granules().start) * GRANULE..u64::from(claim.granules().end) * GRANULE);
    assert_eq!(claim.granules().start, layout().granules().start);
    // A claim keeps the process's number.
    drop(process);
    assert_eq!(a.claims().process().unwrap().number(), 1);
    drop(claim);
    assert_eq!(a.claims().process().unwrap().number(), 0);
}
