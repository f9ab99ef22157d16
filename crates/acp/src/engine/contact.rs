//! Contact with peers: operations find their connection, or wait until there is one.

use std::time::Instant;

use vervain_mesh::{Event, Link};

use super::{Connection, Engine, Peer};
use crate::error::Error;
use crate::op::{Place, Step, Work};

impl Engine {
    /// Brings an operation to the connection of its next step.
    #[inline]
    pub(super) fn route(&mut self, i: u32) {
        let op = &self.operations[i];
        let address = match (op.work, op.step) {
            // These have theirs, and hold it.
            (Work::Answer | Work::Serve | Work::ServeHere, Step::Answer) => return self.enqueue(i, op.answer.link),
            (Work::Discard, _) => return self.enqueue(i, op.link),
            (_, Step::Write | Step::Notify) => op.dst,
            _ => op.src,
        };
        let Some(parts) = self.memory.layout.parts(address) else { return };
        match self.mesh.find(parts.rank, parts.color) {
            // One that the mesh has opened just now has to be taken note of first.
            Some(link) if self.connections[link.index as usize].link == Some(link) => {
                self.mesh.hold(link);
                self.admit(i, link);
            }
            _ => self.contact(i, parts.rank, parts.color),
        }
    }

    /// Hands an operation to the connection, which it holds, or has it wait for the loop that is at its word.
    #[inline]
    fn admit(&mut self, i: u32, link: Link) {
        let op = &mut self.operations[i];
        let connection = &mut self.connections[link.index as usize];
        if let Work::Device(what) | Work::Loop(what) = op.work
            && !connection.peer.atomics
        {
            (op.work, op.step) = (Work::Owner(what), Step::Command);
        }
        if let Work::Loop(_) = op.work {
            let word = op.word();
            if connection.looping.contains(&word) {
                (op.link, op.place) = (link, Place::Queued);
                return connection.loops.push_back(i);
            }
            connection.looping.push(word);
        }
        self.enqueue(i, link);
    }

    /// A loop is over: the next one at its word begins.
    pub(super) fn loop_done(&mut self, i: u32) {
        let (word, link) = (self.operations[i].word(), self.operations[i].link);
        let connection = &mut self.connections[link.index as usize];
        let next = connection.loops.iter().position(|i| self.operations[*i].word() == word);
        if let Some(next) = next.and_then(|at| connection.loops.remove(at)) {
            return self.enqueue(next, link);
        }
        connection.looping.retain(|looping| *looping != word);
    }

    #[cold]
    fn contact(&mut self, i: u32, rank: u32, color: u32) {
        let op = &mut self.operations[i];
        op.place = Place::Contact;
        if op.work == Work::Serve {
            self.served_since.push_back((Instant::now(), i));
        }
        self.contacts.entry((rank, color)).or_default().push_back(i);
        self.mesh.want(rank, color);
    }

    /// Takes an operation out of those that wait for a connection.
    pub(super) fn give_up_contact(&mut self, i: u32) {
        for waiting in self.contacts.values_mut() {
            waiting.retain(|waits| *waits != i);
        }
        self.contacts.retain(|_, waiting| !waiting.is_empty());
    }

    /// Has the mesh do what is due, and goes on with what its connections allow. Says whether something has happened.
    pub(super) fn attend(&mut self) -> bool {
        self.due = self.mesh.progress(Instant::now());
        self.take_events()
    }

    /// Goes on with what has happened to connections.
    #[inline]
    pub(super) fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.mesh.next_event() {
            any = true;
            match event {
                Event::Opened(link) => self.opened(link),
                Event::Closed { link, rank, color } => {
                    self.connections[link.index as usize] = Connection::default();
                    self.round_without(link);
                    if self.contacts.contains_key(&(rank, color)) {
                        self.mesh.want(rank, color);
                    }
                }
                Event::Failed { error, .. } => self.fail(error.into()),
            }
        }
        any
    }

    fn opened(&mut self, link: Link) {
        let (rank, color) = self.mesh.peer(link);
        let Some(peer) = Peer::decode(self.mesh.hello(link), color) else {
            return self
                .fail(Error::broken(format!("rank {rank} does not introduce itself as a rank of this job's program")));
        };
        self.stamps += 1;
        self.connections[link.index as usize] =
            Connection { link: Some(link), stamp: self.stamps, peer, ..Connection::default() };
        for i in self.contacts.remove(&(rank, color)).into_iter().flatten() {
            self.mesh.hold(link);
            self.admit(i, link);
        }
        self.round_goes_on();
    }

    /// When the mesh wants to be called again, or a served copy has waited for its connection for too long.
    pub fn due(&self) -> Option<Instant> {
        let served = self.served_since.front().map(|(since, _)| *since + super::command::PATIENCE);
        self.due.into_iter().chain(served).min()
    }
}
