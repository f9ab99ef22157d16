//! The order in which a program sees things: its own message has completed before the answer to it arrives, for an HCA
//! acknowledges a message when it comes, and a program answers later.

#[path = "../hostile_packets/world.rs"]
#[allow(dead_code)]
mod world;

use std::time::{Duration, Instant};
use vervain_hca::{Cq, Data, Opcode, Qp, QpType, SendRequest, send_flags};
use vervain_wire::{Bth, opcode, parse};
use world::{MTU, Pair, World, alone, alone_with};

/// As many as there are receives, less one.
const ROUNDS: u32 = 7;

fn send(qp: &Qp, pair: &Pair, length: usize) {
    let sge = [pair.memory.sge(0, length)];
    let (flags, data) = (send_flags::SIGNALED, Data::Sges(&sge));
    let request = SendRequest { opcode: Opcode::Send, flags, data, srqn: pair.srqn(), ..SendRequest::default() };
    qp.post_send(|p| p.push(&request)).unwrap();
}

fn has_one(cq: &Cq) -> bool {
    cq.poll(1, &mut |_| ()) == 1
}

fn wait(cq: &Cq) {
    let since = Instant::now();
    while !has_one(cq) {
        assert!(since.elapsed() < Duration::from_secs(10), "no completion came");
    }
}

/// The BTHs of a capture, in its order: records of a header and an IPv4 packet.
fn headers(mut capture: &[u8]) -> Vec<Bth> {
    const FILE: usize = 24;
    const RECORD: usize = 16;
    const IP_UDP: usize = 20 + 8;
    let mut headers = Vec::new();
    capture = &capture[FILE..];
    while !capture.is_empty() {
        let length = u32::from_ne_bytes(capture[8..12].try_into().unwrap()) as usize;
        let (record, rest) = capture.split_at(RECORD + length);
        headers.push(parse(&record[RECORD + IP_UDP..]).unwrap().headers.bth);
        capture = rest;
    }
    headers
}

/// Runs `body` with every packet captured. It tells which acknowledgement, by the QP that it is for and its PSN, must be on
/// the wire before the first packet for which other QP, that has this opcode.
fn before(test: &str, body: impl FnOnce() -> ((u32, u32), (u32, u8))) {
    let directory = std::env::temp_dir().join(format!("vervain-{test}"));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("all.pcap");
    alone_with(test, &[("VERVAIN_PCAP", file.to_str().unwrap())], || {
        let (acknowledgement, (answered, operation)) = body();
        let packets = headers(&std::fs::read(&file).unwrap());
        let place = |wanted: &dyn Fn(u8, u32, u32) -> bool| {
            let named = |bth: &Bth| wanted(opcode::operation(bth.opcode), bth.dest_qpn, bth.psn);
            packets.iter().position(named).expect("it was sent")
        };
        let acknowledged = place(&|op, qpn, psn| op == opcode::ACKNOWLEDGE && (qpn, psn) == acknowledgement);
        let answer = place(&|op, qpn, _| (qpn, op) == (answered, operation));
        assert!(acknowledged < answer, "the acknowledgement is packet {acknowledged}, the answer packet {answer}");
    });
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn a_message_is_acknowledged_before_an_answer_of_several_packets() {
    before("a_message_is_acknowledged_before_an_answer_of_several_packets", || {
        let world = World::new(&[QpType::Rc]);
        let pair = world.pair(QpType::Rc);
        pair.a.post_recv(0, &[pair.memory.sge(8 * MTU, 2 * MTU)]).unwrap();
        send(&pair.a, pair, 8);
        wait(&pair.recv_cq);
        send(&pair.b, pair, 2 * MTU);
        wait(&pair.send_cq);
        wait(&pair.send_cq);
        ((pair.a.qp_num(), pair.expected_psn()), (pair.a.qp_num(), opcode::SEND_FIRST))
    });
}

#[test]
fn a_message_is_acknowledged_before_the_answer_by_another_qp() {
    before("a_message_is_acknowledged_before_the_answer_by_another_qp", || {
        let world = World::new(&[QpType::XrcSend, QpType::Rc]);
        let (asked, answering) = (world.pair(QpType::XrcSend), world.pair(QpType::Rc));
        send(&asked.a, asked, 8);
        wait(&asked.recv_cq);
        send(&answering.a, answering, 2 * MTU);
        wait(&answering.recv_cq);
        wait(&asked.send_cq);
        ((asked.a.qp_num(), asked.expected_psn()), (answering.b.qp_num(), opcode::SEND_FIRST))
    });
}

#[test]
fn what_comes_behind_an_acknowledgement_waits_with_it_but_not_for_long() {
    alone("what_comes_behind_an_acknowledgement_waits_with_it_but_not_for_long", || {
        let world = World::new(&[QpType::XrcSend, QpType::Rc]);
        let (asked, answering) = (world.pair(QpType::XrcSend), world.pair(QpType::Rc));
        let in_time = (0..ROUNDS).any(|_| {
            send(&asked.a, asked, 8);
            wait(&asked.recv_cq);
            // While its send queue is busy, the acknowledgement cannot be taken in.
            let early = asked.a.post_send(|_| {
                let since = Instant::now();
                send(&answering.a, answering, 8);
                while !has_one(&answering.recv_cq) {
                    assert!(since.elapsed() < Duration::from_secs(1), "it waits for ever");
                }
                since.elapsed() < Duration::from_millis(5)
            });
            wait(&asked.send_cq);
            wait(&answering.send_cq);
            early
        });
        assert!(!in_time, "an answer arrived before the completion of what it answers");
    });
}
