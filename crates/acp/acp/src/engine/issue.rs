//! Issuing: the way of an operation, and the events that it has to wait for.

use vervain_mesh::Link;
use vervain_rdma::{Qp, RemoteAddr, SendRequest};

use super::Engine;
use super::buffers::BOUNCE;
use super::connections::SENDS;
use super::entries::Cached;
use super::operations::index;
use super::own_memory::{OwnMemory, check_alignment};
use super::requester::{MAX_REQUEST, Requester};
use super::server::Asker;
use crate::address::{GlobalAddress, Parts};
use crate::command::Ask;
use crate::error::{Error, Result};
use crate::handle::{Handle, Order};
use crate::op::{Atomic, Op, Place, Step, Work};
use crate::table::STARTERS;

/// The number of operations between two looks for a completion right after posting, while such looks find none.
const EAGER: i64 = 64;

/// Posts the one request of an operation. Returns its step.
#[inline(always)]
fn post(qp: &Qp, request: SendRequest<'_, '_>, id: u64, step: Step) -> Result<Step> {
    qp.post(request.id(id).signaled())?;
    Ok(step)
}

impl Engine {
    /// Issues a copy; there is [room](Engine::has_room).
    #[inline]
    pub fn copy(&mut self, dst: GlobalAddress, src: GlobalAddress, len: usize, order: Order) -> Result<Handle> {
        let memory = &self.requester.memory;
        let (Some(to), Some(from)) = (memory.layout.parts(dst), memory.layout.parts(src)) else {
            return Err(self.no_such_rank(dst, src));
        };
        let work = match (to.rank == memory.rank, from.rank == memory.rank) {
            _ if len == 0 => Work::Here,
            (false, true) => Work::Put,
            (true, false) => Work::Get,
            (true, true) => Work::Here,
            (false, false) if len as u64 <= BOUNCE => Work::Bounce,
            (false, false) => Work::Forward,
        };
        if let Some(handle) = self.issue_fast(work, dst, src, len, order)? {
            return Ok(handle);
        }
        if len > 0 {
            let OwnMemory { rank, table, .. } = &self.requester.memory;
            if to.rank == *rank {
                table.writable(dst, len).map_err(Error::into_refused)?;
            }
            if from.rank == *rank {
                table.range(src, len).map_err(Error::into_refused)?;
            }
        }
        Ok(self.issue(Op { work, dst, src, len: len as u64, ..Op::NONE }, order))
    }

    /// Posts an operation of one request whose order is met, if no other waits before it at its connection and the
    /// entry of the peer's region is cached. None otherwise, and for a faulty operation: [`issue`](Engine::issue) finds
    /// the fault.
    #[inline]
    fn issue_fast(
        &mut self,
        work: Work,
        dst: GlobalAddress,
        src: GlobalAddress,
        len: usize,
        order: Order,
    ) -> Result<Option<Handle>> {
        let (own, far) = match work {
            Work::Put => (src, dst),
            Work::Get | Work::Device(_) => (dst, src),
            _ => return Ok(None),
        };
        let Requester { mesh, memory, operations, entries, connections, .. } = &mut self.requester;
        let (seq, after) = (operations.next(), operations.after(order));
        let (region, offset) = (memory.layout.region(far), memory.layout.offset(far));
        let Cached { region: cached, stamp, link, entry } = *entries.at(region);
        let connection = &mut connections[link.index];
        let is_open = cached == region
            && stamp == connection.stamp
            && connection.queue.is_empty()
            && connection.posted < SENDS
            && mesh.is_open(link);
        let fits = len as u64 <= MAX_REQUEST && offset.checked_add(len as u64).is_some_and(|end| end <= entry.size);
        if after >= operations.head() || !is_open || !fits {
            return Ok(None);
        }
        let Ok((registration, at)) = memory.table.range(own, len) else { return Ok(None) };
        if work != Work::Put && !registration.writable {
            return Ok(None);
        }
        let sges = [registration.sge(mesh.port_of(link), at..at + len)];
        let there = RemoteAddr { addr: entry.start + offset, rkey: entry.rkey };
        let i = index(seq);
        let (data, id) = (mesh.data(link), u64::from(i));
        // Each request is posted where it is made: with a request made first and posted later, the compiler copies it.
        let step = match work {
            Work::Put => post(data, SendRequest::write(&sges, there), id, Step::Write),
            Work::Get => post(data, SendRequest::read(&sges, there), id, Step::Read),
            _ if !connection.peer.atomics || !(there.addr | registration.at(at) as u64).is_multiple_of(8) => {
                return Ok(None);
            }
            Work::Device(Atomic::Add8(value)) => {
                post(data, SendRequest::fetch_add(&sges, there, value), id, Step::Atomic)
            }
            Work::Device(Atomic::CompareSwap8 { expected, new }) => {
                post(data, SendRequest::compare_swap(&sges, there, expected, new), id, Step::Atomic)
            }
            _ => return Ok(None),
        }?;
        mesh.hold(link);
        operations.number_posted((memory.layout.owner(src), memory.layout.owner(dst)), after);
        // A device in memory has completed it by now. If it is the only operation, it then takes no place, and a thread
        // that waits for it sees that without the lock.
        let looks = self.eager || seq % EAGER == 0;
        let has_found = looks && seq == self.requester.operations.head() && self.find_one(link);
        if has_found && self.found[0].is_success() && self.found[0].id() == id {
            self.requester.mesh.release(link);
            self.requester.operations.finish_posted();
            self.eager = true;
            return Ok(Some(Handle::of(seq)));
        }
        let connection = &mut self.requester.connections[link.index];
        connection.posted += 1;
        connection.singles += 1;
        connection.reads += u32::from(step != Step::Write);
        let op = self.requester.operations.place_posted(seq);
        (op.seq, op.work, op.step, op.place, op.link) = (seq, work, step, Place::Posted, link);
        (op.dst, op.src, op.len, op.offset, op.in_flight) = (dst, src, len as u64, len as u64, 1);
        if has_found {
            let completion = self.found[0];
            self.handle_completion(&completion);
            self.start_waiting();
        } else if looks {
            self.eager = self.poll();
        }
        Ok(Some(Handle::of(seq)))
    }

    /// Polls one completion, into the first of `found`, at the port of a connection. Returns true if there is one.
    #[inline]
    fn find_one(&mut self, link: Link) -> bool {
        let port = &self.requester.mesh.ports()[self.requester.mesh.port_of(link)];
        match port.data.poll(&mut self.found[..1]) {
            Ok(found) => found == 1,
            Err(error) => {
                self.requester.fail(error.into());
                false
            }
        }
    }

    /// Issues an atomic, as [`copy`](Engine::copy) does a copy.
    #[inline]
    pub fn atomic(&mut self, dst: GlobalAddress, src: GlobalAddress, what: Atomic, order: Order) -> Result<Handle> {
        // Only a peer's region has its entry cached, and only own memory is found: no other operation goes the fast
        // way.
        match self.issue_fast(by_device(what), dst, src, what.width(), order)? {
            Some(handle) => Ok(handle),
            None => self.issue_atomic(dst, src, what, order),
        }
    }

    fn issue_atomic(&mut self, dst: GlobalAddress, src: GlobalAddress, what: Atomic, order: Order) -> Result<Handle> {
        let memory = &self.requester.memory;
        let (Some(to), Some(from)) = (memory.layout.parts(dst), memory.layout.parts(src)) else {
            return Err(self.no_such_rank(dst, src));
        };
        let width = what.width();
        if to.rank != memory.rank {
            return Err(Error::refused(format!(
                "the destination {dst} of an atomic is of rank {}, and has to be of the caller, rank {}",
                to.rank, memory.rank
            )));
        }
        memory.check_word(dst, width)?;
        let work = if from.rank == memory.rank {
            memory.check_word(src, width)?;
            Work::HereAtomic(what)
        } else {
            if !from.offset.is_multiple_of(width as u64) {
                self.check_far_alignment(from, width, src)?;
            }
            // The peer's device is assumed to be like this one: the connection tells more.
            if memory.has_device_atomics() { by_device(what) } else { Work::Owner(what) }
        };
        Ok(self.issue(Op { work, dst, src, len: width as u64, ..Op::NONE }, order))
    }

    /// Sends a request to `rank`. The word of its answer is stored to `dst`, a word of this rank.
    pub fn ask(&mut self, rank: u32, ask: Ask, dst: GlobalAddress) -> Result<Handle> {
        let memory = &self.requester.memory;
        let nobody = || Error::refused(format!("there is no rank {rank}: the job has {}", memory.layout.ranks()));
        let src = memory.starter(rank, 0).ok_or_else(nobody)?;
        memory.check_word(dst, size_of::<u64>())?;
        let op = Op { work: Work::Ask(ask), dst, src, ..Op::NONE };
        Ok(if rank == memory.rank { self.ask_here(ask, op) } else { self.issue(op, Order::Now) })
    }

    #[cold]
    fn no_such_rank(&self, dst: GlobalAddress, src: GlobalAddress) -> Error {
        let layout = &self.requester.memory.layout;
        let wrong = if layout.parts(dst).is_none() { dst } else { src };
        Error::refused(format!("{wrong} is the global address of no rank: the job has {}", layout.ranks()))
    }

    /// Checks that a peer's word is aligned, if the start of its region is known: starter memory begins at a page,
    /// other regions as their entry has it, once it was read.
    #[cold]
    fn check_far_alignment(&self, parts: Parts, width: usize, address: GlobalAddress) -> Result<()> {
        let requester = &self.requester;
        let find = || requester.mesh.find(parts.rank, parts.color);
        let read = || requester.cached(address, find()?).map(|entry| entry.start);
        let start = if parts.key <= STARTERS { Some(0) } else { read() };
        start.map_or(Ok(()), |start| check_alignment(start + parts.offset, width, address))
    }

    /// Carries out a request of this rank to itself: its order is met.
    fn ask_here(&mut self, ask: Ask, mut op: Op) -> Handle {
        self.number(&mut op, Order::Now);
        let i = index(op.seq);
        self.requester.operations[i] = Op { place: Place::Queued, ..op };
        self.server.begin_ask(&mut self.requester, ask, Asker::Own(i));
        self.requester.start_ready();
        self.poll_steps(op.seq)
    }

    /// Gives the operation its handle, and starts it or has it wait.
    #[inline]
    fn issue(&mut self, mut op: Op, order: Order) -> Handle {
        self.number(&mut op, order);
        let seq = op.seq;
        let mut waits = op.after >= self.requester.operations.head() && !self.is_chained(&mut op);
        if waits {
            // The operations before it may be over already.
            self.poll();
            waits = op.after >= self.requester.operations.head();
        }
        if waits {
            self.requester.operations.wait(&mut op);
        } else {
            let i = index(seq);
            self.requester.operations[i] = op;
            self.requester.start(i);
            self.requester.start_ready();
        }
        self.poll_steps(seq)
    }

    #[inline]
    fn number(&mut self, op: &mut Op, order: Order) {
        let Requester { memory, operations, .. } = &mut self.requester;
        operations.number(op, (memory.layout.owner(op.src), memory.layout.owner(op.dst)), order);
    }

    /// Polls as long as that advances the operation: a device in memory has done posted requests at once, so that the
    /// next steps need not wait for a later look.
    #[inline]
    fn poll_steps(&mut self, seq: i64) -> Handle {
        while self.requester.operations.is_unfinished(seq) && self.poll() {}
        Handle::of(seq)
    }

    /// Returns true if all operations that are not over go by the connection that this one will take, where the device
    /// keeps them in order. It gets a fence if Reads and atomics are among them.
    #[inline]
    fn is_chained(&mut self, op: &mut Op) -> bool {
        if !op.work.is_single() {
            return false;
        }
        let address = if op.work == Work::Put { op.dst } else { op.src };
        let Requester { mesh, memory, operations, connections, .. } = &self.requester;
        let Some(parts) = memory.layout.parts(address) else { return false };
        let Some(link) = mesh.find(parts.rank, parts.color) else { return false };
        let connection = &connections[link.index];
        if !connections.is_open(link) || (op.work != Work::Put && op.work != Work::Get && !connection.peer.atomics) {
            return false;
        }
        op.fenced = connection.reads > 0;
        operations.are_all_others(connection.singles)
    }
}

/// The way of an atomic by the device. Devices add to words of 8 bytes, and compare and swap them; all others are made
/// of that.
fn by_device(what: Atomic) -> Work {
    match what {
        Atomic::Add8(_) | Atomic::CompareSwap8 { .. } => Work::Device(what),
        _ => Work::Loop(what),
    }
}
