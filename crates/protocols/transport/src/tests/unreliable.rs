//! UC: whole messages arrive, others vanish (IBA 9.8.2).

use vervain_wire::opcode;

use super::pair::*;
use crate::*;

#[test]
fn messages_complete_when_sent_and_arrive_without_answers() {
    let mut pair = Pair::new(Service::Uc);
    pair.server.posted.extend([5000; 3]);
    pair.client.post(Opcode::Send, &pattern(100, 1), |_| ());
    pair.client.post(Opcode::SendImm, &pattern(2500, 2), |r| r.imm_or_rkey = 7);
    pair.client.post(Opcode::Write, &pattern(3000, 3), |_| ());
    pair.client.post(Opcode::WriteImm, &[], |r| r.imm_or_rkey = 8);
    pair.transmit();
    assert_eq!(pair.statuses(), [Status::Success; 4]);
    assert!(pair.client.wire.iter().all(|bytes| bytes[8] & 0x80 == 0), "nobody is asked for an acknowledgement");
    pair.finish(all);
    assert!(pair.log.iter().all(|entry| entry.0 == Way::Request));
    assert_eq!(pair.server.receives.iter().filter(|receive| receive.done.is_some()).count(), 3);
    assert!(pair.server.receives[1].data == pattern(2500, 2));
    assert!(pair.server.memory[..3000] == pattern(3000, 3));
}

#[test]
fn a_message_with_a_gap_is_dropped_and_its_receive_kept_for_the_next() {
    for lost in [opcode::SEND_FIRST, opcode::SEND_MIDDLE, opcode::SEND_LAST] {
        let mut pair = Pair::new(Service::Uc);
        pair.server.posted.extend([5000; 2]);
        for i in 0..2 {
            pair.client.post(Opcode::Send, &pattern(3000, i), |_| ());
        }
        pair.finish(lose_once(|_, code, _| code == lost));
        let done: Vec<_> = pair.server.receives.iter().filter(|receive| receive.done.is_some()).collect();
        assert_eq!(done.len(), 1);
        assert!(done[0].data == pattern(3000, 1));
        assert_eq!(pair.server.posted.len(), 1);
    }
}

#[test]
fn refusals_are_not_told_and_the_next_message_arrives() {
    let mut pair = Pair::new(Service::Uc);
    pair.client.post(Opcode::Send, &pattern(3000, 1), |_| ());
    pair.client.post(Opcode::Write, &pattern(3000, 2), |r| r.rkey = 1);
    pair.client.post(Opcode::Write, &pattern(3000, 3), |_| ());
    pair.finish(all);
    assert!(pair.server.memory[..3000] == pattern(3000, 3));
    assert_eq!(pair.server.failed, None);
    assert!(!pair.responder.has_ack_due());
}

#[test]
fn a_receive_that_is_too_short_ends_the_qp_of_the_receiver() {
    let mut pair = Pair::new(Service::Uc);
    pair.server.posted.push_back(10);
    pair.client.post(Opcode::Send, &pattern(3000, 1), |_| ());
    pair.finish(all);
    assert_eq!(pair.server.receives[0].done.unwrap().1, Status::LocalLength);
    assert!(pair.responder.has_ended());
    assert_eq!(pair.statuses(), [Status::Success]);
}

#[test]
fn reads_are_local_errors() {
    let mut pair = Pair::new(Service::Uc);
    pair.client.post(Opcode::Read, &[0; 8], |_| ());
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::LocalQpOperation]);
}

#[test]
fn a_host_without_room_gets_the_rest_later() {
    let mut pair = Pair::new(Service::Uc);
    pair.client.post(Opcode::Write, &pattern(5000, 1), |_| ());
    pair.client.room = 2;
    assert_eq!(pair.transmit(), Sent::HostFull);
    assert_eq!(pair.statuses(), []);
    pair.client.room = usize::MAX;
    pair.finish(all);
    assert!(pair.server.memory[..5000] == pattern(5000, 1));
}

#[test]
fn a_packet_that_comes_late_or_twice_is_dropped() {
    let mut pair = Pair::new(Service::Uc);
    pair.server.posted.extend([5000; 4]);
    for i in 0..2 {
        pair.client.post(Opcode::Send, &pattern(1500, i), |_| ());
    }
    pair.transmit();
    let packets: Vec<_> = pair.client.wire.drain(..).collect();
    for i in [0, 0, 1, 2, 1, 0, 3, 2] {
        pair.responder.handle_packet(&super::host::parsed(&packets[i]), &mut pair.server);
    }
    let data: Vec<_> = pair.server.receives.iter().map(|receive| receive.data.clone()).collect();
    assert!(data == [pattern(1500, 0), pattern(1500, 1)]);
    assert_eq!(pair.responder.counters().duplicates, 4);
}
