//! The rings of a pair: messages in order from one process to another. Each is a put of its contents and, behind them,
//! of its slot's tag. The receiver looks at one word, and takes a message without having to send anything.

use super::block::{self, ASLEEP, TAKEN, WOKEN};
use super::byte_ring::ByteRing;
use super::ends::{self, Ends};
use super::padded::Padded;
use super::slot::{self, Kind, Meaning, Place};
use super::waking::{Barrier, Waking};
use crate::device::{Channel, Origin, Put, Refused, Region, Source, Traits};
use std::sync::atomic::Ordering;

/// An empty payload.
pub const NO_BYTES: &[u8] = &[];
/// Most bytes of a message's headers.
pub const HEADERS: usize = (block::INLINE_AT - block::WORD) as usize - 4;
/// Words between the tag and the payload: the headers, and the message's meaning.
const WORDS: usize = (HEADERS + 4) / 8;
/// Bytes of payload from which on a sender asks for a high-bandwidth ring.
const LONG: u64 = 4096;
/// Slots, and bytes outside of slots, after which a receiver puts its count of messages taken to the sender.
const TELL_SLOTS: u64 = block::SLOTS / 4;
const TELL_BYTES: u64 = block::BYTES / 4;

/// Bytes of an acknowledgement that goes with a message: those of its own headers that differ from the message's.
pub const ACKNOWLEDGEMENT: usize = 12;
/// An acknowledgement that goes with a message. Its first four bytes name operation and QP; a later one with the same
/// four replaces it.
pub type Acknowledgement = [u8; ACKNOWLEDGEMENT];

/// Reasons why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// No room until the peer has taken messages.
    Full,
    /// The source cannot be read.
    Memory,
    /// The peer has put numbers that cannot be, or the device refuses a put made of them. The ring cannot be used any
    /// more.
    Broken,
}

/// Classes of messages, by their right to the last slots: each still finds room when those before it do not. The value
/// is the number of slots left to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Requests.
    Request = 12,
    /// Responses.
    Answer = 4,
    /// Messages of the pair itself.
    Control = 0,
}

/// The sender's end.
pub struct Outgoing {
    channel: Box<dyn Channel>,
    traits: Traits,
    /// True while puts may become visible late.
    is_later: bool,
    /// An acknowledgement to be sent, and its headers as a message of its own.
    held: Option<(Acknowledgement, [u8; HEADERS])>,
    /// Bytes free for an acknowledgement behind the next message's headers.
    spare: usize,
    region: Region,
    /// Offset of the peer's block for this process, in the peer's region; and of this process's block for the peer.
    to: u64,
    own: u64,
    sent: u64,
    taken: u64,
    short: ByteRing,
    long: Option<ByteRing>,
    wants_long: bool,
    /// The way to wake the peer, if there is one, and the last of its announcements answered so.
    waking: Option<(Waking, Barrier)>,
    woken: u32,
    /// Announcements of sleep by this process to the peer.
    announced: u32,
    /// For each slot that is not taken: the ring of its payload, and the mark up to which that ring is free once it is
    /// taken.
    marks: [(Place, u64); block::SLOTS as usize],
}

impl Outgoing {
    /// A ring to the block `to` of the peer at the end of `channel`. The peer puts its count of messages taken into the
    /// block `own` of `region`.
    pub fn new(mut channel: Box<dyn Channel>, to: u64, region: Region, own: u64) -> Self {
        channel.prepare(to, block::SLOTS_AT..block::slot_at(block::SLOTS - 1) + block::SLOT, block::SLOT);
        let traits = channel.traits();
        let short = ByteRing::new(to + block::BYTES_AT, block::BYTES);
        let marks = [(Place::Slot, 0); block::SLOTS as usize];
        let (long, wants_long, waking) = (None, false, None);
        let (sent, taken, woken, announced) = (0, 0, 0, 0);
        Outgoing {
            channel,
            traits,
            is_later: false,
            held: None,
            spare: 0,
            region,
            to,
            own,
            sent,
            taken,
            short,
            long,
            wants_long,
            waking,
            woken,
            announced,
            marks,
        }
    }

    /// Lets peer and process wake each other from now on.
    pub fn wakes(&mut self, waking: Waking, barrier: Barrier) {
        self.waking = Some((waking, barrier));
    }

    /// Calls `f`, whose puts may become visible late: before any put outside of `f` does, or at [`Outgoing::flush`].
    #[inline]
    pub fn later<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.is_later, true);
        let done = f(self);
        self.is_later = before;
        done
    }

    /// Returns true if a put is not visible yet, or an acknowledgement is held.
    #[inline]
    pub fn owes(&self) -> bool {
        self.held.is_some() || self.channel.owes()
    }

    /// Makes all puts visible. A held acknowledgement without room stays.
    pub fn flush(&mut self) {
        let _ = self.later(Self::send_held);
        self.channel.flush();
        self.wake_if_asleep();
    }

    /// Returns true if puts take so long that acknowledgements should go with the next message.
    #[inline]
    pub fn holds_acknowledgements(&self) -> bool {
        self.traits.is_slow
    }

    /// Holds an acknowledgement for the next message with room behind its headers. It is sent as a message with
    /// `headers` before any other message, and at a flush. Returns true if it replaces one that was held, which is then
    /// not sent.
    ///
    /// # Errors
    /// [`Unsent`] of another acknowledgement that was held.
    #[inline]
    pub fn hold(&mut self, acknowledgement: Acknowledgement, headers: &[u8; HEADERS]) -> Result<bool, Unsent> {
        let stands_for = self.held.is_some_and(|(held, _)| held[..4] == acknowledgement[..4]);
        if !stands_for {
            self.later(Self::send_held)?;
        }
        self.held = Some((acknowledgement, *headers));
        Ok(stands_for)
    }

    /// Notes the length of the next message's headers.
    #[inline]
    pub fn headers_end(&mut self, len: impl FnOnce() -> usize) {
        if self.held.is_some() {
            self.spare = HEADERS.saturating_sub(len());
        }
    }

    /// Sends the held acknowledgement as a message.
    #[cold]
    fn send_held(&mut self) -> Result<(), Unsent> {
        let Some((_, headers)) = self.held else { return Ok(()) };
        if !self.has_room(Class::Answer) {
            self.look()?;
            if !self.has_room(Class::Answer) {
                return Err(Unsent::Full);
            }
        }
        let held = self.held.take();
        let sent = self.send(Kind::Packet, &headers, &NO_BYTES);
        if sent.is_err() {
            self.held = held;
        }
        sent
    }

    /// Sends the held acknowledgement before a message of this kind, unless it can go with it.
    #[inline]
    fn settle(&mut self, kind: Kind) -> Result<(), Unsent> {
        if self.held.is_none() { Ok(()) } else { self.settle_held(kind) }
    }

    #[cold]
    fn settle_held(&mut self, kind: Kind) -> Result<(), Unsent> {
        let spare = std::mem::take(&mut self.spare);
        let goes_with = spare >= ACKNOWLEDGEMENT && matches!(kind, Kind::Packet | Kind::ReadPacket);
        if goes_with { Ok(()) } else { self.later(Self::send_held) }
    }

    #[inline]
    fn put(&mut self, chain: &[Put<'_>]) -> Result<(), Refused> {
        if self.is_later { self.channel.put_later(chain) } else { self.channel.put(chain) }
    }

    /// Wakes the peer if it has announced its sleep. Called after all puts that the peer is to see.
    #[inline]
    pub fn wake_if_asleep(&mut self) {
        let Some((waking, barrier)) = self.waking else { return };
        if self.is_later && self.owes() {
            return;
        }
        barrier.pass();
        let asleep = self.region.word(self.own + ASLEEP).load(Ordering::Relaxed) as u32;
        if asleep != self.woken {
            self.wake(waking, asleep);
        }
    }

    #[cold]
    fn wake(&mut self, waking: Waking, asleep: u32) {
        self.woken = asleep;
        let answer = [u64::from(asleep)];
        // A device that refuses this put refuses all others too.
        let _ = self.channel.put(&[Put { to: self.to + WOKEN, from: Origin::Words(&answer) }]);
        waking.wake(self.channel.as_mut(), asleep.into());
    }

    /// Announces to the peer that this process goes to sleep. Returns false if an announcement is there already, or its
    /// put is refused. The caller then passes a barrier, looks once more, and sleeps.
    pub fn announce_sleep(&mut self) -> bool {
        if !self.lacks_announcement() {
            return false;
        }
        self.announced = self.announced.wrapping_add(1);
        let count = [u64::from(self.announced)];
        self.channel.put(&[Put { to: self.to + ASLEEP, from: Origin::Words(&count) }]).is_ok()
    }

    /// Returns true if the peer could wake this process but knows of no sleep.
    pub fn lacks_announcement(&self) -> bool {
        self.waking.is_some() && self.region.word(self.own + WOKEN).load(Ordering::Acquire) as u32 == self.announced
    }

    /// Looks at the peer's count of messages taken. Returns true if it has grown.
    ///
    /// # Errors
    /// [`Unsent::Broken`]: the peer's count cannot be.
    #[inline]
    pub fn look(&mut self) -> Result<bool, Unsent> {
        // Half a word is enough, like a tag's.
        let told = self.region.word(self.own + TAKEN).load(Ordering::Acquire) as u32;
        let more = told.wrapping_sub(self.taken as u32);
        if more == 0 {
            return Ok(false);
        }
        let taken = self.taken + u64::from(more);
        if taken > self.sent {
            return Err(Unsent::Broken);
        }
        for number in self.taken..taken {
            let (place, mark) = self.marks[(number % block::SLOTS) as usize];
            match place {
                Place::Slot | Place::Landed => {}
                Place::Block => self.short.free_up_to(mark),
                Place::LongRing => self.long.iter_mut().for_each(|ring| ring.free_up_to(mark)),
            }
        }
        self.taken = taken;
        Ok(true)
    }

    /// Messages sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of them that the peer has taken, known at the last [`Outgoing::look`].
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns true if a message of this class would find a slot.
    #[inline]
    pub fn has_room(&self, class: Class) -> bool {
        self.sent - self.taken < block::SLOTS - class as u64
    }

    /// Notes the peer's high-bandwidth ring at `at`. Returns true if it is the first, which is used; later ones are
    /// ignored.
    pub fn got_long(&mut self, at: u64) -> bool {
        let is_first = self.long.is_none();
        self.long.get_or_insert_with(|| ByteRing::new(at, block::LONG_BYTES));
        is_first
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// Those of [`Unsent`].
    #[inline]
    pub fn packet(&mut self, class: Class, headers: &[u8; HEADERS], payload: &dyn Source) -> Result<(), Unsent> {
        self.packet_as(Kind::Packet, class, headers, payload)
    }

    /// [`Outgoing::packet`] of a kind that is a packet.
    ///
    /// # Errors
    /// Those of [`Unsent`].
    #[inline]
    pub fn packet_as(
        &mut self,
        kind: Kind,
        class: Class,
        headers: &[u8; HEADERS],
        payload: &dyn Source,
    ) -> Result<(), Unsent> {
        if !self.has_room(class) {
            self.look()?;
            if !self.has_room(class) {
                return Err(Unsent::Full);
            }
        }
        let len = payload.len() as u64;
        if len > LONG && self.traits.has_long_ring && self.long.is_none() && !self.wants_long {
            self.wants_long = true;
            self.send(Kind::WantLongRing, &[0; HEADERS], &NO_BYTES)?;
        }
        self.send(kind, headers, payload)
    }

    /// Sends a packet whose `len` bytes of payload were put to their destination, `at` in the peer's region. It may
    /// have more of them than other packets. If the device puts no single bytes, `ends` has those before and behind the
    /// ones that it puts.
    ///
    /// # Errors
    /// Those of [`Unsent`].
    pub fn push_landed_packet(
        &mut self,
        class: Class,
        headers: &[u8; HEADERS],
        (at, len): (u64, u64),
        ends: Ends,
    ) -> Result<(), Unsent> {
        if !self.has_room(class) {
            self.look()?;
            if !self.has_room(class) {
                return Err(Unsent::Full);
            }
        }
        self.settle(Kind::Packet)?;
        let meaning = Meaning { kind: Kind::Packet, place: Place::Landed, len: 0, acknowledges: false };
        let [head, tail] = ends.encode();
        self.put_slot(headers, meaning, [at, len, head, tail], None, 0)
    }

    /// Sends a message of any kind.
    ///
    /// # Errors
    /// Those of [`Unsent`].
    #[inline]
    pub fn send(&mut self, kind: Kind, headers: &[u8; HEADERS], payload: &dyn Source) -> Result<(), Unsent> {
        self.settle(kind)?;
        if self.sent - self.taken >= block::SLOTS {
            return Err(Unsent::Full);
        }
        let len = payload.len() as u64;
        let slot = self.to + block::slot_at(self.sent);
        let is_inline = len <= block::INLINE && (len == 0 || !self.channel.wants_own_place(payload));
        let (place, at, mark) = if is_inline { (Place::Slot, slot + block::INLINE_AT, 0) } else { self.place(len)? };
        let meaning = Meaning { kind, place, len: len as u16, acknowledges: false };
        // Padding overwrites nothing: no other data follows a payload directly.
        if len.is_multiple_of(self.traits.grain) {
            let payload = Some(payload).filter(|_| len != 0);
            return self.put_slot(headers, meaning, [at, 0, 0, 0], payload, mark);
        }
        let padded = Padded::new(payload, self.traits.grain as usize);
        self.put_slot(headers, meaning, [at, 0, 0, 0], Some(&padded), mark)
    }

    /// Puts one slot: payload, header words, place, then the tag. `named` has the place, and for a landed payload its
    /// length and ends.
    #[inline]
    fn put_slot(
        &mut self,
        headers: &[u8; HEADERS],
        meaning: Meaning,
        named: [u64; 2 + ends::WORDS],
        payload: Option<&dyn Source>,
        mark: u64,
    ) -> Result<(), Unsent> {
        let slot = self.to + block::slot_at(self.sent);
        let place = meaning.place;
        let both;
        let mut meaning = meaning;
        let mut headers = headers;
        if let Some((acknowledgement, _)) = &self.held {
            let mut bytes = *headers;
            bytes[HEADERS - ACKNOWLEDGEMENT..].copy_from_slice(acknowledgement);
            both = bytes;
            (headers, meaning.acknowledges) = (&both, true);
        }
        let mut words = [0; WORDS + 2 + ends::WORDS];
        let (first, last) = headers.as_chunks::<8>();
        for (word, bytes) in words.iter_mut().zip(first) {
            *word = u64::from_le_bytes(*bytes);
        }
        let half = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
        words[WORDS - 1] = last.first_chunk().map_or(0, half) | half(&meaning.encode()) << 32;
        words[WORDS..].copy_from_slice(&named);
        let in_slot = match place {
            Place::Slot => WORDS,
            Place::Block | Place::LongRing => WORDS + 1,
            Place::Landed => WORDS + 2 + ends::WORDS,
        };
        let tag = [u64::from(slot::tag(self.sent))];
        let chain = [
            Put { to: named[0], from: Origin::Source(payload.unwrap_or(&NO_BYTES)) },
            Put { to: slot + block::WORD, from: Origin::Words(&words[..in_slot]) },
            Put { to: slot, from: Origin::Words(&tag) },
        ];
        let chain = if payload.is_none() { &chain[1..] } else { &chain[..] };
        self.put(chain).map_err(|refused| match refused {
            Refused::Faulted(_) => Unsent::Memory,
            Refused::Outside | Refused::Misaligned | Refused::Incongruent | Refused::NotMine | Refused::Device(_) => {
                Unsent::Broken
            }
        })?;
        self.marks[(self.sent % block::SLOTS) as usize] = (place, mark);
        self.sent += 1;
        self.held = None;
        self.wake_if_asleep();
        Ok(())
    }

    /// Hands out a place for payload that is longer than a slot.
    fn place(&mut self, len: u64) -> Result<(Place, u64, u64), Unsent> {
        for again in [false, true] {
            if again && !self.look()? {
                break;
            }
            // With the other ring, nothing else needs the bytes of the block.
            let found = match &mut self.long {
                Some(ring) => ring.hand_out(len).map(|(at, mark)| (Place::LongRing, at, mark)),
                None => self.short.hand_out(len).map(|(at, mark)| (Place::Block, at, mark)),
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(Unsent::Full)
    }

    /// Puts the count of slots taken into the peer's block.
    #[inline]
    pub fn tell_taken(&mut self, taken: u64) {
        self.tell(TAKEN, taken);
    }

    /// Puts a word of the peer's block.
    #[inline]
    pub fn tell(&mut self, word: u64, value: u64) {
        // A device that refuses this put refuses all others too.
        let _ = self.put(&[Put { to: self.to + word, from: Origin::Words(&[value]) }]);
    }

    /// A word that the peer has put into the own block: the lower half, which is put whole.
    #[inline]
    pub fn told(&self, word: u64) -> u32 {
        self.region.word(self.own + word).load(Ordering::Acquire) as u32
    }
}

/// A received message, in memory that the peer may change at any time.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// Kind of the message.
    pub kind: Kind,
    /// A copy of its headers.
    pub headers: [u8; HEADERS],
    /// Offset of its payload in the own region.
    pub payload: u64,
    /// Bytes of the payload, all inside the own region.
    pub len: u64,
    /// Bytes of a landed payload that the device did not put.
    pub ends: Ends,
    place: Place,
    acknowledges: bool,
}

impl Message {
    /// The acknowledgement that came with it, to be handled before it.
    #[inline]
    pub fn acknowledgement(&self) -> Option<Acknowledgement> {
        if self.acknowledges { self.headers.last_chunk().copied() } else { None }
    }

    /// Returns true if the payload was put to its destination.
    pub fn has_landed(&self) -> bool {
        self.place == Place::Landed
    }
}

/// The peer has put a slot that is no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMessage;

/// The receiver's end.
pub struct Incoming {
    own: u64,
    taken: u64,
    told: u64,
    /// Bytes taken outside of slots since the last count to the peer.
    bytes: u64,
    /// Offset of the peer's high-bandwidth ring.
    long: Option<u64>,
}

impl Incoming {
    /// The receiver of messages in the block `own`.
    pub fn new(own: u64) -> Self {
        Incoming { own, taken: 0, told: 0, bytes: 0, long: None }
    }

    /// Offset of the word that changes when the next message is there.
    #[inline]
    fn next_at(&self) -> u64 {
        self.own + block::slot_at(self.taken)
    }

    /// The next message, if it is there. It stays the next one until [`Incoming::took`].
    ///
    /// # Errors
    /// The slot's contents are no message.
    #[inline(always)]
    pub fn next(&self, region: &Region) -> Result<Option<Message>, NoMessage> {
        let at = self.next_at();
        if region.word(at).load(Ordering::Acquire) as u32 != slot::tag(self.taken) {
            return Ok(None);
        }
        match self.read(region, at) {
            Ok(message) => Ok(Some(message)),
            Err(e) => Err(e),
        }
    }

    /// Returns true if a look at this end would find a message, or bytes taken that the peer does not know of.
    #[inline]
    pub fn has_news(&self, region: &Region) -> bool {
        self.bytes > 0 || region.word(self.next_at()).load(Ordering::Acquire) as u32 == slot::tag(self.taken)
    }

    // Inlined, as the result is long.
    #[inline(always)]
    fn read(&self, region: &Region, at: u64) -> Result<Message, NoMessage> {
        let slot = region.words_at::<{ (block::SLOT / block::WORD) as usize }>(at);
        let mut bytes = [0; HEADERS + 4];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(&slot[1..]) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let (Some(headers), Some(meaning)) = (bytes.first_chunk(), bytes.last_chunk()) else { return Err(NoMessage) };
        let Meaning { len, kind, place, acknowledges } = Meaning::decode(*meaning).ok_or(NoMessage)?;
        let (headers, len) = (*headers, u64::from(len));
        let named = |n: usize| slot[(block::INLINE_AT / block::WORD) as usize + n].load(Ordering::Relaxed);
        let most = u64::from(block::MTU);
        let (payload, len, most, begin, end) = match place {
            Place::Slot => (at + block::INLINE_AT, len, most, at, at + block::SLOT),
            Place::Block => (named(0), len, most, self.own + block::BYTES_AT, self.own + block::LEN),
            // The caller named the destination to the sender, and checks it.
            Place::Landed => (named(0), named(1), u64::MAX, 0, region.size()),
            Place::LongRing => {
                let begin = self.long.ok_or(NoMessage)?;
                (named(0), len, most, begin, begin + block::LONG_BYTES)
            }
        };
        let fits = payload >= begin && payload <= end && len <= end - payload && len <= most;
        let ends = if place == Place::Landed { Ends::decode([named(2), named(3)], len) } else { Ends::default() };
        if fits { Ok(Message { kind, headers, payload, len, ends, place, acknowledges }) } else { Err(NoMessage) }
    }

    /// Gives the message's memory back to the peer. Returns the count of messages taken if it is to be put to the peer
    /// now.
    #[inline]
    pub fn took(&mut self, message: &Message) -> Option<u64> {
        self.taken += 1;
        if !matches!(message.place, Place::Slot | Place::Landed) {
            self.bytes += message.len;
        }
        (self.taken - self.told >= TELL_SLOTS || self.bytes >= TELL_BYTES).then(|| self.tell())
    }

    /// The count of messages taken if the peer lacks room outside of slots for want of it; with `any`, if it does not
    /// know it.
    #[inline]
    pub fn untold(&mut self, any: bool) -> Option<u64> {
        (self.bytes > 0 || any && self.taken != self.told).then(|| self.tell())
    }

    fn tell(&mut self) -> u64 {
        (self.told, self.bytes) = (self.taken, 0);
        self.taken
    }

    /// Sets the offset of a new high-bandwidth ring for the peer.
    pub fn has_long(&mut self, at: u64) {
        self.long = Some(at);
    }
}
