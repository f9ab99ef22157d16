//! The other nodes: the connections to them, what has become of them, and what the program and the context's thread are
//! to learn of that.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use vervain_mesh::{Event, Link, Mesh};
use vervain_rdma::Status;

use crate::error::{Error, Result};

/// Requests in each of the two send queues of a connection.
pub(crate) const QUEUE: u32 = 64;
/// The only port of the mesh that a context has.
pub(crate) const PORT: usize = 0;
/// The color of all its connections.
pub(crate) const COLOR: u32 = 0;
/// The value in place of a connection in an unused slot or operation.
pub(crate) const NO_LINK: Link = Link { index: 0, life: 0 };

/// Messages that were sent to a node, and received from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub sent: u64,
    pub received: u64,
}

/// Counts by node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Totals(HashMap<u32, Counts>);

impl Totals {
    fn add(&mut self, node: u32, counts: Counts) {
        if counts != Counts::default() {
            let total = self.0.entry(node).or_default();
            total.sent += counts.sent;
            total.received += counts.received;
        }
    }
}

/// A connection's side that the mesh does not know.
#[derive(Clone, Copy, Default)]
pub(crate) struct Connection {
    /// Messages, and writes and reads, that are with the device.
    pub messages: u32,
    pub operations: u32,
    /// Messages that were sent to the node by it, and those that have come from there.
    pub counts: Counts,
    /// A message, or a write or read, has failed: the device carries out no more of them.
    messages_broken: bool,
    pub operations_broken: bool,
}

/// Whatever a program may wait for but messages.
#[derive(Default)]
pub(crate) struct News {
    /// Grows with each.
    count: u64,
    /// The count when the program was last told to look, by the end of a sleep or since there was something; not when
    /// it last found nothing, which may have been of something else.
    seen: u64,
    /// The program has asked for events, and has not taken them.
    pub armed: bool,
}

impl News {
    #[inline]
    pub fn add(&mut self, count: u64) {
        self.count += count;
    }

    /// Returns true if something has happened that the program was not told of when it was to sleep.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count != self.seen
    }

    /// The program is told to look.
    pub fn see(&mut self) {
        self.seen = self.count;
    }
}

/// When the mesh is to be called, and what the thread knows of that.
#[derive(Default)]
struct Schedule {
    /// When the mesh wants to be called again, as far as is known; connections have changed since the thread has looked
    /// at that.
    due: Option<Instant>,
    stirred: bool,
    /// The thread looks at messages and completions too, and when it wakes by itself.
    watching: bool,
    wakes_at: Option<Instant>,
}

pub(crate) struct Nodes {
    pub mesh: Mesh,
    pub rank: u32,
    pub size: u32,
    /// By place in the mesh.
    connections: Vec<Connection>,
    /// By connections that were closed, or in the life that an image was made of.
    totals: Totals,
    /// Nodes that cannot be reached any more, and why.
    lost: HashMap<u32, Arc<str>>,
    /// Lost nodes that no receive has reported to the program yet.
    untold: VecDeque<u32>,
    pub news: News,
    /// The context cannot go on.
    failure: Option<Error>,
    schedule: Schedule,
}

impl Nodes {
    /// Those of an open mesh with places for so many connections.
    pub fn new(mesh: Mesh, connections: usize) -> Nodes {
        Nodes {
            rank: mesh.rank(),
            size: mesh.size(),
            connections: vec![Connection::default(); connections],
            totals: Totals::default(),
            lost: HashMap::new(),
            untold: VecDeque::new(),
            news: News::default(),
            failure: None,
            schedule: Schedule::default(),
            mesh,
        }
    }

    /// The context cannot go on; the first reason counts.
    #[cold]
    pub fn fail(&mut self, error: Error) {
        self.news.add(1);
        self.note_failure(error);
    }

    /// As [`fail`](Nodes::fail), where the program does not wait for it.
    pub fn note_failure(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// # Errors
    /// The context cannot go on.
    #[inline]
    pub fn check(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// # Errors
    /// EINVAL: no such node. EPIPE: it was lost.
    #[inline]
    pub fn check_node(&self, node: u32) -> Result<()> {
        if node >= self.size {
            return Err(Error::invalid(format!("there is no node {node}: the context has {}", self.size)));
        }
        if self.lost.is_empty() { Ok(()) } else { self.check_lost(node) }
    }

    #[cold]
    fn check_lost(&self, node: u32) -> Result<()> {
        self.lost.get(&node).map_or(Ok(()), |why| Err(Error::new(libc::EPIPE, &**why)))
    }

    /// # Errors
    /// EPIPE: a node was lost.
    pub fn check_all(&self) -> Result<()> {
        match self.lost.iter().next() {
            None => Ok(()),
            Some((node, why)) => Err(Error::new(libc::EPIPE, format!("node {node} takes no part: {why}"))),
        }
    }

    pub fn is_lost(&self, node: u32) -> bool {
        self.lost.contains_key(&node)
    }

    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns true if the program has not been told of a lost node.
    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// The loss of a node that the program has not been told of.
    pub fn next_loss(&mut self) -> Option<Error> {
        let node = self.untold.pop_front()?;
        Some(Error::new(libc::EPIPE, &*self.lost[&node]))
    }

    /// A node cannot be reached any more.
    #[cold]
    fn lose(&mut self, node: u32, why: &str) {
        self.news.add(1);
        if let Entry::Vacant(place) = self.lost.entry(node) {
            place.insert(format!("node {node} is lost: {why}").into());
            self.untold.push_back(node);
        }
    }

    /// The most connections that there can be.
    pub fn most_connections(&self) -> usize {
        self.connections.len()
    }

    /// The connection to a node.
    #[inline]
    pub fn find(&self, node: u32) -> Option<Link> {
        self.mesh.find(node, COLOR)
    }

    #[inline]
    pub fn connection(&self, link: Link) -> &Connection {
        &self.connections[link.index as usize]
    }

    #[inline]
    pub fn connection_mut(&mut self, link: Link) -> &mut Connection {
        &mut self.connections[link.index as usize]
    }

    /// Takes messages that have come, with the place of each in the receives; returns how many.
    #[inline]
    pub fn poll_messages(&mut self, mut take: impl FnMut(vervain_mesh::Command, u32)) -> vervain_mesh::Result<usize> {
        let connections = &mut self.connections;
        self.mesh.poll_commands(PORT, |command, node| {
            connections[command.link.index as usize].counts.received += 1;
            take(command, node);
        })
    }

    /// Answers peers that ask for connections, and goes on with those that are made or closed.
    pub fn look_for_peers(&mut self) -> bool {
        let found = match self.mesh.poll_door(PORT) {
            Ok(0) => return false,
            Ok(found) => found,
            Err(error) => {
                self.fail(error.into());
                return false;
            }
        };
        // An answer may have to be waited for.
        self.progress(Instant::now());
        found > 0
    }

    /// Has the mesh do what is due at once.
    #[inline]
    pub fn attend(&mut self) {
        if self.mesh.needs_owner() {
            self.progress(Instant::now());
        }
    }

    /// Has the mesh do what is due, and takes note of what has happened to connections.
    #[cold]
    pub fn progress(&mut self, now: Instant) {
        self.schedule.stirred = true;
        self.schedule.due = self.mesh.progress(now);
        while let Some(event) = self.mesh.next_event() {
            self.news.add(1);
            match event {
                // The counts of its last life were taken away when that was closed; messages may have come by this one
                // already.
                Event::Opened(_) => {}
                Event::Closed { link, rank, .. } => {
                    let connection = std::mem::take(self.connection_mut(link));
                    self.totals.add(rank, connection.counts);
                }
                Event::Failed { rank, error, .. } if rank == self.rank => self.fail(error.into()),
                Event::Failed { rank, error, .. } => self.lose(rank, &error.to_string()),
            }
        }
    }

    /// A request has failed, and with it all that were posted behind it by the same lane. It is the end of the node,
    /// but where the node itself has refused a write or a read: that has no more of those.
    #[cold]
    pub fn request_failed(&mut self, link: Link, is_message: bool, status: Status) {
        let node = self.mesh.peer(link).0;
        let connection = self.connection_mut(link);
        let broken = if is_message { &mut connection.messages_broken } else { &mut connection.operations_broken };
        if std::mem::replace(broken, true) || (!is_message && is_refusal(status)) {
            return;
        }
        // The counts of sent and received messages will never agree, so a close must not wait for that.
        self.mesh.hold(link);
        self.lose(node, &format!("a request failed: {status}"));
    }

    /// Messages to and from each node, in the order of their numbers.
    pub fn counts(&self) -> Vec<(u32, Counts)> {
        let mut all = self.totals.clone();
        for link in self.mesh.links() {
            all.add(self.mesh.peer(link).0, self.connection(link).counts);
        }
        let mut all: Vec<_> = all.0.into_iter().filter(|(_, counts)| *counts != Counts::default()).collect();
        all.sort_unstable_by_key(|(node, _)| *node);
        all
    }

    /// Takes the counts from an image, and forgets all others.
    pub fn restore_counts(&mut self, counts: Vec<(u32, Counts)>) {
        self.connections.iter_mut().for_each(|connection| connection.counts = Counts::default());
        self.totals = Totals(counts.into_iter().collect());
    }

    /// Returns true if the thread has to be told of what a call of the program's has changed: it is to wake earlier, to
    /// look at what it does not look at, or to ask the launcher.
    #[inline]
    pub fn needs_thread(&mut self) -> bool {
        self.mesh.needs_owner() || (self.schedule.stirred && self.has_been_stirred())
    }

    #[cold]
    fn has_been_stirred(&mut self) -> bool {
        let Schedule { due, stirred, watching, wakes_at } = &mut self.schedule;
        *stirred = false;
        let is_earlier = due.is_some_and(|due| wakes_at.is_none_or(|wakes| due < wakes));
        is_earlier || (self.mesh.is_draining() && !*watching)
    }

    /// The thread looks at messages and completions too, or not.
    pub fn watch(&mut self, watching: bool) {
        self.schedule.watching = watching;
    }

    /// The thread is going to sleep until the mesh wants to be called again, at the time that this returns.
    pub fn begin_sleep(&mut self) -> Option<Instant> {
        self.schedule.stirred = false;
        self.schedule.wakes_at = self.schedule.due;
        self.schedule.due
    }
}

/// Returns true if the node is there and does not allow what was asked.
pub(crate) fn is_refusal(status: Status) -> bool {
    matches!(status, Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_connections_add_up() {
        let mut totals = Totals::default();
        for _ in 0..2 {
            totals.add(7, Counts { sent: 2, received: 1 });
            totals.add(8, Counts::default());
        }
        assert_eq!(totals, Totals(HashMap::from([(7, Counts { sent: 4, received: 2 })])));
    }
}
