//! A channel's sending end.

use std::collections::VecDeque;
use std::ops::Range;

use vervain_acp::{Error, GlobalAddress, Handle, Key, Order, Result, Rights, World};

use super::{BLOCK, End, FRONT, OFFERED, OFFERS, Side, What, With, sender, wake_if};
use crate::memory::{Foreign, Piece, WORD};
use crate::ring::{self, Kind, Out, SHORT, Wire};
use crate::slab::Id;

pub(super) struct SendSide<'w> {
    pub(super) block: Piece<'w>,
    /// The receiver's words.
    pub(super) there: GlobalAddress,
    pub(super) out: Out<'w>,
    /// Bytes of the first message that are sent in parts.
    pub(super) sent: Option<usize>,
    /// Messages that are offered, and how many were taken.
    pub(super) offered: VecDeque<(Id, Key)>,
    pub(super) taken: u64,
    /// The receiver's words at the last look.
    pub(super) seen: [u64; 3],
    pub(super) has_said_free: bool,
}

/// The puts of a sender.
pub(super) struct Puts<'a, 'w> {
    pub(super) world: &'w World,
    pub(super) block: Piece<'w>,
    pub(super) there: GlobalAddress,
    pub(super) last: &'a mut Option<Handle>,
    /// The order of a put that is not behind another.
    pub(super) order: Order,
}

impl Wire for Puts<'_, '_> {
    #[inline]
    fn put(&mut self, words: Range<usize>, behind: bool) -> Result<()> {
        let at = FRONT + words.start;
        let order = if behind { Order::Continue } else { self.order };
        let to = self.there.add((at * WORD) as u64);
        let handle = self.world.copy(to, self.block.address(at), words.len() * WORD, order)?;
        *self.last = Some(handle);
        Ok(())
    }
}

impl<'w> End<'w> {
    /// The sender's side, once the receiver's node has come.
    fn connect(&mut self, with: &mut With<'_, 'w>, block: Piece<'w>) -> Result<Option<SendSide<'w>>> {
        with.mail.go_on(with.world)?;
        let Some(hello) = with.mail.take(&self.name) else { return Ok(None) };
        if hello.told[0] != ring::WORDS as u64 {
            return Err(Error::broken(format!("rank {} has a ring of {} words", self.name.peer, hello.told[0])));
        }
        block.store(sender::ONE, 1);
        let there = hello.node;
        let mut out = Out::new(block.words(FRONT..BLOCK));
        let mut puts = Puts { world: with.world, block, there, last: &mut self.last, order: Order::Now };
        // The ring is empty, so there is room.
        out.short(Kind::Hello, &block.address(0).0.to_le_bytes(), &mut puts)?;
        with.world.wake(self.name.peer)?;
        Ok(Some(SendSide {
            block,
            there,
            out,
            sent: None,
            offered: VecDeque::new(),
            taken: 0,
            seen: [0; 3],
            has_said_free: false,
        }))
    }

    pub(super) fn send_on(&mut self, with: &mut With<'_, 'w>) -> Result<bool> {
        if let Side::Meet(block) = self.side {
            let Some(made) = self.connect(with, block)? else { return Ok(true) };
            self.side = Side::Send(made);
        }
        let Side::Send(side) = &mut self.side else { return Ok(true) };
        let world = with.world;
        let told = [sender::READ, sender::TAKEN, sender::BYE].map(|at| side.block.load(at));
        if told != side.seen {
            // A rank that has asked to be woken was woken, and has to ask again.
            (side.seen, self.has_asked) = (told, false);
            *with.moved += 1;
        }
        side.out.returned(told[0])?;
        side.take_back(with)?;
        let mut has_sent = false;
        while let Some((id, what)) = self.queue.front().copied() {
            let mut puts =
                Puts { world, block: side.block, there: side.there, last: &mut self.last, order: Order::Now };
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
                    // No record of this rank's comes behind this one, which is the last that the receiver waits for.
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

/// The state of a long message.
pub(super) enum Long {
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
        let Self { block, there, out, sent, offered, .. } = self;
        let mut puts = Puts { world, block: *block, there: *there, last, order: Order::Now };
        if sent.is_none() && memory.len > OFFERED {
            if offered.len() >= OFFERS || !out.has_room() {
                return Ok(Long::Waits);
            }
            // SAFETY: the program's memory until the request is over, which is when the registration is taken back;
            // nobody has a reference to it that is used meanwhile.
            if let Ok(key) = unsafe { world.register_at_once(memory.start.cast(), memory.len, Rights::Read) } {
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
