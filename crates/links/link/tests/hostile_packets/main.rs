//! Hostile packets at live QPs. A packet that fails any check changes nothing but a counter, and nothing is sent
//! because of it. A packet that seems to come from a QP's peer is answered as the specification demands, and no more.

mod congestion;
mod credit;
mod forge;
mod gaps;
#[path = "../../../../protocols/wire/tests/common/mod.rs"]
#[allow(dead_code)]
mod golden;
#[allow(dead_code)]
mod side;
mod sockets;
mod violations;
mod waiting;
mod world;

use forge::{Fate, Forged, Forger, Mark, seal};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use vervain_hca::QpType;
use vervain_roce::net::Datagram;
use vervain_wire::opcode;
use world::{HERE, MTU, World, alone, resident};

const KINDS: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend];
/// Packets that arrive together.
const TRAIN: usize = 64;
/// Attacks, between which messages go through.
const ROUNDS: usize = 10;
/// Bytes by which the process may grow under attack.
const GROWTH: u64 = 8 << 20;

fn captured() -> Vec<Vec<u8>> {
    let captures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../protocols/wire/tests/golden");
    golden::packets(captures).into_iter().map(|packet| packet.datagram).collect()
}

/// Everything that is counted and may account for a packet.
fn counted(world: &World) -> BTreeMap<Fate, u64> {
    let port = world.roce.port(HERE).unwrap();
    let of_port = port.counters();
    let mut counts = BTreeMap::from([
        (Fate::BadIcrc, of_port.bad_icrc.get()),
        (Fate::Malformed, of_port.malformed.get()),
        (Fate::Unwanted, of_port.unwanted.get()),
        (Fate::BadQkey, of_port.bad_qkey.get()),
        (Fate::Unowned, world.roce.unowned(HERE).unwrap()),
    ]);
    for pair in world.pairs.iter().filter(|pair| pair.kind != QpType::Ud) {
        for qp in [&pair.a, &pair.b] {
            let (responder, requester) = world.roce.counters(qp.qp_num()).unwrap();
            *counts.entry(Fate::Dropped).or_default() += responder.dropped;
            *counts.entry(Fate::Stale).or_default() += requester.map_or(0, |counters| counters.stale);
            if pair.kind == QpType::Uc {
                // A packet from shortly before is dropped as a duplicate; a gap is counted, and the packet behind it as
                // well.
                *counts.entry(Fate::Dropped).or_default() += responder.duplicates;
            } else {
                *counts.entry(Fate::Duplicate).or_default() += responder.duplicates;
                *counts.entry(Fate::OutOfSequence).or_default() += responder.out_of_sequence;
            }
        }
    }
    counts
}

/// Adds `fate` to the expected growth of [`counted`].
fn note(fates: &mut BTreeMap<Fate, u64>, fate: Fate) {
    let counters: &[Fate] = match fate {
        Fate::Ghost => &[Fate::Duplicate, Fate::Dropped],
        _ => &[fate],
    };
    counters.iter().for_each(|counter| *fates.entry(*counter).or_default() += 1);
}

fn growth(before: &BTreeMap<Fate, u64>, after: &BTreeMap<Fate, u64>) -> BTreeMap<Fate, u64> {
    let grown = after.iter().map(|(fate, n)| (*fate, n - before[fate]));
    grown.filter(|(_, n)| *n > 0).collect()
}

fn take_in(world: &World, train: &[Forged]) {
    let datagrams = train.iter().map(|forged| Datagram {
        from: forged.from,
        to: HERE,
        hop_limit: 64,
        tos: 0,
        overflowed: false,
        label: 0,
        index: 0,
        bytes: &forged.bytes,
    });
    assert!(world.roce.take_in(HERE, datagrams));
}

/// Number of packets to forge: `part` of this many, or of those that `VERVAIN_HOSTILE_PACKETS` asks for.
fn packets(part: f64) -> usize {
    let all = std::env::var("VERVAIN_HOSTILE_PACKETS").ok().map_or(10_000_000.0, |n| n.parse().unwrap());
    (all * part) as usize
}

fn seed() -> u64 {
    let seed = std::env::var("VERVAIN_SEED").ok().map_or(0x5eed_0001, |seed| seed.parse().unwrap());
    println!("VERVAIN_SEED={seed}");
    seed
}

/// Results of a round.
struct Round {
    trains: u64,
    /// Fates counted, and packets sent.
    counted: BTreeMap<Fate, u64>,
    fates: BTreeMap<Fate, u64>,
    /// Packets that went out.
    answers: u64,
}

/// Attacks in rounds, between which messages go through, and tells `check` of each.
fn attack(world: &mut World, count: usize, forge: fn(&mut Forger) -> Forged, check: fn(&mut Round)) {
    let mut forger = Forger::new(world, seed(), captured());
    let port = world.roce.port(HERE).unwrap();
    let mut resident_before = 0;
    for round in 0..ROUNDS {
        forger.look(world);
        let trains = count / TRAIN / ROUNDS;
        let (before, sent) = (counted(world), port.counters().sent_packets.get());
        let mut fates = BTreeMap::new();
        for _ in 0..trains {
            let train: Vec<Forged> = (0..TRAIN).map(|_| forge(&mut forger)).collect();
            train.iter().for_each(|forged| note(&mut fates, forged.fate));
            take_in(world, &train);
        }
        world.unchanged("after an attack");
        let answers = port.counters().sent_packets.get() - sent;
        check(&mut Round { trains: trains as u64, counted: growth(&before, &counted(world)), fates, answers });
        world.works();
        world.unchanged("after the messages that followed an attack");
        if round == 0 {
            resident_before = resident();
        }
    }
    let grown = resident().saturating_sub(resident_before);
    assert!(grown < GROWTH, "{grown} bytes more are resident");
}

#[test]
fn what_fails_a_check_changes_nothing_but_its_counter_and_is_not_answered() {
    alone("what_fails_a_check_changes_nothing_but_its_counter_and_is_not_answered", || {
        let mut world = World::new(&KINDS);
        attack(
            &mut world,
            packets(0.7),
            |forger| forger.refused(true),
            |round| {
                assert_eq!(round.counted, round.fates, "what is counted, what was sent");
                assert_eq!(round.answers, 0, "packets that went out");
            },
        );
    });
}

#[test]
fn what_comes_from_the_peer_out_of_place_changes_nothing_but_its_counter() {
    alone("what_comes_from_the_peer_out_of_place_changes_nothing_but_its_counter", || {
        let mut world = World::new(&KINDS);
        attack(&mut world, packets(0.3), Forger::out_of_place, |round| {
            // The answers go to the same process, whose requesters wait for none.
            let (forged, answers) = (round.fates[&Fate::Stale], round.answers);
            let stale = round.counted.get_mut(&Fate::Stale).unwrap();
            assert!((forged..=forged + answers).contains(stale), "{stale} stale, {forged} sent, {answers} answers");
            *stale = forged;
            assert_eq!(round.counted, round.fates, "what is counted, what was sent");
            // An acknowledgement and a NAK for each of the two reliable QPs, train by train.
            assert!(answers <= round.trains * 4, "{answers} answers to {} trains", round.trains);
        });
    });
}

/// A READ of some packets, and the request for it as it was sent.
fn a_read(world: &mut World, length: usize) -> (Mark, Forged) {
    let mark = Mark::of(world, QpType::Rc);
    let from = SocketAddr::from(([127, 0, 0, 1], 0xc001));
    world.pairs[0].read(length);
    world.pairs[0].messages += length.div_ceil(MTU) as u32;
    world.unchanged("after a READ");
    let headers = mark.headers(opcode::READ_REQUEST, mark.expected, length as u32);
    let mut bytes = forge::emit(&headers, 0);
    seal(&mut bytes, from);
    (mark, Forged { from, bytes, fate: Fate::Duplicate })
}

#[test]
fn a_read_that_is_asked_for_again_and_again_is_answered_a_bounded_number_of_times() {
    alone("a_read_that_is_asked_for_again_and_again_is_answered_a_bounded_number_of_times", || {
        const PACKETS: u64 = 8;
        let mut world = World::new(&[QpType::Rc]);
        let (mark, again) = a_read(&mut world, PACKETS as usize * MTU);
        let port = world.roce.port(HERE).unwrap();
        let sent = |world: &World, packets: &[Forged]| {
            let before = port.counters().sent_packets.get();
            take_in(world, packets);
            world.drain("while READs are repeated");
            port.counters().sent_packets.get() - before
        };
        assert_eq!(sent(&world, std::slice::from_ref(&again)), PACKETS, "asked for again, it is answered again");
        assert_eq!(sent(&world, &vec![again.clone(); 1000]), PACKETS, "a thousand times at once");
        // Any part of it may be asked for. Those that overlap take each other's place.
        let mut parts = Vec::new();
        for n in 0..1024u32 {
            let (skipped, length) = (n % PACKETS as u32, 1 + n / PACKETS as u32 % PACKETS as u32);
            let length = length.min(PACKETS as u32 - skipped) * MTU as u32;
            let mut headers = mark.headers(opcode::READ_REQUEST, mark.expected + skipped, length);
            if let Some(reth) = &mut headers.reth {
                reth.addr += u64::from(skipped) * MTU as u64;
            }
            let mut bytes = forge::emit(&headers, 0);
            seal(&mut bytes, again.from);
            parts.push(Forged { bytes, ..again.clone() });
        }
        let answered = sent(&world, &parts);
        assert!((1..=PACKETS).contains(&answered), "{answered} packets sent, at most {PACKETS} are right");
        // A stranger who knows all gets nothing.
        let mut bytes = again.bytes[..again.bytes.len() - 4].to_vec();
        let from = SocketAddr::from(([127, 0, 0, 2], 0xc001));
        seal(&mut bytes, from);
        let stranger = Forged { from, bytes, fate: Fate::Unwanted };
        assert_eq!(sent(&world, &vec![stranger; 1000]), 0, "to a stranger");
        // Nor does one who asks for more than there was, or for other memory.
        let mut longer = mark.headers(opcode::READ_REQUEST, mark.expected, (PACKETS as u32 + 1) * MTU as u32);
        let mut elsewhere = mark.headers(opcode::READ_REQUEST, mark.expected, MTU as u32);
        longer.bth.ack_request = false;
        elsewhere.reth.as_mut().unwrap().addr += 8;
        for headers in [longer, elsewhere] {
            let mut bytes = forge::emit(&headers, 0);
            seal(&mut bytes, again.from);
            assert_eq!(sent(&world, &vec![Forged { bytes, ..again.clone() }; 1000]), 0, "{headers:?}");
        }
        world.unchanged("after READs that were repeated");
        world.works();
    });
}
