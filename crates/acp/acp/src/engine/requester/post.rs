//! Posting: an operation's next request, on its connection.

use vervain_mesh::Link;
use vervain_rdma::{RemoteAddr, SendRequest};

use super::Requester;
use crate::address::GlobalAddress;
use crate::command::{Command, NOTHING, Notice, Status};
use crate::engine::buffers::BOUNCE;
use crate::engine::connections::{Fetch, SENDS};
use crate::engine::entries::Cached;
use crate::error::{Error, Result};
use crate::op::{Answer, Atomic, Place, Step, Work, with_half};
use crate::table::Entry;

/// The most bytes of one request; a longer one is posted in parts. Devices take at least 2^31 bytes.
pub const MAX_REQUEST: u64 = 1 << 30;
/// Bit of a request's id: not an operation's, but the Read of an entry for the connection with this index.
pub const FETCH: u64 = 1 << 40;
/// Bit of a request's id: it is a command.
pub const SENT: u64 = 1 << 41;

/// The result of posting.
enum Posted {
    /// All requests of the step are with the device.
    All,
    /// The rest waits for room, or for the entry.
    Blocked,
    /// Not posted: its region is gone, and the asker gets that answer.
    Elsewhere,
}

/// The entry of a region, for an operation that is to be posted.
enum Found {
    Entry(Entry),
    Not(Posted),
}

impl Requester {
    /// The entry of the region of `address`, as read by the connection `link`.
    #[inline]
    pub fn cached(&self, address: GlobalAddress, link: Link) -> Option<Entry> {
        let region = self.memory.layout.region(address);
        let cached = self.entries.at(region);
        let fits = cached.region == region && cached.link == link;
        (fits && cached.stamp == self.connections[link.index].stamp).then_some(cached.entry)
    }

    /// Hands an operation to its connection, which it holds.
    #[inline]
    pub fn enqueue(&mut self, i: u32, link: Link) {
        let op = &mut self.operations[i];
        op.link = link;
        op.place = Place::Queued;
        let connection = &mut self.connections[link.index];
        if op.work.is_single() {
            connection.singles += 1;
            connection.reads += u32::from(op.work != Work::Put);
        }
        let command = op.step == Step::Command;
        if !connection.queue_of(command).is_empty() || matches!(self.post_or_fail(i), Posted::Blocked) {
            self.connections[link.index].queue_of(command).push_back(i);
        }
    }

    /// Posts the next step of an operation before those that wait.
    pub fn repost(&mut self, i: u32) {
        let op = &mut self.operations[i];
        op.place = Place::Queued;
        let link = op.link;
        if let Posted::Blocked = self.post_or_fail(i) {
            self.connections[link.index].queue.push_front(i);
        }
    }

    /// Posts the operations that wait at a connection, as far as there is room.
    pub fn pump(&mut self, link: Link) {
        // The operation that has failed the job is still at the head: it would read the same entry again for ever.
        if self.failure.is_some() {
            return;
        }
        for command in [false, true] {
            while let Some(i) = self.connections[link.index].queue_of(command).pop_front() {
                if let Posted::Blocked = self.post_or_fail(i) {
                    self.connections[link.index].queue_of(command).push_front(i);
                    break;
                }
            }
        }
    }

    #[inline]
    fn post_or_fail(&mut self, i: u32) -> Posted {
        match self.post(i) {
            Ok(posted) => posted,
            Err(error) => {
                self.fail(error);
                Posted::Blocked
            }
        }
    }

    /// Posts an operation's step, or as much of it as there is room for.
    #[inline]
    fn post(&mut self, i: u32) -> Result<Posted> {
        let step = self.operations[i].step;
        match step {
            Step::Write | Step::Read => self.post_copy(i, step == Step::Write),
            Step::Atomic => self.post_atomic(i),
            Step::Command => self.post_command(i),
            Step::Answer | Step::Notify => self.post_notice(i),
        }
    }

    /// The entry for `len` bytes at `address`.
    #[inline]
    fn entry(&mut self, i: u32, address: GlobalAddress, len: u64, link: Link) -> Result<Found> {
        match self.cached(address, link) {
            Some(entry) if self.memory.layout.offset(address).checked_add(len).is_some_and(|end| end <= entry.size) => {
                Ok(Found::Entry(entry))
            }
            Some(entry) => Ok(Found::Not(self.missed(i, address, Some(entry.size)))),
            None => {
                self.fetch(address, link)?;
                Ok(Found::Not(Posted::Blocked))
            }
        }
    }

    /// Handles an operation whose access lies outside of the peer's region. `size`: the region's, in bytes; None if
    /// there is no region.
    #[cold]
    fn missed(&mut self, i: u32, address: GlobalAddress, size: Option<u64>) -> Posted {
        let op = self.operations[i];
        if op.work == Work::Serve {
            // The rank of the issuer reports it.
            self.mesh.release(op.link);
            self.answer_served(i, Status::DestinationOutside, size.unwrap_or(NOTHING));
            return Posted::Elsewhere;
        }
        let error = self.outside(address, op.len, size);
        self.fail(error);
        Posted::Blocked
    }

    /// Handles an entry that has been read, for the first operation of the queue.
    pub fn handle_entry(&mut self, index: u32) {
        let connection = &mut self.connections[index];
        connection.posted -= 1;
        let Some(Fetch { region, stamp, link }) = connection.fetching.take() else { return };
        match self.entries.fetched(index) {
            // Read before the peer asked to forget it, or while it changed: it is read again.
            _ if stamp != connection.stamp => {}
            Err(()) => {}
            Ok(Some(entry)) => self.entries.keep(Cached { region, stamp, link, entry }),
            Ok(None) => {
                let connection = &mut self.connections[index];
                let first = connection.queue.front().map(|i| (*i, &self.operations[*i]));
                let first = first.map(|(i, op)| (i, if op.step == Step::Write { op.dst } else { op.src }));
                if let Some((i, address)) = first.filter(|(_, address)| self.memory.layout.region(*address) == region) {
                    connection.queue.pop_front();
                    if let Posted::Blocked = self.missed(i, address, None) {
                        self.connections[index].queue.push_front(i);
                    }
                }
            }
        }
        self.pump(link);
    }

    /// Reads the entry of the region of `address` from the peer's table.
    fn fetch(&mut self, address: GlobalAddress, link: Link) -> Result<()> {
        let Some(parts) = self.memory.layout.parts(address) else { return Ok(()) };
        let connection = &mut self.connections[link.index];
        if connection.fetching.is_some() || connection.posted >= SENDS {
            return Ok(());
        }
        connection.fetching = Some(Fetch { region: self.memory.layout.region(address), stamp: connection.stamp, link });
        let port = self.mesh.port_of(link);
        let from = RemoteAddr {
            addr: connection.peer.table + u64::from(parts.key) * Entry::BYTES as u64,
            rkey: connection.peer.table_key,
        };
        let sges = [self.entries.fetch_sge(port, link.index)];
        self.mesh.data(link).post(SendRequest::read(&sges, from).id(FETCH | u64::from(link.index)).signaled())?;
        connection.posted += 1;
        Ok(())
    }

    fn post_copy(&mut self, i: u32, write: bool) -> Result<Posted> {
        let op = self.operations[i];
        let link = op.link;
        let (remote, local) = if write { (op.dst, op.src) } else { (op.src, op.dst) };
        let word = matches!(op.work, Work::Loop(_));
        let entry = match self.entry(i, remote, op.len, link)? {
            Found::Entry(entry) => entry,
            Found::Not(posted) => return Ok(posted),
        };
        let far = entry.start + self.memory.layout.offset(remote);
        if word && !far.is_multiple_of(op.len) {
            return Err(misaligned(remote, op.len));
        }
        self.operations[i].upper = far & 4 != 0;
        let port = self.mesh.port_of(link);
        let mut offset = op.offset;
        loop {
            if self.connections[link.index].posted >= SENDS {
                return Ok(Posted::Blocked);
            }
            let (bytes, far, sges) = match op.work {
                Work::Loop(_) => (8, far & !7, [self.operations.word_sge(port, i)]),
                Work::Bounce => {
                    let bytes = (op.len - offset).min(BOUNCE);
                    (bytes, far + offset, [self.operations.buffers.sge(port, op.buffer, bytes)])
                }
                _ => {
                    let bytes = (op.len - offset).min(MAX_REQUEST);
                    let (registration, at) = self.memory.table.range(local, op.len as usize)?;
                    let at = at + offset as usize;
                    (bytes, far + offset, [registration.sge(port, at..at + bytes as usize)])
                }
            };
            let at = RemoteAddr { addr: far, rkey: entry.rkey };
            let mut request = if write { SendRequest::write(&sges, at) } else { SendRequest::read(&sges, at) };
            if op.fenced {
                request = request.fence();
            }
            self.mesh.data(link).post(request.id(u64::from(i)).signaled())?;
            self.connections[link.index].posted += 1;
            let op = &mut self.operations[i];
            op.in_flight += 1;
            // A step of a bounce or of a loop is one request.
            let all = !matches!(op.work, Work::Put | Work::Get | Work::Serve) || {
                offset += bytes;
                op.offset = offset;
                offset == op.len
            };
            if all {
                self.operations.now_posted(i);
                return Ok(Posted::All);
            }
        }
    }

    fn post_atomic(&mut self, i: u32) -> Result<Posted> {
        let op = self.operations[i];
        let link = op.link;
        let entry = match self.entry(i, op.src, op.len, link)? {
            Found::Entry(entry) => entry,
            Found::Not(posted) => return Ok(posted),
        };
        if self.connections[link.index].posted >= SENDS {
            return Ok(Posted::Blocked);
        }
        let far = entry.start + self.memory.layout.offset(op.src);
        if !far.is_multiple_of(op.len) {
            return Err(misaligned(op.src, op.len));
        }
        let port = self.mesh.port_of(link);
        let sges = if let Work::Device(_) = op.work {
            // Directly to its destination: requests posted behind it may use that word.
            let (registration, at) = self.memory.table.range(op.dst, 8)?;
            [registration.sge(port, at..at + 8)]
        } else {
            [self.operations.word_sge(port, i)]
        };
        let at = RemoteAddr { addr: far & !7, rkey: entry.rkey };
        let request = match op.work {
            Work::Device(Atomic::Add8(value)) => SendRequest::fetch_add(&sges, at, value),
            Work::Device(Atomic::CompareSwap8 { expected, new }) => SendRequest::compare_swap(&sges, at, expected, new),
            Work::Loop(what) => {
                let (width, upper) = (what.width(), far & 4 != 0);
                let old = if width == 8 { op.expected } else { op.expected >> (32 * u32::from(upper)) & 0xffff_ffff };
                let new = what.apply(old).map_or(op.expected, |new| with_half(op.expected, new, width, upper));
                SendRequest::compare_swap(&sges, at, op.expected, new)
            }
            _ => unreachable!("no other operation has this step"),
        };
        let request = if op.fenced { request.fence() } else { request };
        self.mesh.data(link).post(request.id(u64::from(i)).signaled())?;
        self.connections[link.index].posted += 1;
        self.operations[i].in_flight += 1;
        self.operations.now_posted(i);
        Ok(Posted::All)
    }

    fn post_command(&mut self, i: u32) -> Result<Posted> {
        let op = self.operations[i];
        let link = op.link;
        let connection = &mut self.connections[link.index];
        if connection.sent >= SENDS || connection.unanswered >= SENDS {
            return Ok(Posted::Blocked);
        }
        let command = match op.work {
            Work::Forward => Command::Copy { dst: op.dst, src: op.src, len: op.len },
            Work::Owner(what) => Command::Atomic { at: op.src, what },
            Work::Ask(ask) => Command::Ask(ask),
            _ => Command::Discard,
        };
        connection.sent += 1;
        connection.unanswered += 1;
        let index = u16::try_from(i).map_err(|_| Error::broken("an operation has a number above 65535"))?;
        let sges = [self.operations.stage(self.mesh.port_of(link), i, &command.encode(index))];
        self.mesh.commands(link).post(SendRequest::send(&sges).id(SENT | u64::from(i)).signaled())?;
        self.mesh.sent(link);
        self.operations[i].in_flight += 1;
        self.operations.now_posted(i);
        Ok(Posted::All)
    }

    fn post_notice(&mut self, i: u32) -> Result<Posted> {
        let op = self.operations[i];
        let link = op.link;
        let connection = &mut self.connections[link.index];
        if connection.posted >= SENDS {
            return Ok(Posted::Blocked);
        }
        let peer = connection.peer;
        connection.posted += 1;
        let port = self.mesh.port_of(link);
        let id = u64::from(i);
        match op.work {
            Work::Notify(immediate) => {
                self.mesh.data(link).post(SendRequest::send_imm(&[], immediate).id(id).signaled())?;
            }
            _ => {
                let Answer { index, status, value, .. } = op.answer;
                let sges = [self.operations.stage(port, i, &value.to_ne_bytes())];
                let at = RemoteAddr { addr: peer.scratch + u64::from(index) * 8, rkey: peer.scratch_key };
                let immediate = Notice::Answer(index, Status::ALL[usize::from(status)]).encode();
                self.mesh.data(link).post(SendRequest::write_imm(&sges, at, immediate).id(id).signaled())?;
            }
        }
        self.mesh.sent(link);
        self.operations[i].in_flight += 1;
        self.operations.now_posted(i);
        Ok(Posted::All)
    }
}

#[cold]
fn misaligned(address: GlobalAddress, width: u64) -> Error {
    Error::broken(format!("the word of {width} bytes at {address} is not aligned to its size"))
}
