//! Messages from one end to the other.

use super::{Stop, Two};
use crate::device::{Channel, Put, Refused, Traits};
use crate::pairs::block::{self, INLINE, MTU, SLOTS, TAKEN};
use crate::pairs::byte_ring::ByteRing;
use crate::pairs::ring::{ACKNOWLEDGEMENT, Class, HEADERS, NO_BYTES, Outgoing, Unsent};
use crate::pairs::slot::{Kind, Meaning, Place};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub fn headers(n: u64) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    headers[..8].copy_from_slice(&n.to_le_bytes());
    headers[HEADERS - 1] = n as u8;
    headers
}

/// A way on which each put takes long.
struct Slow(Box<dyn Channel>);

impl Channel for Slow {
    fn put(&mut self, chain: &[Put<'_>]) -> Result<(), Refused> {
        self.0.put(chain)
    }

    fn traits(&self) -> Traits {
        Traits { is_slow: true, ..self.0.traits() }
    }
}

/// Messages sent to a peer one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// Progress of QP `qp`.
    Acknowledged {
        qp: u32,
        psn: u32,
    },
    Packet(u64),
    Group,
}

#[derive(Debug, Clone)]
enum Act {
    Acknowledge(u32),
    /// A packet with headers of so many bytes.
    Packet(usize),
    Group,
    Flush,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..4_u32).prop_map(Act::Acknowledge),
        4 => prop::sample::select(vec![12_usize, 28, 32, 36, 44]).prop_map(Act::Packet),
        1 => Just(Act::Group),
        1 => Just(Act::Flush),
    ]
}

proptest! {
    #[test]
    fn acknowledgements_go_before_what_follows_them(acts in prop::collection::vec(act(), 1..200)) {
        let two = Two::new();
        let to = &two.devices[1];
        let at = two.block(0);
        let channel = Box::new(Slow(two.devices[0].channel(1).unwrap()));
        let mut out = Outgoing::new(channel, at, two.devices[0].own().clone(), at);
        let mut incoming = crate::pairs::ring::Incoming::new(at);
        let mut back = to.channel(0).map(|channel| Outgoing::new(channel, at, to.own().clone(), at)).unwrap();
        let decode = |word: &[u8]| u32::from_le_bytes(*word.first_chunk().unwrap());
        let (mut said, mut heard, mut messages) = (Vec::new(), Vec::new(), 0);
        let mut held = None;
        prop_assert!(out.holds_acknowledgements());
        for (n, act) in (1_u32..).zip(acts) {
            match act {
                Act::Acknowledge(qp) => {
                    let mut short = [0; ACKNOWLEDGEMENT];
                    short[..4].copy_from_slice(&qp.to_le_bytes());
                    short[4..8].copy_from_slice(&n.to_le_bytes());
                    let mut whole = [0; HEADERS];
                    whole[..ACKNOWLEDGEMENT].copy_from_slice(&short);
                    whole[ACKNOWLEDGEMENT] = b'A';
                    let stands_for = out.hold(short, &whole).unwrap();
                    prop_assert_eq!(stands_for, held == Some(qp));
                    if stands_for {
                        said.pop();
                    }
                    messages += u32::from(held.is_some() && !stands_for);
                    held = Some(qp);
                    said.push(Said::Acknowledged { qp, psn: n });
                }
                Act::Packet(len) => {
                    let mut headers = [0; HEADERS];
                    headers[..8].copy_from_slice(&u64::from(n).to_le_bytes());
                    headers[12..len].fill(b'P');
                    out.headers_end(|| len);
                    out.packet(Class::Request, &headers, &NO_BYTES).unwrap();
                    messages += 1 + u32::from(held.take().is_some() && len + ACKNOWLEDGEMENT > HEADERS);
                    said.push(Said::Packet(n.into()));
                }
                Act::Group => {
                    out.send(Kind::Join, &[0; HEADERS], &NO_BYTES).unwrap();
                    messages += 1 + u32::from(held.take().is_some());
                    said.push(Said::Group);
                }
                Act::Flush => {
                    out.flush();
                    messages += u32::from(held.take().is_some());
                }
            }
            prop_assert_eq!(out.owes(), held.is_some());
            while let Some(message) = incoming.next(to.own()).unwrap() {
                let acknowledged = |of: &[u8]| Said::Acknowledged { qp: decode(of), psn: decode(&of[4..]) };
                heard.extend(message.acknowledgement().map(|of| acknowledged(&of)));
                heard.push(match message.kind {
                    Kind::Packet if message.headers[ACKNOWLEDGEMENT] == b'A' => acknowledged(&message.headers),
                    Kind::Packet => Said::Packet(u64::from_le_bytes(*message.headers.first_chunk().unwrap())),
                    _ => Said::Group,
                });
                messages -= 1;
                if let Some(taken) = incoming.took(&message) {
                    back.tell_taken(taken);
                }
            }
            prop_assert_eq!(messages, 0, "messages that did not come");
            prop_assert_eq!(&said[..said.len() - usize::from(held.is_some())], &heard[..]);
        }
    }

    #[test]
    fn bytes_in_use_never_overlap(lens in prop::collection::vec(1..=u64::from(MTU), 1..200), keep in 1..8_usize) {
        let mut ring = ByteRing::new(4096, block::BYTES);
        let mut used: std::collections::VecDeque<(u64, u64, u64)> = Default::default();
        for len in lens {
            let (at, mark) = loop {
                match ring.hand_out(len) {
                    Some(found) => break found,
                    // An empty ring has room for the longest message.
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
fn an_acknowledgement_without_room_is_owed_until_there_is_some() {
    let two = Two::new();
    let (to, at) = (&two.devices[1], two.block(0));
    let channel = Box::new(Slow(two.devices[0].channel(1).unwrap()));
    let mut out = Outgoing::new(channel, at, two.devices[0].own().clone(), at);
    let full = (0..SLOTS).take_while(|_| out.packet(Class::Answer, &headers(0), &NO_BYTES).is_ok()).count() as u64;
    out.hold([7; ACKNOWLEDGEMENT], &headers(1)).unwrap();
    assert_eq!(out.hold([8; ACKNOWLEDGEMENT], &headers(2)), Err(Unsent::Full), "somebody else's");
    out.flush();
    assert!(out.owes());
    two.devices[0].own().word(at + TAKEN).store(1, Ordering::Release);
    out.flush();
    assert!(!out.owes());
    let tag = to.own().word(at + block::slot_at(full)).load(Ordering::Acquire);
    assert_eq!(tag, full + 1, "the message behind the others");
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
    let of_grants = [Kind::WantGrant, Kind::Grant, Kind::NoGrant, Kind::WantLanding, Kind::Landing, Kind::NoLanding];
    let later = [Kind::ReadPacket, Kind::WantPsns, Kind::Psns];
    for kind in kinds.into_iter().chain(of_grants).chain(later) {
        for place in [Place::Slot, Place::Block, Place::LongRing, Place::Landed] {
            let meaning = Meaning { kind, place, len: INLINE as u16, acknowledges: false };
            assert_eq!(Meaning::decode(meaning.encode()), Some(meaning));
        }
    }
    let acknowledging = Meaning { kind: Kind::Packet, place: Place::Landed, len: 0, acknowledges: true };
    assert_eq!(Meaning::decode(acknowledging.encode()), Some(acknowledging));
    // A message that is no packet never acknowledges.
    for wrong in [[0, 0, 0, 0], [15, 0, 0, 0], [1, 4, 0, 0], [0x84, 0, 0, 0], [255; 4]] {
        assert_eq!(Meaning::decode(wrong), None);
    }
}

#[test]
fn a_slot_that_changes_meanwhile_is_read_once() {
    const OFTEN: usize = 3_000_000;
    let two = Two::new();
    let (_, incoming) = two.ring();
    let region = two.devices[1].own();
    let at = two.block(0) + block::slot_at(0);
    region.word(at).store(1, Ordering::Release);
    let what = |place: Place, len: u16| {
        let meaning = Meaning { kind: Kind::Packet, place, len, acknowledges: false }.encode();
        u64::from(u32::from_le_bytes(meaning)) << 32
    };
    // A message in the slot, one in the block, and what fits neither.
    let meanings = [what(Place::Slot, 8), what(Place::Block, 16_000), what(Place::Slot, 60_000)];
    let places = [two.block(0) + block::BYTES_AT, two.block(0) + block::LEN - 1, 0, u64::MAX];
    let (is_over, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0.. {
                region.word(at + 48).store(meanings[i % 3], Ordering::Relaxed);
                region.word(at + block::INLINE_AT).store(places[i / 3 % 4], Ordering::Relaxed);
                changes.store(i, Ordering::Relaxed);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _stop = Stop(&is_over);
        let own = two.block(0)..two.block(0) + block::LEN;
        // The other thread may begin late.
        let mut looks = 0;
        while looks < OFTEN || changes.load(Ordering::Relaxed) < OFTEN {
            looks += 1;
            if let Ok(message) = incoming.next(region) {
                let message = message.expect("its tag is there");
                assert!(own.contains(&message.payload) && message.payload + message.len <= own.end, "{message:?}");
                let is_inline = message.payload == at + block::INLINE_AT;
                assert!(!is_inline || message.len <= INLINE, "{message:?}");
            }
        }
    });
}
