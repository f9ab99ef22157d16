//! To whom a message belongs: stale connections, identifiers that are used again, and messages from elsewhere.

use vervain_cm::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, answered, parse, reason, sidr};
use vervain_cm::{Event, Machine, Output, ReqParams, SidrReqParams};

use crate::pair::{
    CLIENT, Pair, Reach, SECOND, SERVER, TIMEWAIT, granted, outputs, params, sent, silent, to, told, until_accepted,
    until_asked, until_disconnecting, until_established, until_replied, until_requested,
};

#[test]
fn what_names_nobody_is_refused_if_the_name_is_one_of_this_process() {
    let mut pair = Pair::new();
    let (ours, anothers) = (2 << 22 | 5, 3 << 22 | 5);
    for (id, answers) in [(ours, true), (anothers, false)] {
        let messages = [
            Rep { local_comm_id: 9, remote_comm_id: id, ..Rep::default() }.encode(1),
            Rtu { local_comm_id: 9, remote_comm_id: id, ..Rtu::default() }.encode(2),
            Dreq { local_comm_id: 9, remote_comm_id: id, ..Dreq::default() }.encode(3),
        ];
        for (n, mad) in messages.iter().enumerate() {
            pair.at_server(mad);
            if !answers {
                silent(&mut pair.server);
                continue;
            }
            match (n, parse(&sent(&mut pair.server)).unwrap()) {
                (0 | 1, (header, Message::Rej(rej))) => {
                    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.reason), (id, 9, reason::INVALID_COMM_ID));
                    assert_eq!((rej.message, header.tid), ([answered::REP, answered::OTHER][n], n as u64 + 1));
                }
                (2, (header, Message::Drep(drep))) => {
                    assert_eq!((drep.local_comm_id, drep.remote_comm_id, header.tid), (id, 9, 3));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let silences = [
        Mra { remote_comm_id: ours, ..Mra::default() }.encode(1),
        Rej { remote_comm_id: ours, ..Rej::default() }.encode(1),
        Drep { remote_comm_id: ours, ..Drep::default() }.encode(1),
    ];
    for mad in silences {
        pair.at_server(&mad);
        silent(&mut pair.server);
    }
    assert!(pair.server.is_empty());
}

/// A process that comes again has none of the connections that it had, and may use the same QP.
#[test]
fn a_request_of_a_qp_that_is_connected_shows_that_the_connection_is_stale() {
    let mut pair = Pair::new();
    let (_, server) = pair.established();
    pair.client = Machine::new(1, 100);
    let (client, req) = pair.connect();
    pair.at_server(&req);
    let (said, events) = outputs(&mut pair.server);
    assert!(events.is_empty());
    let [Message::Dreq(dreq), Message::Rej(rej)] = said[..] else { panic!("{said:?}") };
    assert_eq!((rej.remote_comm_id, rej.reason, rej.message), (client, reason::STALE_CONN, answered::REQ));
    pair.at_client(&rej.encode(0));
    assert!(matches!(told(&mut pair.client), Event::Rejected { reason: reason::STALE_CONN, .. }));
    pair.at_client(&dreq.encode(0));
    let drep = sent(&mut pair.client);
    pair.at_server(&drep);
    assert!(matches!(told(&mut pair.server), Event::Disconnected { conn, .. } if conn == server));
    pair.server.destroy(pair.now, server).unwrap();

    // In timewait, nobody takes the two for connected.
    pair.client.destroy(pair.now, client).unwrap();
    let (client, req) = pair.connect();
    pair.at_server(&req);
    let Event::Request { conn: server, .. } = told(&mut pair.server) else { panic!() };
    pair.end(client, server);
}

#[test]
fn a_reply_of_a_qp_that_is_connected_is_stale_too() {
    let mut pair = Pair::new();
    let (client, old) = pair.established();
    pair.server = Machine::new(2, 100);
    let second = pair.client.connect(pair.now, to(CLIENT, SERVER), &ReqParams { qpn: 0x12, ..params() });
    let req = sent(&mut pair.client);
    pair.at_server(&req);
    let Event::Request { conn: server, .. } = told(&mut pair.server) else { panic!() };
    pair.server.accept(pair.now, server, &granted()).unwrap();
    let rep = sent(&mut pair.server);
    pair.at_client(&rep);
    let (said, events) = outputs(&mut pair.client);
    let [Message::Dreq(dreq), Message::Rej(rej)] = said[..] else { panic!("{said:?}") };
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id), (client, old));
    assert_eq!((rej.local_comm_id, rej.reason, rej.message), (second, reason::STALE_CONN, answered::REP));
    assert!(matches!(events[..], [Event::Rejected { conn, reason: reason::STALE_CONN, .. }] if conn == second));
    pair.at_server(&rej.encode(0));
    assert!(matches!(told(&mut pair.server), Event::Rejected { conn, .. } if conn == server));
    pair.client.destroy(pair.now, second).unwrap();
    pair.end(client, server);
}

/// A process has come again, and drawn the same identifier.
#[test]
fn an_identifier_that_is_used_again_is_of_another_request() {
    let mut pair = Pair::new();
    let (client, server, req) = pair.requested();
    let (_, Message::Req(req)) = parse(&req).unwrap() else { panic!() };
    let again = Req { local_qpn: 0x99, ..req }.encode(77);
    pair.at_server(&again);
    let rej = sent(&mut pair.server);
    assert!(matches!(parse(&rej).unwrap().1, Message::Rej(Rej { reason: reason::STALE_CONN, .. })));
    pair.server.destroy(pair.now, server).unwrap();
    sent(&mut pair.server);
    pair.at_server(&again);
    let Event::Request { conn: second, .. } = told(&mut pair.server) else { panic!() };
    assert_ne!(second, server);
    // After the first is forgotten, the second one must still be known.
    pair.now += 100 * SECOND;
    pair.server.tick(pair.now);
    assert_eq!(pair.server.kept(), 1);
    pair.at_server(&again);
    silent(&mut pair.server);
    pair.end(client, second);
}

#[test]
fn who_is_not_there_answers_by_not_being_there() {
    // A REQ for a service that nobody has claimed.
    let mut pair = Pair::new();
    let (client, req) = pair.connect();
    pair.client.refused(pair.now, &req);
    assert!(matches!(told(&mut pair.client), Event::Rejected { reason: reason::INVALID_SERVICE_ID, .. }));
    pair.end(client, 0);

    // A REP whose client has died.
    let mut pair = Pair::new();
    let (client, server, rep) = pair.accepted();
    pair.server.refused(pair.now, &rep);
    assert!(matches!(told(&mut pair.server), Event::Rejected { conn, .. } if conn == server));
    pair.end(client, server);

    // An RTU, or a DREQ, whose receiver has died.
    let mut pair = Pair::new();
    let (client, server, rtu) = pair.ready();
    pair.client.refused(pair.now, &rtu);
    assert!(matches!(told(&mut pair.client), Event::Disconnected { .. }));
    pair.end(client, server);
    let mut pair = Pair::new();
    let (client, server, dreq) = pair.disconnecting();
    pair.client.refused(pair.now, &dreq);
    assert!(matches!(told(&mut pair.client), Event::Disconnected { .. }));
    assert_eq!(pair.client.next_deadline(), Some(pair.now + TIMEWAIT));
    pair.end(client, server);

    // A SIDR_REQ.
    let mut pair = Pair::new();
    let client = pair.client.sidr_request(pair.now, to(CLIENT, SERVER), &SidrReqParams::default());
    let req = sent(&mut pair.client);
    pair.client.refused(pair.now, &req);
    let Event::SidrReply { conn, rep } = told(&mut pair.client) else { panic!() };
    assert_eq!((conn, rep.status), (client, sidr::UNSUPPORTED));
    pair.end(client, 0);
}

#[test]
fn refusals_are_kept_for_a_while_but_not_any_number() {
    let mut machine = Machine::new(1, 1);
    for n in 1..20_000 {
        let req = Req { local_comm_id: n, local_qpn: n, path_mtu: 3, remote_cm_response_timeout: 20, ..Req::default() };
        machine.receive(0, &to(SERVER, CLIENT), &req.encode(1));
        let Event::Request { conn, .. } = told(&mut machine) else { panic!() };
        machine.destroy(0, conn).unwrap();
        sent(&mut machine);
    }
    assert_eq!(machine.kept(), 4096);
    machine.tick(100 * SECOND);
    assert!(machine.is_empty());
}

/// Though they name the right identifiers, QPs and adapters.
#[test]
fn messages_from_elsewhere_change_nothing() {
    let elsewhere = *b"who knows where?";
    let reached: [Reach; 6] =
        [until_asked, until_requested, until_accepted, until_replied, until_established, until_disconnecting];
    for reach in reached {
        let mut pair = Pair::new();
        let (client, server) = reach(&mut pair);
        let ends = [(&mut pair.client, client, server, 5u64, 0x11), (&mut pair.server, server, client, 0xc, 0x22)];
        for (machine, ours, theirs, guid, qpn) in ends {
            let mut information = [0; 72];
            information[..8].copy_from_slice(&guid.to_be_bytes());
            let rej = |message, reason| Rej {
                local_comm_id: theirs,
                remote_comm_id: ours,
                message,
                reason,
                information_length: 8,
                information,
                ..Rej::default()
            };
            let mads = [
                Mra { local_comm_id: theirs, remote_comm_id: ours, service_timeout: 31, ..Mra::default() }.encode(1),
                rej(answered::REQ, reason::STALE_CONN).encode(1),
                rej(answered::REP, reason::CONSUMER_DEFINED).encode(1),
                rej(answered::OTHER, reason::TIMEOUT).encode(1),
                Rep { local_comm_id: theirs, remote_comm_id: ours, ..Rep::default() }.encode(1),
                Rtu { local_comm_id: theirs, remote_comm_id: ours, ..Rtu::default() }.encode(1),
                Dreq { local_comm_id: theirs, remote_comm_id: ours, remote_qpn: qpn, ..Dreq::default() }.encode(1),
                Drep { local_comm_id: theirs, remote_comm_id: ours, ..Drep::default() }.encode(1),
            ];
            for mad in mads {
                let before = format!("{machine:?}");
                machine.receive(pair.now, &to(CLIENT, elsewhere), &mad);
                while let Some(output) = machine.next_output() {
                    let back = matches!(output, Output::Send { path, .. } if path.dgid == elsewhere);
                    assert!(back, "{output:?}");
                }
                assert_eq!(format!("{machine:?}"), before, "{:?}", parse(&mad));
            }
        }
    }
}
