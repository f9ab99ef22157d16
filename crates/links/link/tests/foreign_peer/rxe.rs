//! A device that is not Vervain's, as a plain socket: it sends like the kernel's rxe, and accepts answers like it
//! (rxe's completer takes an acknowledgement with the PSN of a READ or atomic for its end). Its requests may be sent in
//! any order and any number of times.

use super::forge::{emit, seal};
use super::side::Side;
use super::world::{FIRST_PSN, HERE, MTU};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use vervain_wire::aeth::{NO_CREDIT_LIMIT, NakCode, Syndrome};
use vervain_wire::{Aeth, AtomicEth, Bth, Headers, Reth, UDP_PORT, opcode, parse};

pub const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
pub const THEIR_QPN: u32 = 0x11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    Write,
    Read,
    FetchAdd,
}

/// A request of its own.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: Kind,
    /// Counted from the first of the connection.
    pub first: u32,
    pub packets: u32,
    pub length: u32,
    addr: u64,
    rkey: u32,
    /// Result of a READ or atomic.
    pub data: Vec<u8>,
    pub done: bool,
}

pub struct Rxe {
    socket: UdpSocket,
    to: u32,
    pub requests: Vec<Request>,
    next: u32,
    /// Adapters set MigReq, rxe does not.
    pub migration: bool,
    /// An answer shows that something has been lost.
    pub goes_back: bool,
}

fn psn(packet: u32) -> u32 {
    (FIRST_PSN + packet) & 0xff_ffff
}

impl Request {
    fn last(&self) -> u32 {
        self.first + self.packets - 1
    }

    pub fn is_answered(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::FetchAdd)
    }
}

impl Rxe {
    pub fn new(peer: &Side) -> Rxe {
        let socket = UdpSocket::bind((THERE, UDP_PORT)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let to = peer.qp.qp_num();
        Rxe { socket, to, requests: Vec::new(), next: 0, migration: false, goes_back: false }
    }

    /// A request that is yet to be sent.
    pub fn post(&mut self, kind: Kind, length: u32, addr: u64, rkey: u32) -> usize {
        let packets = if kind == Kind::FetchAdd { 1 } else { length.div_ceil(MTU as u32).max(1) };
        let request = Request { kind, first: self.next, packets, length, addr, rkey, data: Vec::new(), done: false };
        self.next += packets;
        self.requests.push(request);
        self.requests.len() - 1
    }

    /// The packets of request `n`; of a READ the part that has not come.
    pub fn packets(&self, n: usize) -> Vec<Vec<u8>> {
        let request = &self.requests[n];
        let (first, last) = match request.kind {
            Kind::Read | Kind::FetchAdd => (0, 0),
            _ => (0, request.packets - 1),
        };
        (first..=last).map(|packet| self.packet(request, packet, last)).collect()
    }

    fn packet(&self, request: &Request, packet: u32, last: u32) -> Vec<u8> {
        let (is_first, is_last) = (packet == 0, packet == last);
        let operation = match (request.kind, is_first, is_last) {
            (Kind::Read, ..) => opcode::READ_REQUEST,
            (Kind::FetchAdd, ..) => opcode::FETCH_ADD,
            (Kind::Send, true, true) => opcode::SEND_ONLY,
            (Kind::Send, true, false) => opcode::SEND_FIRST,
            (Kind::Send, false, false) => opcode::SEND_MIDDLE,
            (Kind::Send, false, true) => opcode::SEND_LAST,
            (Kind::Write, true, true) => opcode::WRITE_ONLY,
            (Kind::Write, true, false) => opcode::WRITE_FIRST,
            (Kind::Write, false, false) => opcode::WRITE_MIDDLE,
            (Kind::Write, false, true) => opcode::WRITE_LAST,
        };
        let come = if request.kind == Kind::Read { request.data.len() as u32 } else { 0 };
        let bth = Bth {
            opcode: opcode::RC | operation,
            migration: self.migration,
            pkey: 0xffff,
            dest_qpn: self.to,
            // rxe asks with the last packet of a message.
            ack_request: is_last,
            psn: psn(request.first + packet + come / MTU as u32),
            ..Bth::default()
        };
        let (addr, rkey) = (request.addr + u64::from(come), request.rkey);
        let headers = Headers {
            bth,
            reth: Some(Reth { addr, rkey, length: request.length - come }),
            atomic: Some(AtomicEth { addr, rkey, swap_add: 1, compare: 0 }),
            ..Headers::default()
        };
        let payload = match request.is_answered() {
            true => 0,
            false => (request.length - packet * MTU as u32).min(MTU as u32),
        };
        emit(&headers, payload as usize)
    }

    pub fn send(&self, packet: &[u8]) {
        let mut bytes = packet.to_vec();
        seal(&mut bytes, self.socket.local_addr().unwrap());
        self.socket.send_to(&bytes, (HERE, UDP_PORT)).unwrap();
    }

    /// Acknowledges a packet of the peer's.
    pub fn acknowledge(&self, psn: u32) {
        let bth = Bth { opcode: opcode::ACKNOWLEDGE, pkey: 0xffff, dest_qpn: self.to, psn, ..Bth::default() };
        let aeth = Aeth { syndrome: Syndrome::Ack(NO_CREDIT_LIMIT).encode(), msn: 0 };
        self.send(&emit(&Headers { bth, aeth: Some(aeth), ..Headers::default() }, 0));
    }

    /// The next packet that has come, if there is one.
    pub fn receive(&self) -> Option<(Headers, Vec<u8>)> {
        let mut room = [0; 8192];
        let (n, from) = self.socket.recv_from(&mut room).ok()?;
        assert_eq!(from.ip(), HERE);
        assert!(matches!(from, SocketAddr::V4(_)));
        let packet = parse(&room[..n]).expect("a packet");
        Some((packet.headers, packet.payload.to_vec()))
    }

    /// Takes an answer as rxe does.
    pub fn take(&mut self, headers: &Headers, payload: &[u8]) {
        let bth = &headers.bth;
        let answered = (bth.psn.wrapping_sub(FIRST_PSN)) & 0xff_ffff;
        let is_plain = opcode::operation(bth.opcode) == opcode::ACKNOWLEDGE;
        let refused = match headers.aeth.map(|aeth| Syndrome::decode(aeth.syndrome)) {
            Some(Some(Syndrome::Nak(code))) => {
                assert_eq!(code, NakCode::Sequence, "{headers:?}");
                true
            }
            Some(Some(Syndrome::RnrNak(_))) => panic!("there are receives: {headers:?}"),
            _ => false,
        };
        self.goes_back |= refused;
        for request in self.requests.iter_mut().filter(|request| !request.done) {
            let (first, last) = (request.first, request.last());
            if answered < first || refused && answered == first {
                return;
            }
            if !request.is_answered() {
                if answered < last || refused && answered == last {
                    return;
                }
                request.done = true;
                continue;
            }
            if answered > last {
                // An answer to a later one shows that this one's is lost.
                self.goes_back = true;
                return;
            }
            assert!(!is_plain, "{answered} acknowledged is taken for the answer to a {:?} at {first}", request.kind);
            if let Some(word) = headers.atomic_ack {
                request.data = word.to_ne_bytes().to_vec();
                request.done = true;
            } else if answered == first + (request.data.len() / MTU) as u32 {
                request.data.extend_from_slice(payload);
                request.done = request.data.len() == request.length as usize;
            }
            return;
        }
    }
}
