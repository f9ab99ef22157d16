//! The order in which a program sees things: its own message has completed before the answer to it arrives, for an HCA
//! acknowledges a message when it comes, and a program answers later.

#[path = "../hostile_packets/world.rs"]
#[allow(dead_code)]
mod world;

use std::path::Path;
use std::time::{Duration, Instant};
use vervain_hca::{Cq, Data, Opcode, Qp, QpType, SendRequest, send_flags, wc};
use vervain_wire::{Bth, opcode, parse};
use world::{FIRST_PSN, MAX_READS, MTU, Pair, World, alone, alone_with};

/// Number of messages: the receives less one.
const ROUNDS: u32 = 7;
/// Attempts in which the machine may delay the program.
const TRIES: u32 = 30;
/// Time after which a packet that has not come never will.
const LIMIT: Duration = Duration::from_secs(10);

fn send(qp: &Qp, pair: &Pair, length: usize) {
    let sge = [pair.memory.sge(0, length)];
    let (flags, data) = (send_flags::SIGNALED, Data::Sges(&sge));
    let request = SendRequest { opcode: Opcode::Send, flags, data, srqn: pair.srqn(), ..SendRequest::default() };
    qp.post_send(|p| p.push(&request)).unwrap();
}

fn write(qp: &Qp, pair: &Pair, length: usize) {
    let (sge, memory) = ([pair.memory.sge(0, length)], &pair.memory);
    let (flags, data, remote_addr, rkey) = (send_flags::SIGNALED, Data::Sges(&sge), memory.addr(), memory.mr.rkey());
    let opcode = Opcode::WriteImm;
    let request = SendRequest { opcode, flags, data, remote_addr, rkey, ..SendRequest::default() };
    qp.post_send(|p| p.push(&request)).unwrap();
}

fn has_one(cq: &Cq) -> bool {
    cq.poll(1, &mut |_| ()) == 1
}

fn wait(cq: &Cq) {
    let since = Instant::now();
    while !has_one(cq) {
        assert!(since.elapsed() < LIMIT, "no completion came");
    }
}

/// Completions that polls for up to `max` bring until there are `count`: of each the QP's number, and if it is one of a
/// receive.
fn poll(cq: &Cq, max: usize, count: usize) -> Vec<(u32, bool)> {
    let (since, mut all) = (Instant::now(), Vec::new());
    while all.len() < count {
        cq.poll(max, &mut |c| all.push((c.qp_num, c.opcode & wc::OP_RECV != 0)));
        assert!(since.elapsed() < LIMIT, "{} of {count} completions came", all.len());
    }
    all
}

/// The BTHs of a capture, in order, each with the place of its packet in its train: records of a header and an IPv4
/// packet, whose identification is that place.
fn headers(mut capture: &[u8]) -> Vec<(Bth, u16)> {
    const FILE: usize = 24;
    const RECORD: usize = 16;
    const IP_UDP: usize = 20 + 8;
    let mut headers = Vec::new();
    capture = &capture[FILE..];
    while !capture.is_empty() {
        let length = u32::from_ne_bytes(capture[8..12].try_into().unwrap()) as usize;
        let (record, rest) = capture.split_at(RECORD + length);
        let id = u16::from_be_bytes([record[RECORD + 4], record[RECORD + 5]]);
        headers.push((parse(&record[RECORD + IP_UDP..]).unwrap().headers.bth, id));
        capture = rest;
    }
    headers
}

/// An acknowledgement and another packet, each by the QP that it is for and its PSN.
type Wanted = ((u32, u32), (u32, u32));

/// Runs `body` with every packet captured, and hands them to `check` with what it says.
fn with_packets<T>(test: &str, body: impl FnOnce() -> T, check: impl FnOnce(T, Vec<(Bth, u16)>)) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("order-{test}"));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("all.pcap");
    alone_with(test, &[("VERVAIN_PCAP", file.to_str().unwrap())], || {
        let said = body();
        check(said, headers(&std::fs::read(&file).unwrap()));
    });
    let _ = std::fs::remove_dir_all(directory);
}

/// Runs `body`, which returns the wanted packets, with every packet captured, and gives `check` the places of both in
/// the capture and in their trains, until it returns true: waiting packets leave by themselves if the machine delays
/// the program.
fn captured(test: &str, body: impl FnOnce() -> Vec<Wanted>, check: impl Fn((usize, u16), (usize, u16)) -> bool) {
    with_packets(test, body, |all, packets| {
        let place = |wanted: (u32, u32), acknowledges: bool| {
            let is_it = |bth: &Bth| {
                let is_acknowledgement = opcode::operation(bth.opcode) == opcode::ACKNOWLEDGE;
                (bth.dest_qpn, bth.psn) == wanted && is_acknowledgement == acknowledges
            };
            let n = packets.iter().position(|(bth, _)| is_it(bth)).expect("it was sent");
            (n, packets[n].1)
        };
        let places: Vec<_> = all.iter().map(|(ack, answer)| (place(*ack, true), place(*answer, false))).collect();
        let content = places.iter().any(|(acknowledged, answered)| check(*acknowledged, *answered));
        assert!(content, "acknowledgements and packets of the answers: {places:?}");
    });
}

/// RDMA Writes of `asked` bytes from `a` to `b`, and for each an answer of `length` bytes. Returns the acknowledgements
/// and the last packets of the answers.
fn ask_and_answer(asked: usize, length: usize) -> Vec<Wanted> {
    let round = |_| {
        // A world of its own, as its window stays small once the machine has delayed a packet until it was sent again.
        let mut world = World::with_memory(&[QpType::Rc], asked.max(length));
        let pair = world.take(QpType::Rc);
        pair.a.post_recv(0, &[pair.memory.sge(0, length)]).unwrap();
        write(&pair.a, &pair, asked);
        wait(&pair.recv_cq);
        send(&pair.b, &pair, length);
        // Both sends and the answer's receive.
        (0..3).for_each(|_| wait(&pair.send_cq));
        let last_of = |length: usize| length.div_ceil(MTU) as u32 - 1;
        let acknowledged = pair.expected_psn() + last_of(asked);
        let wanted = ((pair.a.qp_num(), acknowledged), (pair.a.qp_num(), FIRST_PSN + last_of(length)));
        pair.destroy();
        wanted
    };
    (0..TRIES).map(round).collect()
}

fn is_in_the_train_of_the_last(acknowledged: (usize, u16), last: (usize, u16)) -> bool {
    acknowledged == (last.0 + 1, last.1 + 1)
}

// The acknowledgement and the answer come in one look.
#[test]
fn a_poll_returns_the_completion_of_a_message_before_the_answer_to_it() {
    alone("a_poll_returns_the_completion_of_a_message_before_the_answer_to_it", || {
        for max in [1, 2, 64] {
            let mut world = World::new(&[QpType::Rc]);
            let pair = world.take(QpType::Rc);
            for round in 0..ROUNDS {
                pair.a.post_recv(0, &[pair.memory.sge(0, 8)]).unwrap();
                send(&pair.a, &pair, 8);
                wait(&pair.recv_cq);
                send(&pair.b, &pair, 8);
                let got = poll(&pair.send_cq, max, 3);
                let place = |is_receive| got.iter().position(|c| *c == (pair.a.qp_num(), is_receive));
                let (sent, answered) = (place(false), place(true));
                assert!(sent.is_some() && sent < answered, "polls for {max}, round {round}: {got:?}");
            }
            pair.destroy();
        }
    });
}

// A program that has seen its own message complete may look for the answer in its memory, and nobody receives later
// packets at once. So the answer comes along with the acknowledgement.
#[test]
fn a_message_is_acknowledged_along_with_the_end_of_an_answer_of_several_packets() {
    let test = "a_message_is_acknowledged_along_with_the_end_of_an_answer_of_several_packets";
    captured(test, || ask_and_answer(8, 2 * MTU), is_in_the_train_of_the_last);
}

#[test]
fn a_message_is_acknowledged_along_with_a_shorter_last_packet() {
    let test = "a_message_is_acknowledged_along_with_a_shorter_last_packet";
    captured(test, || ask_and_answer(8, MTU + 8), is_in_the_train_of_the_last);
}

// It waits twice as long as the message took, which is longer than the answer takes.
#[test]
fn a_long_message_is_acknowledged_along_with_the_end_of_an_answer_as_long() {
    let test = "a_long_message_is_acknowledged_along_with_the_end_of_an_answer_as_long";
    const LONG: usize = 1 << 20;
    captured(test, || ask_and_answer(LONG, LONG), is_in_the_train_of_the_last);
}

#[test]
fn a_short_message_is_acknowledged_before_an_answer_that_takes_several_calls() {
    let test = "a_short_message_is_acknowledged_before_an_answer_that_takes_several_calls";
    captured(test, || ask_and_answer(8, 1 << 20), |acknowledged, last| acknowledged.0 + 512 < last.0);
}

#[test]
fn a_message_is_acknowledged_before_the_answer_by_another_qp() {
    let test = "a_message_is_acknowledged_before_the_answer_by_another_qp";
    let body = || {
        let world = World::new(&[QpType::XrcSend, QpType::Rc]);
        let (asked, answering) = (world.pair(QpType::XrcSend), world.pair(QpType::Rc));
        send(&asked.a, asked, 8);
        wait(&asked.recv_cq);
        send(&answering.a, answering, 2 * MTU);
        wait(&answering.recv_cq);
        wait(&asked.send_cq);
        vec![((asked.a.qp_num(), asked.expected_psn()), (answering.b.qp_num(), answering.expected_psn()))]
    };
    captured(test, body, |acknowledged, first| acknowledged < first);
}

// Else each READ costs two system calls, where as many as may be outstanding were answered together.
#[test]
fn reads_that_follow_from_one_look_share_a_train() {
    const READS: u32 = 16;
    let body = || {
        let world = World::new(&[QpType::Rc]);
        let pair = world.pair(QpType::Rc);
        let sge = [pair.memory.sge(0, 8)];
        let request = SendRequest {
            opcode: Opcode::Read,
            flags: send_flags::SIGNALED,
            remote_addr: pair.memory.addr(),
            rkey: pair.memory.mr.rkey(),
            data: Data::Sges(&sge),
            ..SendRequest::default()
        };
        pair.a.post_send(|p| (0..READS).try_for_each(|_| p.push(&request))).unwrap();
        (0..READS).for_each(|_| wait(&pair.send_cq));
        pair.b.qp_num()
    };
    with_packets("reads_that_follow_from_one_look_share_a_train", body, |target, packets| {
        let is_read = |bth: &Bth| bth.dest_qpn == target && opcode::operation(bth.opcode) == opcode::READ_REQUEST;
        let places: Vec<u16> = packets.iter().filter(|(bth, _)| is_read(bth)).map(|(_, place)| *place).collect();
        let (first, later) = places.split_at(MAX_READS.into());
        let alone = later.iter().filter(|place| **place == 0).count();
        assert!(places.len() >= READS as usize && first == [0, 1, 2, 3] && alone <= later.len() / 2, "{places:?}");
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
            // The acknowledgement cannot be handled while its send queue is busy; if it was handled before, there is no
            // order to keep.
            let mut completed = false;
            let early = asked.a.post_send(|_| {
                let since = Instant::now();
                send(&answering.a, answering, 8);
                while !has_one(&answering.recv_cq) {
                    assert!(since.elapsed() < LIMIT, "it waits for ever");
                }
                completed = has_one(&asked.send_cq);
                !completed && since.elapsed() < Duration::from_millis(5)
            });
            if !completed {
                wait(&asked.send_cq);
            }
            wait(&answering.send_cq);
            early
        });
        assert!(!in_time, "an answer arrived before the completion of what it answers");
    });
}
