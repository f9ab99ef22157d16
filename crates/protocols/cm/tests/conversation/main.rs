//! Two connection managers, datagram by datagram: what each rule of the protocol does.

use vervain_cm::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, answered, parse, reason, sidr};
use vervain_cm::{
    Ari, CommId, Error, Event, Machine, Mad, Output, Path, RepParams, ReqParams, Service, SidrRepParams, SidrReqParams,
};

const SECOND: u64 = 1_000_000_000;
/// Time that the client's messages wait for their answers, by default: 4.096 µs · (2^20 + 2 · 2^18).
const CLIENT_WAITS: u64 = 4096 * ((1 << 20) + (2 << 18));
/// The same for the server's.
const SERVER_WAITS: u64 = 4096 << 20;
/// Time for which ended connections are kept, by default.
const TIMEWAIT: u64 = 4096 << 19;

const CLIENT: [u8; 16] = *b"the client's GID";
const SERVER: [u8; 16] = *b"the server's GID";

fn to(sgid: [u8; 16], dgid: [u8; 16]) -> Path {
    Path { port: 1, hop_limit: 64, sgid, dgid, ..Path::default() }
}

/// A client and a server, whose datagrams the test carries.
struct Pair {
    now: u64,
    client: Machine,
    server: Machine,
}

/// All output of a machine: datagrams and events.
fn outputs(machine: &mut Machine) -> (Vec<Message>, Vec<Event>) {
    let (mut sent, mut told) = (Vec::new(), Vec::new());
    while let Some(output) = machine.next_output() {
        match output {
            Output::Send { mad, .. } => sent.push(parse(&mad).unwrap().1),
            Output::Event(event) => told.push(event),
        }
    }
    (sent, told)
}

/// The only thing that a machine hands out, which is to be sent.
#[track_caller]
fn sent(machine: &mut Machine) -> Mad {
    let mad = match machine.next_output() {
        Some(Output::Send { mad, .. }) => mad,
        other => panic!("not sent: {other:?}"),
    };
    silent(machine);
    mad
}

/// The only thing that a machine hands out, which is an event.
#[track_caller]
fn told(machine: &mut Machine) -> Event {
    let event = match machine.next_output() {
        Some(Output::Event(event)) => event,
        other => panic!("not told: {other:?}"),
    };
    silent(machine);
    event
}

#[track_caller]
fn silent(machine: &mut Machine) {
    assert_eq!(machine.next_output(), None);
}

fn params() -> ReqParams {
    ReqParams { service_id: 0x106_1234, ca_guid: 0xc, qpn: 0x11, starting_psn: 0x1111, ..ReqParams::default() }
}

fn granted() -> RepParams {
    RepParams { ca_guid: 0x5, qpn: 0x22, starting_psn: 0x2222, ..RepParams::default() }
}

impl Pair {
    fn new() -> Pair {
        Pair { now: 7, client: Machine::new(1, 1), server: Machine::new(2, 2) }
    }

    fn at_server(&mut self, mad: &Mad) {
        self.server.receive(self.now, &to(SERVER, CLIENT), mad);
    }

    fn at_client(&mut self, mad: &Mad) {
        self.client.receive(self.now, &to(CLIENT, SERVER), mad);
    }

    /// Time passes for both.
    fn pass(&mut self, time: u64) {
        self.now += time;
        self.client.tick(self.now);
        self.server.tick(self.now);
    }

    /// The client asks: its identifier, and the REQ.
    fn connect(&mut self) -> (CommId, Mad) {
        let conn = self.client.connect(self.now, to(CLIENT, SERVER), &params());
        (conn, sent(&mut self.client))
    }

    /// And the server's program knows of it: identifiers of client and server, and the REQ.
    fn requested(&mut self) -> (CommId, CommId, Mad) {
        let (client, req) = self.connect();
        self.at_server(&req);
        let Event::Request { conn, .. } = told(&mut self.server) else { panic!() };
        (client, conn, req)
    }

    /// And has granted it: identifiers, and the REP.
    fn accepted(&mut self) -> (CommId, CommId, Mad) {
        let (client, server, _) = self.requested();
        self.server.accept(self.now, server, &granted()).unwrap();
        (client, server, sent(&mut self.server))
    }

    /// And the client's program knows of that: identifiers, and the REP.
    fn replied(&mut self) -> (CommId, CommId, Mad) {
        let (client, server, rep) = self.accepted();
        self.at_client(&rep);
        assert!(matches!(told(&mut self.client), Event::Reply { .. }));
        (client, server, rep)
    }

    /// And is ready: identifiers, and the RTU, which is lost.
    fn ready(&mut self) -> (CommId, CommId, Mad) {
        let (client, server, _) = self.replied();
        self.client.ready(self.now, client, b"").unwrap();
        (client, server, sent(&mut self.client))
    }

    /// And the server knows of that.
    fn established(&mut self) -> (CommId, CommId) {
        let (client, server, rtu) = self.ready();
        self.at_server(&rtu);
        assert!(matches!(told(&mut self.server), Event::Established { .. }));
        (client, server)
    }

    /// The client asks to end it: identifiers, and the DREQ.
    fn disconnecting(&mut self) -> (CommId, CommId, Mad) {
        let (client, server) = self.established();
        self.client.disconnect(self.now, client, b"").unwrap();
        (client, server, sent(&mut self.client))
    }

    /// Programs give up what they have, and nothing is left when all times have passed.
    #[track_caller]
    fn end(mut self, client: CommId, server: CommId) {
        let _ = self.client.destroy(self.now, client);
        let _ = self.server.destroy(self.now, server);
        for _ in 0..40 {
            self.pass(100 * SECOND);
        }
        outputs(&mut self.client);
        outputs(&mut self.server);
        assert!(self.client.is_empty() && self.server.is_empty(), "{:#?} {:#?}", self.client, self.server);
    }
}

/// Brings a pair to a state.
type Reach = fn(&mut Pair) -> (CommId, CommId);

fn until_asked(pair: &mut Pair) -> (CommId, CommId) {
    (pair.connect().0, 2 << 22 | 1)
}

fn until_requested(pair: &mut Pair) -> (CommId, CommId) {
    let (client, server, _) = pair.requested();
    (client, server)
}

fn until_accepted(pair: &mut Pair) -> (CommId, CommId) {
    let (client, server, _) = pair.accepted();
    (client, server)
}

fn until_replied(pair: &mut Pair) -> (CommId, CommId) {
    let (client, server, _) = pair.replied();
    (client, server)
}

fn until_established(pair: &mut Pair) -> (CommId, CommId) {
    pair.established()
}

fn until_disconnecting(pair: &mut Pair) -> (CommId, CommId) {
    let (client, server, _) = pair.disconnecting();
    (client, server)
}

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
fn a_question_for_a_qp_is_answered_and_answered_again() {
    let mut pair = Pair::new();
    let asked = SidrReqParams { service_id: 0x111_0001, ..SidrReqParams::default() };
    let client = pair.client.sidr_request(pair.now, to(CLIENT, SERVER), &asked);
    let req = sent(&mut pair.client);
    pair.at_server(&req);
    let Event::SidrRequest { conn: server, req: heard, .. } = told(&mut pair.server) else { panic!() };
    assert_eq!((heard.request_id, heard.service_id, heard.pkey), (client, 0x111_0001, 0xffff));
    pair.at_server(&req);
    silent(&mut pair.server);
    let answer = SidrRepParams { qpn: 0x33, qkey: 0x0123_4567, ..SidrRepParams::default() };
    pair.server.sidr_reply(pair.now, server, &answer).unwrap();
    let rep_mad = sent(&mut pair.server);
    assert_eq!(pair.server.sidr_reply(pair.now, server, &answer), Err(Error::State));
    pair.server.destroy(pair.now, server).unwrap();
    pair.pass(SERVER_WAITS);
    assert_eq!(sent(&mut pair.client), req);
    pair.at_server(&req);
    assert_eq!(sent(&mut pair.server), rep_mad);
    pair.at_client(&rep_mad);
    let Event::SidrReply { conn, rep } = told(&mut pair.client) else { panic!() };
    assert_eq!((conn, rep.qpn, rep.qkey, rep.status), (client, 0x33, 0x0123_4567, sidr::SUCCESS));
    pair.at_client(&rep_mad);
    silent(&mut pair.client);
    pair.end(client, server);
}

#[test]
fn a_question_for_a_qp_may_be_refused_and_given_up() {
    let mut pair = Pair::new();
    let client = pair.client.sidr_request(pair.now, to(CLIENT, SERVER), &SidrReqParams::default());
    let req = sent(&mut pair.client);
    pair.at_server(&req);
    let Event::SidrRequest { conn: server, .. } = told(&mut pair.server) else { panic!() };
    pair.server.destroy(pair.now, server).unwrap();
    let (_, Message::SidrRep(rep)) = parse(&sent(&mut pair.server)).unwrap() else { panic!() };
    assert_eq!(rep.status, sidr::REJECT);
    for _ in 0..15 {
        pair.pass(SERVER_WAITS);
        sent(&mut pair.client);
    }
    pair.pass(SERVER_WAITS);
    assert_eq!(told(&mut pair.client), Event::Unreachable { conn: client });
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
