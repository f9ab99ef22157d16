//! The state of connections that the mesh does not have.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use vervain_mesh::Link;

use super::peer::Peer;

/// Requests of a connection on each lane. As many receives are reserved for the notices of answers.
pub(crate) const SENDS: u32 = 16;

/// A Read of an entry that is under way.
pub(super) struct Fetch {
    pub region: u64,
    /// The connection's stamp when the Read began.
    pub stamp: u64,
    pub link: Link,
}

/// One connection.
#[derive(Default)]
pub(super) struct Connection {
    /// The open connection; None: none is open at this place.
    pub link: Option<Link>,
    /// Set anew when the connection opens, and when the peer asks this rank to forget its entries; never twice the
    /// same.
    pub stamp: u64,
    pub peer: Peer,
    /// Operations that wait for room in the send queue of the data lane, or for an entry.
    pub queue: VecDeque<u32>,
    /// Operations that wait until they can send their command. They wait for the peer, so no other operation waits
    /// behind them.
    commands: VecDeque<u32>,
    /// Words of loops under way, and loops that wait for one of these. Two loops of a rank at one word would most often
    /// spoil each other's guess; with a whole queue of them none would ever succeed.
    looping: Vec<u64>,
    loops: VecDeque<u32>,
    /// Some: an entry is being read.
    pub fetching: Option<Fetch>,
    /// Requests with the device on the data lane, and on that of commands.
    pub posted: u32,
    pub sent: u32,
    /// Commands without an answer yet.
    pub unanswered: u32,
    /// The program's operations of a single step here, and Reads and atomics among them.
    pub singles: u32,
    pub reads: u32,
}

impl Connection {
    #[inline]
    pub fn queue_of(&mut self, command: bool) -> &mut VecDeque<u32> {
        if command { &mut self.commands } else { &mut self.queue }
    }

    #[inline]
    pub fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.commands.is_empty()
    }

    /// Begins loop `i` at `word`. Returns false if another loop is there; this one then waits for it.
    pub fn begin_loop(&mut self, i: u32, word: u64) -> bool {
        if self.looping.contains(&word) {
            self.loops.push_back(i);
            return false;
        }
        self.looping.push(word);
        true
    }

    /// Ends the loop at `word`. Returns the next one there, which may begin. `word_of` returns the word of a loop.
    pub fn end_loop(&mut self, word: u64, word_of: impl Fn(u32) -> u64) -> Option<u32> {
        let next = self.loops.iter().position(|i| word_of(*i) == word);
        let next = next.and_then(|at| self.loops.remove(at));
        if next.is_none() {
            self.looping.retain(|looping| *looping != word);
        }
        next
    }
}

/// The connections, by their places in the mesh's pool.
pub(super) struct Connections {
    all: Vec<Connection>,
    /// The last stamp that was given.
    stamps: u64,
}

impl Connections {
    pub fn new(count: usize) -> Self {
        Self { all: (0..count).map(|_| Connection::default()).collect(), stamps: 0 }
    }

    /// Returns true if this rank has handled the opening of a connection.
    #[inline]
    pub fn is_open(&self, link: Link) -> bool {
        self[link.index].link == Some(link)
    }

    /// Handles the opening of a connection.
    pub fn open(&mut self, link: Link, peer: Peer) {
        self.stamps += 1;
        self[link.index] = Connection { link: Some(link), stamp: self.stamps, peer, ..Connection::default() };
    }

    /// Handles the closing of a connection.
    pub fn close(&mut self, link: Link) {
        self[link.index] = Connection::default();
    }

    /// Forgets the entries that were read by a connection.
    pub fn forget_entries(&mut self, link: Link) {
        self.stamps += 1;
        self[link.index].stamp = self.stamps;
    }
}

impl Index<u32> for Connections {
    type Output = Connection;

    #[inline]
    fn index(&self, place: u32) -> &Connection {
        &self.all[place as usize]
    }
}

impl IndexMut<u32> for Connections {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut Connection {
        &mut self.all[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_at_one_word_take_turns() {
        let mut connection = Connection::default();
        let word_of = |i: u32| u64::from(i / 10);
        assert!(connection.begin_loop(10, word_of(10)));
        assert!(connection.begin_loop(20, word_of(20)));
        assert!(!connection.begin_loop(21, word_of(21)));
        assert!(!connection.begin_loop(11, word_of(11)));
        assert!(!connection.begin_loop(12, word_of(12)));
        assert_eq!(connection.end_loop(1, word_of), Some(11));
        assert!(!connection.begin_loop(13, word_of(13)));
        assert_eq!([(); 3].map(|()| connection.end_loop(1, word_of)), [Some(12), Some(13), None]);
        assert!(connection.begin_loop(14, word_of(14)));
        assert_eq!([(); 2].map(|()| connection.end_loop(2, word_of)), [Some(21), None]);
    }

    #[test]
    fn a_connection_never_has_the_stamp_of_another() {
        let mut connections = Connections::new(2);
        let (one, other) = (Link { index: 0, life: 1 }, Link { index: 1, life: 1 });
        let mut stamps = vec![0];
        let mut note = |connections: &Connections, link: Link| {
            let stamp = connections[link.index].stamp;
            assert!(!stamps.contains(&stamp), "{stamp}");
            stamps.push(stamp);
        };
        for link in [one, other, Link { life: 2, ..one }] {
            connections.open(link, Peer::default());
            assert!(connections.is_open(link));
            note(&connections, link);
        }
        assert!(!connections.is_open(one));
        connections.forget_entries(other);
        note(&connections, other);
        connections.close(other);
        assert!(!connections.is_open(other) && connections[other.index].stamp == 0);
    }
}
