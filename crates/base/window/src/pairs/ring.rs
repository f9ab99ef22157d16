//! The rings of a pair: messages in order from one process to another, each a put of what it says and, behind that, of
//! the word of its slot. The receiver looks at one word; it takes a message without having to send anything.

use super::block::{self, ASLEEP, TAKEN, WOKEN};
use super::byte_ring::ByteRing;
use super::ends::{self, Ends};
use super::padded::Padded;
use super::slot::{self, Kind, Meaning, Place};
use super::waking::{Barrier, Waking};
use crate::device::{Channel, Origin, Put, Refused, Region, Source, Traits};
use std::sync::atomic::Ordering;

/// No payload.
pub const NO_BYTES: &[u8] = &[];
/// Bytes of the headers of a message, at most.
pub const HEADERS: usize = (block::INLINE_AT - block::WORD) as usize - 4;
/// Words between the tag and what may be payload: the headers, and what the message is.
const WORDS: usize = (HEADERS + 4) / 8;
/// Payload from so many bytes on makes a sender ask for a high-bandwidth ring.
const LONG: u64 = 4096;
/// A receiver tells its sender what it has taken after so many slots, or bytes that are not in slots.
const TELL_SLOTS: u64 = block::SLOTS / 4;
const TELL_BYTES: u64 = block::BYTES / 4;

/// Bytes of an acknowledgement that goes with a message: as much of the headers of one as differs from those of the
/// message.
pub const ACKNOWLEDGEMENT: usize = 12;
/// An acknowledgement that goes with a message. Its first word names operation and QP: a later one of the same stands
/// for it.
pub type Acknowledgement = [u8; ACKNOWLEDGEMENT];

/// Why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// There is no room until the peer has taken some.
    Full,
    /// The source is not there.
    Memory,
    /// The peer has told what cannot be, or the device refuses what was asked for with its numbers: nothing goes there
    /// any more.
    Broken,
}

/// Classes of messages, by their right to the last slots: each goes on while those before it cannot. The number is that
/// of slots left to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Requests.
    Request = 12,
    /// What answers requests.
    Answer = 4,
    /// What pairs say to each other.
    Control = 0,
}

/// The sender's end.
pub struct Outgoing {
    channel: Box<dyn Channel>,
    traits: Traits,
    /// What is put now may become visible later.
    is_later: bool,
    /// An acknowledgement that is to go, and the headers that it has as a message.
    held: Option<(Acknowledgement, [u8; HEADERS])>,
    /// Bytes behind the headers of the next message that it may have.
    spare: usize,
    region: Region,
    /// The block that the peer has for this process, in its region; and the one that this process has for it.
    to: u64,
    own: u64,
    sent: u64,
    taken: u64,
    short: ByteRing,
    long: Option<ByteRing>,
    wants_long: bool,
    /// How the peer is woken, if it can be, and the last of its announcements that was answered so.
    waking: Option<(Waking, Barrier)>,
    woken: u32,
    /// Announcements of this process to the peer.
    announced: u32,
    /// For each slot that is not taken: in which ring its payload is, and up to where that is free then.
    marks: [(Place, u64); block::SLOTS as usize],
}

impl Outgoing {
    /// To the block `to` of the peer at the end of `channel`, which tells what it has taken in the block `own` of
    /// `region`.
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

    /// Peer and process wake each other from now on.
    pub fn wakes(&mut self, waking: Waking, barrier: Barrier) {
        self.waking = Some((waking, barrier));
    }

    /// Has `f` put what may become visible later: before something else does that `f` has not put, or at
    /// [`Outgoing::flush`].
    #[inline]
    pub fn later<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.is_later, true);
        let done = f(self);
        self.is_later = before;
        done
    }

    /// Whether something was put that is not visible, or is to be put.
    #[inline]
    pub fn owes(&self) -> bool {
        self.held.is_some() || self.channel.owes()
    }

    /// Has all become visible that was put. What has no room stays.
    pub fn flush(&mut self) {
        let _ = self.later(Self::send_held);
        self.channel.flush();
        self.wake_if_asleep();
    }

    /// Whether puts take so long that acknowledgements had better go with what is sent next.
    #[inline]
    pub fn holds_acknowledgements(&self) -> bool {
        self.traits.is_slow
    }

    /// Keeps an acknowledgement for the next message that has room for it behind its headers; before any other, and at
    /// a flush, it is sent as one with `headers`. Whether it stands for one that was kept before, which is not sent.
    ///
    /// # Errors
    /// As [`Unsent`] says of one of somebody else that was kept.
    #[inline]
    pub fn hold(&mut self, acknowledgement: Acknowledgement, headers: &[u8; HEADERS]) -> Result<bool, Unsent> {
        let stands_for = self.held.is_some_and(|(held, _)| held[..4] == acknowledgement[..4]);
        if !stands_for {
            self.later(Self::send_held)?;
        }
        self.held = Some((acknowledgement, *headers));
        Ok(stands_for)
    }

    /// The headers of the next message are so long.
    #[inline]
    pub fn headers_end(&mut self, len: impl FnOnce() -> usize) {
        if self.held.is_some() {
            self.spare = HEADERS.saturating_sub(len());
        }
    }

    /// Sends the acknowledgement that is kept, as a message.
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

    /// What is kept goes before a message of this kind, if it does not go with it.
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

    /// Wakes the peer if it has announced that it sleeps. Called behind everything that it is to see.
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
        // Where that is refused, so is all else.
        let _ = self.channel.put(&[Put { to: self.to + WOKEN, from: Origin::Words(&answer) }]);
        waking.wake(self.channel.as_mut(), asleep.into());
    }

    /// Announces to the peer that this process goes to sleep, unless an announcement is there already; whether it has
    /// put one. The caller passes a barrier, looks once more, and then sleeps.
    pub fn announce_sleep(&mut self) -> bool {
        if !self.lacks_announcement() {
            return false;
        }
        self.announced = self.announced.wrapping_add(1);
        let count = [u64::from(self.announced)];
        self.channel.put(&[Put { to: self.to + ASLEEP, from: Origin::Words(&count) }]).is_ok()
    }

    /// Whether the peer could wake this process and would not, for it knows of no sleep.
    pub fn lacks_announcement(&self) -> bool {
        self.waking.is_some() && self.region.word(self.own + WOKEN).load(Ordering::Acquire) as u32 == self.announced
    }

    /// Looks at what the peer has taken: whether that is more than before.
    ///
    /// # Errors
    /// [`Unsent::Broken`] where the peer says what cannot be.
    #[inline]
    pub fn look(&mut self) -> Result<bool, Unsent> {
        // As with tags, half a word tells it.
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

    /// How many of them the peer has taken, as it had told at the last [`Outgoing::look`].
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether a message of this class would find a slot.
    #[inline]
    pub fn has_room(&self, class: Class) -> bool {
        self.sent - self.taken < block::SLOTS - class as u64
    }

    /// The peer has a high-bandwidth ring at `at`; whether that is the one that is used, the first that it has told of.
    pub fn got_long(&mut self, at: u64) -> bool {
        let is_first = self.long.is_none();
        self.long.get_or_insert_with(|| ByteRing::new(at, block::LONG_BYTES));
        is_first
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// As [`Unsent`] says.
    #[inline]
    pub fn packet(&mut self, class: Class, headers: &[u8; HEADERS], payload: &dyn Source) -> Result<(), Unsent> {
        self.packet_as(Kind::Packet, class, headers, payload)
    }

    /// [`Outgoing::packet`], of a kind that is one.
    ///
    /// # Errors
    /// As [`Unsent`] says.
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

    /// Sends a packet with `len` bytes of payload that were put where they belong, which is `at` in the peer's region.
    /// They may be more than a packet has otherwise. Where the device puts no single bytes, `ends` has those before and
    /// behind what it puts.
    ///
    /// # Errors
    /// As [`Unsent`] says.
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

    /// Sends a message, of whatever kind.
    ///
    /// # Errors
    /// As [`Unsent`] says.
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
        // Behind a payload nothing is that it could overwrite.
        if len.is_multiple_of(self.traits.grain) {
            let payload = Some(payload).filter(|_| len != 0);
            return self.put_slot(headers, meaning, [at, 0, 0, 0], payload, mark);
        }
        let padded = Padded::new(payload, self.traits.grain as usize);
        self.put_slot(headers, meaning, [at, 0, 0, 0], Some(&padded), mark)
    }

    /// Puts one slot: payload, header words, place, then the tag. `named` has the place, and of a landed payload the
    /// length and the ends.
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

    /// Where payload that is longer than a slot goes.
    fn place(&mut self, len: u64) -> Result<(Place, u64, u64), Unsent> {
        for again in [false, true] {
            if again && !self.look()? {
                break;
            }
            // Nobody needs room in the block for long ones once there is the other ring.
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

    /// Tells the peer that so many of its slots were taken.
    #[inline]
    pub fn tell_taken(&mut self, taken: u64) {
        self.tell(TAKEN, taken);
    }

    /// Puts a word of the peer's block.
    #[inline]
    pub fn tell(&mut self, word: u64, value: u64) {
        // Where that is refused, so is all else.
        let _ = self.put(&[Put { to: self.to + word, from: Origin::Words(&[value]) }]);
    }

    /// A word of the own block, as the peer has put it; the lower half, which is put whole.
    #[inline]
    pub fn told(&self, word: u64) -> u32 {
        self.region.word(self.own + word).load(Ordering::Acquire) as u32
    }
}

/// A message that has come, in memory that the peer may change at any time.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// A copy of its headers.
    pub headers: [u8; HEADERS],
    /// Where its payload begins in the own region.
    pub payload: u64,
    /// Bytes of the payload, which all lie there.
    pub len: u64,
    /// Of a payload that was put where it belongs, the bytes that were not.
    pub ends: Ends,
    place: Place,
    acknowledges: bool,
}

impl Message {
    /// The acknowledgement that came with it, of which its sender says that it is to be taken in before.
    #[inline]
    pub fn acknowledgement(&self) -> Option<Acknowledgement> {
        if self.acknowledges { self.headers.last_chunk().copied() } else { None }
    }

    /// Whether the payload was put where it belongs.
    pub fn has_landed(&self) -> bool {
        self.place == Place::Landed
    }
}

/// What a peer has put is no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMessage;

/// The receiver's end.
pub struct Incoming {
    own: u64,
    taken: u64,
    told: u64,
    /// Bytes taken outside of slots since it was told.
    bytes: u64,
    /// Where the high-bandwidth ring of the peer is.
    long: Option<u64>,
}

impl Incoming {
    /// Messages that are put into the block `own`.
    pub fn new(own: u64) -> Self {
        Incoming { own, taken: 0, told: 0, bytes: 0, long: None }
    }

    /// The word that changes when the next message is there.
    #[inline]
    fn next_at(&self) -> u64 {
        self.own + block::slot_at(self.taken)
    }

    /// The next message, if it is there. It stays the next one until [`Incoming::took`].
    ///
    /// # Errors
    /// What is there is none.
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

    /// Whether a look at this end would find a message, or have something to tell.
    #[inline]
    pub fn has_news(&self, region: &Region) -> bool {
        self.bytes > 0 || region.word(self.next_at()).load(Ordering::Acquire) as u32 == slot::tag(self.taken)
    }

    // Inlined, as what it returns is long.
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
            // The caller, which has told the sender where it belongs, checks whether it is there.
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

    /// The message was taken: its memory is the peer's again. How many were taken, if the peer is to be told now.
    #[inline]
    pub fn took(&mut self, message: &Message) -> Option<u64> {
        self.taken += 1;
        if !matches!(message.place, Place::Slot | Place::Landed) {
            self.bytes += message.len;
        }
        (self.taken - self.told >= TELL_SLOTS || self.bytes >= TELL_BYTES).then(|| self.tell())
    }

    /// How many were taken, if the peer does not know, and it lacks more than slots for that; or `any` it does not
    /// know.
    #[inline]
    pub fn untold(&mut self, any: bool) -> Option<u64> {
        (self.bytes > 0 || any && self.taken != self.told).then(|| self.tell())
    }

    fn tell(&mut self) -> u64 {
        (self.told, self.bytes) = (self.taken, 0);
        self.taken
    }

    /// There is a high-bandwidth ring for the peer now.
    pub fn has_long(&mut self, at: u64) {
        self.long = Some(at);
    }
}
