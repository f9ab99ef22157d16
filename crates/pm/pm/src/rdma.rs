//! Writes to and reads from memory that other nodes have locked, by the lane for data: the node itself does nothing.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use vervain_mesh::Link;
use vervain_rdma::{Completion, RemoteAddr, SendRequest};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::image::SavedCopy;
use crate::locks::AddrHandle;
use crate::nodes::{NO_LINK, QUEUE, is_refusal};
use crate::rest::STOPPED;

/// In the ids of requests: it is a write or a read, with its number below; else a message, with its slot.
pub(crate) const RDMA: u64 = 1 << 62;
/// Writes and reads that can be under way.
const OPERATIONS: usize = 1024;
/// The longest request that all devices take.
pub(crate) const MAX_REQUEST: usize = 1 << 30;

const FULL: Error = Error::plain(libc::ENOBUFS, "too much is being written and read, or the node is not connected yet");
const NOT_WRITTEN: Error = Error::plain(libc::EBUSY, "writes are under way");
const NOT_READ: Error = Error::plain(libc::EBUSY, "reads are under way");

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// To the node (`pmWrite`).
    Write,
    /// From it (`pmRead`).
    Read,
}

/// A write or a read that is with the device.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub link: Link,
    pub direction: Direction,
    pub remote: AddrHandle,
    pub local: AddrHandle,
    pub len: u32,
    /// Which of all it was.
    order: u64,
}

impl Operation {
    pub const NONE: Operation = Operation {
        link: NO_LINK,
        direction: Direction::Write,
        remote: AddrHandle(0),
        local: AddrHandle(0),
        len: 0,
        order: 0,
    };
}

/// Writes or reads.
#[derive(Default)]
struct Kind {
    under_way: u32,
    /// The reason why one has failed, until it was reported to the program.
    fault: Option<Error>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Rdma {
    operations: Vec<Operation>,
    free: Vec<u32>,
    begun: u64,
    writes: Kind,
    reads: Kind,
}

impl Rdma {
    #[inline]
    pub fn under_way(&self) -> bool {
        self.free.len() < self.operations.len()
    }

    fn kind(&mut self, direction: Direction) -> &mut Kind {
        match direction {
            Direction::Write => &mut self.writes,
            Direction::Read => &mut self.reads,
        }
    }

    /// Those that are with the device, in the order in which they have begun.
    pub fn all_under_way(&self) -> Vec<Operation> {
        let free: HashSet<u32> = self.free.iter().copied().collect();
        let numbered = (0u32..).zip(&self.operations);
        let mut all: Vec<_> =
            numbered.filter(|(number, _)| !free.contains(number)).map(|(_, operation)| *operation).collect();
        all.sort_unstable_by_key(|operation| operation.order);
        all
    }

    /// One has failed, of which the program is to be told.
    pub fn add_fault(&mut self, direction: Direction, error: Error) {
        self.kind(direction).fault.get_or_insert(error);
    }

    /// Reports a write or a read to memory that its node has not locked, as if the device had refused it.
    pub fn refuse(&mut self, copy: &SavedCopy) {
        let what = if copy.direction == Direction::Write { "a write to" } else { "a read from" };
        let sentence = format!("{what} node {} failed: the memory is not locked there", copy.node);
        self.add_fault(copy.direction, Error::new(libc::EFAULT, sentence));
    }

    /// Drops failures that were not reported yet.
    pub fn forget_faults(&mut self) {
        (self.writes.fault, self.reads.fault) = (None, None);
    }

    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.operations.len() < OPERATIONS).then(|| {
                self.operations.push(Operation::NONE);
                (self.operations.len() - 1) as u32
            })
        })
    }
}

impl Engine {
    /// Begins to copy `len` bytes between `remote` at `node` and `local` here.
    pub fn copy(
        &mut self,
        direction: Direction,
        node: u32,
        remote: AddrHandle,
        local: AddrHandle,
        len: usize,
    ) -> Result<()> {
        self.nodes.check_node(node)?;
        if len == 0 || len > MAX_REQUEST || remote.addr() + len as u64 > 1 << 32 {
            return Err(Error::invalid(format!(
                "{len} bytes from handle {:#x} on: 1 to {MAX_REQUEST} are possible, inside a lock",
                remote.0
            )));
        }
        self.locks.find(local, len)?;
        if self.rest.is_stopped {
            return Err(STOPPED);
        }
        if self.rest.unsent.is_some() && !self.begin_unsent() {
            return self.no_room();
        }
        self.begin_copy(direction, node, remote, local, len)
    }

    /// Begins one whose arguments are right but for the local memory.
    pub fn begin_copy(
        &mut self,
        direction: Direction,
        node: u32,
        remote: AddrHandle,
        local: AddrHandle,
        len: usize,
    ) -> Result<()> {
        let Some(mut link) = self.connection(node) else { return self.no_room() };
        if self.nodes.connection(link).operations >= QUEUE {
            // When the last one is over, and others wait for the place, the connection is not that to the node any
            // more.
            self.look_for_completions();
            let Some(found) = self.nodes.find(node) else { return self.no_room() };
            link = found;
        }
        if self.nodes.connection(link).operations_broken {
            let sentence = format!("node {node} has refused a write or a read, and takes no more by this connection");
            return Err(Error::new(libc::EPIPE, sentence));
        }
        if self.nodes.connection(link).operations >= QUEUE {
            return self.no_room();
        }
        let Some(number) = self.rdma.take() else { return self.no_room() };
        if let Err(error) = self.post_operation(link, number, direction, (remote, local), len) {
            self.rdma.free.push(number);
            return Err(error);
        }
        let key = local.key();
        self.rdma.begun += 1;
        let order = self.rdma.begun;
        self.rdma.operations[number as usize] = Operation { link, direction, remote, local, len: len as u32, order };
        self.rdma.kind(direction).under_way += 1;
        self.nodes.connection_mut(link).operations += 1;
        self.locks.hold(key);
        self.nodes.mesh.hold(link);
        Ok(())
    }

    fn post_operation(
        &self,
        link: Link,
        number: u32,
        direction: Direction,
        (remote, local): (AddrHandle, AddrHandle),
        len: usize,
    ) -> Result<()> {
        let (memory, at) = self.locks.find(local, len)?;
        let sges = [memory.slice(at..at + len)];
        let there =
            RemoteAddr { addr: remote.addr(), rkey: self.rest.key_at(self.nodes.mesh.peer(link).0, remote.key()) };
        let request = match direction {
            Direction::Write => SendRequest::write(&sges, there),
            Direction::Read => SendRequest::read(&sges, there),
        };
        Ok(self.nodes.mesh.data(link).post(request.id(RDMA | u64::from(number)).signaled())?)
    }

    /// Begins a write or a read of an image. Returns true if it has begun, or never will. A request that is refused at
    /// once is reported as if the device had refused it.
    pub fn begin_saved_copy(&mut self, copy: &SavedCopy) -> bool {
        if self.nodes.has_failed() {
            return true;
        }
        let (remote, local) = (AddrHandle(copy.remote), AddrHandle(copy.local));
        let begun = self
            .nodes
            .check_node(copy.node)
            .and_then(|()| self.begin_copy(copy.direction, copy.node, remote, local, copy.len as usize));
        match begun {
            Err(error) if error.is_temporary() => false,
            Err(error) => {
                self.rdma.add_fault(copy.direction, error);
                true
            }
            Ok(()) => true,
        }
    }

    #[cold]
    fn no_room(&mut self) -> Result<()> {
        self.look();
        self.nodes.check()?;
        Err(FULL)
    }

    /// A write or a read is over: by which connection.
    pub fn operation_over(&mut self, number: u32, completion: &Completion) -> Link {
        let Operation { link, local, direction, .. } = self.rdma.operations[number as usize];
        self.nodes.connection_mut(link).operations -= 1;
        self.rdma.free.push(number);
        if let Err(error) = self.locks.release(local.key()) {
            self.nodes.fail(error);
        }
        if !completion.is_success() {
            self.note_fault(link, direction, completion);
        }
        self.rdma.kind(direction).under_way -= 1;
        link
    }

    #[cold]
    fn note_fault(&mut self, link: Link, direction: Direction, completion: &Completion) {
        let node = self.nodes.mesh.peer(link).0;
        let status = completion.status();
        let what = match direction {
            Direction::Write => "a write to",
            Direction::Read => "a read from",
        };
        let (errno, why) = if is_refusal(status) {
            (libc::EFAULT, "the memory is not locked there, or not all of it")
        } else {
            (libc::EPIPE, "the connection is broken")
        };
        let error = Error::new(errno, format!("{what} node {node} failed: {why} ({status})"));
        self.rdma.add_fault(direction, error);
    }

    /// Checks that all writes, or reads, are over.
    pub fn check_copied(&mut self, direction: Direction) -> Result<()> {
        self.begin_unsent();
        self.look_for_completions();
        self.nodes.check()?;
        let waits = self.rest.withholds(direction);
        let kind = self.rdma.kind(direction);
        if waits {
            return Err(if direction == Direction::Write { NOT_WRITTEN } else { NOT_READ });
        }
        if let Some(fault) = kind.fault.take() {
            return Err(fault);
        }
        if kind.under_way == 0 {
            return Ok(());
        }
        Err(match direction {
            Direction::Write => NOT_WRITTEN,
            Direction::Read => NOT_READ,
        })
    }
}
