//! Meeting of ends, and their replacement by others.

use super::{Stop, Two};
use crate::pairs::block;
use crate::pairs::door::{End, State, WORDS};
use crate::pairs::memory::Memory;
use crate::pairs::rendezvous::{Event, PeerId, Rendezvous};
use crate::{CELL, Claim, GRANULE, Layout, PROCESSES, Process, PutDevice, REST_MS, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_state_that_is_read_in_the_midst_of_a_put_is_none() {
    let (from, to) = (End { incarnation: 7, pair: 1 }, End { incarnation: 9, pair: 3 });
    let old = State { from, to, block: Some(64), is_up: false, asks: true };
    // The next one of this process, and the first one of the next process, which counts from the same number.
    let next = State { is_up: true, asks: false, ..old };
    let other = State { from: End { incarnation: 8, pair: 1 }, to: End::default(), block: None, ..old };
    for (count, new) in [(2, next), (1, other)] {
        let (before, after) = (old.encode(1), new.encode(count));
        assert_eq!(State::decode(&after), Some((count, new)));
        // Half-words of it, in any order.
        let changed: Vec<_> = (0..2 * WORDS).filter(|half| half_of(&before, *half) != half_of(&after, *half)).collect();
        for done in 1..(1_u32 << changed.len()) - 1 {
            let mut torn = before;
            for (_, half) in changed.iter().enumerate().filter(|(bit, _)| done >> bit & 1 != 0) {
                let mask = 0xffff_ffff << (32 * (half % 2));
                torn[half / 2] = torn[half / 2] & !mask | after[half / 2] & mask;
            }
            assert_eq!(State::decode(&torn), None, "{done:#x} of {changed:?}");
        }
    }
    assert_eq!(State::decode(&[0; WORDS]), None);
}

fn half_of(words: &[u64; WORDS], half: usize) -> u32 {
    (words[half / 2] >> (32 * (half % 2))) as u32
}

/// A process, and what has happened to it.
struct Side {
    device: Arc<dyn PutDevice>,
    process: Arc<Process>,
    clock: Arc<AtomicU64>,
    rendezvous: Rendezvous,
    memory: Memory,
    events: Vec<Event>,
}

impl Side {
    /// The next process of a node.
    fn new(two: &Two, node: u32) -> Side {
        let device = Arc::clone(&two.devices[node as usize]);
        let process = Arc::new(device.claims().process().unwrap());
        let clock = Arc::new(AtomicU64::new(0));
        let time = Arc::clone(&clock);
        let now = Box::new(move || time.load(Ordering::Relaxed));
        let memory = Memory::new(Arc::clone(&device), Arc::clone(&process), now);
        let rendezvous =
            Rendezvous::new(Arc::clone(&device), PeerId { node, process: process.number() }, process.incarnation());
        Side { device, process, clock, rendezvous, memory, events: Vec::new() }
    }

    fn incarnation(&self) -> u64 {
        self.process.incarnation()
    }

    fn request_pair(&mut self, peer: PeerId) -> bool {
        let Side { rendezvous, memory, events, .. } = self;
        rendezvous.request_pair(0, peer, memory, &mut |event| events.push(event))
    }

    fn look(&mut self) -> Vec<Event> {
        let Side { rendezvous, memory, events, .. } = self;
        if rendezvous.bell().is_rung() {
            rendezvous.look(memory, &mut |event| events.push(event));
        }
        std::mem::take(events)
    }

    fn end_pair(&mut self, peer: PeerId, own: u64) -> Vec<Event> {
        let Side { rendezvous, memory, events, .. } = self;
        rendezvous.end_pair(peer, own, memory, &mut |event| events.push(event));
        std::mem::take(events)
    }

    fn look_anyway(&mut self) -> Vec<Event> {
        let Side { rendezvous, memory, events, .. } = self;
        rendezvous.look(memory, &mut |event| events.push(event));
        std::mem::take(events)
    }

    /// Offset at which the second process puts its state for this one.
    fn second(&self) -> &[AtomicU64] {
        let at = (self.device.facts().layout.door(0) + u64::from(PROCESSES) * CELL) / 8;
        &self.region().words()[at as usize..at as usize + WORDS]
    }

    fn cell_of_second(&self) -> [u64; WORDS] {
        std::array::from_fn(|i| self.second()[i].load(Ordering::Relaxed))
    }

    fn say_as_second(&self, words: [u64; WORDS]) {
        self.second().iter().zip(words).for_each(|(there, word)| there.store(word, Ordering::Relaxed));
    }

    fn region(&self) -> &Region {
        self.device.own()
    }

    /// All memory that is left of its node.
    fn rest(&self) -> Vec<Claim> {
        std::iter::from_fn(|| self.process.claim(1).ok()).collect()
    }
}

/// Both look until nothing is new.
fn settle(a: &mut Side, b: &mut Side) -> [Vec<Event>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..8 {
        all[0].extend(a.look());
        all[1].extend(b.look());
    }
    assert!(!a.rendezvous.bell().is_rung() && !b.rendezvous.bell().is_rung(), "they go on telling each other");
    all
}

const FIRST: PeerId = PeerId { node: 0, process: 0 };
const SECOND: PeerId = PeerId { node: 1, process: 0 };

/// The blocks of a pair, that of each side, where it has come up and nothing else has happened.
fn blocks(events: &[Vec<Event>; 2], incarnations: [u64; 2]) -> [u64; 2] {
    let [[Event::Up { peer: SECOND, incarnation: to, theirs: there, own: here }], [back]] =
        events.each_ref().map(|e| e.as_slice())
    else {
        panic!("{events:?}")
    };
    assert_eq!(*to, incarnations[1]);
    assert_eq!(*back, Event::Up { peer: FIRST, incarnation: incarnations[0], theirs: *here, own: *there });
    [*here, *there]
}

#[test]
fn two_that_want_each_other_find_each_other_whoever_comes_first() {
    for both in [false, true] {
        let two = Two::new();
        let mut a = Side::new(&two, 0);
        assert!(a.request_pair(SECOND));
        // It was not there yet; as it comes, it is told again.
        let mut b = Side::new(&two, 1);
        if both {
            assert!(b.request_pair(FIRST));
        }
        let incarnations = [a.incarnation(), b.incarnation()];
        blocks(&settle(&mut a, &mut b), incarnations);
        assert_eq!(
            (a.rendezvous.announce_again(1 << 41), b.rendezvous.announce_again(1 << 41)),
            (None, None),
            "both know"
        );
        assert_eq!(settle(&mut a, &mut b), [vec![], vec![]]);
        // A pair that is there already is answered at once.
        assert!(a.request_pair(SECOND) && b.request_pair(FIRST));
        assert_eq!(settle(&mut a, &mut b), [vec![], vec![]]);
    }
}

#[test]
fn who_is_not_answered_tells_again_and_ever_more_seldom() {
    let two = Two::new();
    let mut a = Side::new(&two, 0);
    a.request_pair(SECOND);
    let mut at = Vec::new();
    let mut now = 0;
    while let Some(next) = a.rendezvous.announce_again(now)
        && at.len() < 20
    {
        at.push(next - now);
        now = next;
    }
    assert_eq!(&at[..3], [200_000, 400_000, 800_000]);
    assert_eq!(at[19], 100_000_000);
}

#[test]
fn another_process_of_the_same_number_is_another_one() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    a.request_pair(SECOND);
    let [own, _] = blocks(&settle(&mut a, &mut b), [a.incarnation(), b.incarnation()]);
    let old = b.incarnation();
    drop(b);
    let mut c = Side::new(&two, 1);
    assert_eq!(a.look(), [Event::Down { peer: SECOND, incarnation: old, own }], "it tells of itself");
    a.memory.give_back(own, SECOND, old);
    a.request_pair(SECOND);
    let incarnations = [a.incarnation(), c.incarnation()];
    blocks(&settle(&mut a, &mut c), incarnations);
}

#[test]
fn the_dead_among_many_peers_are_found_a_few_at_a_time() {
    let two = Two::new();
    let mut a = Side::new(&two, 0);
    let mut peers: Vec<Side> = (0..10).map(|_| Side::new(&two, 1)).collect();
    for b in &mut peers {
        a.request_pair(PeerId { node: 1, process: b.process.number() });
        settle(&mut a, b);
    }
    let mut look = || {
        let Side { rendezvous, memory, .. } = &mut a;
        let mut dead = Vec::new();
        rendezvous.drop_dead_pairs(memory, &mut |event| match event {
            Event::Down { peer, .. } => dead.push(peer.process),
            _ => panic!("{event:?}"),
        });
        dead
    };
    assert_eq!([look(), look(), look()], [[]; 3], "all live");
    // Three looks at four have come round to the second one.
    peers.remove(1);
    assert_eq!([look(), look(), look()], [vec![], vec![], vec![1]]);
    peers.clear();
    let found = [look(), look(), look()];
    assert_eq!(found.each_ref().map(Vec::len), [4, 4, 1]);
    assert_eq!((found.concat().len(), look()), (9, vec![]));
}

#[test]
fn memory_that_is_said_to_be_anothers_is_found_when_nothing_else_is_free() {
    let two = Two::new();
    let a = Side::new(&two, 0);
    let other = two.elsewhere(0).claims().process().unwrap();
    let region = a.region();
    let layout = a.device.facts().layout;
    let all = layout.granules();
    // Makes the other process seem to have all but the last two granules; granules without an owner are tried first.
    for granule in all.start..all.end - 2 {
        region.word(Layout::owner(granule)).store(u64::from(other.number()) + 1, Ordering::Relaxed);
    }
    let claims = a.rest();
    let granules: Vec<u32> = claims.iter().flat_map(Claim::granules).collect();
    assert_eq!(granules[..2], [all.end - 2, all.end - 1]);
    assert_eq!(granules.len(), all.len());
}

#[test]
fn what_was_meant_for_the_process_before_is_not_for_this_one() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    a.request_pair(SECOND);
    let [_, there] = blocks(&settle(&mut a, &mut b), [a.incarnation(), b.incarnation()]);
    drop(a);
    let mut c = Side::new(&two, 0);
    // In time for its doors to be wiped out, not for the second to know.
    assert!(b.end_pair(FIRST, there).iter().all(|event| matches!(event, Event::Down { own, .. } if *own == there)));
    b.request_pair(FIRST);
    let incarnations = [c.incarnation(), b.incarnation()];
    blocks(&settle(&mut c, &mut b), incarnations);
}

/// The second side requests a pair, the first offers it a block, and something is put there before the first knows
/// more; with `wants` the first requests the pair too. Returns the blocks of both.
fn offer_and_use(a: &mut Side, b: &mut Side, wants: bool) -> [u64; 2] {
    assert!(b.request_pair(FIRST) && a.look().is_empty() && (!wants || a.request_pair(SECOND)));
    let [Event::Up { theirs, own, .. }] = b.look()[..] else { panic!("it was offered a block") };
    a.region().word(theirs + block::slot_at(0)).store(1, Ordering::Relaxed);
    [own, theirs]
}

#[test]
fn a_block_that_one_end_was_told_of_is_not_for_the_next_process_or_pair() {
    for (dies, wants) in [(false, false), (false, true), (true, false), (true, true)] {
        let two = Two::new();
        let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
        let [own, used] = offer_and_use(&mut a, &mut b, wants);
        let mut next = if dies {
            drop(b);
            Side::new(&two, 1)
        } else {
            b.end_pair(FIRST, own);
            b
        };
        assert!(next.request_pair(FIRST) && a.look().is_empty());
        let [Event::Up { theirs, .. }] = next.look()[..] else { panic!("it is offered a block") };
        assert!(dies || theirs != used, "it may still put there");
        assert_eq!(a.region().word(theirs + block::slot_at(0)).load(Ordering::Relaxed), 0, "what another one has put");
    }
}

#[test]
fn a_block_that_was_for_an_earlier_pair_is_not_used() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    a.request_pair(SECOND);
    let incarnations = [a.incarnation(), b.incarnation()];
    let [own, _] = blocks(&settle(&mut a, &mut b), incarnations);
    a.end_pair(SECOND, own);
    a.request_pair(SECOND);
    b.look();
    // The second has not looked, and says once more what it has said before.
    let (count, state) = State::decode(&a.cell_of_second()).unwrap();
    let stale = State { to: End { pair: 1, ..state.to }, block: Some(two.block(0)), ..state };
    a.say_as_second(stale.encode(count + 100));
    assert_eq!(a.look_anyway(), []);
    assert!(!b.rendezvous.bell().is_rung(), "who does not ask is not answered, or two would do so for ever");
    a.say_as_second(State { asks: true, ..stale }.encode(count + 101));
    assert_eq!(a.look_anyway(), []);
    assert!(b.rendezvous.bell().is_rung());
}

#[test]
fn who_connects_finds_the_next_process_of_a_number_though_nothing_was_heard_of_it() {
    let two = Two::apart();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    a.request_pair(SECOND);
    let [own, _] = blocks(&settle(&mut a, &mut b), [a.incarnation(), b.incarnation()]);
    let (last, old) = (a.cell_of_second(), b.incarnation());
    drop(b);
    // The first one's state comes late.
    let mut next = Side::new(&two, 1);
    a.say_as_second(last);
    assert_eq!(a.look(), []);
    assert!(a.request_pair(SECOND) && next.look().is_empty());
    assert_eq!(a.look(), [Event::Down { peer: SECOND, incarnation: old, own }]);
}

#[test]
fn who_names_an_incarnation_that_is_nobodys_gets_no_block() {
    let two = Two::new();
    let mut a = Side::new(&two, 0);
    for incarnation in 1..100 {
        let from = End { incarnation, pair: 1 };
        a.say_as_second(State { from, asks: true, ..State::default() }.encode(incarnation));
        assert_eq!((a.look_anyway(), a.memory.granules()), (vec![], 0));
    }
}

#[test]
fn a_pair_whose_other_end_has_another_block_is_over() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    let other = two.devices[0].claims().process().unwrap();
    assert!(b.request_pair(FIRST) && a.look().is_empty() && a.request_pair(SECOND));
    // The second has offered a block, and hears late of one that had the number of the first.
    let cell = two.devices[1].facts().layout.door(0);
    let words = |words: &[AtomicU64]| [0, 1, 2, 3, 4, 5, 6, 7].map(|i| words[i].load(Ordering::Relaxed));
    let at = (cell / 8) as usize..(cell / 8) as usize + WORDS;
    let region = two.devices[1].own().clone();
    let store = |new: [u64; WORDS]| {
        region.words()[at.clone()].iter().zip(new).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
    };
    let there = words(&region.words()[at.clone()]);
    let (count, state) = State::decode(&there).unwrap();
    // Without a block, so that the second comes to know the end, and offers its block.
    store(State { block: None, to: End::default(), ..state }.encode(count));
    assert_eq!(b.look(), []);
    let up = a.look();
    assert!(matches!(up[..], [Event::Up { .. }]), "{up:?}");
    let late = State { from: End { incarnation: other.incarnation(), pair: 1 }, ..State::default() };
    store(late.encode(9));
    b.look_anyway();
    store(State { block: None, to: End::default(), ..state }.encode(count + 1));
    b.look_anyway();
    let down = a.look();
    assert!(matches!(down[..], [Event::Down { .. }, ..]), "{down:?}");
}

#[test]
fn a_pair_that_one_side_ends_is_over_for_both_and_another_one_has_other_blocks() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    a.request_pair(SECOND);
    let incarnations = [a.incarnation(), b.incarnation()];
    let first = blocks(&settle(&mut a, &mut b), incarnations);
    assert_eq!(a.end_pair(SECOND, first[0] + block::LEN), [], "another one");
    assert_eq!(
        a.end_pair(SECOND, first[0]),
        [Event::Down { peer: SECOND, incarnation: incarnations[1], own: first[0] }]
    );
    assert_eq!(b.look(), [Event::Down { peer: FIRST, incarnation: incarnations[0], own: first[1] }]);
    a.memory.give_back(first[0], SECOND, incarnations[1]);
    b.memory.give_back(first[1], FIRST, incarnations[0]);
    a.request_pair(SECOND);
    let second = blocks(&settle(&mut a, &mut b), incarnations);
    assert!(first.iter().zip(second).all(|(first, second)| *first != second), "the peer may still put there");
    // Later it cannot any more.
    let mut others = Vec::new();
    a.clock.store(REST_MS * 1_000_000, Ordering::Relaxed);
    others.extend((0..4).map(|_| a.memory.take(PeerId { node: 1, process: 9 }).unwrap()));
    assert!(others.contains(&first[0]));
}

#[test]
fn who_comes_and_goes_gets_no_more_memory_than_others() {
    let two = Two::new();
    let a = &mut Side::new(&two, 0);
    let other = PeerId { node: 1, process: 5 };
    let living = two.devices[1].claims().process().unwrap();
    let taken = (0..100).map_while(|_| {
        let block = a.memory.take(SECOND)?;
        a.memory.long_ring(SECOND);
        a.memory.give_back(block, SECOND, living.incarnation());
        Some(block)
    });
    assert_eq!(taken.count(), 8);
    assert!(a.memory.granules() as u64 <= 8 * block::LEN / GRANULE + 2 * (block::LONG_BYTES / GRANULE));
    assert!(a.memory.take(other).is_some() && a.memory.long_ring(other).is_some(), "others do not wait");
    a.clock.store(REST_MS * 1_000_000, Ordering::Relaxed);
    assert!(a.memory.take(SECOND).is_some());
    let ring = a.memory.long_ring(other).unwrap();
    a.memory.give_back(0, other, living.incarnation());
    assert_ne!(a.memory.long_ring(other), Some(ring), "the one before may still put there");
    // Blocks that were never announced, or whose peer is dead, do not rest.
    let dead = living.incarnation();
    drop(living);
    for incarnation in [0, dead] {
        for _ in 0..100 {
            let block = a.memory.take(SECOND).unwrap();
            a.memory.give_back(block, SECOND, incarnation);
        }
    }
}

#[test]
fn who_has_no_room_says_so_until_there_is_some() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    let rest = b.rest();
    a.request_pair(SECOND);
    assert_eq!(settle(&mut a, &mut b), [vec![Event::NoRoom(SECOND)], vec![]]);
    assert!(!b.request_pair(FIRST));
    a.rendezvous.announce_again(1 << 40);
    assert_eq!(settle(&mut a, &mut b), [vec![], vec![]], "it is said once");
    drop(rest);
    a.rendezvous.announce_again(1 << 41);
    let incarnations = [a.incarnation(), b.incarnation()];
    blocks(&settle(&mut a, &mut b), incarnations);
}

#[test]
fn a_process_finds_itself_at_once() {
    let two = Two::new();
    let mut a = Side::new(&two, 0);
    assert!(a.request_pair(FIRST) && a.request_pair(FIRST));
    let at = two.block(1);
    assert_eq!(a.events, [Event::Up { peer: FIRST, incarnation: a.incarnation(), theirs: at, own: at }]);
}

#[test]
fn what_is_told_during_a_look_is_found_at_the_next() {
    let two = Two::new();
    let (mut a, mut c, mut b) = (Side::new(&two, 0), Side::new(&two, 0), Side::new(&two, 1));
    let (clock, is_over) = (Arc::clone(&b.clock), AtomicBool::new(false));
    let mut others = [&mut a, &mut c];
    // A side that requests a pair, and is not woken by the other, waits for ever.
    let pair = |side: &mut Side| {
        side.request_pair(SECOND);
        let begin = Instant::now();
        loop {
            let events = side.look();
            if let Some(Event::Up { own, .. }) = events.first() {
                return *own;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "it was told, and does not look");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for event in b.look() {
                    if let Event::Down { peer, incarnation, own } = event {
                        b.memory.give_back(own, peer, incarnation);
                    }
                }
            }
        });
        let stop = Stop(&is_over);
        let mut blocks = others.each_mut().map(|side| pair(side));
        for round in 0..4000 {
            clock.fetch_add(REST_MS * 1_000_000, Ordering::Relaxed);
            let [first, second] = &mut others;
            let give_up = |side: &mut Side, own: u64| {
                side.end_pair(SECOND, own);
                side.clock.fetch_add(REST_MS * 1_000_000, Ordering::Relaxed);
                side.memory.give_back(own, SECOND, 0);
            };
            give_up(first, blocks[0]);
            give_up(second, blocks[1]);
            // The second has the other side look; the first tells meanwhile.
            (0..round % 500).for_each(|_| std::hint::spin_loop());
            blocks = [pair(first), pair(second)];
        }
        drop(stop);
    });
}
