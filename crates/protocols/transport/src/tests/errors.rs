//! Errors leave the statuses that an adapter would leave, and the NAK is the last that a QP says.

use vervain_wire::opcode;

use super::host::{BASE, Host, parsed};
use super::pair::*;
use crate::*;

/// Posts one request and runs to the end.
fn run_one(operation: Opcode, data: &[u8], change: impl FnOnce(&mut Request), server: impl FnOnce(&mut Host)) -> Pair {
    let mut pair = Pair::new(Service::Rc);
    server(&mut pair.server);
    pair.client.post(Opcode::Write, b"before", |_| ());
    pair.client.post(operation, data, change);
    pair.client.post(Opcode::Write, b"after", |r| r.remote_addr = BASE + 100);
    pair.finish(all);
    assert_eq!(pair.statuses()[0], Status::Success);
    assert_eq!(pair.statuses().len(), 2, "what is behind an error is for the host to flush");
    assert!(pair.requester.has_ended());
    assert_eq!(pair.server.memory[100], 0);
    pair
}

#[test]
fn a_wrong_key_a_range_too_long_and_a_missing_right_are_access_errors() {
    for operation in [Opcode::Write, Opcode::Read, Opcode::WriteImm, Opcode::FetchAdd] {
        let pair = run_one(operation, &[0; 8], |r| r.rkey = 1, |_| ());
        assert_eq!(pair.statuses()[1], Status::RemoteAccess, "{operation:?}");
        assert_eq!(pair.server.failed, Some(Nak::RemoteAccess));
        assert!(pair.responder.has_ended());
    }
    let long = run_one(Opcode::Write, &[7; 3000], |r| r.remote_addr = BASE + (1 << 20) - 2000, |_| ());
    assert_eq!(long.statuses()[1], Status::RemoteAccess);
    assert_eq!(long.server.memory[(1 << 20) - 2000], 0, "found at the first packet");
    let right = run_one(Opcode::CompareSwap, &[0; 8], |_| (), |server| server.rights = vec![Right::Write]);
    assert_eq!(right.statuses()[1], Status::RemoteAccess);
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    for operation in [Opcode::FetchAdd, Opcode::AtomicWrite] {
        let pair = run_one(operation, &[0; 8], |r| r.remote_addr += 4, |_| ());
        assert_eq!(pair.statuses()[1], Status::RemoteInvalidRequest);
        assert_eq!(pair.server.failed, Some(Nak::InvalidRequest));
    }
}

#[test]
fn a_receive_that_is_too_short_completes_with_a_length_error() {
    for length in [100, 3000] {
        let pair = run_one(Opcode::Send, &vec![1; length], |_| (), |server| server.posted.push_back(16));
        assert_eq!(pair.statuses()[1], Status::RemoteInvalidRequest);
        assert_eq!(pair.server.receives[0].done.unwrap().1, Status::LocalLength);
        assert_eq!(pair.server.failed, Some(Nak::InvalidRequest));
    }
}

#[test]
fn a_receive_whose_memory_is_gone_is_a_remote_operation_error() {
    let pair = run_one(
        Opcode::Send,
        b"x",
        |_| (),
        |server| {
            server.posted.push_back(16);
            server.bad_receive = true;
        },
    );
    assert_eq!(pair.statuses()[1], Status::RemoteOperation);
    assert_eq!(pair.server.receives[0].done.unwrap().1, Status::LocalProtection);
}

#[test]
fn a_key_that_cannot_be_invalidated_spoils_the_receive() {
    let pair = run_one(
        Opcode::SendInv,
        b"x",
        |_| (),
        |server| {
            server.posted.push_back(16);
            server.bad_invalidate = true;
        },
    );
    assert_eq!(pair.statuses()[1], Status::RemoteAccess);
    assert_eq!(pair.server.receives[0].done.unwrap().1, Status::RemoteInvalidRequest);
}

#[test]
fn a_responder_without_resources_refuses_reads() {
    let config = ResponderConfig { max_dest_rd_atomic: 0, ..responder_config(Service::Rc) };
    let mut pair = Pair::with(&requester_config(Service::Rc), &config);
    pair.client.post(Opcode::Read, &[], |r| r.length = 8);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::RemoteInvalidRequest]);
}

#[test]
fn memory_that_goes_while_it_is_read_is_an_access_error_behind_the_answers_before() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Read, &[], |r| r.length = 8);
    pair.client.post(Opcode::Read, &[], |r| r.length = 8000);
    pair.transmit();
    let requests: Vec<_> = pair.client.wire.drain(..).collect();
    for bytes in &requests {
        pair.responder.handle_packet(&parsed(bytes), &mut pair.server);
    }
    assert!(pair.responder.poll_transmit(3, &mut pair.server));
    pair.server.rights.clear();
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success, Status::RemoteAccess]);
    assert_eq!(pair.server.failed, Some(Nak::RemoteAccess));
}

#[test]
fn local_errors_end_a_request_after_those_before_it() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, &[1; 3000], |_| ());
    let bad = pair.client.post(Opcode::Write, &[1; 3000], |_| ());
    pair.client.bad_local = Some(bad);
    pair.transmit();
    assert_eq!(pair.statuses(), []);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success, Status::LocalProtection]);

    let mut pair = Pair::new(Service::Rc);
    let bad = pair.client.post(Opcode::Read, &[], |r| r.length = 3000);
    pair.client.bad_local = Some(bad);
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::LocalProtection]);
}

#[test]
fn a_request_whose_memory_goes_after_it_has_arrived_is_no_error() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, b"before", |_| ());
    let n = pair.client.post(Opcode::Write, b"arrives", |_| ());
    pair.transmit();
    let sent: Vec<_> = pair.client.wire.drain(..).collect();
    pair.client.bad_local = Some(n);
    pair.wait();
    assert!(pair.requester.counters().probes == 1 && pair.client.wire.is_empty(), "it cannot be sent again");
    sent.iter().for_each(|bytes| pair.responder.handle_packet(&parsed(bytes), &mut pair.server));
    pair.client.post(Opcode::Write, b"the next", |_| ());
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success; 3]);
}

#[test]
fn requests_that_cannot_be_sent_end_at_once() {
    for (operation, length, status) in
        [(Opcode::Write, (1 << 31) + 1, Status::LocalLength), (Opcode::FetchAdd, 4, Status::LocalLength)]
    {
        let mut pair = Pair::new(Service::Rc);
        pair.client.post(operation, &[], |_| ());
        pair.client.requests[0].0.length = length;
        pair.finish(all);
        assert_eq!(pair.statuses(), [status]);
        assert!(pair.log.is_empty());
    }
    let config = RequesterConfig { max_rd_atomic: 0, ..requester_config(Service::Rc) };
    let mut pair = Pair::with(&config, &responder_config(Service::Rc));
    pair.client.post(Opcode::Read, &[0; 8], |_| ());
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::LocalQpOperation]);
}

/// A request packet by hand.
fn packet(code: u8, psn: u32, reth_length: Option<u32>, payload: usize) -> Vec<u8> {
    let mut headers = vervain_wire::Headers::default();
    headers.bth.opcode = code;
    headers.bth.psn = psn;
    headers.reth = reth_length.map(|length| vervain_wire::Reth { addr: BASE, rkey: super::host::RKEY, length });
    let mut bytes = [0; vervain_wire::MAX_HEADERS];
    let len = headers.emit(&mut bytes);
    let mut bytes = bytes[..len].to_vec();
    bytes.resize(len + payload + vervain_wire::ICRC_LEN, 0);
    bytes
}

#[test]
fn packets_that_do_not_fit_their_message_are_invalid_requests() {
    let sequences: [&[(u8, Option<u32>, usize)]; 10] = [
        &[(opcode::SEND_MIDDLE, None, 1024)],
        &[(opcode::SEND_LAST, None, 8)],
        &[(opcode::SEND_FIRST, None, 1020)],
        &[(opcode::SEND_ONLY, None, 1028)],
        &[(opcode::SEND_FIRST, None, 1024), (opcode::WRITE_LAST, None, 8)],
        &[(opcode::SEND_FIRST, None, 1024), (opcode::SEND_ONLY, None, 8)],
        &[(opcode::SEND_FIRST, None, 1024), (opcode::SEND_LAST, None, 0)],
        &[(opcode::SEND_FIRST, None, 1024), (opcode::READ_REQUEST, Some(8), 0)],
        &[(opcode::WRITE_ONLY, Some(16), 8)],
        &[(opcode::WRITE_FIRST, Some(1032), 1024), (opcode::WRITE_LAST, None, 12)],
    ];
    for sequence in sequences {
        let mut pair = Pair::new(Service::Rc);
        pair.server.posted.extend([5000, 5000]);
        for (i, &(code, reth, payload)) in sequence.iter().enumerate() {
            let bytes = packet(code, psn::add(FIRST_PSN, i as u32), reth, payload);
            pair.responder.handle_packet(&parsed(&bytes), &mut pair.server);
        }
        assert_eq!(pair.server.failed, None, "not before its turn");
        pair.responder.poll_transmit(1, &mut pair.server);
        assert_eq!(pair.server.failed, Some(Nak::InvalidRequest), "{sequence:?}");
        assert_eq!(pair.server.posted.len(), 2, "a receive that was taken is given back");
        assert_eq!(parsed(&pair.server.wire[0]).headers.aeth.unwrap().syndrome, 0x61);
    }
}

#[test]
fn an_error_nak_that_finds_no_room_is_sent_later_and_nothing_is_executed_meanwhile() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, b"x", |r| r.rkey = 1);
    pair.client.post(Opcode::Write, b"y", |_| ());
    pair.server.room = 0;
    pair.run(all);
    assert_eq!((pair.server.failed, pair.server.writes), (Some(Nak::RemoteAccess), 0), "whoever gets it finds that");
    pair.server.room = 1;
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::RemoteAccess]);
}

#[test]
fn a_request_that_is_refused_for_good_stays_so_if_it_comes_again() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Write, b"x", |_| ());
    pair.transmit();
    let bytes = pair.client.wire.pop_front().unwrap();
    pair.server.rights.clear();
    pair.responder.handle_packet(&parsed(&bytes), &mut pair.server);
    pair.server.rights.push(Right::Write);
    pair.responder.handle_packet(&parsed(&bytes), &mut pair.server);
    pair.responder.poll_transmit(1, &mut pair.server);
    assert_eq!((pair.server.failed, pair.server.writes), (Some(Nak::RemoteAccess), 0));
}

#[test]
fn a_qp_that_is_silent_is_not_nagged() {
    let mut pair = Pair::new(Service::Rc);
    pair.server.silent = true;
    pair.client.post(Opcode::Write, &[1; 5000], |_| ());
    pair.run(all);
    assert!(pair.wait());
    pair.run(all);
    assert_eq!(pair.log.iter().filter(|entry| entry.0 == Way::Response).count(), 0);
    pair.server.silent = false;
    pair.finish(all);
    assert_eq!(pair.statuses(), [Status::Success]);
}

#[test]
fn a_response_of_the_wrong_length_is_a_bad_response() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Read, &[], |r| r.length = 16);
    pair.transmit();
    let mut bytes = packet(opcode::READ_RESPONSE_ONLY, FIRST_PSN, None, 12);
    bytes[0] = opcode::READ_RESPONSE_ONLY;
    pair.requester.handle_packet(pair.now, &parsed(&bytes), &mut pair.window, &mut pair.client);
    assert_eq!(pair.statuses(), [Status::BadResponse]);
}

#[test]
fn an_xrc_message_that_changes_its_srq_is_an_invalid_request() {
    let mut pair = Pair::new(Service::Xrc);
    pair.server.posted.push_back(5000);
    pair.client.post(Opcode::Send, &[1; 2000], |r| r.srqn = 5);
    pair.transmit();
    let mut packets: Vec<_> = pair.client.wire.drain(..).collect();
    packets[1][15] = 6;
    packets.iter().for_each(|bytes| pair.responder.handle_packet(&parsed(bytes), &mut pair.server));
    pair.responder.poll_transmit(1, &mut pair.server);
    assert_eq!(pair.server.failed, Some(Nak::InvalidRequest));
}
