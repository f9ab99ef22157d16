//! Answers that are lost between peers that report gaps: only they are asked for again, and those behind them count.

use vervain_wire::opcode;

use super::host::{BASE, parsed};
use super::pair::*;
use crate::*;

/// PSN of packet `packet` after the two messages of [`Pair::speaking`].
fn psn_of(packet: u32) -> u32 {
    at(packet + 2)
}

/// Two that speak of gaps, and memory to read.
fn readers() -> Pair {
    let mut pair = Pair::speaking();
    pair.server.memory = pattern(1 << 20, 7);
    pair
}

fn read(pair: &mut Pair, length: u64) {
    pair.client.post(Opcode::Read, &[], |r| r.length = length);
}

/// Loses the answer with each of these PSNs once; one that is here twice, twice.
fn lose(packets: &[u32]) -> impl FnMut(Way, &vervain_wire::Packet<'_>) -> bool {
    let mut left: Vec<u32> = packets.iter().map(|packet| psn_of(*packet)).collect();
    move |way, packet| {
        let place = left.iter().position(|psn| way == Way::Response && *psn == packet.headers.bth.psn);
        place.map(|place| left.remove(place)).is_none()
    }
}

/// Operations and PSNs of the packets that went that way, as packets.
fn sent(pair: &Pair, way: Way) -> Vec<(u8, u32)> {
    let sent = pair.log.iter().filter(|entry| entry.0 == way);
    sent.map(|entry| (entry.1, psn::distance(psn_of(0), entry.2))).collect()
}

fn requests_sent(pair: &Pair) -> Vec<u32> {
    sent(pair, Way::Request).into_iter().map(|(_, packet)| packet).collect()
}

#[test]
fn only_answers_that_are_lost_are_asked_for_again() {
    let mut pair = readers();
    read(&mut pair, 20_000);
    pair.run(lose(&[3, 7, 8, 15]));
    assert_eq!(pair.statuses(), [Status::Success; 3], "without waiting");
    assert!(pair.client.delivered[2] == pattern(20_000, 7));
    // The window has room for 32 packets, of which each request takes half.
    assert_eq!(requests_sent(&pair), [0, 16, 3, 7, 15]);
    assert_eq!(sent(&pair, Way::Response).len(), 20 + 4);
    assert_eq!(pair.window.in_flight(), 0);
    assert_eq!(pair.requester.counters().implied_naks, 3);
}

#[test]
fn other_responders_are_asked_for_all_that_follows() {
    for (introduces, keeps) in [(false, true), (true, false)] {
        let config = RequesterConfig { introduces, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&config, &responder_config(Service::Rc));
        pair.room = keeps.then(|| share_of(1 << 20));
        for _ in 0..2 {
            pair.client.post(Opcode::Write, b"before", |_| ());
            pair.run(all);
        }
        pair.log.clear();
        pair.server.memory = pattern(1 << 20, 7);
        read(&mut pair, 20_000);
        pair.run(lose(&[3, 7]));
        assert_eq!(pair.statuses(), [Status::Success; 3]);
        assert!(pair.client.delivered[2] == pattern(20_000, 7));
        assert!(sent(&pair, Way::Response).len() > 20 + 10, "introduces {introduces}, keeps {keeps}");
    }
}

#[test]
fn what_is_lost_again_is_found_by_answers_to_later_requests() {
    let mut pair = readers();
    pair.window = Window::new(1024, 64 << 10);
    (0..40).for_each(|_| read(&mut pair, 10_000));
    pair.run(lose(&[12, 12, 12]));
    assert_eq!(pair.statuses(), [Status::Success; 42], "without waiting");
    assert!(pair.client.delivered[2..].iter().all(|data| *data == pattern(10_000, 7)));
    assert_eq!(requests_sent(&pair).iter().filter(|packet| **packet == 12).count(), 3);
    assert_eq!(sent(&pair, Way::Response).len(), 400 + 3);
}

#[test]
fn what_is_lost_again_at_the_end_is_found_by_a_probe() {
    let mut pair = readers();
    read(&mut pair, 20_000);
    pair.finish(lose(&[3, 3, 9]));
    assert_eq!(pair.statuses(), [Status::Success; 3]);
    assert!(pair.client.delivered[2] == pattern(20_000, 7));
    assert_eq!((pair.requester.counters().probes, pair.requester.counters().timeouts), (1, 0));
    assert_eq!(sent(&pair, Way::Response).len(), 20 + 3);
}

#[test]
fn requests_behind_a_lost_answer_are_neither_sent_nor_executed_again_and_end_in_order() {
    let mut pair = readers();
    let before = pair.server.writes;
    read(&mut pair, 5000);
    pair.client.post(Opcode::Write, &pattern(3000, 1), |r| r.remote_addr = BASE + 10_000);
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| (r.remote_addr, r.compare_add) = (BASE + 20_000, 1));
    pair.client.post(Opcode::Write, b"last", |r| r.remote_addr = BASE + 30_000);
    pair.run(lose(&[1]));
    assert_eq!(pair.statuses(), [Status::Success; 6], "without waiting");
    assert!(pair.client.delivered[2] == pattern(5000, 7));
    assert_eq!(pair.client.delivered[4], pattern(1 << 20, 7)[20_000..20_008]);
    assert_eq!((pair.server.writes, pair.server.atomics), (before + 4, 1));
    assert_eq!(requests_sent(&pair), [0, 5, 6, 7, 8, 9, 1]);
}

#[test]
fn a_lost_answer_to_an_atomic_is_asked_for_alone() {
    let mut pair = readers();
    for _ in 0..3 {
        pair.client.post(Opcode::FetchAdd, &[0; 8], |r| (r.remote_addr, r.compare_add) = (BASE + 64, 1));
    }
    let word = u64::from_ne_bytes(pair.server.memory[64..72].try_into().unwrap());
    pair.run(lose(&[0]));
    assert_eq!(pair.statuses(), [Status::Success; 5], "without waiting");
    let words = pair.client.delivered[2..].iter().map(|data| u64::from_ne_bytes(data[..].try_into().unwrap()));
    assert!(words.eq(word..word + 3));
    assert_eq!((requests_sent(&pair), pair.server.atomics), (vec![0, 1, 2, 0], 3));
}

#[test]
fn requests_and_answers_may_be_lost_together() {
    let mut pair = readers();
    read(&mut pair, 5000);
    pair.client.post(Opcode::Write, b"lost too", |r| r.remote_addr = BASE + 10_000);
    read(&mut pair, 5000);
    pair.client.post(Opcode::Write, b"kept", |r| r.remote_addr = BASE + 30_000);
    let (mut answers, mut request) = (lose(&[1, 8]), true);
    pair.run(|way, packet| {
        let is_lost = way == Way::Request && packet.headers.bth.psn == psn_of(5) && std::mem::take(&mut request);
        !is_lost && answers(way, packet)
    });
    assert_eq!(pair.statuses(), [Status::Success; 6], "without waiting");
    assert!(pair.client.delivered[2] == pattern(5000, 7) && pair.client.delivered[4] == pattern(5000, 7));
    let mut requests = requests_sent(&pair);
    requests.sort_unstable();
    assert_eq!(requests, [0, 1, 5, 5, 6, 8, 11]);
}

#[test]
fn memory_that_is_gone_fails_a_request_when_it_is_the_oldest() {
    let mut pair = readers();
    read(&mut pair, 5000);
    read(&mut pair, 5000);
    pair.client.bad_local = Some(3);
    pair.finish(lose(&[1]));
    assert_eq!(pair.statuses()[2..], [Status::Success, Status::LocalProtection]);
    assert!(pair.client.delivered[2] == pattern(5000, 7));
}

#[test]
fn answers_of_a_wrong_length_are_not_placed_before_their_turn() {
    let mut pair = readers();
    read(&mut pair, 5000);
    let asked = requests(&mut pair);
    asked.iter().for_each(|bytes| pair.arrives(&parsed(bytes)));
    while pair.responder.poll_transmit(64, &mut pair.server) {}
    let answers: Vec<_> = pair.server.wire.drain(..).collect();
    let mut short = answers[2].clone();
    short.truncate(short.len() - 4);
    for bytes in [&short, &answers[3], &answers[3], &answers[4]] {
        pair.requester.handle_packet(pair.now, &parsed(bytes), &mut pair.window, &mut pair.client);
    }
    assert_eq!(pair.requester.counters().stale, 2, "one is too short, one comes twice");
    pair.run(all);
    assert_eq!((pair.statuses(), requests_sent(&pair)), (vec![Status::Success; 3], vec![0]));
    assert!(pair.client.delivered[2] == pattern(5000, 7));
}

#[test]
fn a_saved_requester_asks_again_for_what_had_come_early() {
    let mut pair = readers();
    read(&mut pair, 20_000);
    let asked = requests(&mut pair);
    asked.iter().for_each(|bytes| pair.arrives(&parsed(bytes)));
    while pair.responder.poll_transmit(64, &mut pair.server) {}
    for bytes in
        pair.server.wire.drain(..).collect::<Vec<_>>().iter().enumerate().filter(|(n, _)| *n != 3).map(|it| it.1)
    {
        pair.requester.handle_packet(pair.now, &parsed(bytes), &mut pair.window, &mut pair.client);
    }
    let saved = pair.requester.save().expect("it goes on");
    assert_eq!(saved.unacknowledged, psn_of(3));
    let config = RequesterConfig { first_psn: saved.first_psn, first_request: 2, ..requester_config(Service::Rc) };
    pair.requester.abandon(&mut pair.window);
    pair.requester = Requester::resume(&config, &saved, &mut pair.client).expect("of such a requester");
    pair.client.delivered[2].fill(0);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 3]);
    assert!(pair.client.delivered[2][3 * 1024..] == pattern(20_000, 7)[3 * 1024..]);
}

/// Two that speak of gaps, of which one takes so many READs at once.
fn readers_with(outstanding: u8) -> Pair {
    let config = RequesterConfig { introduces: true, max_rd_atomic: outstanding, ..requester_config(Service::Rc) };
    let config_there = ResponderConfig { max_dest_rd_atomic: outstanding, ..responder_config(Service::Rc) };
    let mut pair = Pair::with(&config, &config_there);
    pair.room = Some(share_of(1 << 20));
    for _ in 0..2 {
        pair.client.post(Opcode::Write, b"shows it", |r| r.remote_addr = BASE + (1 << 20) - 8);
        pair.run(all);
    }
    pair.log.clear();
    pair.server.memory = pattern(1 << 20, 7);
    pair
}

#[test]
fn further_reads_go_while_an_answer_is_asked_for_again() {
    let mut pair = readers_with(2);
    (0..20).for_each(|_| read(&mut pair, 1000));
    pair.run(lose(&[0, 0, 9]));
    assert_eq!(pair.statuses(), [Status::Success; 22], "without waiting");
    assert!(pair.client.delivered[2..].iter().all(|data| *data == pattern(1000, 7)));
    assert_eq!((requests_sent(&pair).len(), sent(&pair, Way::Response).len()), (23, 23));
}

#[test]
fn no_more_reads_go_than_the_peer_remembers() {
    let mut pair = readers_with(2);
    (0..20).for_each(|_| read(&mut pair, 1000));
    pair.run(lose(&[0; 20]));
    let mut requests = requests_sent(&pair);
    requests.sort_unstable();
    requests.dedup();
    assert_eq!(requests, (0..8).collect::<Vec<_>>());
    let saved = pair.responder.save(&mut pair.server);
    assert_eq!(saved.resources.len(), 8);
    pair.responder =
        Responder::resume(&ResponderConfig { max_dest_rd_atomic: 2, ..responder_config(Service::Rc) }, &saved)
            .expect("of such a responder");
    pair.responder.keep_packets(&share_of(1 << 20));
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 22]);
    assert!(pair.client.delivered[2..].iter().all(|data| *data == pattern(1000, 7)));
}

#[test]
fn answers_that_have_come_early_take_no_room_of_what_the_peer_keeps() {
    let mut pair = readers_with(16);
    pair.window = Window::new(1024, 4 << 20);
    (0..20).for_each(|_| read(&mut pair, 512 << 10));
    pair.run(all);
    (0..30).for_each(|_| read(&mut pair, 512 << 10));
    pair.run(lose(&[20 * 512; 400]));
    let asked = requests_sent(&pair).into_iter().max();
    assert!(asked >= Some(49 * 512), "of all READs: {asked:?}");
    assert_eq!(pair.statuses().len(), 22);
}

#[test]
fn a_responder_that_has_many_parts_to_answer_is_saved() {
    let mut pair = readers_with(1);
    pair.client.post(Opcode::Read, &[], |r| (r.length, r.remote_addr) = (30_000, BASE + 2 * 1024));
    let asked = requests(&mut pair);
    pair.arrives(&parsed(&asked[0]));
    while pair.responder.poll_transmit(64, &mut pair.server) {}
    (2..32).step_by(2).for_each(|packet| pair.arrives(&parsed(&read_part(&asked[0], packet, 1024))));
    let saved = pair.responder.save(&mut pair.server);
    assert_eq!(saved.answers.len(), 15);
    let config = ResponderConfig { max_dest_rd_atomic: 1, ..responder_config(Service::Rc) };
    assert!(Responder::resume(&config, &saved).is_ok());
}

#[test]
fn many_parts_wait_at_a_responder_that_takes_one_read_at_a_time() {
    let mut pair = readers_with(1);
    read(&mut pair, 60_000);
    let lost: Vec<u32> = (1..30).step_by(2).collect();
    pair.run(lose(&lost));
    assert_eq!(pair.statuses(), [Status::Success; 3], "without waiting");
    assert_eq!(sent(&pair, Way::Response).len(), 59 + 15);
    assert_eq!(pair.responder.counters().dropped, 0);
    assert_eq!(pair.sent(Way::Request, opcode::READ_REQUEST), 3 + 15, "three as the window has room");
}
