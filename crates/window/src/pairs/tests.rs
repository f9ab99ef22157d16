use super::block::{self, INLINE, MTU, SLOTS, TAKEN};
use super::byte_ring::ByteRing;
use super::door::{End, State, WORDS};
use super::memory::Memory;
use super::rendezvous::{Event, PeerId, Rendezvous};
use super::ring::{Class, HEADERS, Incoming, NO_BYTES, Outgoing, Unsent};
use super::slot::{Kind, Meaning, Place};
use super::waking::{Barrier, Occasion, Waking};
use crate::{Claim, FileDevice, GRANULE, Options, Process, PutDevice, REST_MS};
use proptest::prelude::*;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// Two nodes of a window, and the memory that they are.
struct Two {
    _memory: OwnedFd,
    devices: [Arc<dyn PutDevice>; 2],
}

impl Two {
    fn new() -> Two {
        let options = Options { nodes: Some(2), size: Some(32 << 20), node: None };
        let memory = crate::memfd(&options).unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let open = |node| -> Arc<dyn PutDevice> {
            Arc::new(FileDevice::open(Path::new(&path), &Options { node: Some(node), ..options }).unwrap())
        };
        Two { devices: [open(0), open(1)], _memory: memory }
    }

    /// A ring from the first to the second, whose blocks are the first granule of each.
    fn ring(&self) -> (Outgoing, Incoming) {
        let from = &self.devices[0];
        let at = self.block(0);
        (Outgoing::new(from.channel(1).unwrap(), at, from.own().clone(), at), Incoming::new(at))
    }

    fn block(&self, n: u64) -> u64 {
        u64::from(self.devices[0].facts().layout.granules().start) * crate::GRANULE + n * block::LEN
    }
}

fn headers(n: u64) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    headers[..8].copy_from_slice(&n.to_le_bytes());
    headers[HEADERS - 1] = n as u8;
    headers
}

proptest! {
    #[test]
    fn bytes_in_use_never_overlap(lens in prop::collection::vec(1..=u64::from(MTU), 1..200), keep in 1..8_usize) {
        let mut ring = ByteRing::new(4096, block::BYTES);
        let mut used: std::collections::VecDeque<(u64, u64, u64)> = Default::default();
        for len in lens {
            let (at, mark) = loop {
                match ring.hand_out(len) {
                    Some(found) => break found,
                    // What is empty has room for the longest.
                    None => {
                        let (_, _, mark) = used.pop_front().expect("something is used");
                        ring.free_up_to(mark);
                    }
                }
            };
            prop_assert!(at >= 4096 && at + len <= 4096 + block::BYTES);
            prop_assert!(used.iter().all(|(other, n, _)| at + len <= *other || other + n <= at), "{used:?} and {at}");
            used.push_back((at, len, mark));
            while used.len() > keep {
                let (_, _, mark) = used.pop_front().unwrap();
                ring.free_up_to(mark);
            }
        }
    }

    #[test]
    fn messages_arrive_in_order_and_whole(lens in prop::collection::vec(0..=u64::from(MTU), 1..300), batch in 1..40_usize) {
        let two = Two::new();
        let (mut out, mut incoming) = two.ring();
        let to = &two.devices[1];
        let mut back = to.channel(0).map(|channel| Outgoing::new(channel, two.block(0), to.own().clone(), two.block(0))).unwrap();
        let bytes = |n: usize, len: u64| (0..len).map(|i| (n as u64 * 31 + i) as u8).collect::<Vec<_>>();
        let (mut sent, mut taken) = (0, 0);
        while taken < lens.len() {
            while sent < lens.len() && sent - taken < batch {
                let data = bytes(sent, lens[sent]);
                match out.packet(Class::Request, &headers(sent as u64), &&data[..]) {
                    Ok(()) => sent += 1,
                    Err(Unsent::Full) => break,
                    Err(other) => return Err(TestCaseError::fail(format!("{other:?}"))),
                }
            }
            while let Some(message) = incoming.next(to.own()).unwrap() {
                if message.kind == Kind::WantLongRing {
                    // None is given: the block has to do.
                    incoming.took(&message);
                    continue;
                }
                prop_assert_eq!(message.headers, headers(taken as u64));
                let at = to.own().bytes(message.payload..message.payload + message.len).unwrap();
                // SAFETY: the region is mapped, and nobody writes meanwhile.
                let got = unsafe { std::slice::from_raw_parts(at, message.len as usize) };
                prop_assert_eq!(got, &bytes(taken, lens[taken])[..]);
                taken += 1;
                if let Some(n) = incoming.took(&message) {
                    back.tell_taken(n);
                }
            }
            if let Some(n) = incoming.untold(true) {
                back.tell_taken(n);
            }
            prop_assert!(out.look().is_ok());
            prop_assert_eq!(out.taken(), out.sent(), "all that has come was taken, and told");
        }
    }

    #[test]
    fn what_cannot_be_is_no_message(words in prop::collection::vec(any::<u64>(), 7), near in any::<bool>()) {
        let two = Two::new();
        let (_, incoming) = two.ring();
        let region = two.devices[1].own();
        let at = two.block(0) + block::slot_at(0);
        for (i, word) in words.iter().enumerate() {
            // Sometimes it is nearly one.
            let word = if near && i == 5 { word & 0xffff_ffff | 0x0010_0101_u64 << 32 } else { *word };
            region.word(at + 8 * (1 + i as u64)).store(word, Ordering::Relaxed);
        }
        region.word(at).store(1, Ordering::Release);
        if let Ok(message) = incoming.next(region) {
            let message = message.expect("its tag is there");
            prop_assert!(message.len <= MTU.into());
            let own = two.block(0)..two.block(0) + block::LEN;
            prop_assert!(own.contains(&message.payload) || message.len == 0, "{:?}", message);
            prop_assert!(message.payload + message.len <= own.end);
        }
    }
}

#[test]
fn a_ring_keeps_slots_for_answers_and_refuses_counts_that_cannot_be() {
    let two = Two::new();
    let (mut out, _) = two.ring();
    let send = |out: &mut Outgoing, class| out.packet(class, &headers(0), &NO_BYTES);
    let requests = (0..SLOTS).take_while(|_| send(&mut out, Class::Request).is_ok()).count() as u64;
    assert_eq!(requests, SLOTS - Class::Request as u64);
    let answers = (0..SLOTS).take_while(|_| send(&mut out, Class::Answer).is_ok()).count() as u64;
    assert_eq!(answers, (Class::Request as u64) - (Class::Answer as u64));
    for _ in 0..Class::Answer as u64 {
        assert_eq!(out.send(Kind::Join, &headers(0), &NO_BYTES), Ok(()));
    }
    assert_eq!(out.send(Kind::Join, &headers(0), &NO_BYTES), Err(Unsent::Full));
    let taken = two.devices[0].own().word(two.block(0) + TAKEN);
    taken.store(SLOTS + 1, Ordering::Release);
    assert_eq!(out.look(), Err(Unsent::Broken), "more than was sent");
    taken.store(7, Ordering::Release);
    assert_eq!((out.look(), out.taken()), (Ok(true), 7));
    taken.store(6, Ordering::Release);
    assert_eq!(out.look(), Err(Unsent::Broken), "less than before");
}

#[test]
fn a_long_ring_is_used_once_it_is_there() {
    let two = Two::new();
    let (mut out, mut incoming) = two.ring();
    let to = &two.devices[1];
    let long = vec![9; MTU as usize];
    assert_eq!(out.packet(Class::Request, &headers(1), &&long[..]), Ok(()));
    let ask = incoming.next(to.own()).unwrap().unwrap();
    assert_eq!(ask.kind, Kind::WantLongRing);
    incoming.took(&ask);
    let first = incoming.next(to.own()).unwrap().unwrap();
    assert_eq!((first.kind, first.len), (Kind::Packet, MTU.into()));
    incoming.took(&first);
    let at = two.block(2);
    assert!(out.got_long(at) && !out.got_long(at + block::LONG_BYTES), "one is enough");
    assert_eq!(out.packet(Class::Request, &headers(2), &&long[..]), Ok(()));
    assert!(incoming.next(to.own()).is_err(), "it has told of none");
    incoming.has_long(at);
    let second = incoming.next(to.own()).unwrap().unwrap();
    assert_eq!((second.payload, second.len), (at, MTU.into()));
}

#[test]
fn what_a_slot_means_is_what_was_meant() {
    let kinds = [Kind::Packet, Kind::WantLongRing, Kind::LongRing, Kind::Join, Kind::Leave];
    for kind in kinds.into_iter().chain([Kind::WantGrant, Kind::Grant, Kind::NoGrant, Kind::Begins, Kind::Landing]) {
        for place in [Place::Slot, Place::Block, Place::LongRing] {
            let meaning = Meaning { kind, place, len: INLINE as u16 };
            assert_eq!(Meaning::decode(meaning.encode()), Some(meaning));
        }
    }
    for wrong in [[0, 0, 0, 0], [12, 0, 0, 0], [1, 4, 0, 0], [255; 4]] {
        assert_eq!(Meaning::decode(wrong), None);
    }
}

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
        let rendezvous = Rendezvous::new(device, PeerId { node, process: process.number() }, process.incarnation());
        Side { process, clock, rendezvous, memory, events: Vec::new() }
    }

    fn incarnation(&self) -> u64 {
        self.process.incarnation()
    }

    fn want(&mut self, peer: PeerId) -> bool {
        let Side { rendezvous, memory, events, .. } = self;
        rendezvous.want(0, peer, memory, &mut |event| events.push(event))
    }

    fn look(&mut self) -> Vec<Event> {
        let Side { rendezvous, memory, events, .. } = self;
        if rendezvous.bell().is_rung() {
            rendezvous.look(memory, &mut |event| events.push(event));
        }
        std::mem::take(events)
    }

    fn ended(&mut self, peer: PeerId, own: u64) -> Vec<Event> {
        let Side { rendezvous, memory, events, .. } = self;
        rendezvous.ended(peer, own, memory, &mut |event| events.push(event));
        std::mem::take(events)
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
        assert!(a.want(SECOND));
        // It was not there yet; as it comes, it is told again.
        let mut b = Side::new(&two, 1);
        if both {
            assert!(b.want(FIRST));
        }
        let incarnations = [a.incarnation(), b.incarnation()];
        blocks(&settle(&mut a, &mut b), incarnations);
        assert_eq!((a.rendezvous.tell_again(1 << 41), b.rendezvous.tell_again(1 << 41)), (None, None), "both know");
        assert_eq!(settle(&mut a, &mut b), [vec![], vec![]]);
        // Who wants what is there has it.
        assert!(a.want(SECOND) && b.want(FIRST));
        assert_eq!(settle(&mut a, &mut b), [vec![], vec![]]);
    }
}

#[test]
fn who_is_not_answered_tells_again_and_ever_more_seldom() {
    let two = Two::new();
    let mut a = Side::new(&two, 0);
    a.want(SECOND);
    let mut at = Vec::new();
    let mut now = 0;
    while let Some(next) = a.rendezvous.tell_again(now)
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
    a.want(SECOND);
    let [own, _] = blocks(&settle(&mut a, &mut b), [a.incarnation(), b.incarnation()]);
    let old = b.incarnation();
    drop(b);
    let mut c = Side::new(&two, 1);
    assert_eq!(a.look(), [Event::Down { peer: SECOND, incarnation: old, own }], "it tells of itself");
    a.memory.give_back(own, SECOND, old);
    a.want(SECOND);
    let incarnations = [a.incarnation(), c.incarnation()];
    blocks(&settle(&mut a, &mut c), incarnations);
}

#[test]
fn what_was_meant_for_the_process_before_is_not_for_this_one() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    a.want(SECOND);
    let [_, there] = blocks(&settle(&mut a, &mut b), [a.incarnation(), b.incarnation()]);
    drop(a);
    let mut c = Side::new(&two, 0);
    // In time for its doors to be wiped out, not for the second to know.
    assert!(b.ended(FIRST, there).iter().all(|event| matches!(event, Event::Down { own, .. } if *own == there)));
    b.want(FIRST);
    let incarnations = [c.incarnation(), b.incarnation()];
    blocks(&settle(&mut c, &mut b), incarnations);
}

#[test]
fn a_pair_that_one_side_ends_is_over_for_both_and_another_one_has_other_blocks() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0), Side::new(&two, 1));
    a.want(SECOND);
    let incarnations = [a.incarnation(), b.incarnation()];
    let first = blocks(&settle(&mut a, &mut b), incarnations);
    assert_eq!(a.ended(SECOND, first[0] + block::LEN), [], "another one");
    assert_eq!(a.ended(SECOND, first[0]), [Event::Down { peer: SECOND, incarnation: incarnations[1], own: first[0] }]);
    assert_eq!(b.look(), [Event::Down { peer: FIRST, incarnation: incarnations[0], own: first[1] }]);
    a.memory.give_back(first[0], SECOND, incarnations[1]);
    b.memory.give_back(first[1], FIRST, incarnations[0]);
    a.want(SECOND);
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
    // What nobody was told of, and what was a dead one's, does not rest.
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
    a.want(SECOND);
    assert_eq!(settle(&mut a, &mut b), [vec![Event::NoRoom(SECOND)], vec![]]);
    assert!(!b.want(FIRST));
    a.rendezvous.tell_again(1 << 40);
    assert_eq!(settle(&mut a, &mut b), [vec![], vec![]], "it is said once");
    drop(rest);
    a.rendezvous.tell_again(1 << 41);
    let incarnations = [a.incarnation(), b.incarnation()];
    blocks(&settle(&mut a, &mut b), incarnations);
}

#[test]
fn a_process_finds_itself_at_once() {
    let two = Two::new();
    let mut a = Side::new(&two, 0);
    assert!(a.want(FIRST) && a.want(FIRST));
    let at = two.block(1);
    assert_eq!(a.events, [Event::Up { peer: FIRST, incarnation: a.incarnation(), theirs: at, own: at }]);
}

#[test]
fn what_is_told_during_a_look_is_found_at_the_next() {
    let two = Two::new();
    let (mut a, mut c, mut b) = (Side::new(&two, 0), Side::new(&two, 0), Side::new(&two, 1));
    let (clock, is_over) = (Arc::clone(&b.clock), AtomicBool::new(false));
    let mut others = [&mut a, &mut c];
    // Who wants a pair, and is not woken up by the other side, waits for ever.
    let pair = |side: &mut Side| {
        side.want(SECOND);
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
                side.ended(SECOND, own);
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

/// Has another thread stop, also when this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_slot_that_changes_meanwhile_is_read_once() {
    let two = Two::new();
    let (_, incoming) = two.ring();
    let region = two.devices[1].own();
    let at = two.block(0) + block::slot_at(0);
    region.word(at).store(1, Ordering::Release);
    let what = |place: Place, len: u16| {
        let meaning = Meaning { kind: Kind::Packet, place, len }.encode();
        u64::from(u32::from_le_bytes(meaning)) << 32
    };
    // A message in the slot, one in the block, and what fits neither.
    let meanings = [what(Place::Slot, 8), what(Place::Block, 16_000), what(Place::Slot, 60_000)];
    let places = [two.block(0) + block::BYTES_AT, two.block(0) + block::LEN - 1, 0, u64::MAX];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (meaning, place) in (0..).map(|i| (meanings[i % 3], places[i / 3 % 4])) {
                region.word(at + 48).store(meaning, Ordering::Relaxed);
                region.word(at + block::INLINE_AT).store(place, Ordering::Relaxed);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _stop = Stop(&is_over);
        let own = two.block(0)..two.block(0) + block::LEN;
        for _ in 0..3_000_000 {
            if let Ok(message) = incoming.next(region) {
                let message = message.expect("its tag is there");
                assert!(own.contains(&message.payload) && message.payload + message.len <= own.end, "{message:?}");
                let is_inline = message.payload == at + block::INLINE_AT;
                assert!(!is_inline || message.len <= INLINE, "{message:?}");
            }
        }
    });
}

impl Two {
    /// A ring from the first to the second and what the second says to the first, who wake each other: as processes 3 and 5.
    fn waking_ring(&self) -> (Outgoing, Incoming, Outgoing) {
        let ids = [PeerId { node: 0, process: 3 }, PeerId { node: 1, process: 5 }];
        let [out, back] = [0, 1].map(|n| {
            let device = &self.devices[n];
            let channel = device.channel(1 - n as u32).unwrap();
            let mut outgoing = Outgoing::new(channel, self.block(0), device.own().clone(), self.block(0));
            let layout = device.facts().layout;
            outgoing.wakes(Waking::new(layout, ids[1 - n], ids[n], Occasion::Pair), Barrier::Full);
            outgoing
        });
        assert!(out.lacks_announcement() && back.lacks_announcement());
        (out, Incoming::new(self.block(0)), back)
    }

    /// Where the second sleeps.
    fn waking_word(&self) -> u64 {
        Rendezvous::waking_word(self.devices[1].facts().layout, PeerId { node: 1, process: 5 })
    }
}

#[test]
fn a_sender_wakes_once_for_each_announcement() {
    let two = Two::new();
    assert!(two.devices[0].wakes(1) && !two.devices[0].wakes(7));
    let (mut out, _, mut back) = two.waking_ring();
    let word = || two.devices[1].own().word(two.waking_word()).load(Ordering::Relaxed);
    let mut last = word();
    for round in 0..3 {
        out.packet(Class::Request, &headers(0), &NO_BYTES).unwrap();
        assert_eq!(word(), last, "nobody sleeps");
        assert!(back.announce_sleep(), "{round}");
        assert!(!back.announce_sleep(), "there is one already");
        for more in 0..3 {
            match more {
                0 if round == 2 => out.tell_taken(0),
                _ => out.packet(Class::Request, &headers(0), &NO_BYTES).unwrap(),
            }
            out.rouse();
            assert_eq!(word() != last, more == 0, "{more}");
            last = word();
        }
        assert!(back.lacks_announcement());
    }
    assert!(out.lacks_announcement(), "the other way nothing was announced");
}

#[test]
fn who_announces_and_looks_once_more_is_always_woken() {
    const MESSAGES: u64 = 100_000;
    let two = Two::new();
    let (mut out, mut incoming, mut back) = two.waking_ring();
    let (device, waking_word) = (Arc::clone(&two.devices[1]), two.waking_word());
    let has_taken = Arc::new(AtomicU64::new(0));
    let taken = Arc::clone(&has_taken);
    std::thread::spawn(move || {
        loop {
            let seen = device.own().word(waking_word).load(Ordering::Acquire) as u32;
            back.announce_sleep();
            fence(Ordering::SeqCst);
            let Some(message) = incoming.next(device.own()).unwrap() else {
                device.sleep(waking_word, seen);
                continue;
            };
            if let Some(n) = incoming.took(&message) {
                back.tell_taken(n);
            }
            taken.fetch_add(1, Ordering::Release);
        }
    });
    for n in 0..MESSAGES {
        out.packet(Class::Request, &headers(n), &NO_BYTES).unwrap();
        let since = Instant::now();
        while has_taken.load(Ordering::Acquire) <= n {
            assert!(since.elapsed() < Duration::from_secs(60), "the sleeper was not woken");
            (0..4).for_each(|_| std::hint::spin_loop());
        }
        // The next one comes while the other looks, announces, looks once more, or sleeps.
        (0..n % 32).for_each(|_| std::hint::spin_loop());
    }
}
