//! Lost packets come again; repeated ones are executed once.

use vervain_wire::opcode;

use super::host::{BASE, parsed};
use super::pair::*;
use crate::*;

/// The ACK timeout of a code, in nanoseconds.
fn timeout(code: u8) -> Nanos {
    RequesterConfig { timeout: code, ..requester_config(Service::Rc) }.ack_timeout()
}

#[test]
fn a_nak_that_comes_twice_is_obeyed_once() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, b"measures the round trip", |_| ());
    pair.run(all);
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    pair.transmit();
    let nak = acknowledge(at(3), 0x60);
    pair.requester.handle_packet(pair.now, &parsed(&nak), &mut pair.window, &mut pair.client);
    pair.transmit();
    pair.client.wire.clear();
    pair.requester.handle_packet(pair.now + 100, &parsed(&nak), &mut pair.window, &mut pair.client);
    pair.transmit();
    assert!(pair.client.wire.is_empty());
    pair.requester.handle_packet(pair.now + 100_000, &parsed(&nak), &mut pair.window, &mut pair.client);
    pair.transmit();
    assert_eq!(pair.client.wire.len(), 6, "a round trip later it is news");
}

#[test]
fn a_gap_is_told_once_and_mended_at_once() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    pair.run(lose_once(|way, _, psn| way == Way::Request && psn == at(2)));
    assert_eq!(pair.statuses(), [Status::Success], "without waiting");
    assert!(pair.server.memory[..8192] == pattern(8192, 1));
    assert_eq!(pair.requester.counters().sequence_naks, 1);
    assert_eq!(pair.requester.counters().resent_packets, 6);
    assert_eq!(pair.client.again, 6);
    assert_eq!(pair.responder.counters().out_of_sequence, 5);
}

#[test]
fn a_packet_that_is_lost_twice_is_told_of_twice() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    let mut left = 2;
    pair.run(|way, packet| {
        let hit = way == Way::Request && packet.headers.bth.psn == at(2) && left > 0;
        left -= u32::from(hit);
        !hit
    });
    assert_eq!(pair.statuses(), [Status::Success], "without waiting");
    assert_eq!(pair.requester.counters().sequence_naks, 2);
}

#[test]
fn an_answer_to_a_packet_that_was_sent_twice_does_not_tell_the_round_trip_time() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, b"lost at first", |_| ());
    pair.finish(lose_once(|way, _, _| way == Way::Request));
    assert_eq!(pair.statuses(), [Status::Success]);
    assert_eq!((pair.requester.counters().probes, pair.window.rtt().smoothed()), (1, None));
    pair.client.post(Opcode::Write, b"sent once", |_| ());
    pair.finish(all);
    assert!(pair.window.rtt().smoothed().is_some_and(|time| time < 1_000_000), "{:?}", pair.window.rtt());
}

#[test]
fn a_lost_last_packet_is_probed_for_long_before_the_timeout() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, b"a", |_| ());
    pair.finish(all);
    pair.client.post(Opcode::Write, &pattern(2000, 1), |_| ());
    let begin = pair.now;
    pair.finish(lose_once(|way, code, _| way == Way::Request && code == opcode::WRITE_LAST));
    assert_eq!(pair.statuses(), [Status::Success; 2]);
    assert!(pair.now - begin < 2_000_000);
    assert_eq!((pair.requester.counters().probes, pair.requester.counters().timeouts), (1, 0));
    assert_eq!(pair.requester.counters().resent_packets, 1);
}

#[test]
fn a_lost_acknowledgement_comes_again_and_the_message_is_delivered_once() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.posted.extend([5000, 5000]);
    pair.client.post(Opcode::Send, &pattern(2000, 1), |_| ());
    pair.finish(lose_once(|way, _, _| way == Way::Response));
    assert_eq!(pair.statuses(), [Status::Success]);
    assert_eq!(pair.server.receives.len(), 1);
    assert_eq!(pair.responder.counters().duplicates, 1);
}

#[test]
fn a_lost_read_response_has_the_rest_asked_for_at_once() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.memory = pattern(1 << 20, 7);
    pair.client.post(Opcode::Read, &[], |r| r.length = 5000);
    pair.run(lose_once(|way, _, psn| way == Way::Response && psn == at(2)));
    assert_eq!(pair.statuses(), [Status::Success], "without waiting");
    assert!(pair.client.delivered[0] == pattern(5000, 7));
    assert_eq!(pair.requester.counters().implied_naks, 1);
    let asked: Vec<_> = pair.log.iter().filter(|entry| entry.1 == opcode::READ_REQUEST).map(|entry| entry.2).collect();
    assert_eq!(asked, [at(0), at(2)]);
}

#[test]
fn reads_behind_a_lost_response_are_asked_for_within_their_former_bounds() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.memory = pattern(1 << 20, 7);
    pair.client.post(Opcode::Read, &[], |r| r.length = 300_000);
    pair.client.post(Opcode::Read, &[], |r| (r.length, r.remote_addr) = (100_000, BASE + 17));
    pair.finish(lose_once(|way, _, psn| way == Way::Response && psn == at(5)));
    assert_eq!(pair.statuses(), [Status::Success; 2]);
    assert!(pair.client.delivered[0] == pattern(300_000, 7));
    assert!(pair.client.delivered[1] == pattern(1 << 20, 7)[17..100_017]);
    assert_eq!(pair.responder.counters().dropped, 0);
}

#[test]
fn an_atomic_whose_answer_is_lost_is_executed_once() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.memory[..8].copy_from_slice(&5u64.to_ne_bytes());
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = 3);
    pair.finish(lose_once(|way, _, _| way == Way::Response));
    assert_eq!(pair.statuses(), [Status::Success]);
    assert_eq!(pair.client.delivered[0], 5u64.to_ne_bytes());
    assert_eq!(pair.server.memory[..8], 8u64.to_ne_bytes());
    assert_eq!(pair.server.atomics, 1);
}

#[test]
fn an_acknowledgement_that_overtakes_an_answer_shows_that_it_is_lost() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = 3);
    pair.client.post(Opcode::Write, b"after it", |r| r.remote_addr = BASE + 64);
    pair.run(lose_once(|_, code, _| code == opcode::ATOMIC_ACKNOWLEDGE));
    assert_eq!(pair.statuses(), [Status::Success; 2], "without waiting");
    assert_eq!(pair.server.atomics, 1);
    assert_eq!(pair.requester.counters().implied_naks, 1);
}

#[test]
fn a_nak_that_overtakes_an_answer_shows_that_it_is_lost() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = 3);
    pair.client.post(Opcode::Send, b"finds no receive", |_| ());
    pair.run(lose_once(|_, code, _| code == opcode::ATOMIC_ACKNOWLEDGE));
    assert_eq!(pair.statuses(), [Status::Success], "without waiting");
    assert_eq!((pair.server.atomics, pair.requester.counters().implied_naks), (1, 1));
    pair.server.posted.push_back(100);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 2]);
}

#[test]
fn nothing_comes_back_for_as_often_as_the_retry_count_says() {
    let config = RequesterConfig { timeout: 12, retry_cnt: 2, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &responder_config(Service::Rc));
    pair.client.post(Opcode::Write, b"into the void", |_| ());
    pair.client.post(Opcode::Write, b"behind it", |_| ());
    let begin = pair.now;
    pair.finish(|way, _| way == Way::Response);
    assert_eq!(pair.statuses(), [Status::RetryExceeded]);
    assert!(pair.requester.has_ended());
    assert_eq!(pair.requester.counters().timeouts, 3);
    let waited = pair.now - begin;
    assert!((3 * timeout(12)..4 * timeout(12)).contains(&waited), "{waited}");
}

#[test]
fn timeout_and_retries_may_change_while_nothing_is_under_way() {
    for (before, after) in [(7, 1), (1, 5)] {
        let config = RequesterConfig { timeout: 16, retry_cnt: before, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&config, &responder_config(Service::Rc));
        pair.client.post(Opcode::Write, b"arrives", |_| ());
        pair.finish(all);
        pair.requester.modify(&RequesterConfig { timeout: 12, retry_cnt: after, ..config });
        let begin = pair.now;
        pair.client.post(Opcode::Write, b"into the void", |_| ());
        pair.finish(|way, _| way == Way::Response);
        assert_eq!(pair.statuses(), [Status::Success, Status::RetryExceeded]);
        assert_eq!(pair.requester.counters().timeouts, u64::from(after) + 1);
        assert!(pair.now - begin < u64::from(after + 2) * timeout(12));
    }
}

#[test]
fn a_timeout_begins_with_the_request_and_not_with_the_last_answer() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, b"first", |_| ());
    pair.finish(all);
    pair.now += timeout(14) - 100_000;
    let begin = pair.now;
    pair.client.post(Opcode::Write, b"second", |_| ());
    while pair.requester.counters().timeouts == 0 {
        pair.run(|_, _| false);
        pair.wait();
    }
    assert!(pair.now >= begin + timeout(14));
}

#[test]
fn time_in_which_nobody_looks_takes_no_retry() {
    let config = RequesterConfig { timeout: 10, retry_cnt: 0, ..requester_config(Service::Rc) };
    for looks in 0..3 {
        let mut pair = Pair::with(&config, &responder_config(Service::Rc));
        pair.client.post(Opcode::Write, b"answered late", |_| ());
        pair.transmit();
        for _ in 0..looks {
            let due = pair.requester.next_timeout().unwrap();
            pair.requester.handle_timeout(due, &mut pair.window, &mut pair.client);
            pair.transmit();
        }
        // The process gets no CPU for long.
        pair.now = pair.requester.next_timeout().unwrap() + 100 * timeout(10);
        pair.requester.handle_timeout(pair.now, &mut pair.window, &mut pair.client);
        assert_eq!(pair.requester.counters().timeouts, 0, "after {looks} looks in time");
        pair.finish(all);
        assert_eq!(pair.statuses(), [Status::Success], "after {looks} looks in time");
    }
}

#[test]
fn a_silent_peer_is_noticed_however_late_each_look_is() {
    let config = RequesterConfig { timeout: 10, retry_cnt: 2, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &responder_config(Service::Rc));
    pair.client.post(Opcode::Write, b"into the void", |_| ());
    let (begin, mut looks) = (pair.now, 0);
    pair.run(|_, _| false);
    while let Some(due) = pair.requester.next_timeout() {
        let late = timeout(10) * (looks % 3);
        pair.now = due + late;
        pair.requester.handle_timeout(pair.now, &mut pair.window, &mut pair.client);
        pair.run(|_, _| false);
        looks += 1;
        assert!(looks < 100, "{:?}", pair.requester);
    }
    assert_eq!(pair.statuses(), [Status::RetryExceeded]);
    assert_eq!(pair.requester.counters().timeouts, 3);
    assert!(pair.now - begin >= 3 * timeout(10) + looks.saturating_sub(5) * timeout(10));
}

#[test]
fn without_a_timeout_it_is_tried_for_ever() {
    let config = RequesterConfig { timeout: 0, retry_cnt: 0, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &responder_config(Service::Rc));
    pair.client.post(Opcode::Write, b"hello", |_| ());
    for _ in 0..100 {
        pair.run(|_, _| false);
        assert!(pair.wait());
    }
    assert!(pair.now > 60_000_000_000);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success]);
}

#[test]
fn whether_something_is_to_be_sent_and_the_peer_answers_is_known() {
    let mut pair = Pair::new(Service::Rc);
    let state = |pair: &Pair| (pair.requester.has_unsent(), pair.requester.waits_for_peer());
    assert_eq!(state(&pair), (false, false));
    pair.client.post(Opcode::Write, &pattern(100 << 10, 1), |_| ());
    assert_eq!(
        (pair.transmit(), state(&pair)),
        (Sent::WindowClosed, (true, false)),
        "more than the window lets through"
    );
    pair.run(all);
    assert_eq!((pair.statuses().len(), state(&pair)), (1, (false, false)));
    pair.client.post(Opcode::Write, b"lost", |_| ());
    pair.transmit();
    for probes in 1..=3 {
        assert_eq!(state(&pair), (false, false), "before probe {probes}");
        pair.client.wire.clear();
        assert!(pair.wait());
        assert_eq!(pair.requester.counters().probes, probes);
    }
    assert_eq!(state(&pair), (true, true), "nobody answers, and all is sent again");
    pair.run(all);
    assert_eq!((pair.statuses().len(), state(&pair)), (2, (false, false)), "the peer has answered");
    pair.client.post(Opcode::Send, b"no receive", |_| ());
    pair.run(all);
    assert!(pair.requester.waits_for_peer());
    pair.server.posted.push_back(100);
    pair.finish(all);
    assert_eq!((pair.statuses().len(), state(&pair)), (3, (false, false)));
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Send, &pattern(2000, 1), |_| ());
    pair.run(all);
    assert_eq!(pair.requester.counters().rnr_naks, 1);
    let until = pair.requester.next_timeout().unwrap();
    assert!((pair.now + 640_000 - 3 * ONE_WAY..=pair.now + 640_000).contains(&until), "code 12");
    assert!(pair.requester.waits_for_receive());
    pair.server.posted.push_back(2000);
    pair.run(all);
    assert_eq!(pair.statuses(), [], "not before the time is over");
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success]);
    assert_eq!(pair.responder.counters().rnr_naks, 1);
    assert!(!pair.requester.waits_for_receive());
}

#[test]
fn a_receiver_that_never_gets_ready_is_tried_as_often_as_rnr_retry_says() {
    let config = RequesterConfig { rnr_retry: 1, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &responder_config(Service::Rc));
    pair.client.post(Opcode::Send, b"x", |_| ());
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::RnrRetryExceeded]);
    assert_eq!(pair.sent(Way::Request, opcode::SEND_ONLY), 2);
}

#[test]
fn a_receiver_is_waited_for_without_end_if_rnr_retry_is_7() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Send, b"x", |_| ());
    for _ in 0..20 {
        pair.run(all);
        pair.wait();
        // Also while it tries again.
        assert!(pair.requester.waits_for_receive());
    }
    assert_eq!((pair.statuses(), pair.requester.counters().rnr_naks), (vec![], 20));
}

#[test]
fn the_retries_begin_anew_with_each_answer() {
    let config = RequesterConfig { timeout: 12, retry_cnt: 1, rnr_retry: 1, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &responder_config(Service::Rc));
    for i in 1..5 {
        pair.client.post(Opcode::Send, b"x", |_| ());
        while pair.requester.counters().timeouts < i {
            pair.run(|way, _| way == Way::Response);
            pair.wait();
        }
        pair.run(all);
        pair.server.posted.push_back(1);
        pair.finish(all);
        assert_eq!(pair.statuses(), vec![Status::Success; i as usize]);
    }
    assert_eq!(pair.requester.counters().rnr_naks, 4);
}

#[test]
fn very_short_timeouts_are_those_of_an_adapter() {
    let config = RequesterConfig { timeout: 1, retry_cnt: 0, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &responder_config(Service::Rc));
    pair.client.post(Opcode::Write, b"x", |_| ());
    let begin = pair.now;
    pair.finish(|_, _| false);
    assert_eq!(pair.statuses(), [Status::RetryExceeded]);
    assert!(pair.now - begin > 4_000_000);
}

#[test]
fn a_sequence_nak_behind_an_rnr_nak_does_not_cut_the_wait_short() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Send, &pattern(2000, 1), |_| ());
    pair.transmit();
    pair.client.wire.clear();
    for syndrome in [0x20 | 14, 0x60] {
        let bytes = acknowledge(FIRST_PSN, syndrome);
        pair.requester.handle_packet(pair.now, &parsed(&bytes), &mut pair.window, &mut pair.client);
        pair.transmit();
        assert!(pair.client.wire.is_empty());
    }
    assert_eq!(pair.requester.next_timeout(), Some(pair.now + 1_280_000));
    assert_eq!(pair.window.size(), Window::new(1024, 1 << 20).size(), "nothing was lost");
}

#[test]
fn duplicates_of_every_packet_change_nothing() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.posted.extend([5000; 4]);
    pair.client.post(Opcode::Send, &pattern(3000, 1), |_| ());
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| (r.compare_add, r.remote_addr) = (1, BASE + 8192));
    pair.client.post(Opcode::Write, &pattern(3000, 2), |_| ());
    pair.client.post(Opcode::Read, &[], |r| r.length = 3000);
    pair.client.post(Opcode::AtomicWrite, &[1; 8], |r| r.remote_addr = BASE + 8200);
    pair.transmit();
    let requests: Vec<_> = pair.client.wire.drain(..).collect();
    for _ in 0..3 {
        for bytes in &requests {
            pair.responder.handle_packet(&parsed(bytes), &mut pair.server);
        }
    }
    while pair.responder.poll_transmit(1, &mut pair.server) {}
    let responses: Vec<_> = pair.server.wire.drain(..).collect();
    for _ in 0..3 {
        for bytes in &responses {
            pair.requester.handle_packet(pair.now, &parsed(bytes), &mut pair.window, &mut pair.client);
        }
    }
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 5]);
    assert_eq!((pair.server.receives.len(), pair.server.atomics, pair.server.writes), (1, 1, 4));
    assert!(pair.client.delivered[3] == pattern(3000, 2));
}

#[test]
fn what_is_long_gone_is_not_answered() {
    let config = RequesterConfig { max_rd_atomic: 1, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &ResponderConfig { max_dest_rd_atomic: 1, ..responder_config(Service::Rc) });
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = 1);
    pair.transmit();
    let old = pair.client.wire[0].clone();
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = 1);
    pair.finish(all);
    pair.responder.handle_packet(&parsed(&old), &mut pair.server);
    assert!(!pair.responder.has_ack_due());
    assert_eq!((pair.responder.counters().dropped, pair.server.atomics), (1, 2));
}

#[test]
fn heavy_loss_both_ways_is_survived() {
    let mut pair = Pair::new(Service::Rc);
    let mut state = 1u64;
    let mut lost = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33 & 7 < 2
    };
    for i in 0..60u8 {
        let place = u64::from(i) * 16_384;
        match i % 4 {
            0 => pair.client.post(Opcode::Write, &pattern(9000, i), |r| r.remote_addr = BASE + place),
            1 => pair.client.post(Opcode::Read, &[], |r| (r.length, r.remote_addr) = (9000, BASE + place - 16_384)),
            2 => pair.client.post(Opcode::FetchAdd, &[0; 8], |r| (r.remote_addr, r.compare_add) = (BASE + 0xf_fff8, 1)),
            _ => pair.client.post(Opcode::Send, &pattern(1500, i), |_| ()),
        };
        pair.server.posted.push_back(2000);
    }
    pair.finish(|_, _| !lost());
    assert_eq!(pair.statuses(), [Status::Success; 60]);
    for i in (1..60).step_by(4) {
        assert!(pair.client.delivered[i] == pattern(9000, i as u8 - 1));
    }
    assert_eq!((pair.server.atomics, pair.server.receives.len()), (15, 15));
}

#[test]
fn a_read_is_asked_for_anew_as_it_was_though_the_window_has_shrunk() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Read, &[], |r| r.length = 300_000);
    let reths = |pair: &mut Pair| -> Vec<_> {
        pair.transmit();
        pair.client.wire.drain(..).map(|bytes| parsed(&bytes).headers.reth.unwrap()).collect()
    };
    let first = reths(&mut pair);
    assert!(first.len() > 1);
    let size = pair.window.size();
    for _ in 0..4 {
        reths(&mut pair);
        pair.wait();
    }
    assert!(pair.window.size() < size / 4);
    let again = reths(&mut pair);
    assert!(!again.is_empty() && first.starts_with(&again));
}

#[test]
fn each_gap_is_told() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, &pattern(8192, 1), |_| ());
    let sent = requests(&mut pair);
    assert_eq!(replies(&mut pair, [&sent[1]]), [(opcode::ACKNOWLEDGE, at(0))]);
    assert_eq!(replies(&mut pair, [&sent[0], &sent[1]]), []);
    assert_eq!(replies(&mut pair, [&sent[4]]), [(opcode::ACKNOWLEDGE, at(2))]);
}

#[test]
fn answers_asked_for_again_come_in_the_order_of_their_requests() {
    let mut pair = Pair::new(Service::Rc);
    for _ in 0..2 {
        pair.client.post(Opcode::Read, &[], |r| r.length = 2000);
    }
    let sent = requests(&mut pair);
    let psns = |replies: Vec<(u8, u32)>| replies.into_iter().map(|reply| reply.1).collect::<Vec<_>>();
    let all: Vec<_> = (0..4).map(at).collect();
    assert_eq!(psns(replies(&mut pair, &sent)), all);
    assert_eq!(psns(replies(&mut pair, [&sent[1], &sent[0]])), all);
}

#[test]
fn a_message_goes_on_when_a_silent_qp_speaks_again() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.posted.push_back(5000);
    pair.client.post(Opcode::Send, &pattern(3000, 1), |_| ());
    let sent = requests(&mut pair);
    replies(&mut pair, [&sent[0]]);
    pair.server.silent = true;
    assert_eq!(replies(&mut pair, [&sent[1]]), []);
    pair.server.silent = false;
    assert_eq!(replies(&mut pair, [&sent[1], &sent[2]]), [(opcode::ACKNOWLEDGE, at(2))]);
    assert!(pair.server.receives[0].data == pattern(3000, 1) && pair.server.posted.is_empty());
}

#[test]
fn an_answer_acknowledges_what_comes_before_it() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, b"x", |_| ());
    pair.client.post(Opcode::Read, &[], |r| r.length = 8);
    let sent = requests(&mut pair);
    assert_eq!(replies(&mut pair, &sent), [(opcode::READ_RESPONSE_ONLY, at(1))]);
}

#[test]
fn a_read_asked_for_again_stays_within_the_first_and_costs_no_memory() {
    let config = ResponderConfig { max_dest_rd_atomic: 1, ..responder_config(Service::Rc) };
    let mut pair = Pair::with(&requester_config(Service::Rc), &config);
    pair.client.post(Opcode::Read, &[], |r| r.length = 10_000);
    let sent = requests(&mut pair);
    assert_eq!(replies(&mut pair, &sent).len(), 10);
    let (exact, beyond) = (read_part(&sent[0], 8, 1808), read_part(&sent[0], 8, 1809));
    assert_eq!(replies(&mut pair, [&beyond]), []);
    assert_eq!(replies(&mut pair, [&exact]).len(), 2);
    let parts: Vec<_> = (0..10).map(|packet| read_part(&sent[0], packet, 1)).collect();
    assert!(replies(&mut pair, &parts).len() <= 3, "each is an answer that waits");
}

#[test]
fn a_refused_repetition_does_not_swallow_an_acknowledgement() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Read, &[], |r| r.length = 8);
    pair.client.post(Opcode::Write, b"x", |_| ());
    let sent = requests(&mut pair);
    replies(&mut pair, [&sent[0]]);
    pair.server.rights = vec![Right::Write];
    assert_eq!(replies(&mut pair, [&sent[1], &sent[0]]), [(opcode::ACKNOWLEDGE, at(0)), (opcode::ACKNOWLEDGE, at(1))]);
    assert_eq!(pair.server.failed, None);
}
