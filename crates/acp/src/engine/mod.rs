//! The engine: operations of this rank, what it does for others, and the connections that both go by. It is a value behind one
//! lock, which threads of the program and the progress thread take in turn; none of its functions waits.
//!
//! An operation goes through a few steps, each of which is one request to the device (or several of at most [`MAX_REQUEST`] bytes)
//! on one connection:
//!
//! | operation | steps |
//! |---|---|
//! | put | Write |
//! | get | Read |
//! | copy between two others, short | Read into a buffer, Write from it |
//! | copy between two others, long | command to the source's rank; its Write; its answer |
//! | atomic that the device has | Atomic |
//! | another one | Read, then compare and swap until it fits |
//! | one that the device must not do | command to the owner, its answer |
//!
//! A connection has a queue of operations that wait for room or for an entry of the peer's table. What is posted is over when its
//! completion says so. Operations are over in any order; handles are a prefix of those that are.

mod command;
mod contact;
mod issue;
mod own_memory;
mod peer;
mod post;
pub(crate) mod segments;
mod step;
mod wakes;

pub(crate) use own_memory::{OwnMemory, by_device};
pub(crate) use peer::{Peer, hello};
pub(crate) use post::SENDS;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use vervain_mesh::{Link, Mesh};
use vervain_rdma::Completion;

use crate::error::{Error, Result};
use crate::memory::{Mapped, Registration, Rights};
use crate::op::{NO_BUFFER, Op, Place};
use crate::settings::Settings;
use crate::table::Entry;

/// Operations of the program that can be outstanding. The original has 1,024 too.
pub(crate) const RING: usize = 1024;
/// Operations of the library's own: commands served, notices, entries to be forgotten, wakes.
const INTERNAL: usize = 512;
/// Commands that are served at a time; others wait in the SRQ.
const MAX_SERVED: u32 = 64;
/// A longer request is posted in parts. Devices take at least 2^31 bytes.
const MAX_REQUEST: u64 = 1 << 30;
/// Entries of peers' tables that are remembered.
const CACHED: usize = 4096;
/// Bytes of a buffer that a copy between two others goes through, and the longest copy that does so: see docs/acp.md.
pub(crate) const BOUNCE: u64 = 128 << 10;
/// As many such copies are under way at a time.
const BUFFERS: u16 = 16;
/// Bytes of an operation's place in `staged`: a command, or an answer's value.
const STAGED: usize = 32;

/// An entry of a peer's table.
#[derive(Clone, Copy)]
struct Cached {
    region: u64,
    /// Of the connection by which it was read; 0: nothing here.
    stamp: u64,
    link: Link,
    entry: Entry,
}

/// A Read of an entry that is under way: of which region, and when it began.
struct Fetch {
    region: u64,
    stamp: u64,
    link: Link,
}

/// A connection's side that the mesh does not know.
#[derive(Default)]
struct Connection {
    /// Which connection it is, once that is open.
    link: Option<Link>,
    /// Anew when it opens, and when the peer has asked to forget its entries; never twice the same.
    stamp: u64,
    peer: Peer,
    /// Operations that wait for room in the send queue of the data lane, or for an entry.
    queue: VecDeque<u32>,
    /// Operations that wait until they can send their command. Nothing else waits behind them, since they wait for the peer.
    commands: VecDeque<u32>,
    /// Words that loops are at, and loops that wait for one of these. Two loops of a rank at one word would mostly undo each
    /// other's guess; with a whole queue of them none would ever succeed.
    looping: Vec<u64>,
    loops: VecDeque<u32>,
    /// An entry is being read.
    fetching: Option<Fetch>,
    /// Requests with the device on the data lane, and on that of commands.
    posted: u32,
    sent: u32,
    /// Commands without an answer yet.
    unanswered: u32,
    /// The program's operations here that are a single step, and Reads and atomics among them.
    singles: u32,
    reads: u32,
}

impl Connection {
    #[inline]
    fn queue_of(&mut self, command: bool) -> &mut VecDeque<u32> {
        if command { &mut self.commands } else { &mut self.queue }
    }

    #[inline]
    fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.commands.is_empty()
    }
}

pub(crate) struct Engine {
    pub mesh: Mesh,
    pub memory: OwnMemory,
    /// What atomics find: 8 bytes for each operation.
    scratch: Mapped,
    /// Commands and values of answers.
    staged: Mapped,
    /// Entries as they are read, for each connection.
    fetched: Mapped,
    buffers: Mapped,
    free_buffers: Vec<u16>,
    ops: Vec<Op>,
    free: Vec<u32>,
    /// The handle of the next operation, and the first that is not over.
    next: i64,
    head: i64,
    published: Arc<AtomicI64>,
    /// The program's operations that are not over.
    incomplete: u32,
    /// All operations that are not over, and those of them that need nothing but their completion.
    live: u32,
    passive: u32,
    connections: Vec<Connection>,
    stamps: u64,
    cache: Vec<Cached>,
    /// Operations whose order is not met, by what they wait for.
    ordered: BinaryHeap<Reverse<(i64, i64)>>,
    ready: VecDeque<u32>,
    contacts: HashMap<(u32, u32), VecDeque<u32>>,
    for_buffers: VecDeque<u32>,
    commands: VecDeque<command::Received>,
    arrivals: Vec<vervain_mesh::Command>,
    served: u32,
    /// Served copies that wait for a connection, and since when.
    served_since: VecDeque<(Instant, u32)>,
    /// When the mesh wants to be called again.
    due: Option<Instant>,
    /// Copies of peers' inside this rank's memory, a part at a time.
    here: VecDeque<u32>,
    /// Notices of each round of the barrier that have come, since the beginning.
    pub barrier: [u64; 32],
    round: Option<command::Round>,
    wakes: wakes::Wakes,
    /// What waits for a round before it can have a segment.
    extensions: Vec<(u64, u64, command::Asker)>,
    /// How often peers have asked this rank to look.
    pub looks: u64,
    pub failure: Option<Error>,
    found: Vec<Completion>,
    order: issue::Last,
    /// Requests complete while they are posted.
    eager: bool,
}

/// What an engine holds, in bytes.
pub(crate) struct EngineBytes {
    pub operations: usize,
    pub entries: usize,
    pub connections: usize,
    pub buffers: usize,
}

impl EngineBytes {
    pub const OPERATIONS: usize = RING + INTERNAL;
    pub const ENTRIES: usize = CACHED;

    pub fn of(connections: usize) -> Self {
        Self {
            operations: Self::OPERATIONS * (size_of::<Op>() + size_of::<u64>() + STAGED),
            entries: CACHED * size_of::<Cached>(),
            connections: connections * (size_of::<Connection>() + Entry::BYTES),
            buffers: usize::from(BUFFERS) * BOUNCE as usize,
        }
    }
}

impl Engine {
    /// An engine on an open mesh.
    pub fn new(mut mesh: Mesh, settings: &Settings, published: Arc<AtomicI64>) -> Result<Self> {
        let connections = settings.connections;
        let memory = OwnMemory::new(&mesh, settings)?;
        let domains = memory.domains(&mesh);
        let scratch = Mapped::new(&domains, (RING + INTERNAL) * 8)?;
        let staged = Mapped::new(&domains, (RING + INTERNAL) * STAGED)?;
        let fetched = Mapped::new(&domains, connections * Entry::BYTES)?;
        let buffers = Mapped::new(&domains, usize::from(BUFFERS) * BOUNCE as usize)?;
        let keys = |port: usize| (memory.table.published(port).1, scratch.rkey(port));
        let table = memory.table.published(0).0;
        mesh.set_hello(hello(table, scratch.start(), keys, mesh.ports().len(), memory.has_device_atomics()));
        published.store(1, Ordering::Relaxed);
        let nothing = Cached {
            region: 0,
            stamp: 0,
            link: Link { index: 0, life: 0 },
            entry: Entry { start: 0, size: 0, rkey: 0 },
        };
        Ok(Self {
            mesh,
            memory,
            scratch,
            staged,
            fetched,
            buffers,
            free_buffers: (0..BUFFERS).rev().collect(),
            ops: vec![Op::NONE; RING],
            free: vec![],
            next: 1,
            head: 1,
            published,
            incomplete: 0,
            live: 0,
            passive: 0,
            connections: (0..connections).map(|_| Connection::default()).collect(),
            stamps: 0,
            cache: vec![nothing; CACHED],
            ordered: BinaryHeap::new(),
            ready: VecDeque::new(),
            contacts: HashMap::new(),
            for_buffers: VecDeque::new(),
            commands: VecDeque::new(),
            arrivals: vec![],
            served: 0,
            served_since: VecDeque::new(),
            due: None,
            here: VecDeque::new(),
            barrier: [0; 32],
            round: None,
            wakes: wakes::Wakes::default(),
            extensions: vec![],
            looks: 0,
            failure: None,
            found: vec![Completion::default(); 16],
            order: issue::Last::default(),
            eager: true,
        })
    }

    /// The first handle that is not over.
    pub fn head(&self) -> i64 {
        self.head
    }

    /// The handle that the next operation will have.
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Whether another operation can be issued.
    pub fn has_room(&self) -> bool {
        self.next - self.head < RING as i64
    }

    /// Whether something is to be done when a request completes, though nobody may ask: operations go on, or a peer waits for this
    /// side of a connection.
    pub fn needs_care(&self) -> bool {
        self.live > self.passive || self.mesh.is_draining()
    }

    /// Whether there is work that waits for nothing.
    pub fn is_busy(&self) -> bool {
        !self.here.is_empty() || (self.served < MAX_SERVED && !self.commands.is_empty())
    }

    /// Whether a copy or an atomic of a peer's is under way.
    pub fn is_serving(&self) -> bool {
        self.served > 0
    }

    /// The job is broken; the first reason counts.
    pub fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Looks at what has completed of this rank's requests, and goes on with what that allows. Says whether there was something.
    #[inline]
    pub fn poll(&mut self) -> bool {
        let mut any = false;
        for port in 0..self.mesh.ports().len() {
            let found = match self.mesh.ports()[port].data.poll(&mut self.found) {
                Ok(0) => continue,
                Ok(found) => found,
                Err(error) => {
                    self.fail(error.into());
                    continue;
                }
            };
            any = true;
            for i in 0..found {
                let completion = self.found[i];
                self.completed(&completion);
            }
        }
        if any {
            self.go_on();
        }
        any
    }

    /// Goes on with what completions allow.
    fn go_on(&mut self) {
        self.take_events();
        if !self.commands.is_empty() {
            // Some may have waited for what is over now.
            self.begin_commands();
        }
        self.drain();
    }

    /// Looks at what peers want: commands, connections. Says whether there was something.
    pub fn serve(&mut self) -> bool {
        let any = self.receive() | self.attend();
        self.begin_commands();
        self.drain();
        any
    }

    /// Starts operations whose order is met.
    #[inline]
    fn drain(&mut self) {
        while let Some(op) = self.ready.pop_front() {
            self.start(op);
        }
    }

    /// A place for an operation of the library's own.
    fn internal(&mut self, op: Op) -> u32 {
        self.live += 1;
        match self.free.pop() {
            Some(i) => {
                self.ops[i as usize] = op;
                i
            }
            None => {
                self.ops.push(op);
                assert!(self.ops.len() <= RING + INTERNAL, "one for each command served and each connection");
                (self.ops.len() - 1) as u32
            }
        }
    }

    /// An operation is over.
    fn finish(&mut self, i: u32) {
        let op = &mut self.ops[i as usize];
        if op.place == Place::Posted && is_passive(op) {
            self.passive -= 1;
        }
        self.live -= 1;
        if op.buffer != NO_BUFFER {
            self.free_buffers.push(op.buffer);
            op.buffer = NO_BUFFER;
            self.ready.extend(self.for_buffers.pop_front());
        }
        let op = &mut self.ops[i as usize];
        op.fenced = false;
        if op.seq == 0 {
            op.place = Place::Free;
            self.free.push(i);
            return;
        }
        op.place = Place::Done;
        self.incomplete -= 1;
        if op.seq == self.head {
            self.advance();
        }
    }

    /// The first that is not over is another one now.
    fn advance(&mut self) {
        while self.head < self.next && self.ops[index(self.head)].place == Place::Done {
            self.ops[index(self.head)].place = Place::Free;
            self.head += 1;
        }
        self.published.store(self.head, Ordering::Release);
        while let Some(&Reverse((after, seq))) = self.ordered.peek()
            && after < self.head
        {
            self.ordered.pop();
            self.ready.push_back(index(seq) as u32);
        }
    }

    /// Registers memory of the program's; peers do not know it before it has its key.
    ///
    /// # Safety
    /// As [`Registration::new`].
    pub unsafe fn register(
        &mut self,
        start: *mut libc::c_void,
        len: usize,
        color: u32,
        rights: Rights,
    ) -> Result<Registration> {
        // SAFETY: handed on to the caller.
        unsafe { self.memory.register(&self.mesh, start, len, color, rights) }
    }
}

/// Where an operation of the program's is.
#[inline]
fn index(seq: i64) -> usize {
    seq as usize & (RING - 1)
}

/// Whether it needs nothing but its completion once it is posted.
fn is_passive(op: &Op) -> bool {
    op.work.is_single()
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.memory.close();
    }
}
