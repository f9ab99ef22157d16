//! Every operation over a wire that loses nothing.

use proptest::prelude::*;
use vervain_wire::{TAKES_GAPS, VERVAIN, opcode};

use super::host::{BASE, Host};
use super::pair::*;
use crate::*;

#[test]
fn sends_of_every_length_arrive_in_the_receives_they_find() {
    let mut pair = Pair::new(Service::Rc);
    let lengths = [0, 1, 3, 1023, 1024, 1025, 3000, 70_000];
    for (i, &length) in lengths.iter().enumerate() {
        pair.server.posted.push_back(100_000);
        pair.client.post(Opcode::Send, &pattern(length, i as u8), |_| ());
    }
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 8]);
    for (i, &length) in lengths.iter().enumerate() {
        let receive = &pair.server.receives[i];
        assert!(receive.data == pattern(length, i as u8));
        let expected = Received { length: length as u32, ..Received::default() };
        assert_eq!(receive.done, Some((expected, Status::Success)));
    }
    assert_eq!(pair.requester.counters().resent_packets, 0);
}

#[test]
fn immediate_data_solicited_events_and_invalidation_are_told() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.posted.extend([100, 100, 5000, 100]);
    pair.client.post(Opcode::SendImm, b"abc", |r| (r.imm_or_rkey, r.flags) = (0x1122_3344, send_flags::SOLICITED));
    pair.client.post(Opcode::SendInv, b"", |r| r.imm_or_rkey = 0x77);
    pair.client.post(Opcode::WriteImm, &pattern(2500, 1), |r| r.imm_or_rkey = 5);
    pair.client.post(Opcode::WriteImm, b"", |r| r.imm_or_rkey = 6);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 4]);
    let told: Vec<_> = pair.server.receives.iter().map(|receive| receive.done.unwrap().0).collect();
    assert_eq!(
        told,
        [
            Received { length: 3, imm: Some(0x1122_3344), solicited: true, ..Received::default() },
            Received { invalidated: Some(0x77), ..Received::default() },
            Received { length: 2500, write: true, imm: Some(5), ..Received::default() },
            Received { write: true, imm: Some(6), ..Received::default() },
        ]
    );
    assert_eq!(pair.server.invalidated, [0x77]);
    assert!(pair.server.memory[..2500] == pattern(2500, 1));
}

#[test]
fn reads_bring_what_the_memory_holds() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.memory = pattern(1 << 20, 9);
    let lengths = [0, 1, 8, 1024, 4000, 300_000];
    for length in lengths {
        pair.client.post(Opcode::Read, &[], |r| (r.length, r.remote_addr) = (length, BASE + 5));
    }
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 6]);
    for (n, length) in lengths.into_iter().enumerate() {
        assert_eq!(pair.client.delivered[n], pair.server.memory[5..][..length as usize]);
    }
    assert_eq!(pair.sent(Way::Response, opcode::ACKNOWLEDGE), 0, "READs are answered by their data alone");
}

#[test]
fn a_long_read_is_asked_for_in_pieces_that_fit_the_window() {
    let mut pair = Pair::new(Service::Rc);
    let size = pair.window.size();
    pair.client.post(Opcode::Read, &[], |r| r.length = 1 << 20);
    pair.transmit();
    assert!(pair.window.in_flight() <= size);
    assert!(pair.client.wire.len() > 1);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success]);
}

#[test]
fn reads_outstanding_are_bounded() {
    let config = RequesterConfig { max_rd_atomic: 2, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &ResponderConfig { max_dest_rd_atomic: 2, ..responder_config(Service::Rc) });
    for i in 0..5 {
        pair.client.post(Opcode::Read, &[], |r| (r.length, r.remote_addr) = (8, BASE + 8 * i));
        pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = 1);
    }
    pair.transmit();
    assert_eq!(pair.client.wire.len(), 2);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 10]);
    assert_eq!(pair.server.memory[0], 5);
}

#[test]
fn atomics_answer_with_the_word_before() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.memory[..8].copy_from_slice(&5u64.to_ne_bytes());
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = 3);
    pair.client.post(Opcode::CompareSwap, &[0; 8], |r| (r.compare_add, r.swap) = (8, 0x1122_3344_5566_7788));
    pair.client.post(Opcode::CompareSwap, &[0; 8], |r| (r.compare_add, r.swap) = (8, 1));
    pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = u64::MAX);
    pair.finish(all);
    let words: Vec<_> =
        pair.client.delivered.iter().map(|data| u64::from_ne_bytes(data[..].try_into().unwrap())).collect();
    assert_eq!(words, [5, 8, 0x1122_3344_5566_7788, 0x1122_3344_5566_7788]);
    assert_eq!(pair.server.memory[..8], 0x1122_3344_5566_7787u64.to_ne_bytes());
}

#[test]
fn atomic_write_and_flush_are_answered_with_empty_read_responses() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::AtomicWrite, &7u64.to_ne_bytes(), |_| ());
    pair.client.post(Opcode::Flush, &[], |r| (r.length, r.flush.placement) = (4096, 1));
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 2]);
    assert_eq!(pair.server.memory[..8], 7u64.to_ne_bytes());
    assert_eq!(pair.sent(Way::Response, opcode::READ_RESPONSE_ONLY), 2);
}

#[test]
fn a_fence_waits_for_reads_and_atomics_before_it() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Read, &[], |r| r.length = 8);
    pair.client.post(Opcode::Write, b"no fence", |_| ());
    pair.client.post(Opcode::Write, b"fenced..", |r| r.flags = send_flags::FENCE);
    pair.client.post(Opcode::Read, &[], |r| r.length = 8);
    pair.transmit();
    let sent: Vec<_> = pair.client.sent().iter().map(|packet| packet.0).collect();
    assert_eq!(sent, [opcode::READ_REQUEST, opcode::WRITE_ONLY]);
}

#[test]
fn a_read_brings_what_was_there_before_what_was_posted_after_it() {
    let old = pattern(6000, 3);
    for room in [usize::MAX, 4] {
        let mut pair = Pair::new(Service::Rc);
        pair.server.memory[..6000].copy_from_slice(&old);
        for (offset, length) in [(0, 6000), (5000, 8), (5500, 500)] {
            pair.client.post(Opcode::Read, &[], |r| (r.length, r.remote_addr) = (length, BASE + offset));
        }
        pair.client.post(Opcode::Write, &pattern(6000, 4), |_| ());
        pair.client.post(Opcode::Read, &[], |r| r.length = 8);
        pair.client.post(Opcode::FetchAdd, &[0; 8], |r| r.compare_add = 1);
        pair.client.post(Opcode::Read, &[], |r| r.length = 8);
        pair.client.post(Opcode::AtomicWrite, &[7; 8], |_| ());
        // All requests come at once, while there may be no room for the answers.
        pair.transmit();
        pair.server.room = room;
        for bytes in std::mem::take(&mut pair.client.wire) {
            pair.responder.handle_packet(&super::host::parsed(&bytes), &mut pair.server);
        }
        let unread = pair.server.memory[4096..6000] == old[4096..];
        assert_eq!(unread, room == 4, "a WRITE of what is yet to be read is as good as lost");
        pair.server.room = usize::MAX;
        pair.finish(all);
        assert_eq!(pair.statuses(), [Status::Success; 8]);
        let new = pattern(6000, 4);
        let word = u64::from_ne_bytes(new[..8].try_into().unwrap());
        let expected =
            [&old[..], &old[5000..5008], &old[5500..], &[], &new[..8], &new[..8], &(word + 1).to_ne_bytes()[..]];
        for (n, expected) in expected.into_iter().enumerate().filter(|(n, _)| *n != 3) {
            assert!(pair.client.delivered[n] == expected, "request {n}, room for {room}");
        }
    }
}

#[test]
fn what_is_not_read_is_written_without_waiting() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Read, &[], |r| (r.length, r.remote_addr) = (5000, BASE + 100));
    for (data, addr) in [(&b"before"[..], BASE + 94), (b"behind", BASE + 5100), (b"", BASE + 200)] {
        pair.client.post(Opcode::Write, data, |r| r.remote_addr = addr);
    }
    pair.transmit();
    for bytes in std::mem::take(&mut pair.client.wire) {
        pair.responder.handle_packet(&super::host::parsed(&bytes), &mut pair.server);
    }
    assert!(pair.server.wire.is_empty(), "nothing is sent before it is asked for");
    assert_eq!((&pair.server.memory[94..100], &pair.server.memory[5100..5106]), (&b"before"[..], &b"behind"[..]));
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 4]);
}

#[test]
fn one_acknowledgement_answers_a_batch() {
    let mut pair = Pair::new(Service::Rc);
    for _ in 0..10 {
        pair.client.post(Opcode::Write, &[1; 8], |_| ());
    }
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 10]);
    assert_eq!(pair.sent(Way::Response, opcode::ACKNOWLEDGE), 1);
}

#[test]
fn acknowledgements_are_asked_for_at_the_end_of_messages_and_before_the_window_closes() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, &pattern(200_000, 0), |_| ());
    assert_eq!(pair.transmit(), Sent::WindowClosed);
    let asked: Vec<_> = pair.client.sent().iter().map(|packet| packet.2).collect();
    assert_eq!(asked.len(), 32);
    assert!(asked[31], "the last one that the window lets through");
    assert!((2..=8).contains(&asked.iter().filter(|asked| **asked).count()));
}

#[test]
fn the_packet_that_closes_the_window_asks_whatever_was_asked_before() {
    let mut pair = Pair::new(Service::Rc);
    pair.window = Window::new(1024, 10 * (1024 + 512) + 100);
    pair.client.post(Opcode::Write, &pattern(200_000, 0), |_| ());
    assert_eq!(pair.transmit(), Sent::WindowClosed);
    let asked: Vec<_> = pair.client.sent().iter().map(|packet| packet.2).collect();
    assert_eq!(asked, [false, false, true, false, false, true, false, false, true, true]);
}

#[test]
fn a_long_message_beyond_the_credits_begins_with_one_packet_that_asks() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.tell_credits = true;
    pair.server.posted.push_back(10);
    pair.client.post(Opcode::Send, b"x", |_| ());
    pair.run(all);
    pair.client.post(Opcode::Send, &pattern(5000, 0), |_| ());
    pair.transmit();
    let sent = pair.client.sent();
    assert!(sent.len() == 1 && sent[0].0 == opcode::SEND_FIRST && sent[0].2, "{sent:?}");
}

#[test]
fn a_window_that_one_requester_fills_lets_another_begin_and_is_then_shared() {
    let (mut greedy, mut late) = (Pair::new(Service::Rc), Pair::new(Service::Rc));
    greedy.client.post(Opcode::Write, &pattern(1 << 19, 0), |_| ());
    late.client.post(Opcode::Write, &pattern(1 << 20, 0), |_| ());
    assert_eq!(greedy.transmit(), Sent::WindowClosed);
    let mut meanwhile = None;
    for _ in 0..200 {
        for pair in [&mut greedy, &mut late] {
            let packets: Vec<_> = pair.client.wire.drain(..).collect();
            packets
                .iter()
                .for_each(|bytes| pair.responder.handle_packet(&super::host::parsed(bytes), &mut pair.server));
            while pair.responder.poll_transmit(1, &mut pair.server) {}
        }
        std::mem::swap(&mut greedy.window, &mut late.window);
        late.take_answers();
        late.transmit();
        std::mem::swap(&mut greedy.window, &mut late.window);
        if !greedy.server.wire.is_empty() {
            greedy.take_answers();
            greedy.transmit();
        }
        if greedy.requester.is_idle() {
            meanwhile.get_or_insert(late.server.writes);
        }
    }
    assert!((100..900).contains(&meanwhile.unwrap()), "{meanwhile:?}");
    assert_eq!((greedy.statuses(), late.statuses()), (vec![Status::Success], vec![Status::Success]));
}

#[test]
fn a_host_without_room_is_asked_again() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.memory = pattern(1 << 20, 3);
    pair.client.post(Opcode::Write, &pattern(10_000, 1), |r| r.remote_addr = BASE + 50_000);
    pair.client.post(Opcode::Read, &[], |r| r.length = 10_000);
    pair.client.room = 4;
    assert_eq!(pair.transmit(), Sent::HostFull);
    assert_eq!(pair.client.wire.len(), 4);
    pair.client.room = usize::MAX;
    pair.transmit();
    pair.server.room = 3;
    let requests: Vec<_> = pair.client.wire.drain(..).collect();
    for bytes in &requests {
        pair.responder.handle_packet(&super::host::parsed(bytes), &mut pair.server);
    }
    assert!(pair.responder.poll_transmit(100, &mut pair.server));
    pair.server.room = usize::MAX;
    assert!(!pair.responder.poll_transmit(100, &mut pair.server));
    let codes: Vec<_> = pair.server.wire.iter().map(|bytes| bytes[0]).collect();
    let middle = opcode::READ_RESPONSE_MIDDLE;
    assert_eq!((codes[0], codes[9]), (opcode::READ_RESPONSE_FIRST, opcode::READ_RESPONSE_LAST));
    assert!(codes[1..9].iter().all(|code| *code == middle));
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 2]);
    assert!(pair.client.delivered[1] == pattern(10_000, 3));
    assert!(pair.server.memory[50_000..60_000] == pattern(10_000, 1));
}

#[test]
fn xrc_requests_name_their_srq_and_answers_do_not() {
    let mut pair = Pair::new(Service::Xrc);
    pair.server.posted.push_back(5000);
    pair.client.post(Opcode::Send, &pattern(3000, 0), |r| r.srqn = 0x99);
    pair.client.post(Opcode::Read, &[], |r| (r.length, r.srqn) = (3000, 0x99));
    pair.transmit();
    let headers: Vec<_> = pair.client.wire.iter().map(|bytes| super::host::parsed(bytes).headers).collect();
    assert!(headers.iter().all(|headers| headers.srqn == Some(0x99) && headers.bth.opcode & 0xe0 == opcode::XRC));
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 2]);
    assert!(pair.server.receives[0].data == pattern(3000, 0));
}

#[test]
fn credits_keep_a_requester_from_messages_that_find_no_receive() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.tell_credits = true;
    pair.server.posted.extend([10; 3]);
    pair.client.post(Opcode::Send, b"0", |_| ());
    pair.run(all);
    for _ in 0..5 {
        pair.client.post(Opcode::Send, b"x", |_| ());
    }
    pair.transmit();
    assert_eq!(pair.client.wire.len(), 3, "two that there are receives for, and one that asks");
    assert!(pair.client.wire.iter().all(|bytes| bytes[8] & 0x80 != 0));
    let mut server = Host::new();
    std::mem::swap(&mut server.posted, &mut pair.server.posted);
    pair.server.posted = server.posted;
    pair.server.posted.extend([10; 4]);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 6]);
    assert_eq!(pair.requester.counters().rnr_naks, 0);
}

#[test]
fn writes_with_immediate_data_go_on_when_credits_come() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.tell_credits = true;
    for _ in 0..4 {
        pair.client.post(Opcode::WriteImm, &pattern(5000, 0), |_| ());
    }
    pair.run(all);
    assert_eq!(pair.requester.counters().rnr_naks, 1);
    pair.server.posted.extend([0; 4]);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_mixture_ends_in_order_with_the_memory_it_names(
        requests in prop::collection::vec((0..4, 0..5000usize), 1..40),
        first_psn in 0..=psn::MASK,
        mtu in prop::sample::select(vec![256u32, 1024, 4096]),
    ) {
        let config = RequesterConfig { first_psn, mtu, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&config, &ResponderConfig { expected_psn: first_psn, mtu, ..responder_config(Service::Rc) });
        let mut at = 0;
        for (i, &(kind, length)) in requests.iter().enumerate() {
            let data = pattern(length, i as u8);
            match kind {
                0 => { pair.server.posted.push_back(5000); pair.client.post(Opcode::Send, &data, |_| ()); }
                1 => { pair.client.post(Opcode::Write, &data, |r| r.remote_addr = BASE + at); }
                2 => { pair.client.post(Opcode::Read, &data, |r| r.remote_addr = BASE + at); }
                _ => { pair.client.post(Opcode::FetchAdd, &[0; 8], |r| (r.remote_addr, r.compare_add) = (BASE + at, 1)); }
            }
            at += 5000;
        }
        pair.finish(all);
        prop_assert_eq!(pair.statuses(), vec![Status::Success; requests.len()]);
        prop_assert_eq!(pair.requester.counters().resent_packets, 0);
    }
}

/// Over a carrier of its own a packet may be longer than IBA has it.
#[test]
fn packets_of_every_size_carry_messages_of_every_length() {
    for mtu in [256, 4096, 16_384, LARGEST_MTU] {
        let whole = u64::from(mtu);
        let lengths = [0, 1, whole - 1, whole, whole + 1, 5 * whole - 3, 5 * whole];
        let own = 6 * whole;
        let config = RequesterConfig { mtu, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&config, &ResponderConfig { mtu, ..responder_config(Service::Rc) });
        pair.window = Window::new(mtu, 16 * whole);
        pair.server.memory = pattern(3 * lengths.len() * own as usize, 1);
        for (i, length) in (0..).zip(lengths) {
            let data = pattern(length as usize, 2 + i as u8);
            pair.server.posted.push_back(own);
            pair.client.post(Opcode::Send, &data, |_| ());
            pair.client.post(Opcode::Write, &data, |r| r.remote_addr = BASE + 3 * i * own);
            pair.client.post(Opcode::Read, &[], |r| (r.length, r.remote_addr) = (length, BASE + (3 * i + 1) * own));
        }
        // Two of each ten are lost at first: parts of messages and of READs are sent again.
        let (mut lost, mut longest) = (std::collections::HashSet::new(), 0);
        pair.finish(|way, packet| {
            longest = longest.max(packet.payload.len());
            let psn = packet.headers.bth.psn;
            psn % 5 != 3 || !lost.insert((way, psn))
        });
        assert_eq!((pair.statuses(), longest), (vec![Status::Success; 3 * lengths.len()], mtu as usize));
        assert!(pair.requester.counters().resent_packets > 0);
        for (i, length) in lengths.into_iter().enumerate() {
            let data = pattern(length as usize, 2 + i as u8);
            let at = |place: usize| &pair.server.memory[place * own as usize..][..length as usize];
            assert!(pair.server.receives[i].data == data, "Send of {length} in packets of {mtu}");
            assert!(at(3 * i) == data, "Write of {length} in packets of {mtu}");
            assert!(pair.client.delivered[3 * i + 2] == at(3 * i + 1), "Read of {length} in packets of {mtu}");
        }
    }
}

#[test]
fn every_packet_says_whether_the_path_has_migrated() {
    for migrated in [false, true] {
        let requester = RequesterConfig { migrated, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&requester, &ResponderConfig { migrated, ..responder_config(Service::Rc) });
        pair.server.posted.push_back(5000);
        pair.client.post(Opcode::Send, &pattern(5000, 1), |_| ());
        pair.client.post(Opcode::Read, &[], |r| r.length = 5000);
        pair.client.post(Opcode::FetchAdd, &[0; 8], |_| ());
        let mut lose = lose_once(|way, code, _| way == Way::Request && code == opcode::SEND_MIDDLE);
        pair.finish(|way, packet| {
            assert_eq!(packet.headers.bth.migration, migrated, "{way:?} {:?}", packet.headers);
            lose(way, packet)
        });
        assert_eq!(pair.requester.counters().sequence_naks, 1);
    }
}

#[test]
fn requests_show_who_sends_them_until_one_is_acknowledged_and_then_what_it_takes_until_one_is() {
    let config = RequesterConfig { introduces: true, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &responder_config(Service::Rc));
    for round in 0..3 {
        pair.client.post(Opcode::Write, &pattern(3000, 1), |_| ());
        let mut lose = lose_once(|way, _, _| way == Way::Response);
        pair.finish(|way, packet| {
            let mark = match round {
                0 => VERVAIN,
                1 => TAKES_GAPS,
                _ => 0,
            };
            let expected = if way == Way::Request { mark } else { 0 };
            assert_eq!(packet.headers.bth.mark, expected, "{way:?} of round {round}, first or again");
            lose(way, packet)
        });
    }
    assert!(pair.requester.counters().resent_packets > 0);
}
