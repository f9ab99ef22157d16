//! Over a channel that delivers everything once and in order: nothing is sent again that can still be answered, and a
//! peer that is absent, or takes nothing, is noticed as a silent one is.

use vervain_wire::{aeth, opcode};

use super::host::{BASE, parsed};
use super::pair::*;
use crate::*;

/// Bytes that may be under way.
const SIZE: u64 = 1 << 20;
/// The ACK timeout of the configurations here, whose code is 12.
fn timeout() -> Nanos {
    config(0).ack_timeout()
}

fn config(retry_cnt: u8) -> RequesterConfig {
    RequesterConfig { timeout: 12, retry_cnt, ..requester_config(Service::Rc) }
}

fn lossless(config: &RequesterConfig) -> Pair {
    let mut pair = Pair::with(config, &responder_config(config.service));
    pair.window = Window::lossless(config.mtu, SIZE);
    pair
}

/// Waits, and has the requester send, until it has nothing to wait for any more; at which times it did something.
fn wait_alone(pair: &mut Pair) -> Vec<Nanos> {
    let mut times = Vec::new();
    while pair.wait() {
        times.push(pair.now);
        pair.transmit();
        assert!(times.len() < 100, "{:?}", pair.requester);
    }
    times
}

#[test]
fn a_late_answer_is_waited_for_without_probes() {
    let mut pair = lossless(&config(7));
    pair.one_way = timeout() / 2 - 1;
    for i in 0..5 {
        pair.client.post(Opcode::Write, &pattern(5000, i), |_| ());
        pair.client.post(Opcode::Read, &[], |r| r.length = 5000);
    }
    pair.transmit();
    assert_eq!(pair.requester.next_timeout(), Some(pair.now + timeout()));
    pair.run(all);
    assert_eq!(pair.statuses(), [Status::Success; 10]);
    let counters = *pair.requester.counters();
    assert_eq!(counters, RequesterCounters::default());
    assert_eq!((pair.requester.next_timeout(), pair.window.size(), pair.window.in_flight()), (None, SIZE, 0));
}

#[test]
fn a_read_is_asked_for_whole_however_little_is_free() {
    let mut pair = lossless(&config(7));
    pair.server.memory = pattern(1 << 20, 7);
    for _ in 0..16 {
        pair.client.post(Opcode::Read, &[], |r| r.length = 50 * 1024);
    }
    pair.run(all);
    assert_eq!(pair.statuses(), [Status::Success; 16]);
    assert_eq!(pair.log.iter().filter(|entry| entry.1 == opcode::READ_REQUEST).count(), 16);
}

#[test]
fn what_a_peer_has_not_taken_is_not_sent_again() {
    let mut pair = lossless(&config(2));
    pair.client.taken = false;
    pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
    let begin = pair.now;
    pair.transmit();
    let times = wait_alone(&mut pair);
    assert_eq!(times, [1, 2, 3].map(|n| begin + n * timeout()));
    assert_eq!((pair.client.wire.len(), pair.client.again), (5, 0));
    assert_eq!((pair.statuses(), pair.requester.counters().timeouts), (vec![Status::RetryExceeded], 3));
}

#[test]
fn what_a_peer_takes_late_needs_no_copy() {
    let mut pair = lossless(&config(2));
    pair.client.taken = false;
    pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
    pair.transmit();
    for _ in 0..2 {
        assert!(pair.wait());
        pair.transmit();
    }
    // In its last try all is there.
    let sent: Vec<_> = pair.client.wire.drain(..).collect();
    assert_eq!(sent.len(), 5);
    replies(&mut pair, &sent[..3]);
    assert!(pair.server.sent().is_empty());
    sent[3..].iter().for_each(|bytes| pair.responder.handle_packet(&parsed(bytes), &mut pair.server));
    while pair.responder.poll_transmit(1, &mut pair.server) {}
    pair.take_answers();
    assert_eq!((pair.statuses(), pair.client.again), (vec![Status::Success], 0));
    // The next one has all its retries.
    pair.client.post(Opcode::Write, b"next", |_| ());
    let begin = pair.now;
    pair.transmit();
    wait_alone(&mut pair);
    assert_eq!((pair.statuses(), pair.now), (vec![Status::Success, Status::RetryExceeded], begin + 3 * timeout()));
}

#[test]
fn what_was_taken_and_not_answered_is_sent_again() {
    for silent in 1..=7 {
        let mut pair = lossless(&config(7));
        pair.server.silent = true;
        pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
        pair.client.post(Opcode::FetchAdd, &[0; 8], |r| (r.remote_addr, r.compare_add) = (BASE + 8192, 1));
        for _ in 0..silent {
            pair.run(all);
            assert!(pair.wait());
        }
        pair.server.silent = false;
        pair.finish(all);
        assert_eq!(pair.statuses(), [Status::Success; 2], "not ready for {silent} tries");
        let counters = pair.requester.counters();
        assert_eq!((counters.timeouts, counters.resent_packets), (silent, 6 * silent));
        assert_eq!((pair.server.writes, pair.server.atomics), (5, 1));
    }
}

#[test]
fn after_part_was_taken_the_rest_is_waited_for() {
    let mut pair = lossless(&config(7));
    pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
    let sent = requests(&mut pair);
    // The QP is not ready for two of them; the others lie in the ring.
    (pair.server.silent, pair.client.taken) = (true, false);
    assert_eq!(replies(&mut pair, &sent[..2]), []);
    assert!(pair.wait());
    assert!(requests(&mut pair).is_empty());
    (pair.server.silent, pair.client.taken) = (false, true);
    assert_eq!(replies(&mut pair, &sent[2..]), [], "it has dropped what comes before them");
    assert!(pair.wait());
    pair.run(all);
    assert_eq!((pair.statuses(), pair.requester.counters().timeouts), (vec![Status::Success], 2));
    assert_eq!((pair.client.again, pair.server.writes), (5, 5));
}

#[test]
fn a_responder_that_came_late_asks_for_what_it_missed() {
    let mut pair = lossless(&config(7));
    pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
    // Two packets have found no QP.
    let sent = requests(&mut pair);
    assert_eq!(replies(&mut pair, &sent[2..3]), [(opcode::ACKNOWLEDGE, at(0))]);
    assert_eq!(replies(&mut pair, &sent[3..]), []);
    let nak = acknowledge(at(0), 0x60);
    pair.requester.handle_packet(pair.now, &parsed(&nak), &mut pair.window, &mut pair.client);
    pair.run(all);
    assert_eq!((pair.statuses(), pair.requester.counters().timeouts), (vec![Status::Success], 0));
    assert_eq!(pair.window.size(), SIZE);
}

#[test]
fn time_in_which_nobody_looks_takes_no_retry() {
    let mut pair = lossless(&config(0));
    pair.client.post(Opcode::Write, b"answered late", |_| ());
    let sent = requests(&mut pair);
    // The process gets no CPU for long, and then there is room for the answer.
    pair.now += 100 * timeout();
    pair.requester.handle_timeout(pair.now, &mut pair.window, &mut pair.client);
    assert_eq!(pair.requester.next_timeout(), Some(pair.now + timeout() / 4));
    assert!(requests(&mut pair).is_empty());
    assert_eq!(replies(&mut pair, &sent).len(), 1);
    let answer = acknowledge(at(0), 0);
    pair.requester.handle_packet(pair.now, &parsed(&answer), &mut pair.window, &mut pair.client);
    assert_eq!((pair.statuses(), pair.client.again), (vec![Status::Success], 0));
}

#[test]
fn a_silent_peer_is_noticed_however_late_each_look_is() {
    for late in [0, timeout() / 5, timeout() / 2, 7 * timeout()] {
        let mut pair = lossless(&config(2));
        pair.client.post(Opcode::Write, b"into the void", |_| ());
        pair.transmit();
        let mut looks = 0;
        while let Some(due) = pair.requester.next_timeout() {
            pair.now = due + late;
            pair.requester.handle_timeout(pair.now, &mut pair.window, &mut pair.client);
            pair.transmit();
            looks += 1;
            assert!(looks < 100, "{:?}", pair.requester);
        }
        let excuses = if late > timeout() / 4 { 3 } else { 0 };
        assert_eq!((pair.statuses(), looks), (vec![Status::RetryExceeded], 3 + excuses), "each {late} ns late");
    }
}

/// Each is news, however soon it comes after the last one: none is a copy.
#[test]
fn every_sequence_nak_is_obeyed() {
    let mut pair = lossless(&config(7));
    pair.client.post(Opcode::Write, b"measures the round trip, if that were done", |_| ());
    pair.run(all);
    pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
    pair.transmit();
    for _ in 0..3 {
        pair.client.wire.clear();
        let nak = acknowledge(at(1), 0x60);
        pair.requester.handle_packet(pair.now, &parsed(&nak), &mut pair.window, &mut pair.client);
        pair.transmit();
        assert_eq!(pair.client.wire.len(), 5);
    }
}

#[test]
fn a_request_that_finds_no_room_ends_as_if_nobody_answered() {
    for (retries, looks) in [(0, 0), (2, 0), (2, 3), (7, 1)] {
        let mut pair = lossless(&config(retries));
        pair.client.room = 0;
        pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
        pair.client.post(Opcode::Read, &[], |r| r.length = 5000);
        let begin = pair.now;
        assert_eq!(pair.transmit(), Sent::HostFull);
        while let Some(at) = pair.requester.next_timeout() {
            // A look for room does not begin the wait anew, also if it comes before the timer.
            for look in 0..looks {
                pair.now = pair.now.max(at - 1 + look);
                assert_eq!(pair.transmit(), Sent::HostFull);
            }
            pair.wait();
            pair.transmit();
        }
        assert_eq!(pair.statuses(), [Status::RetryExceeded]);
        let waited = pair.now - begin;
        let tries = u64::from(retries) + 1;
        assert!((tries * timeout()..=tries * (timeout() + looks)).contains(&waited), "{waited}");
        assert_eq!((pair.requester.counters().timeouts, pair.window.in_flight()), (tries, 0));
    }
}

#[test]
fn the_wait_for_room_begins_with_the_last_answer() {
    let mut pair = lossless(&config(0));
    pair.client.room = 1;
    pair.client.post(Opcode::Write, b"sent", |_| ());
    pair.client.post(Opcode::Write, b"and refused", |_| ());
    assert_eq!(pair.transmit(), Sent::HostFull);
    assert_eq!(pair.requester.next_timeout(), Some(pair.now + timeout()), "that of the packet");
    pair.run(all);
    assert_eq!(pair.statuses(), [Status::Success]);
    let answered = pair.now - 2 * pair.one_way;
    assert_eq!(pair.requester.next_timeout(), Some(answered + timeout()));
    assert_eq!(wait_alone(&mut pair), [answered + timeout()]);
    assert_eq!(pair.statuses(), [Status::Success, Status::RetryExceeded]);
}

#[test]
fn a_refusal_does_not_give_what_is_under_way_more_time() {
    let mut pair = lossless(&config(0));
    pair.client.post(Opcode::Write, b"sent", |_| ());
    pair.transmit();
    let due = pair.requester.next_timeout();
    pair.now += timeout() + 1;
    pair.client.room = 0;
    pair.client.post(Opcode::Write, b"and refused when the timer has run out", |_| ());
    assert_eq!((pair.transmit(), pair.requester.next_timeout()), (Sent::HostFull, due));
    assert!(pair.wait());
    assert_eq!(pair.statuses(), [Status::RetryExceeded]);
}

#[test]
fn a_read_that_finds_no_room_ends_too() {
    let mut pair = lossless(&config(1));
    pair.client.room = 0;
    pair.client.post(Opcode::Read, &[], |r| r.length = 5000);
    assert_eq!(pair.transmit(), Sent::HostFull);
    assert_eq!(wait_alone(&mut pair).len(), 2);
    assert_eq!(pair.statuses(), [Status::RetryExceeded]);
}

#[test]
fn without_a_timeout_room_and_answers_are_waited_for_for_ever() {
    let mut pair = lossless(&RequesterConfig { timeout: 0, ..config(0) });
    pair.client.room = 0;
    pair.client.post(Opcode::Write, b"hello", |_| ());
    assert_eq!((pair.transmit(), pair.requester.next_timeout()), (Sent::HostFull, None));
    pair.now += 1 << 50;
    pair.client.room = 1;
    assert_eq!((pair.transmit(), pair.requester.next_timeout()), (Sent::All, None));
    pair.now += 1 << 50;
    pair.run(all);
    assert_eq!(pair.statuses(), [Status::Success]);
}

#[test]
fn what_found_room_late_has_the_whole_timeout() {
    let mut pair = lossless(&config(0));
    pair.client.room = 0;
    pair.client.post(Opcode::Write, b"hello", |_| ());
    assert_eq!(pair.transmit(), Sent::HostFull);
    pair.now += timeout() - 1;
    assert_eq!(pair.transmit(), Sent::HostFull);
    pair.client.room = 1;
    assert_eq!(pair.transmit(), Sent::All);
    assert_eq!(pair.requester.next_timeout(), Some(pair.now + timeout()));
    pair.run(all);
    assert_eq!(pair.statuses(), [Status::Success]);
}

#[test]
fn retries_begin_anew_with_answers_and_not_with_room() {
    let mut pair = lossless(&config(1));
    pair.client.post(Opcode::Write, &pattern(3000, 1), |_| ());
    pair.client.post(Opcode::Write, b"behind it", |_| ());
    for room in [0, 1] {
        pair.client.room = room;
        assert_eq!(pair.transmit(), Sent::HostFull);
        assert_eq!(pair.statuses(), []);
        assert!(pair.wait());
    }
    assert_eq!(pair.statuses(), [Status::RetryExceeded], "the second wait was for an answer");

    let mut pair = lossless(&config(1));
    for i in 0..5 {
        pair.client.post(Opcode::Write, b"hello", |_| ());
        pair.client.room = 0;
        assert_eq!(pair.transmit(), Sent::HostFull);
        assert!(pair.wait());
        pair.client.room = 9;
        pair.run(all);
        assert_eq!(pair.statuses(), vec![Status::Success; i + 1]);
    }
}

#[test]
fn a_full_ring_does_not_run_the_timer_in_the_wait_of_an_rnr_nak() {
    let mut pair = lossless(&RequesterConfig { rnr_retry: 1, ..config(0) });
    pair.client.post(Opcode::Send, b"x", |_| ());
    pair.run(all);
    assert_eq!(pair.requester.counters().rnr_naks, 1);
    pair.client.room = 0;
    let until = pair.requester.next_timeout().unwrap();
    pair.now = until - 1;
    assert_eq!((pair.transmit(), pair.requester.next_timeout()), (Sent::All, Some(until)));
    assert!(pair.wait());
    assert_eq!(pair.transmit(), Sent::HostFull);
    assert_eq!(pair.requester.next_timeout(), Some(until + timeout()), "from the end of that on");
    pair.server.posted.push_back(1);
    pair.client.room = 1;
    pair.run(all);
    assert_eq!(pair.statuses(), [Status::Success]);
}

#[test]
fn what_waits_for_the_window_has_asked_for_an_answer() {
    let mut pair = lossless(&RequesterConfig { timeout: 0, ..config(0) });
    pair.window = Window::lossless(1024, 32 << 10);
    pair.client.post(Opcode::Write, &pattern(1 << 16, 1), |_| ());
    pair.client.room = 2;
    assert_eq!(pair.transmit(), Sent::HostFull);
    assert!(pair.client.wire.iter().all(|bytes| !parsed(bytes).headers.bth.ack_request));
    // Another requester fills the window meanwhile.
    let mut other = lossless(&config(0));
    std::mem::swap(&mut pair.window, &mut other.window);
    other.client.post(Opcode::Write, &pattern(1 << 16, 1), |_| ());
    assert_eq!(other.transmit(), Sent::WindowClosed);
    std::mem::swap(&mut pair.window, &mut other.window);
    pair.client.room = usize::MAX;
    assert_eq!(pair.transmit(), Sent::WindowClosed);
    let asks: Vec<_> = pair.client.sent().iter().map(|packet| packet.2).collect();
    assert_eq!(asks, [false, false, true]);
}

/// A message whose receive is claimed by its first packet leaves no credit for the rest of it.
#[test]
fn what_waits_for_credits_has_asked_for_them() {
    let mut pair = lossless(&RequesterConfig { timeout: 0, ..config(0) });
    pair.server.tell_credits = true;
    pair.server.posted.extend([10, 5000]);
    pair.client.post(Opcode::Send, b"x", |_| ());
    pair.client.post(Opcode::Send, &pattern(5000, 1), |_| ());
    pair.client.room = 3;
    assert_eq!(pair.transmit(), Sent::HostFull);
    // The one answer is sent when the second message has begun.
    let sent: Vec<_> = pair.client.wire.drain(..).collect();
    sent.iter().for_each(|bytes| pair.responder.handle_packet(&parsed(bytes), &mut pair.server));
    while pair.responder.poll_transmit(1, &mut pair.server) {}
    pair.server.wire.clear();
    let answer = acknowledge(at(0), aeth::credit_code(0));
    pair.requester.handle_packet(pair.now, &parsed(&answer), &mut pair.window, &mut pair.client);
    pair.client.room = usize::MAX;
    pair.run(all);
    assert_eq!((pair.statuses(), pair.client.again), (vec![Status::Success; 2], 0));
}

/// Packets of a message refused as not ready ask for no acknowledgement when they are sent again, except its last,
/// which may wait for credits.
#[test]
fn what_waits_for_credits_after_an_rnr_nak_has_asked_for_them() {
    let mut pair = lossless(&RequesterConfig { timeout: 0, ..config(0) });
    pair.server.tell_credits = true;
    pair.server.posted.push_back(10);
    pair.client.post(Opcode::Send, b"x", |_| ());
    pair.run(all);
    pair.client.post(Opcode::Send, &pattern(5000, 1), |_| ());
    pair.run(all);
    assert_eq!(pair.requester.counters().rnr_naks, 1);
    pair.server.posted.push_back(5000);
    pair.finish(all);
    assert_eq!((pair.statuses(), pair.requester.counters().rnr_naks), (vec![Status::Success; 2], 1));
}

#[test]
fn only_a_lossless_reliable_requester_runs_a_timer_for_room() {
    let reliable = Pair::new(Service::Rc);
    let unreliable = lossless(&requester_config(Service::Uc));
    for mut pair in [reliable, unreliable] {
        pair.client.room = 0;
        pair.client.post(Opcode::Write, b"hello", |_| ());
        assert_eq!((pair.transmit(), pair.requester.next_timeout()), (Sent::HostFull, None));
        pair.now += 100 * timeout();
        pair.requester.handle_timeout(pair.now, &mut pair.window, &mut pair.client);
        assert_eq!((pair.statuses(), pair.requester.counters().timeouts), (vec![], 0));
    }
}

#[test]
fn long_messages_ask_for_acknowledgements_and_reads_for_pieces() {
    let mut pair = lossless(&config(7));
    let packets = 4 * SIZE as usize / 1024;
    pair.server.memory = vec![0; 1 << 23];
    pair.client.post(Opcode::Write, &pattern(packets * 1024, 1), |_| ());
    pair.transmit();
    let sent = pair.client.sent();
    let asked = sent.iter().filter(|packet| packet.2).count();
    assert!((4..=6).contains(&asked), "{asked} of {}", sent.len());
    assert!(sent.len() > 600);

    let mut pair = lossless(&config(7));
    pair.server.memory = pattern(1 << 23, 1);
    pair.client.post(Opcode::Read, &[], |r| r.length = packets as u64 * 1024);
    pair.transmit();
    assert!((2..=16).contains(&pair.client.wire.len()));
    pair.finish(all);
    assert_eq!((pair.statuses(), pair.client.again), (vec![Status::Success], 0));
    assert!(pair.client.delivered[0] == pair.server.memory[..packets * 1024]);
}

#[test]
fn an_acknowledgement_leaves_before_its_message_completes_where_that_is_wanted() {
    for acks_first in [false, true] {
        let responder = ResponderConfig { acks_first, ..responder_config(Service::Rc) };
        let mut pair = Pair::with(&config(7), &responder);
        pair.server.posted.extend([1 << 20; 4]);
        for operation in [Opcode::Send, Opcode::WriteImm, Opcode::Send] {
            pair.client.post(operation, &pattern(5000, 1), |_| ());
            for bytes in requests(&mut pair) {
                pair.responder.handle_packet(&parsed(&bytes), &mut pair.server);
            }
            let answered = pair.server.wire.len();
            while pair.responder.poll_transmit(1, &mut pair.server) {}
            assert_eq!((answered, pair.server.wire.len()), (usize::from(acks_first), 1));
            pair.take_answers();
        }
        assert_eq!(pair.statuses(), [Status::Success; 3]);
        assert_eq!(pair.server.sent_before, [usize::from(acks_first); 3]);
        // A message that finds no room waits as ever.
        pair.client.post(Opcode::Send, b"last", |_| ());
        let last = requests(&mut pair);
        pair.server.room = 0;
        pair.responder.handle_packet(&parsed(&last[0]), &mut pair.server);
        assert!(pair.responder.poll_transmit(1, &mut pair.server));
        assert_eq!(pair.server.receives.iter().filter(|receive| receive.done.is_some()).count(), 4);
        pair.server.room = 1;
        assert!(!pair.responder.poll_transmit(1, &mut pair.server));
        pair.take_answers();
        assert_eq!(pair.statuses(), [Status::Success; 4]);
    }
}
