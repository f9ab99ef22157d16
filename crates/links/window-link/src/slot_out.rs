//! The way out for packets of a connection: the ring of its pair, or the memory of their destination.

use super::connection::SendPath;
use super::landing::LONG;
use super::pair::{Pair, encode};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vervain_carrier::{Foreign, PacketOut};
use vervain_hca::Request;
use vervain_hca::device::port_counters::{Tally, Word};
use vervain_hca::mr::transfer::Pieces;
use vervain_transport::Refused;
use vervain_window::pairs::block;
use vervain_window::pairs::ring::Class;
use vervain_wire::Headers;

/// Packets that one call sends at most.
const BUDGET: u32 = 64;

/// Packets of one class on that way, as long as a call sends them.
pub struct SlotOut<'a> {
    path: &'a SendPath,
    tally: &'a Tally,
    class: Class,
    /// Number of packets that may still leave, so that posting stays asynchronous.
    left: u32,
    /// Requests are under way.
    is_busy: bool,
    /// Destination of the answer to the next packet.
    destination: Option<(u32, Range<u64>)>,
}

impl<'a> SlotOut<'a> {
    /// For what goes by `path` of a class, counted in `tally`.
    #[inline]
    pub fn new(path: &'a SendPath, tally: &'a Tally, class: Class) -> Self {
        SlotOut { path, tally, class, left: BUDGET, is_busy: false, destination: None }
    }

    /// True if the message or answer under way is long.
    fn is_long(&self) -> &AtomicBool {
        if self.class == Class::Request { &self.path.sends_long } else { &self.path.answers_long }
    }
}

impl PacketOut for SlotOut<'_> {
    type Data = Foreign;

    const HAS_SHORTCUTS: bool = true;

    #[inline]
    fn goes_on(&mut self, is_idle: bool) {
        self.is_busy = !is_idle;
    }

    #[inline]
    fn is_spent(&self) -> bool {
        self.left == 0
    }

    fn holds(&self, request: &Request) -> bool {
        self.is_busy && self.path.direct.writes.waits_for_turn(&self.path.peer, request)
    }

    fn begins_message(&mut self, length: u64) {
        self.is_long().store(length >= LONG, Ordering::Relaxed);
        if self.class == Class::Request {
            self.path.direct.landing.begins_message(length);
        }
    }

    #[inline]
    fn landing(&self, left: u32) -> u32 {
        if self.class == Class::Request { self.path.direct.landing.packets(left) } else { 1 }
    }

    #[inline]
    fn answer_landing(&self, psn: u32, left: u32) -> u32 {
        self.path.direct.reads.answer_packets(psn, left)
    }

    fn asks(&mut self, destination: Option<(u32, Range<u64>)>) {
        self.destination = destination;
    }

    fn has_room(&self) -> bool {
        if self.class == Class::Request && self.path.direct.landing.is_awaited() {
            return false;
        }
        let SendPath { peer, uc, .. } = self.path;
        let has_room = |pair: &Arc<Pair>| pair.is_over() || pair.may_have_room(self.class) || uc.is_over_by(pair);
        self.left > 0 && peer.pair().map_or_else(|| uc.is_over(), has_room)
    }

    fn push(&mut self, headers: &Headers, from: &Pieces) -> Result<(), Refused> {
        let path = self.path;
        let Some(pair) = path.peer.pair() else {
            if !path.uc.is_over() {
                return Err(Refused::Full);
            }
            self.left -= 1;
            return Ok(());
        };
        let landed = match self.class {
            Class::Request if self.destination.is_none() => path.direct.landing.push(pair, headers, from),
            Class::Request => {
                self.destination.take().and_then(|to| path.direct.reads.push_request(&path.qp, pair, headers, to))
            }
            _ => path.direct.reads.push_answer(pair, headers, from),
        };
        let way = match landed {
            Some(_) => Word::WindowDirectBytes,
            None if self.is_long().load(Ordering::Relaxed) => Word::WindowStagedBytes,
            None => Word::WindowRingBytes,
        };
        let push = || match self.class {
            // Nobody waits for an acknowledgement.
            Class::Answer if from.is_empty() => pair.push_later(headers, || self.tally.subtract_one(Word::SentPackets)),
            class => pair.push(class, &encode(headers), from),
        };
        let sent = match landed.unwrap_or_else(push) {
            Err(Refused::Full) if path.uc.is_over_by(pair) => u64::MAX,
            sent => sent?,
        };
        path.uc.restart(sent);
        if sent != u64::MAX {
            self.tally.add_both((Word::SentPackets, 1), (way, from.len()));
        }
        self.left = self.left.saturating_sub((from.len().div_ceil(block::MTU.into()) as u32).max(1));
        self.is_busy = true;
        if self.class == Class::Request {
            path.sent.count(headers, from.len());
        }
        path.last_sent.store(sent, Ordering::Relaxed);
        Ok(())
    }

    fn is_taken(&self) -> bool {
        self.path.peer.pair().is_some_and(|pair| pair.has_taken(self.path.last_sent()))
    }
}
