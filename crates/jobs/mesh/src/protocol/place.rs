//! A place in the pool, and what it is used for.

use std::collections::{HashMap, VecDeque};

use super::message::Id;
use super::repeat::Repeat;
use super::wants::Want;
use crate::address::{Door, Lanes, Site};

/// The state of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not used.
    Free,
    /// The peer was asked. It posts nothing before it has heard that this end is open.
    Connecting,
    /// The peer has asked, and may post; this end posts nothing before it has heard that the peer is open.
    Accepted,
    /// Both may post.
    Open,
    /// Requests in progress are finished, none begins.
    Closing,
}

/// The counts for each request; 32 bytes, so that two share a cache line.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub state: State,
    /// Open, but the owner has not taken the event: it is not closed before.
    pub unseen: bool,
    /// The last hold was released, since somebody looked.
    pub let_go: bool,
    pub life: u32,
    pub holds: u32,
    /// Messages posted that take a receive of the peer, and receives taken here; modulo 2^32.
    pub sent: u32,
    pub received: u32,
    /// When it was last released; less is longer ago.
    pub stamp: u64,
}

impl Place {
    pub const FREE: Place =
        Place { state: State::Free, unseen: false, let_go: false, life: 0, holds: 0, sent: 0, received: 0, stamp: 0 };
}

/// The stage of closing.
///
/// An end that closes may still be held, for answers of the peer's, and the peer may have sent its count before it sent
/// those. Messages of two lanes overtake each other, so that as many as counted may have come, and be others. So a
/// count is valid only if the peer sent it after it had learned that this end is held no more. Each time that the holds
/// end begins a round.
#[derive(Debug, Clone, Copy, Default)]
pub struct Farewell {
    /// The count of sent messages that this end has announced, and the round of the peer in which it did.
    pub said: Option<(u32, u32)>,
    /// The count of sent messages that the peer has announced in this round of this end.
    pub heard: Option<u32>,
    /// The peer has closed its end: its count is the last.
    pub is_last: bool,
    /// The peer waits for an answer.
    pub owed: bool,
    /// How often this end was let go since it began to close.
    pub round: u32,
    /// The same of the peer, as far as is known.
    pub peers_round: u32,
}

impl Farewell {
    /// The peer's count; an earlier one may come late.
    pub fn hear(&mut self, sent: u32) {
        if self.heard.is_none_or(|before| sent.wrapping_sub(before).cast_signed() >= 0) {
            self.heard = Some(sent);
        }
    }
}

/// The other end.
pub struct Peer {
    pub rank: u32,
    pub color: u32,
    /// This side's port, by its place in the list.
    pub port: usize,
    pub door: Door,
    pub id: Id,
    /// The lanes of this end, once the peer was sent them.
    pub lanes: Option<Lanes>,
    /// The lanes of the peer, once they have come, if this end has asked.
    pub theirs: Option<Lanes>,
    pub hello: Vec<u8>,
    pub repeat: Option<Repeat>,
    pub farewell: Farewell,
    /// A request of the owner for when the place is open, or gets free before.
    pub wanted: Option<Want>,
}

impl Peer {
    pub const NONE: Peer = Peer {
        rank: 0,
        color: 0,
        port: 0,
        door: Door { site: Site::Lid(0), qpn: 0, qkey: 0 },
        id: Id { initiator: 0, color: 0, nonce: 0 },
        lanes: None,
        theirs: None,
        hello: Vec::new(),
        repeat: None,
        farewell: Farewell { said: None, heard: None, is_last: false, owed: false, round: 0, peers_round: 0 },
        wanted: None,
    };
}

/// The connections that were closed last: a peer that did not hear the answer asks again, and a Connect may come late.
pub struct Closed {
    sent: HashMap<Id, u32>,
    order: VecDeque<Id>,
}

/// The number of them that are remembered: at ten thousand closings a second they last some hundreds of milliseconds,
/// in which a peer asks several times.
const REMEMBERED: usize = 2048;

impl Closed {
    pub fn new() -> Self {
        Self { sent: HashMap::new(), order: VecDeque::new() }
    }

    /// Bytes of as many as are remembered: a table at most seven eighths full with a byte more for each of its places,
    /// and the order.
    pub fn bytes() -> usize {
        let buckets = (REMEMBERED * 8 / 7).next_power_of_two();
        buckets * (size_of::<(Id, u32)>() + 1) + (REMEMBERED + 1).next_power_of_two() * size_of::<Id>()
    }

    pub fn remember(&mut self, id: Id, sent: u32) {
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.sent.remove(&oldest);
        }
        self.order.push_back(id);
        self.sent.insert(id, sent);
    }

    /// The number of messages that this end had sent by the connection.
    pub fn sent(&self, id: &Id) -> Option<u32> {
        self.sent.get(id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_count_that_comes_late_is_not_heard() {
        let mut farewell = Farewell::default();
        for (sent, heard) in [(u32::MAX, u32::MAX), (2, 2), (u32::MAX, 2), (1, 2), (3, 3)] {
            farewell.hear(sent);
            assert_eq!(farewell.heard, Some(heard));
        }
    }

    #[test]
    fn the_last_ones_are_remembered() {
        let mut closed = Closed::new();
        let id = |nonce| Id { initiator: 1, color: 0, nonce };
        for nonce in 0..REMEMBERED as u64 + 10 {
            closed.remember(id(nonce), nonce as u32);
        }
        assert_eq!((closed.sent(&id(9)), closed.sent(&id(10))), (None, Some(10)));
        assert_eq!((closed.sent.len(), closed.order.len()), (REMEMBERED, REMEMBERED));
    }
}
