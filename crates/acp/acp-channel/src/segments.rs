//! Segmented buffers: as many segments of the same size at two ranks; those of the source become those of the
//! destination, in turns.
//!
//! The source pushes the segment at its tail: it puts it, and its new count of pushed segments behind it. The
//! destination gives the one at its head back: it puts its count. The ends find each other as those of channels do, the
//! destination being the one that pushes.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

use vervain_acp::{Error, GlobalAddress, Handle, Key, Order, Result, World};

use crate::channel::With;
use crate::mail::{Kind, Name, Push};
use crate::memory::{Foreign, Piece, WORD};

/// Words of an end.
const BLOCK: usize = 16;

/// The destination's words: the node is the first five.
mod destination {
    /// The source's counts and, behind them, where its own words are.
    pub const SIZE: usize = 5;
    pub const COUNT: usize = 6;
    pub const SOURCE: usize = 7;
    pub const TAIL: usize = 8;
    pub const BYE: usize = 9;
    pub const FOUND: usize = 10;
    /// The words that are put.
    pub const HEAD: usize = 11;
    pub const ONE: usize = 12;
}

/// The source's words.
mod source {
    pub const HEAD: usize = 0;
    pub const BYE: usize = 1;
    /// The words that are put.
    pub const SIZE: usize = 2;
    pub const SELF: usize = 4;
    pub const ONE: usize = 5;
    /// Counts of pushed segments: a put that is under way must not take a later one, whose segment comes behind it.
    pub const TAILS: usize = 8;
}

/// Counts of pushed segments whose puts can be under way at a time.
const TAILS: usize = BLOCK - source::TAILS;

/// An end of a segmented buffer.
pub(crate) struct Segments<'w> {
    name: Name,
    size: usize,
    count: u64,
    key: Key,
    block: Piece<'w>,
    /// The push, at the destination.
    push: Option<Push<'w>>,
    /// The peer's words, once it is connected, and of the source where the destination's segments are.
    there: Option<GlobalAddress>,
    segments: GlobalAddress,
    /// Segments that were given back, and those that were pushed.
    head: u64,
    tail: u64,
    /// Puts of segments that were not over, and how many were.
    puts: VecDeque<Handle>,
    sent: u64,
    tails: [Option<Handle>; TAILS],
    last: Option<Handle>,
    mismatch: Option<String>,
    wants_to_leave: bool,
    has_left: bool,
}

impl<'w> Segments<'w> {
    /// This rank's end with `peer`; `is_source`: it is the source.
    ///
    /// # Safety
    /// The memory stays mapped until the end is freed; no reference is to it that excludes others.
    pub unsafe fn new(
        with: &mut With<'_, 'w>,
        peer: u32,
        memory: Foreign,
        size: usize,
        count: usize,
        is_source: bool,
    ) -> Result<Self> {
        // SAFETY: handed on to the caller.
        let key = unsafe { with.world.register_foreign(memory.start.cast(), memory.len, 0)? };
        let block = match with.arena.take(BLOCK) {
            Ok(block) => block,
            Err(error) => {
                with.world.unregister(key)?;
                return Err(error);
            }
        };
        let name = with.mail.name(peer, Kind::Segments, !is_source);
        let told = [size as u64, count as u64];
        let push = if is_source {
            (0..2).for_each(|i| block.store(source::SIZE + i, told[i]));
            block.store(source::SELF, block.address(0).0);
            block.store(source::ONE, 1);
            None
        } else {
            block.store(destination::ONE, 1);
            Some(Push::new(with.world, name, block, [told[0], told[1], key.0], destination::FOUND)?)
        };
        Ok(Self {
            name,
            size,
            count: count as u64,
            key,
            block,
            push,
            there: None,
            segments: GlobalAddress::NULL,
            head: 0,
            tail: 0,
            puts: VecDeque::new(),
            sent: 0,
            tails: [None; TAILS],
            last: None,
            mismatch: None,
            wants_to_leave: false,
            has_left: false,
        })
    }

    fn is_source(&self) -> bool {
        self.push.is_none()
    }

    /// Compares the sizes with the peer's.
    fn compare(&mut self, world: &World, size: u64, count: u64) {
        if (size, count) != (self.size as u64, self.count) {
            let (here, there) = (world.rank(), self.name.peer);
            self.mismatch = Some(format!(
                "rank {here} has {} segments of {} B, rank {there} has {count} of {size} B",
                self.count, self.size
            ));
        }
    }

    /// Goes on with connecting and leaving.
    pub fn go_on(&mut self, with: &mut With<'_, 'w>) -> Result<()> {
        let (world, peer) = (with.world, self.name.peer);
        if self.there.is_none() {
            if let Some(push) = &mut self.push {
                let source = GlobalAddress(self.block.load(destination::SOURCE));
                if !push.go_on(world)? || source.is_null() {
                    return Ok(());
                }
                if world.rank_of(source) != Some(peer) || !source.0.is_multiple_of(WORD as u64) {
                    return Err(Error::broken(format!("{source} is not where rank {peer} has its segmented buffer")));
                }
                self.compare(world, self.block.load(destination::SIZE), self.block.load(destination::COUNT));
                self.there = Some(source);
            } else {
                with.mail.go_on(world)?;
                let Some(hello) = with.mail.take(&self.name) else { return Ok(()) };
                let [size, count, segments] = hello.told;
                self.segments = GlobalAddress(segments);
                if world.rank_of(self.segments) != Some(peer) {
                    return Err(Error::broken(format!("{} is not where rank {peer} has segments", self.segments)));
                }
                self.compare(world, size, count);
                let at = |word: usize| hello.node.add((word * WORD) as u64);
                let sizes = self.block.address(source::SIZE);
                world.copy(at(destination::SIZE), sizes, 2 * WORD, Order::Now)?;
                let own = self.block.address(source::SELF);
                self.last = Some(world.copy(at(destination::SOURCE), own, WORD, Order::Continue)?);
                self.there = Some(hello.node);
                world.wake(peer)?;
            }
        }
        if let Some(there) = self.there.filter(|_| self.wants_to_leave && !self.has_left) {
            let (bye, one) = match self.push {
                None => (destination::BYE, source::ONE),
                Some(_) => (source::BYE, destination::ONE),
            };
            let (to, order) = (there.add((bye * WORD) as u64), self.last.map_or(Order::Now, Order::After));
            self.last = Some(world.copy(to, self.block.address(one), WORD, order)?);
            self.has_left = true;
            world.wake(peer)?;
        }
        Ok(())
    }

    /// Returns true if there is something that it goes on with by itself.
    pub fn is_busy(&self) -> bool {
        self.there.is_none() || (self.wants_to_leave && !self.peer_has_left())
    }

    fn peer_has_left(&self) -> bool {
        self.block.load(if self.is_source() { source::BYE } else { destination::BYE }) != 0
    }

    /// The words that change when it can go on.
    pub fn watched(&self, mut f: impl FnMut(&'w AtomicU64)) {
        if let Some(push) = &self.push {
            f(push.watched());
            [destination::SOURCE, destination::BYE].into_iter().for_each(|at| f(self.block.word(at)));
        } else {
            f(self.block.word(source::BYE));
        }
    }

    /// Returns whether it is connected, and not disconnected by this rank.
    ///
    /// # Errors
    /// Refused: the ends have different sizes.
    pub fn is_connected(&self) -> Result<bool> {
        match &self.mismatch {
            Some(why) => Err(Error::refused(why.clone())),
            None => Ok(self.there.is_some() && !self.wants_to_leave),
        }
    }

    /// Returns true if this rank has disconnected it.
    pub fn is_left(&self) -> bool {
        self.wants_to_leave
    }

    /// The peer's words.
    fn connected(&self) -> Result<GlobalAddress> {
        match (self.is_connected()?, self.there) {
            (true, Some(there)) => Ok(there),
            _ if self.wants_to_leave => Err(Error::refused("the segmented buffer was disconnected")),
            _ => Err(Error::refused("the segmented buffer is not connected")),
        }
    }

    /// Takes what the peer has told.
    fn look(&mut self, world: &World) -> Result<()> {
        let told = self.block.load(if self.is_source() { source::HEAD } else { destination::TAIL });
        let (least, most) = match self.is_source() {
            true => (self.head, self.tail),
            false => (self.tail, self.head.saturating_add(self.count)),
        };
        let sound = least..=most;
        if !sound.contains(&told) {
            let why = format!("rank {} says {told} of segments, which are {sound:?}", self.name.peer);
            return Err(Error::broken(why));
        }
        *(if self.is_source() { &mut self.head } else { &mut self.tail }) = told;
        while let Some(handle) = self.puts.front().copied() {
            if !world.is_complete(handle)? {
                break;
            }
            self.puts.pop_front();
            self.sent += 1;
        }
        Ok(())
    }

    /// The source's: pushes the segment at the tail. A put and a word behind it, which it does not
    /// wait for, unless eight are under way.
    pub fn push(&mut self, world: &World) -> Result<()> {
        let there = self.connected()?;
        if !self.is_source() {
            return Err(Error::refused("this rank is the segmented buffer's destination"));
        }
        self.look(world)?;
        if self.tail - self.head >= self.count {
            return Err(Error::refused(format!("all {} segments are pushed, and none was given back", self.count)));
        }
        let slot = (self.tail % TAILS as u64) as usize;
        if let Some(handle) = self.tails[slot] {
            world.complete(handle)?;
        }
        let offset = (self.tail % self.count) * self.size as u64;
        let from = GlobalAddress(self.key.0).add(offset);
        let segment = world.copy(self.segments.add(offset), from, self.size, Order::Now)?;
        self.puts.push_back(segment);
        self.tail += 1;
        // Not as a continuation: another thread's access may come between, and the next count must not overtake this
        // one.
        let order = Order::After(segment);
        self.tell(world, there, source::TAILS + slot, self.tail, destination::TAIL, order)?;
        self.tails[slot] = self.last;
        Ok(())
    }

    /// The destination's: gives the segment at the head back. A put, which it does not wait for.
    pub fn give_back(&mut self, world: &World) -> Result<()> {
        let there = self.connected()?;
        if self.is_source() {
            return Err(Error::refused("this rank is the segmented buffer's source"));
        }
        self.look(world)?;
        if self.tail == self.head {
            return Err(Error::refused("no segment has come that could be given back"));
        }
        self.head += 1;
        self.tell(world, there, destination::HEAD, self.head, source::HEAD, Order::Now)
    }

    fn tell(
        &mut self,
        world: &World,
        there: GlobalAddress,
        from: usize,
        value: u64,
        to: usize,
        order: Order,
    ) -> Result<()> {
        self.block.store(from, value);
        let to = there.add((to * WORD) as u64);
        self.last = Some(world.copy(to, self.block.address(from), WORD, order)?);
        Ok(())
    }

    /// Returns whether not all segments are pushed.
    pub fn is_ready(&mut self, world: &World) -> Result<bool> {
        self.connected()?;
        self.look(world)?;
        Ok(self.tail - self.head < self.count)
    }

    /// Returns whether there are pushed ones.
    pub fn is_pushed(&mut self, world: &World) -> Result<bool> {
        self.connected()?;
        self.look(world)?;
        Ok(self.tail > self.head)
    }

    /// Segments that were given back, that were pushed, and whose puts are over, each modulo how many there are.
    pub fn counts(&mut self, world: &World) -> Result<[u64; 3]> {
        self.connected()?;
        self.look(world)?;
        Ok([self.head % self.count, self.tail % self.count, self.sent % self.count])
    }

    /// The peer learns of it as soon as it is connected.
    pub fn leave(&mut self) -> Result<()> {
        if self.wants_to_leave {
            return Err(Error::refused("the segmented buffer was disconnected"));
        }
        self.wants_to_leave = true;
        Ok(())
    }

    /// Frees the end, if both ranks have disconnected; false while the peer has not.
    ///
    /// # Errors
    /// Refused: this rank has not disconnected.
    pub fn free(&mut self, with: &mut With<'_, 'w>) -> Result<bool> {
        if !self.wants_to_leave {
            return Err(Error::refused("the segmented buffer is not disconnected"));
        }
        self.go_on(with)?;
        let is_over = self.has_left && self.peer_has_left();
        if !is_over || !self.last.map_or(Ok(true), |last| with.world.is_complete(last))? {
            return Ok(false);
        }
        with.world.unregister(self.key)?;
        with.arena.give(self.block, BLOCK);
        Ok(true)
    }
}
