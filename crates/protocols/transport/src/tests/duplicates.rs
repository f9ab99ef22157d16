//! Requests that come again beside READs and atomics: what acknowledges them must not pass for the answer to one of
//! those. A requester such as the kernel's rxe takes an acknowledgement with the PSN of a READ for its completion.

use proptest::prelude::*;
use vervain_wire::aeth::Syndrome;
use vervain_wire::opcode;

use super::host::{Host, parsed};
use super::pair::*;
use crate::*;

const ANSWERED: [Opcode; 5] = [Opcode::Read, Opcode::CompareSwap, Opcode::FetchAdd, Opcode::Flush, Opcode::AtomicWrite];

/// Posts a request; a READ and a WRITE are of two packets.
fn post(pair: &mut Pair, operation: Opcode) {
    let data = match operation {
        Opcode::Write | Opcode::Send => pattern(1500, 1),
        Opcode::Read => Vec::new(),
        _ => vec![0; 8],
    };
    if operation == Opcode::Send {
        pair.server.posted.push_back(1 << 20);
    }
    pair.client.post(operation, &data, |r| {
        r.length = if operation == Opcode::Read { 1500 } else { r.length };
        // Apart from each other: no WRITE changes what a READ asks for.
        r.remote_addr += if operation == Opcode::Write { 0 } else { 8192 };
        r.flush.placement = 1;
    });
}

/// The plain acknowledgements, as PSN and MSN.
fn acknowledged(host: &mut Host) -> Vec<(u32, u32)> {
    let packets: Vec<_> = host.wire.drain(..).map(|bytes| parsed(&bytes).headers).collect();
    let plain = packets.iter().filter(|headers| opcode::operation(headers.bth.opcode) == opcode::ACKNOWLEDGE);
    let acks = plain.filter_map(|headers| headers.aeth.map(|aeth| (headers.bth.psn, aeth)));
    let acks = acks.filter(|(_, aeth)| matches!(Syndrome::decode(aeth.syndrome), Some(Syndrome::Ack(_))));
    acks.map(|(psn, aeth)| (psn, aeth.msn)).collect()
}

#[test]
fn what_comes_again_is_acknowledged_up_to_before_a_read_or_atomic_behind_it() {
    for operation in ANSWERED {
        for posted in [Opcode::Write, Opcode::Send] {
            let mut pair = Pair::new(Service::Rc);
            [posted, operation].into_iter().for_each(|operation| post(&mut pair, operation));
            let sent = requests(&mut pair);
            replies(&mut pair, &sent);
            for duplicate in &sent[..2] {
                pair.responder.handle_packet(&parsed(duplicate), &mut pair.server);
                while pair.responder.poll_transmit(1, &mut pair.server) {}
                assert_eq!(acknowledged(&mut pair.server), [(at(1), 1)], "{posted:?} before {operation:?}");
            }
        }
    }
}

#[test]
fn each_stretch_between_reads_is_acknowledged_by_itself_in_whatever_order_it_comes() {
    let mut pair = Pair::new(Service::Rc);
    for operation in [Opcode::Write, Opcode::Read, Opcode::Send, Opcode::FetchAdd, Opcode::Write] {
        post(&mut pair, operation);
    }
    // WRITE 0 and 1, READ 2 and 3, SEND 4 and 5, atomic 6, WRITE 7 and 8.
    let sent = requests(&mut pair);
    replies(&mut pair, &sent);
    let posted = sent.iter().filter(|bytes| opcode::is_send(bytes[0]) || opcode::is_write(bytes[0]));
    let posted: Vec<_> = posted.collect();
    let wanted = [1, 5, 8].map(|packet| (opcode::ACKNOWLEDGE, at(packet)));
    assert_eq!(replies(&mut pair, posted.iter().copied()), wanted);
    assert_eq!(replies(&mut pair, posted.iter().rev().copied()), wanted, "in reverse order");
    // With the READ again its answer lies in between; the atomic has not come again.
    let with_read = replies(&mut pair, sent.iter().rev().filter(|bytes| bytes[0] != opcode::FETCH_ADD));
    let psns: Vec<_> = with_read.iter().map(|reply| reply.1).collect();
    assert_eq!(psns, [1, 2, 3, 5, 8].map(at));
}

#[test]
fn a_new_read_acknowledges_what_came_again_before_it() {
    let mut pair = Pair::new(Service::Rc);
    post(&mut pair, Opcode::Write);
    post(&mut pair, Opcode::FetchAdd);
    let sent = requests(&mut pair);
    replies(&mut pair, &sent[..2]);
    assert_eq!(replies(&mut pair, [&sent[0], &sent[2]]), [(opcode::ATOMIC_ACKNOWLEDGE, at(2))]);
}

/// A requester that trusts every acknowledgement, as rxe does: one with the last PSN of a request completes that.
fn completes_without_data(acknowledged: u32, flights: &[(Opcode, u32, u32)]) -> bool {
    flights.iter().any(|(operation, first, packets)| {
        ANSWERED.contains(operation) && psn::distance(*first, acknowledged) < *packets
    })
}

proptest! {
    /// Repeated packets in any order and number: no plain acknowledgement lies within a READ or atomic, and each
    /// repeated packet is acknowledged by one without a READ or atomic in between.
    #[test]
    fn acknowledgements_of_duplicates_keep_clear_of_reads_and_atomics(
        kinds in prop::collection::vec(0..7usize, 1..12),
        again in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..40),
    ) {
        let operations = [&ANSWERED[..], &[Opcode::Write, Opcode::Send]].concat();
        let mut pair = Pair::new(Service::Rc);
        let mut flights = Vec::new();
        let mut first = FIRST_PSN;
        for kind in &kinds {
            let packets = if matches!(operations[*kind], Opcode::Read | Opcode::Write | Opcode::Send) { 2 } else { 1 };
            flights.push((operations[*kind], first, packets));
            first = psn::add(first, packets);
            post(&mut pair, operations[*kind]);
        }
        let sent = requests(&mut pair);
        replies(&mut pair, &sent);
        let mut waiting = Vec::new();
        for (index, polls) in again {
            let duplicate = index.get(&sent);
            pair.responder.handle_packet(&parsed(duplicate), &mut pair.server);
            if opcode::is_send(duplicate[0]) || opcode::is_write(duplicate[0]) {
                waiting.push(parsed(duplicate).headers.bth.psn);
            }
            if !polls {
                continue;
            }
            while pair.responder.poll_transmit(1, &mut pair.server) {}
            let acks = acknowledged(&mut pair.server);
            for (psn, _) in &acks {
                prop_assert!(!completes_without_data(*psn, &flights), "{} of {:?}", psn::distance(FIRST_PSN, *psn), flights);
            }
            for psn in waiting.drain(..) {
                let covers = |ack: u32| {
                    !psn::is_before(ack, psn)
                        && !(0..psn::distance(psn, ack)).any(|n| completes_without_data(psn::add(psn, n), &flights))
                };
                prop_assert!(acks.iter().any(|(ack, _)| covers(*ack)), "{} by {acks:?}", psn::distance(FIRST_PSN, psn));
            }
        }
    }
}

// The other side of it: IBA 9.7.5.1.2, an acknowledgement beyond a READ that has not been answered shows that the
// answer is lost.
#[test]
fn no_acknowledgement_completes_a_read_or_atomic_of_ours() {
    for operation in ANSWERED {
        // The first and the last packet of its answer, and the WRITE behind it.
        for named in 2..=5 {
            let mut pair = Pair::new(Service::Rc);
            [Opcode::Write, operation, Opcode::Write].into_iter().for_each(|operation| post(&mut pair, operation));
            let sent = requests(&mut pair);
            if named >= parsed(sent.last().unwrap()).headers.bth.psn.wrapping_sub(FIRST_PSN) & 0xff_ffff {
                continue;
            }
            replies(&mut pair, &sent);
            pair.now += ONE_WAY;
            let ack = acknowledge(at(named), Syndrome::Ack(31).encode());
            pair.requester.handle_packet(pair.now, &parsed(&ack), &mut pair.window, &mut pair.client);
            assert_eq!(pair.statuses(), [Status::Success], "{operation:?}, {named}: the WRITE before it and no more");
            let again = requests(&mut pair);
            assert_eq!(again[0], sent[2], "{operation:?}: asked for again at once");
            replies(&mut pair, &again);
            pair.finish(all);
            assert_eq!(pair.statuses(), [Status::Success; 3]);
        }
    }
}

// Packets dropped behind a missing packet that then comes are missing too.
#[test]
fn packets_that_come_in_reverse_order_are_asked_for_again() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
    let sent = requests(&mut pair);
    assert_eq!(
        replies(&mut pair, sent.iter().rev()),
        [(opcode::ACKNOWLEDGE, at(1))],
        "0 was taken, the others dropped"
    );
    assert_eq!(pair.responder.expected_psn(), at(1));
    // Once, until it comes.
    assert_eq!(replies(&mut pair, [&sent[3], &sent[4]]), []);
    assert_eq!(replies(&mut pair, &sent[1..]), [(opcode::ACKNOWLEDGE, at(4))]);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success]);
}

#[test]
fn a_gap_that_closes_before_it_was_told_is_not_told_if_all_behind_it_has_come_too() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, &pattern(4096, 1), |_| ());
    let sent = requests(&mut pair);
    let order = [2, 0, 1, 2, 3].map(|n: usize| &sent[n]);
    assert_eq!(replies(&mut pair, order), [(opcode::ACKNOWLEDGE, at(3))]);
    assert_eq!(pair.server.sent(), []);
    assert_eq!(pair.responder.expected_psn(), at(4));
}

#[test]
fn what_was_dropped_behind_a_message_that_then_finds_a_receive_is_asked_for_again() {
    let mut pair = Pair::new(Service::Rc);
    for _ in 0..3 {
        pair.client.post(Opcode::Send, b"waits", |_| ());
    }
    let sent = requests(&mut pair);
    // The first is refused twice, and the others are dropped.
    let order = [0, 1, 2, 0].map(|n: usize| &sent[n]);
    order.iter().for_each(|bytes| pair.responder.handle_packet(&parsed(bytes), &mut pair.server));
    // Before the RNR NAK has left, there are receives, and the first comes again.
    pair.server.posted.extend([100; 3]);
    assert_eq!(replies(&mut pair, [&sent[0]]), [(opcode::ACKNOWLEDGE, at(1))]);
    pair.responder.handle_packet(&parsed(&sent[1]), &mut pair.server);
    assert_eq!(replies(&mut pair, [&sent[2]]), [(opcode::ACKNOWLEDGE, at(2))]);
}

#[test]
fn a_refused_repetition_is_told_though_new_requests_follow_it() {
    let mut pair = Pair::new(Service::Rc);
    post(&mut pair, Opcode::Read);
    post(&mut pair, Opcode::Write);
    let sent = requests(&mut pair);
    replies(&mut pair, &sent[..1]);
    pair.server.rights = vec![Right::Write];
    assert_eq!(
        replies(&mut pair, [&sent[0], &sent[1], &sent[2]]),
        [(opcode::ACKNOWLEDGE, at(0)), (opcode::ACKNOWLEDGE, at(3))],
        "the refusal, and the acknowledgement of the WRITE"
    );
}

// A READ longer than what is answered at once: its requester may be a device that learns of the loss by its timeout
// alone.
#[test]
fn a_write_that_has_to_wait_for_a_long_read_is_asked_for_again_behind_its_answer() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Read, &[], |r| r.length = 8);
    // One request for all of it, as adapters send it.
    let read = read_part(&requests(&mut pair)[0], 0, 200 * 1024);
    let write = write_at(200, b"changes it");
    let answers = replies(&mut pair, [&read, &write]);
    let psns: Vec<_> = answers.iter().map(|answer| answer.1).collect();
    let all: Vec<_> = (0..=200).map(at).collect();
    assert_eq!((psns, answers[200].0), (all, opcode::ACKNOWLEDGE), "200 packets, then the NAK");
    assert_eq!(pair.server.writes, 0);
    assert_eq!(replies(&mut pair, [&write]), [(opcode::ACKNOWLEDGE, at(200))]);
    assert_eq!(pair.server.writes, 1);
}

/// A WRITE of one packet by hand, into the last KiB of as many.
fn write_at(packet: u32, data: &[u8]) -> Vec<u8> {
    let mut pair = Pair::with(
        &RequesterConfig { first_psn: at(packet), ..requester_config(Service::Rc) },
        &responder_config(Service::Rc),
    );
    pair.client.post(Opcode::Write, data, |r| r.remote_addr += 1024 * u64::from(packet - 1));
    requests(&mut pair).remove(0)
}
