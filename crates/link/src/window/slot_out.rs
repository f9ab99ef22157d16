//! Where the packets of a connection leave: the ring of its pair, or the memory where their data belongs.

use super::connection::Connection;
use super::landing::LONG;
use super::pair::{Pair, encode};
use crate::endpoint::{Foreign, PacketOut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vervain_hca::Request;
use vervain_hca::device::port_counters::{Tally, Word};
use vervain_hca::mr::transfer::Pieces;
use vervain_transport::Refused;
use vervain_window::pairs::block;
use vervain_window::pairs::ring::Class;
use vervain_wire::Headers;

/// Packets that one call sends at most.
const BUDGET: u32 = 64;

/// Where the packets of a connection leave.
pub struct SlotOut<'a> {
    connection: &'a Connection,
    tally: &'a Tally,
    class: Class,
    /// Packets that may still go, so that posting stays asynchronous.
    pub left: u32,
    /// Requests are under way.
    pub is_busy: bool,
    /// Where the answer to the next packet belongs.
    destination: Option<(u32, Range<u64>)>,
}

impl<'a> SlotOut<'a> {
    /// For what `connection` sends of a class, counted in `tally`.
    #[inline]
    pub fn new(connection: &'a Connection, tally: &'a Tally, class: Class) -> Self {
        SlotOut { connection, tally, class, left: BUDGET, is_busy: false, destination: None }
    }

    /// Whether what is under way is long.
    fn is_long(&self) -> &AtomicBool {
        if self.class == Class::Request { &self.connection.sends_long } else { &self.connection.answers_long }
    }
}

impl PacketOut for SlotOut<'_> {
    type Data = Foreign;

    const HAS_SHORTCUTS: bool = true;

    fn holds(&self, request: &Request) -> bool {
        self.is_busy && self.connection.waits_for_turn(request)
    }

    fn begins_message(&mut self, length: u64) {
        self.is_long().store(length >= LONG, Ordering::Relaxed);
        if self.class == Class::Request {
            self.connection.begins_message(length);
        }
    }

    #[inline]
    fn landing(&self, left: u32) -> u32 {
        if self.class == Class::Request { self.connection.landing_packets(left) } else { 1 }
    }

    #[inline]
    fn answer_landing(&self, psn: u32, left: u32) -> u32 {
        self.connection.answer_packets(psn, left)
    }

    fn asks(&mut self, destination: Option<(u32, Range<u64>)>) {
        self.destination = destination;
    }

    fn has_room(&self) -> bool {
        if self.class == Class::Request && self.connection.awaits_landing() {
            return false;
        }
        let has_room =
            |pair: &Arc<Pair>| pair.is_over() || pair.may_have_room(self.class) || self.connection.waits_in_vain(pair);
        self.left > 0 && self.connection.pair().map_or_else(|| self.connection.waits_no_more(), has_room)
    }

    fn push(&mut self, headers: &Headers, from: &Pieces) -> Result<(), Refused> {
        let Some(pair) = self.connection.pair() else {
            if !self.connection.waits_no_more() {
                return Err(Refused::Full);
            }
            self.left -= 1;
            return Ok(());
        };
        let connection = self.connection;
        let landed = match self.class {
            Class::Request if self.destination.is_none() => connection.push_landed(pair, headers, from),
            Class::Request => self.destination.take().and_then(|to| connection.push_read(pair, headers, to)),
            _ => connection.push_answer(pair, headers, from),
        };
        let way = match landed {
            Some(_) => Word::WindowDirectBytes,
            None if self.is_long().load(Ordering::Relaxed) => Word::WindowStagedBytes,
            None => Word::WindowRingBytes,
        };
        let push = || match self.class {
            // Nobody waits for what only says how far this process is.
            Class::Answer if from.is_empty() => pair.push_later(headers, || self.tally.subtract_one(Word::SentPackets)),
            class => pair.push(class, &encode(headers), from),
        };
        let sent = match landed.unwrap_or_else(push) {
            Err(Refused::Full) if connection.waits_in_vain(pair) => u64::MAX,
            sent => sent?,
        };
        connection.waited(sent);
        if sent != u64::MAX {
            self.tally.add_both((Word::SentPackets, 1), (way, from.len()));
        }
        self.left = self.left.saturating_sub((from.len().div_ceil(block::MTU.into()) as u32).max(1));
        self.is_busy = true;
        if self.class == Class::Request {
            self.connection.sent.count(headers, from.len());
        }
        self.connection.last_sent.store(sent, Ordering::Relaxed);
        Ok(())
    }

    fn is_taken(&self) -> bool {
        self.connection.pair().is_some_and(|pair| pair.has_taken(self.connection.last_sent.load(Ordering::Relaxed)))
    }
}
