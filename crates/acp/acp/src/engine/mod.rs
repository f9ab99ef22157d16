//! The engine: operations of this rank, work for other ranks, and the connections of both. It is a value behind one
//! lock, which threads of the program and the progress thread take in turn; none of its functions waits.
//!
//! An operation goes through a few steps, each of which is one request to the device (or several of at most
//! [`MAX_REQUEST`](requester::MAX_REQUEST) bytes) on one connection:
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
//! The engine issues an operation and goes on when its requests complete. Its parts own the state:
//!
//! | part | owns |
//! |---|---|
//! | [`Requester`] | an operation from its start to the device: the mesh and the five below |
//! | [`Operations`] | handles and order; the words, staged bytes and [`Buffers`] that operations use |
//! | [`OwnMemory`] | the table of registrations, starter memories, [`segments`] |
//! | [`Entries`] | the cached entries of peers' tables |
//! | [`Connections`](connections::Connections) | of each connection, operations that wait for room or for an entry |
//! | [`Contacts`](contacts::Contacts) | operations that wait for a connection |
//! | [`Server`] | commands of peers, and rounds in which peers forget keys |
//! | [`Wakes`] | ranks that are asked to look |
//!
//! The server and the wakes make requests too, so they get the requester as an argument. No part calls the engine.
//!
//! A connection has a queue of operations that wait for room or for an entry of the peer's table. A posted request is
//! over when its completion has come. Operations are over in any order; the handles that are complete are a prefix.

mod buffers;
mod completions;
mod connections;
mod contacts;
mod entries;
mod issue;
mod operations;
mod own_memory;
mod peer;
mod requester;
pub(crate) mod segments;
mod server;
mod wakes;

pub(crate) use connections::SENDS;
pub(crate) use own_memory::OwnMemory;
pub use peer::{Peer, hello};

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Instant;

use vervain_mesh::{Event, Mesh};
use vervain_rdma::Completion;

use self::buffers::Buffers;
use self::connections::Connection;
use self::entries::Entries;
use self::operations::Operations;
use self::requester::Requester;
use self::server::Server;
use self::wakes::Wakes;
use crate::error::{Error, Result};
use crate::memory::{Registration, Rights};
use crate::settings::Settings;
use crate::table::Entry;

pub(crate) struct Engine {
    requester: Requester,
    server: Server,
    wakes: Wakes,
    /// Notices that have come in each round of the barrier, since the beginning.
    pub barrier: [u64; 32],
    /// Room for completions while they are polled.
    found: Vec<Completion>,
    /// True: requests complete while they are posted.
    eager: bool,
}

/// Bytes of an engine's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineBytes {
    /// Operations under way.
    pub operations: usize,
    /// The cache of entries of peers' tables.
    pub entries: usize,
    /// The engine's side of all connections.
    pub connections: usize,
    /// Buffers of copies between two others, touched when there are such copies.
    pub buffers: usize,
}

impl EngineBytes {
    /// The most operations under way.
    pub const OPERATIONS: usize = Operations::COUNT;
    /// The most entries that are cached.
    pub const ENTRIES: usize = Entries::COUNT;

    /// Those of an engine with so many connections.
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
    pub fn new(mesh: Mesh, settings: &Settings, published: Arc<AtomicI64>) -> Result<Self> {
        Ok(Self {
            requester: Requester::new(mesh, settings, published)?,
            server: Server::default(),
            wakes: Wakes::default(),
            barrier: [0; 32],
            found: vec![Completion::default(); 16],
            eager: true,
        })
    }

    /// The connections to other ranks.
    #[inline]
    pub fn mesh(&self) -> &Mesh {
        &self.requester.mesh
    }

    #[inline]
    pub fn mesh_mut(&mut self) -> &mut Mesh {
        &mut self.requester.mesh
    }

    /// This rank's memory.
    #[inline]
    pub fn memory(&self) -> &OwnMemory {
        &self.requester.memory
    }

    #[inline]
    pub fn memory_mut(&mut self) -> &mut OwnMemory {
        &mut self.requester.memory
    }

    /// The first handle that is not over.
    #[inline]
    pub fn head(&self) -> i64 {
        self.requester.operations.head()
    }

    /// The handle that the next operation will have.
    #[inline]
    pub fn next(&self) -> i64 {
        self.requester.operations.next()
    }

    /// Returns true if another operation can be issued.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.requester.operations.has_room()
    }

    /// Returns true if there may be work when a request completes, even if the program does not ask: operations go on,
    /// or a peer waits for this side of a connection.
    #[inline]
    pub fn needs_polling(&self) -> bool {
        self.requester.operations.has_active() || self.requester.mesh.is_draining()
    }

    /// Returns true if there is work that waits for nothing.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.server.is_busy()
    }

    /// Returns true if a command of a peer is under way.
    pub fn is_serving(&self) -> bool {
        self.server.is_serving()
    }

    /// The number of requests to this rank to look.
    pub fn looks(&self) -> u64 {
        self.server.looks
    }

    /// Returns true if all ranks that were asked to look have answered.
    pub fn have_all_looked(&self) -> bool {
        self.wakes.have_all_looked()
    }

    /// The reason why the job is broken; None while it is not.
    #[inline]
    pub fn failure(&self) -> Option<&Error> {
        self.requester.failure.as_ref()
    }

    /// Marks the job as broken; the first reason counts.
    pub fn fail(&mut self, error: Error) {
        self.requester.fail(error);
    }

    /// The time by which [`serve`](Engine::serve) is to be called again.
    pub fn due(&self) -> Option<Instant> {
        self.requester.due()
    }

    /// Polls completions of this rank's requests, and goes on with the work that they allow. Returns true if there were
    /// any.
    #[inline]
    pub fn poll(&mut self) -> bool {
        let mut any = false;
        for port in 0..self.requester.mesh.ports().len() {
            let found = match self.requester.mesh.ports()[port].data.poll(&mut self.found) {
                Ok(0) => continue,
                Ok(found) => found,
                Err(error) => {
                    self.requester.fail(error.into());
                    continue;
                }
            };
            any = true;
            for i in 0..found {
                let completion = self.found[i];
                self.handle_completion(&completion);
            }
        }
        if any {
            self.start_waiting();
        }
        any
    }

    /// Starts the work that has waited for completions.
    fn start_waiting(&mut self) {
        self.handle_events();
        if self.server.has_commands() {
            // Some may have waited for operations that are over now.
            self.server.begin_commands(&mut self.requester);
        }
        self.requester.start_ready();
    }

    /// Handles requests of peers: commands and connections. Returns true if there were any.
    pub fn serve(&mut self) -> bool {
        let received = self.server.receive_commands(&mut self.requester);
        self.requester.progress_mesh();
        let any = received | self.handle_events();
        self.server.begin_commands(&mut self.requester);
        self.requester.start_ready();
        any
    }

    /// Copies the next part of a peer's copy inside this rank's memory. Returns true if there was one.
    pub fn copy_part(&mut self) -> bool {
        self.server.copy_part(&mut self.requester)
    }

    /// Handles events of connections. Returns true if there were any.
    #[inline]
    fn handle_events(&mut self) -> bool {
        let Self { requester, server, .. } = self;
        let mut any = false;
        while let Some(event) = requester.mesh.next_event() {
            any = true;
            match event {
                Event::Opened(link) => {
                    requester.handle_opened(link);
                    server.handle_opened(requester);
                }
                Event::Closed { link, rank, color } => {
                    requester.connections.close(link);
                    server.handle_closed(requester, link);
                    requester.want_again(rank, color);
                }
                Event::Failed { error, .. } => requester.fail(error.into()),
            }
        }
        any
    }

    /// Returns true if a round is under way, in which peers forget keys.
    pub fn in_round(&self) -> bool {
        self.server.in_round()
    }

    /// Asks all peers that may have read this rank's table to forget it, so that the keys given up so far can be used
    /// again.
    pub fn begin_round(&mut self) {
        self.server.begin_round(&mut self.requester);
    }

    /// Sends a notice to `rank`, which has a receive for it.
    pub fn notify(&mut self, rank: u32, immediate: u32) {
        self.requester.notify(rank, immediate);
    }

    /// Has a waiting thread of `rank` look. Returns before it does.
    pub fn wake(&mut self, rank: u32) -> Result<()> {
        let size = self.requester.memory.layout.ranks();
        if rank >= size {
            return Err(Error::refused(format!("there is no rank {rank}: the job has {size}")));
        }
        if rank == self.requester.memory.rank {
            self.server.looks += 1;
        } else {
            self.wakes.wake(&mut self.requester, rank);
        }
        Ok(())
    }

    /// Registers memory of the program; peers do not know it before they have its key.
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
        unsafe { self.requester.memory.register(&self.requester.mesh, start, len, color, rights) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.requester.memory.close();
    }
}
