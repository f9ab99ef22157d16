//! A host that puts data where it belongs, and a requester and a responder with two of them, without a wire between.

use vervain_wire::{Bth, Headers, Packet, Reth, opcode};

use super::host::{BASE, Host, RKEY};
use super::pair::*;
use crate::*;

pub const MTU: usize = 1024;
/// Ten packets and a part of one.
pub const LENGTH: usize = 10 * MTU + 5;

/// Payload as it comes: of what has landed only the length is looked at by the protocol.
pub struct Arrived {
    pub bytes: Vec<u8>,
    pub landed: bool,
}

impl Data for Arrived {
    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn word(&self) -> Option<[u8; 8]> {
        self.bytes[..].try_into().ok()
    }

    fn has_landed(&self) -> bool {
        self.landed
    }
}

/// Operations and PSNs.
pub type Codes = Vec<(u8, u32)>;

/// A host whose packets stand for up to so many.
pub struct Placing {
    pub host: Host,
    pub at_once: u32,
    pub sent: Vec<(Headers, Arrived)>,
    pub asked: Vec<(u32, u64, u64)>,
    /// SRQs that receives were claimed from.
    pub claimed: Vec<u32>,
}

impl Placing {
    pub fn new(at_once: u32) -> Placing {
        Placing { host: Host::new(), at_once, sent: Vec::new(), asked: Vec::new(), claimed: Vec::new() }
    }

    fn push(&mut self, packet: &Transmit<'_>, bytes: Vec<u8>) -> Result<(), Refused> {
        let landed = self.at_once > 1 && !bytes.is_empty();
        self.sent.push((*packet.headers, Arrived { bytes, landed }));
        Ok(())
    }

    /// Operations and first PSNs of what was sent, counted from the first PSN.
    pub fn codes(&self) -> Codes {
        let of = |(headers, _): &(Headers, Arrived)| {
            (opcode::operation(headers.bth.opcode), psn::distance(FIRST_PSN, headers.bth.psn))
        };
        self.sent.iter().map(of).collect()
    }
}

impl RequesterHost for Placing {
    type Data = Arrived;

    fn request(&self, n: u32) -> Option<Request> {
        self.host.request(n)
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        let bytes = match packet.payload {
            Payload::Request { n, offset, len } => {
                self.host.requests[n as usize].1[offset as usize..][..len as usize].to_vec()
            }
            _ => Vec::new(),
        };
        self.push(packet, bytes)
    }

    fn landing(&self, left: u32) -> u32 {
        left.min(self.at_once)
    }

    fn asks(&mut self, n: u32, offset: u64, len: u64) {
        self.asked.push((n, offset, len));
    }

    fn deliver(&mut self, n: u32, offset: u64, data: &Arrived) -> Result<(), Refused> {
        self.host.deliver(n, offset, &data.bytes)
    }

    fn deliver_word(&mut self, n: u32, word: u64) -> Result<(), Refused> {
        self.host.deliver_word(n, word)
    }

    fn complete(&mut self, n: u32, status: Status) {
        RequesterHost::complete(&mut self.host, n, status);
    }
}

impl ResponderHost for Placing {
    type Data = Arrived;

    fn check(&mut self, srqn: u32, rkey: u32, addr: u64, len: u64, right: Right) -> Result<(), Nak> {
        self.host.check(srqn, rkey, addr, len, right)
    }

    fn write(&mut self, srqn: u32, rkey: u32, addr: u64, data: &Arrived, last: bool) -> Result<(), Nak> {
        self.host.write(srqn, rkey, addr, &data.bytes, last)
    }

    fn atomic(&mut self, srqn: u32, rkey: u32, addr: u64, compare: Option<u64>, swap_add: u64) -> Result<u64, Nak> {
        self.host.atomic(srqn, rkey, addr, compare, swap_add)
    }

    fn atomic_write(&mut self, srqn: u32, rkey: u32, addr: u64, value: u64) -> Result<(), Nak> {
        self.host.atomic_write(srqn, rkey, addr, value)
    }

    fn claim(&mut self, srqn: u32) -> Result<(u32, u64), Nak> {
        self.claimed.push(srqn);
        self.host.claim(srqn)
    }

    fn fill(&mut self, srqn: u32, receive: u32, offset: u64, data: &Arrived, last: bool) -> Result<(), Nak> {
        self.host.fill(srqn, receive, offset, &data.bytes, last)
    }

    fn invalidate(&mut self, srqn: u32, rkey: u32) -> Result<(), Nak> {
        self.host.invalidate(srqn, rkey)
    }

    fn complete(&mut self, srqn: u32, receive: u32, received: &Received) {
        ResponderHost::complete(&mut self.host, srqn, receive, received);
        *self.host.sent_before.last_mut().unwrap() = self.sent.len();
    }

    fn spoil(&mut self, srqn: u32, receive: u32, received: &Received, status: Status, nak: Nak) {
        self.host.spoil(srqn, receive, received, status, nak);
    }

    fn unclaim(&mut self, srqn: u32, receive: u32) {
        self.host.unclaim(srqn, receive);
    }

    fn fail(&mut self, nak: Nak) {
        self.host.fail(nak);
    }

    fn landing(&self, _psn: u32, left: u32) -> u32 {
        left.min(self.at_once)
    }

    fn credits(&mut self) -> Option<u32> {
        None
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        let bytes = match packet.payload {
            Payload::Memory { addr, len, .. } => self.host.memory[(addr - BASE) as usize..][..len as usize].to_vec(),
            _ => Vec::new(),
        };
        self.push(packet, bytes)
    }
}

/// A requester and a responder without a wire between them.
pub struct Ends {
    pub requester: Requester,
    pub window: Window,
    pub client: Placing,
    pub responder: Responder,
    pub server: Placing,
    pub now: Nanos,
    base: u8,
    /// The SRQ that the announced message and made up packets name.
    pub srqn: u32,
}

impl Ends {
    pub fn new(service: Service, at_once: u32) -> Ends {
        let acks_first = true;
        Ends {
            requester: Requester::new(&requester_config(service)),
            window: Window::lossless(MTU as u32, 1 << 22),
            client: Placing::new(at_once),
            responder: Responder::new(&ResponderConfig { acks_first, ..responder_config(service) }),
            server: Placing::new(at_once),
            now: 1_000_000,
            base: service.opcode_base(),
            srqn: 0,
        }
    }

    pub fn transmit(&mut self) {
        self.requester.poll_transmit(self.now, &mut self.window, &mut self.client);
    }

    /// Gives the responder what was sent, and the requester its answers; what each sent, as [`Placing::codes`].
    pub fn exchange(&mut self) -> (Codes, Codes) {
        let codes = self.client.codes();
        for (headers, payload) in std::mem::take(&mut self.client.sent) {
            self.responder.handle_packet(&Packet { headers, payload: &payload }, &mut self.server);
        }
        while self.responder.poll_transmit(3, &mut self.server) {}
        let answers = self.server.codes();
        for (headers, payload) in std::mem::take(&mut self.server.sent) {
            let packet = Packet { headers, payload: &payload };
            self.requester.handle_packet(self.now, &packet, &mut self.window, &mut self.client);
        }
        (codes, answers)
    }

    pub fn statuses(&self) -> Vec<Status> {
        self.client.host.completions.iter().map(|(_, status)| *status).collect()
    }

    pub fn announce(&mut self, code: u8, psn: u32, length: u64) -> Option<(u32, Target)> {
        let reth = opcode::is_write(code).then_some(Reth { addr: BASE, rkey: RKEY, length: length as u32 });
        let bth = Bth { opcode: self.base | code, psn: psn::add(FIRST_PSN, psn), ..Bth::default() };
        let headers = self.headers(bth, reth);
        self.responder.announce(&headers, length, &mut self.server)
    }

    /// A packet of a SEND that the peer may have made up.
    pub fn send(&mut self, code: u8, psn: u32, bytes: usize, landed: bool) {
        let bth = Bth { opcode: self.base | code, psn: psn::add(FIRST_PSN, psn), ..Bth::default() };
        let payload = Arrived { bytes: vec![7; bytes], landed };
        let headers = self.headers(bth, None);
        self.responder.handle_packet(&Packet { headers, payload: &payload }, &mut self.server);
        self.responder.poll_transmit(3, &mut self.server);
    }

    fn headers(&self, bth: Bth, reth: Option<Reth>) -> Headers {
        let srqn = (self.base == opcode::XRC).then_some(self.srqn);
        Headers { bth, reth, srqn, ..Headers::default() }
    }
}
