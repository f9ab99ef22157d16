//! Issuing: which way an operation goes, and what it has to wait for.

use vervain_mesh::Link;
use vervain_rdma::{Qp, RemoteAddr, SendRequest};

use super::buffers::BOUNCE;
use super::command::Asker;
use super::entries::Cached;
use super::operations::index;
use super::own_memory::check_alignment;
use super::post::SENDS;
use super::{Engine, MAX_REQUEST};
use crate::address::{GlobalAddress, Parts};
use crate::command::Ask;
use crate::error::{Error, Result};
use crate::handle::{Handle, Order};
use crate::op::{Answer, Atomic, Op, Place, Step, Work};
use crate::table::{STARTERS, outside};

/// Where nothing had completed when the last request had been posted, it is looked for again after as many operations.
const EAGER: i64 = 64;

/// Posts the one request of an operation, and says which step that is.
#[inline(always)]
fn post(qp: &Qp, request: SendRequest<'_, '_>, id: u64, step: Step) -> Result<Step> {
    qp.post(request.id(id).signaled())?;
    Ok(step)
}

impl Engine {
    /// Issues a copy; there is [room](Engine::has_room).
    #[inline]
    pub fn copy(&mut self, dst: GlobalAddress, src: GlobalAddress, len: usize, order: Order) -> Result<Handle> {
        let (Some(to), Some(from)) = (self.memory.layout.parts(dst), self.memory.layout.parts(src)) else {
            return Err(self.nobody(dst, src));
        };
        let work = match (to.rank == self.memory.rank, from.rank == self.memory.rank) {
            _ if len == 0 => Work::Here,
            (false, true) => Work::Put,
            (true, false) => Work::Get,
            (true, true) => Work::Here,
            (false, false) if len as u64 <= BOUNCE => Work::Bounce,
            (false, false) => Work::Forward,
        };
        if let Some(handle) = self.at_once(work, dst, src, len, order)? {
            return Ok(handle);
        }
        if len > 0 {
            if to.rank == self.memory.rank {
                self.memory.table.writable(dst, len).map_err(Error::into_refused)?;
            }
            if from.rank == self.memory.rank {
                self.memory.table.range(src, len).map_err(Error::into_refused)?;
            }
        }
        Ok(self.issue(Op { work, dst, src, len: len as u64, ..Op::NONE }, order))
    }

    /// The short way of what is one request: its order is met, nothing waits before it at its connection, and the entry of the
    /// peer's region is known. None where that is not so, or something is wrong with it: [`issue`](Engine::issue) finds out what.
    #[inline]
    fn at_once(
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
        let seq = self.operations.next();
        let after = self.operations.after(order);
        let (region, offset) = (self.memory.layout.region(far), self.memory.layout.offset(far));
        let Cached { region: cached, stamp, link, entry } = *self.entries.at(region);
        let connection = &mut self.connections[link.index as usize];
        let is_open = cached == region
            && stamp == connection.stamp
            && connection.queue.is_empty()
            && connection.posted < SENDS
            && self.mesh.is_open(link);
        let fits = len as u64 <= MAX_REQUEST && offset.checked_add(len as u64).is_some_and(|end| end <= entry.size);
        if after >= self.operations.head() || !is_open || !fits {
            return Ok(None);
        }
        let Ok((registration, at)) = self.memory.table.range(own, len) else { return Ok(None) };
        if work != Work::Put && !registration.writable {
            return Ok(None);
        }
        let sges = [registration.sge(self.mesh.port_of(link), at..at + len)];
        let there = RemoteAddr { addr: entry.start + offset, rkey: entry.rkey };
        let i = index(seq);
        let (data, id) = (self.mesh.data(link), u64::from(i));
        // Each request is posted where it is made: to make one of them first and post it then has the compiler copy it.
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
        self.mesh.hold(link);
        self.operations.number_posted((self.memory.layout.owner(src), self.memory.layout.owner(dst)), after);
        // A device in memory has done it: then, being the only one, it takes no place, and who waits for it finds so without the lock.
        let looks = self.eager || seq % EAGER == 0;
        let has_found = looks && seq == self.operations.head() && self.find_one(link);
        if has_found && self.found[0].is_success() && self.found[0].id() == id {
            self.mesh.release(link);
            self.operations.skip();
            self.eager = true;
            return Ok(Some(Handle::of(seq)));
        }
        let connection = &mut self.connections[link.index as usize];
        connection.posted += 1;
        connection.singles += 1;
        connection.reads += u32::from(step != Step::Write);
        let op = self.operations.count_posted(seq);
        (op.seq, op.work, op.step, op.place, op.link) = (seq, work, step, Place::Posted, link);
        (op.dst, op.src, op.len, op.offset, op.in_flight) = (dst, src, len as u64, len as u64, 1);
        if has_found {
            let completion = self.found[0];
            self.completed(&completion);
            self.go_on();
        } else if looks {
            self.eager = self.poll();
        }
        Ok(Some(Handle::of(seq)))
    }

    /// Polls one completion of this rank's requests at the port of a connection, the first of `found`; whether there is one.
    #[inline]
    fn find_one(&mut self, link: Link) -> bool {
        let port = &self.mesh.ports()[self.mesh.port_of(link)];
        match port.data.poll(&mut self.found[..1]) {
            Ok(found) => found == 1,
            Err(error) => {
                self.fail(error.into());
                false
            }
        }
    }

    /// Issues an atomic; as [`copy`](Engine::copy).
    #[inline]
    pub fn atomic(&mut self, dst: GlobalAddress, src: GlobalAddress, what: Atomic, order: Order) -> Result<Handle> {
        // Only a peer's region has its entry cached, and only own memory is found: nothing else goes the short way.
        match self.at_once(by_device(what), dst, src, what.width(), order)? {
            Some(handle) => Ok(handle),
            None => self.atomic_in_steps(dst, src, what, order),
        }
    }

    fn atomic_in_steps(
        &mut self,
        dst: GlobalAddress,
        src: GlobalAddress,
        what: Atomic,
        order: Order,
    ) -> Result<Handle> {
        let (Some(to), Some(from)) = (self.memory.layout.parts(dst), self.memory.layout.parts(src)) else {
            return Err(self.nobody(dst, src));
        };
        let width = what.width();
        if to.rank != self.memory.rank {
            return Err(Error::refused(format!(
                "the destination {dst} of an atomic is of rank {}, and has to be of the caller, rank {}",
                to.rank, self.memory.rank
            )));
        }
        self.memory.check_word(dst, width)?;
        let work = if from.rank == self.memory.rank {
            self.memory.check_word(src, width)?;
            Work::HereAtomic(what)
        } else {
            if !from.offset.is_multiple_of(width as u64) {
                self.far_aligned(from, width, src)?;
            }
            // Like devices are assumed here: with the connection it is known.
            if self.memory.has_device_atomics() { by_device(what) } else { Work::Owner(what) }
        };
        Ok(self.issue(Op { work, dst, src, len: width as u64, ..Op::NONE }, order))
    }

    /// Asks `rank` for something; the word that it answers is stored to `dst`, a word of this rank's.
    pub fn ask(&mut self, rank: u32, ask: Ask, dst: GlobalAddress) -> Result<Handle> {
        let src = self.memory.starter(rank, 0);
        let src = src.ok_or_else(|| {
            Error::refused(format!("there is no rank {rank}: the job has {}", self.memory.layout.ranks()))
        })?;
        self.memory.check_word(dst, size_of::<u64>())?;
        Ok(self.issue(Op { work: Work::Ask(ask), dst, src, ..Op::NONE }, Order::Now))
    }

    #[cold]
    fn nobody(&self, dst: GlobalAddress, src: GlobalAddress) -> Error {
        let wrong = if self.memory.layout.parts(dst).is_none() { dst } else { src };
        Error::refused(format!("{wrong} is the global address of no rank: the job has {}", self.memory.layout.ranks()))
    }

    /// Whether a peer's word is aligned, as far as it is known where its region begins: starter memory does so at a page, others
    /// where their entry says, once it was read.
    #[cold]
    fn far_aligned(&self, parts: Parts, width: usize, address: GlobalAddress) -> Result<()> {
        let read = || self.cached(address, self.mesh.find(parts.rank, parts.color)?).map(|entry| entry.start);
        let start = if parts.key <= STARTERS { Some(0) } else { read() };
        start.map_or(Ok(()), |start| check_alignment(start + parts.offset, width, address))
    }

    /// Gives the operation its handle, and starts it or has it wait.
    #[inline]
    fn issue(&mut self, mut op: Op, order: Order) -> Handle {
        let ends = (self.memory.layout.owner(op.src), self.memory.layout.owner(op.dst));
        self.operations.number(&mut op, ends, order);
        let seq = op.seq;
        let mut waits = op.after >= self.operations.head() && !self.is_chained(&mut op);
        if waits {
            // What stands in the way may be over already.
            self.poll();
            waits = op.after >= self.operations.head();
        }
        if waits {
            self.operations.wait(op);
        } else {
            let i = index(seq);
            self.operations[i] = op;
            self.start(i);
            self.drain();
        }
        // A device in memory has done at once what was posted: the next steps need not wait for somebody to look.
        while self.operations.is_unfinished(seq) && self.poll() {}
        Handle::of(seq)
    }

    /// Whether all that is not over goes by the connection that the operation will take, where the device keeps them in order; with
    /// a fence where Reads and atomics are among them.
    #[inline]
    fn is_chained(&mut self, op: &mut Op) -> bool {
        if !op.work.is_single() {
            return false;
        }
        let address = if op.work == Work::Put { op.dst } else { op.src };
        let Some(parts) = self.memory.layout.parts(address) else { return false };
        let Some(link) = self.mesh.find(parts.rank, parts.color) else { return false };
        let connection = &self.connections[link.index as usize];
        if connection.link != Some(link) || (op.work != Work::Put && op.work != Work::Get && !connection.peer.atomics) {
            return false;
        }
        op.fenced = connection.reads > 0;
        self.operations.are_all_others(connection.singles)
    }

    /// Starts an operation whose order is met.
    pub(super) fn start(&mut self, i: u32) {
        let op = &mut self.operations[i];
        op.offset = 0;
        op.step = match op.work {
            Work::Put | Work::Serve => Step::Write,
            Work::Get | Work::Bounce | Work::Loop(_) => Step::Read,
            Work::Device(_) => Step::Atomic,
            Work::Ask(ask) if self.memory.layout.parts(op.src).is_some_and(|parts| parts.rank == self.memory.rank) => {
                op.place = Place::Queued;
                return self.begin_ask(ask, Asker::Own(i));
            }
            Work::Forward | Work::Owner(_) | Work::Ask(_) | Work::Discard => Step::Command,
            Work::Notify(_) => Step::Notify,
            Work::Answer => Step::Answer,
            Work::Here | Work::HereAtomic(_) => return self.here(i),
            Work::ServeHere => {
                op.place = Place::Queued;
                return self.here.push_back(i);
            }
        };
        if op.work == Work::Bounce && op.buffer == crate::op::NO_BUFFER {
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

    /// Carries out what stays inside this rank.
    fn here(&mut self, i: u32) {
        let op = self.operations[i];
        let done = match op.work {
            Work::HereAtomic(what) => {
                self.memory.carry_out(op.src, what).and_then(|old| self.memory.store(op.dst, old, what.width()))
            }
            _ if op.len == 0 => Ok(()),
            _ => self.memory.copy(op.dst, op.src, op.len as usize),
        };
        match done {
            Ok(()) => self.operations.finish(i),
            Err(error) => self.fail(error),
        }
    }

    /// The sentence about an access outside of a peer's region.
    #[cold]
    pub(super) fn outside(&self, address: GlobalAddress, len: u64, size: Option<u64>) -> Error {
        let rank = self.memory.layout.parts(address).map_or(0, |parts| parts.rank);
        Error::broken(outside(rank, self.memory.layout.offset(address), len, address, size))
    }

    /// Sends a notice to `rank`, which has a receive for it.
    pub fn notify(&mut self, rank: u32, immediate: u32) {
        let Some(dst) = self.memory.starter(rank, 0) else { return };
        let i = self.operations.add(Op { work: Work::Notify(immediate), dst, ..Op::NONE });
        self.start(i);
        self.drain();
    }

    /// Begins the answer to a command that has not been served by an operation.
    pub(super) fn answer(&mut self, answer: Answer) {
        let i = self.operations.add(Op { work: Work::Answer, answer, ..Op::NONE });
        self.start(i);
    }
}

/// Devices add to words of 8 bytes, and compare and swap them; all else is made of that.
fn by_device(what: Atomic) -> Work {
    match what {
        Atomic::Add8(_) | Atomic::CompareSwap8 { .. } => Work::Device(what),
        _ => Work::Loop(what),
    }
}
