//! A channel's receiving end.

use vervain_acp::{Error, GlobalAddress, Handle, Key, Order, Result, Rights, World};

use super::{End, FRONT, Side, What, With, is_over, receiver, sender, wake_if};
use crate::mail::Push;
use crate::memory::{Foreign, Piece, WORD};
use crate::ring::{In, Kind, Record, SHORT};

pub(super) struct ReceiveSide<'w> {
    pub(super) block: Piece<'w>,
    pub(super) push: Push<'w>,
    /// The sender's words, once it has told.
    pub(super) there: Option<GlobalAddress>,
    pub(super) input: In<'w>,
    /// The length of a message that comes in parts, and how much has come.
    pub(super) parts: Option<(usize, usize)>,
    pub(super) fetch: Option<Fetch<'w>>,
    pub(super) taken: u64,
    pub(super) bye: Option<Handle>,
}

/// A message that is fetched.
pub(super) struct Fetch<'w> {
    pub(super) from: GlobalAddress,
    /// Bytes that are fetched.
    pub(super) wanted: usize,
    /// The key of their destination, if that could be registered; else they go by a piece, and these bytes are there.
    pub(super) key: Option<Key>,
    pub(super) piece: Option<(Piece<'w>, usize)>,
    pub(super) handle: Handle,
}

/// Words of memory that a message is fetched by where its place cannot be registered.
const BY_PIECE: usize = (64 << 10) / WORD;

impl<'w> End<'w> {
    pub(super) fn receive_on(&mut self, with: &mut With<'_, 'w>) -> Result<bool> {
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
                // The ring is zero.
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
            if record.kind == Kind::Hello {
                if !side.meet(world, self.name.peer, &record)? {
                    break;
                }
                continue;
            }
            let Some(there) = side.there else {
                return Err(Error::broken(format!("rank {} does not say where its channel is", self.name.peer)));
            };
            let wanted = match (record.kind, what) {
                (Kind::Free, What::Free) => {
                    // Others will have this memory: nothing may be under way to the sender's.
                    if !is_over(world, self.last)? {
                        break;
                    }
                    side.input.consume(&record);
                    side.input.clear();
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
                // Memory that is not wanted any more.
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
}

/// The state of a message.
pub(super) enum Came {
    Nothing,
    Part,
    /// All of it, of which so many bytes were stored.
    Message(usize),
}

impl<'w> ReceiveSide<'w> {
    /// Takes the first record, by which the sender says where its words are.
    fn meet(&mut self, world: &World, peer: u32, record: &Record) -> Result<bool> {
        let Some(bytes) = self.input.short(record)? else { return Ok(false) };
        let there = GlobalAddress(number(&bytes, 0));
        if self.there.is_some() || world.rank_of(there) != Some(peer) || !there.0.is_multiple_of(WORD as u64) {
            return Err(Error::broken(format!("{there} is not where rank {peer} has its end of a channel")));
        }
        self.there = Some(there);
        self.input.consume(record);
        Ok(true)
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
            Kind::Free | Kind::Skip | Kind::Hello => Err(disorder()),
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
            // SAFETY: the program's memory until the request is over, which is after the registration is taken back;
            // nobody has a reference to it that is used meanwhile.
            let key = unsafe { world.register_at_once(to.start.cast(), wanted, Rights::Write) }.ok();
            // Memory that may not be written is refused, here as by the device.
            let direct = key.and_then(|key| world.copy(GlobalAddress(key.0), from, wanted, Order::Now).ok());
            let fetch = match (key, direct) {
                (Some(key), Some(handle)) => Fetch { from, wanted, key: Some(key), piece: None, handle },
                _ => {
                    if let Some(key) = key {
                        world.unregister(key)?;
                    }
                    let Some(piece) = with.arena.take_or_reserve(BY_PIECE)? else { return Ok(Came::Nothing) };
                    let len = wanted.min(piece.size());
                    let handle = world.copy(piece.address(0), from, len, Order::Now)?;
                    Fetch { from, wanted, key: None, piece: Some((piece, 0)), handle }
                }
            };
            self.fetch = Some(fetch);
            return self.fetch(with, peer, record, to);
        };
        while world.is_complete(fetch.handle)? {
            if let Some((piece, had)) = &mut fetch.piece {
                let len = (fetch.wanted - *had).min(piece.size());
                // SAFETY: the program's memory until the request is over, of which these bytes are inside.
                unsafe { crate::memory::copy_out(piece.all(), to.start.add(*had), len) };
                *had += len;
                let len = (fetch.wanted - *had).min(piece.size());
                if len > 0 {
                    fetch.handle = world.copy(piece.address(0), fetch.from.add(*had as u64), len, Order::Now)?;
                    continue;
                }
                with.arena.give_or_reserve(*piece);
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
