//! Destinations of the answers to long READs. The reader names one with the request, if it is one piece of its memory
//! in the window, and the responder puts the answer there. One packet then stands for many, without their bytes, like
//! for a message that has a landing.

use super::grantees::{Grantees, Way};
use super::landing::{AT_ONCE, LONG, Place, Told};
use super::pair::{Pair, encode};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use vervain_hca::Qp;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::Pieces;
use vervain_transport::{Refused, psn};
use vervain_window::pairs::block;
use vervain_window::pairs::grant::Grant;
use vervain_window::pairs::ring::{Class, Message};
use vervain_window::pairs::slot::Kind;
use vervain_wire::{Headers, opcode};

/// Most READs of a peer whose answers have a place; a QP's own limit is lower.
const MOST: usize = 256;

/// Bytes in a READ that tell where its answer belongs: place, length, count, owner.
pub const READ_WORDS: usize = 32;

/// Destinations of the answers to a connection's READs, in both directions.
pub struct Reads {
    grantees: Weak<Grantees>,
    /// Destinations announced to the peer for the answers of READs under way, in order.
    told: OwnerLock<VecDeque<Told>>,
    /// True if there are any.
    has_told: AtomicBool,
    /// Destinations that the peer has announced for the answers to its READs.
    answers: OwnerLock<VecDeque<Place>>,
    /// True if there are any.
    has_answers: AtomicBool,
}

/// PSNs of an answer of `bytes` bytes.
fn psns(bytes: u64) -> u32 {
    bytes.div_ceil(u64::from(block::MTU)).max(1) as u32
}

impl Told {
    fn end(&self) -> u32 {
        psn::add(self.psn, psns(self.memory.end - self.memory.start))
    }
}

impl Reads {
    /// Those of a connection that makes its peer one of `grantees`.
    pub fn new(grantees: &Arc<Grantees>) -> Self {
        Reads {
            grantees: Arc::downgrade(grantees),
            told: OwnerLock::default(),
            has_told: AtomicBool::new(false),
            answers: OwnerLock::default(),
            has_answers: AtomicBool::new(false),
        }
    }

    /// Sends a READ request of `qp`, and with it where the answer belongs: `memory` of this process, found by a key.
    /// None where the answer has to come through the ring.
    pub fn push_request(
        &self,
        qp: &Weak<Qp>,
        pair: &Arc<Pair>,
        headers: &Headers,
        (key, memory): (u32, Range<u64>),
    ) -> Option<Result<u64, Refused>> {
        let (grantees, qp) = (self.grantees.upgrade()?, qp.upgrade()?);
        let (first, len, count) = (headers.bth.psn, memory.end - memory.start, pair.taken_back());
        if len < LONG || !grantees.may_grant(pair, count) {
            return None;
        }
        if !pair.has_room(Class::Request) {
            return Some(Err(Refused::Full));
        }
        grantees.note(pair);
        let found = qp.grant_memory(key, &memory, pair.id, &grantees.grantor()?)?;
        let mut words = [0; READ_WORDS];
        for (to, word) in words.chunks_exact_mut(8).zip([found.offset, len, count.into(), found.owner]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let mut told = self.told.lock();
        // A READ that is sent again is not announced twice.
        while told.back().is_some_and(|told| !psn::is_before(told.psn, first)) {
            told.pop_back().iter().for_each(|told| qp.end_grant(&told.memory, pair.id));
        }
        told.push_back(Told { psn: first, at: found.offset, memory });
        self.has_told.store(true, Ordering::Relaxed);
        let pushed = pair.push_with(Kind::ReadPacket, &encode(headers), &words);
        if pushed.is_err() {
            told.pop_back().iter().for_each(|told| qp.end_grant(&told.memory, pair.id));
        }
        Some(pushed)
    }

    /// Returns true if the payload of an answer is at the destination announced to its peer.
    pub fn has_landed(&self, headers: &Headers, message: &Message) -> bool {
        let told = self.told.lock();
        opcode::is_read_response(opcode::operation(headers.bth.opcode))
            && told.iter().any(|told| told.has(headers.bth.psn, message))
    }

    /// Ends the READs up to the end of an answer of `bytes` bytes that has come: they have no destination any more.
    #[inline]
    pub fn end(&self, qp: &Qp, pair: &Pair, headers: &Headers, bytes: u64) {
        if self.has_told.load(Ordering::Relaxed) {
            self.end_before(qp, pair, psn::add(headers.bth.psn, psns(bytes)));
        }
    }

    #[cold]
    fn end_before(&self, qp: &Qp, pair: &Pair, end: u32) {
        let mut told = self.told.lock();
        while told.front().is_some_and(|told| !psn::is_before(end, told.end())) {
            told.pop_front().iter().for_each(|told| qp.end_grant(&told.memory, pair.id));
        }
        self.has_told.store(!told.is_empty(), Ordering::Relaxed);
    }

    /// Notes the destination of the answer to the peer's READ, and the way there.
    pub fn answers_to(&self, grant: Grant, (used, channel): Way) {
        let place = Place::new(grant, channel, used);
        let mut answers = self.answers.lock();
        answers.retain(|known| psn::is_before(known.first(), place.first()));
        if answers.len() >= MOST {
            answers.pop_front();
        }
        answers.push_back(place);
        self.has_answers.store(true, Ordering::Relaxed);
    }

    /// Number of packets of an answer with `left` packets to go that leave as one, from this PSN on.
    #[inline]
    pub fn answer_packets(&self, psn: u32, left: u32) -> u32 {
        let lands = || self.answers.lock().iter().any(|place| place.covers(psn));
        if self.has_answers.load(Ordering::Relaxed) && lands() { left.min(AT_ONCE) } else { 1 }
    }

    /// Sends a packet of an answer that is put where it belongs. None where the ring has to carry its bytes.
    #[inline]
    pub fn push_answer(&self, pair: &Pair, headers: &Headers, from: &Pieces) -> Option<Result<u64, Refused>> {
        if self.has_answers.load(Ordering::Relaxed) { self.put_answer(pair, headers, from) } else { None }
    }

    fn put_answer(&self, pair: &Pair, headers: &Headers, from: &Pieces) -> Option<Result<u64, Refused>> {
        let mut answers = self.answers.lock();
        let is_read = opcode::is_read_response(opcode::operation(headers.bth.opcode)) && !from.is_empty();
        let n = answers.iter().position(|place| is_read && place.covers(headers.bth.psn))?;
        let pushed = answers[n].push(pair, Class::Answer, headers, from);
        // It is sent, or the rest of it goes through the ring.
        if pushed.is_none() || pushed.is_some_and(|pushed| pushed.is_ok()) && opcode::ends(headers.bth.opcode) {
            answers.remove(n);
            self.has_answers.store(!answers.is_empty(), Ordering::Relaxed);
        }
        pushed.or_else(|| (from.len() > u64::from(block::MTU)).then_some(Err(Refused::Full)))
    }

    /// The connection is over.
    pub fn clear(&self) {
        self.told.lock().clear();
        self.forget_answers();
    }

    /// Stops all puts of answers to destinations of the peer.
    pub fn forget_answers(&self) {
        self.answers.lock().clear();
        self.has_answers.store(false, Ordering::Relaxed);
    }
}
