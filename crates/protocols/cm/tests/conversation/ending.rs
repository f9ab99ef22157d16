//! How connections end: by DREQ, by destruction, and with their processes.

use vervain_cm::message::{Drep, Dreq, Message, Rej, answered, parse, reason};
use vervain_cm::{Error, Event};

use crate::pair::{
    CLIENT_WAITS, Pair, Reach, TIMEWAIT, outputs, sent, silent, told, until_accepted, until_asked, until_established,
    until_replied, until_requested,
};

#[test]
fn a_dreq_that_is_not_answered_ends_the_connection_all_the_same() {
    let mut pair = Pair::new();
    let (client, server, dreq) = pair.disconnecting();
    for _ in 0..15 {
        pair.pass(CLIENT_WAITS);
        assert_eq!(sent(&mut pair.client), dreq);
    }
    pair.pass(CLIENT_WAITS);
    assert!(matches!(told(&mut pair.client), Event::Disconnected { conn, .. } if conn == client));
    pair.end(client, server);
}

#[test]
fn a_connection_that_ends_before_its_rtu_comes_was_one() {
    let mut pair = Pair::new();
    let (client, server, _) = pair.ready();
    pair.client.destroy(pair.now, client).unwrap();
    let dreq = sent(&mut pair.client);
    pair.at_server(&dreq);
    let (sent, events) = outputs(&mut pair.server);
    assert!(sent.is_empty());
    assert!(matches!(events[..], [Event::Established { .. }, Event::DisconnectRequested { .. }]), "{events:?}");
    pair.end(client, server);
}

#[test]
fn both_may_end_a_connection_at_once() {
    let mut pair = Pair::new();
    let (client, server, from_client) = pair.disconnecting();
    pair.server.disconnect(pair.now, server, b"").unwrap();
    let from_server = sent(&mut pair.server);
    pair.at_server(&from_client);
    pair.at_client(&from_server);
    for machine in [&mut pair.client, &mut pair.server] {
        let (sent, events) = outputs(machine);
        assert!(matches!(sent[..], [Message::Drep(_)]), "{sent:?}");
        assert!(matches!(events[..], [Event::Disconnected { .. }]), "{events:?}");
    }
    pair.end(client, server);
}

#[test]
fn a_dreq_that_comes_again_is_answered_again_in_timewait_and_after() {
    let mut pair = Pair::new();
    let (client, server, dreq) = pair.disconnecting();
    pair.at_server(&dreq);
    told(&mut pair.server);
    pair.at_server(&dreq);
    silent(&mut pair.server);
    pair.server.disconnect(pair.now, server, b"data").unwrap();
    let drep = sent(&mut pair.server);
    pair.at_server(&dreq);
    assert_eq!(sent(&mut pair.server), drep);
    pair.server.destroy(pair.now, server).unwrap();
    pair.now += TIMEWAIT;
    pair.server.tick(pair.now);
    assert!(pair.server.is_empty());
    pair.at_server(&dreq);
    let again = sent(&mut pair.server);
    let (header, Message::Drep(plain)) = parse(&again).unwrap() else { panic!() };
    assert_eq!(plain, Drep { local_comm_id: server, remote_comm_id: client, ..Drep::default() });
    assert_eq!(header.tid, parse(&dreq).unwrap().0.tid);
    pair.at_client(&again);
    assert!(matches!(told(&mut pair.client), Event::Disconnected { .. }));
    pair.end(client, server);
}

#[test]
fn a_dreq_for_another_qp_is_none() {
    let mut pair = Pair::new();
    let (client, server, dreq) = pair.disconnecting();
    let (_, Message::Dreq(dreq)) = parse(&dreq).unwrap() else { panic!() };
    pair.at_server(&Dreq { remote_qpn: 0x23, ..dreq }.encode(1));
    silent(&mut pair.server);
    pair.end(client, server);
}

#[test]
fn destruction_says_to_the_other_end_what_its_state_calls_for() {
    /// The message that is refused, and the reason.
    type Said = Option<(u8, u16)>;
    let cases: [(Reach, bool, Said); 5] = [
        (until_asked, true, Some((answered::OTHER, reason::TIMEOUT))),
        (until_requested, false, Some((answered::REQ, reason::CONSUMER_DEFINED))),
        (until_accepted, false, Some((answered::OTHER, reason::CONSUMER_DEFINED))),
        (until_replied, true, Some((answered::REP, reason::CONSUMER_DEFINED))),
        (until_established, true, None),
    ];
    for (reach, by_client, said) in cases {
        let mut pair = Pair::new();
        let (client, server) = reach(&mut pair);
        let (machine, id) = if by_client { (&mut pair.client, client) } else { (&mut pair.server, server) };
        machine.destroy(pair.now, id).unwrap();
        assert_eq!(machine.destroy(pair.now, id), Err(Error::Unknown));
        match (parse(&sent(machine)).unwrap().1, said) {
            (Message::Rej(rej), Some(said)) => assert_eq!((rej.message, rej.reason), said),
            (Message::Dreq(_), None) => {}
            other => panic!("{other:?}"),
        }
        pair.end(client, server);
    }
}

#[test]
fn a_dreq_of_what_is_destroyed_is_repeated_without_events() {
    let mut pair = Pair::new();
    let (client, server) = pair.established();
    pair.client.destroy(pair.now, client).unwrap();
    let dreq = sent(&mut pair.client);
    pair.pass(CLIENT_WAITS);
    assert_eq!(sent(&mut pair.client), dreq);
    pair.at_server(&dreq);
    told(&mut pair.server);
    pair.server.disconnect(pair.now, server, b"").unwrap();
    let drep = sent(&mut pair.server);
    pair.at_client(&drep);
    silent(&mut pair.client);
    assert_eq!(pair.client.kept(), 1);
    pair.pass(TIMEWAIT);
    silent(&mut pair.client);
    assert!(pair.client.is_empty());
    pair.end(client, server);
}

#[test]
fn who_has_not_heard_of_a_refusal_hears_of_it_by_what_he_says_next() {
    // The client takes its request back.
    let mut pair = Pair::new();
    let (client, server, rep) = pair.accepted();
    pair.client.destroy(pair.now, client).unwrap();
    sent(&mut pair.client);
    pair.at_client(&rep);
    let rej = sent(&mut pair.client);
    assert!(matches!(parse(&rej).unwrap().1, Message::Rej(Rej { reason: reason::INVALID_COMM_ID, .. })));
    pair.at_server(&rej);
    assert!(matches!(told(&mut pair.server), Event::Rejected { conn, .. } if conn == server));
    pair.end(client, server);

    // It refuses the reply.
    let mut pair = Pair::new();
    let (client, server, rep) = pair.replied();
    pair.client.reject(pair.now, client, reason::NO_QP, b"", b"").unwrap();
    let rej = sent(&mut pair.client);
    pair.at_client(&rep);
    assert_eq!(sent(&mut pair.client), rej);
    pair.end(client, server);

    // The server takes back what it has granted.
    let mut pair = Pair::new();
    let (client, server, _) = pair.replied();
    pair.server.destroy(pair.now, server).unwrap();
    let rej = sent(&mut pair.server);
    pair.client.ready(pair.now, client, b"").unwrap();
    let rtu = sent(&mut pair.client);
    pair.at_server(&rtu);
    assert_eq!(sent(&mut pair.server), rej);
    pair.at_client(&rej);
    assert!(matches!(told(&mut pair.client), Event::Rejected { reason: reason::CONSUMER_DEFINED, .. }));
    pair.now += TIMEWAIT;
    pair.client.tick(pair.now);
    assert_eq!(told(&mut pair.client), Event::TimewaitExit { conn: client });
    pair.end(client, server);
}

#[test]
fn connections_with_a_process_that_has_ended_end() {
    let reached: [(Reach, bool); 4] =
        [(until_requested, false), (until_accepted, false), (until_replied, true), (until_established, true)];
    for (n, (reach, client_stays)) in reached.into_iter().enumerate() {
        let mut pair = Pair::new();
        let (client, server) = reach(&mut pair);
        let (machine, slot) = if client_stays { (&mut pair.client, 2) } else { (&mut pair.server, 1) };
        machine.gone(pair.now, slot, |_| false);
        machine.gone(pair.now, slot ^ 3, |_| true);
        silent(machine);
        machine.gone(pair.now, slot, |_| true);
        match (n, told(machine)) {
            (0..=2, Event::Rejected { .. }) | (3, Event::Disconnected { .. }) => {}
            other => panic!("{other:?}"),
        }
        pair.end(client, server);
    }
    // A client knows the process that it waits for by its MRA only.
    let mut pair = Pair::new();
    let (client, server, _) = pair.requested();
    pair.server.mra(pair.now, server, 24, b"").unwrap();
    let mra = sent(&mut pair.server);
    pair.at_client(&mra);
    told(&mut pair.client);
    pair.client.gone(pair.now, 2, |_| true);
    assert!(matches!(told(&mut pair.client), Event::Rejected { .. }));
    pair.end(client, server);
}
