use super::block::{self, INLINE, MTU, SLOTS, TAKEN};
use super::byte_ring::ByteRing;
use super::door::{State, WORDS};
use super::rendezvous::{Blocks, Event, PeerId, Rendezvous};
use super::ring::{Class, HEADERS, Incoming, NO_BYTES, Outgoing, Unsent};
use super::slot::{Kind, Meaning, Place};
use crate::{FileDevice, Options, PutDevice};
use proptest::prelude::*;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    out.got_long(at);
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
    let old = State { incarnation: 7, meant: 0, block: Some(64) }.encode(1);
    let new = State { incarnation: 8, meant: 3, block: None }.encode(2);
    assert_eq!(State::decode(&new), Some((2, State { incarnation: 8, meant: 3, block: None })));
    // The last word is put first, the first last.
    for done in 1..WORDS {
        let mut torn = old;
        torn[WORDS - done..].copy_from_slice(&new[WORDS - done..]);
        assert_eq!(State::decode(&torn), None, "{done} words");
    }
    assert_eq!(State::decode(&[0; WORDS]), None);
}

/// Blocks from the first granule on.
struct Many {
    next: u64,
    end: u64,
    back: Vec<u64>,
}

impl Blocks for Many {
    fn take(&mut self) -> Option<u64> {
        let block = self.next;
        (block < self.end).then(|| {
            self.next += block::LEN;
            block
        })
    }

    fn give_back(&mut self, block: u64, _peer: PeerId, _incarnation: u64) {
        self.back.push(block);
    }
}

/// A process, and what has happened to it.
struct Side {
    rendezvous: Rendezvous,
    blocks: Many,
    events: Vec<Event>,
}

impl Side {
    fn new(two: &Two, node: u32, incarnation: u64) -> Side {
        let device = Arc::clone(&two.devices[node as usize]);
        let rendezvous = Rendezvous::new(device, PeerId { node, process: 0 }, incarnation);
        let next = two.block(0);
        Side { rendezvous, blocks: Many { next, end: next + 4 * block::LEN, back: Vec::new() }, events: Vec::new() }
    }

    fn want(&mut self, peer: PeerId) -> bool {
        let Side { rendezvous, blocks, events } = self;
        rendezvous.want(0, peer, blocks, &mut |event| events.push(event))
    }

    fn look(&mut self) -> Vec<Event> {
        let Side { rendezvous, blocks, events } = self;
        if rendezvous.is_rung() {
            rendezvous.look(blocks, &mut |event| events.push(event));
        }
        std::mem::take(events)
    }
}

const FIRST: PeerId = PeerId { node: 0, process: 0 };
const SECOND: PeerId = PeerId { node: 1, process: 0 };

#[test]
fn two_that_want_each_other_find_each_other_whoever_comes_first() {
    for both in [false, true] {
        let two = Two::new();
        let mut a = Side::new(&two, 0, 5);
        assert!(a.want(SECOND));
        // It was not there yet; what is told again is heard.
        let mut b = Side::new(&two, 1, 6);
        if both {
            assert!(b.want(FIRST));
        }
        assert!(a.rendezvous.tell_again(1 << 40).is_some());
        let at = two.block(0);
        let up = |peer, incarnation| Event::Up { peer, incarnation, theirs: at, own: at };
        assert_eq!(b.look(), [up(FIRST, 5)]);
        assert_eq!(a.look(), [up(SECOND, 6)]);
        let _ = (b.look(), a.look());
        assert_eq!((a.rendezvous.tell_again(1 << 41), b.rendezvous.tell_again(1 << 41)), (None, None), "both know");
        assert_eq!((a.look(), b.look()), (vec![], vec![]));
    }
}

#[test]
fn another_process_of_the_same_number_is_another_one() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0, 5), Side::new(&two, 1, 6));
    a.want(SECOND);
    assert_eq!((b.look().len(), a.look().len()), (1, 1));
    let mut c = Side::new(&two, 1, 7);
    assert_eq!(a.look(), [Event::Down(SECOND)], "it tells of itself");
    assert_eq!(a.blocks.back.len(), 1);
    a.want(SECOND);
    assert!(matches!(c.look()[..], [Event::Up { incarnation: 5, .. }]));
    assert!(matches!(a.look()[..], [Event::Up { incarnation: 7, .. }]));
}

#[test]
fn who_has_no_room_says_so() {
    let two = Two::new();
    let (mut a, mut b) = (Side::new(&two, 0, 5), Side::new(&two, 1, 6));
    b.blocks.end = b.blocks.next;
    a.want(SECOND);
    assert_eq!(b.look(), []);
    assert_eq!(a.look(), [Event::NoRoom(SECOND)]);
    assert!(!b.want(FIRST));
}

#[test]
fn a_process_finds_itself_at_once() {
    let two = Two::new();
    let mut a = Side::new(&two, 0, 5);
    assert!(a.want(FIRST));
    let at = two.block(0);
    assert_eq!(a.events, [Event::Up { peer: FIRST, incarnation: 5, theirs: at, own: at }]);
}
