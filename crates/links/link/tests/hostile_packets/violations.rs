//! Requests of a QP's own peer that break the protocol: a NAK is sent, and the QP ends as the specification demands.
//! The protocol's own tests check each packet; these check that the whole link obeys, and that a QP that has ended
//! neither sends nor receives.

use super::forge::{Fate, Forged, Mark, emit, seal};
use super::take_in;
use super::world::{HERE, MTU, World, alone};
use std::net::SocketAddr;
use vervain_hca::{QpState, QpType, event};
use vervain_wire::{Headers, Reth, opcode};

/// A change to the headers of a request, and its payload.
type Change = (u8, usize, fn(&mut Headers));

fn as_it_is(_: &mut Headers) {}

fn reth(headers: &mut Headers) -> &mut Reth {
    headers.reth.as_mut().unwrap()
}

/// Packets sent one behind the other, and the event by which the QP ends.
const CASES: &[(&[Change], u32)] = &[
    (&[(opcode::SEND_MIDDLE, MTU, as_it_is)], event::QP_REQ_ERR),
    (&[(opcode::SEND_FIRST, MTU, as_it_is), (opcode::SEND_ONLY, 8, as_it_is)], event::QP_REQ_ERR),
    (&[(opcode::SEND_FIRST, MTU, as_it_is), (opcode::READ_REQUEST, 0, as_it_is)], event::QP_REQ_ERR),
    (&[(opcode::SEND_FIRST, MTU - 4, as_it_is)], event::QP_REQ_ERR),
    (&[(opcode::SEND_ONLY, MTU + 4, as_it_is)], event::QP_REQ_ERR),
    (&[(opcode::WRITE_ONLY, 8, |h| reth(h).length = 12)], event::QP_REQ_ERR),
    (&[(opcode::WRITE_FIRST, MTU, |h| reth(h).length = MTU as u32)], event::QP_REQ_ERR),
    (&[(opcode::WRITE_ONLY, 8, |h| reth(h).rkey ^= 1)], event::QP_ACCESS_ERR),
    (&[(opcode::WRITE_ONLY, 8, |h| reth(h).addr -= 4)], event::QP_ACCESS_ERR),
    (&[(opcode::WRITE_FIRST, MTU, |h| reth(h).length = 1 << 30)], event::QP_ACCESS_ERR),
    (&[(opcode::WRITE_FIRST, MTU, |h| reth(h).length = u32::MAX)], event::QP_REQ_ERR),
    (&[(opcode::WRITE_ONLY, 8, |h| reth(h).addr = u64::MAX - 3)], event::QP_ACCESS_ERR),
    (&[(opcode::READ_REQUEST, 0, |h| reth(h).length = u32::MAX)], event::QP_REQ_ERR),
    (&[(opcode::READ_REQUEST, 0, |h| reth(h).length = 1 << 31)], event::QP_ACCESS_ERR),
    (&[(opcode::FETCH_ADD, 0, |h| h.atomic.as_mut().unwrap().addr += 4)], event::QP_REQ_ERR),
    (&[(opcode::FETCH_ADD, 0, |h| h.atomic.as_mut().unwrap().rkey ^= 1 << 20)], event::QP_ACCESS_ERR),
];

#[test]
fn requests_that_break_the_protocol_end_their_qp_and_touch_nothing_else() {
    alone("violations::requests_that_break_the_protocol_end_their_qp_and_touch_nothing_else", || {
        let mut world = World::new(&[QpType::Uc]);
        for (n, (changes, event)) in CASES.iter().enumerate() {
            let case = format!("case {n}");
            world.add(QpType::Rc);
            let mark = Mark::of(&world, QpType::Rc);
            let port = world.roce.port(HERE).unwrap();
            let sent = port.counters().sent_packets.get();
            let train: Vec<Forged> = changes
                .iter()
                .enumerate()
                .map(|(i, (operation, payload, change))| {
                    let mut headers = mark.headers(*operation, mark.expected + i as u32, *payload as u32);
                    headers.bth.ack_request = false;
                    change(&mut headers);
                    from_peer(&headers, *payload)
                })
                .collect();
            take_in(&world, &train);
            let pair = world.take(QpType::Rc);
            assert_eq!(pair.b.state(), QpState::Err, "{case}");
            assert_eq!(world.failure(&pair, &case), *event, "{case}");
            assert_eq!(port.counters().sent_packets.get() - sent, 1, "{case}: one NAK");
            pair.check_flushed(&case);
            // Now it hears nothing any more: new requests, old ones, old READs.
            let sent = port.counters().sent_packets.get();
            let late: Vec<Forged> = (0..200)
                .map(|i| {
                    let operation = [opcode::SEND_ONLY, opcode::WRITE_ONLY, opcode::READ_REQUEST][i % 3];
                    let psn = mark.expected.wrapping_sub(i as u32 % 7).wrapping_add(2);
                    from_peer(&mark.headers(operation, psn, 8), if i % 3 == 2 { 0 } else { 8 })
                })
                .collect();
            take_in(&world, &late);
            world.unchanged(&case);
            assert_eq!(port.counters().sent_packets.get(), sent, "{case}: a QP in error answers");
            pair.destroy();
            world.works();
        }
    });
}

#[test]
fn a_qp_that_its_owner_has_put_into_error_is_deaf_and_dumb() {
    alone("violations::a_qp_that_its_owner_has_put_into_error_is_deaf_and_dumb", || {
        let mut world = World::new(&[QpType::Uc]);
        world.add(QpType::Rc);
        world.works();
        let mark = Mark::of(&world, QpType::Rc);
        let pair = world.take(QpType::Rc);
        pair.fail();
        let port = world.roce.port(HERE).unwrap();
        let sent = port.counters().sent_packets.get();
        for back in 0..4 {
            let headers = mark.headers(opcode::SEND_ONLY, mark.expected + 2 - back, 8);
            take_in(&world, &vec![from_peer(&headers, 8); 10]);
            let headers = mark.headers(opcode::READ_REQUEST, mark.expected + 2 - back, 8);
            take_in(&world, &vec![from_peer(&headers, 0); 10]);
        }
        world.unchanged("after requests to a QP in error");
        pair.check_flushed("in error");
        assert_eq!(port.counters().sent_packets.get(), sent, "a QP in error answers");
    });
}

fn from_peer(headers: &Headers, payload: usize) -> Forged {
    let from = SocketAddr::new(HERE, 0xc001);
    let mut bytes = emit(headers, payload);
    seal(&mut bytes, from);
    Forged { from, bytes, fate: Fate::Dropped }
}
