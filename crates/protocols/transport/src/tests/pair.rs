//! One requester and one responder with a wire between them that a test may cut packet by packet, in virtual time.

use std::sync::Arc;

use vervain_wire::{Packet, TAKES_GAPS, opcode};

use super::host::{BASE, Host, parsed};
use crate::*;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    Request,
    Response,
}

pub struct Pair {
    pub now: Nanos,
    /// Time that a packet takes.
    pub one_way: Nanos,
    pub requester: Requester,
    pub window: Window,
    pub client: Host,
    pub responder: Responder,
    pub server: Host,
    /// Every packet that was sent, as way, operation and PSN.
    pub log: Vec<(Way, u8, u32)>,
    /// The responder keeps packets there if the requester shows that it takes reports. None: it keeps none.
    pub room: Option<Arc<KeptShare>>,
}

/// PSNs begin close to their wrap, as those of the captures.
pub const FIRST_PSN: u32 = 0xff_fff0;
pub const ONE_WAY: Nanos = 10_000;

pub fn requester_config(service: Service) -> RequesterConfig {
    RequesterConfig {
        service,
        dest_qpn: 0x11,
        pkey: 0xffff,
        // The value of rxe, whose captures are replayed.
        migrated: false,
        introduces: false,
        first_psn: FIRST_PSN,
        first_request: 0,
        mtu: 1024,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
    }
}

pub fn responder_config(service: Service) -> ResponderConfig {
    ResponderConfig {
        service,
        dest_qpn: 0x12,
        pkey: 0xffff,
        migrated: false,
        expected_psn: FIRST_PSN,
        mtu: 1024,
        max_dest_rd_atomic: 16,
        acks_first: false,
    }
}

impl Pair {
    pub fn new(service: Service) -> Pair {
        Pair::with(&requester_config(service), &responder_config(service))
    }

    pub fn with(requester: &RequesterConfig, responder: &ResponderConfig) -> Pair {
        Pair {
            now: 1_000_000,
            one_way: ONE_WAY,
            requester: Requester::new(requester),
            window: Window::new(requester.mtu, 1 << 20),
            client: Host::new(),
            responder: Responder::new(responder),
            server: Host::new(),
            log: Vec::new(),
            room: None,
        }
    }

    pub fn transmit(&mut self) -> Sent {
        self.requester.poll_transmit(self.now, &mut self.window, &mut self.client)
    }

    /// Two that speak of gaps, after the requests by which they have shown it.
    pub fn speaking() -> Pair {
        let config = RequesterConfig { introduces: true, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&config, &responder_config(Service::Rc));
        pair.room = Some(share_of(1 << 20));
        for _ in 0..2 {
            pair.client.post(Opcode::Write, b"shows it", |r| r.remote_addr = BASE + (1 << 20) - 8);
            pair.run(all);
        }
        pair.log.clear();
        pair
    }

    /// Gives the responder a request, as a link does.
    pub fn arrives(&mut self, packet: &Packet<'_>) {
        match self.room.as_ref().filter(|_| packet.headers.bth.mark == TAKES_GAPS) {
            Some(room) => self.responder.handle_introduction(packet, &mut self.server, room),
            None => self.responder.handle_packet(packet, &mut self.server),
        }
    }

    /// Gives the requester what the responder has sent.
    pub fn take_answers(&mut self) {
        for bytes in self.server.wire.drain(..) {
            self.requester.handle_packet(self.now, &parsed(&bytes), &mut self.window, &mut self.client);
        }
    }

    /// Carries everything that is sent until both are silent. `keep` may lose packets.
    pub fn run(&mut self, mut keep: impl FnMut(Way, &Packet<'_>) -> bool) {
        loop {
            self.transmit();
            let requests: Vec<_> = self.client.wire.drain(..).collect();
            for bytes in &requests {
                let packet = parsed(bytes);
                let bth = &packet.headers.bth;
                self.log.push((Way::Request, opcode::operation(bth.opcode), bth.psn));
                if keep(Way::Request, &packet) {
                    self.arrives(&packet);
                }
            }
            self.now += self.one_way;
            while self.responder.execute_kept(&mut self.server) {}
            while self.responder.poll_transmit(3, &mut self.server) && self.server.room > 0 {}
            let responses: Vec<_> = self.server.wire.drain(..).collect();
            self.now += self.one_way;
            for bytes in &responses {
                let packet = parsed(bytes);
                let bth = &packet.headers.bth;
                let code = if bth.opcode == opcode::GAPS { bth.opcode } else { opcode::operation(bth.opcode) };
                self.log.push((Way::Response, code, bth.psn));
                if keep(Way::Response, &packet) {
                    self.requester.handle_packet(self.now, &packet, &mut self.window, &mut self.client);
                }
            }
            if requests.is_empty() && responses.is_empty() {
                return;
            }
        }
    }

    /// Lets time pass to the next deadline; whether there was one.
    pub fn wait(&mut self) -> bool {
        let Some(at) = self.requester.next_timeout() else { return false };
        self.now = self.now.max(at);
        self.requester.handle_timeout(self.now, &mut self.window, &mut self.client);
        true
    }

    /// Runs, and waits where nothing happens, until all is done.
    pub fn finish(&mut self, mut keep: impl FnMut(Way, &Packet<'_>) -> bool) {
        for _ in 0..10_000 {
            self.run(&mut keep);
            if !self.wait() {
                assert_eq!(self.window.in_flight(), 0);
                return;
            }
        }
        panic!("it does not come to an end: {:?}", self.requester);
    }

    pub fn sent(&self, way: Way, operation: u8) -> usize {
        self.log.iter().filter(|entry| entry.0 == way && entry.1 == operation).count()
    }

    pub fn statuses(&self) -> Vec<Status> {
        self.client.completions.iter().map(|completion| completion.1).collect()
    }
}

/// The share of the only peer, in room for `bytes`.
pub fn share_of(bytes: u64) -> Arc<KeptShare> {
    Arc::new(KeptRoom::new(bytes)).share()
}

/// Loses nothing.
pub fn all(_: Way, _: &Packet<'_>) -> bool {
    true
}

/// Loses the first packet that `what` says.
pub fn lose_once(what: impl Fn(Way, u8, u32) -> bool) -> impl FnMut(Way, &Packet<'_>) -> bool {
    let mut lost = false;
    move |way, packet| {
        let bth = &packet.headers.bth;
        let hit = !lost && what(way, opcode::operation(bth.opcode), bth.psn);
        lost |= hit;
        !hit
    }
}

/// Bytes that tell positions apart.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

/// The PSN of packet `packet`.
pub fn at(packet: u32) -> u32 {
    psn::add(FIRST_PSN, packet)
}

/// An ACK or NAK by hand.
pub fn acknowledge(psn: u32, syndrome: u8) -> Vec<u8> {
    let mut bytes = vec![opcode::ACKNOWLEDGE, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0];
    bytes.extend_from_slice(&psn.to_be_bytes()[1..]);
    bytes.extend_from_slice(&[syndrome, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// The packets of one request each, as the requester sends them.
pub fn requests(pair: &mut Pair) -> Vec<Vec<u8>> {
    pair.transmit();
    pair.client.wire.drain(..).collect()
}

/// The responder's answers to `bytes`, as operation and PSN.
pub fn replies<'a>(pair: &mut Pair, packets: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<(u8, u32)> {
    packets.into_iter().for_each(|bytes| pair.arrives(&parsed(bytes)));
    while pair.responder.poll_transmit(1, &mut pair.server) {}
    pair.server.sent().into_iter().map(|(code, psn, _)| (code, psn)).collect()
}

/// A READ request by hand: packet and bytes of the first READ, `len` of them.
pub fn read_part(first: &[u8], packet: u32, len: u32) -> Vec<u8> {
    let mut bytes = first.to_vec();
    bytes[9..12].copy_from_slice(&at(packet).to_be_bytes()[1..]);
    bytes[12..20].copy_from_slice(&(BASE + u64::from(packet) * 1024).to_be_bytes());
    bytes[24..28].copy_from_slice(&len.to_be_bytes());
    bytes
}
