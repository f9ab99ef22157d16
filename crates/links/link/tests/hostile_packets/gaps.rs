//! Packets behind a gap, sent by a peer that is a plain socket.

use super::congestion::{Peer, THERE, packet, receive, side};
use super::side::{MEMORY, Side};
use super::world::{FIRST_PSN, HERE, World, alone};
use std::time::{Duration, Instant};
use vervain_hca::QpType;
use vervain_wire::{Bth, Headers, Reth, TAKES_GAPS, VERVAIN, opcode, parse};

const LIMIT: Duration = Duration::from_secs(20);

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

/// A QP whose peer, which is a socket, has shown by two packets that it takes reports.
fn speaking(world: &World) -> (Side, Peer) {
    let (side, peer) = (side(world, QpType::Rc), Peer::new(THERE));
    send(world, &side, &peer, &[write(&side, 0, VERVAIN), write(&side, 1, TAKES_GAPS)]);
    (side, peer)
}

fn writes(world: &World, side: &Side) -> u64 {
    world.roce.counters(side.qp.qp_num()).unwrap().0.writes
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
