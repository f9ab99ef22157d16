//! Any sequence of packets into a QP, between posts, timeouts and full send buffers. The fuzz target `conversation` and the
//! bounded run in `crates/protocols/transport/tests/conversation.rs` call [`check`]. The rules are in the two hosts, which are all
//! that a QP can act on: [`sender`] and [`receiver`]; and at the end of [`Conversation::run`].

mod receiver;
mod script;
mod sender;

use std::sync::Arc;

use vervain_transport::{
    Flush, KeptRoom, KeptShare, Opcode, Request, Requester, RequesterConfig, Responder, ResponderConfig, Service,
    Window, send_flags,
};
use vervain_wire::{
    Aeth, AtomicEth, Bth, Deth, Headers, ICRC_LEN, MAX_HEADERS, Packet, Reth, VERVAIN, gaps, opcode, parse,
};

use receiver::Receiver;
use script::Script;
use sender::Sender;

const FIRST_PSN: u32 = 0xff_fffc;
const EXPECTED_PSN: u32 = 0xff_fffa;
const SRQN: u32 = 0x12_3456;
/// Room for kept packets.
const KEPT: u64 = 1 << 14;

/// Plays a script. Panics where a rule is broken.
pub fn check(script: &[u8]) {
    let mut script = Script::new(script);
    if let Some(conversation) = Conversation::new(&mut script) {
        conversation.run(&mut script);
    }
}

/// A QP and what it acts on.
struct Conversation {
    service: Service,
    /// The responder keeps packets there.
    room: Option<Arc<KeptShare>>,
    mtu: u32,
    now: u64,
    window: Window,
    requester: Requester,
    sender: Sender,
    responder: Responder,
    receiver: Receiver,
    /// Packets that the responder may have sent: one for each that it was given, reports of gaps, and what READs ask
    /// for.
    answers: u64,
}

impl Conversation {
    fn new(script: &mut Script<'_>) -> Option<Conversation> {
        let [service, mtu, reads, retries, credits] = script.bytes()?;
        let service = [Service::Rc, Service::Uc, Service::Xrc][usize::from(service % 3)];
        let (mtu_choice, mtu) = (mtu, [256, 1024, 4096][usize::from(mtu % 3)]);
        let requester = RequesterConfig {
            service,
            dest_qpn: 5,
            pkey: 0xffff,
            migrated: true,
            introduces: true,
            first_psn: FIRST_PSN,
            first_request: sender::FIRST_REQUEST,
            mtu,
            timeout: retries & 3,
            retry_cnt: retries >> 2 & 3,
            rnr_retry: retries >> 4 & 7,
            max_rd_atomic: reads & 3,
        };
        let responder = ResponderConfig {
            service,
            dest_qpn: 5,
            pkey: 0xffff,
            migrated: true,
            expected_psn: EXPECTED_PSN,
            mtu,
            max_dest_rd_atomic: reads >> 2 & 3,
            acks_first: false,
        };
        let most = u64::from(credits >> 1) << 10;
        let is_lossless = retries >> 7 != 0;
        let window = if is_lossless { Window::lossless(mtu, most) } else { Window::new(mtu, most) };
        let room = (mtu_choice > 127).then(|| Arc::new(KeptRoom::new(KEPT)).share());
        let mut responder = Responder::new(&responder);
        room.iter().for_each(|room| responder.keep_packets(room));
        Some(Conversation {
            service,
            room,
            mtu,
            now: 1,
            window,
            requester: Requester::new(&requester),
            sender: Sender::new(mtu),
            responder,
            receiver: Receiver::new(mtu, credits & 1 != 0),
            answers: 0,
        })
    }

    fn run(mut self, script: &mut Script<'_>) {
        while self.step(script).is_some() {
            self.poll();
        }
        // With room for everything, all that is due comes out, and no more than was asked for.
        (self.sender.room, self.receiver.room) = (u32::MAX, u32::MAX);
        self.poll();
        assert!(!self.responder.has_ack_due());
        assert!(self.receiver.sent <= self.answers, "{} packets where {} will do", self.receiver.sent, self.answers);
        assert_eq!(self.requester.has_ended(), self.sender.has_failed);
        assert_eq!(self.responder.has_ended(), self.receiver.has_failed);
        self.responder.drop_kept();
        assert!(self.room.is_none_or(|room| room.left() == KEPT));
        self.requester.abandon(&mut self.window);
        assert_eq!(self.window.in_flight(), 0);
    }

    /// One event; none at the end of the script.
    fn step(&mut self, script: &mut Script<'_>) -> Option<()> {
        match script.byte()? % 8 {
            0 | 1 => self.feed(&self.any_request(script)?),
            2 => self.feed(&self.any_response(script)?),
            3 => match script.byte()? % 2 {
                0 => self.feed(&self.any_response(script)?),
                _ => self.feed(&self.any_report(script)?),
            },
            4 => self.feed(script.piece()?),
            5 => self.post(script)?,
            6 => {
                self.now += 1 << (script.byte()? % 40);
                if self.requester.next_timeout().is_some_and(|due| due <= self.now) {
                    self.requester.handle_timeout(self.now, &mut self.window, &mut self.sender);
                }
            }
            _ => {
                let [receives, size, room] = script.bytes()?;
                self.receiver.post(receives % 8, self.length(size));
                self.sender.room = room.into();
                self.receiver.room = room.into();
            }
        }
        Some(())
    }

    /// Sends what can be sent.
    fn poll(&mut self) {
        self.requester.poll_transmit(self.now, &mut self.window, &mut self.sender);
        while self.responder.execute_kept(&mut self.receiver) {}
        while self.responder.poll_transmit(3, &mut self.receiver) {
            if self.receiver.room == 0 {
                break;
            }
        }
    }

    /// Both sides see every packet: which is whose is for them to say.
    fn feed(&mut self, datagram: &[u8]) {
        let Ok(packet) = parse(datagram) else { return };
        self.requester.handle_packet(self.now, &packet, &mut self.window, &mut self.sender);
        self.answers += self.worth(&packet);
        self.responder.handle_packet(&packet, &mut self.receiver);
    }

    /// Packets that may answer this one: of one that is kept behind a gap also the report of that.
    fn worth(&self, packet: &Packet<'_>) -> u64 {
        let bth = &packet.headers.bth;
        let reports = self.room.is_some() && bth.psn != self.responder.expected_psn();
        let answers = match packet.headers.reth {
            Some(reth) if opcode::operation(bth.opcode) == opcode::READ_REQUEST => {
                u64::from(reth.length / self.mtu) + 2
            }
            _ => 1,
        };
        answers + u64::from(reports)
    }

    /// Lengths at which something changes.
    fn length(&self, choice: u8) -> u32 {
        let mtu = self.mtu;
        let lengths = [0, 1, 4, 8, 13, mtu - 1, mtu, mtu + 4, mtu + 13, 2 * mtu, 3 * mtu + 13, 9 * mtu, 1 << 16];
        lengths[usize::from(choice) % lengths.len()]
    }

    fn service_bits(&self) -> u8 {
        match self.service {
            Service::Rc => opcode::RC,
            Service::Uc => opcode::UC,
            Service::Xrc => opcode::XRC,
        }
    }

    /// A request near the expected PSN, to memory near the end of the region.
    fn any_request(&self, script: &mut Script<'_>) -> Option<Vec<u8>> {
        let [operation, psn, flags, payload, length, key, at] = script.bytes()?;
        let length = if length == 255 { u32::MAX } else { self.length(length) };
        let addr = receiver::BASE + u64::from(self.length(at));
        let rkey = if key > 240 { key.into() } else { receiver::RKEY };
        let payload = self.length(payload);
        let headers = Headers {
            srqn: Some(SRQN),
            reth: Some(Reth { addr, rkey, length: if key & 1 != 0 { payload } else { length } }),
            atomic: Some(AtomicEth { addr, rkey, swap_add: 1, compare: 0 }),
            imm: Some([1, 2, 3, 4]),
            invalidate: Some(rkey),
            flush: Some((flags & 3, flags >> 2 & 3)),
            ..Headers::default()
        };
        Some(self.datagram(operation, near(self.responder.expected_psn(), psn), flags, payload, headers))
    }

    /// A response near the last PSN that was sent.
    fn any_response(&self, script: &mut Script<'_>) -> Option<Vec<u8>> {
        let [operation, psn, flags, payload, syndrome, msn] = script.bytes()?;
        let headers =
            Headers { aeth: Some(Aeth { syndrome, msn: near(0, msn) }), atomic_ack: Some(7), ..Headers::default() };
        let operation = if operation < 192 { opcode::READ_RESPONSE_FIRST + operation % 6 } else { operation };
        Some(self.datagram(operation, near(self.sender.last_psn, psn), flags, self.length(payload), headers))
    }

    /// A report near the last PSN that was sent, most often before it.
    fn any_report(&self, script: &mut Script<'_>) -> Option<Vec<u8>> {
        let [psn, syndrome, count] = script.bytes()?;
        let bth = Bth {
            opcode: opcode::GAPS,
            pkey: 0xffff,
            dest_qpn: 9,
            psn: near(self.sender.last_psn, psn),
            ..Bth::default()
        };
        let headers = Headers { bth, aeth: Some(Aeth { syndrome: syndrome & 0x1f, msn: 0 }), ..Headers::default() };
        let mut bytes = [0; MAX_HEADERS];
        let len = headers.emit(&mut bytes);
        let mut datagram = bytes[..len].to_vec();
        for _ in 0..count % 8 {
            let [missing, kept] = script.bytes()?;
            datagram.extend(gaps::Gap { missing: missing.into(), kept: kept.into() }.bytes());
        }
        datagram.extend([0; ICRC_LEN]);
        Some(datagram)
    }

    fn datagram(&self, operation: u8, psn: u32, flags: u8, payload: u32, mut headers: Headers) -> Vec<u8> {
        // Now and then one of another service.
        let opcode = if flags >> 4 == 15 { operation } else { self.service_bits() | opcode::operation(operation) };
        headers.deth = Some(Deth::default());
        let payload = match opcode::operation(opcode) {
            opcode::ATOMIC_WRITE => 8,
            _ if opcode::has_payload(opcode) => payload,
            _ => 0,
        };
        headers.bth = Bth {
            opcode,
            solicited: flags & 1 != 0,
            migration: true,
            pad: (payload.wrapping_neg() & 3) as u8,
            pkey: 0xffff,
            dest_qpn: 9,
            ack_request: flags & 2 != 0,
            mark: if flags & 4 != 0 { VERVAIN } else { 0 },
            psn,
        };
        sealed(&headers, payload)
    }

    fn post(&mut self, script: &mut Script<'_>) -> Option<()> {
        let [operation, length, flags] = script.bytes()?;
        let operations = [
            Opcode::Send,
            Opcode::SendImm,
            Opcode::SendInv,
            Opcode::Write,
            Opcode::WriteImm,
            Opcode::Read,
            Opcode::CompareSwap,
            Opcode::FetchAdd,
            Opcode::Flush,
            Opcode::AtomicWrite,
        ];
        let operation = operations[usize::from(operation) % operations.len()];
        let length = match operation {
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite => 8,
            _ if length == 255 => (1 << 31) + 1,
            _ => self.length(length).into(),
        };
        let request = Request {
            opcode: operation,
            length,
            remote_addr: receiver::BASE,
            rkey: receiver::RKEY,
            imm_or_rkey: 1,
            compare_add: 2,
            swap: 3,
            srqn: SRQN,
            flags: if flags & 1 != 0 { send_flags::FENCE } else { 0 }
                | if flags & 2 != 0 { send_flags::SOLICITED } else { 0 },
            flush: Flush { placement: 1, ..Flush::default() },
        };
        self.sender.post(request, flags > 250);
        Some(())
    }
}

/// A PSN, or MSN, up to 64 away; this one half of the time.
fn near(number: u32, distance: u8) -> u32 {
    let distance = if distance < 128 { 0 } else { i32::from(distance) - 192 };
    number.wrapping_add_signed(distance) & 0xff_ffff
}

/// A packet with these headers, `payload` bytes, padding, and room for an ICRC.
fn sealed(headers: &Headers, payload: u32) -> Vec<u8> {
    let mut bytes = [0; MAX_HEADERS];
    let len = headers.emit(&mut bytes);
    let mut datagram = bytes[..len].to_vec();
    datagram.resize(len + payload as usize + usize::from(headers.bth.pad) + ICRC_LEN, 0);
    datagram
}

/// What a host is given to send is a packet.
#[track_caller]
fn assert_well_formed(headers: &Headers, payload: u32, mtu: u32) {
    assert!(payload <= mtu);
    let datagram = sealed(headers, payload);
    let packet = parse(&datagram).unwrap();
    assert_eq!(packet.payload.len(), payload as usize);
    assert_eq!(packet.headers.bth, headers.bth);
    assert_eq!(datagram.len() % 4, 0);
}
