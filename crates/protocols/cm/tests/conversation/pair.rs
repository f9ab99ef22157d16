//! A client and a server as each test begins with them, and the states that tests bring them to.

use vervain_cm::message::{Message, parse};
use vervain_cm::{CommId, Event, Machine, Mad, Output, Path, RepParams, ReqParams};

pub const SECOND: u64 = 1_000_000_000;
/// Time that the client's messages wait for their answers, by default: 4.096 µs · (2^20 + 2 · 2^18).
pub const CLIENT_WAITS: u64 = 4096 * ((1 << 20) + (2 << 18));
/// The same for the server's.
pub const SERVER_WAITS: u64 = 4096 << 20;
/// Time for which ended connections are kept, by default.
pub const TIMEWAIT: u64 = 4096 << 19;

pub const CLIENT: [u8; 16] = *b"the client's GID";
pub const SERVER: [u8; 16] = *b"the server's GID";

pub fn to(sgid: [u8; 16], dgid: [u8; 16]) -> Path {
    Path { port: 1, hop_limit: 64, sgid, dgid, ..Path::default() }
}

/// A client and a server, whose datagrams the test carries.
pub struct Pair {
    pub now: u64,
    pub client: Machine,
    pub server: Machine,
}

/// All output of a machine: datagrams and events.
pub fn outputs(machine: &mut Machine) -> (Vec<Message>, Vec<Event>) {
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
pub fn sent(machine: &mut Machine) -> Mad {
    let mad = match machine.next_output() {
        Some(Output::Send { mad, .. }) => mad,
        other => panic!("not sent: {other:?}"),
    };
    silent(machine);
    mad
}

/// The only thing that a machine hands out, which is an event.
#[track_caller]
pub fn told(machine: &mut Machine) -> Event {
    let event = match machine.next_output() {
        Some(Output::Event(event)) => event,
        other => panic!("not told: {other:?}"),
    };
    silent(machine);
    event
}

#[track_caller]
pub fn silent(machine: &mut Machine) {
    assert_eq!(machine.next_output(), None);
}

pub fn params() -> ReqParams {
    ReqParams { service_id: 0x106_1234, ca_guid: 0xc, qpn: 0x11, starting_psn: 0x1111, ..ReqParams::default() }
}

pub fn granted() -> RepParams {
    RepParams { ca_guid: 0x5, qpn: 0x22, starting_psn: 0x2222, ..RepParams::default() }
}

impl Pair {
    pub fn new() -> Pair {
        Pair { now: 7, client: Machine::new(1, 1), server: Machine::new(2, 2) }
    }

    pub fn at_server(&mut self, mad: &Mad) {
        self.server.receive(self.now, &to(SERVER, CLIENT), mad);
    }

    pub fn at_client(&mut self, mad: &Mad) {
        self.client.receive(self.now, &to(CLIENT, SERVER), mad);
    }

    /// Time passes for both.
    pub fn pass(&mut self, time: u64) {
        self.now += time;
        self.client.tick(self.now);
        self.server.tick(self.now);
    }

    /// The client asks: its identifier, and the REQ.
    pub fn connect(&mut self) -> (CommId, Mad) {
        let conn = self.client.connect(self.now, to(CLIENT, SERVER), &params());
        (conn, sent(&mut self.client))
    }

    /// And the server's program knows of it: identifiers of client and server, and the REQ.
    pub fn requested(&mut self) -> (CommId, CommId, Mad) {
        let (client, req) = self.connect();
        self.at_server(&req);
        let Event::Request { conn, .. } = told(&mut self.server) else { panic!() };
        (client, conn, req)
    }

    /// And has granted it: identifiers, and the REP.
    pub fn accepted(&mut self) -> (CommId, CommId, Mad) {
        let (client, server, _) = self.requested();
        self.server.accept(self.now, server, &granted()).unwrap();
        (client, server, sent(&mut self.server))
    }

    /// And the client's program knows of that: identifiers, and the REP.
    pub fn replied(&mut self) -> (CommId, CommId, Mad) {
        let (client, server, rep) = self.accepted();
        self.at_client(&rep);
        assert!(matches!(told(&mut self.client), Event::Reply { .. }));
        (client, server, rep)
    }

    /// And is ready: identifiers, and the RTU, which is lost.
    pub fn ready(&mut self) -> (CommId, CommId, Mad) {
        let (client, server, _) = self.replied();
        self.client.ready(self.now, client, b"").unwrap();
        (client, server, sent(&mut self.client))
    }

    /// And the server knows of that.
    pub fn established(&mut self) -> (CommId, CommId) {
        let (client, server, rtu) = self.ready();
        self.at_server(&rtu);
        assert!(matches!(told(&mut self.server), Event::Established { .. }));
        (client, server)
    }

    /// The client asks to end it: identifiers, and the DREQ.
    pub fn disconnecting(&mut self) -> (CommId, CommId, Mad) {
        let (client, server) = self.established();
        self.client.disconnect(self.now, client, b"").unwrap();
        (client, server, sent(&mut self.client))
    }

    /// Programs give up what they have, and nothing is left when all times have passed.
    #[track_caller]
    pub fn end(mut self, client: CommId, server: CommId) {
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
pub type Reach = fn(&mut Pair) -> (CommId, CommId);

pub fn until_asked(pair: &mut Pair) -> (CommId, CommId) {
    (pair.connect().0, 2 << 22 | 1)
}

pub fn until_requested(pair: &mut Pair) -> (CommId, CommId) {
    let (client, server, _) = pair.requested();
    (client, server)
}

pub fn until_accepted(pair: &mut Pair) -> (CommId, CommId) {
    let (client, server, _) = pair.accepted();
    (client, server)
}

pub fn until_replied(pair: &mut Pair) -> (CommId, CommId) {
    let (client, server, _) = pair.replied();
    (client, server)
}

pub fn until_established(pair: &mut Pair) -> (CommId, CommId) {
    pair.established()
}

pub fn until_disconnecting(pair: &mut Pair) -> (CommId, CommId) {
    let (client, server, _) = pair.disconnecting();
    (client, server)
}
