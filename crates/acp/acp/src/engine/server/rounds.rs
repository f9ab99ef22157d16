//! Rounds: all peers that may have read this rank's table of registrations are asked to forget it, so that keys that
//! were given up can be used again.

use vervain_mesh::Link;

use super::{Asker, Extension, Server};
use crate::command::Ask;
use crate::engine::requester::Requester;
use crate::op::{Op, Work};

/// The most peers that are asked to forget at a time.
const MAX_ASKED: u32 = 128;

/// A round that is under way.
pub(super) struct Round {
    /// Peers that have not forgotten, and one for the call that begins the round.
    waits: usize,
    /// Keys that the round frees.
    keys: usize,
    /// Peers that have been asked, and have not answered.
    asked: u32,
    /// Peers that have not been asked.
    unasked: Vec<Link>,
}

impl Server {
    /// Returns true if a round is under way.
    pub fn in_round(&self) -> bool {
        self.round.is_some()
    }

    /// Begins a round, unless one is under way.
    pub fn begin_round(&mut self, requester: &mut Requester) {
        if self.round.is_some() {
            return;
        }
        let peers: Vec<Link> = requester.mesh.links().collect();
        let (waits, keys) = (peers.len() + 1, requester.memory.table.given_up());
        self.round = Some(Round { waits, keys, asked: 0, unasked: peers });
        self.ask_more(requester);
        self.count_down(requester);
        requester.start_ready();
    }

    /// Asks peers whose connections are open, as many at a time as may be under way. The other connections open later,
    /// or they close, and then the peer forgets.
    fn ask_more(&mut self, requester: &mut Requester) {
        while let Some(round) = &mut self.round
            && round.asked < MAX_ASKED
        {
            let is_open = |link: &Link| requester.connections.is_open(*link) && requester.mesh.is_open(*link);
            let Some(at) = round.unasked.iter().rposition(is_open) else { return };
            let link = round.unasked.swap_remove(at);
            round.asked += 1;
            requester.mesh.hold(link);
            requester.add(Op { work: Work::Discard, link, ..Op::NONE });
        }
    }

    /// Goes on with a round after a connection has opened.
    pub fn handle_opened(&mut self, requester: &mut Requester) {
        if self.round.is_some() {
            self.ask_more(requester);
        }
    }

    /// Goes on with a round after a connection has closed.
    pub fn handle_closed(&mut self, requester: &mut Requester, link: Link) {
        let Some(round) = &mut self.round else { return };
        let Some(at) = round.unasked.iter().position(|unasked| *unasked == link) else { return };
        round.unasked.swap_remove(at);
        self.count_down(requester);
    }

    /// Goes on with a round after a peer that was asked has forgotten.
    pub fn handle_forgotten(&mut self, requester: &mut Requester) {
        if let Some(round) = &mut self.round {
            round.asked -= 1;
        }
        self.ask_more(requester);
        self.count_down(requester);
    }

    /// Counts one peer; the last one ends the round, and segments that have waited for it are made.
    fn count_down(&mut self, requester: &mut Requester) {
        let Some(round) = &mut self.round else { return };
        round.waits -= 1;
        if round.waits == 0 {
            let keys = round.keys;
            self.round = None;
            requester.memory.table.round_done(keys);
            for Extension { known, len, asker } in std::mem::take(&mut self.extensions) {
                self.served += u32::from(matches!(asker, Asker::Peer(_)));
                self.begin_ask(requester, Ask::Extend { known, len }, asker);
            }
        }
    }
}
