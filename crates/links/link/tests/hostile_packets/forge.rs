//! Packets as an enemy would make them. Each comes with the counter that has to account for it.

use super::world::{FIRST_PSN, HERE, MTU, QKEY, World};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use vervain_hca::QpType;
use vervain_hca::arena::layout::{INDEX_BITS, PER_SLOT, slot_of};
use vervain_wire::icrc::Flow;
use vervain_wire::{Aeth, AtomicEth, Bth, Deth, Headers, MAX_HEADERS, Reth, UDP_PORT, opcode, parse};

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    BadIcrc,
    Malformed,
    Unwanted,
    BadQkey,
    Unowned,
    /// At a responder.
    Duplicate,
    /// At a responder, a duplicate that is not answered.
    Ghost,
    OutOfSequence,
    Dropped,
    /// At a requester.
    Stale,
}

/// A packet that has not been sent.
#[derive(Clone, Debug)]
pub struct Forged {
    pub from: SocketAddr,
    pub bytes: Vec<u8>,
    pub fate: Fate,
}

/// xorshift64*: the seed is all that a failure needs to be seen again.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u32) -> u32 {
        (((self.next() >> 32) * u64::from(n)) >> 32) as u32
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]));
    }
}

/// A live pair, as far as its enemy may know it: everything.
#[derive(Clone, Copy)]
pub struct Mark {
    kind: QpType,
    base: u8,
    pub a: u32,
    pub b: u32,
    pub expected: u32,
    pub addr: u64,
    pub rkey: u32,
    srqn: u32,
}

pub struct Forger {
    pub rng: Rng,
    marks: Vec<Mark>,
    /// Addresses of no QP's peer, and of the peer of all.
    strangers: Vec<SocketAddr>,
    peers: Vec<SocketAddr>,
    slot: u32,
    golden: Vec<Vec<u8>>,
}

const RELIABLE: [u8; 10] = [
    opcode::SEND_ONLY,
    opcode::SEND_ONLY_IMM,
    opcode::SEND_FIRST,
    opcode::WRITE_ONLY,
    opcode::WRITE_ONLY_IMM,
    opcode::WRITE_FIRST,
    opcode::READ_REQUEST,
    opcode::COMPARE_SWAP,
    opcode::FETCH_ADD,
    opcode::ATOMIC_WRITE,
];

impl Mark {
    pub fn of(world: &World, kind: QpType) -> Mark {
        let pair = world.pair(kind);
        let base = match kind {
            QpType::Uc => opcode::UC,
            QpType::Ud => opcode::UD,
            QpType::XrcSend => opcode::XRC,
            _ => opcode::RC,
        };
        Mark {
            kind,
            base,
            a: pair.a.qp_num(),
            b: pair.b.qp_num(),
            expected: pair.expected_psn(),
            addr: pair.memory.addr(),
            rkey: pair.memory.mr.rkey(),
            srqn: pair.srqn(),
        }
    }

    fn all(world: &World) -> Vec<Mark> {
        world.pairs.iter().map(|pair| Mark::of(world, pair.kind)).collect()
    }

    /// A request that `b` executes if it comes from its peer; what it writes is not what is there.
    pub fn request(&self, operation: u8, psn: u32) -> Vec<u8> {
        let payload = match operation {
            opcode::SEND_FIRST | opcode::WRITE_FIRST => MTU,
            opcode::READ_REQUEST | opcode::COMPARE_SWAP | opcode::FETCH_ADD => 0,
            opcode::ATOMIC_WRITE => 8,
            _ => 24,
        };
        let length = match operation {
            opcode::WRITE_FIRST => 2 * MTU as u32,
            opcode::READ_REQUEST => 256,
            _ => payload as u32,
        };
        let headers = self.headers(operation, psn, length);
        emit(&headers, payload)
    }

    pub fn headers(&self, operation: u8, psn: u32, length: u32) -> Headers {
        Headers {
            bth: Bth {
                opcode: self.base | operation,
                pkey: 0xffff,
                dest_qpn: self.b,
                psn: psn & 0xff_ffff,
                ack_request: true,
                ..Bth::default()
            },
            srqn: Some(self.srqn),
            deth: Some(Deth { qkey: QKEY, source_qpn: self.a }),
            reth: Some(Reth { addr: self.addr, rkey: self.rkey, length }),
            atomic: Some(AtomicEth { addr: self.addr, rkey: self.rkey, swap_add: 1, compare: 0 }),
            imm: Some([1, 2, 3, 4]),
            ..Headers::default()
        }
    }
}

/// Headers and a payload of zeros, without the ICRC.
pub fn emit(headers: &Headers, payload: usize) -> Vec<u8> {
    let mut room = [0; MAX_HEADERS];
    let n = headers.emit(&mut room);
    let mut bytes = Vec::with_capacity(n + payload + 4);
    bytes.extend_from_slice(&room[..n]);
    bytes.resize(n + payload, 0);
    bytes
}

pub fn flow(from: SocketAddr) -> Flow {
    let (SocketAddr::V4(from), IpAddr::V4(to)) = (from, HERE) else { panic!("IPv4 only") };
    Flow::v4((*from.ip(), from.port()), (to, UDP_PORT))
}

/// Appends the ICRC that is right for this sender.
pub fn seal(bytes: &mut Vec<u8>, from: SocketAddr) {
    let icrc = flow(from).icrc(0, bytes);
    bytes.extend_from_slice(&icrc);
}

/// Makes the ICRC wrong for every IPv4 identification.
fn spoil(bytes: &mut [u8], from: SocketAddr, rng: &mut Rng) {
    let end = bytes.len();
    while flow(from).verify(0, bytes).is_some() {
        rng.fill(&mut bytes[end - 4..]);
    }
}

impl Forger {
    pub fn new(world: &World, seed: u64, golden: Vec<Vec<u8>>) -> Forger {
        let marks = Mark::all(world);
        let at = |a, b, port| SocketAddr::from((Ipv4Addr::new(a, 0, 0, b), port));
        Forger {
            rng: Rng(seed),
            slot: slot_of(marks[0].b),
            marks,
            strangers: vec![at(127, 2, 0xc000), at(10, 1, UDP_PORT), at(127, 255, 4792)],
            peers: vec![at(127, 1, 0xc001), at(127, 1, UDP_PORT)],
            golden,
        }
    }

    /// Learns which PSNs are expected now.
    pub fn look(&mut self, world: &World) {
        self.marks = Mark::all(world);
    }

    /// Makes packets come from these addresses only.
    pub fn from(mut self, stranger: SocketAddr, peer: SocketAddr) -> Forger {
        (self.strangers, self.peers) = (vec![stranger], vec![peer]);
        self
    }

    fn mark(&mut self, fits: impl Fn(&Mark) -> bool) -> Mark {
        loop {
            let mark = self.rng.pick(&self.marks);
            if fits(&mark) {
                return mark;
            }
        }
    }

    fn operation(&mut self, mark: &Mark) -> u8 {
        match mark.kind {
            QpType::Ud => self.rng.pick(&RELIABLE[..2]),
            QpType::Uc => self.rng.pick(&RELIABLE[..6]),
            _ => self.rng.pick(&RELIABLE),
        }
    }

    fn tempting(&mut self, fits: impl Fn(&Mark) -> bool) -> (Mark, Vec<u8>) {
        let mark = self.mark(fits);
        let operation = self.operation(&mark);
        (mark, mark.request(operation, mark.expected))
    }

    fn peer(&mut self) -> SocketAddr {
        self.rng.pick(&self.peers)
    }

    fn anyone(&mut self) -> SocketAddr {
        if self.rng.below(2) == 0 { self.peer() } else { self.rng.pick(&self.strangers) }
    }

    fn sealed(&mut self, from: SocketAddr, mut bytes: Vec<u8>, fate: Fate) -> Forged {
        seal(&mut bytes, from);
        Forged { from, bytes, fate }
    }

    /// Sets the destination QPN.
    fn aim(bytes: &mut [u8], qpn: u32) {
        bytes[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    }

    /// A packet that nothing but a counter may notice. With `strays` some are for processes that are not there.
    pub fn refused(&mut self, strays: bool) -> Forged {
        match self.rng.below(if strays { 17 } else { 16 }) {
            0 => self.random_bytes(strays),
            1 => self.wrong_icrc(),
            2 => {
                let from = self.rng.pick(&self.strangers);
                let (_, bytes) = self.tempting(|mark| mark.kind != QpType::Ud);
                self.sealed(from, bytes, Fate::Unwanted)
            }
            3 => {
                let (from, qpn) = (self.peer(), self.nobody());
                let (_, mut bytes) = self.tempting(|_| true);
                Self::aim(&mut bytes, qpn);
                self.sealed(from, bytes, Fate::Unwanted)
            }
            4 => self.of_another_service(),
            5 => {
                let (from, reserved) = (self.peer(), self.rng.pick(&[0x40, 0x55, 0xc0, 0xff, 0x15, 0x78]));
                let (_, mut bytes) = self.tempting(|_| true);
                bytes[0] = reserved;
                self.sealed(from, bytes, Fate::Malformed)
            }
            6 => {
                let (from, version) = (self.peer(), 1 + self.rng.below(15) as u8);
                let (_, mut bytes) = self.tempting(|_| true);
                bytes[1] |= version;
                self.sealed(from, bytes, Fate::Malformed)
            }
            7 => {
                let (from, more) = (self.peer(), 1 + self.rng.below(3) as usize);
                let (_, mut bytes) = self.tempting(|_| true);
                bytes.resize(bytes.len() + more, 0);
                self.sealed(from, bytes, Fate::Malformed)
            }
            8 => {
                // More padding than payload.
                let (from, mark, pad) = (self.peer(), self.mark(|_| true), 1 + self.rng.below(3) as u8);
                let mut bytes = emit(&mark.headers(opcode::SEND_ONLY, mark.expected, 0), 0);
                bytes[1] |= pad << 4;
                self.sealed(from, bytes, Fate::Malformed)
            }
            9 => {
                // Cut off within the headers.
                let (from, mark) = (self.peer(), self.mark(|mark| mark.kind != QpType::Ud));
                let mut bytes = emit(&mark.headers(opcode::WRITE_ONLY, mark.expected, 0), 0);
                bytes.truncate(12 + 4 * self.rng.below(4) as usize);
                self.sealed(from, bytes, Fate::Malformed)
            }
            10 => {
                let (from, mark) = (self.peer(), self.mark(|mark| matches!(mark.kind, QpType::Rc | QpType::XrcSend)));
                let bytes = emit(&mark.headers(opcode::READ_REQUEST, mark.expected, 64), 4);
                self.sealed(from, bytes, Fate::Malformed)
            }
            11 if self.rng.below(8) == 0 => {
                // Larger than any path MTU.
                let (from, mark) = (self.peer(), self.mark(|_| true));
                let bytes =
                    emit(&mark.headers(opcode::SEND_ONLY, mark.expected, 0), 4100 + 4 * self.rng.below(512) as usize);
                self.sealed(from, bytes, Fate::Malformed)
            }
            11 | 12 => {
                let (from, pkey) = (self.peer(), self.rng.pick(&[0x7ffe_u16, 0, 0x8000, 0x1234, 0xfffe]));
                let (_, mut bytes) = self.tempting(|_| true);
                bytes[2..4].copy_from_slice(&pkey.to_be_bytes());
                self.sealed(from, bytes, Fate::Unwanted)
            }
            13 => {
                let (from, mark) = (self.anyone(), self.mark(|mark| mark.kind == QpType::Ud));
                let mut headers = mark.headers(opcode::SEND_ONLY, mark.expected, 0);
                headers.deth = Some(Deth { qkey: QKEY ^ 1 << self.rng.below(32), source_qpn: mark.a });
                self.sealed(from, emit(&headers, 24), Fate::BadQkey)
            }
            14 => {
                // A request to an XRC initiator, a response to an XRC target.
                let (from, mark) = (self.peer(), self.mark(|mark| mark.kind == QpType::XrcSend));
                let operation = self.rng.pick(&[opcode::ACKNOWLEDGE, opcode::SEND_ONLY, opcode::READ_REQUEST]);
                let mut headers = mark.headers(operation, mark.expected, 64);
                if operation != opcode::ACKNOWLEDGE {
                    headers.bth.dest_qpn = mark.a;
                }
                self.sealed(from, emit(&headers, 0), Fate::Unwanted)
            }
            15 => self.golden(),
            _ => {
                let (from, mark) = (self.peer(), self.mark(|_| true));
                let slot = (self.slot + 1 + self.rng.below(500)) % 1000;
                let mut bytes = mark.request(opcode::SEND_ONLY, mark.expected);
                Self::aim(&mut bytes, slot << INDEX_BITS | mark.b & (PER_SLOT as u32 - 1));
                self.sealed(from, bytes, Fate::Unowned)
            }
        }
    }

    /// A QPN of this process that no QP has.
    fn nobody(&mut self) -> u32 {
        loop {
            let qpn = self.slot << INDEX_BITS | self.rng.below(PER_SLOT as u32);
            if !self.marks.iter().any(|mark| [mark.a, mark.b].contains(&qpn)) {
                return qpn;
            }
        }
    }

    fn random_bytes(&mut self, strays: bool) -> Forged {
        // The kernel leads what has no whole QPN to nobody.
        let shortest = if strays { 1 } else { 8 };
        let (from, length) = (self.anyone(), shortest + self.rng.below(160) as usize);
        let mut bytes = vec![0; length];
        self.rng.fill(&mut bytes);
        if length < 8 {
            return Forged { from, bytes, fate: Fate::Malformed };
        }
        let index = self.rng.below(1 << INDEX_BITS);
        Self::aim(&mut bytes, self.slot << INDEX_BITS | index);
        if length >= 16 {
            spoil(&mut bytes, from, &mut self.rng);
        }
        Forged { from, bytes, fate: Fate::BadIcrc }
    }

    fn wrong_icrc(&mut self) -> Forged {
        let from = self.peer();
        let (_, mut bytes) = self.tempting(|_| true);
        // Right for somebody else, or for nobody.
        let other = self.rng.pick(&self.strangers);
        seal(&mut bytes, other);
        spoil(&mut bytes, from, &mut self.rng);
        Forged { from, bytes, fate: Fate::BadIcrc }
    }

    fn of_another_service(&mut self) -> Forged {
        let from = self.peer();
        let (mark, other) = (self.mark(|_| true), self.mark(|_| true));
        if mark.kind == other.kind {
            return self.wrong_icrc();
        }
        let operation = self.operation(&other);
        let mut bytes = other.request(operation, mark.expected);
        Self::aim(&mut bytes, mark.b);
        self.sealed(from, bytes, Fate::Unwanted)
    }

    /// A packet of an adapter's, damaged, readdressed, and sealed again as a stranger's or left with its ICRC.
    fn golden(&mut self) -> Forged {
        let n = self.rng.below(self.golden.len() as u32) as usize;
        let mut bytes = self.golden[n].clone();
        bytes.truncate(bytes.len() - 4);
        for _ in 0..self.rng.below(4) {
            let at = self.rng.below(bytes.len().min(48) as u32) as usize;
            match self.rng.below(4) {
                0 => bytes[at] ^= 1 << self.rng.below(8),
                1 => bytes[at] = self.rng.next() as u8,
                2 => bytes.truncate(at.max(12)),
                _ => bytes.extend_from_slice(&self.rng.next().to_le_bytes()[..1 + at % 8]),
            }
        }
        let mark = self.mark(|_| true);
        let index =
            if self.rng.below(2) == 0 { mark.b & (PER_SLOT as u32 - 1) } else { self.rng.below(1 << INDEX_BITS) };
        let qpn = self.slot << INDEX_BITS | index;
        Self::aim(&mut bytes, qpn);
        if self.rng.below(2) == 0 {
            let from = self.peer();
            bytes.extend_from_slice(&self.golden[n][self.golden[n].len() - 4..]);
            spoil(&mut bytes, from, &mut self.rng);
            return Forged { from, bytes, fate: Fate::BadIcrc };
        }
        let from = self.rng.pick(&self.strangers);
        let is_datagram = bytes[0] & 0xe0 == opcode::UD && bytes.len() >= 20;
        let of_ud = self.marks.iter().any(|mark| mark.kind == QpType::Ud && [mark.a, mark.b].contains(&qpn));
        if is_datagram {
            bytes[12..16].copy_from_slice(&(!QKEY).to_be_bytes());
        }
        let mut forged = self.sealed(from, bytes, Fate::Unwanted);
        forged.fate = match parse(&forged.bytes) {
            Err(_) => Fate::Malformed,
            Ok(packet) if packet.payload.len() > 4096 => Fate::Malformed,
            Ok(packet) if packet.headers.bth.pkey & 0x7fff == 0x7fff && is_datagram && of_ud => Fate::BadQkey,
            Ok(_) => Fate::Unwanted,
        };
        forged
    }

    /// A packet with the address and ICRC of a QP's peer, at a PSN that is not the one that is wanted.
    pub fn out_of_place(&mut self) -> Forged {
        let from = self.peer();
        let kind = self.rng.below(5);
        let mark = match kind {
            4 => self.mark(|mark| mark.kind == QpType::Uc),
            _ => self.mark(|mark| matches!(mark.kind, QpType::Rc | QpType::XrcSend)),
        };
        let (back, ahead) = (self.rng.below((1 << 23) - 1), self.rng.below((1 << 23) - 2));
        let (before, behind) = (mark.expected.wrapping_sub(1 + back), mark.expected.wrapping_add(1 + ahead));
        let (bytes, fate) = match kind {
            0 => (mark.request(self.rng.pick(&RELIABLE[..6]), before), Fate::Duplicate),
            1 => (mark.request(self.rng.pick(&RELIABLE[6..]), before), Fate::Ghost),
            2 => {
                let operation = self.operation(&mark);
                (mark.request(operation, behind), Fate::OutOfSequence)
            }
            3 => self.response(&mark),
            _ => self.unreliable(&mark),
        };
        self.sealed(from, bytes, fate)
    }

    /// A response to a requester that waits for none.
    fn response(&mut self, mark: &Mark) -> (Vec<u8>, Fate) {
        let operation = self.rng.pick(&[
            opcode::ACKNOWLEDGE,
            opcode::READ_RESPONSE_FIRST,
            opcode::READ_RESPONSE_MIDDLE,
            opcode::READ_RESPONSE_ONLY,
            opcode::ATOMIC_ACKNOWLEDGE,
        ]);
        // The answer before the oldest that is missing may come again: it grants credits (IBA 9.7.5.1).
        let mut psn = self.rng.below(1 << 24);
        while psn.wrapping_add(1) & 0xff_ffff == mark.expected || psn + 1 == FIRST_PSN {
            psn = self.rng.below(1 << 24);
        }
        let mut headers = mark.headers(operation, psn, 0);
        let (to_a, syndrome) = (mark.kind == QpType::XrcSend || self.rng.below(2) == 0, self.rng.next() as u8);
        headers.bth.dest_qpn = if to_a { mark.a } else { mark.b };
        headers.aeth = Some(Aeth { syndrome, msn: psn });
        headers.atomic_ack = Some(0);
        // A response has no XRCETH.
        let payload = if opcode::is_read_response(headers.bth.opcode) { 64 } else { 0 };
        (emit(&headers, payload), Fate::Stale)
    }

    /// UC: a message without a beginning, or to memory that is not there. Its PSN is anything.
    fn unreliable(&mut self, mark: &Mark) -> (Vec<u8>, Fate) {
        let psn = self.rng.below(1 << 24);
        let operation =
            self.rng.pick(&[opcode::SEND_MIDDLE, opcode::SEND_LAST, opcode::WRITE_MIDDLE, opcode::WRITE_ONLY]);
        let mut headers = mark.headers(operation, psn, 24);
        headers.reth = Some(Reth { addr: mark.addr, rkey: mark.rkey ^ 1 << self.rng.below(32), length: 24 });
        (emit(&headers, if operation == opcode::WRITE_ONLY { 24 } else { MTU }), Fate::Dropped)
    }
}
