//! The handshake that opens a connection: Connect, Accept, Ready.

use std::time::Instant;

use super::knocks::Knock;
use super::message::{Id, Message};
use super::place::{Peer, State};
use super::repeat::{Repeat, rest};
use super::wants::{Stage, Want};
use super::{Fabric, Pool};
use crate::address::{Door, Doors, Lanes, MAX_DEVICES};
use crate::error::{Error, Result};
use crate::options::{Event, Link};

impl<F: Fabric> Pool<F> {
    /// Connects to `rank` by `color`, unless it is or will be connected.
    pub fn want(&mut self, now: Instant, rank: u32, color: u32) {
        if rank >= self.node.config.size {
            let sentence = format!("there is no rank {rank}: the job has {}", self.node.config.size);
            return self.node.fail(rank, color, Error::new(sentence));
        }
        match self.places.find(rank, color) {
            Some(index) => self.want_again(index),
            None if self.wants.contains(rank, color) => return,
            None => {
                let want = self.new_want(rank, color);
                self.wants.insert(want);
            }
        }
        self.settle(now);
    }

    fn new_want(&mut self, rank: u32, color: u32) -> Want {
        self.turn += 1;
        Want { rank, color, turn: self.turn, rounds: 0, stage: Stage::New }
    }

    /// A connection that has a place is wanted.
    fn want_again(&mut self, index: u32) {
        let (place, peer) = self.places.both_mut(index);
        if place.state == State::Open {
            if !place.unseen {
                place.unseen = true;
                self.node.report(Event::Opened(Link { index, life: place.life }));
            }
            return;
        }
        if peer.wanted.is_none() {
            let (rank, color) = (peer.rank, peer.color);
            self.places.peer_mut(index).wanted = Some(self.new_want(rank, color));
        }
    }

    /// Gives free places to wants and to peers that wait, in turn.
    pub(super) fn serve(&mut self, now: Instant) {
        loop {
            let want = self.wants.located().next().copied();
            match (want, self.knocks.first_color()) {
                (Some(want), color) if color.is_none() || !self.knocks.are_next => {
                    let Stage::Located(doors) = want.stage else { return };
                    let Some(index) = self.take_free(self.node.port_for(want.color)) else { return };
                    self.wants.remove(want.rank, want.color);
                    self.knocks.are_next = true;
                    self.begin(now, index, want, doors);
                }
                (_, Some(color)) => {
                    let Some(index) = self.take_free(self.node.port_for(color)) else { return };
                    self.knocks.are_next = false;
                    if let Some(knock) = self.knocks.pop() {
                        self.accept(now, index, knock);
                    }
                }
                _ => return,
            }
        }
    }

    /// A want has a place.
    fn begin(&mut self, now: Instant, index: u32, want: Want, doors: Doors) {
        // The peer has asked already.
        if let Some(knock) = self.knocks.remove(want.rank, want.color) {
            self.wants.insert(want);
            return self.accept(now, index, knock);
        }
        self.nonce += 1;
        let id = Id { initiator: self.node.config.rank, color: want.color, nonce: self.nonce };
        let (door, port) = (doors.of(want.color), self.node.port_for(want.color));
        let peer = Peer { rank: want.rank, color: want.color, port, door, id, wanted: Some(want), ..Peer::NONE };
        self.places.occupy(index, State::Connecting, peer);
        let is_loop = want.rank == self.node.config.rank;
        let begun = if is_loop { self.connect_to_itself(index) } else { self.ask(now, index) };
        if let Err(error) = begun {
            self.lose(index, error);
        }
    }

    fn prepare(&mut self, index: u32) -> Result<Lanes> {
        let (place, peer) = self.places.both_mut(index);
        let lanes = self.node.fabric.prepare(index, peer.port, place.life)?;
        peer.lanes = Some(lanes);
        Ok(lanes)
    }

    fn connect_to_itself(&mut self, index: u32) -> Result<()> {
        let lanes = self.prepare(index)?;
        let peer = self.places.peer_mut(index);
        peer.door = self.node.config.doors.of(peer.port as u32);
        peer.hello.clone_from(&self.node.config.hello);
        self.node.fabric.connect(index, peer.port, &peer.door, &lanes)?;
        self.opened(index);
        Ok(())
    }

    fn ask(&mut self, now: Instant, index: u32) -> Result<()> {
        self.prepare(index)?;
        self.places.peer_mut(index).repeat = Some(Repeat::new(now, &mut self.node.rng));
        self.say_connect(index);
        Ok(())
    }

    /// The place cannot be used for that: the job will end.
    pub(super) fn lose(&mut self, index: u32, error: Error) {
        let peer = self.places.peer_mut(index);
        let (rank, color) = (peer.rank, peer.color);
        peer.wanted = None;
        self.node.fail(rank, color, error);
        self.vacate(index);
    }

    pub(super) fn on_connect(&mut self, now: Instant, port: usize, knock: Knock) {
        let color = knock.id.color;
        // One that was closed comes late.
        if color >= MAX_DEVICES as u32 || port != self.node.port_for(color) || self.closed.sent(&knock.id).is_some() {
            return;
        }
        let Some(index) = self.places.find(knock.rank, knock.id.color) else { return self.knock(port, knock) };
        let id = self.places.peer(index).id;
        match self.places.place(index).state {
            // Both have asked: the lower rank's attempt wins. The higher one accepts it in the place of its own.
            State::Connecting if knock.rank < self.node.config.rank => self.accept_instead(now, index, knock),
            State::Accepted | State::Open if id == knock.id => self.say_accept(index),
            // It has given the earlier attempt up, and knows nothing of this end.
            State::Accepted if id.nonce < knock.id.nonce => {
                self.vacate(index);
                self.knock(port, knock);
            }
            // One that is closing will be free when the peer asks again.
            _ => {}
        }
    }

    fn knock(&mut self, port: usize, knock: Knock) {
        if self.knocks.contains(&knock.id) {
            return self.node.say(port, &knock.door, Message::Wait { id: knock.id, round: 0 });
        }
        if let Err(knock) = self.knocks.push(knock) {
            self.node.say(port, &knock.door, Message::Busy { id: knock.id });
        }
    }

    /// Opens this end in a place that was free.
    fn accept(&mut self, now: Instant, index: u32, knock: Knock) {
        let (rank, color) = (knock.rank, knock.id.color);
        let wanted = self.wants.remove(rank, color);
        let peer = Peer { rank, color, port: self.node.port_for(color), wanted, ..Peer::NONE };
        self.places.occupy(index, State::Accepted, peer);
        match self.prepare(index) {
            Ok(_) => self.accept_instead(now, index, knock),
            Err(error) => self.lose(index, error),
        }
    }

    /// Opens this end in a place whose QPs are in INIT.
    fn accept_instead(&mut self, now: Instant, index: u32, knock: Knock) {
        let (place, peer) = self.places.both_mut(index);
        place.state = State::Accepted;
        (peer.id, peer.door, peer.hello) = (knock.id, knock.door, knock.hello);
        peer.repeat = Some(Repeat::new(now, &mut self.node.rng));
        match self.node.fabric.connect(index, peer.port, &peer.door, &knock.lanes) {
            Ok(()) => self.say_accept(index),
            Err(error) => self.lose(index, error),
        }
    }

    /// Those for whom no place will be free soon must not wait for one, since they hold a place meanwhile: else ranks
    /// could wait for each other in a circle. Only for a lower rank a place is taken from an attempt of the own, so
    /// that of all who ask at once the lowest gets on.
    pub(super) fn turn_away(&mut self, now: Instant) {
        let wants = self.wants.located().count();
        for knock in self.knocks.without_hope(self.places.closing(), wants) {
            let port = self.node.port_for(knock.id.color);
            match self.robbed_for(knock.rank).and_then(|()| self.take_free(port)) {
                Some(index) => self.accept(now, index, knock),
                None => self.node.say(port, &knock.door, Message::Busy { id: knock.id }),
            }
        }
    }

    /// Takes the place of an attempt of the own, the highest rank's.
    fn robbed_for(&mut self, rank: u32) -> Option<()> {
        if rank > self.node.config.rank {
            return None;
        }
        let places = self.places.changing().iter().copied();
        let attempts = places.filter(|index| self.places.place(*index).state == State::Connecting);
        let index = attempts.max_by_key(|index| self.places.peer(*index).rank)?;
        self.vacate(index);
        // Its want may have a connection closed.
        self.due = true;
        Some(())
    }

    pub(super) fn on_accept(&mut self, port: usize, from: u32, door: Door, id: &Id, lanes: &Lanes, hello: &[u8]) {
        if id.initiator != self.node.config.rank {
            return;
        }
        let Some(index) = self.places.of(from, id) else {
            return self.node.say(port, &door, Message::Stale { id: *id });
        };
        let (place, peer) = self.places.both_mut(index);
        if place.state == State::Connecting {
            (peer.hello, peer.theirs) = (hello.to_vec(), Some(*lanes));
            if let Err(error) = self.node.fabric.connect(index, peer.port, &peer.door, lanes) {
                return self.lose(index, error);
            }
            self.opened(index);
        } else if peer.theirs != Some(*lanes) {
            // The peer has closed it, and has taken a late Connect for a new one.
            return self.node.say(port, &door, Message::Stale { id: *id });
        }
        self.node.say(port, &door, Message::Ready { id: *id });
    }

    fn accepted(&self, from: u32, id: &Id) -> Option<u32> {
        let index = self.places.of(from, id)?;
        (self.places.place(index).state == State::Accepted && id.initiator == from).then_some(index)
    }

    pub(super) fn on_ready(&mut self, from: u32, id: &Id) {
        if let Some(index) = self.accepted(from, id) {
            self.opened(index);
        }
    }

    pub(super) fn on_stale(&mut self, from: u32, id: &Id) {
        if let Some(index) = self.accepted(from, id) {
            self.vacate(index);
        }
    }

    pub(super) fn on_busy(&mut self, now: Instant, from: u32, id: &Id) {
        let Some(index) = self.places.of(from, id) else { return };
        if self.places.place(index).state != State::Connecting {
            return;
        }
        if let Some(want) = &mut self.places.peer_mut(index).wanted
            && let Stage::Located(doors) = want.stage
        {
            want.rounds += 1;
            want.stage = Stage::Resting(doors, now + rest(want.rounds, &mut self.node.rng));
        }
        self.vacate(index);
    }

    pub(super) fn on_wait(&mut self, now: Instant, from: u32, id: &Id, round: u32) {
        let Some(index) = self.places.of(from, id) else { return };
        let peer = self.places.peer_mut(index);
        if let Some(repeat) = &mut peer.repeat {
            repeat.heard(now);
        }
        peer.farewell.peers_round = peer.farewell.peers_round.max(round);
    }

    /// Says again what has had no answer.
    pub(super) fn repeat_handshakes(&mut self, now: Instant) {
        for index in self.places.changing().to_vec() {
            let (place, peer) = self.places.both_mut(index);
            let Some(repeat) = &mut peer.repeat else { continue };
            if !repeat.is_due(now, &mut self.node.rng) {
                continue;
            }
            let state = place.state;
            if repeat.is_silent(now, self.node.config.give_up) {
                let what = if state == State::Closing { "to close" } else { "to open" };
                let error = Error::new(format!(
                    "rank {} has not answered for {:?}; there is a connection {what} between it and rank {}",
                    peer.rank, self.node.config.give_up, self.node.config.rank
                ));
                if state != State::Closing {
                    self.lose(index, error);
                    continue;
                }
                peer.repeat = None;
                let (rank, color) = (peer.rank, peer.color);
                self.node.fail(rank, color, error);
                continue;
            }
            match state {
                State::Connecting => self.say_connect(index),
                State::Accepted => self.say_accept(index),
                State::Closing => self.say_disconnect(index),
                State::Free | State::Open => {}
            }
        }
    }

    fn say_connect(&mut self, index: u32) {
        let peer = self.places.peer(index);
        let Some(lanes) = peer.lanes else { return };
        let (id, to) = (peer.id, peer.rank);
        self.node.say_hello(peer.port, &peer.door, |hello| Message::Connect { id, to, lanes, hello });
    }

    fn say_accept(&mut self, index: u32) {
        let peer = self.places.peer(index);
        let Some(lanes) = peer.lanes else { return };
        self.node.say_hello(peer.port, &peer.door, |hello| Message::Accept { id: peer.id, lanes, hello });
    }
}
