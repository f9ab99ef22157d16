//! Reports of gaps that are forged or malformed, and packets behind a gap, sent by a peer that is a plain socket.

use super::congestion::{Peer, STRANGER, THERE, packet, receive, side};
use super::forge::{Fate, Forged, seal};
use super::side::{MEMORY, Side};
use super::world::{FIRST_PSN, HERE, World, alone};
use super::{counted, growth, take_in};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use vervain_hca::QpType;
use vervain_wire::{Aeth, Bth, Headers, Reth, TAKES_GAPS, VERVAIN, opcode, parse};

const LIMIT: Duration = Duration::from_secs(20);

/// A report to QP `qpn` that a packet is missing, with this payload.
fn report(from: Ipv4Addr, qpn: u32, payload: &[u8]) -> Forged {
    let bth = Bth { opcode: opcode::GAPS, pkey: 0xffff, dest_qpn: qpn, psn: FIRST_PSN, ..Bth::default() };
    let mut report =
        packet(from, &Headers { bth, aeth: Some(Aeth { syndrome: 0x1f, msn: 0 }), ..Headers::default() }, 0);
    report.bytes.truncate(report.bytes.len() - 4);
    report.bytes.extend_from_slice(payload);
    seal(&mut report.bytes, report.from);
    report
}

#[test]
fn a_report_of_gaps_counts_if_it_is_whole_and_from_the_peer_of_a_reliable_qp() {
    alone("gaps::a_report_of_gaps_counts_if_it_is_whole_and_from_the_peer_of_a_reliable_qp", || {
        const GAP: [u8; 4] = [0, 1, 0, 1];
        let (mut world, peer) = (World::new(&[QpType::Rc]), Peer::new(THERE));
        let (rc, uc, ud) = (side(&world, QpType::Rc), side(&world, QpType::Uc), side(&world, QpType::Ud));
        let (qpn, reports) = (rc.qp.qp_num(), || world.roce.counters(rc.qp.qp_num()).unwrap().1.unwrap().reports);
        rc.post(1, None);
        rc.post(2, None);
        peer.receive().expect("the message");
        let (before, sent) = (counted(&world), world.roce.port(HERE).unwrap().counters().sent_packets.get());
        let mut unwanted = vec![report(STRANGER, qpn, &GAP)];
        unwanted.extend([&uc, &ud].map(|side| report(THERE, side.qp.qp_num(), &GAP)));
        let longer = GAP.repeat(65);
        let malformed = [&[][..], &GAP[..3], &[0; 4], &[0, 1, 0, 0], &[0, 1, 0x80, 0], &longer];
        take_in(&world, &unwanted);
        take_in(&world, &malformed.map(|payload| report(THERE, qpn, payload)));
        let fates = BTreeMap::from([(Fate::Unwanted, 3), (Fate::Malformed, malformed.len() as u64)]);
        assert_eq!((growth(&before, &counted(&world)), reports()), (fates, 0));
        let again = world.roce.counters(qpn).unwrap().1.unwrap().resent_packets;
        let more = world.roce.port(HERE).unwrap().counters().sent_packets.get() - sent;
        assert!(more <= again + 1, "{more} packets sent, {again} of them by a timer");
        take_in(&world, &[report(THERE, qpn, &GAP)]);
        assert_eq!(reports(), 1, "the same from the peer");
        world.works();
    });
}

/// A request of the peer that is `place` packets behind the first, with a mark; a WRITE of nothing.
fn write(side: &Side, place: u32, mark: u8) -> Headers {
    let (dest_qpn, psn) = (side.qp.qp_num(), FIRST_PSN + place);
    let bth = Bth { opcode: opcode::RC | opcode::WRITE_ONLY, pkey: 0xffff, dest_qpn, psn, mark, ..Bth::default() };
    let reth = Reth { addr: side.memory.as_ptr() as u64, rkey: side.mr.rkey(), length: 0 };
    Headers { bth, reth: Some(reth), ..Headers::default() }
}

/// Sends requests of the peer, and polls until they have come.
fn send(world: &World, side: &Side, peer: &Peer, requests: &[Headers]) {
    let before = world.roce.port(HERE).unwrap().counters().received_packets.get();
    requests.iter().for_each(|headers| peer.send(&packet(THERE, headers, 0)));
    receive(world, side, before, requests.len() as u64);
}

/// A QP whose peer, which is a socket, has sent two packets with these marks.
fn marked(world: &World, marks: [u8; 2]) -> (Side, Peer) {
    let (side, peer) = (side(world, QpType::Rc), Peer::new(THERE));
    send(world, &side, &peer, &[write(&side, 0, marks[0]), write(&side, 1, marks[1])]);
    (side, peer)
}

/// A QP whose peer has shown that it takes reports.
fn speaking(world: &World) -> (Side, Peer) {
    marked(world, [VERVAIN, TAKES_GAPS])
}

fn writes(world: &World, side: &Side) -> u64 {
    world.roce.counters(side.qp.qp_num()).unwrap().0.writes
}

// IBA 9.2: receivers ignore reserved bits. So a value that is no mark is not malformed.
#[test]
fn reserved_bits_that_are_no_mark_are_ignored() {
    alone("gaps::reserved_bits_that_are_no_mark_are_ignored", || {
        let world = World::new(&[QpType::Rc]);
        let before = counted(&world);
        let (side, peer) = marked(&world, [VERVAIN | TAKES_GAPS, VERVAIN | 1]);
        assert_eq!((growth(&before, &counted(&world)), writes(&world, &side)), (BTreeMap::new(), 2));
        // Its sender gets a NAK, and nothing is kept.
        send(&world, &side, &peer, &[write(&side, 3, 0), write(&side, 2, 0)]);
        assert_eq!(world.roce.counters(side.qp.qp_num()).unwrap().0.reports, 0);
        assert_eq!(writes(&world, &side), 3);
    });
}

#[test]
fn packets_behind_a_gap_that_has_closed_are_executed_though_nothing_more_comes() {
    alone("gaps::packets_behind_a_gap_that_has_closed_are_executed_though_nothing_more_comes", || {
        // As many as a socket has room for, and more in all than a few polls execute.
        const BURST: u32 = 100;
        const BURSTS: u32 = 20;
        let world = World::new(&[QpType::Rc]);
        let (side, peer) = speaking(&world);
        for burst in 0..BURSTS {
            let first = 3 + burst * BURST;
            let packets: Vec<_> = (first..first + BURST).map(|place| write(&side, place, 0)).collect();
            send(&world, &side, &peer, &packets);
        }
        assert_eq!(writes(&world, &side), 2);
        send(&world, &side, &peer, &[write(&side, 2, 0)]);
        // The program does not poll any more.
        let (all, begin) = (u64::from(3 + BURSTS * BURST), Instant::now());
        while writes(&world, &side) < all {
            assert!(begin.elapsed() < LIMIT, "{} of {all} packets are executed", writes(&world, &side));
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_read_that_was_kept_is_answered_by_the_poll_that_takes_in_what_was_missing() {
    alone("gaps::a_read_that_was_kept_is_answered_by_the_poll_that_takes_in_what_was_missing", || {
        let world = World::new(&[QpType::Rc]);
        let (side, peer) = speaking(&world);
        let mut read = write(&side, 3, 0);
        read.bth.opcode = opcode::RC | opcode::READ_REQUEST;
        read.reth.as_mut().unwrap().length = MEMORY as u32 / 64;
        send(&world, &side, &peer, &[read]);
        while peer.receive().is_some() {}
        send(&world, &side, &peer, &[write(&side, 2, 0)]);
        let answers: Vec<_> = std::iter::from_fn(|| peer.receive()).collect();
        let opcodes: Vec<_> = answers.iter().map(|(bytes, _)| parse(bytes).unwrap().headers.bth.opcode).collect();
        assert_eq!(opcodes, [opcode::RC | opcode::READ_RESPONSE_ONLY]);
    });
}
