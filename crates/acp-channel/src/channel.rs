//! The two ends of a channel, as machines that go on when somebody calls.
//!
//! The receiving end has a node and the ring, the sending end the other side of the ring. The receiver pushes its node when it is
//! created; the sender, once it has something to send and has read the node, stores the address of its own words there, and then the
//! first record behind it. So no end waits for more than that the other one was created, and a message that fits the ring is sent
//! while its receiver does something else.
//!
//! A message of more than [`OFFERED`] bytes is registered for the time and offered, and the receiver fetches it: a registration at
//! each end, no copy. Where there is no registration left, and for shorter ones that no record holds, it goes through the ring in parts.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use vervain_acp::{Error, GlobalAddress, Handle, Key, Order, Result, World};

use crate::mail::{Kind as Ends, Mail, Name, Push};
use crate::memory::{Arena, Foreign, Piece, WORD};
use crate::ring::{self, In, Kind, Out, Record, SHORT, Wire};
use crate::slab::{Id, Slab};

/// A longer message is offered, so that the receiver fetches it. Registering at both ends, and a rank's sleep while the other one copies,
/// take about 100 µs: 256 KiB took 100 µs so and 30 in parts, 1 MiB 138 and 110 to 135, 4 MiB 250 and 550.
pub(crate) const OFFERED: usize = 1 << 20;
/// Offers of a channel that are not taken yet.
const OFFERS: usize = 4;

/// Words in front of the ring, at both ends.
const FRONT: usize = 16;
/// Words of an end.
const BLOCK: usize = FRONT + ring::WORDS;

/// The receiver's words: the node is the first five.
mod receiver {
    /// The sender stores where its own words are.
    pub const SENDER: usize = 5;
    /// The sender sleeps, or is about to.
    pub const WAKE: usize = 6;
    /// What pushing finds.
    pub const FOUND: usize = 7;
    /// What is put to the sender's words of the same meaning.
    pub const READ: usize = 8;
    pub const TAKEN: usize = 9;
    pub const ONE: usize = 10;
}

/// The sender's words.
mod sender {
    /// Words of the ring that the receiver has read.
    pub const READ: usize = 0;
    /// Offers that it has taken.
    pub const TAKEN: usize = 1;
    /// It has freed its end.
    pub const BYE: usize = 2;
    /// It sleeps, or is about to.
    pub const WAKE: usize = 3;
    /// What is put to the receiver's words.
    pub const SELF: usize = 4;
    pub const ONE: usize = 5;
}

/// What a request is for.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Send(Foreign),
    Receive(Foreign),
    Free,
}

/// What became of a request: bytes, or why it cannot be.
pub(crate) type Outcome = Result<usize, String>;

pub(crate) struct Request {
    pub end: Id,
    pub outcome: Option<Outcome>,
    /// Nobody waits for it: it goes when it is over.
    pub is_detached: bool,
}

/// What an end goes on with.
pub(crate) struct With<'a, 'w> {
    pub world: &'w World,
    pub arena: &'a mut Arena<'w>,
    pub mail: &'a mut Mail<'w>,
    pub requests: &'a mut Slab<Request>,
    /// Changes when a request is over.
    pub finished: &'a AtomicU64,
    /// Changes when something has come from a peer.
    pub moved: &'a mut u64,
}

impl With<'_, '_> {
    fn done(&mut self, id: Id, outcome: Outcome) {
        if let Some(request) = self.requests.get(id) {
            request.outcome = Some(outcome);
            if request.is_detached {
                self.requests.remove(id);
            }
            self.finished.fetch_add(1, Ordering::Release);
        }
    }
}

/// An end of a channel.
pub(crate) struct End<'w> {
    name: Name,
    /// Requests that are not over and not offered, in order.
    queue: VecDeque<(Id, What)>,
    side: Side<'w>,
    /// The last access to the peer's words.
    last: Option<Handle>,
    is_freed: bool,
    /// The peer was asked to wake this rank, and nothing has come since.
    has_asked: bool,
    pub is_active: bool,
}

enum Side<'w> {
    Send(Option<SendSide<'w>>),
    Receive(ReceiveSide<'w>),
}

struct SendSide<'w> {
    block: Piece<'w>,
    /// The receiver's words.
    there: GlobalAddress,
    out: Out<'w>,
    /// The last put from each quarter.
    over: [Option<Handle>; 4],
    /// Bytes of the first message that are sent in parts.
    sent: Option<usize>,
    /// Messages that are offered, and how many were taken.
    offered: VecDeque<(Id, Key)>,
    taken: u64,
    /// What the receiver had told when it was last looked at.
    seen: [u64; 3],
    has_said_free: bool,
}

struct ReceiveSide<'w> {
    block: Piece<'w>,
    push: Push<'w>,
    /// The sender's words, once it has told.
    there: Option<GlobalAddress>,
    input: In<'w>,
    /// The length of a message that comes in parts, and how much has come.
    parts: Option<(usize, usize)>,
    fetch: Option<Fetch<'w>>,
    taken: u64,
    bye: Option<Handle>,
}

/// A message that is fetched.
struct Fetch<'w> {
    from: GlobalAddress,
    /// Bytes that are fetched.
    wanted: usize,
    /// Where they go, if that could be registered; else they go by a piece, and these bytes are there.
    key: Option<Key>,
    piece: Option<(Piece<'w>, usize)>,
    handle: Handle,
}

/// Words of memory that a message is fetched by where its place cannot be registered.
const BY_PIECE: usize = (64 << 10) / WORD;

/// The puts of a sender.
struct Puts<'a, 'w> {
    world: &'w World,
    block: Piece<'w>,
    there: GlobalAddress,
    over: &'a mut [Option<Handle>; 4],
    last: &'a mut Option<Handle>,
    /// That of a put that is not behind another.
    order: Order,
}

impl Wire for Puts<'_, '_> {
    #[inline]
    fn put(&mut self, words: Range<usize>, behind: bool) -> Result<()> {
        let (first, last) = (words.start * 4 / ring::WORDS, (words.end - 1) * 4 / ring::WORDS);
        let at = FRONT + words.start;
        let order = if behind { Order::Continue } else { self.order };
        let to = self.there.add((at * WORD) as u64);
        let handle = self.world.copy(to, self.block.address(at), words.len() * WORD, order)?;
        *self.last = Some(handle);
        self.over[first] = Some(handle);
        self.over[last] = Some(handle);
        Ok(())
    }

    #[inline]
    fn is_over(&mut self, quarter: usize) -> Result<bool> {
        self.over[quarter].map_or(Ok(true), |handle| self.world.is_complete(handle))
    }
}

/// Wakes the peer if it has asked for that.
#[inline]
fn wake_if(world: &World, peer: u32, asked: &AtomicU64) -> Result<()> {
    // What was put before is in the peer's memory, if that is near, before the word is looked at.
    fence(Ordering::SeqCst);
    // An asker that comes in between is woken now, or asks for the next time.
    if asked.load(Ordering::Relaxed) != 0 && asked.swap(0, Ordering::AcqRel) != 0 {
        world.wake(peer)?;
    }
    Ok(())
}

impl<'w> End<'w> {
    /// The end of this rank's of its next channel from or to `peer`.
    pub fn new(with: &mut With<'_, 'w>, peer: u32, sends: bool) -> Result<Self> {
        let side = if sends {
            Side::Send(None)
        } else {
            let block = with.arena.take(BLOCK)?;
            block.store(receiver::ONE, 1);
            let name = with.mail.name(peer, Ends::Channel, true);
            let push = Push::new(with.world, name, block, [ring::WORDS as u64, 0, 0], receiver::FOUND)?;
            let input = In::new(block.words(FRONT..BLOCK));
            let side = ReceiveSide { block, push, there: None, input, parts: None, fetch: None, taken: 0, bye: None };
            return Ok(Self::of(name, Side::Receive(side)));
        };
        Ok(Self::of(with.mail.name(peer, Ends::Channel, false), side))
    }

    fn of(name: Name, side: Side<'w>) -> Self {
        Self { name, queue: VecDeque::new(), side, last: None, is_freed: false, has_asked: false, is_active: false }
    }

    /// Takes a request, which [`go_on`](End::go_on) goes on with.
    ///
    /// # Errors
    /// Refused: it is not for this end.
    pub fn ask(&mut self, requests: &mut Slab<Request>, end: Id, what: What) -> Result<Id> {
        let wrong = match (what, &self.side) {
            _ if self.is_freed => "the channel was freed",
            (What::Send(_), Side::Receive(_)) => "this rank is the channel's receiver",
            (What::Receive(_), Side::Send(_)) => "this rank is the channel's sender",
            _ => {
                self.is_freed = matches!(what, What::Free);
                let id = requests.insert(Request { end, outcome: None, is_detached: false });
                self.queue.push_back((id, what));
                return Ok(id);
            }
        };
        Err(Error::refused(wrong))
    }

    /// Whether there is something that it can go on with only later.
    #[inline]
    pub fn is_busy(&self) -> bool {
        let more = match &self.side {
            Side::Send(side) => side.as_ref().is_some_and(|side| !side.offered.is_empty()),
            Side::Receive(side) => !side.push.is_over(),
        };
        more || !self.queue.is_empty()
    }

    /// Goes on as far as it goes without waiting. False: it is freed, and gone.
    #[inline]
    pub fn go_on(&mut self, with: &mut With<'_, 'w>) -> Result<bool> {
        match self.side {
            Side::Send(_) => self.send_on(with),
            Side::Receive(_) => self.receive_on(with),
        }
    }

    /// The sender's side, once the receiver's node has come.
    fn connect(&mut self, with: &mut With<'_, 'w>) -> Result<Option<SendSide<'w>>> {
        with.mail.go_on(with.world)?;
        let Some(hello) = with.mail.take(&self.name) else { return Ok(None) };
        if hello.told[0] != ring::WORDS as u64 {
            return Err(Error::broken(format!("rank {} has a ring of {} words", self.name.peer, hello.told[0])));
        }
        let block = with.arena.take(BLOCK)?;
        block.store(sender::ONE, 1);
        block.store(sender::SELF, block.address(0).0);
        let there = hello.node;
        let word = there.add((receiver::SENDER * WORD) as u64);
        // The first record is behind it.
        let handle = with.world.copy(word, block.address(sender::SELF), WORD, Order::Now)?;
        with.world.complete(handle)?;
        with.world.wake(self.name.peer)?;
        Ok(Some(SendSide {
            block,
            there,
            out: Out::new(block.words(FRONT..BLOCK)),
            over: [None; 4],
            sent: None,
            offered: VecDeque::new(),
            taken: 0,
            seen: [0; 3],
            has_said_free: false,
        }))
    }

    fn send_on(&mut self, with: &mut With<'_, 'w>) -> Result<bool> {
        if matches!(self.side, Side::Send(None)) {
            let made = self.connect(with)?;
            self.side = Side::Send(made);
        }
        let Side::Send(Some(side)) = &mut self.side else { return Ok(true) };
        let world = with.world;
        let told = [sender::READ, sender::TAKEN, sender::BYE].map(|at| side.block.load(at));
        if told != side.seen {
            // Who has asked to be woken was, and has to ask again.
            (side.seen, self.has_asked) = (told, false);
            *with.moved += 1;
        }
        side.out.returned(told[0])?;
        side.take_back(with)?;
        let mut has_sent = false;
        while let Some((id, what)) = self.queue.front().copied() {
            let mut puts = Puts {
                world,
                block: side.block,
                there: side.there,
                over: &mut side.over,
                last: &mut self.last,
                order: Order::Now,
            };
            let over = match what {
                What::Send(memory) if memory.len <= SHORT => {
                    // SAFETY: the program's memory until the request is over, which nobody stores to.
                    let bytes = unsafe { bytes_of(memory) };
                    side.out.short(Kind::Short, bytes, &mut puts)?
                }
                What::Send(memory) if memory.len <= ring::LONG => {
                    // SAFETY: as above.
                    unsafe { side.out.long(Kind::Whole, memory.start, memory.len, &mut puts)? }
                }
                What::Send(memory) => match side.send_long(world, id, memory, &mut self.last)? {
                    Long::Sent => true,
                    Long::Waits => false,
                    Long::Offered => {
                        has_sent = true;
                        self.queue.pop_front();
                        continue;
                    }
                },
                What::Receive(_) => unreachable!("a sender has no such request"),
                What::Free if side.has_said_free => {
                    if side.block.load(sender::BYE) == 0 {
                        break;
                    }
                    // The receiver stores nothing more, and what this rank has put is over.
                    with.arena.give(side.block, BLOCK);
                    with.done(id, Ok(0));
                    self.queue.pop_front();
                    return Ok(false);
                }
                What::Free if !side.offered.is_empty() => break,
                What::Free => {
                    // Nothing of this rank's comes behind the record, which is the last that the receiver waits for.
                    puts.order = puts.last.map_or(Order::Now, Order::After);
                    side.has_said_free = side.out.short(Kind::Free, &[], &mut puts)?;
                    has_sent |= side.has_said_free;
                    break;
                }
            };
            if !over {
                break;
            }
            has_sent = true;
            with.done(id, Ok(0));
            self.queue.pop_front();
        }
        if has_sent {
            wake_if(world, self.name.peer, side.block.word(sender::WAKE))?;
        }
        Ok(true)
    }

    fn receive_on(&mut self, with: &mut With<'_, 'w>) -> Result<bool> {
        let Side::Receive(side) = &mut self.side else { return Ok(true) };
        let world = with.world;
        if !side.push.go_on(world)? {
            return Ok(true);
        }
        while let Some((id, what)) = self.queue.front().copied() {
            if let Some(bye) = side.bye {
                if !world.is_complete(bye)? {
                    break;
                }
                world.wake(self.name.peer)?;
                // The ring was made zero as it was read.
                with.arena.give(side.block, FRONT);
                with.done(id, Ok(0));
                self.queue.pop_front();
                return Ok(false);
            }
            let Some(record) = side.input.look()? else { break };
            self.has_asked = false;
            if side.fetch.is_some() && record.kind != Kind::Offer {
                return Err(Error::broken(format!(
                    "rank {} has taken back what it has offered in a channel",
                    self.name.peer
                )));
            }
            let there = side.sender(world, self.name.peer)?;
            let wanted = match (record.kind, what) {
                (Kind::Free, What::Free) => {
                    // Others will have this memory: nothing may be under way to the sender's.
                    if !is_over(world, self.last)? {
                        break;
                    }
                    side.input.consume(&record);
                    let to = there.add((sender::BYE * WORD) as u64);
                    side.bye = Some(world.copy(to, side.block.address(receiver::ONE), WORD, Order::Now)?);
                    continue;
                }
                (Kind::Free, _) => {
                    with.done(id, Err(format!("rank {}, the sender, has freed the channel", self.name.peer)));
                    self.queue.pop_front();
                    continue;
                }
                (_, What::Receive(memory)) => memory,
                // What nobody wants any more.
                _ => Foreign { start: std::ptr::null_mut(), len: 0 },
            };
            let step = side.receive(with, self.name.peer, record, wanted)?;
            side.tell(world, self.name.peer, there, &mut self.last)?;
            *with.moved += u64::from(!matches!(step, Came::Nothing));
            match step {
                Came::Nothing => break,
                Came::Part => {}
                Came::Message(_) if matches!(what, What::Free) => {}
                Came::Message(len) => {
                    with.done(id, Ok(len));
                    self.queue.pop_front();
                }
            }
        }
        Ok(true)
    }

    /// Has the peer wake this rank when it has stored something here.
    pub fn ask_to_be_woken(&mut self, world: &World) -> Result<()> {
        if self.has_asked {
            return Ok(());
        }
        let (to, one) = match &self.side {
            // What comes behind the record of the end finds nobody.
            Side::Send(Some(side)) if !side.has_said_free => {
                (side.there.add((receiver::WAKE * WORD) as u64), side.block.address(sender::ONE))
            }
            Side::Receive(ReceiveSide { there: Some(there), bye: None, block, .. }) => {
                (there.add((sender::WAKE * WORD) as u64), block.address(receiver::ONE))
            }
            _ => return Ok(()),
        };
        self.last = Some(world.copy(to, one, WORD, Order::Now)?);
        self.has_asked = true;
        Ok(())
    }

    /// An access of this rank's that the end waits for.
    pub fn awaited(&self) -> Option<Handle> {
        match &self.side {
            Side::Receive(side) => side.bye.or(side.fetch.as_ref().map(|fetch| fetch.handle)),
            Side::Send(Some(side)) if !side.has_said_free => self.last,
            Side::Send(_) => None,
        }
    }

    /// Calls `f` with the words that change when there is something to go on with.
    pub fn watched(&self, mut f: impl FnMut(&'w AtomicU64)) {
        match &self.side {
            Side::Send(None) => {}
            Side::Send(Some(side)) => {
                [sender::READ, sender::TAKEN, sender::BYE].into_iter().for_each(|at| f(side.block.word(at)));
            }
            Side::Receive(side) => {
                f(side.input.next());
                if !side.push.is_over() {
                    f(side.push.watched());
                }
            }
        }
    }
}

fn is_over(world: &World, last: Option<Handle>) -> Result<bool> {
    last.map_or(Ok(true), |handle| world.is_complete(handle))
}

/// # Safety
/// The bytes are mapped, and nobody stores there while the slice is used.
unsafe fn bytes_of<'a>(memory: Foreign) -> &'a [u8] {
    if memory.len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(memory.start, memory.len) }
}

/// What became of a long message.
enum Long {
    Sent,
    Offered,
    Waits,
}

impl<'w> SendSide<'w> {
    /// Takes memory back that the receiver has fetched.
    #[inline]
    fn take_back(&mut self, with: &mut With<'_, 'w>) -> Result<()> {
        let taken = self.block.load(sender::TAKEN);
        while self.taken != taken {
            let Some((id, key)) = self.offered.pop_front() else {
                return Err(Error::broken(format!(
                    "a channel's receiver has taken {taken} messages of {}",
                    self.taken
                )));
            };
            with.world.unregister(key)?;
            with.done(id, Ok(0));
            self.taken += 1;
        }
        Ok(())
    }

    fn send_long(&mut self, world: &'w World, id: Id, memory: Foreign, last: &mut Option<Handle>) -> Result<Long> {
        let Self { block, there, out, over, sent, offered, .. } = self;
        let mut puts = Puts { world, block: *block, there: *there, over, last, order: Order::Now };
        if sent.is_none() && memory.len > OFFERED {
            if offered.len() >= OFFERS || !out.has_room() {
                return Ok(Long::Waits);
            }
            // SAFETY: the program's memory until the request is over, which is when the registration is taken back; nobody has a
            // reference to it that is used meanwhile.
            if let Ok(key) = unsafe { world.register_foreign(memory.start.cast(), memory.len, 0) } {
                let mut offer = [0; 16];
                offer[..8].copy_from_slice(&key.0.to_le_bytes());
                offer[8..].copy_from_slice(&(memory.len as u64).to_le_bytes());
                if !out.short(Kind::Offer, &offer, &mut puts)? {
                    world.unregister(key)?;
                    return Ok(Long::Waits);
                }
                offered.push_back((id, key));
                return Ok(Long::Offered);
            }
        }
        if sent.is_none() {
            if !out.short(Kind::Begin, &(memory.len as u64).to_le_bytes(), &mut puts)? {
                return Ok(Long::Waits);
            }
            *sent = Some(0);
        }
        while let Some(at) = *sent {
            let len = (memory.len - at).min(ring::LONG);
            // SAFETY: inside of the program's memory, as above.
            if !unsafe { out.long(Kind::Part, memory.start.add(at), len, &mut puts)? } {
                return Ok(Long::Waits);
            }
            *sent = (at + len < memory.len).then_some(at + len);
            // The receiver may sleep until there is something.
            out.returned(block.load(sender::READ))?;
        }
        Ok(Long::Sent)
    }
}

/// What has come of a message.
enum Came {
    Nothing,
    Part,
    /// All of it, of which so many bytes were stored.
    Message(usize),
}

impl<'w> ReceiveSide<'w> {
    /// The sender's words, which it has told of before it put its first record.
    #[inline]
    fn sender(&mut self, world: &World, peer: u32) -> Result<GlobalAddress> {
        if let Some(there) = self.there {
            return Ok(there);
        }
        let there = GlobalAddress(self.block.load(receiver::SENDER));
        if world.rank_of(there) != Some(peer) || !there.0.is_multiple_of(WORD as u64) {
            return Err(Error::broken(format!("{there} is not where rank {peer} has its end of a channel")));
        }
        self.there = Some(there);
        Ok(there)
    }

    /// Tells the sender what was read, once that is enough.
    #[inline]
    fn tell(&mut self, world: &World, peer: u32, there: GlobalAddress, last: &mut Option<Handle>) -> Result<()> {
        let mut has_told = false;
        if let Some(read) = self.input.take_room() {
            self.block.store(receiver::READ, read);
            let to = there.add((sender::READ * WORD) as u64);
            *last = Some(world.copy(to, self.block.address(receiver::READ), WORD, Order::Now)?);
            has_told = true;
        }
        if self.taken != self.block.load(receiver::TAKEN) {
            self.block.store(receiver::TAKEN, self.taken);
            let to = there.add((sender::TAKEN * WORD) as u64);
            *last = Some(world.copy(to, self.block.address(receiver::TAKEN), WORD, Order::Now)?);
            has_told = true;
        }
        if has_told {
            wake_if(world, peer, self.block.word(receiver::WAKE))?;
        }
        Ok(())
    }

    /// Goes on with the record that is next.
    #[inline]
    fn receive(&mut self, with: &mut With<'_, 'w>, peer: u32, record: Record, to: Foreign) -> Result<Came> {
        let disorder = || Error::broken(format!("rank {peer} sends parts of a message in disorder"));
        if self.parts.is_some() != (record.kind == Kind::Part) {
            return Err(disorder());
        }
        match record.kind {
            Kind::Short => {
                let Some(bytes) = self.input.short(&record)? else { return Ok(Came::Nothing) };
                let len = record.len.min(to.len);
                // SAFETY: the program's memory until the request is over; bytes of ours.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.start, len) };
                self.input.consume(&record);
                Ok(Came::Message(len))
            }
            Kind::Whole => {
                let len = record.len.min(to.len);
                // SAFETY: as above.
                unsafe { self.input.long(&record, to.start, len) };
                self.input.consume(&record);
                Ok(Came::Message(len))
            }
            Kind::Begin => {
                let Some(bytes) = self.input.short(&record)? else { return Ok(Came::Nothing) };
                let len = usize::try_from(number(&bytes, 0)).ok().filter(|len| *len > 0).ok_or_else(disorder)?;
                self.parts = Some((len, 0));
                self.input.consume(&record);
                Ok(Came::Part)
            }
            Kind::Part => {
                let Some((whole, had)) = self.parts.filter(|(whole, had)| record.len <= whole - had) else {
                    return Err(disorder());
                };
                let len = record.len.min(to.len.saturating_sub(had));
                if len > 0 {
                    // SAFETY: as above; the part that is stored ends inside of it.
                    unsafe { self.input.long(&record, to.start.add(had), len) };
                }
                self.input.consume(&record);
                let had = had + record.len;
                self.parts = (had < whole).then_some((whole, had));
                Ok(if had < whole { Came::Part } else { Came::Message(whole.min(to.len)) })
            }
            Kind::Offer => self.fetch(with, peer, record, to),
            Kind::Free | Kind::Skip => Err(disorder()),
        }
    }

    /// Fetches a message that is offered.
    fn fetch(&mut self, with: &mut With<'_, 'w>, peer: u32, record: Record, to: Foreign) -> Result<Came> {
        let world = with.world;
        let Some(fetch) = &mut self.fetch else {
            let Some(bytes) = self.input.short(&record)? else { return Ok(Came::Nothing) };
            let from = GlobalAddress(number(&bytes, 0));
            if world.rank_of(from) != Some(peer) {
                return Err(Error::broken(format!("rank {peer} offers a message at {from}, which is not its own")));
            }
            let wanted = to.len.min(usize::try_from(number(&bytes, 8)).unwrap_or(usize::MAX));
            if wanted == 0 {
                self.input.consume(&record);
                self.taken += 1;
                return Ok(Came::Message(0));
            }
            // SAFETY: the program's memory until the request is over, which is after the registration is taken back; nobody has a
            // reference to it that is used meanwhile.
            let key = unsafe { world.register_foreign(to.start.cast(), wanted, 0) }.ok();
            // What may not be written is refused, here as by the device.
            let direct = key.and_then(|key| world.copy(GlobalAddress(key.0), from, wanted, Order::Now).ok());
            let fetch = match (key, direct) {
                (Some(key), Some(handle)) => Fetch { from, wanted, key: Some(key), piece: None, handle },
                _ => {
                    if let Some(key) = key {
                        world.unregister(key)?;
                    }
                    let piece = with.arena.take(BY_PIECE)?;
                    let len = wanted.min(BY_PIECE * WORD);
                    let handle = world.copy(piece.address(0), from, len, Order::Now)?;
                    Fetch { from, wanted, key: None, piece: Some((piece, 0)), handle }
                }
            };
            self.fetch = Some(fetch);
            return self.fetch(with, peer, record, to);
        };
        while world.is_complete(fetch.handle)? {
            if let Some((piece, had)) = &mut fetch.piece {
                let len = (fetch.wanted - *had).min(BY_PIECE * WORD);
                // SAFETY: the program's memory until the request is over, of which these bytes are inside.
                unsafe { crate::memory::copy_out(piece.words(0..BY_PIECE), to.start.add(*had), len) };
                *had += len;
                let len = (fetch.wanted - *had).min(BY_PIECE * WORD);
                if len > 0 {
                    fetch.handle = world.copy(piece.address(0), fetch.from.add(*had as u64), len, Order::Now)?;
                    continue;
                }
                with.arena.give(*piece, BY_PIECE);
            }
            if let Some(key) = fetch.key {
                world.unregister(key)?;
            }
            let wanted = fetch.wanted;
            self.fetch = None;
            self.input.consume(&record);
            self.taken += 1;
            return Ok(Came::Message(wanted));
        }
        Ok(Came::Nothing)
    }
}

/// A number of 8 bytes of a record.
fn number(bytes: &[u8; SHORT], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
