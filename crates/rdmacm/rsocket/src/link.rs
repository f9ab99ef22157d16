//! A stream on its QP: memory, requests, completions.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::fabric::{Completion, Errno, Limits, Operation, Outcome, Part, QueueSizes, Queues, Result};
use crate::memory::{Memory, Vectors};
use crate::protocol::stream::{
    CONTROLS, Control, NoIoMap, Phase, Places, SPARE_RECEIVES, Sizes, Source, Stream, Tag, Write,
};
use crate::protocol::wire::{IO_MAP_BYTES, IoMap, Order, SGE_BYTES};
use crate::waiting::lock;

/// In the identifier of a receive, whose lower bits are its place in the memory for messages.
const RECEIVE: u64 = 1 << 63;

/// Completions that are taken at once.
const BATCH: usize = 32;

/// Bytes of a message that comes by a Send.
const WORD_BYTES: u32 = 4;

/// Sizes that a socket was given, before a device is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// SO_SNDBUF, as bytes of the ring.
    pub send_bytes: u32,
    /// SO_RCVBUF.
    pub receive_bytes: u32,
    /// RDMA_SQSIZE.
    pub send_requests: u16,
    /// RDMA_RQSIZE.
    pub receives: u16,
    /// RDMA_INLINE.
    pub inline_bytes: u16,
    /// RDMA_IOMAPSIZE.
    pub io_maps: u16,
}

/// The least of a queue.
const LEAST_REQUESTS: u32 = 16;

/// The most of a queue: counts are of 16 bits.
const MOST_REQUESTS: u32 = 0xfffe;

/// Data moves in parts of up to 29 bits, and places are counted in 32.
const MOST_BYTES: u32 = 1 << 30;

/// The end of a send or a receive of which nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// There is nothing to do now.
    Wait,
    /// There will not be.
    Ended,
}

struct Core {
    stream: Stream,
    /// The CQ will report its next completion, or has done so.
    armed: bool,
    /// A Write was given out and is not posted yet: the end of the stream must not overtake it.
    preparing: bool,
    /// A request has failed, with this errno value; None: flushed. Requests that succeeded before it may be polled
    /// after it.
    failed: Option<Option<i32>>,
}

/// A stream and all that is its.
pub struct Link {
    // Dropped in this order: a QP that is no more touches no memory.
    queues: Arc<dyn Queues>,
    send: Memory,
    arrays: Memory,
    buffer: Memory,
    words: Option<Memory>,
    core: Mutex<Core>,
    /// Which of them there are is not known before there is a peer.
    maps: Mutex<Vec<Option<Map>>>,
}

/// A buffer of the program's that the peer may write to.
struct Map {
    address: usize,
    length: usize,
    /// The entry that is still to be written, and has its place in the peer's iomap as here; None: it was, or has none.
    untold: Option<IoMap>,
    region: Box<dyn crate::fabric::Region>,
    /// Its entry is the peer's with this index.
    is_remote: bool,
}

impl Link {
    /// Queues and memory, with all receives posted.
    ///
    /// # Errors
    /// As of the functions that make them; ENOTSUP where requests hold too little for a device without immediate data.
    pub fn new(id: &dyn crate::fabric::Id, wishes: &Wishes, limits: Limits) -> Result<Link> {
        let most = limits.requests.min(MOST_REQUESTS);
        let spare = u32::from(SPARE_RECEIVES);
        let requests = u32::from(wishes.send_requests).max(LEAST_REQUESTS).min(most);
        let credits = u32::from(wishes.receives).max(LEAST_REQUESTS).min(most.saturating_sub(spare));
        if requests < u32::from(CONTROLS) + 2 || credits < 2 {
            return Err(Errno(libc::ENOTSUP));
        }
        let queues = id.queues(&QueueSizes {
            send_requests: requests,
            receives: credits + spare,
            inline_bytes: wishes.inline_bytes.into(),
        })?;
        if limits.separate && queues.inline_bytes() < WORD_BYTES {
            return Err(Errno(libc::ENOTSUP));
        }
        let sizes = Sizes {
            send_requests: requests as u16,
            credits: credits as u16,
            send_bytes: wishes.send_bytes.clamp(crate::settings::LEAST_SEND_BYTES, MOST_BYTES),
            receive_bytes: wishes.receive_bytes.clamp(2, MOST_BYTES).next_multiple_of(2),
            io_maps: wishes.io_maps,
            inline_bytes: queues.inline_bytes(),
            separate: limits.separate,
        };
        let send = Memory::new(&*queues, sizes.send_memory(), false)?;
        let arrays = Memory::new(&*queues, sizes.array_memory(), true)?;
        let buffer = Memory::new(&*queues, sizes.receive_bytes as usize, true)?;
        let receives = credits + spare;
        let words =
            limits.separate.then(|| Memory::new(&*queues, (receives * WORD_BYTES) as usize, false)).transpose()?;
        let places = Places {
            arrays: arrays.address(),
            arrays_key: arrays.remote_key(),
            buffer: buffer.address(),
            buffer_key: buffer.remote_key(),
        };
        let stream = Stream::new(Order::HOST, sizes, places);
        let core = Mutex::new(Core { stream, armed: false, preparing: false, failed: None });
        let link = Link { queues, send, arrays, buffer, words, core, maps: Mutex::default() };
        (0..receives).try_for_each(|at| link.post_receive(RECEIVE | u64::from(at)))?;
        Ok(link)
    }

    /// The greeting to the peer.
    pub fn hello(&self) -> Vec<u8> {
        lock(&self.core).stream.hello().encode().to_vec()
    }

    /// Takes the peer's greeting.
    ///
    /// # Errors
    /// ENOTSUP: no stream is possible with it.
    pub fn greet(&self, private: &[u8]) -> Result<()> {
        lock(&self.core).stream.greet(private).map_err(|_| Errno(libc::ENOTSUP))
    }

    /// Both ends are connected.
    pub fn begin(&self) {
        let mut core = lock(&self.core);
        core.stream.begin();
        self.say(&mut core);
    }

    /// The QP's completion channel.
    pub fn descriptor(&self) -> std::os::fd::RawFd {
        self.queues.descriptor()
    }

    /// Has it tell of the next completion.
    pub fn arm(&self) {
        let mut core = lock(&self.core);
        if !core.armed {
            core.armed = self.queues.arm().is_ok();
        }
    }

    /// It has told.
    pub fn take_event(&self) {
        let mut core = lock(&self.core);
        if self.queues.take_event() {
            core.armed = false;
        }
    }

    /// The state of the stream.
    pub fn phase(&self) -> Phase {
        lock(&self.core).stream.phase()
    }

    /// True for each of a receive and a send that would not have to wait.
    pub fn readiness(&self) -> (bool, bool) {
        let core = lock(&self.core);
        (core.stream.is_readable(), core.stream.is_writable())
    }

    /// Returns true if a Write into a buffer of the peer's would do something at once.
    pub fn is_io_writable(&self) -> bool {
        lock(&self.core).stream.is_io_writable()
    }

    /// Returns true if the peer may send more.
    pub fn is_receiving(&self) -> bool {
        lock(&self.core).stream.is_receiving()
    }

    /// Returns true if this end may send.
    pub fn is_sending(&self) -> bool {
        lock(&self.core).stream.is_sending()
    }

    /// Returns true if nothing is left to be completed.
    pub fn is_done(&self) -> bool {
        let core = lock(&self.core);
        core.stream.is_done() && (!core.preparing || core.stream.phase() != Phase::Open)
    }

    /// The stream has ended, as the connection has.
    pub fn disconnect(&self) {
        lock(&self.core).stream.disconnect();
    }

    /// The stream is broken.
    pub fn break_off(&self, errno: i32) {
        lock(&self.core).stream.break_off(errno);
    }

    /// This end will not read, or not write, any more.
    pub fn shut_down(&self, reading: bool, writing: bool) {
        let mut core = lock(&self.core);
        core.stream.shut_down(reading, writing);
        self.say(&mut core);
    }

    /// Shows the network whether the peer is there.
    pub fn keep_alive(&self) {
        let mut core = lock(&self.core);
        if let Some(tag) = core.stream.next_keep_alive() {
            // SAFETY: no part.
            let posted = unsafe { self.queues.send(tag.to_id(), &[], false, Operation::Write(0, 0, None)) };
            self.check(&mut core, posted);
        }
    }

    /// Takes completions, and sends control messages that are due. Returns true if anything has changed.
    pub fn progress(&self) -> bool {
        let mut core = lock(&self.core);
        if !core.stream.is_greeted() {
            return false;
        }
        let mut changed = false;
        let mut batch = [Completion::default(); BATCH];
        loop {
            let count = match self.queues.poll(&mut batch) {
                Ok(count) => count.min(BATCH),
                Err(Errno(errno)) => {
                    core.stream.break_off(errno);
                    return true;
                }
            };
            batch[..count].iter().for_each(|completion| self.take(&mut core, completion));
            changed |= count > 0;
            if count < BATCH {
                break;
            }
        }
        self.say(&mut core);
        changed
    }

    /// Returns true if a request has failed, which is to be settled.
    pub fn has_failed(&self) -> bool {
        let core = lock(&self.core);
        core.failed.is_some() && core.stream.phase() == Phase::Open
    }

    /// Ends the stream as broken, if a request has failed and no event has given the reason.
    pub fn settle(&self) {
        let mut core = lock(&self.core);
        match core.failed {
            Some(Some(errno)) => core.stream.break_off(errno),
            Some(None) => core.stream.disconnect(),
            None => {}
        }
    }

    fn take(&self, core: &mut MutexGuard<'_, Core>, completion: &Completion) {
        let Completion { id, outcome, .. } = *completion;
        match outcome {
            Outcome::Success => {}
            Outcome::Flushed => {
                core.failed.get_or_insert(None);
                return;
            }
            // So does TCP say that nobody has acknowledged.
            Outcome::Silent => return core.failed = Some(Some(libc::ETIMEDOUT)),
            Outcome::Failed => return core.failed = Some(Some(libc::ECONNRESET)),
        }
        if id & RECEIVE == 0 {
            if let Some(tag) = Tag::from_id(id) {
                core.stream.completed(tag);
            }
            return;
        }
        let word = match (completion.immediate, &self.words) {
            (Some(word), _) => Some(word),
            (None, Some(words)) => {
                let mut bytes = [0; WORD_BYTES as usize];
                let start = (id as u32).wrapping_mul(WORD_BYTES);
                // SAFETY: room for as many bytes.
                unsafe { words.copy_out(&(start..start + WORD_BYTES), bytes.as_mut_ptr()) };
                Some(core.stream.peer_order().message(bytes))
            }
            // A Send of nothing: not of this protocol.
            (None, None) => None,
        };
        let arrived = word.map_or(Ok(()), |word| core.stream.arrived(word, &self.arrays));
        if arrived.is_err() {
            core.stream.break_off(libc::EPROTO);
        } else if core.stream.phase() == Phase::Open {
            let posted = self.post_receive(id);
            self.check(core, posted);
        }
    }

    fn post_receive(&self, id: u64) -> Result<()> {
        let start = (id as u32).wrapping_mul(WORD_BYTES);
        let part = self.words.as_ref().map(|words| words.part(&(start..start + WORD_BYTES)));
        // SAFETY: of registered memory.
        unsafe { self.queues.receive(id, part.as_slice()) }
    }

    fn check(&self, core: &mut MutexGuard<'_, Core>, posted: Result<()>) {
        if posted.is_err() {
            core.stream.break_off(libc::EIO);
        }
    }

    /// Says what is to be said: credit, and the end, unless a Write of before it is still being made.
    fn say(&self, core: &mut MutexGuard<'_, Core>) {
        loop {
            let may_end = !core.preparing;
            let Some(control) = core.stream.next_control(may_end) else { return };
            let posted = self.post_control(core, &control);
            self.check(core, posted);
        }
    }

    fn post_control(&self, core: &mut MutexGuard<'_, Core>, control: &Control) -> Result<()> {
        let id = control.tag.to_id();
        let Some((entry, address, key)) = control.entry else {
            return self.post_word(core, id, control.word);
        };
        let inline = self.queues.inline_bytes() as usize >= SGE_BYTES;
        let place = control.place..control.place + SGE_BYTES as u32;
        let part = if inline {
            Part { address: entry.as_ptr() as u64, length: SGE_BYTES as u32, key: 0 }
        } else {
            // SAFETY: an array of as many bytes.
            unsafe { self.send.copy_in(&place, entry.as_ptr()) };
            self.send.part(&place)
        };
        let said = self.words.is_none().then_some(control.word);
        // SAFETY: of this memory, or copied now.
        unsafe { self.queues.send(id, &[part], inline, Operation::Write(address, key, said))? };
        if self.words.is_some() { self.post_word(core, id, control.word) } else { Ok(()) }
    }

    fn post_word(&self, core: &MutexGuard<'_, Core>, id: u64, word: u32) -> Result<()> {
        if self.words.is_none() {
            // SAFETY: no part.
            return unsafe { self.queues.send(id, &[], false, Operation::Write(0, 0, Some(word))) };
        }
        let bytes = core.stream.peer_order().message_bytes(word);
        let part = Part { address: bytes.as_ptr() as u64, length: WORD_BYTES, key: 0 };
        // SAFETY: copied now.
        unsafe { self.queues.send(id, &[part], true, Operation::Send) }
    }

    /// Sends what can be sent at once of `data`: how many bytes. `before`: of the same call. One thread at a time;
    /// `scratch` is its own.
    ///
    /// # Errors
    /// Nothing could be.
    pub fn write(
        &self,
        data: &mut Vectors<'_>,
        before: usize,
        scratch: &mut Vec<u8>,
    ) -> std::result::Result<usize, Stop> {
        self.prepare(|stream| stream.next_write(data.left(), before))
            .and_then(|write| self.launch(write, data, scratch))
    }

    /// As [`Link::write`], into the peer's buffer that has `offset`.
    ///
    /// # Errors
    /// Nothing was written.
    pub fn io_write(
        &self,
        data: &mut Vectors<'_>,
        before: usize,
        offset: u64,
        scratch: &mut Vec<u8>,
    ) -> std::result::Result<std::result::Result<usize, Stop>, NoIoMap> {
        let mut none = false;
        let write = self.prepare(|stream| match stream.next_io_write(data.left(), before, offset) {
            Ok(write) => write,
            Err(NoIoMap) => {
                none = true;
                None
            }
        });
        if none { Err(NoIoMap) } else { Ok(write.and_then(|write| self.launch(write, data, scratch))) }
    }

    fn prepare(&self, next: impl FnOnce(&mut Stream) -> Option<Write>) -> std::result::Result<Write, Stop> {
        let mut core = lock(&self.core);
        match next(&mut core.stream) {
            Some(write) => {
                core.preparing = true;
                Ok(write)
            }
            None if core.stream.is_sending() => Err(Stop::Wait),
            None => Err(Stop::Ended),
        }
    }

    /// Copies the data, and posts. The lock is not held meanwhile: a reader goes on.
    fn launch(&self, write: Write, data: &mut Vectors<'_>, scratch: &mut Vec<u8>) -> std::result::Result<usize, Stop> {
        let inline = write.source == Source::Inline;
        let parts = match &write.source {
            Source::Inline => {
                scratch.clear();
                data.append(write.length as usize, scratch);
                [Part { address: scratch.as_ptr() as u64, length: write.length, key: 0 }, Part::default()]
            }
            Source::Ring(ranges) => {
                ranges.iter().for_each(|range| data.fill(&self.send, range));
                [self.send.part(&ranges[0]), self.send.part(&ranges[1])]
            }
        };
        let count = if parts[1].length > 0 { 2 } else { 1 };
        let said = write.word.filter(|_| self.words.is_none());
        let operation = Operation::Write(write.address, write.key, said);
        // SAFETY: of this memory, or copied now.
        let mut posted = unsafe { self.queues.send(write.tag.to_id(), &parts[..count], inline, operation) };
        let mut core = lock(&self.core);
        if let (Ok(()), Some(word), true) = (posted, write.word, self.words.is_some()) {
            posted = self.post_word(&core, Tag::Data(0).to_id(), word);
        }
        self.check(&mut core, posted);
        core.preparing = false;
        self.say(&mut core);
        if posted.is_ok() { Ok(write.length as usize) } else { Err(Stop::Ended) }
    }

    /// Reads what is there, or only looks at it: how many bytes. One thread at a time.
    ///
    /// # Errors
    /// There is nothing.
    pub fn read(&self, into: &mut Vectors<'_>, look_only: bool) -> std::result::Result<usize, Stop> {
        let parts = {
            let core = lock(&self.core);
            if core.stream.unread() == 0 {
                return Err(if core.stream.is_receiving() { Stop::Wait } else { Stop::Ended });
            }
            core.stream.parts(into.left())
        };
        // Bytes that were not read yet stay, so no lock is needed.
        parts.iter().for_each(|part| into.empty(&self.buffer, part));
        let length = parts.iter().map(ExactSizeIterator::len).sum();
        if !look_only {
            let mut core = lock(&self.core);
            core.stream.consume(length);
            self.say(&mut core);
        }
        Ok(length)
    }

    /// Bytes that can be read.
    pub fn unread(&self) -> usize {
        lock(&self.core).stream.unread()
    }

    /// Registers a buffer of the program's; for the peer, if there is an offset.
    ///
    /// # Errors
    /// ENOMEM: the peer has no entry for it; others as of ibv_reg_mr(3).
    ///
    /// # Safety
    /// The buffer stays until it is unmapped, or the link dropped.
    pub unsafe fn map(&self, address: *mut u8, length: usize, offset: Option<u64>) -> Result<()> {
        let mut maps = lock(&self.maps);
        let entries = usize::from(lock(&self.core).stream.peer_io_maps());
        if maps.len() < entries {
            maps.resize_with(entries, || None);
        }
        let is_remote = offset.is_some();
        // Those of this end only are behind the peer's entries.
        let mut range = if is_remote { 0..entries } else { entries..maps.len() };
        let free = range.find(|at| maps[*at].is_none());
        if is_remote && free.is_none() {
            return Err(Errno(libc::ENOMEM));
        }
        // An entry has 32 bits for the length.
        let short = u32::try_from(length).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: the caller's.
        let region = unsafe { self.queues.register(address, length, is_remote)? };
        let memory = |key| crate::protocol::wire::Sge { address: address as u64, key, length: short };
        let untold = offset.map(|offset| IoMap { offset, memory: memory(region.remote_key()) });
        let map = Map { address: address as usize, length, untold, region, is_remote };
        match free {
            Some(at) => maps[at] = Some(map),
            None => maps.push(Some(map)),
        }
        Ok(())
    }

    /// Takes that back.
    ///
    /// # Errors
    /// EINVAL: there is none.
    pub fn unmap(&self, address: *mut u8, length: usize) -> Result<()> {
        let mut maps = lock(&self.maps);
        let is_it =
            |map: &Option<Map>| map.as_ref().is_some_and(|m| (m.address, m.length) == (address as usize, length));
        let at = maps.iter().position(is_it).ok_or(Errno(libc::EINVAL))?;
        drop(maps[at].take());
        Ok(())
    }

    /// Tells the peer of what was mapped. One thread at a time, as [`Link::write`].
    ///
    /// # Errors
    /// Not of all could be told now.
    pub fn tell_maps(&self, scratch: &mut Vec<u8>) -> std::result::Result<(), Stop> {
        loop {
            let untold = {
                let maps = lock(&self.maps);
                let entry = |(at, map): (usize, &Option<Map>)| {
                    let map = map.as_ref().filter(|map| map.is_remote)?;
                    debug_assert!(map.untold.is_none_or(|told| told.memory.key == map.region.remote_key()));
                    Some((at as u16, map.untold?))
                };
                maps.iter().enumerate().find_map(entry)
            };
            let Some((index, map)) = untold else { return Ok(()) };
            let mut bytes = [0; IO_MAP_BYTES];
            let write = self.prepare(|stream| {
                let (write, entry) = stream.next_io_map(index, &map)?;
                bytes = entry;
                Some(write)
            })?;
            let vector = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: IO_MAP_BYTES }];
            // SAFETY: an array that stays until the next line is done.
            self.launch(write, &mut unsafe { Vectors::new(&vector) }, scratch)?;
            let mut maps = lock(&self.maps);
            let told = maps.get_mut(usize::from(index)).and_then(Option::as_mut);
            // It may have been unmapped meanwhile, and the place given to another.
            if let Some(told) = told.filter(|told| told.untold == Some(map)) {
                told.untold = None;
            }
        }
    }
}
