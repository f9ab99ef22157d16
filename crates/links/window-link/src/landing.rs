//! Landings of long messages. The sender asks before the first packet where the message belongs; the receiver answers
//! with the memory of the receive, which it claims for that, or of the Write; the sender puts the message there. One
//! packet then stands for many, without their bytes. Where that memory cannot be put to, the bytes go through the ring.

use super::grantees::Way;
use super::pair::{Pair, encode};
use super::payload::PiecesSource;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::{Qp, now_ns};
use vervain_transport::Refused;
use vervain_window::pairs::block;
use vervain_window::pairs::ends::{self, Ends};
use vervain_window::pairs::grant::Grant;
use vervain_window::pairs::ring::{Class, Message};
use vervain_window::pairs::slot::Kind;
use vervain_window::{Channel, Origin, Put, Source, UseGuard};
use vervain_wire::{Headers, opcode};

/// Bytes from which on a message is worth the question, which takes a round trip.
pub const LONG: u64 = 64 << 10;
/// Packets of one put, 1 MiB. Between two puts others have their turn, and a grant can be taken back.
pub const AT_ONCE: u32 = (1 << 20) / block::MTU;
/// Bytes of the question besides the headers: the length, and a number that the answer repeats.
pub const QUESTION: usize = 16;
/// Nanoseconds that a sender waits for the answer: a receiver without a CPU just now takes nothing from the ring
/// either.
const ANSWER_NS: u64 = 1_000_000;

/// Destinations of the long messages of a connection, in both directions.
pub struct Landing {
    is_on: bool,
    /// Bytes of the message under way, if it is a long one; 0: it is none.
    long: AtomicU64,
    /// Destination of the message under way, at the peer.
    destination: OwnerLock<Destination>,
    /// Destination that this process has announced to the peer for its message; None: none.
    told: OwnerLock<Option<Told>>,
    has_told: AtomicBool,
}

/// The sender's knowledge of the message under way.
#[derive(Default)]
enum Destination {
    /// Nothing.
    #[default]
    Unknown,
    /// Asked for: the PSN of the message's first packet, and when (CLOCK_MONOTONIC, ns).
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
    /// The place of a grant, whose key is the PSN of the first packet.
    pub fn new(grant: Grant, channel: Box<dyn Channel>, used: Arc<UseGuard>) -> Place {
        Place { grant, channel, _used: used }
    }

    /// PSN of the first packet.
    pub fn first(&self) -> u32 {
        self.grant.rkey
    }

    /// Returns true if the packet with this PSN belongs there.
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
        // Room first: without it the data would be put twice.
        if !pair.has_room(class) {
            return Some(Err(Refused::Full));
        }
        let ends = self.put(to, from, opcode::ends(headers.bth.opcode))?;
        stands().then(|| pair.push_landed_packet(class, &encode(headers), (to, len), ends))
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

/// A destination that a receiver has announced, for the message under way or the answer to a READ.
pub struct Told {
    /// The PSN of its first packet.
    pub psn: u32,
    /// Its offset in the own region.
    pub at: u64,
    /// The addresses in this process.
    pub memory: Range<u64>,
}

impl Told {
    /// Returns true if the packet with this PSN has its payload there.
    pub fn has(&self, psn: u32, message: &Message) -> bool {
        let offset = offset(self.psn, psn);
        message.payload == self.at.wrapping_add(offset) && offset + message.len <= self.memory.end - self.memory.start
    }
}

/// Offset of a packet's payload in its message.
fn offset(first: u32, psn: u32) -> u64 {
    u64::from(psn.wrapping_sub(first) & 0xff_ffff) * u64::from(block::MTU)
}

impl Landing {
    /// With `is_on` false, messages have no destination, and none is asked for.
    pub fn new(is_on: bool) -> Self {
        Landing {
            is_on,
            long: AtomicU64::new(0),
            destination: OwnerLock::default(),
            told: OwnerLock::default(),
            has_told: AtomicBool::new(false),
        }
    }

    /// Announces that a message of `length` bytes begins with the next packet.
    pub fn begins_message(&self, length: u64) {
        let long = if length >= LONG && self.is_on { length } else { 0 };
        if self.long.load(Ordering::Relaxed) != long {
            self.long.store(long, Ordering::Relaxed);
        }
    }

    /// Returns true if the message under way is a long one.
    #[inline]
    fn is_long(&self) -> bool {
        self.long.load(Ordering::Relaxed) != 0
    }

    /// Returns true if the sender waits for the destination of its message.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.is_long() && self.awaits_answer()
    }

    fn awaits_answer(&self) -> bool {
        let mut destination = self.destination.lock();
        match *destination {
            Destination::Asked(_, since) if now_ns().saturating_sub(since) < ANSWER_NS => true,
            Destination::Asked(..) => {
                *destination = Destination::Nowhere;
                false
            }
            _ => false,
        }
    }

    /// Number of packets left of the message under way that go as one: those of a put, if it has a destination.
    #[inline]
    pub fn packets(&self, left: u32) -> u32 {
        if self.is_long() && matches!(*self.destination.lock(), Destination::Here(_)) { left.min(AT_ONCE) } else { 1 }
    }

    /// Sends a packet of a long message, or asks for the message's destination before the first. None: the ring has to
    /// carry its bytes.
    #[inline]
    pub fn push(&self, pair: &Pair, headers: &Headers, from: &Pieces) -> Option<Result<u64, Refused>> {
        // A READ has its own way, and does not end the message before.
        let is_posted = || opcode::is_send(headers.bth.opcode) || opcode::is_write(headers.bth.opcode);
        if self.is_long() && is_posted() { self.push_long(pair, headers, from) } else { None }
    }

    fn push_long(&self, pair: &Pair, headers: &Headers, from: &Pieces) -> Option<Result<u64, Refused>> {
        let mut destination = self.destination.lock();
        let (psn, code, len) = (headers.bth.psn, headers.bth.opcode, from.len());
        // Several at once, of which no landing is any more, go one by one.
        let by_ring = || (len > u64::from(block::MTU)).then_some(Err(Refused::Full));
        let Destination::Here(place) = &mut *destination else {
            let asks = matches!(*destination, Destination::Unknown) && opcode::starts(code) && !pair.is_over();
            let now = now_ns();
            *destination = if asks { Destination::Asked(psn, now) } else { Destination::Unknown };
            if !asks {
                return by_ring();
            }
            let mut question = [0; QUESTION];
            question[..8].copy_from_slice(&self.long.load(Ordering::Relaxed).to_le_bytes());
            question[8..].copy_from_slice(&now.to_le_bytes());
            if !pair.ask(Kind::WantLanding, &encode(headers), &question) {
                *destination = Destination::Unknown;
            }
            return Some(Err(Refused::Full));
        };
        let Some(pushed) = place.push(pair, Class::Request, headers, from) else {
            *destination = Destination::Nowhere;
            return by_ring();
        };
        if pushed.is_ok() && opcode::ends(code) {
            *destination = Destination::Unknown;
        }
        Some(pushed)
    }

    /// The peer's answer: where the message belongs, and the way there; none where it has no landing.
    pub fn take_answer(&self, grant: Grant, way: Option<Way>) {
        let mut destination = self.destination.lock();
        // The answer to an earlier question for the same message, which may be granted no more, comes too late.
        if !matches!(*destination, Destination::Asked(psn, since) if (psn, since) == (grant.rkey, grant.iova)) {
            return;
        }
        *destination = match way {
            Some((used, channel)) => Destination::Here(Place::new(Grant { iova: 0, ..grant }, channel, used)),
            None => Destination::Nowhere,
        };
    }

    /// The peer takes back what it has granted: the rest of a message goes through the ring.
    pub fn forget(&self) {
        let mut destination = self.destination.lock();
        if matches!(*destination, Destination::Here(_)) {
            *destination = Destination::Nowhere;
        }
    }

    /// The connection is over.
    pub fn end_message(&self) {
        *self.destination.lock() = Destination::Unknown;
        self.long.store(0, Ordering::Relaxed);
    }

    /// Notes the destination announced to the peer for its message; None: none.
    pub fn tell(&self, told: Option<Told>) {
        self.has_told.store(told.is_some(), Ordering::Relaxed);
        *self.told.lock() = told;
    }

    /// Returns true if the peer is putting a message to a destination that this process has announced.
    pub fn has_told(&self) -> bool {
        self.has_told.load(Ordering::Relaxed)
    }

    /// Returns true if a packet's payload is at the destination that this process has announced to its sender.
    pub fn has_landed(&self, headers: &Headers, message: &Message) -> bool {
        let told = self.told.lock();
        opcode::is_request(headers.bth.opcode) && told.as_ref().is_some_and(|told| told.has(headers.bth.psn, message))
    }

    /// A message has ended, or another begun: its landing is none any more.
    #[inline]
    pub fn end(&self, qp: &Qp, pair: &Pair) {
        if self.has_told.load(Ordering::Relaxed)
            && let Some(told) = self.told.lock().take()
        {
            self.has_told.store(false, Ordering::Relaxed);
            qp.end_grant(&told.memory, pair.id);
        }
    }
}
