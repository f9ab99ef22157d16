//! The requester: an operation from its start until the device has its requests. It owns the connections by which
//! operations go and the memory that they use. The engine above it issues operations and goes on when requests
//! complete.

mod contact;
mod post;

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Instant;

use vervain_mesh::Mesh;

use super::connections::Connections;
use super::contacts::Contacts;
use super::entries::Entries;
use super::operations::Operations;
use super::own_memory::OwnMemory;
use super::peer::{Peer, hello};
use crate::address::GlobalAddress;
use crate::command::Status;
use crate::error::{Error, Result};
use crate::op::{Answer, NO_BUFFER, Op, Place, Step, Work};
use crate::settings::Settings;
use crate::table::outside;

pub(super) use self::post::{FETCH, MAX_REQUEST, SENT};

pub(super) struct Requester {
    pub mesh: Mesh,
    pub memory: OwnMemory,
    pub operations: Operations,
    pub entries: Entries,
    pub connections: Connections,
    contacts: Contacts,
    /// The time at which the mesh wants to be called again. None: it has no such time.
    due: Option<Instant>,
    /// The reason why the job is broken; None while it is not.
    pub failure: Option<Error>,
}

impl Requester {
    /// A requester on an open mesh, whose peers get the introduction of this rank.
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
            connections: Connections::new(settings.connections),
            contacts: Contacts::default(),
            due: None,
            failure: None,
        })
    }

    /// Marks the job as broken; the first reason counts.
    pub fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Starts operations whose order is met.
    #[inline]
    pub fn start_ready(&mut self) {
        while let Some(i) = self.operations.next_ready() {
            self.start(i);
        }
    }

    /// Starts an operation whose order is met. Requests of this rank to itself, and copies that it serves inside its
    /// memory, start elsewhere: they post nothing.
    pub fn start(&mut self, i: u32) {
        let op = &mut self.operations[i];
        op.offset = 0;
        op.step = match op.work {
            Work::Put | Work::Serve => Step::Write,
            Work::Get | Work::Bounce | Work::Loop(_) => Step::Read,
            Work::Device(_) => Step::Atomic,
            Work::Forward | Work::Owner(_) | Work::Ask(_) | Work::Discard => Step::Command,
            Work::Notify(_) => Step::Notify,
            Work::Answer => Step::Answer,
            Work::Here | Work::HereAtomic(_) => return self.carry_out(i),
            Work::ServeHere => unreachable!("the server copies it itself"),
        };
        if op.work == Work::Bounce && op.buffer == NO_BUFFER {
            match self.operations.buffers.take(i) {
                Some(buffer) => self.operations[i].buffer = buffer,
                None => {
                    self.operations[i].place = Place::Buffer;
                    return;
                }
            }
        }
        self.route(i);
    }

    /// Carries out an operation inside this rank.
    fn carry_out(&mut self, i: u32) {
        let (op, memory) = (self.operations[i], &self.memory);
        let done = match op.work {
            Work::HereAtomic(what) => {
                memory.carry_out(op.src, what).and_then(|old| memory.store(op.dst, old, what.width()))
            }
            _ if op.len == 0 => Ok(()),
            _ => memory.copy(op.dst, op.src, op.len as usize),
        };
        match done {
            Ok(()) => self.operations.finish(i),
            Err(error) => self.fail(error),
        }
    }

    /// Stores the word that an operation has brought to its destination, and ends the operation.
    pub fn finish_with(&mut self, i: u32, value: u64, width: usize) {
        match self.memory.store(self.operations[i].dst, value, width) {
            Ok(()) => self.operations.finish(i),
            Err(error) => self.fail(error),
        }
    }

    /// Sends a notice to `rank`, which has a receive for it.
    pub fn notify(&mut self, rank: u32, immediate: u32) {
        let Some(dst) = self.memory.starter(rank, 0) else { return };
        self.add(Op { work: Work::Notify(immediate), dst, ..Op::NONE });
        self.start_ready();
    }

    /// Answers a command that no operation has served.
    pub fn answer(&mut self, answer: Answer) {
        self.add(Op { work: Work::Answer, answer, ..Op::NONE });
    }

    /// Starts an operation of the library's own.
    pub fn add(&mut self, op: Op) -> u32 {
        let i = self.operations.add(op);
        self.start(i);
        i
    }

    /// Answers the command that an operation has served.
    pub fn answer_served(&mut self, i: u32, status: Status, value: u64) {
        let op = &mut self.operations[i];
        op.answer = Answer { status: status as u8, value, ..op.answer };
        op.step = Step::Answer;
        self.route(i);
    }

    /// The sentence about an access outside of a peer's region. `size`: the region's, in bytes; None if there is no
    /// region.
    #[cold]
    pub fn outside(&self, address: GlobalAddress, len: u64, size: Option<u64>) -> Error {
        let rank = self.memory.layout.parts(address).map_or(0, |parts| parts.rank);
        Error::broken(outside(rank, self.memory.layout.offset(address), len, address, size))
    }
}
