//! Where a long message belongs: its sender asks before the first packet, its receiver tells the memory of the receive, which it claims
//! for that, or that of the Write, and the sender puts the message there. One packet then stands for many, without their bytes. Where
//! that memory is none that can be put to, the bytes go through the ring.

use super::Engine;
use super::connection::Connection;
use super::pair::{Pair, encode};
use super::payload::PiecesSource;
use super::receive::Receiving;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vervain_hca::host::cancel::nap;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::process::Process;
use vervain_hca::process::grants::Grantor;
use vervain_hca::{Qp, now_ns};
use vervain_transport::Refused;
use vervain_window::pairs::block;
use vervain_window::pairs::ends::{self, Ends};
use vervain_window::pairs::grant::Grant;
use vervain_window::pairs::ring::{Class, HEADERS, Message};
use vervain_window::pairs::slot::Kind;
use vervain_window::{Channel, Origin, Put, Source, UseGuard};
use vervain_wire::{Headers, opcode, parse_headers};

/// Messages from so many bytes on are worth the question, which takes a round trip.
pub const LONG: u64 = 64 << 10;
/// Packets that are put at once, before others and whoever takes a grant back get their turn: 1 MiB.
pub const AT_ONCE: u32 = (1 << 20) / block::MTU;
/// Bytes of the question besides the headers: the length, and a number that the answer repeats.
const QUESTION: usize = 16;
/// How long a sender waits for the answer: one that has no CPU just now takes nothing from the ring either.
const ANSWER_NS: u64 = 1_000_000;
/// How long a QP that is reset or destroyed waits for a message that may be there, of a sender that may have lost its CPU in the midst of
/// it; and between two looks.
const LANDING_ENDS_NS: u64 = 200_000_000;
const LOOK: Duration = Duration::from_micros(20);

/// What a sender knows of the message under way.
#[derive(Default)]
pub enum Landing {
    /// Nothing.
    #[default]
    Unknown,
    /// It has asked for that of the message whose first packet has this PSN, at that time.
    Asked(u32, u64),
    /// There is none: its next packet goes through the ring.
    Nowhere,
    /// There.
    Here(Place),
}

/// A landing, and the way there.
pub struct Place {
    grant: Grant,
    channel: Box<dyn Channel>,
    _used: Arc<UseGuard>,
}

impl Place {
    /// That of a grant whose key is the PSN of the first packet.
    pub fn new(grant: Grant, channel: Box<dyn Channel>, used: Arc<UseGuard>) -> Place {
        Place { grant, channel, _used: used }
    }

    /// PSN of the first packet.
    pub fn first(&self) -> u32 {
        self.grant.rkey
    }

    /// Whether the packet with this PSN belongs there.
    pub fn covers(&self, psn: u32) -> bool {
        offset(self.first(), psn) < self.grant.len
    }

    /// Puts a packet's data there, and sends the packet. None where it cannot be put.
    pub fn push(
        &mut self,
        pair: &Pair,
        class: Class,
        headers: &Headers,
        from: &Pieces,
    ) -> Option<Result<u64, Refused>> {
        let (len, count) = (from.len(), self.grant.count);
        let stands = || !pair.is_over() && pair.told(block::TAKEN_BACK) == count;
        let to = self.grant.place(offset(self.first(), headers.bth.psn), len).filter(|_| stands())?;
        // Room first: what is put twice is put in vain.
        if !pair.has_room(class) {
            return Some(Err(Refused::Full));
        }
        let ends = self.put(to, from, opcode::ends(headers.bth.opcode))?;
        stands().then(|| pair.push_landed(class, &encode(headers), (to, len), ends))
    }

    /// Puts what the device can put there of these bytes: those before and behind it. None where it cannot be put.
    fn put(&mut self, to: u64, from: &Pieces, is_last: bool) -> Option<Ends> {
        let (head, tail) = ends::lens(to, from.len(), self.channel.traits().grain);
        let mut put = |to: u64, pieces: &Pieces| {
            let source = PiecesSource::new(pieces, is_last);
            self.channel.put(&[Put { to, from: Origin::Source(&source) }]).ok()
        };
        if (head, tail) == (0, 0) {
            put(to, from)?;
            return Some(Ends::default());
        }
        let mut bytes = [[0; 8]; 2];
        for (bytes, (at, len)) in bytes.iter_mut().zip([(0, head), (from.len() - tail, tail)]) {
            // SAFETY: as many bytes are in the array: an end has eight at most.
            unsafe { PiecesSource::new(from, false).store_part_to(at as usize, len as usize, bytes.as_mut_ptr()) }
                .ok()?;
        }
        let mut middle = Pieces::new();
        from.slice_into(head, from.len() - head - tail, &mut middle);
        put(to + head, &middle)?;
        Some(Ends::new(&bytes[0][..head as usize], &bytes[1][..tail as usize]))
    }
}

/// What a receiver has told of the message under way, or of the answer to a READ.
pub struct Told {
    /// The PSN of its first packet.
    pub psn: u32,
    /// Where it begins in the own region, and in this process.
    pub at: u64,
    /// See there.
    pub memory: Range<u64>,
}

impl Told {
    /// Whether the packet with this PSN has its payload there.
    pub fn has(&self, psn: u32, message: &Message) -> bool {
        let offset = offset(self.psn, psn);
        message.payload == self.at.wrapping_add(offset) && offset + message.len <= self.memory.end - self.memory.start
    }
}

/// Where in its message a packet begins.
fn offset(first: u32, psn: u32) -> u64 {
    u64::from(psn.wrapping_sub(first) & 0xff_ffff) * u64::from(block::MTU)
}

impl Connection {
    /// A message of so many bytes begins with the next packet.
    pub fn begins_message(&self, length: u64) {
        let long = if length >= LONG && self.may_put() { length } else { 0 };
        if self.long.load(Ordering::Relaxed) != long {
            self.long.store(long, Ordering::Relaxed);
        }
    }

    /// Whether the message under way is a long one.
    #[inline]
    fn is_long(&self) -> bool {
        self.long.load(Ordering::Relaxed) != 0
    }

    /// Whether the sender waits to be told where its message belongs.
    #[inline]
    pub fn awaits_landing(&self) -> bool {
        self.is_long() && self.awaits_answer()
    }

    fn awaits_answer(&self) -> bool {
        let mut landing = self.landing.lock();
        match *landing {
            Landing::Asked(_, since) if now_ns().saturating_sub(since) < ANSWER_NS => true,
            Landing::Asked(..) => {
                *landing = Landing::Nowhere;
                false
            }
            _ => false,
        }
    }

    /// How many of the packets that are left of the message under way go as one: those of a put, where it has a landing.
    #[inline]
    pub fn landing_packets(&self, left: u32) -> u32 {
        if self.is_long() && matches!(*self.landing.lock(), Landing::Here(_)) { left.min(AT_ONCE) } else { 1 }
    }

    /// Sends a packet of a long message, or asks before the first one where the message belongs. None where the ring has to carry
    /// its bytes.
    #[inline]
    pub fn push_landed(&self, pair: &Pair, headers: &Headers, from: &Pieces) -> Option<Result<u64, Refused>> {
        // What is read has its own way, and says nothing of the message before.
        let is_posted = || opcode::is_send(headers.bth.opcode) || opcode::is_write(headers.bth.opcode);
        if self.is_long() && is_posted() { self.push_long(pair, headers, from) } else { None }
    }

    fn push_long(&self, pair: &Pair, headers: &Headers, from: &Pieces) -> Option<Result<u64, Refused>> {
        let mut landing = self.landing.lock();
        let (psn, code, len) = (headers.bth.psn, headers.bth.opcode, from.len());
        // Several at once, of which no landing is any more, go one by one.
        let by_ring = || (len > u64::from(block::MTU)).then_some(Err(Refused::Full));
        let Landing::Here(place) = &mut *landing else {
            let asks = matches!(*landing, Landing::Unknown) && opcode::starts(code) && !pair.is_over();
            let now = now_ns();
            *landing = if asks { Landing::Asked(psn, now) } else { Landing::Unknown };
            if !asks {
                return by_ring();
            }
            let mut question = [0; QUESTION];
            question[..8].copy_from_slice(&self.long.load(Ordering::Relaxed).to_le_bytes());
            question[8..].copy_from_slice(&now.to_le_bytes());
            if !pair.ask(Kind::WantLanding, &encode(headers), &question) {
                *landing = Landing::Unknown;
            }
            return Some(Err(Refused::Full));
        };
        let Some(pushed) = place.push(pair, Class::Request, headers, from) else {
            *landing = Landing::Nowhere;
            return by_ring();
        };
        if pushed.is_ok() && opcode::ends(code) {
            *landing = Landing::Unknown;
        }
        Some(pushed)
    }

    /// The peer has answered.
    pub fn landing_told(&self, kind: Kind, grant: Grant, way: Option<(Arc<UseGuard>, Box<dyn Channel>)>) {
        let mut landing = self.landing.lock();
        // The answer to an earlier question for the same message, which may be granted no more, comes too late.
        if !matches!(*landing, Landing::Asked(psn, since) if (psn, since) == (grant.rkey, grant.iova)) {
            return;
        }
        *landing = match way {
            Some((used, channel)) if kind == Kind::Landing => {
                Landing::Here(Place::new(Grant { iova: 0, ..grant }, channel, used))
            }
            _ => Landing::Nowhere,
        };
    }

    /// What the peer was granted is asked back: the rest of a message goes through the ring.
    pub fn forget_landing(&self) {
        let mut landing = self.landing.lock();
        if matches!(*landing, Landing::Here(_)) {
            *landing = Landing::Nowhere;
        }
    }

    /// The connection is none any more.
    pub fn end_message(&self) {
        *self.landing.lock() = Landing::Unknown;
        self.long.store(0, Ordering::Relaxed);
    }

    /// Whether a packet's payload lies where this process has told its sender to put it.
    pub fn has_landed(&self, headers: &Headers, message: &Message) -> bool {
        let told = self.told_landing.lock();
        opcode::is_request(headers.bth.opcode) && told.as_ref().is_some_and(|told| told.has(headers.bth.psn, message))
    }

    /// A message has ended, or another begun: its landing is none any more.
    #[inline]
    pub fn end_landing(&self, qp: &Qp, pair: &Pair) {
        if self.has_told.load(Ordering::Relaxed)
            && let Some(told) = self.told_landing.lock().take()
        {
            self.has_told.store(false, Ordering::Relaxed);
            qp.end_grant(&told.memory, pair.id);
        }
    }
}

impl Engine {
    /// Waits for the message whose sender was told where it belongs: its bytes may be there already, where the program sees them.
    pub fn let_landing_end(&self, process: &'static Process, connection: &Connection) {
        let until = now_ns() + LANDING_ENDS_NS;
        while connection.is_put_to() && now_ns() < until {
            if !self.look(process) {
                nap(LOOK);
            }
        }
    }

    /// The sender of a long message asks where it belongs.
    pub fn wants_landing(&self, pair: &Arc<Pair>, message: &Message) {
        if message.len != QUESTION as u64 || !message.payload.is_multiple_of(block::WORD) {
            return pair.distrust();
        }
        let word = |n: u64| self.region.word(message.payload + n * block::WORD).load(Ordering::Relaxed);
        let (length, number) = (word(0), word(1));
        let Ok(headers) = parse_headers(&message.headers, block::MTU as usize) else { return pair.distrust() };
        let bth = &headers.bth;
        let Some(connection) = self.connection(bth.dest_qpn).filter(|c| c.is_with(pair)) else { return };
        let Some(qp) = connection.qp.upgrade().filter(|qp| connection.takes(qp, bth.opcode)) else { return };
        let memory = connection.announced(&qp, &headers, length);
        self.tell_landing(&connection, &qp, pair, (bth.psn, number), memory);
    }

    /// Tells the sender of a long message where it belongs: `memory` of this process, found by a key.
    fn tell_landing(
        &self,
        connection: &Connection,
        qp: &Qp,
        pair: &Arc<Pair>,
        (psn, number): (u32, u64),
        memory: Option<(u32, Range<u64>)>,
    ) {
        connection.end_landing(qp, pair);
        let count = pair.taken_back();
        let mut reply = Grant { qpn: connection.peer_qpn(), rkey: psn, count, at: 0, len: 0, iova: number, owner: 0 };
        let grantor = self.me.upgrade().filter(|_| self.may_grant(pair, count));
        self.note_grantee(pair);
        let landing = grantor.zip(memory).and_then(|(me, (key, memory))| {
            let found = qp.grant_memory(key, &memory, pair.id, &(me as Arc<dyn Grantor>))?;
            reply.owner = found.owner;
            Some(Told { psn, at: found.offset, memory })
        });
        let kind = match &landing {
            Some(told) => {
                (reply.at, reply.len) = (told.at, told.memory.end - told.memory.start);
                Kind::Landing
            }
            None => Kind::NoLanding,
        };
        connection.has_told.store(landing.is_some(), Ordering::Relaxed);
        *connection.told_landing.lock() = landing;
        if !pair.say(Class::Control, kind, &reply.encode()) {
            connection.end_landing(qp, pair);
        }
    }

    /// The answer to that.
    pub fn landing(&self, rx: &mut Receiving, pair: &Arc<Pair>, kind: Kind, headers: &[u8; HEADERS]) {
        let grant = Grant::decode(headers);
        let Some(connection) = self.connection(grant.qpn).filter(|c| c.is_with(pair)) else { return };
        let way = (kind == Kind::Landing).then(|| self.take_in_grant(pair, &grant)).flatten();
        connection.landing_told(kind, grant, way);
        rx.go_on([connection.qp.clone()]);
    }
}
