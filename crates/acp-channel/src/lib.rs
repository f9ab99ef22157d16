//! ACP's messages between ranks: channels, segmented buffers, and workspaces over many ranks, on global memory only.
//!
//! Nothing goes on by itself: requests go on while some thread of the rank is in a call here.

mod channel;
mod mail;
mod memory;
mod ring;
mod segments;
mod slab;
mod typed;
mod workspace;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vervain_acp::{Error, Handle, Result, World};

use crate::channel::{End, Request, What, With};
use crate::mail::Mail;
use crate::memory::{Arena, Foreign};
use crate::segments::Segments;
use crate::slab::Slab;

pub use crate::slab::Id;
pub use crate::typed::{Receiver, Sender};
pub use crate::workspace::{Block, Workspace};

/// How long a thread looks by itself; then [`World::wait_until`] looks for another moment, and sleeps.
const LOOK: Duration = Duration::from_micros(20);
/// The first time that it sleeps, if nobody wakes it, and the longest.
const NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(16);
/// Looks at what is waited for, for each one at everything.
const LOOKS: u32 = 32;

/// The channels, segmented buffers and workspaces of this rank. Threads share it.
pub struct Channels<'w> {
    world: &'w World,
    state: Mutex<Option<State<'w>>>,
    /// Changes when a request is over, which another thread may wait for.
    finished: Arc<AtomicU64>,
    /// Where the next workspace begins, and the bytes of its blocks.
    pub(crate) workspaces: Mutex<(u32, usize)>,
}

struct State<'w> {
    arena: Arena<'w>,
    mail: Mail<'w>,
    ends: Slab<End<'w>>,
    requests: Slab<Request>,
    /// Ends that have something to go on with.
    active: Vec<Id>,
    buffers: Slab<Segments<'w>>,
    /// As of ends.
    active_buffers: Vec<Id>,
    finished: Arc<AtomicU64>,
    /// Changes when something has come from a peer.
    moved: u64,
    /// How often a program has asked.
    asked: u32,
    /// How often in a row the answer to a program that may ask until it is yes was no.
    misses: u32,
}

impl<'w> State<'w> {
    fn new(world: &'w World, finished: &Arc<AtomicU64>) -> Result<Self> {
        let mut arena = Arena::new(world)?;
        let mail = Mail::new(world, &mut arena)?;
        Ok(Self {
            arena,
            mail,
            ends: Slab::new(),
            requests: Slab::new(),
            active: vec![],
            buffers: Slab::new(),
            active_buffers: vec![],
            finished: finished.clone(),
            moved: 0,
            asked: 0,
            misses: 0,
        })
    }

    #[inline]
    fn split(&mut self, world: &'w World) -> (&mut Slab<End<'w>>, With<'_, 'w>) {
        let Self { arena, mail, ends, requests, finished, moved, .. } = self;
        (ends, With { world, arena, mail, requests, finished, moved })
    }

    /// Goes on with one end.
    #[inline]
    fn go_on_with(&mut self, world: &'w World, id: Id) -> Result<()> {
        let (ends, mut with) = self.split(world);
        let Some(end) = ends.get(id) else { return Ok(()) };
        if !end.go_on(&mut with)? {
            ends.remove(id);
        } else if end.is_busy() && !end.is_active {
            end.is_active = true;
            self.active.push(id);
        }
        Ok(())
    }

    /// Goes on with everything.
    fn go_on(&mut self, world: &'w World) -> Result<()> {
        self.mail.go_on(world)?;
        let mut at = 0;
        while let Some(id) = self.active.get(at).copied() {
            self.go_on_with(world, id)?;
            match self.ends.get(id) {
                Some(end) if end.is_busy() => at += 1,
                Some(end) => {
                    end.is_active = false;
                    self.active.swap_remove(at);
                }
                None => drop(self.active.swap_remove(at)),
            }
        }
        let Self { arena, mail, requests, finished, moved, buffers, active_buffers, .. } = self;
        let mut with = With { world, arena, mail, requests, finished, moved };
        let mut at = 0;
        while let Some(id) = active_buffers.get(at).copied() {
            let busy = buffers.get(id).is_some_and(|buffer| buffer.is_busy());
            if let Some(buffer) = buffers.get(id).filter(|_| busy) {
                buffer.go_on(&mut with)?;
                at += 1;
            } else {
                active_buffers.swap_remove(at);
            }
        }
        Ok(())
    }

    /// What came of a request, once it is over: then it is gone.
    #[inline]
    fn outcome(&mut self, world: &'w World, request: Id) -> Result<Option<usize>> {
        let Some(found) = self.requests.get(request) else {
            return Err(Error::refused("there is no such request"));
        };
        if found.outcome.is_none() {
            let end = found.end;
            self.go_on_with(world, end)?;
        }
        if self.requests.get(request).is_none_or(|found| found.outcome.is_none()) {
            return Ok(None);
        }
        let outcome = self.requests.remove(request).and_then(|request| request.outcome);
        outcome.map(|outcome| outcome.map_err(Error::refused)).transpose()
    }

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
    /// None are open.
    pub fn new(world: &'w World) -> Self {
        Self { world, state: Mutex::new(None), finished: Arc::default(), workspaces: Mutex::new((0, workspace::BLOCK)) }
    }

    /// The world that they are of.
    pub fn world(&self) -> &'w World {
        self.world
    }

    fn lock(&self) -> MutexGuard<'_, Option<State<'w>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn with<T>(&self, f: impl FnOnce(&mut State<'w>) -> Result<T>) -> Result<T> {
        let mut state = self.lock();
        match &mut *state {
            Some(state) => f(state),
            none => f(none.insert(State::new(self.world, &self.finished)?)),
        }
    }

    /// Creates this rank's end of a channel from rank `sender` to rank `receiver`, which creates the other end; of several of the same
    /// two ranks in the same direction, the first goes with the first, and so on. Returns at once. Each end has 16.1 KiB of
    /// memory, which a sender's end touches with its first message.
    ///
    /// # Errors
    /// Refused: the ranks are the same, neither is this one, or there is no such rank; no memory.
    pub fn create(&self, sender: u32, receiver: u32) -> Result<Id> {
        let (rank, size) = (self.world.rank(), self.world.size());
        if sender.max(receiver) >= size {
            return Err(Error::refused(format!("there is no rank {}: the job has {size}", sender.max(receiver))));
        }
        let (peer, sends) = match rank {
            _ if sender == receiver => {
                return Err(Error::refused(format!("rank {sender} is both sender and receiver")));
            }
            _ if rank == sender => (receiver, true),
            _ if rank == receiver => (sender, false),
            _ => {
                let neither = format!("rank {rank} is neither the sender, {sender}, nor the receiver, {receiver}");
                return Err(Error::refused(neither));
            }
        };
        self.with(|state| {
            let (ends, mut with) = state.split(self.world);
            let end = End::new(&mut with, peer, sends)?;
            let id = ends.insert(end);
            state.go_on_with(self.world, id)?;
            Ok(id)
        })
    }

    /// Goes on with a new request of an end.
    #[inline]
    fn ask(&self, end: Id, what: What) -> Result<Id> {
        self.with(|state| {
            let Some(found) = state.ends.get(end) else { return Err(Error::refused("there is no such channel")) };
            let id = found.ask(&mut state.requests, end, what)?;
            state.go_on_with(self.world, end)?;
            Ok(id)
        })
    }

    /// Begins to send `len` bytes. Messages arrive in the order in which they were begun.
    ///
    /// # Safety
    /// The bytes are mapped until the request was [waited](Channels::wait) for, and nobody stores there or has a reference to them that
    /// excludes others.
    ///
    /// # Errors
    /// Refused: there is no such channel, this rank is not its sender, or it was freed.
    #[inline]
    pub unsafe fn begin_send(&self, channel: Id, start: *const u8, len: usize) -> Result<Id> {
        self.ask(channel, What::Send(Foreign { start: start.cast_mut(), len }))
    }

    /// Begins to receive a message of at most `len` bytes; what is longer is cut off.
    ///
    /// # Safety
    /// The bytes are mapped until the request was [waited](Channels::wait) for, and nobody uses them.
    ///
    /// # Errors
    /// Refused: there is no such channel, this rank is not its receiver, or it was freed.
    #[inline]
    pub unsafe fn begin_receive(&self, channel: Id, start: *mut u8, len: usize) -> Result<Id> {
        self.ask(channel, What::Receive(Foreign { start, len }))
    }

    /// Sends `len` bytes, and waits until they may be used again.
    ///
    /// # Safety
    /// The bytes are mapped, and nobody stores there or has a reference to them that excludes others.
    ///
    /// # Errors
    /// As [`begin_send`](Channels::begin_send) and [`wait`](Channels::wait).
    #[inline]
    pub unsafe fn send(&self, channel: Id, start: *const u8, len: usize) -> Result<()> {
        self.ask_and_wait(channel, What::Send(Foreign { start: start.cast_mut(), len })).map(drop)
    }

    /// Waits for a message, and returns how many bytes of it are stored: of at most `len`, the first ones.
    ///
    /// # Safety
    /// The bytes are mapped, and nobody uses them.
    ///
    /// # Errors
    /// As [`begin_receive`](Channels::begin_receive) and [`wait`](Channels::wait).
    #[inline]
    pub unsafe fn receive(&self, channel: Id, start: *mut u8, len: usize) -> Result<usize> {
        self.ask_and_wait(channel, What::Receive(Foreign { start, len }))
    }

    #[inline]
    fn ask_and_wait(&self, channel: Id, what: What) -> Result<usize> {
        let mut request = None;
        self.wait_for(|state, world| {
            let id = match request {
                Some(id) => id,
                None => {
                    let Some(end) = state.ends.get(channel) else {
                        return Err(Error::refused("there is no such channel"));
                    };
                    *request.insert(end.ask(&mut state.requests, channel, what)?)
                }
            };
            state.outcome(world, id)
        })
    }

    /// Begins to free an end: it is over when the other end is freed too. Messages that were begun before are sent; what was sent and
    /// not received is lost. The end takes no requests any more.
    ///
    /// # Errors
    /// Refused: there is no such channel, or it was freed.
    pub fn begin_free(&self, channel: Id) -> Result<Id> {
        self.ask(channel, What::Free)
    }

    /// Frees an end as [`begin_free`](Channels::begin_free), for whom nobody waits.
    pub(crate) fn free_later(&self, channel: Id) -> Result<()> {
        self.with(|state| {
            let Some(found) = state.ends.get(channel) else { return Err(Error::refused("there is no such channel")) };
            let id = found.ask(&mut state.requests, channel, What::Free)?;
            if let Some(request) = state.requests.get(id) {
                request.is_detached = true;
            }
            state.go_on_with(self.world, channel)
        })
    }

    /// Waits for a request, which is gone then, and returns the bytes that were received; 0 for others.
    ///
    /// # Errors
    /// Refused: there is no such request; the sender has freed the channel before there was a message. Else the job is broken.
    #[inline]
    pub fn wait(&self, request: Id) -> Result<usize> {
        self.wait_for(|state, world| state.outcome(world, request))
    }

    /// Creates this rank's end of a segmented buffer with `peer`: `count` segments of `size` bytes at `start`. Ends of the same two ranks
    /// in the same direction are matched in the order of their creation. Returns at once.
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
        self.with(|state| {
            let (_, mut with) = state.split(self.world);
            // SAFETY: handed on to the caller.
            let made = unsafe { Segments::new(&mut with, peer, Foreign { start, len }, size, count, is_source)? };
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

    /// Whether both ends are there, and this one was not disconnected.
    ///
    /// # Errors
    /// As [`connect_buffer`](Channels::connect_buffer).
    pub fn is_buffer_connected(&self, id: Id) -> Result<bool> {
        self.is(id, |buffer, _| buffer.is_connected())
    }

    /// An answer about an end, for programs that ask until it is yes: the others go on meanwhile, since the peer may wait for one of
    /// them.
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

    /// The source's: pushes the segment at the tail, which is there before its count is. It waits only where eight are under way.
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

    /// Whether a segment is free, as far as this rank knows.
    ///
    /// # Errors
    /// Refused: this is no connected end.
    pub fn is_segment_ready(&self, id: Id) -> Result<bool> {
        self.is(id, Segments::is_ready)
    }

    /// Whether a segment is pushed and was not given back, as far as this rank knows.
    ///
    /// # Errors
    /// Refused: this is no connected end.
    pub fn is_segment_pushed(&self, id: Id) -> Result<bool> {
        self.is(id, Segments::is_pushed)
    }

    /// How many segments were given back, were pushed, and of the source how many have arrived; each modulo how many there are.
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

    /// Goes on with everything until `look` finds something.
    #[inline]
    fn wait_for<T>(&self, mut look: impl FnMut(&mut State<'w>, &'w World) -> Result<Option<T>>) -> Result<T> {
        let mut began: Option<Instant> = None;
        let (mut nap, mut seen) = (NAP, 0);
        loop {
            let (found, moved) = self.with(|state| {
                for _ in 0..LOOKS {
                    if let Some(found) = look(state, self.world)? {
                        return Ok((Some(found), 0));
                    }
                    std::hint::spin_loop();
                }
                state.go_on(self.world)?;
                Ok((look(state, self.world)?, state.moved))
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
            if moved != seen {
                // A long message comes: the rest of it soon.
                (began, nap, seen) = (None, NAP, moved);
            }
            // Puts whose order waits go on by this, too.
            self.world.all_complete()?;
            let now = Instant::now();
            if now - *began.get_or_insert(now) > LOOK {
                self.sleep(nap)?;
                nap = (nap * 2).min(LONGEST_NAP);
            }
        }
    }

    /// Sleeps until there is something to go on with, or for so long.
    #[cold]
    fn sleep(&self, most: Duration) -> Result<()> {
        let finished = self.finished.load(Ordering::Acquire);
        let (watched, handle) = self.with(|state| {
            let mut handle = state.mail.handle();
            for id in &state.active {
                if let Some(end) = state.ends.get(*id) {
                    end.ask_to_be_woken(self.world)?;
                }
            }
            // What is watched is as it was seen here, and what has come before is gone on with after that.
            let mut watched = vec![];
            let mut note = |word: &'w AtomicU64| watched.push((word, word.load(Ordering::Acquire)));
            note(state.mail.watched());
            for id in &state.active {
                if let Some(end) = state.ends.get(*id) {
                    end.watched(&mut note);
                }
            }
            for id in &state.active_buffers {
                if let Some(buffer) = state.buffers.get(*id) {
                    buffer.watched(&mut note);
                }
            }
            state.go_on(self.world)?;
            for id in &state.active {
                handle = handle.max(state.ends.get(*id).and_then(|end| end.awaited()));
            }
            Ok((watched, handle))
        })?;
        // What is over already is gone on with by now. One that stays under way for long keeps nobody from what comes meanwhile.
        let handle = handle.filter(|_| self.awaits(handle));
        let began = Instant::now();
        self.world.wait_until(most, handle, || {
            watched.iter().any(|(word, was)| word.load(Ordering::Acquire) != *was)
                || self.finished.load(Ordering::Acquire) != finished
                || began.elapsed() >= most
        })
    }

    /// Whether it is not over, so far as that can be told.
    fn awaits(&self, handle: Option<Handle>) -> bool {
        handle.is_some_and(|handle| matches!(self.world.is_complete(handle), Ok(false)))
    }
}
