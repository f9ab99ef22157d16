//! Where the rest of a long message belongs: its receiver tells the sender when the first packet has come, the memory of the receive or
//! that of the Write, and the sender puts the rest there. The packets are the same, without their bytes. Where that memory is none
//! that can be put to, the bytes go through the ring.

use super::Engine;
use super::connection::Connection;
use super::pair::{Pair, encode};
use super::payload::PiecesSource;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::process::grants::Grantor;
use vervain_hca::{Qp, now_ns};
use vervain_transport::Refused;
use vervain_window::pairs::block;
use vervain_window::pairs::grant::Grant;
use vervain_window::pairs::ring::{Class, HEADERS, Message};
use vervain_window::pairs::slot::Kind;
use vervain_window::{Channel, Origin, Put, UseGuard};
use vervain_wire::{Headers, opcode};

/// Messages from so many bytes on are worth the question, which takes a round trip.
pub const LONG: u64 = 64 << 10;
/// How long a sender waits for the answer: one that has no CPU just now takes nothing from the ring either.
const ANSWER_NS: u64 = 1_000_000;

/// What a sender knows of the message under way.
#[derive(Default)]
pub enum Landing {
    /// It goes through the ring.
    #[default]
    Nowhere,
    /// The next packet asks.
    Begins,
    /// Asked by the packet with this PSN, at that time.
    Asked(u32, u64),
    /// There.
    Here(Place),
}

/// A landing, and the way there.
pub struct Place {
    grant: Grant,
    channel: Box<dyn Channel>,
    _used: UseGuard,
}

/// What a receiver has told of the message under way.
pub struct Told {
    /// The PSN of its first packet.
    psn: u32,
    /// Where it begins in the own region, and in this process.
    at: u64,
    memory: Range<u64>,
}

/// Where in its message a packet begins.
fn offset(first: u32, psn: u32) -> u64 {
    u64::from(psn.wrapping_sub(first) & 0xff_ffff) * u64::from(block::MTU)
}

impl Connection {
    /// A message of so many bytes begins with the next packet.
    pub fn begins_message(&self, length: u64) {
        let asks = length >= LONG && self.may_put();
        if !asks && !self.is_long.load(Ordering::Relaxed) {
            return;
        }
        self.is_long.store(asks, Ordering::Relaxed);
        *self.landing.lock() = if asks { Landing::Begins } else { Landing::Nowhere };
    }

    /// Whether the sender waits to be told where the rest of its message belongs.
    #[inline]
    pub fn awaits_landing(&self) -> bool {
        self.is_long.load(Ordering::Relaxed) && self.awaits_answer()
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

    /// Sends a packet of a message with a landing. None where the ring has to carry its bytes.
    #[inline]
    pub fn push_landed(&self, pair: &Pair, headers: &Headers, from: &Pieces) -> Option<Result<u64, Refused>> {
        if !self.is_long.load(Ordering::Relaxed) {
            return None;
        }
        self.push_long(pair, headers, from)
    }

    fn push_long(&self, pair: &Pair, headers: &Headers, from: &Pieces) -> Option<Result<u64, Refused>> {
        let mut landing = self.landing.lock();
        match &mut *landing {
            Landing::Begins => {
                *landing = Landing::Asked(headers.bth.psn, now_ns());
                Some(pair.push_as(Kind::Begins, Class::Request, &encode(headers), from))
            }
            Landing::Here(place) if !opcode::starts(headers.bth.opcode) => {
                let (at, len) = (offset(place.grant.rkey, headers.bth.psn), from.len());
                let to = place.grant.place(at, len).filter(|_| pair.told(block::TAKEN_BACK) == place.grant.count)?;
                // Room first: what is put twice is put in vain.
                if !pair.has_room(Class::Request) {
                    return Some(Err(Refused::Full));
                }
                let source = PiecesSource::new(from, opcode::ends(headers.bth.opcode));
                place.channel.put(&[Put { to, from: Origin::Source(&source) }]).ok()?;
                if pair.is_over() || pair.told(block::TAKEN_BACK) != place.grant.count {
                    return None;
                }
                Some(pair.push_landed(&encode(headers), to, len as u16))
            }
            _ => None,
        }
    }

    /// The peer has answered.
    pub fn landing_told(&self, kind: Kind, grant: Grant, way: Option<(UseGuard, Box<dyn Channel>)>) {
        let mut landing = self.landing.lock();
        if !matches!(*landing, Landing::Asked(psn, _) if psn == grant.rkey) {
            return;
        }
        *landing = match way {
            Some((used, channel)) if kind == Kind::Landing => Landing::Here(Place { grant, channel, _used: used }),
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

    /// Whether a packet's payload lies where this process has told its sender to put it.
    pub fn has_landed(&self, headers: &Headers, message: &Message) -> bool {
        let told = self.told_landing.lock();
        let is_request = opcode::is_request(headers.bth.opcode) && !opcode::starts(headers.bth.opcode);
        told.as_ref().filter(|_| is_request).is_some_and(|told| {
            let offset = offset(told.psn, headers.bth.psn);
            message.payload == told.at.wrapping_add(offset)
                && offset + message.len <= told.memory.end - told.memory.start
        })
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
    /// Tells the sender of a long message, whose first packet was taken, where the rest belongs: `memory` of this process, found by a
    /// key.
    pub fn tell_landing(
        &self,
        connection: &Connection,
        qp: &Qp,
        pair: &Arc<Pair>,
        psn: u32,
        memory: Option<(u32, Range<u64>)>,
    ) {
        let count = pair.taken_back();
        let mut reply = Grant { qpn: connection.peer_qpn(), rkey: psn, count, at: 0, len: 0, iova: 0 };
        let grantor = self.me.upgrade().filter(|_| self.may_grant(pair, count));
        self.note_grantee(pair);
        let landing = grantor.zip(memory).and_then(|(me, (key, memory))| {
            let at = qp.grant_memory(key, &memory, pair.id, &(me as Arc<dyn Grantor>))?;
            Some(Told { psn, at, memory })
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
    pub fn landing(&self, pair: &Arc<Pair>, kind: Kind, headers: &[u8; HEADERS]) {
        let grant = Grant::decode(headers);
        let Some(connection) = self.connection(grant.qpn).filter(|c| c.is_with(pair)) else { return };
        let way = (kind == Kind::Landing).then(|| self.take_in_grant(pair, &grant)).flatten();
        connection.landing_told(kind, grant, way);
        connection.qp.upgrade().iter().for_each(|qp| qp.go_on());
    }
}
