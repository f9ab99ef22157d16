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

mod buffers;
mod command;
mod contact;
mod entries;
mod issue;
mod operations;
mod own_memory;
mod peer;
mod post;
pub(crate) mod segments;
mod step;
mod wakes;

pub(crate) use own_memory::{OwnMemory, by_device};
pub(crate) use peer::{Peer, hello};
pub(crate) use post::SENDS;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Instant;

use vervain_mesh::{Link, Mesh};
use vervain_rdma::Completion;

use self::buffers::Buffers;
use self::entries::Entries;
use self::operations::Operations;
use crate::error::{Error, Result};
use crate::memory::{Registration, Rights};
use crate::settings::Settings;
use crate::table::Entry;

/// Commands that are served at a time; others wait in the SRQ.
const MAX_SERVED: u32 = 64;
/// A longer request is posted in parts. Devices take at least 2^31 bytes.
const MAX_REQUEST: u64 = 1 << 30;
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
    operations: Operations,
    entries: Entries,
    connections: Vec<Connection>,
    stamps: u64,
    contacts: HashMap<(u32, u32), VecDeque<u32>>,
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
    pub const OPERATIONS: usize = Operations::COUNT;
    pub const ENTRIES: usize = Entries::COUNT;

    pub fn of(connections: usize) -> Self {
        Self {
            operations: Operations::BYTES,
            entries: Entries::BYTES,
            connections: connections * (size_of::<Connection>() + Entry::BYTES),
            buffers: Buffers::BYTES,
        }
    }
}

impl Engine {
    /// An engine on an open mesh.
    pub fn new(mut mesh: Mesh, settings: &Settings, published: Arc<AtomicI64>) -> Result<Self> {
        let memory = OwnMemory::new(&mesh, settings)?;
        let domains = memory.domains(&mesh);
        let operations = Operations::new(&domains, published)?;
        let entries = Entries::new(&domains, settings.connections)?;
        let keys = |port: usize| (memory.table.published(port).1, operations.answers(port).1);
        let (table, answers) = (memory.table.published(0).0, operations.answers(0).0);
        mesh.set_hello(hello(table, answers, keys, mesh.ports().len(), memory.has_device_atomics()));
        Ok(Self {
            mesh,
            memory,
            operations,
            entries,
            connections: (0..settings.connections).map(|_| Connection::default()).collect(),
            stamps: 0,
            contacts: HashMap::new(),
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
            eager: true,
        })
    }

    /// The first handle that is not over.
    pub fn head(&self) -> i64 {
        self.operations.head()
    }

    /// The handle that the next operation will have.
    pub fn next(&self) -> i64 {
        self.operations.next()
    }

    /// Whether another operation can be issued.
    pub fn has_room(&self) -> bool {
        self.operations.has_room()
    }

    /// Whether something is to be done when a request completes, though nobody may ask: operations go on, or a peer waits for this
    /// side of a connection.
    pub fn needs_care(&self) -> bool {
        self.operations.has_active() || self.mesh.is_draining()
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
        while let Some(op) = self.operations.next_ready() {
            self.start(op);
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

impl Drop for Engine {
    fn drop(&mut self) {
        self.memory.close();
    }
}
