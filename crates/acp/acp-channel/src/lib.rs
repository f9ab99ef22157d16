//! ACP's messages between ranks: channels, segmented buffers, and workspaces over many ranks, on global memory only.
//!
//! Nothing goes on by itself: requests go on while some thread of the rank is in a call here.

mod buffers;
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
pub use crate::workspace::{Block, Workspace, Workspaces};

/// Time for which a thread looks by itself; then [`World::wait_until`] looks for another moment, and sleeps.
const LOOK: Duration = Duration::from_micros(20);
/// The first time that it sleeps, if nobody wakes it, and the longest.
const NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(16);
/// Looks at what is waited for, for each one at everything.
const LOOKS: u32 = 32;

/// The channels and segmented buffers of this rank. Threads share it.
pub struct Channels<'w> {
    world: &'w World,
    state: Mutex<Option<State<'w>>>,
    /// Changes when a request is over, which another thread may wait for.
    finished: Arc<AtomicU64>,
}

struct State<'w> {
    arena: Arena<'w>,
    mail: Mail<'w>,
    ends: Slab<End<'w>>,
    requests: Slab<Request>,
    /// Ends that have something to go on with.
    active: Vec<Id>,
    buffers: Slab<Segments<'w>>,
    /// The same for ends of buffers.
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

    /// The result of a request that is over, which goes with it; None while it goes on.
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
}

impl<'w> Channels<'w> {
    /// Channels without any open end.
    pub fn new(world: &'w World) -> Self {
        Self { world, state: Mutex::new(None), finished: Arc::default() }
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

    /// Creates this rank's end of a channel from rank `sender` to rank `receiver`, which creates the other end; of
    /// several of the same two ranks in the same direction, the first goes with the first, and so on. Returns at once.
    /// Each end has 16.1 KiB of memory, which a sender's end touches with its first message.
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
    /// The bytes are mapped until the request was [waited](Channels::wait) for, and nobody stores there or has a
    /// reference to them that excludes others.
    ///
    /// # Errors
    /// Refused: there is no such channel, this rank is not its sender, or it was freed; bytes at null.
    #[inline]
    pub unsafe fn begin_send(&self, channel: Id, start: *const u8, len: usize) -> Result<Id> {
        self.ask(channel, What::Send(Foreign::new(start.cast_mut(), len)?))
    }

    /// Begins to receive a message of at most `len` bytes; what is longer is cut off.
    ///
    /// # Safety
    /// The bytes are mapped until the request was [waited](Channels::wait) for, and nobody uses them.
    ///
    /// # Errors
    /// Refused: there is no such channel, this rank is not its receiver, or it was freed; bytes at null.
    #[inline]
    pub unsafe fn begin_receive(&self, channel: Id, start: *mut u8, len: usize) -> Result<Id> {
        self.ask(channel, What::Receive(Foreign::new(start, len)?))
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
        self.ask_and_wait(channel, What::Send(Foreign::new(start.cast_mut(), len)?)).map(drop)
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
        self.ask_and_wait(channel, What::Receive(Foreign::new(start, len)?))
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

    /// Begins to free an end: it is over when the other end is freed too. Messages that were begun before are sent;
    /// what was sent and not received is lost. The end takes no requests any more.
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
    /// Refused: there is no such request; the sender has freed the channel before there was a message. Else the job is
    /// broken.
    #[inline]
    pub fn wait(&self, request: Id) -> Result<usize> {
        self.wait_for(|state, world| state.outcome(world, request))
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
            // The watched words must have the values that were seen here. Records that came before are handled after
            // that.
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
        // Accesses that are over have been handled by now. One that takes long keeps no later record waiting.
        let handle = handle.filter(|_| self.awaits(handle));
        let began = Instant::now();
        self.world.wait_until(most, handle, || {
            watched.iter().any(|(word, was)| word.load(Ordering::Acquire) != *was)
                || self.finished.load(Ordering::Acquire) != finished
                || began.elapsed() >= most
        })
    }

    /// Returns true if it is not over, so far as that can be told.
    fn awaits(&self, handle: Option<Handle>) -> bool {
        handle.is_some_and(|handle| matches!(self.world.is_complete(handle), Ok(false)))
    }
}
