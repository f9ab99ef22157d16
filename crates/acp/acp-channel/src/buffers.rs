//! Segmented buffers, as the program has them.

use vervain_acp::{Error, Result, World};

use crate::channel::With;
use crate::memory::Foreign;
use crate::segments::Segments;
use crate::slab::Id;
use crate::{Channels, LOOKS, State};

impl<'w> State<'w> {
    /// Calls `f` with an end of a segmented buffer.
    fn buffer<T>(
        &mut self,
        world: &'w World,
        id: Id,
        f: impl FnOnce(&mut Segments<'w>, &mut With<'_, 'w>) -> Result<T>,
    ) -> Result<T> {
        let Self { arena, mail, requests, finished, moved, buffers, .. } = self;
        let mut with = With { world, arena, mail, requests, finished, moved };
        let buffer = buffers.get(id).ok_or_else(|| Error::refused("there is no such segmented buffer"))?;
        f(buffer, &mut with)
    }
}

impl<'w> Channels<'w> {
    /// Creates this rank's end of a segmented buffer with `peer`: `count` segments of `size` bytes at `start`. Ends of
    /// the same two ranks in the same direction are matched in the order of their creation. Returns at once.
    ///
    /// # Safety
    /// The segments are mapped until the end is freed, and nobody has a reference to them that excludes others.
    ///
    /// # Errors
    /// Refused: the peer is this rank or none; no segments; memory that cannot be registered.
    pub unsafe fn create_buffer(
        &self,
        peer: u32,
        start: *mut u8,
        size: usize,
        count: usize,
        is_source: bool,
    ) -> Result<Id> {
        let ranks = self.world.size();
        if peer >= ranks {
            return Err(Error::refused(format!("there is no rank {peer}: the job has {ranks}")));
        }
        if peer == self.world.rank() {
            return Err(Error::refused(format!("rank {peer} is both source and destination")));
        }
        let len = size.checked_mul(count).filter(|len| *len > 0);
        let len = len.ok_or_else(|| Error::refused(format!("{count} segments of {size} B are no segments")))?;
        let memory = Foreign::new(start, len)?;
        self.with(|state| {
            let (_, mut with) = state.split(self.world);
            // SAFETY: handed on to the caller.
            let made = unsafe { Segments::new(&mut with, peer, memory, size, count, is_source)? };
            let id = state.buffers.insert(made);
            state.active_buffers.push(id);
            Ok(id)
        })
    }

    fn buffer<T>(&self, id: Id, f: impl FnOnce(&mut Segments<'w>, &mut With<'_, 'w>) -> Result<T>) -> Result<T> {
        self.with(|state| state.buffer(self.world, id, f))
    }

    /// Waits until both ends are there.
    ///
    /// # Errors
    /// Refused: there is no such end, it was disconnected, or the other one has other sizes.
    pub fn connect_buffer(&self, id: Id) -> Result<()> {
        self.wait_for(|state, world| {
            state.buffer(world, id, |buffer, with| {
                buffer.go_on(with)?;
                if buffer.is_connected()? {
                    return Ok(Some(()));
                }
                if buffer.is_left() { Err(Error::refused("the segmented buffer was disconnected")) } else { Ok(None) }
            })
        })
    }

    /// Returns whether both ends are there, and this one was not disconnected.
    ///
    /// # Errors
    /// As [`connect_buffer`](Channels::connect_buffer).
    pub fn is_buffer_connected(&self, id: Id) -> Result<bool> {
        self.is(id, |buffer, _| buffer.is_connected())
    }

    /// An answer about an end, for programs that ask until it is yes: the others go on meanwhile, since the peer may
    /// wait for one of them.
    fn is(&self, id: Id, mut ask: impl FnMut(&mut Segments<'w>, &'w World) -> Result<bool>) -> Result<bool> {
        self.with(|state| {
            let mut yes = state.buffer(self.world, id, |buffer, with| ask(buffer, with.world))?;
            state.asked = state.asked.wrapping_add(1);
            // Now and then where it is yes, too: that may be all that a program asks.
            if !yes || state.asked.is_multiple_of(LOOKS) {
                state.go_on(self.world)?;
                yes = state.buffer(self.world, id, |buffer, with| ask(buffer, with.world))?;
            }
            state.misses = if yes { 0 } else { state.misses + 1 };
            if state.misses > 100 {
                state.misses = 0;
                // The processor, too.
                std::thread::yield_now();
            }
            Ok(yes)
        })
    }

    /// The source's: pushes the segment at the tail, which is there before its count is. It waits only where eight are
    /// under way.
    ///
    /// # Errors
    /// Refused: all are pushed; this is no connected end of a source.
    pub fn push_segment(&self, id: Id) -> Result<()> {
        self.buffer(id, |buffer, with| buffer.push(with.world))
    }

    /// The destination's: gives the segment at the head back. It waits for nothing.
    ///
    /// # Errors
    /// Refused: none has come; this is no connected end of a destination.
    pub fn give_segment_back(&self, id: Id) -> Result<()> {
        self.buffer(id, |buffer, with| buffer.give_back(with.world))
    }

    /// Returns whether a segment is free, as far as this rank knows.
    ///
    /// # Errors
    /// Refused: this is no connected end.
    pub fn is_segment_ready(&self, id: Id) -> Result<bool> {
        self.is(id, Segments::is_ready)
    }

    /// Returns whether a segment is pushed and was not given back, as far as this rank knows.
    ///
    /// # Errors
    /// Refused: this is no connected end.
    pub fn is_segment_pushed(&self, id: Id) -> Result<bool> {
        self.is(id, Segments::is_pushed)
    }

    /// The numbers of segments that were given back, that were pushed, and, at the source, that have arrived; each
    /// modulo the number of segments.
    ///
    /// # Errors
    /// Refused: this is no connected end.
    pub fn segment_counts(&self, id: Id) -> Result<[u64; 3]> {
        self.buffer(id, |buffer, with| buffer.counts(with.world))
    }

    /// Disconnects this end; the peer learns of it once it is connected. Segments that were pushed still arrive.
    ///
    /// # Errors
    /// Refused: there is no such end, or it was disconnected.
    pub fn disconnect_buffer(&self, id: Id) -> Result<()> {
        self.with(|state| {
            state.buffer(self.world, id, |buffer, with| {
                buffer.leave()?;
                buffer.go_on(with)
            })?;
            state.active_buffers.push(id);
            Ok(())
        })
    }

    /// Waits until the peer has disconnected too, and frees this end.
    ///
    /// # Errors
    /// Refused: there is no such end, or this rank has not disconnected it.
    pub fn free_buffer(&self, id: Id) -> Result<()> {
        self.wait_for(|state, world| {
            let is_free = state.buffer(world, id, |buffer, with| buffer.free(with))?;
            if is_free {
                state.buffers.remove(id);
            }
            Ok(is_free.then_some(()))
        })
    }
}
