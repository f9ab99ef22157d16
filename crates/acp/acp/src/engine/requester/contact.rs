//! Contact with peers: operations get their connection, or wait until there is one.

use std::time::Instant;

use vervain_mesh::Link;

use super::{Peer, Requester};
use crate::error::Error;
use crate::op::{Place, Step, Work};

impl Requester {
    /// Brings an operation to the connection of its next step.
    #[inline]
    pub fn route(&mut self, i: u32) {
        let op = &self.operations[i];
        let address = match (op.work, op.step) {
            // These have their connection, and hold it.
            (Work::Answer | Work::Serve | Work::ServeHere, Step::Answer) => return self.enqueue(i, op.answer.link),
            (Work::Discard, _) => return self.enqueue(i, op.link),
            (_, Step::Write | Step::Notify) => op.dst,
            _ => op.src,
        };
        let Some(parts) = self.memory.layout.parts(address) else { return };
        match self.mesh.find(parts.rank, parts.color) {
            // A connection that the mesh has opened just now has to be handled first.
            Some(link) if self.connections.is_open(link) => {
                self.mesh.hold(link);
                self.admit(i, link);
            }
            _ => self.contact(i, parts.rank, parts.color),
        }
    }

    /// Hands an operation to its connection, which it holds, or has it wait for the loop at its word.
    #[inline]
    fn admit(&mut self, i: u32, link: Link) {
        let op = &mut self.operations[i];
        let connection = &mut self.connections[link.index];
        if let Work::Device(what) | Work::Loop(what) = op.work
            && !connection.peer.atomics
        {
            (op.work, op.step) = (Work::Owner(what), Step::Command);
        }
        if let Work::Loop(_) = op.work
            && !connection.begin_loop(i, op.word())
        {
            (op.link, op.place) = (link, Place::Queued);
            return;
        }
        self.enqueue(i, link);
    }

    /// Ends a loop: the next one at its word begins.
    pub fn end_loop(&mut self, i: u32) {
        let (word, link) = (self.operations[i].word(), self.operations[i].link);
        let operations = &self.operations;
        if let Some(next) = self.connections[link.index].end_loop(word, |i| operations[i].word()) {
            self.enqueue(next, link);
        }
    }

    #[cold]
    fn contact(&mut self, i: u32, rank: u32, color: u32) {
        let op = &mut self.operations[i];
        op.place = Place::Contact;
        self.contacts.wait(i, rank, color, (op.work == Work::Serve).then(Instant::now));
        self.mesh.want(rank, color);
    }

    /// Takes a served copy that has waited for its connection for too long.
    pub fn take_late(&mut self) -> Option<u32> {
        let operations = &self.operations;
        let is_waiting = |i| operations[i].work == Work::Serve && operations[i].place == Place::Contact;
        self.contacts.take_late(Instant::now, is_waiting)
    }

    /// Has the mesh do the work that is due.
    pub fn progress_mesh(&mut self) {
        self.due = self.mesh.progress(Instant::now());
    }

    /// The time at which the mesh wants to be called again, or a served copy will have waited for its connection for
    /// too long.
    pub fn due(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.contacts.due()).min()
    }

    /// Handles a connection that has opened: operations that have waited for it go on.
    pub fn handle_opened(&mut self, link: Link) {
        let (rank, color) = self.mesh.peer(link);
        let Some(peer) = Peer::decode(self.mesh.hello(link), color) else {
            return self
                .fail(Error::broken(format!("rank {rank} does not introduce itself as a rank of this job's program")));
        };
        self.connections.open(link, peer);
        for i in self.contacts.take(rank, color) {
            self.mesh.hold(link);
            self.admit(i, link);
        }
    }

    /// Asks for a connection again, after one to the same peer has closed, if an operation waits for one.
    pub fn want_again(&mut self, rank: u32, color: u32) {
        if self.contacts.are_waiting(rank, color) {
            self.mesh.want(rank, color);
        }
    }
}
