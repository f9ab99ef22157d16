//! The launcher's end: one socket pair for each rank, without a name or a port, and the store behind them.
//!
//! [`Server`] neither waits nor starts threads. The launcher polls the descriptors of [`Server::interest`], calls
//! [`Server::serve`] for those that are ready, and reports processes that have ended by [`Server::ended`].

use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use vervain_config::{JOB_FD, JOB_ID, JOB_RANK, JOB_SIZE};

use crate::alone;
use crate::protocol::{Inbox, Reply, Request, VERSION};

/// Bytes of keys and values that a rank may have in the store: the limit on what a program can do to its launcher's
/// memory.
pub const MAX_STORED: usize = 64 << 20;

/// The store of one job, with the connections to its ranks.
pub struct Server {
    id: String,
    ranks: Vec<Rank>,
    values: HashMap<(u32, String), Vec<u8>>,
    /// Ranks that wait in the fence.
    fenced: BTreeSet<u32>,
    /// The first rank that will not come to a fence any more, and why.
    missing: Option<String>,
}

/// The launcher's state of a rank.
struct Rank {
    /// None after its end.
    stream: Option<UnixStream>,
    inbox: Inbox,
    /// Bytes that the socket has not taken yet. As long as there are any, nothing more is read.
    outbox: Vec<u8>,
    joined: bool,
    /// Values that its next fence commits.
    put: HashMap<String, Vec<u8>>,
    stored: usize,
}

/// A demand of a rank on which the launcher must act: all ranks end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// It aborts the job.
    Abort {
        /// The exit status that it asks for.
        status: i32,
        /// Its reason.
        sentence: String,
    },
    /// Its message makes no sense; the reason.
    Broken(String),
}

/// A connection's end for a process that is going to be started, and the variables that it finds it by.
pub struct Seat {
    /// The end of the connection. It is closed on exec, unless the launcher changes that in the child.
    pub socket: OwnedFd,
    /// Names and values, for the environment of the rank.
    pub variables: [(&'static str, String); 4],
}

impl Server {
    /// The store for a new job, and a seat for each of its `size` ranks, in their order.
    ///
    /// # Errors
    /// The system has no socket pair or no random number to give.
    pub fn new(size: u32) -> io::Result<(Server, Vec<Seat>)> {
        let id = alone::random_id().map_err(io::Error::other)?;
        let (mut ranks, mut seats) = (Vec::new(), Vec::new());
        for rank in 0..size {
            let (near, far) = UnixStream::pair()?;
            near.set_nonblocking(true)?;
            let values = [far.as_raw_fd().to_string(), rank.to_string(), size.to_string(), id.clone()];
            let names = [&JOB_FD, &JOB_RANK, &JOB_SIZE, &JOB_ID].map(|variable| variable.name());
            let mut values = values.into_iter();
            let variables = names.map(|name| (name, values.next().unwrap_or_default()));
            seats.push(Seat { socket: far.into(), variables });
            ranks.push(Rank {
                stream: Some(near),
                inbox: Inbox::default(),
                outbox: Vec::new(),
                joined: false,
                put: HashMap::new(),
                stored: 0,
            });
        }
        Ok((Server { id, ranks, values: HashMap::new(), fenced: BTreeSet::new(), missing: None }, seats))
    }

    /// The connection to a rank, and true if it is to be polled for room, false if for input; None after its end.
    pub fn interest(&self, rank: u32) -> Option<(BorrowedFd<'_>, bool)> {
        let rank = self.rank(rank)?;
        Some((rank.stream.as_ref()?.as_fd(), !rank.outbox.is_empty()))
    }

    /// Serves the requests that a rank has sent until now, without waiting. A returned demand ends the job.
    pub fn serve(&mut self, rank: u32) -> Option<Demand> {
        // A rank that sends without end must not keep the launcher from the others.
        for _ in 0..256 {
            self.send(rank);
            let seat = self.rank_mut(rank)?;
            if !seat.outbox.is_empty() {
                return None;
            }
            match seat.inbox.next() {
                Err(malformed) => return Some(self.broken(rank, malformed.to_string())),
                Ok(Some(frame)) => match Request::parse(&frame) {
                    Ok(request) => {
                        let demand = self.answer(rank, request);
                        if demand.is_some() {
                            return demand;
                        }
                    }
                    Err(malformed) => return Some(self.broken(rank, malformed.to_string())),
                },
                Ok(None) => {
                    let mut piece = [0; 16 << 10];
                    match seat.stream.as_mut()?.read(&mut piece) {
                        Ok(0) => {
                            // All processes that had it have closed it; their end is reported by [`Server::ended`].
                            seat.stream = None;
                            return None;
                        }
                        Ok(length) => seat.inbox.push(&piece[..length]),
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                        Err(_) => {
                            seat.stream = None;
                            return None;
                        }
                    }
                }
            }
        }
        None
    }

    /// Returns true if a rank has joined the job and not left it. One whose process ends so has failed, whatever its
    /// exit status: the others wait for it.
    pub fn is_member(&self, rank: u32) -> bool {
        self.rank(rank).is_some_and(|rank| rank.joined)
    }

    /// The process of a rank has ended: fences will not complete any more, and the ranks that wait in one get an
    /// answer.
    pub fn ended(&mut self, rank: u32) {
        if let Some(seat) = self.rank_mut(rank) {
            seat.stream = None;
        }
        self.fenced.remove(&rank);
        self.misses(format!("rank {rank} has ended"));
    }

    fn rank(&self, rank: u32) -> Option<&Rank> {
        self.ranks.get(usize::try_from(rank).ok()?)
    }

    fn rank_mut(&mut self, rank: u32) -> Option<&mut Rank> {
        self.ranks.get_mut(usize::try_from(rank).ok()?)
    }

    fn broken(&mut self, rank: u32, why: String) -> Demand {
        if let Some(seat) = self.rank_mut(rank) {
            seat.stream = None;
        }
        Demand::Broken(why)
    }

    fn answer(&mut self, rank: u32, request: Request) -> Option<Demand> {
        let joined = self.rank(rank)?.joined;
        if let Request::Abort { status, sentence } = request {
            return Some(Demand::Abort { status, sentence });
        }
        if self.fenced.contains(&rank) {
            return Some(self.broken(rank, "it has sent a request before its fence was over".to_owned()));
        }
        let reply = match request {
            Request::Join { version, .. } if version != VERSION => Reply::Refused(format!(
                "the program speaks version {version} of the protocol of vervain launch, and this vervain version {VERSION}: \
                 build both from one release"
            )),
            Request::Join { id, .. } if id != self.id => {
                Reply::Refused(format!("{} is that of another job than this connection's", JOB_ID.name()))
            }
            Request::Join { .. } if joined => Reply::Refused(format!("rank {rank} has joined already")),
            Request::Join { .. } => {
                self.rank_mut(rank)?.joined = true;
                Reply::Done
            }
            _ if !joined => return Some(self.broken(rank, "it has sent a request before it joined".to_owned())),
            Request::Put { key, value } => self.rank_mut(rank)?.put(key, value),
            Request::Get { rank, key } => Reply::Value(self.values.get(&(rank, key)).cloned()),
            Request::Fence => {
                let put = std::mem::take(&mut self.rank_mut(rank)?.put);
                self.values.extend(put.into_iter().map(|(key, value)| ((rank, key), value)));
                self.fenced.insert(rank);
                self.release();
                return None;
            }
            Request::Finalize => {
                self.rank_mut(rank)?.joined = false;
                self.reply(rank, &Reply::Done);
                self.misses(format!("rank {rank} has left the job"));
                return None;
            }
            Request::Abort { .. } => return None,
        };
        self.reply(rank, &reply);
        None
    }

    fn misses(&mut self, why: String) {
        self.missing.get_or_insert(why);
        self.release();
    }

    /// Ends the fence where all ranks are there, or where one will never be.
    fn release(&mut self) {
        let reply = match &self.missing {
            Some(why) => Reply::Refused(format!("the fence cannot be completed: {why}")),
            None if self.fenced.len() == self.ranks.len() => Reply::Done,
            None => return,
        };
        for rank in std::mem::take(&mut self.fenced) {
            self.reply(rank, &reply);
        }
    }

    fn reply(&mut self, rank: u32, reply: &Reply) {
        if let Some(seat) = self.rank_mut(rank) {
            seat.outbox.extend(reply.frame());
        }
        self.send(rank);
    }

    /// Sends what the socket takes.
    fn send(&mut self, rank: u32) {
        let Some(seat) = self.rank_mut(rank) else { return };
        while let Some(stream) = seat.stream.as_mut().filter(|_| !seat.outbox.is_empty()) {
            match stream.write(&seat.outbox) {
                Ok(length) => _ = seat.outbox.drain(..length),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // The process has ended; that is reported by [`Server::ended`].
                Err(_) => seat.stream = None,
            }
        }
        if seat.stream.is_none() {
            seat.outbox.clear();
        }
    }
}

impl Rank {
    fn put(&mut self, key: String, value: Vec<u8>) -> Reply {
        let length = key.len() + value.len();
        if self.stored + length > MAX_STORED {
            return Reply::Refused(format!("a rank can put {MAX_STORED} bytes of keys and values at most"));
        }
        self.stored += length;
        self.put.insert(key, value);
        Reply::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Peer(UnixStream, Inbox);

    /// A job whose ranks have joined.
    fn job(size: u32) -> (Server, Vec<Peer>) {
        let (mut server, seats) = Server::new(size).unwrap();
        let mut peers: Vec<_> = seats.into_iter().map(|s| Peer(s.socket.into(), Inbox::default())).collect();
        let join = Request::Join { version: VERSION, id: server.id.clone() };
        for rank in 0..size {
            assert_eq!(ask(&mut server, &mut peers, rank, &join), Ok(Some(Reply::Done)));
        }
        (server, peers)
    }

    fn at(rank: u32) -> usize {
        usize::try_from(rank).unwrap()
    }

    /// The answer, if there is one by now.
    fn heard(peer: &mut Peer) -> Option<Reply> {
        peer.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut piece = [0; 4096];
        loop {
            if let Some(frame) = peer.1.next().unwrap() {
                return Some(Reply::parse(&frame).unwrap());
            }
            match peer.0.read(&mut piece) {
                Ok(length @ 1..) => peer.1.push(&piece[..length]),
                _ => return None,
            }
        }
    }

    fn ask(server: &mut Server, peers: &mut [Peer], rank: u32, request: &Request) -> Result<Option<Reply>, Demand> {
        let frame = request.frame();
        let mut sent = 0;
        peers[at(rank)].0.set_nonblocking(true).unwrap();
        while sent < frame.len() {
            sent += peers[at(rank)].0.write(&frame[sent..]).unwrap_or(0);
            if let Some(demand) = server.serve(rank) {
                return Err(demand);
            }
        }
        peers[at(rank)].0.set_nonblocking(false).unwrap();
        Ok(heard(&mut peers[at(rank)]))
    }

    fn put(key: &str, value: &[u8]) -> Request {
        Request::Put { key: key.into(), value: value.into() }
    }

    fn get(rank: u32, key: &str) -> Request {
        Request::Get { rank, key: key.into() }
    }

    #[test]
    fn a_fence_of_all_commits_what_was_put() {
        let (mut server, mut peers) = job(2);
        let mut ask = |rank, request: Request| ask(&mut server, &mut peers, rank, &request).unwrap();
        assert_eq!(ask(1, put("k", b"value")), Some(Reply::Done));
        assert_eq!(ask(0, get(1, "k")), Some(Reply::Value(None)), "before the fence");
        assert_eq!(ask(1, Request::Fence), None, "one rank is missing");
        assert_eq!(ask(0, Request::Fence), Some(Reply::Done));
        assert_eq!(ask(0, get(1, "k")), Some(Reply::Value(Some(b"value".to_vec()))));
        assert_eq!(ask(0, get(0, "k")), Some(Reply::Value(None)));
        assert_eq!(heard(&mut peers[1]), Some(Reply::Done));
    }

    #[test]
    fn a_fence_without_a_rank_that_has_gone_is_refused_to_all() {
        for leaves in [true, false] {
            let (mut server, mut peers) = job(3);
            assert_eq!(ask(&mut server, &mut peers, 0, &Request::Fence), Ok(None));
            if leaves {
                assert_eq!(ask(&mut server, &mut peers, 2, &Request::Finalize), Ok(Some(Reply::Done)));
            } else {
                server.ended(2);
            }
            let why = if leaves { "has left the job" } else { "has ended" };
            let refused = Some(Reply::Refused(format!("the fence cannot be completed: rank 2 {why}")));
            assert_eq!(heard(&mut peers[0]), refused);
            assert_eq!(ask(&mut server, &mut peers, 1, &Request::Fence), Ok(refused));
        }
    }

    #[test]
    fn a_rank_is_a_member_until_it_finalizes_also_after_its_connection_has_closed() {
        let (server, _seats) = Server::new(1).unwrap();
        assert!(!server.is_member(0), "it has not joined");
        let (mut server, mut peers) = job(2);
        assert_eq!(ask(&mut server, &mut peers, 1, &Request::Finalize), Ok(Some(Reply::Done)));
        drop(peers);
        for rank in 0..2 {
            assert_eq!(server.serve(rank), None);
            assert_eq!(server.is_member(rank), rank == 0);
        }
        assert!(!server.is_member(2), "there is no such rank");
    }

    #[test]
    fn a_rank_that_waits_in_a_fence_can_abort_and_nothing_else() {
        let (mut server, mut peers) = job(2);
        assert_eq!(ask(&mut server, &mut peers, 0, &Request::Fence), Ok(None));
        let abort = Request::Abort { status: 7, sentence: "why".into() };
        assert_eq!(ask(&mut server, &mut peers, 0, &abort), Err(Demand::Abort { status: 7, sentence: "why".into() }));
        assert!(matches!(ask(&mut server, &mut peers, 0, &get(0, "k")), Err(Demand::Broken(_))));
    }

    #[test]
    fn who_is_of_another_job_or_version_or_comes_twice_does_not_join() {
        let (mut server, mut peers) = job(1);
        let id = server.id.clone();
        for (version, id, why) in
            [(VERSION, id.as_str(), "joined already"), (VERSION, "x", "another job"), (VERSION + 1, &id, "version")]
        {
            let join = Request::Join { version, id: id.into() };
            let Ok(Some(Reply::Refused(said))) = ask(&mut server, &mut peers, 0, &join) else { panic!("{why}") };
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn rubbish_is_told_and_no_more_read() {
        for rubbish in [&[0xff_u8; 4][..], &[1, 0, 0, 0, 9], &[0, 0, 0, 0], &put("k", b"v").frame()[..9]] {
            let (mut server, mut peers) = job(1);
            peers[0].0.write_all(rubbish).unwrap();
            // A frame that has not arrived whole is no rubbish yet.
            let whole = rubbish.len() < 9;
            assert_eq!(matches!(server.serve(0), Some(Demand::Broken(_))), whole, "{rubbish:?}");
            assert_eq!(server.interest(0).is_none(), whole);
        }
        let (mut server, seats) = Server::new(1).unwrap();
        let mut stranger = UnixStream::from(seats.into_iter().next().unwrap().socket);
        stranger.write_all(&Request::Fence.frame()).unwrap();
        assert!(matches!(server.serve(0), Some(Demand::Broken(_))), "a fence before it joined");
    }

    #[test]
    fn a_rank_cannot_fill_the_launchers_memory() {
        let (mut server, mut peers) = job(1);
        let value = vec![0; crate::MAX_VALUE];
        let room = MAX_STORED / (value.len() + 1);
        for n in 0..=room {
            let reply = ask(&mut server, &mut peers, 0, &put("k", &value)).unwrap();
            assert_eq!(matches!(reply, Some(Reply::Done)), n < room, "put {n}: {reply:?}");
        }
    }

    #[test]
    fn answers_that_a_rank_does_not_read_wait_and_it_is_not_heard_meanwhile() {
        let (mut server, mut peers) = job(1);
        assert_eq!(ask(&mut server, &mut peers, 0, &put("k", &vec![7; crate::MAX_VALUE])), Ok(Some(Reply::Done)));
        assert_eq!(ask(&mut server, &mut peers, 0, &Request::Fence), Ok(Some(Reply::Done)));
        for _ in 0..100 {
            peers[0].0.write_all(&get(0, "k").frame()).unwrap();
        }
        assert_eq!(server.serve(0), None);
        assert!(server.ranks[0].outbox.len() <= crate::MAX_VALUE + 9);
        assert!(server.interest(0).unwrap().1, "it is polled for room");
        let mut answers = 0;
        while answers < 100 {
            assert_eq!(server.serve(0), None);
            if let Some(Reply::Value(Some(value))) = heard(&mut peers[0]) {
                assert_eq!(value.len(), crate::MAX_VALUE);
                answers += 1;
            }
        }
    }
}
