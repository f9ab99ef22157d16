//! One end of a stream: the next messages that it may send, and the data that has arrived.
//!
//! The receive buffer has two halves. The peer learns of the first half when the stream begins. Each half is offered
//! again, by a Write to the peer's target SGL, when as many bytes have been read; it fills one before it begins the
//! other. Beside bytes a message needs a credit, which is a posted receive of the peer; the count of messages up to
//! which the peer has credit is sent anew after half of them. An impossible message of the peer's is a [`Violation`],
//! so the work that a peer can cause here is bounded.
//!
//! Nothing here touches memory of a stream but the arrays that the peer writes to ([`Arrays`]): data is spoken of by
//! places in the send ring and in the receive buffer. The caller posts what [`Stream`] gives out in the order in which
//! it was given.

mod ending;
mod incoming;
mod requests;
mod ring;
mod targets;

pub use ending::Phase;

use std::ops::Range;

use ending::Ending;
use incoming::Incoming;
use requests::Requests;
use ring::SendRing;
use targets::Targets;

use super::wire::{Hello, IO_MAP_BYTES, IoMap, Malformed, Message, Order, SGE_BYTES, Sge};

/// Requests of the send queue that are kept for what is no data: so credit is granted also while data fills the rest.
pub const CONTROLS: u16 = 4;

/// Receives beyond the credits: for what a peer sends without a credit before this end looks.
pub const SPARE_RECEIVES: u16 = 8;

/// Entries of a target SGL.
pub const TARGET_ENTRIES: u32 = 2;

/// The most bytes of one Write.
pub const MAX_WRITE: u32 = 64 << 10;

/// The first Write of a long send: the peer's copy begins while the next is made.
const FIRST_WRITE: u32 = 2 << 10;

/// A stream is writable when so many bytes, or the whole ring, are free.
const LOW_WATER: u32 = 2 << 10;

/// Sizes of a stream, chosen before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Requests of the send queue; more than [`CONTROLS`], by 2 at least.
    pub send_requests: u16,
    /// Messages with data for which the peer has credit; at least 2. The receive queue has [`SPARE_RECEIVES`] more.
    pub credits: u16,
    /// Bytes of the send ring; at least [`IO_MAP_BYTES`].
    pub send_bytes: u32,
    /// Bytes of the receive buffer, an even number from 2.
    pub receive_bytes: u32,
    /// Entries of the target iomap, as many as [`unscale`](super::wire::unscale) gives.
    pub io_maps: u16,
    /// Bytes that need no place in the ring, being copied into the request.
    pub inline_bytes: u32,
    /// The device's Writes carry no immediate data (iWARP): a Send with the message follows.
    pub separate: bool,
}

impl Sizes {
    /// Bytes of the memory to send from: the ring, and behind it a place for each entry that is written.
    pub fn send_memory(&self) -> usize {
        self.send_bytes as usize + usize::from(CONTROLS) * SGE_BYTES
    }

    /// Bytes of the target SGL and the target iomap behind it.
    pub fn array_memory(&self) -> usize {
        TARGET_ENTRIES as usize * SGE_BYTES + usize::from(self.io_maps) * IO_MAP_BYTES
    }
}

/// The addresses of this end's memory, for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Address of the target SGL.
    pub arrays: u64,
    /// Its rkey.
    pub arrays_key: u32,
    /// Address of the receive buffer.
    pub buffer: u64,
    /// Its rkey.
    pub buffer_key: u32,
}

/// The arrays that the peer writes to, at any time.
pub trait Arrays {
    /// Reads entry `index` of the target SGL, below [`TARGET_ENTRIES`]: the later half first, as the writer writes it
    /// last.
    fn target(&self, index: u32) -> [u8; SGE_BYTES];
    /// Zeroes it.
    fn clear_target(&self, index: u32);
    /// Reads entry `index` of the target iomap, below [`Sizes::io_maps`].
    fn io_map(&self, index: u16) -> [u8; IO_MAP_BYTES];
}

/// A breach of the protocol by the peer. The stream is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It says that more bytes have come than it had room for.
    #[error("the peer says that it has written more than it had room for")]
    Bytes,
    /// It has sent more messages than it had credit for.
    #[error("the peer has sent more messages than it had credit for")]
    Messages,
    /// It names an entry of the target iomap that is not there.
    #[error("the peer has mapped entry {0}, which it was not offered")]
    IoMap(u32),
    /// An entry that it has written describes no memory.
    #[error("the peer offers memory that has no end")]
    Memory,
}

/// The resource that a request's completion gives back; travels in its identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// A request, and this many bytes of the ring.
    Data(u32),
    /// A control request.
    Control,
    /// A control request, with which the stream has ended.
    Disconnect,
}

impl Tag {
    /// Its identifier, below 2^34.
    pub fn to_id(self) -> u64 {
        match self {
            Tag::Data(bytes) => u64::from(bytes),
            Tag::Control => 1 << 32,
            Tag::Disconnect => 2 << 32,
        }
    }

    /// From an identifier.
    pub fn from_id(id: u64) -> Option<Tag> {
        match (id >> 32, id as u32) {
            (0, bytes) => Some(Tag::Data(bytes)),
            (1, 0) => Some(Tag::Control),
            (2, 0) => Some(Tag::Disconnect),
            _ => None,
        }
    }
}

/// The source of the bytes of a Write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the caller, into the request.
    Inline,
    /// From these parts of the send ring, the second of which may be empty.
    Ring([Range<u32>; 2]),
}

/// A Write of data, or of an iomap entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Bytes.
    pub length: u32,
    /// Their source.
    pub source: Source,
    /// Their destination.
    pub address: u64,
    /// The key of the destination.
    pub key: u32,
    /// The immediate data; None: a Write without.
    pub word: Option<u32>,
    /// The tag of its completion. With [`Sizes::separate`] the message's own has `Tag::Data(0)`.
    pub tag: Tag,
}

/// A message that is no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// An entry of the peer's target SGL, its address and its key.
    pub entry: Option<([u8; SGE_BYTES], u64, u32)>,
    /// A place of [`SGE_BYTES`] bytes in the send memory that the entry can be written from.
    pub place: u32,
    /// The immediate data.
    pub word: u32,
    /// The tag of each of its completions.
    pub tag: Tag,
}

/// The most that this end may be made to do at once is bounded by its own sizes.
#[derive(Debug)]
pub struct Stream {
    order: Order,
    sizes: Sizes,
    places: Places,
    peer: Hello,
    greeted: bool,
    begun: bool,
    ending: Ending,
    requests: Requests,
    ring: SendRing,
    /// Messages that were sent, and the count at which credit ends; modulo 2^16.
    sent: u16,
    credit: u16,
    targets: Targets,
    io_maps: Vec<Option<IoMap>>,
    incoming: Incoming,
    /// The index of the peer's entry for the half that is offered next.
    next_entry: u32,
}

impl Stream {
    /// An end, before its peer has said where its memory is. `order` is that of this host's memory.
    ///
    /// # Panics
    /// A size is outside of its range.
    pub fn new(order: Order, sizes: Sizes, places: Places) -> Stream {
        assert!(sizes.send_requests >= CONTROLS + 2 && sizes.credits >= 2 && sizes.send_bytes >= IO_MAP_BYTES as u32);
        assert!(sizes.receive_bytes >= 2 && sizes.receive_bytes.is_multiple_of(2));
        Stream {
            order,
            sizes,
            places,
            peer: Hello { order, credits: 0, io_maps: 0, target: Sge::default(), buffer: Sge::default() },
            greeted: false,
            begun: false,
            ending: Ending::new(),
            requests: Requests::new(&sizes),
            ring: SendRing::new(sizes.send_bytes),
            sent: 0,
            credit: 0,
            targets: Targets::default(),
            io_maps: vec![None; usize::from(sizes.io_maps)],
            incoming: Incoming::new(&sizes),
            next_entry: 0,
        }
    }

    /// The greeting to the peer.
    pub fn hello(&self) -> Hello {
        let Places { arrays, arrays_key, buffer, buffer_key } = self.places;
        Hello {
            order: self.order,
            credits: self.sizes.credits,
            io_maps: self.sizes.io_maps,
            target: Sge { address: arrays, key: arrays_key, length: TARGET_ENTRIES },
            buffer: Sge { address: buffer, key: buffer_key, length: self.sizes.receive_bytes / 2 },
        }
    }

    /// The peer's private data has come.
    ///
    /// # Errors
    /// It is none.
    pub fn greet(&mut self, private: &[u8]) -> Result<(), Malformed> {
        self.peer = Hello::decode(private)?;
        self.credit = self.peer.credits;
        self.targets.begin(self.peer.buffer);
        self.next_entry = 1 % self.peer.target.length;
        self.greeted = true;
        Ok(())
    }

    /// Returns true if the peer's greeting has come. Messages have no meaning before: it decides the half that is
    /// filled first, and the number from which credit is counted. The peer may send earlier, as the end that was asked
    /// is connected first, so messages wait in the receive queue until then.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Both ends are connected, and this one may send from now on. Earlier the peer has no QP that receives.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// The peer's order of bytes.
    pub fn peer_order(&self) -> Order {
        self.peer.order
    }

    /// Sizes, as they were given.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The state of the stream.
    pub fn phase(&self) -> Phase {
        self.ending.phase()
    }

    /// A message has come, and the stream [is greeted](Stream::is_greeted).
    ///
    /// # Errors
    /// The peer does what it must not; the stream is to be [broken](Stream::break_off).
    pub fn arrived(&mut self, word: u32, arrays: &dyn Arrays) -> Result<(), Violation> {
        debug_assert!(self.greeted, "nothing is known of the peer");
        match Message::from_word(word) {
            Message::Data(length) => return self.incoming.arrived(length),
            Message::Credit(until) => {
                self.credit = until;
                return self.take_targets(arrays);
            }
            Message::IoMap(index) => {
                let known = self.io_maps.len();
                let place = usize::try_from(index).ok().filter(|at| *at < known).ok_or(Violation::IoMap(index))?;
                let map = IoMap::decode(&arrays.io_map(index as u16), self.order).ok_or(Violation::Memory)?;
                self.io_maps[place] = Some(map);
                // It took a credit, which nobody reads away.
                self.incoming.count_message();
            }
            Message::Disconnect => self.disconnect(),
            Message::Shutdown => self.ending.peer_shut_down(),
            Message::KeepAlive | Message::Reserved(_) => {}
        }
        Ok(())
    }

    /// Takes entries that the peer has written. It writes one again only after this end has filled what was in it.
    fn take_targets(&mut self, arrays: &dyn Arrays) -> Result<(), Violation> {
        for index in 0..TARGET_ENTRIES {
            let entry = Sge::decode(&arrays.target(index), self.order);
            if entry.length != 0 {
                arrays.clear_target(index);
                entry.address.checked_add(u64::from(entry.length)).ok_or(Violation::Memory)?;
                self.targets.offer(index, entry);
            }
        }
        self.targets.go_on();
        Ok(())
    }

    /// A request has been completed, well.
    pub fn completed(&mut self, tag: Tag) {
        self.requests.completed(tag);
        if let Tag::Data(bytes) = tag {
            self.ring.release(bytes);
        }
        if tag == Tag::Disconnect {
            self.disconnect();
        }
    }

    /// The stream is no more, for a reason that the protocol does not know; what has come can still be read.
    pub fn break_off(&mut self, errno: i32) {
        self.ending.end(Phase::Broken(errno));
    }

    /// The stream has ended for both.
    pub fn disconnect(&mut self) {
        self.ending.end(Phase::Disconnected);
    }

    /// This end will not read, or not write, any more.
    pub fn shut_down(&mut self, reading: bool, writing: bool) {
        self.ending.shut_down(reading, writing);
    }

    /// Returns true if nothing that was given out is still to be completed or said, or it never will be.
    pub fn is_done(&self) -> bool {
        !self.ending.is_open() || (!self.ending.is_pending() && self.requests.are_done())
    }

    /// Returns true if a send would do something at once: it sends, or fails.
    pub fn is_writable(&self) -> bool {
        !self.ending.is_sending() || self.can_write(true)
    }

    /// As [`Stream::is_writable`], for a Write into a buffer of the peer's, or of an entry of its iomap.
    pub fn is_io_writable(&self) -> bool {
        !self.ending.is_sending() || self.can_write(false)
    }

    /// Returns true if this end may send.
    pub fn is_sending(&self) -> bool {
        self.ending.is_sending()
    }

    /// Returns true if a receive would do something at once: there is data, or there will be none.
    pub fn is_readable(&self) -> bool {
        self.incoming.unread() > 0 || !self.ending.is_receiving()
    }

    /// Returns true if the peer may send more.
    pub fn is_receiving(&self) -> bool {
        self.ending.is_receiving()
    }

    fn can_write(&self, to_target: bool) -> bool {
        self.begun
            && self.ending.is_sending()
            && self.requests.have_room()
            && self.ring.free() >= LOW_WATER.min(self.ring.size())
            && self.sent != self.credit
            && (!to_target || self.targets.room() > 0)
    }

    /// The next Write of a send that has `left` bytes to send and has sent `before`; None if there is no room now, or
    /// this end may not send.
    pub fn next_write(&mut self, left: usize, before: usize) -> Option<Write> {
        if left == 0 || !self.can_write(true) {
            return None;
        }
        let length = self.write_length(left, before, self.targets.room());
        let (address, key) = self.targets.take(length);
        Some(self.write(length, address, key, Some(Message::Data(length))))
    }

    /// As many bytes as fit: few at first, and up to [`MAX_WRITE`] later.
    fn write_length(&self, left: usize, before: usize, room: u32) -> u32 {
        let most = FIRST_WRITE.max(before.min(MAX_WRITE as usize) as u32).min(room);
        let length = left.min(most as usize) as u32;
        if length <= self.sizes.inline_bytes { length } else { length.min(self.ring.free()) }
    }

    fn write(&mut self, length: u32, address: u64, key: u32, said: Option<Message>) -> Write {
        self.requests.take(said.is_some());
        if said.is_some() {
            self.sent = self.sent.wrapping_add(1);
        }
        let (source, in_ring) = if length <= self.sizes.inline_bytes {
            (Source::Inline, 0)
        } else {
            (Source::Ring(self.ring.take(length)), length)
        };
        Write { length, source, address, key, word: said.map(Message::to_word), tag: Tag::Data(in_ring) }
    }

    /// The next Write into a buffer of the peer's that has `offset`.
    ///
    /// # Errors
    /// No buffer has it.
    pub fn next_io_write(&mut self, left: usize, before: usize, offset: u64) -> Result<Option<Write>, NoIoMap> {
        let inside = |map: &&IoMap| offset.checked_sub(map.offset).is_some_and(|at| at < u64::from(map.memory.length));
        let map = *self.io_maps.iter().flatten().find(inside).ok_or(NoIoMap)?;
        if left == 0 || !self.can_write(false) {
            return Ok(None);
        }
        let skip = (offset - map.offset) as u32;
        let length = self.write_length(left, before, map.memory.length - skip);
        Ok(Some(self.write(length, map.memory.address + u64::from(skip), map.memory.key, None)))
    }

    /// Entries of the peer's target iomap.
    pub fn peer_io_maps(&self) -> u16 {
        self.peer.io_maps
    }

    /// The Write of an entry of the peer's target iomap, and its bytes; None if there is no room now, or this end may
    /// not send.
    pub fn next_io_map(&mut self, index: u16, map: &IoMap) -> Option<(Write, [u8; IO_MAP_BYTES])> {
        if index >= self.peer.io_maps || !self.can_write(false) {
            return None;
        }
        let (address, key) = (self.peer.io_map_entry(index), self.peer.target.key);
        let write = self.write(IO_MAP_BYTES as u32, address, key, Some(Message::IoMap(u32::from(index))));
        Some((write, map.encode(self.peer.order)))
    }

    /// The next message that is no data: credit, or the end, if all that was given out before is posted.
    pub fn next_control(&mut self, may_end: bool) -> Option<Control> {
        if !self.ending.is_open() || !self.begun {
            return None;
        }
        if let Some(grant) = self.next_grant() {
            return Some(grant);
        }
        if !may_end || !self.ending.is_pending() || !self.requests.take_control() {
            return None;
        }
        let end = self.ending.announce()?;
        let tag = if end == Message::Disconnect { Tag::Disconnect } else { Tag::Control };
        Some(Control { entry: None, place: 0, word: end.to_word(), tag })
    }

    fn next_grant(&mut self) -> Option<Control> {
        let offer = self.incoming.has_offer();
        // An end that reads no more, or has learned that nothing more comes, has nothing to grant.
        if !(offer || self.incoming.is_grant_due()) || !self.ending.is_receiving() {
            return None;
        }
        let has_room = if offer { self.requests.take_entry() } else { self.requests.take_control() };
        if !has_room {
            return None;
        }
        let until = Message::Credit(self.incoming.grant());
        let mut control = Control { entry: None, place: 0, word: until.to_word(), tag: Tag::Control };
        if offer {
            let (half, length) = self.incoming.offer();
            let sge = Sge { address: self.places.buffer + u64::from(half), key: self.places.buffer_key, length };
            control.entry =
                Some((sge.encode(self.peer.order), self.peer.target_entry(self.next_entry), self.peer.target.key));
            control.place = self.sizes.send_bytes + self.requests.entry_place();
            self.next_entry = (self.next_entry + 1) % self.peer.target.length;
        }
        Some(control)
    }

    /// Takes a control request for a Write of nothing, by which the network shows whether the peer is there.
    pub fn next_keep_alive(&mut self) -> Option<Tag> {
        let may = self.ending.is_open() && self.begun && self.requests.take_control();
        may.then_some(Tag::Control)
    }

    /// Bytes that have come and were not read.
    pub fn unread(&self) -> usize {
        self.incoming.unread() as usize
    }

    /// The places of the next bytes in the receive buffer, `length` of them at most.
    pub fn parts(&self, length: usize) -> [Range<u32>; 2] {
        self.incoming.parts(length)
    }

    /// They were read.
    ///
    /// # Panics
    /// More than are there.
    pub fn consume(&mut self, length: usize) {
        self.incoming.consume(length);
    }
}

/// No buffer of the peer's has the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoIoMap;
