//! Messages whose data is put where it belongs: announced, and sent as one packet that stands for many.

use vervain_wire::{Aeth, Bth, Headers, Packet, aeth, opcode};

use super::host::{BASE, Host, RKEY};
use super::pair::*;
use crate::*;

const MTU: usize = 1024;
/// Ten packets and a part of one.
const LENGTH: usize = 10 * MTU + 5;

/// Payload as it comes: of what has landed only the length is looked at by the protocol.
struct Arrived {
    bytes: Vec<u8>,
    landed: bool,
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
type Codes = Vec<(u8, u32)>;

/// A host whose packets stand for up to so many.
struct Placing {
    host: Host,
    at_once: u32,
    sent: Vec<(Headers, Arrived)>,
    asked: Vec<(u32, u64, u64)>,
}

impl Placing {
    fn new(at_once: u32) -> Placing {
        Placing { host: Host::new(), at_once, sent: Vec::new(), asked: Vec::new() }
    }

    fn push(&mut self, packet: &Transmit<'_>, bytes: Vec<u8>) -> Result<(), Refused> {
        let landed = self.at_once > 1 && !bytes.is_empty();
        self.sent.push((*packet.headers, Arrived { bytes, landed }));
        Ok(())
    }

    /// Operations and first PSNs of what was sent, counted from the first PSN.
    fn codes(&self) -> Codes {
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

    fn check(&mut self, srqn: u32, rkey: u32, addr: u64, len: u64, access: Access) -> Result<(), Nak> {
        self.host.check(srqn, rkey, addr, len, access)
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
struct Ends {
    requester: Requester,
    window: Window,
    client: Placing,
    responder: Responder,
    server: Placing,
    now: Nanos,
}

impl Ends {
    fn new(service: Service, at_once: u32) -> Ends {
        let acks_first = true;
        Ends {
            requester: Requester::new(&requester_config(service)),
            window: Window::lossless(MTU as u32, 1 << 22),
            client: Placing::new(at_once),
            responder: Responder::new(&ResponderConfig { acks_first, ..responder_config(service) }),
            server: Placing::new(at_once),
            now: 1_000_000,
        }
    }

    fn transmit(&mut self) {
        self.requester.poll_transmit(self.now, &mut self.window, &mut self.client);
    }

    /// Gives the responder what was sent, and the requester its answers; what each sent, as [`Placing::codes`].
    fn exchange(&mut self) -> (Codes, Codes) {
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

    fn statuses(&self) -> Vec<Status> {
        self.client.host.completions.iter().map(|(_, status)| *status).collect()
    }

    fn announce(&mut self, code: u8, psn: u32, length: u64) -> Option<(u32, Target)> {
        let reth =
            opcode::is_write(code).then_some(vervain_wire::Reth { addr: BASE, rkey: RKEY, length: length as u32 });
        let bth = Bth { opcode: opcode::RC | code, psn: psn::add(FIRST_PSN, psn), ..Bth::default() };
        self.responder.announce(&Headers { bth, reth, ..Headers::default() }, length, &mut self.server)
    }

    /// A packet of a SEND that the peer may have made up.
    fn send(&mut self, code: u8, psn: u32, bytes: usize, landed: bool) {
        let bth = Bth { opcode: opcode::RC | code, psn: psn::add(FIRST_PSN, psn), ..Bth::default() };
        let payload = Arrived { bytes: vec![7; bytes], landed };
        let headers = Headers { bth, ..Headers::default() };
        self.responder.handle_packet(&Packet { headers, payload: &payload }, &mut self.server);
        self.responder.poll_transmit(3, &mut self.server);
    }
}

#[test]
fn a_message_that_is_put_goes_in_few_packets_and_takes_the_psns_of_all() {
    for service in [Service::Rc, Service::Xrc, Service::Uc] {
        for (at_once, packets) in [(64, 1), (4, 3)] {
            for operation in [Operation::Send, Operation::SendImm, Operation::Write, Operation::WriteImm] {
                let mut ends = Ends::new(service, at_once);
                let data = pattern(LENGTH, 3);
                ends.server.host.posted.extend([1 << 20; 2]);
                ends.client.host.post(operation, &data, |_| ());
                ends.client.host.post(Operation::Send, b"behind", |_| ());
                ends.transmit();
                let (sent, answered) = ends.exchange();
                let what = format!("{service:?} {operation:?} {at_once}");
                assert_eq!(sent.len(), packets + 1, "{what}");
                assert_eq!(sent.last(), Some(&(opcode::SEND_ONLY, 11)), "{what}: 11 packets were before");
                assert_eq!(ends.responder.expected_psn(), psn::add(FIRST_PSN, 12), "{what}");
                assert_eq!(ends.statuses(), [Status::Success; 2], "{what}");
                if operation == Operation::Send || operation == Operation::SendImm {
                    assert_eq!(ends.server.host.receives[0].data, data, "{what}");
                } else {
                    assert_eq!(ends.server.host.memory[..LENGTH], data, "{what}");
                }
                if service != Service::Uc && operation == Operation::Send {
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
    ends.client.host.post(Operation::WriteImm, &pattern(LENGTH, 1), |_| ());
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
    ends.client.host.post(Operation::Write, b"a write", |_| ());
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
    ends.client.host.post(Operation::Read, &[], |r| r.length = 5 * MTU as u64);
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
        ends.client.host.post(Operation::Read, &[], |r| r.length = LENGTH as u64);
        ends.client.host.post(Operation::Read, &[], |r| r.length = 8);
        ends.transmit();
        // Of short ones nothing is said.
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
        ends.client.host.post(Operation::Read, &[], |r| r.length = LENGTH as u64);
        ends.transmit();
        let bth = Bth { opcode: opcode::RC | opcode::READ_RESPONSE_ONLY, psn: FIRST_PSN, ..Bth::default() };
        let aeth = Some(Aeth { syndrome: aeth::Syndrome::Ack(31).encode(), msn: 1 });
        let payload = Arrived { bytes: vec![1; bytes], landed: true };
        let packet = Packet { headers: Headers { bth, aeth, ..Headers::default() }, payload: &payload };
        ends.requester.handle_packet(ends.now, &packet, &mut ends.window, &mut ends.client);
        assert_eq!(ends.statuses(), [status], "{bytes} bytes");
    }
}
