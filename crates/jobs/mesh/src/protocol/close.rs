//! Closing a connection, drained at both ends: nothing is under way, and all that was sent was received.

use std::time::Instant;

use super::message::{Id, Message};
use super::place::State;
use super::repeat::Repeat;
use super::{Fabric, Pool};
use crate::address::Door;

impl<F: Fabric> Pool<F> {
    /// Closes connections, those that were unused for longest, until as many places are or will be free as are waited
    /// for, and a few more. Says whether one could be free at once.
    pub(super) fn evict(&mut self, now: Instant) -> bool {
        let reserve = self.node.config.connections / 64;
        let needed = self.wants.located().count() + self.knocks.len() + reserve;
        let mut at_once = false;
        while self.places.free_soon() < needed {
            let Some(index) = self.places.oldest_idle() else {
                self.hungry = true;
                return at_once;
            };
            at_once |= self.close(now, index);
        }
        self.hungry = false;
        at_once
    }

    /// Closes one that nobody holds.
    fn close(&mut self, now: Instant, index: u32) -> bool {
        self.places.shut(index);
        if self.is_loop(index) {
            return true;
        }
        self.places.peer_mut(index).repeat = Some(Repeat::new(now, &mut self.node.rng));
        self.say_disconnect(index);
        false
    }

    fn is_loop(&self, index: u32) -> bool {
        self.places.peer(index).rank == self.node.config.rank
    }

    pub(super) fn say_disconnect(&mut self, index: u32) {
        let (place, peer) = self.places.both_mut(index);
        let (sent, round) = (place.sent, peer.farewell.peers_round);
        peer.farewell.said = Some((sent, round));
        let (port, door, message) = (peer.port, peer.door, Message::Disconnect { id: peer.id, sent, round });
        self.node.say(port, &door, message);
    }

    fn say_wait(&mut self, index: u32) {
        let peer = self.places.peer(index);
        let (port, door, message) = (peer.port, peer.door, Message::Wait { id: peer.id, round: peer.farewell.round });
        self.node.say(port, &door, message);
    }

    /// Returns true if nothing is outstanding, at either end.
    fn is_drained(&self, index: u32) -> bool {
        let (place, peer) = (self.places.place(index), self.places.peer(index));
        let sent = if self.is_loop(index) { Some(place.sent) } else { peer.farewell.heard };
        place.holds == 0 && sent == Some(place.received)
    }

    /// Frees the places that are drained.
    pub(super) fn finish_closings(&mut self) {
        if self.places.closing() == 0 {
            return;
        }
        for index in self.places.changing().to_vec() {
            if self.places.place(index).state == State::Closing {
                self.go_on_closing(index);
            }
        }
    }

    fn go_on_closing(&mut self, index: u32) {
        let (place, peer) = self.places.both_mut(index);
        let farewell = &mut peer.farewell;
        if place.holds > 0 {
            return;
        }
        let is_new_round = std::mem::take(&mut place.let_go) && !farewell.is_last;
        if is_new_round {
            farewell.round += 1;
            farewell.heard = None;
        }
        // The owner has sent more since, or the peer has begun a new round.
        let is_news = farewell.said.is_some_and(|said| said != (place.sent, farewell.peers_round));
        let is_owed = farewell.owed;
        if self.is_drained(index) {
            return self.closed(index);
        }
        if is_news {
            self.say_disconnect(index);
        }
        if is_new_round && is_owed {
            self.say_wait(index);
        }
    }

    fn closed(&mut self, index: u32) {
        let (sent, peer) = (self.places.place(index).sent, self.places.peer(index));
        let (id, rank) = (peer.id, peer.rank);
        if peer.farewell.owed {
            let (port, door) = (peer.port, peer.door);
            self.node.say(port, &door, Message::Disconnected { id, sent });
        }
        if rank != self.node.config.rank {
            self.closed.remember(id, sent);
        }
        self.vacate(index);
    }

    /// The peer closes, having `sent` so many by this round of this end.
    pub(super) fn on_disconnect(&mut self, port: usize, from: u32, door: Door, id: &Id, (sent, round): (u32, u32)) {
        let Some(index) = self.places.of(from, id) else {
            if let Some(sent) = self.closed.sent(id) {
                self.node.say(port, &door, Message::Disconnected { id: *id, sent });
            }
            return;
        };
        let place = self.places.place(index);
        match place.state {
            // The Ready was lost. The owner may use the connection once, since it may have wanted it.
            State::Accepted if id.initiator == from => self.opened(index),
            State::Open if !place.unseen => self.places.shut(index),
            State::Open | State::Closing => {}
            State::Free | State::Connecting | State::Accepted => return,
        }
        if self.places.place(index).state == State::Closing {
            let farewell = &mut self.places.peer_mut(index).farewell;
            farewell.owed = true;
            if round == farewell.round && !farewell.is_last {
                farewell.hear(sent);
            }
        }
        if !self.is_drained(index) {
            self.say_wait(index);
        }
    }

    pub(super) fn on_disconnected(&mut self, from: u32, id: &Id, sent: u32) {
        if let Some(index) = self.places.of(from, id)
            && self.places.place(index).state == State::Closing
        {
            let farewell = &mut self.places.peer_mut(index).farewell;
            (farewell.heard, farewell.is_last) = (Some(sent), true);
        }
    }
}
