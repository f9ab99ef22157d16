//! Messages whose data is put where it belongs: announced, and sent as one packet that stands for many.

use vervain_wire::{Aeth, Bth, Headers, Packet, aeth, opcode};

use super::host::{BASE, RKEY};
use super::pair::*;
use super::placing::{Arrived, Ends, LENGTH, MTU};
use crate::*;

#[test]
fn a_message_that_is_put_goes_in_few_packets_and_takes_the_psns_of_all() {
    for service in [Service::Rc, Service::Xrc, Service::Uc] {
        for (at_once, packets) in [(64, 1), (4, 3)] {
            for operation in [Opcode::Send, Opcode::SendImm, Opcode::Write, Opcode::WriteImm] {
                let mut ends = Ends::new(service, at_once);
                let data = pattern(LENGTH, 3);
                ends.server.host.posted.extend([1 << 20; 2]);
                ends.client.host.post(operation, &data, |_| ());
                ends.client.host.post(Opcode::Send, b"behind", |_| ());
                ends.transmit();
                let (sent, answered) = ends.exchange();
                let what = format!("{service:?} {operation:?} {at_once}");
                assert_eq!(sent.len(), packets + 1, "{what}");
                assert_eq!(sent.last(), Some(&(opcode::SEND_ONLY, 11)), "{what}: 11 packets were before");
                assert_eq!(ends.responder.expected_psn(), psn::add(FIRST_PSN, 12), "{what}");
                assert_eq!(ends.statuses(), [Status::Success; 2], "{what}");
                if operation == Opcode::Send || operation == Opcode::SendImm {
                    assert_eq!(ends.server.host.receives[0].data, data, "{what}");
                } else {
                    assert_eq!(ends.server.host.memory[..LENGTH], data, "{what}");
                }
                if service != Service::Uc && operation == Opcode::Send {
                    // One acknowledgement stands for all, and leaves before the receive completes.
                    assert_eq!(answered, [(opcode::ACKNOWLEDGE, 10), (opcode::ACKNOWLEDGE, 11)], "{what}");
                    assert_eq!(ends.server.host.sent_before, [1, 2]);
                }
            }
        }
    }
}

#[test]
fn what_was_refused_may_be_cut_otherwise_when_it_is_sent_again() {
    let mut ends = Ends::new(Service::Rc, 64);
    ends.client.host.post(Opcode::WriteImm, &pattern(LENGTH, 1), |_| ());
    ends.transmit();
    assert_eq!(ends.exchange().1, [(opcode::ACKNOWLEDGE, 0)]);
    assert_eq!(ends.responder.counters().rnr_naks, 1);
    // In packets, up to the one that takes the receive.
    ends.client.at_once = 1;
    for (receives, sent) in [(0, 11), (1, 1)] {
        ends.server.host.posted.extend(vec![1 << 20; receives]);
        ends.now = ends.requester.next_timeout().unwrap();
        ends.requester.handle_timeout(ends.now, &mut ends.window, &mut ends.client);
        ends.transmit();
        assert_eq!(ends.exchange().0.len(), sent);
    }
    assert_eq!((ends.statuses(), ends.server.host.writes), (vec![Status::Success], 11));
}

#[test]
fn only_what_has_landed_is_longer_than_a_packet() {
    for (code, bytes, landed, taken) in [
        (opcode::SEND_FIRST, 2 * MTU, true, 2),
        (opcode::SEND_FIRST, 2 * MTU, false, 0),
        (opcode::SEND_FIRST, 2 * MTU + 4, true, 0),
        (opcode::SEND_FIRST, 0, true, 0),
        (opcode::SEND_ONLY, 2 * MTU + 4, true, 3),
        (opcode::SEND_ONLY, 2 * MTU, false, 0),
        (opcode::SEND_ONLY, MTU, false, 1),
    ] {
        let mut ends = Ends::new(Service::Rc, 1);
        ends.server.host.posted.push_back(1 << 20);
        ends.send(code, 0, bytes, landed);
        let what = format!("{code} of {bytes} bytes, landed {landed}");
        assert_eq!(psn::distance(FIRST_PSN, ends.responder.expected_psn()), taken, "{what}");
        assert_eq!(ends.server.host.failed, (taken == 0).then_some(Nak::InvalidRequest), "{what}");
        assert_eq!(ends.server.host.posted.len(), usize::from(taken == 0), "{what}: the receive");
    }
    // IBA 9.9.3.
    let mut ends = Ends::new(Service::Rc, 1);
    ends.server.host.posted.push_back(2 * MTU as u64);
    ends.send(opcode::SEND_ONLY, 0, 2 * MTU + 1, true);
    assert_eq!(ends.server.host.receives[0].done.unwrap().1, Status::LocalLength);
}

#[test]
fn an_announced_send_takes_its_receive_before_it_comes() {
    let mut ends = Ends::new(Service::Rc, 64);
    ends.server.host.posted.extend([500, 1 << 20]);
    // Too short a receive stays where it is, as for a message that comes unannounced.
    assert_eq!(ends.announce(opcode::SEND_FIRST, 0, 501), None);
    assert_eq!(ends.server.host.posted, [500, 1 << 20]);
    let told = ends.announce(opcode::SEND_FIRST, 0, 500);
    assert_eq!(told, Some((0, Target::Receive { receive: 0, room: 500 })));
    assert_eq!(ends.announce(opcode::SEND_FIRST, 0, 400), told, "asked again");
    assert_eq!(ends.announce(opcode::SEND_FIRST, 0, 501), None, "it does not fit");
    assert_eq!(ends.announce(opcode::SEND_FIRST, 1, 8), None, "another one comes first");
    assert_eq!(ends.announce(opcode::SEND_LAST, 0, 8), None, "no message begins so");
    assert_eq!(ends.server.host.posted, [1 << 20]);
    ends.send(opcode::SEND_ONLY, 0, 400, true);
    assert_eq!((ends.server.host.receives.len(), ends.server.host.receives[0].data.len()), (1, 400));
    assert_eq!(ends.server.host.receives[0].done.unwrap().1, Status::Success);
    // The next one has a receive of its own.
    ends.send(opcode::SEND_ONLY, 1, 8, false);
    assert_eq!(ends.server.host.receives.len(), 2);
    assert_eq!(ends.announce(opcode::SEND_FIRST, 2, 8), None, "none is left");
    assert_eq!(ends.server.host.failed, None);
}

#[test]
fn a_receive_goes_back_when_another_message_comes_than_was_announced() {
    let mut ends = Ends::new(Service::Rc, 64);
    ends.server.host.posted.push_back(500);
    assert!(ends.announce(opcode::SEND_FIRST, 0, 500).is_some());
    ends.client.host.post(Opcode::Write, b"a write", |_| ());
    ends.transmit();
    ends.exchange();
    assert_eq!((ends.statuses(), ends.server.host.posted[0]), (vec![Status::Success], 500));
    // And when it is a Write that is announced.
    assert!(ends.announce(opcode::SEND_FIRST, 1, 500).is_some());
    let told = ends.announce(opcode::WRITE_FIRST, 1, 5000);
    assert_eq!(told, Some((0, Target::Memory { rkey: RKEY, addr: BASE, length: 5000 })));
    assert_eq!(ends.server.host.posted, [500]);
    assert_eq!(ends.announce(opcode::WRITE_FIRST, 1, 2 << 20), None, "beyond the region");
    assert_eq!(ends.announce(opcode::READ_REQUEST, 1, 8), None);
    assert_eq!(ends.server.host.posted, [500]);
}

#[test]
fn nothing_is_announced_in_the_midst_of_other_things() {
    let mut ends = Ends::new(Service::Rc, 1);
    ends.server.host.posted.extend([1 << 20; 3]);
    ends.send(opcode::SEND_FIRST, 0, MTU, false);
    assert_eq!(ends.announce(opcode::SEND_FIRST, 1, 8), None, "a message is under way");
    ends.send(opcode::SEND_LAST, 1, 8, false);
    // A READ whose answer has not been sent reads what the message may change.
    ends.client.host.post(Opcode::Read, &[], |r| r.length = 5 * MTU as u64);
    ends.requester =
        Requester::new(&RequesterConfig { first_psn: psn::add(FIRST_PSN, 2), ..requester_config(Service::Rc) });
    ends.transmit();
    let (headers, payload) = ends.client.sent.pop().unwrap();
    ends.responder.handle_packet(&Packet { headers, payload: &payload }, &mut ends.server);
    assert_eq!(ends.announce(opcode::WRITE_FIRST, 7, 8), None, "a READ is being answered");
    while ends.responder.poll_transmit(64, &mut ends.server) {}
    assert!(ends.announce(opcode::WRITE_FIRST, 7, 8).is_some());
    ends.send(opcode::SEND_MIDDLE, 7, 3, false);
    assert!(ends.responder.has_ended());
    assert_eq!(ends.announce(opcode::SEND_FIRST, 7, 8), None, "the QP is in error");
}

#[test]
fn the_answer_to_a_read_is_put_too() {
    for (at_once, packets) in [(64, 1), (4, 3), (1, 11)] {
        let mut ends = Ends::new(Service::Rc, at_once);
        ends.server.host.memory[..LENGTH].copy_from_slice(&pattern(LENGTH, 9));
        ends.client.host.post(Opcode::Read, &[], |r| r.length = LENGTH as u64);
        ends.client.host.post(Opcode::Read, &[], |r| r.length = 8);
        ends.transmit();
        // Short messages are not announced.
        assert_eq!(ends.client.asked, [(0, 0, LENGTH as u64)]);
        let (_, answered) = ends.exchange();
        assert_eq!(answered.len(), packets + 1);
        assert_eq!(
            (ends.statuses(), ends.client.host.delivered[0].clone()),
            (vec![Status::Success; 2], pattern(LENGTH, 9))
        );
    }
}

#[test]
fn an_answer_that_was_put_has_the_bytes_that_were_asked_for() {
    for (bytes, status) in [
        (LENGTH, Status::Success),
        (LENGTH - 1, Status::BadResponse),
        (LENGTH + 1, Status::BadResponse),
        (0, Status::BadResponse),
    ] {
        let mut ends = Ends::new(Service::Rc, 64);
        ends.client.host.post(Opcode::Read, &[], |r| r.length = LENGTH as u64);
        ends.transmit();
        let bth = Bth { opcode: opcode::RC | opcode::READ_RESPONSE_ONLY, psn: FIRST_PSN, ..Bth::default() };
        let aeth = Some(Aeth { syndrome: aeth::Syndrome::Ack(31).encode(), msn: 1 });
        let payload = Arrived { bytes: vec![1; bytes], landed: true };
        let packet = Packet { headers: Headers { bth, aeth, ..Headers::default() }, payload: &payload };
        ends.requester.handle_packet(ends.now, &packet, &mut ends.window, &mut ends.client);
        assert_eq!(ends.statuses(), [status], "{bytes} bytes");
    }
}

#[test]
fn what_was_executed_in_part_and_comes_again_as_one_is_told_of_at_once() {
    let mut ends = Ends::new(Service::Rc, 4);
    ends.server.host.posted.push_back(1 << 20);
    ends.client.host.post(Opcode::Send, &pattern(LENGTH, 3), |_| ());
    ends.transmit();
    // The answer to the first four is late, and all is sent again.
    ends.client.sent.truncate(1);
    for (headers, payload) in std::mem::take(&mut ends.client.sent) {
        ends.responder.handle_packet(&Packet { headers, payload: &payload }, &mut ends.server);
    }
    ends.client.at_once = 64;
    ends.now = ends.requester.next_timeout().unwrap();
    ends.requester.handle_timeout(ends.now, &mut ends.window, &mut ends.client);
    ends.transmit();
    assert_eq!(ends.exchange(), (vec![(opcode::SEND_ONLY, 0)], vec![(opcode::ACKNOWLEDGE, 4)]));
    assert_eq!(ends.requester.counters().sequence_naks, 1);
    // The missing packets are sent without another timeout.
    ends.transmit();
    assert_eq!(ends.exchange().0, [(opcode::SEND_LAST, 4)]);
    assert_eq!((ends.statuses(), ends.requester.counters().timeouts), (vec![Status::Success], 1));
    assert_eq!(ends.server.host.receives[0].data, pattern(LENGTH, 3));
    // A message that was executed to its end has no missing packet.
    ends.send(opcode::SEND_ONLY, 0, LENGTH, true);
    assert_eq!((ends.responder.counters().duplicates, ends.responder.counters().out_of_sequence), (2, 1));
}

#[test]
fn an_announced_receive_is_kept_while_nothing_can_be_put_into_it() {
    for service in [Service::Rc, Service::Xrc] {
        let mut ends = Ends::new(service, 64);
        ends.srqn = 5;
        ends.server.host.posted.extend([500, 1 << 20]);
        let told = ends.announce(opcode::SEND_FIRST, 0, 400);
        assert_eq!(
            told,
            Some((if service == Service::Xrc { 5 } else { 0 }, Target::Receive { receive: 0, room: 500 }))
        );
        ends.server.host.silent = true;
        ends.send(opcode::SEND_ONLY, 0, 400, true);
        ends.server.host.silent = false;
        // Another QP of the same SRQ takes the next one; the data lies in the first.
        assert_eq!((ends.server.host.posted.len(), ends.responder.expected_psn()), (1, FIRST_PSN));
        assert_eq!(ends.server.host.claim(5), Ok((1, 1 << 20)));
        ends.send(opcode::SEND_ONLY, 0, 400, true);
        assert_eq!(ends.server.host.receives[0].done.unwrap().1, Status::Success);
    }
    // Over UC nothing comes again.
    let mut ends = Ends::new(Service::Uc, 64);
    ends.server.host.posted.push_back(500);
    assert!(ends.announce(opcode::SEND_FIRST, 0, 400).is_some());
    ends.server.host.silent = true;
    ends.send(opcode::SEND_ONLY, 0, 400, true);
    assert_eq!(ends.server.host.posted, [500]);
}

#[test]
fn an_announced_message_is_for_its_queue_of_receives() {
    let mut ends = Ends::new(Service::Xrc, 64);
    ends.server.host.posted.extend([500, 600]);
    ends.srqn = 5;
    let told = ends.announce(opcode::SEND_FIRST, 0, 400);
    assert_eq!(told, Some((5, Target::Receive { receive: 0, room: 500 })));
    ends.srqn = 6;
    assert_eq!(ends.announce(opcode::SEND_FIRST, 0, 400), None, "it is of another one");
    assert_eq!(ends.server.host.posted, [600]);
    // The one that comes is too.
    ends.send(opcode::SEND_ONLY, 0, 400, false);
    assert_eq!((ends.server.claimed.clone(), ends.server.host.posted.len()), (vec![5, 6], 1));
    assert_eq!(ends.server.host.receives[0].done.unwrap().1, Status::Success);
}

#[test]
fn an_announced_message_may_come_in_packets_and_another_time_and_gaps_end_it_over_uc() {
    let mut ends = Ends::new(Service::Uc, 64);
    ends.server.host.posted.extend([1 << 20; 2]);
    assert!(ends.announce(opcode::SEND_FIRST, 0, 3 * MTU as u64).is_some());
    ends.send(opcode::SEND_FIRST, 0, MTU, false);
    ends.send(opcode::SEND_LAST, 1, 2 * MTU, true);
    assert_eq!(ends.responder.expected_psn(), psn::add(FIRST_PSN, 3));
    assert_eq!((ends.server.host.receives.len(), ends.server.host.receives[0].data.len()), (1, 3 * MTU));
    assert!(ends.announce(opcode::SEND_FIRST, 3, 8).is_some());
    // The next data belongs behind it.
    ends.send(opcode::SEND_MIDDLE, 9, 2 * MTU, true);
    assert_eq!((ends.server.host.posted.len(), ends.responder.expected_psn()), (1, psn::add(FIRST_PSN, 11)));
    assert_eq!(ends.announce(opcode::COMPARE_SWAP, 11, 8), None);
}

#[test]
fn what_has_landed_beyond_the_memory_of_its_message_is_refused() {
    // By a key, the last time one that was good for the first packets.
    for (bytes, rkey, executed) in [(2 * MTU, RKEY + 1, 0), (2 * MTU, RKEY, 2), (3 * MTU, RKEY, 2)] {
        let mut ends = Ends::new(Service::Rc, 2);
        ends.client.host.post(Opcode::Write, &pattern(2 * MTU + bytes, 1), |r| r.rkey = rkey);
        ends.transmit();
        let mut second = ends.client.sent.split_off(1);
        ends.exchange();
        assert_eq!(ends.server.host.writes, executed / 2);
        if executed > 0 {
            ends.server.host.rights.clear();
            ends.client.sent.append(&mut second);
            ends.exchange();
        }
        assert_eq!((ends.statuses(), ends.server.host.failed), (vec![Status::RemoteAccess], Some(Nak::RemoteAccess)));
    }
    let mut ends = Ends::new(Service::Rc, 1);
    ends.server.host.posted.push_back(1 << 33);
    assert_eq!(ends.announce(opcode::SEND_FIRST, 0, (1 << 31) + 1), None, "no message is so long");
    assert!(ends.announce(opcode::SEND_FIRST, 0, 1 << 31).is_some());
}

#[test]
fn only_a_message_whose_receive_is_taken_last_waits_for_it_in_part() {
    let mut ends = Ends::new(Service::Rc, 6);
    ends.client.host.post(Opcode::WriteImm, &pattern(LENGTH, 1), |_| ());
    ends.transmit();
    // Six, then five that are refused.
    assert_eq!(
        ends.exchange(),
        (vec![(opcode::WRITE_FIRST, 0), (opcode::WRITE_LAST_IMM, 6)], vec![(opcode::ACKNOWLEDGE, 6)])
    );
    assert_eq!(ends.responder.counters().rnr_naks, 1);
    ends.server.host.posted.push_back(0);
    ends.client.at_once = 2;
    ends.now = ends.requester.next_timeout().unwrap();
    ends.requester.handle_timeout(ends.now, &mut ends.window, &mut ends.client);
    ends.transmit();
    let sent = [(opcode::WRITE_MIDDLE, 6), (opcode::WRITE_MIDDLE, 8), (opcode::WRITE_LAST_IMM, 10)];
    assert_eq!(ends.exchange(), (sent.to_vec(), vec![(opcode::ACKNOWLEDGE, 10)]));
    assert_eq!(
        (ends.statuses(), ends.server.host.memory[..LENGTH] == pattern(LENGTH, 1)),
        (vec![Status::Success], true)
    );
}
