//! Peers that report gaps: only what is lost comes again, in any order, and everything is executed in its own.

use std::sync::Arc;

use vervain_wire::{gaps, opcode};

use super::host::{BASE, parsed};
use super::pair::*;
use crate::*;

/// PSN of packet `packet` after the two messages of [`Pair::speaking`].
fn psn_of(packet: u32) -> u32 {
    at(packet + 2)
}

/// Loses these packets of requests once each.
fn lose(packets: &[u32]) -> impl FnMut(Way, &vervain_wire::Packet<'_>) -> bool {
    let mut left: Vec<u32> = packets.iter().map(|packet| psn_of(*packet)).collect();
    move |way, packet| {
        let place = left.iter().position(|psn| way == Way::Request && *psn == packet.headers.bth.psn);
        place.map(|place| left.remove(place)).is_none()
    }
}

/// PSNs of the requests that were sent, as packets.
fn requests_sent(pair: &Pair) -> Vec<u32> {
    let sent = pair.log.iter().filter(|entry| entry.0 == Way::Request);
    sent.map(|entry| psn::distance(psn_of(0), entry.2)).collect()
}

/// A report by hand.
fn report(psn: u32, gaps: &[(u16, u16)]) -> Vec<u8> {
    let mut bytes = vec![opcode::GAPS, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0];
    bytes.extend_from_slice(&psn.to_be_bytes()[1..]);
    bytes.extend_from_slice(&[0x1f, 0, 0, 0]);
    bytes.extend(gaps.iter().flat_map(|&(missing, kept)| gaps::Gap { missing, kept }.bytes()));
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

#[test]
fn only_what_is_lost_is_sent_again() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    pair.run(lose(&[2, 5]));
    assert_eq!(pair.statuses(), [Status::Success; 3], "without waiting");
    assert!(pair.server.memory[..8192] == pattern(8192, 1));
    assert_eq!(requests_sent(&pair), [0, 1, 2, 3, 4, 5, 6, 7, 2, 5]);
    assert_eq!((pair.requester.counters().resent_packets, pair.client.again), (2, 2));
    assert_eq!((pair.requester.counters().sequence_naks, pair.requester.counters().reports), (1, 1));
    assert_eq!(pair.window.in_flight(), 0);
    assert_eq!(pair.room.as_ref().unwrap().left(), 1 << 20, "nothing is kept any more");
}

#[test]
fn what_is_lost_again_is_found_by_what_was_sent_after_it() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(300_000, 1), |_| ());
    let mut left = 3;
    pair.run(|way, packet| {
        let hit = way == Way::Request && packet.headers.bth.psn == psn_of(20) && left > 0;
        left -= u32::from(hit);
        !hit
    });
    assert_eq!(pair.statuses(), [Status::Success; 3], "without waiting");
    assert!(pair.server.memory[..300_000] == pattern(300_000, 1));
    assert_eq!(pair.requester.counters().resent_packets, 3);
}

#[test]
fn what_is_lost_again_at_the_end_is_found_by_a_probe() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    let mut left = 2;
    pair.finish(|way, packet| {
        let hit = way == Way::Request && packet.headers.bth.psn == psn_of(2) && left > 0;
        left -= u32::from(hit);
        !hit
    });
    assert_eq!(pair.statuses(), [Status::Success; 3]);
    assert_eq!((pair.requester.counters().probes, pair.requester.counters().timeouts), (1, 0));
    assert_eq!(requests_sent(&pair), [0, 1, 2, 3, 4, 5, 6, 7, 2, 7, 2]);
}

#[test]
fn nothing_is_executed_before_what_is_missing() {
    let mut pair = Pair::speaking();
    pair.server.posted.extend([100; 4]);
    let before = pair.server.writes;
    pair.client.post(Opcode::Write, b"first", |_| ());
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| (r.remote_addr, r.compare_add) = (BASE + 64, 1));
    pair.client.post(Opcode::Send, b"second", |_| ());
    pair.client.post(Opcode::Write, b"last!", |_| ());
    pair.client.post(Opcode::Read, &[], |r| r.length = 5);
    let sent = requests(&mut pair);
    let reports = replies(&mut pair, sent.iter().skip(1));
    assert_eq!(reports, [(opcode::GAPS, psn_of(0))], "one for all");
    assert_eq!((pair.server.writes, pair.server.atomics, pair.server.receives.len()), (before, 0, 0));
    let answers = replies(&mut pair, [&sent[0]]);
    assert_eq!(answers, [(opcode::ATOMIC_ACKNOWLEDGE, psn_of(1)), (opcode::READ_RESPONSE_ONLY, psn_of(4))]);
    assert_eq!((pair.server.atomics, pair.server.receives[0].data.as_slice()), (1, &b"second"[..]));
    assert_eq!(pair.server.memory[..5], *b"last!");
}

#[test]
fn rights_are_those_of_the_time_of_execution() {
    let mut pair = Pair::speaking();
    for word in [b"first", b"after", b"there"] {
        pair.client.post(Opcode::Write, word, |_| ());
    }
    let sent = requests(&mut pair);
    replies(&mut pair, sent.iter().skip(1));
    pair.server.rights.clear();
    pair.server.rights.push(Right::Read);
    assert_eq!(replies(&mut pair, [&sent[0]]), [(opcode::ACKNOWLEDGE, psn_of(0))]);
    assert_eq!(pair.server.failed, Some(Nak::RemoteAccess));
    assert!(pair.responder.has_ended());
    assert_eq!(pair.room.unwrap().left(), 1 << 20, "what was kept has gone with the QP");
}

#[test]
fn a_kept_message_without_a_receive_is_refused_until_there_is_one() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, b"lost", |_| ());
    pair.client.post(Opcode::Send, b"kept", |_| ());
    pair.client.post(Opcode::Send, b"kept too", |_| ());
    pair.run(lose(&[0]));
    assert_eq!((pair.statuses().len(), pair.requester.counters().rnr_naks), (3, 1));
    pair.server.posted.extend([100; 2]);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 5]);
    assert_eq!(
        (pair.server.receives[0].data.as_slice(), pair.server.receives[1].data.as_slice()),
        (&b"kept"[..], &b"kept too"[..])
    );
    assert_eq!(pair.server.receives.len(), 2);
}

#[test]
fn a_read_request_that_is_lost_is_asked_for_as_it_was() {
    let mut pair = Pair::speaking();
    pair.server.memory = pattern(1 << 20, 7);
    pair.client.post(Opcode::Write, b"before", |r| r.remote_addr = BASE + 600_000);
    pair.client.post(Opcode::Read, &[], |r| r.length = 9000);
    pair.client.post(Opcode::Write, b"behind", |r| r.remote_addr = BASE + 700_000);
    pair.run(lose(&[1]));
    assert_eq!(pair.statuses(), [Status::Success; 5], "without waiting");
    assert!(pair.client.delivered[3] == pattern(9000, 7));
    assert_eq!(requests_sent(&pair), [0, 1, 10, 1]);
}

#[test]
fn only_who_takes_reports_gets_them_and_others_get_a_nak() {
    for (introduces, keeps) in [(false, true), (true, false)] {
        let config = RequesterConfig { introduces, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&config, &responder_config(Service::Rc));
        pair.room = keeps.then(|| share_of(1 << 20));
        for _ in 0..4 {
            pair.client.post(Opcode::Write, b"before", |_| ());
            pair.run(all);
        }
        pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
        pair.run(lose(&[4]));
        assert_eq!(pair.statuses(), [Status::Success; 5]);
        assert_eq!(pair.sent(Way::Response, opcode::GAPS), 0);
        assert_eq!((pair.requester.counters().sequence_naks, pair.requester.counters().resent_packets), (1, 6));
    }
}

#[test]
fn what_finds_no_room_is_dropped_and_comes_again() {
    for room in [0, 600, 3 * (1024 + 512)] {
        let mut pair = Pair::speaking();
        pair.responder = {
            let expected_psn = pair.responder.expected_psn();
            Responder::new(&ResponderConfig { expected_psn, ..responder_config(Service::Rc) })
        };
        let small = share_of(room);
        pair.responder.keep_packets(&small);
        pair.client.post(Opcode::Write, &pattern(20_000, 1), |_| ());
        pair.finish(lose(&[2, 9]));
        assert_eq!(pair.statuses(), [Status::Success; 3], "room for {room} bytes");
        assert!(pair.server.memory[..20_000] == pattern(20_000, 1));
        assert_eq!(small.left(), room);
    }
}

#[test]
fn reports_that_cannot_be_change_nothing() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(20_000, 1), |_| ());
    let sent = requests(&mut pair).len() as u32;
    let in_flight = pair.window.in_flight();
    let cases = [
        report(psn_of(sent), &[(1, 1)]),
        report(psn_of(sent + 7), &[(1, 1)]),
        report(psn::add(psn_of(0), psn::MASK), &[(1, 1)]),
    ];
    for bytes in &cases {
        pair.requester.handle_packet(pair.now, &parsed(bytes), &mut pair.window, &mut pair.client);
    }
    // No acknowledgement: a NAK, RNR.
    for syndrome in [0x60, 0x20, 0x80] {
        let mut bytes = report(psn_of(0), &[(1, 1)]);
        bytes[12] = syndrome;
        pair.requester.handle_packet(pair.now, &parsed(&bytes), &mut pair.window, &mut pair.client);
    }
    pair.transmit();
    assert!(pair.client.wire.is_empty());
    assert_eq!((pair.requester.counters().stale, pair.requester.counters().reports), (6, 0));
    assert_eq!(pair.window.in_flight(), in_flight);
}

#[test]
fn a_report_that_comes_again_has_nothing_sent_again() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(20_000, 1), |_| ());
    requests(&mut pair);
    for _ in 0..10 {
        let bytes = report(psn_of(0), &[(2, 1), (3, 1)]);
        pair.requester.handle_packet(pair.now + 1_000_000, &parsed(&bytes), &mut pair.window, &mut pair.client);
        pair.transmit();
    }
    assert_eq!(pair.requester.counters().resent_packets, 5);
}

#[test]
fn whatever_is_reported_no_more_than_a_window_is_sent_again_in_a_round_trip() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(20_000, 1), |_| ());
    let sent = requests(&mut pair).len() as u16;
    let lies = [&[(sent - 1, 1)][..], &[(1, 1), (3, 1)], &[(3, 1), (2, 9)], &[(0x1000, 0x1000)], &[(1, 2), (1, 2)]];
    for gaps in lies.iter().cycle().take(1000) {
        let bytes = report(psn_of(0), gaps);
        pair.requester.handle_packet(pair.now, &parsed(&bytes), &mut pair.window, &mut pair.client);
        pair.transmit();
    }
    let resent = pair.requester.counters().resent_packets;
    assert!(resent <= pair.window.size() / (1024 + 512), "{resent} packets");
    // Nobody has to believe it: the truth comes by acknowledgements.
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 3]);
    assert!(pair.server.memory[..20_000] == pattern(20_000, 1));
}

#[test]
fn a_report_is_hardly_longer_than_what_it_reports() {
    let mut pair = Pair::speaking();
    for _ in 0..60 {
        pair.client.post(Opcode::Write, b"", |_| ());
    }
    let mut sent = requests(&mut pair);
    while pair.client.room > 0 && sent.len() < 60 {
        sent.extend(requests(&mut pair));
    }
    for bytes in sent.iter().skip(1).step_by(2) {
        pair.arrives(&parsed(bytes));
        while pair.responder.poll_transmit(1, &mut pair.server) {}
        let answered: usize = pair.server.wire.drain(..).map(|answer| answer.len()).sum();
        assert!(answered <= bytes.len() + 8, "{answered} bytes for {}", bytes.len());
    }
}

#[test]
fn kept_packets_that_are_dropped_come_again() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(20_000, 1), |_| ());
    let mut lose = lose(&[3]);
    let mut dropped = false;
    // A record does not have what is kept.
    for round in 0..200 {
        pair.transmit();
        for bytes in std::mem::take(&mut pair.client.wire) {
            let packet = parsed(&bytes);
            if lose(Way::Request, &packet) {
                pair.arrives(&packet);
            }
        }
        pair.responder.poll_transmit(64, &mut pair.server);
        if round == 0 {
            let saved = pair.responder.save(&mut pair.server);
            assert!(saved.reports);
            pair.responder = Responder::resume(&responder_config(Service::Rc), &saved).unwrap();
            pair.responder.keep_packets(pair.room.as_ref().unwrap());
            dropped = true;
        }
        pair.now += pair.one_way;
        pair.take_answers();
        if pair.client.wire.is_empty() && !pair.responder.has_ack_due() && !pair.wait() {
            break;
        }
    }
    assert!(dropped);
    assert_eq!(pair.statuses(), [Status::Success; 3]);
    assert!(pair.server.memory[..20_000] == pattern(20_000, 1));
    assert_eq!(pair.requester.counters().timeouts, 0, "found by probes");
}

#[test]
fn a_peer_takes_no_more_room_than_it_leaves_to_others() {
    const ALL: u64 = 64 * (1024 + 512);
    let room = Arc::new(KeptRoom::new(ALL));
    // Of two QPs of one peer, and of one each of two others; each wants all.
    let first = room.share();
    let mut pairs: Vec<_> = [Arc::clone(&first), first, room.share(), room.share()]
        .map(|share| {
            let mut pair = Pair::speaking();
            pair.responder.forget_kept();
            pair.responder.keep_packets(&share);
            pair
        })
        .into();
    let mut taken = Vec::new();
    for pair in &mut pairs {
        pair.client.post(Opcode::Write, &[0; 1024], |_| ());
        let mut bytes = requests(pair).remove(0);
        let before = room.share().left();
        for n in 1..=64 {
            bytes[9..12].copy_from_slice(&psn_of(n).to_be_bytes()[1..]);
            replies(pair, [&bytes]);
        }
        taken.push((before - room.share().left()) / (1024 + 512));
    }
    assert_eq!(taken, [32, 0, 16, 8], "packets of 64");
    // What the first gives back is for the others too.
    pairs[0].responder.drop_kept();
    drop(pairs.remove(0));
    assert_eq!(room.share().left(), ALL - 24 * (1024 + 512));
    drop(pairs);
    assert_eq!(room.share().left(), ALL);
}

/// Bytes of a packet with another payload of the same length.
fn forged(packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    let payload = bytes.len() - 5;
    bytes[payload] ^= 0xff;
    bytes
}

#[test]
fn of_two_packets_with_one_psn_none_is_kept_and_the_requester_sends_its_own_again() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    let sent = requests(&mut pair);
    assert_eq!(replies(&mut pair, [&forged(&sent[3]), &sent[5]]), [(opcode::GAPS, psn_of(0))]);
    assert_eq!(replies(&mut pair, [&sent[3]]), [(opcode::GAPS, psn_of(0))], "the requester learns of it");
    assert_eq!(pair.room.as_ref().unwrap().left(), (1 << 20) - (1024 + 512), "packet 5 alone is kept");
    replies(&mut pair, [&sent[0], &sent[1], &sent[2], &sent[4]]);
    assert_eq!(pair.responder.expected_psn(), psn_of(3));
    // A copy that asks for an acknowledgement is no other packet.
    let mut copy = sent[5].clone();
    copy[8] |= 0x80;
    replies(&mut pair, [&copy, &sent[3]]);
    assert_eq!(pair.responder.expected_psn(), psn_of(6), "packets 4 and 5 were kept behind it");
}

#[test]
fn a_kept_read_does_not_stand_in_the_way_of_packets_with_psns_of_its_answers() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Read, &[], |r| r.length = 20_000);
    let mut read = requests(&mut pair).remove(0);
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    let sent = requests(&mut pair);
    read[9..12].copy_from_slice(&psn_of(2).to_be_bytes()[1..]);
    replies(&mut pair, [&read]);
    replies(&mut pair, [&sent[4]]);
    assert_eq!(pair.room.as_ref().unwrap().left(), 1 << 20, "both are dropped");
    replies(&mut pair, sent.iter().skip(3));
    // Nor does it take the place of what is kept.
    replies(&mut pair, [&read]);
    assert_eq!(pair.room.as_ref().unwrap().left(), 1 << 20);
    replies(&mut pair, &sent);
    assert!(pair.server.memory[..8192] == pattern(8192, 1));
}

#[test]
fn what_lies_far_beyond_the_last_packet_is_not_kept() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, b"somewhere", |_| ());
    let mut bytes = requests(&mut pair).remove(0);
    for (missing, is_kept) in [(64, true), (65, false), (1 << 14, false)] {
        pair.responder.drop_kept();
        bytes[9..12].copy_from_slice(&psn_of(missing).to_be_bytes()[1..]);
        replies(&mut pair, [&bytes]);
        assert_eq!(pair.room.as_ref().unwrap().left() < 1 << 20, is_kept, "{missing} packets are missing");
    }
    // A READ takes as many as may be missing.
    pair.finish(all);
    pair.client.post(Opcode::Read, &[], |r| r.length = 60);
    let mut read = requests(&mut pair).remove(0);
    read[24..28].copy_from_slice(&(60 * 1024u32).to_be_bytes());
    replies(&mut pair, [&read]);
    let next = pair.responder.expected_psn();
    for (missing, is_kept) in [(64, true), (120, true), (121, false)] {
        pair.responder.drop_kept();
        bytes[9..12].copy_from_slice(&psn::add(next, missing).to_be_bytes()[1..]);
        replies(&mut pair, [&bytes]);
        assert_eq!(pair.room.as_ref().unwrap().left() < 1 << 20, is_kept, "{missing} packets are missing");
    }
}

#[test]
fn a_mark_is_believed_of_a_packet_that_is_executed_alone() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    let mut sent = requests(&mut pair);
    sent.iter_mut().for_each(|bytes| bytes[8] |= vervain_wire::TAKES_GAPS);
    pair.room = Some(share_of(1 << 20));
    for bytes in [&sent[2], &sent[5]] {
        assert!(replies(&mut pair, [bytes]).iter().all(|answer| answer.0 != opcode::GAPS));
        assert_eq!(pair.room.as_ref().unwrap().left(), 1 << 20);
    }
    // The expected one, which cannot be executed.
    pair.server.silent = true;
    replies(&mut pair, [&sent[0], &sent[2]]);
    assert_eq!(pair.room.as_ref().unwrap().left(), 1 << 20);
    pair.server.silent = false;
    replies(&mut pair, [&sent[0], &sent[1]]);
    assert_eq!(replies(&mut pair, [&sent[3]]), [(opcode::GAPS, at(2))], "from the first that is executed on");
}

#[test]
fn a_read_whose_memory_has_gone_is_refused_though_a_write_to_it_is_kept() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Read, &[], |r| r.length = 8);
    pair.client.post(Opcode::Write, b"to there", |_| ());
    let sent = requests(&mut pair);
    assert_eq!(replies(&mut pair, [&sent[1]]), [(opcode::GAPS, psn_of(0))]);
    pair.server.bad_receive = true;
    // Whether the report has left or not.
    pair.arrives(&parsed(&sent[1]));
    assert_eq!(replies(&mut pair, [&sent[0]]), [(opcode::ACKNOWLEDGE, psn_of(0))]);
    assert_eq!(pair.server.failed, Some(Nak::RemoteOperation));
    assert!(pair.responder.has_ended());
}

#[test]
fn after_a_packet_that_could_not_be_executed_reports_go_on() {
    let mut pair = Pair::speaking();
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    let sent = requests(&mut pair);
    assert_eq!(replies(&mut pair, [&sent[2], &sent[4]]), [(opcode::GAPS, psn_of(0))]);
    pair.server.silent = true;
    assert_eq!(replies(&mut pair, [&sent[0]]), []);
    pair.server.silent = false;
    replies(&mut pair, [&sent[0]]);
    assert_eq!(replies(&mut pair, [&sent[7]]), [(opcode::GAPS, psn_of(1))], "of the gap before packet 7");
    assert_eq!(replies(&mut pair, [&sent[4]]), [(opcode::GAPS, psn_of(1))], "since packet 4 comes again");
}

/// SENDs of one packet each, which has its number.
fn numbered(pair: &mut Pair, count: u32) -> Vec<Vec<u8>> {
    pair.client.post(Opcode::Send, &[0; 4], |_| ());
    let sent = requests(pair).remove(0);
    pair.server.posted.extend(vec![4; count as usize]);
    let packet = |n: u32| {
        let mut bytes = sent.clone();
        bytes[9..12].copy_from_slice(&psn_of(n).to_be_bytes()[1..]);
        bytes[12..16].copy_from_slice(&n.to_be_bytes());
        bytes
    };
    (0..count).map(packet).collect()
}

/// Number of the messages that [`numbered`] has sent and that have come, in their order.
fn received(pair: &Pair) -> u32 {
    let numbers = pair.server.receives.iter().map(|receive| u32::from_be_bytes(receive.data[..4].try_into().unwrap()));
    assert!(numbers.clone().eq(0..numbers.len() as u32));
    numbers.len() as u32
}

#[test]
fn a_gap_that_closes_has_few_packets_executed_in_a_call() {
    let mut pair = Pair::speaking();
    let sent = numbered(&mut pair, 300);
    assert_eq!(replies(&mut pair, sent.iter().skip(1)), [(opcode::GAPS, psn_of(0))]);
    assert!(!pair.responder.has_kept_due());
    pair.arrives(&parsed(&sent[0]));
    assert_eq!(received(&pair), 65);
    // Nothing more comes. The acknowledgement of what is executed does not wait for the rest.
    let mut acknowledged = vec![(65, replies(&mut pair, []))];
    while pair.responder.has_kept_due() {
        let before = received(&pair);
        assert_eq!(pair.responder.execute_kept(&mut pair.server), pair.responder.has_kept_due());
        assert!((1..=64).contains(&(received(&pair) - before)));
        acknowledged.push((received(&pair), replies(&mut pair, [])));
    }
    for (count, replies) in acknowledged {
        assert_eq!(replies, [(opcode::ACKNOWLEDGE, psn_of(count - 1))]);
    }
    assert_eq!((received(&pair), pair.room.as_ref().unwrap().left()), (300, 1 << 20));
    assert!(!pair.responder.execute_kept(&mut pair.server));
}

#[test]
fn what_comes_while_kept_packets_are_due_takes_its_turn_and_is_reported_after_them() {
    let mut pair = Pair::speaking();
    let sent = numbered(&mut pair, 300);
    replies(&mut pair, &sent[1..200]);
    pair.arrives(&parsed(&sent[0]));
    assert_eq!(replies(&mut pair, []), [(opcode::ACKNOWLEDGE, psn_of(64))]);
    // One in sequence, whose copy is kept, has no others executed; nor does one behind a new gap.
    assert_eq!(replies(&mut pair, [&sent[65], &sent[210], &sent[3]]), [(opcode::ACKNOWLEDGE, psn_of(65))]);
    assert_eq!(received(&pair), 66);
    while pair.responder.execute_kept(&mut pair.server) {
        assert!(replies(&mut pair, []).iter().all(|reply| reply.0 == opcode::ACKNOWLEDGE), "no report before its time");
    }
    assert_eq!((received(&pair), replies(&mut pair, [])), (200, vec![(opcode::GAPS, psn_of(200))]));
    assert_eq!(replies(&mut pair, &sent[200..]), [(opcode::ACKNOWLEDGE, psn_of(299))]);
    assert_eq!(received(&pair), 300);
}

#[test]
fn kept_packets_that_are_due_go_with_their_qp() {
    let mut pair = Pair::speaking();
    let sent = numbered(&mut pair, 300);
    replies(&mut pair, sent.iter().skip(1));
    pair.arrives(&parsed(&sent[0]));
    // One of them ends it.
    pair.server.bad_receive = true;
    assert!(!pair.responder.execute_kept(&mut pair.server));
    replies(&mut pair, []);
    assert!(pair.responder.has_ended() && !pair.responder.has_kept_due());
    assert_eq!(pair.room.as_ref().unwrap().left(), 1 << 20);

    let mut pair = Pair::speaking();
    let sent = numbered(&mut pair, 300);
    replies(&mut pair, sent.iter().skip(1));
    pair.arrives(&parsed(&sent[0]));
    pair.responder.drop_kept();
    assert!(!pair.responder.execute_kept(&mut pair.server));
    assert_eq!((received(&pair), pair.room.as_ref().unwrap().left()), (65, 1 << 20));
}

#[test]
fn a_lost_read_request_is_one_lost_packet() {
    let mut pair = Pair::speaking();
    // A piece of 16 packets each, half the window.
    for _ in 0..2 {
        pair.client.post(Opcode::Read, &[], |r| r.length = 16 << 10);
    }
    let size = pair.window.size();
    pair.run(lose(&[0]));
    assert_eq!(pair.statuses(), [Status::Success; 4], "without waiting");
    assert_eq!((pair.requester.counters().reports, pair.requester.counters().probes), (1, 0));
    // The path is measured for the loss, and has no queue.
    pair.now += 1_000;
    pair.client.post(Opcode::Read, &[], |r| r.length = 16 << 10);
    pair.run(all);
    assert!(pair.window.size() >= size, "{} of {size} bytes", pair.window.size());
}

#[test]
fn a_read_request_goes_again_while_other_requesters_fill_the_window() {
    let mut pair = Pair::speaking();
    (0..2).for_each(|_| _ = pair.client.post(Opcode::Read, &[], |r| r.length = 9000));
    let sent = requests(&mut pair);
    // Of another requester.
    let room = pair.window.size() - pair.window.in_flight();
    pair.window.sent(room);
    replies_only(&mut pair, &sent[1]);
    pair.window.sent(9 * (1024 + 512));
    pair.take_answers();
    let again: Vec<_> = requests(&mut pair).iter().map(|bytes| parsed(bytes).headers.bth.psn).collect();
    assert_eq!(again, [psn_of(0)]);
}

/// Gives the responder a packet; its answers wait.
fn replies_only(pair: &mut Pair, bytes: &[u8]) {
    pair.arrives(&parsed(bytes));
    while pair.responder.poll_transmit(1, &mut pair.server) {}
}
