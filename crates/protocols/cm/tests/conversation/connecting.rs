//! How connections are made, refused and given up.

use vervain_cm::message::{Dreq, Message, Rej, Req, answered, parse, reason};
use vervain_cm::{Ari, Error, Event, Machine, RepParams, ReqParams, Service, SidrRepParams};

use crate::pair::{
    CLIENT, CLIENT_WAITS, Pair, SECOND, SERVER, SERVER_WAITS, TIMEWAIT, granted, outputs, params, sent, silent, to,
    told,
};

#[test]
fn a_connection_is_made_and_ended_as_in_the_golden_captures() {
    let mut pair = Pair::new();
    let client = pair.client.connect(pair.now, to(CLIENT, SERVER), &params());
    assert_eq!(client >> 22, 1);
    let req_mad = sent(&mut pair.client);
    let (request, Message::Req(req)) = parse(&req_mad).unwrap() else { panic!() };
    assert_eq!((req.local_comm_id, req.service_id, req.local_qpn), (client, 0x106_1234, 0x11));
    assert_eq!((req.primary_local_gid, req.primary_remote_gid, req.primary_hop_limit), (CLIENT, SERVER, 64));
    assert_eq!((req.primary_local_ack_timeout, req.max_cm_retries, req.remote_cm_response_timeout), (19, 15, 20));

    pair.at_server(&req_mad);
    let Event::Request { conn: server, path, req: heard } = told(&mut pair.server) else { panic!() };
    assert_eq!((heard, path), (req, to(SERVER, CLIENT)));
    assert_eq!(server >> 22, 2);
    pair.server.accept(pair.now, server, &granted()).unwrap();
    let rep_mad = sent(&mut pair.server);
    let (reply, Message::Rep(rep)) = parse(&rep_mad).unwrap() else { panic!() };
    assert_eq!((rep.local_comm_id, rep.remote_comm_id, rep.local_qpn, reply.tid), (server, client, 0x22, request.tid));

    pair.at_client(&rep_mad);
    assert_eq!(told(&mut pair.client), Event::Reply { conn: client, rep });
    assert_eq!(pair.client.next_deadline(), None, "the REQ was answered");
    pair.client.ready(pair.now, client, b"here").unwrap();
    let rtu = sent(&mut pair.client);
    pair.at_server(&rtu);
    let Event::Established { conn, private_data } = told(&mut pair.server) else { panic!() };
    assert_eq!((conn, &private_data[..6]), (server, &b"here\0\0"[..]));
    assert_eq!(pair.server.next_deadline(), None, "the REP was answered");

    pair.client.disconnect(pair.now, client, b"bye").unwrap();
    let dreq_mad = sent(&mut pair.client);
    let (_, Message::Dreq(dreq)) = parse(&dreq_mad).unwrap() else { panic!() };
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id, dreq.remote_qpn), (client, server, 0x22));
    pair.at_server(&dreq_mad);
    let Event::DisconnectRequested { conn, private_data } = told(&mut pair.server) else { panic!() };
    assert_eq!((conn, &private_data[..4]), (server, &b"bye\0"[..]));
    pair.server.disconnect(pair.now, server, b"").unwrap();
    let drep = sent(&mut pair.server);
    pair.at_client(&drep);
    assert!(matches!(told(&mut pair.client), Event::Disconnected { conn, .. } if conn == client));

    assert_eq!(pair.client.next_deadline(), Some(pair.now + TIMEWAIT));
    pair.pass(TIMEWAIT);
    assert_eq!(told(&mut pair.client), Event::TimewaitExit { conn: client });
    assert_eq!(told(&mut pair.server), Event::TimewaitExit { conn: server });
    pair.end(client, server);
}

#[test]
fn a_req_that_is_not_answered_is_sent_again_and_then_given_up() {
    let mut pair = Pair::new();
    let (client, req) = pair.connect();
    for _ in 0..15 {
        pair.pass(CLIENT_WAITS - 1);
        silent(&mut pair.client);
        pair.pass(1);
        assert_eq!(sent(&mut pair.client), req);
    }
    pair.pass(CLIENT_WAITS);
    let (sent, events) = outputs(&mut pair.client);
    assert_eq!(events, [Event::Unreachable { conn: client }]);
    let [Message::Rej(rej)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((rej.reason, rej.message, rej.information_length), (reason::TIMEOUT, answered::OTHER, 8));

    // The server had it, and its program is busy: it hears of that by the REJ, which knows no identifier of the server.
    pair.at_server(&req);
    let Event::Request { conn: server, .. } = told(&mut pair.server) else { panic!() };
    pair.at_server(&rej.encode(0));
    assert!(matches!(told(&mut pair.server), Event::Rejected { reason: reason::TIMEOUT, .. }));
    assert_eq!(pair.server.accept(pair.now, server, &granted()), Err(Error::State));
    // A late one is no new request.
    pair.at_server(&req);
    silent(&mut pair.server);
    pair.end(client, server);
}

#[test]
fn a_rep_that_is_not_answered_is_sent_again_and_then_given_up() {
    let mut pair = Pair::new();
    let (client, server, rep) = pair.accepted();
    for _ in 0..15 {
        pair.now += SERVER_WAITS;
        pair.server.tick(pair.now);
        assert_eq!(sent(&mut pair.server), rep);
    }
    pair.now += SERVER_WAITS;
    pair.server.tick(pair.now);
    let (sent, events) = outputs(&mut pair.server);
    assert_eq!(events, [Event::Unreachable { conn: server }]);
    let [Message::Rej(rej)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((rej.reason, rej.local_comm_id, rej.remote_comm_id), (reason::TIMEOUT, server, client));
    pair.end(client, server);
}

#[test]
fn a_request_that_comes_again_is_no_second_one() {
    let mut pair = Pair::new();
    let (client, server, req) = pair.requested();
    pair.at_server(&req);
    silent(&mut pair.server);
    pair.server.mra(pair.now, server, 22, b"").unwrap();
    let mra = sent(&mut pair.server);
    pair.at_server(&req);
    assert_eq!(sent(&mut pair.server), mra);
    pair.server.accept(pair.now, server, &granted()).unwrap();
    let rep = sent(&mut pair.server);
    pair.at_server(&req);
    assert_eq!(sent(&mut pair.server), rep);
    pair.at_client(&rep);
    told(&mut pair.client);
    pair.client.ready(pair.now, client, b"").unwrap();
    let rtu = sent(&mut pair.client);
    pair.at_server(&rtu);
    told(&mut pair.server);
    pair.at_server(&req);
    pair.at_server(&rtu);
    silent(&mut pair.server);
    pair.client.disconnect(pair.now, client, b"").unwrap();
    let dreq = sent(&mut pair.client);
    pair.at_server(&dreq);
    told(&mut pair.server);
    pair.server.disconnect(pair.now, server, b"").unwrap();
    sent(&mut pair.server);
    pair.at_server(&req);
    let late = sent(&mut pair.server);
    assert!(matches!(parse(&late).unwrap().1, Message::Rej(Rej { reason: reason::STALE_CONN, .. })));
    pair.end(client, server);
}

#[test]
fn a_request_that_was_refused_is_refused_again_for_a_while() {
    let mut pair = Pair::new();
    let (client, server, req) = pair.requested();
    pair.server.reject(pair.now, server, reason::CONSUMER_DEFINED, b"why", b"no").unwrap();
    let rej = sent(&mut pair.server);
    pair.server.destroy(pair.now, server).unwrap();
    silent(&mut pair.server);
    for _ in 0..20 {
        pair.now += CLIENT_WAITS;
        pair.server.tick(pair.now);
        pair.at_server(&req);
        assert_eq!(sent(&mut pair.server), rej);
    }
    pair.at_client(&rej);
    let Event::Rejected { conn, reason, ari, private_data } = told(&mut pair.client) else { panic!() };
    assert_eq!((conn, reason, ari), (client, reason::CONSUMER_DEFINED, Ari::new(b"why").unwrap()));
    assert_eq!((ari.as_slice(), &private_data[..3]), (&b"why"[..], &b"no\0"[..]));
    pair.at_client(&rej);
    silent(&mut pair.client);
    pair.end(client, server);
}

#[test]
fn an_mra_prolongs_the_wait_and_is_sent_when_it_is_wanted() {
    let mut pair = Pair::new();
    let (client, server, req) = pair.requested();
    pair.server.prepare_mra(pair.now, server, 24, b"soon").unwrap();
    silent(&mut pair.server);
    pair.pass(CLIENT_WAITS);
    assert_eq!(sent(&mut pair.client), req);
    pair.at_server(&req);
    let mra_mad = sent(&mut pair.server);
    let (_, Message::Mra(mra)) = parse(&mra_mad).unwrap() else { panic!() };
    assert_eq!((mra.local_comm_id, mra.remote_comm_id, mra.message), (server, client, answered::REQ));
    pair.at_client(&mra_mad);
    assert!(matches!(told(&mut pair.client), Event::MraReceived { conn, .. } if conn == client));
    let until = pair.now + (4096 << 24) + (4096 << 19);
    assert_eq!(pair.client.next_deadline(), Some(until));
    // Another one does not prolong it for ever.
    pair.now += SECOND;
    pair.at_client(&mra_mad);
    silent(&mut pair.client);
    assert_eq!(pair.client.next_deadline(), Some(until));

    pair.server.accept(pair.now, server, &granted()).unwrap();
    let rep = sent(&mut pair.server);
    pair.at_client(&rep);
    told(&mut pair.client);
    pair.client.mra(pair.now, client, 10, b"").unwrap();
    let mra = sent(&mut pair.client);
    pair.at_server(&mra);
    assert!(matches!(told(&mut pair.server), Event::MraReceived { .. }));
    assert_eq!(pair.server.next_deadline(), Some(pair.now + (4096 << 10) + (4096 << 19)));
    pair.at_client(&rep);
    assert_eq!(sent(&mut pair.client), mra, "for the REP that came again");
    assert_eq!(pair.client.mra(pair.now, client, 10, &[0; 223]), Err(Error::TooLong));
    pair.end(client, server);
}

#[test]
fn a_lost_rtu_is_sent_again_when_the_rep_is() {
    let mut pair = Pair::new();
    let (client, server, rep) = pair.replied();
    pair.at_client(&rep);
    silent(&mut pair.client);
    pair.client.ready(pair.now, client, b"").unwrap();
    let rtu = sent(&mut pair.client);
    pair.pass(SERVER_WAITS);
    assert_eq!(sent(&mut pair.server), rep);
    pair.at_client(&rep);
    assert_eq!(sent(&mut pair.client), rtu);
    pair.at_server(&rtu);
    assert!(matches!(told(&mut pair.server), Event::Established { .. }));
    pair.end(client, server);
}

#[test]
fn data_shows_that_a_connection_is_established() {
    let mut pair = Pair::new();
    let (client, server, rtu) = pair.ready();
    pair.server.established(pair.now, server).unwrap();
    assert!(matches!(told(&mut pair.server), Event::Established { .. }));
    assert_eq!(pair.server.established(pair.now, server), Err(Error::Established));
    pair.at_server(&rtu);
    silent(&mut pair.server);
    assert_eq!(pair.server.next_deadline(), None);
    assert_eq!(pair.client.established(pair.now, client), Err(Error::Established));
    pair.end(client, server);
}

#[test]
fn requests_that_cannot_be_granted_are_refused_at_once() {
    let mut pair = Pair::new();
    let (client, req) = pair.connect();
    let (_, Message::Req(req)) = parse(&req).unwrap() else { panic!() };
    let wrong = [
        (Req { transport_service: 2, ..req }, reason::INVALID_TRANSPORT_TYPE),
        (Req { transport_service: 3, extended_transport: 2, ..req }, reason::INVALID_TRANSPORT_TYPE),
        (Req { path_mtu: 0, ..req }, reason::INVALID_MTU),
        (Req { path_mtu: 6, ..req }, reason::INVALID_MTU),
    ];
    for (req, reason) in wrong {
        pair.at_server(&req.encode(1));
        let (_, Message::Rej(rej)) = parse(&sent(&mut pair.server)).unwrap() else { panic!() };
        assert_eq!((rej.reason, rej.remote_comm_id), (reason, client));
    }
    assert!(pair.server.is_empty());
}

#[test]
fn each_of_two_may_ask_the_other_at_once() {
    let mut pair = Pair::new();
    let (client, from_client) = pair.connect();
    let server = pair.server.connect(pair.now, to(SERVER, CLIENT), &ReqParams { qpn: 0x21, ca_guid: 5, ..params() });
    let from_server = sent(&mut pair.server);
    pair.at_server(&from_client);
    pair.at_client(&from_server);
    let Event::Request { conn: asked_of_server, .. } = told(&mut pair.server) else { panic!() };
    let Event::Request { conn: asked_of_client, .. } = told(&mut pair.client) else { panic!() };
    pair.server.accept(pair.now, asked_of_server, &granted()).unwrap();
    pair.client.accept(pair.now, asked_of_client, &RepParams { qpn: 0x12, ca_guid: 0xc, ..granted() }).unwrap();
    let (from_server, from_client) = (sent(&mut pair.server), sent(&mut pair.client));
    pair.at_client(&from_server);
    pair.at_server(&from_client);
    assert!(matches!(told(&mut pair.client), Event::Reply { conn, .. } if conn == client));
    assert!(matches!(told(&mut pair.server), Event::Reply { conn, .. } if conn == server));
    pair.client.destroy(pair.now, asked_of_client).unwrap();
    pair.server.destroy(pair.now, asked_of_server).unwrap();
    pair.end(client, server);
}

#[test]
fn a_process_may_connect_to_itself() {
    let mut machine = Machine::new(1, 1);
    let way = to(CLIENT, CLIENT);
    let client = machine.connect(0, way, &params());
    let req = sent(&mut machine);
    machine.receive(0, &way, &req);
    let Event::Request { conn: server, .. } = told(&mut machine) else { panic!() };
    machine.accept(0, server, &RepParams { ca_guid: 0xc, ..granted() }).unwrap();
    let rep = sent(&mut machine);
    machine.receive(0, &way, &rep);
    assert!(matches!(told(&mut machine), Event::Reply { conn, .. } if conn == client));
    machine.ready(0, client, b"").unwrap();
    let rtu = sent(&mut machine);
    machine.receive(0, &way, &rtu);
    assert!(matches!(told(&mut machine), Event::Established { conn, .. } if conn == server));
    machine.destroy(0, client).unwrap();
    let dreq = sent(&mut machine);
    machine.receive(0, &way, &dreq);
    assert!(matches!(told(&mut machine), Event::DisconnectRequested { conn, .. } if conn == server));
    machine.destroy(0, server).unwrap();
    let drep = sent(&mut machine);
    machine.receive(0, &way, &drep);
    machine.tick(100 * SECOND);
    assert!(machine.is_empty());
}

#[test]
fn xrc_has_its_qp_elsewhere() {
    let mut pair = Pair::new();
    let client = pair.client.connect(pair.now, to(CLIENT, SERVER), &ReqParams { service: Service::Xrc, ..params() });
    let req_mad = sent(&mut pair.client);
    let (_, Message::Req(req)) = parse(&req_mad).unwrap() else { panic!() };
    assert!(req.is_xrc());
    pair.at_server(&req_mad);
    let Event::Request { conn: server, .. } = told(&mut pair.server) else { panic!() };
    pair.server.accept(pair.now, server, &granted()).unwrap();
    let rep_mad = sent(&mut pair.server);
    let (_, Message::Rep(rep)) = parse(&rep_mad).unwrap() else { panic!() };
    assert_eq!((rep.local_qpn, rep.local_eecn, rep.srq), (0, 0x22, true));
    pair.at_client(&rep_mad);
    told(&mut pair.client);
    pair.client.ready(pair.now, client, b"").unwrap();
    let rtu = sent(&mut pair.client);
    pair.at_server(&rtu);
    told(&mut pair.server);
    pair.client.disconnect(pair.now, client, b"").unwrap();
    let dreq = sent(&mut pair.client);
    assert!(matches!(parse(&dreq).unwrap().1, Message::Dreq(Dreq { remote_qpn: 0x22, .. })));
    pair.at_server(&dreq);
    assert!(matches!(told(&mut pair.server), Event::DisconnectRequested { .. }));
    pair.end(client, server);
}

#[test]
fn calls_at_the_wrong_time_change_nothing() {
    let mut pair = Pair::new();
    let (client, req) = pair.connect();
    let now = pair.now;
    let machine = &mut pair.client;
    assert_eq!(machine.accept(now, client, &granted()), Err(Error::State));
    assert_eq!(machine.ready(now, client, b""), Err(Error::State));
    assert_eq!(machine.mra(now, client, 20, b""), Err(Error::State));
    assert_eq!(machine.disconnect(now, client, b""), Err(Error::State));
    assert_eq!(machine.established(now, client), Err(Error::State));
    assert_eq!(machine.sidr_reply(now, client, &SidrRepParams::default()), Err(Error::State));
    assert_eq!(machine.reject(now, client, 28, &[0; 73], b""), Err(Error::TooLong));
    assert_eq!(machine.reject(now, client, 28, b"", &[0; 149]), Err(Error::TooLong));
    assert_eq!(machine.ready(now, client ^ 1, b""), Err(Error::Unknown));
    silent(machine);
    pair.pass(CLIENT_WAITS);
    assert_eq!(sent(&mut pair.client), req);
    pair.end(client, 0);
}
