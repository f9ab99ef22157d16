//! Acknowledgements and requests that wait for other packets, seen by a peer that is a plain socket and answers
//! nothing.

use super::congestion::{Peer, THEIR_QPN, THERE, packet, receive, side};
use super::side::{BYTES, Side, poll};
use super::world::{FIRST_PSN, HERE, World, address_of, alone, connect_to};
use vervain_hca::{Data, Opcode, QpType, SendRequest};
use vervain_wire::{Bth, Headers, VERVAIN, opcode, parse};

/// Messages of one packet that close a window that nobody opens.
const WINDOW: u64 = 64;

/// By one QP a message comes, by another nothing can be sent, and by a third a message is. Returns the acknowledgements
/// that the peer has got by then, as QPN and PSN.
fn acknowledged(world: &World, peer: &Peer) -> Vec<(u32, u32)> {
    let [asked, full, closed, answering] = [0, 1, 2, 3].map(|n| {
        let side = Side::new(&world.context, QpType::Rc, 1);
        connect_to(&side.qp, address_of(&world.context, THERE), THEIR_QPN + n);
        side
    });
    while peer.receive().is_some() {}
    (0..WINDOW).for_each(|n| full.post(n, None));
    poll(&full.sent);
    // A requester may always have a packet under way.
    closed.post(0, None);
    // The peer is a process of Vervain's: an acknowledgement may wait for a message to it.
    asked.post_receive(0);
    let (dest_qpn, opcode) = (asked.qp.qp_num(), opcode::RC | opcode::SEND_ONLY);
    let bth =
        Bth { opcode, pkey: 0xffff, dest_qpn, psn: FIRST_PSN, ack_request: true, mark: VERVAIN, ..Bth::default() };
    let before = world.roce.port(HERE).unwrap().counters().received_packets.get();
    peer.send(&packet(THERE, &Headers { bth, ..Headers::default() }, 0));
    receive(world, &asked, before, 1);
    // More than a packet, so that it does not wait for others before it is begun.
    let sge = closed.sge(4 * BYTES);
    let request = SendRequest { opcode: Opcode::Read, data: Data::Sges(&sge), ..SendRequest::default() };
    closed.qp.post_send(|p| p.push(&request)).unwrap();
    answering.post(0, None);
    let packets = std::iter::from_fn(|| peer.receive()).map(|(bytes, _)| parse(&bytes).unwrap().headers.bth);
    packets.filter(|bth| bth.opcode == opcode::RC | opcode::ACKNOWLEDGE).map(|bth| (bth.dest_qpn, bth.psn)).collect()
}

#[test]
fn an_acknowledgement_is_not_lost_by_a_post_that_sends_nothing() {
    alone("waiting::an_acknowledgement_is_not_lost_by_a_post_that_sends_nothing", || {
        let (world, peer) = (World::new(&[QpType::Rc]), Peer::new(THERE));
        // If the machine delays the program, the window opens, for what is under way counts as lost.
        for round in 0..10 {
            assert_eq!(acknowledged(&world, &peer), [(THEIR_QPN, FIRST_PSN)], "round {round}");
        }
    });
}

#[test]
fn a_message_that_has_waited_waits_no_more_once_it_is_begun() {
    alone("waiting::a_message_that_has_waited_waits_no_more_once_it_is_begun", || {
        const TRIES: u64 = 10;
        let (world, peer) = (World::new(&[QpType::Rc]), Peer::new(THERE));
        let side = side(&world, QpType::Rc);
        side.post(0, None);
        let mut waiting = 0;
        for n in 1..=TRIES {
            side.post(n, None);
            poll(&side.sent);
            waiting += u64::from(world.roce.has_corked());
        }
        let sent = std::iter::from_fn(|| peer.receive()).map(|(bytes, _)| parse(&bytes).unwrap().headers.bth.psn);
        assert_eq!(sent.max(), Some(FIRST_PSN + TRIES as u32));
        // The progress thread may be at it just now.
        assert!(waiting < TRIES / 2, "after {waiting} of {TRIES} polls something waits");
    });
}

#[test]
fn a_message_of_a_program_that_is_about_to_sleep_waits_for_no_other() {
    alone("waiting::a_message_of_a_program_that_is_about_to_sleep_waits_for_no_other", || {
        let (world, peer) = (World::new(&[QpType::Rc]), Peer::new(THERE));
        let side = side(&world, QpType::Rc);
        side.post(0, None);
        for n in 1..=10 {
            // As a program does that waits for the descriptor of the channel by poll(2); so often that it is known not
            // to wait in `ibv_get_cq_event`.
            (0..64).for_each(|_| side.sent.req_notify(false).unwrap());
            poll(&side.sent);
            side.post(n, None);
            assert!(!world.roce.has_corked(), "message {n}");
        }
        let sent = std::iter::from_fn(|| peer.receive()).map(|(bytes, _)| parse(&bytes).unwrap().headers.bth.psn);
        assert!(sent.max() > Some(FIRST_PSN), "all of them wait for something else");
    });
}
