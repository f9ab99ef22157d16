//! Completion queues and the channels that tell a sleeper of them.

use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use vervain_abi::*;

use crate::completion::Completion;
use crate::device::{Context, set_nonblocking};
use crate::error::{Error, Result, check, code};

/// Which CQ an event is about: a number that no other CQ of this process has or had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqId(usize);

impl CqId {
    pub(crate) fn of(cq_context: *mut c_void) -> Self {
        Self(cq_context as usize)
    }
}

/// A completion queue. QPs that complete into it keep it.
#[derive(Clone)]
pub struct Cq(pub(crate) Arc<CqInner>);

pub(crate) struct CqInner {
    pub raw: *mut ibv_cq,
    pub context: Context,
    id: CqId,
    poll: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    notify: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    /// Events that were taken and whose acknowledgement was put off.
    owed: AtomicU32,
    /// Kept while this is: the library writes its events there.
    channel: Option<CompChannel>,
}

// SAFETY: the functions of libibverbs may be called from any thread, and lock a CQ while they poll it.
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.acknowledge(self.owed.load(Ordering::Relaxed));
        // SAFETY: created once, destroyed once; QPs hold an Arc of this, so none uses it. The library waits for events
        // that are not acknowledged yet.
        if unsafe { (self.context.0.library.0.cq.destroy)(self.raw) } != 0 {
            // The CQ could not be destroyed, so its users still need these.
            mem::forget((self.context.clone(), self.channel.clone()));
        }
    }
}

impl CqInner {
    /// Acknowledges as many events, which were taken and not acknowledged before.
    fn acknowledge(&self, events: u32) {
        if events > 0 {
            // SAFETY: a CQ that is not destroyed yet (ibv_ack_cq_events(3)).
            unsafe { (self.context.0.library.0.cq.ack_events)(self.raw, events) };
        }
    }
}

impl Cq {
    /// A CQ with room for at least `entries` completions (1 to [`max_cqe`](crate::DeviceAttr::max_cqe)); with a
    /// channel, one that events can be asked of. `vector` is the number of the interrupt that serves it, from 0;
    /// `ibv_create_cq(3)`.
    ///
    /// # Errors
    /// EINVAL: entries or vector out of range. ENOMEM. A channel of another device.
    pub fn new(context: &Context, entries: u32, channel: Option<&CompChannel>, vector: u32) -> Result<Cq> {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let about = || format!("a CQ of {entries} entries on {}", context.name());
        if channel.is_some_and(|c| !Arc::ptr_eq(&c.0.context.0, &context.0)) {
            return Err(Error::invalid(format!("the channel for {} is of another open device", about())));
        }
        let ops = context.0.ops();
        let (Some(poll), Some(notify)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(Error::library(format!("the driver of {} cannot poll a CQ", context.name())));
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let raw_channel = channel.map_or(ptr::null_mut(), |c| c.0.raw);
        let number = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
        let create = context.0.library.0.cq.create;
        // SAFETY: an open context, and a channel of it or none, which this keeps; the cookie is a number, never
        // followed.
        let raw = unsafe {
            create(context.0.raw, number(entries), ptr::without_provenance_mut(id), raw_channel, number(vector))
        };
        if raw.is_null() {
            return Err(Error::last("ibv_create_cq", about()));
        }
        let context = context.clone();
        let (id, owed, channel) = (CqId(id), AtomicU32::new(0), channel.cloned());
        Ok(Cq(Arc::new(CqInner { raw, context, id, poll, notify, owed, channel })))
    }

    /// Which one it is in events.
    pub fn id(&self) -> CqId {
        self.0.id
    }

    /// Completions that it has room for: what was asked for, or more. With one too many it is in error for good.
    pub fn capacity(&self) -> u32 {
        // SAFETY: a CQ that lives as long as `self`; only resizing, which this crate does not do, writes the field.
        u32::try_from(unsafe { (*self.0.raw).cqe }).unwrap_or(0)
    }

    /// Takes completions from the queue into the front of `into`, oldest first, as many as there are and fit; returns
    /// their number. Does not wait; `ibv_poll_cq(3)`.
    ///
    /// # Errors
    /// The driver's; after an overrun the CQ cannot be used any more.
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: a CQ that lives as long as `self`, and `room` completions, each of the layout that the call fills.
        let found = unsafe { (self.0.poll)(self.0.raw, room, into.as_mut_ptr().cast()) };
        usize::try_from(found).map_err(|_| self.poll_failed(found))
    }

    #[cold]
    fn poll_failed(&self, rc: c_int) -> Error {
        Error::call("ibv_poll_cq", format!("a CQ on {}", self.0.context.name()), code(rc))
    }

    /// Asks for one event on the CQ's channel for the next completion; with `solicited`, for the next one whose sender
    /// asked for it, or that failed. Poll once more afterwards, for what came before; `ibv_req_notify_cq(3)`.
    ///
    /// # Errors
    /// The driver's. A CQ that was made without a channel.
    pub fn request_notify(&self, solicited: bool) -> Result<()> {
        if self.0.channel.is_none() {
            return Err(Error::invalid("a CQ without a channel was asked for an event"));
        }
        // SAFETY: a CQ that lives as long as `self`.
        let rc = unsafe { (self.0.notify)(self.0.raw, solicited.into()) };
        check(rc, "ibv_req_notify_cq", || format!("a CQ on {}", self.0.context.name()))
    }
}

/// A completion channel: where events of CQs arrive; `ibv_create_comp_channel(3)`. CQs made with it keep it.
#[derive(Clone)]
pub struct CompChannel(Arc<ChannelInner>);

struct ChannelInner {
    raw: *mut ibv_comp_channel,
    context: Context,
}

// SAFETY: the functions of libibverbs may be called from any thread; `raw` and what it points to are only read.
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; CQs hold an Arc of this, so none uses it.
        unsafe { (self.context.0.library.0.cq.destroy_channel)(self.raw) };
    }
}

impl CompChannel {
    /// A channel on this device.
    ///
    /// # Errors
    /// EMFILE: no descriptor left. ENOMEM.
    pub fn new(context: &Context) -> Result<CompChannel> {
        // SAFETY: an open context.
        let raw = unsafe { (context.0.library.0.cq.create_channel)(context.0.raw) };
        if raw.is_null() {
            return Err(Error::last("ibv_create_comp_channel", context.name()));
        }
        Ok(CompChannel(Arc::new(ChannelInner { raw, context: context.clone() })))
    }

    /// Readable when there is an event; for poll(2) and epoll(7).
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library closes it with the channel, which `self` keeps.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw).fd) }
    }

    /// Chooses that [`next_event`](Self::next_event) returns at once if there is no event.
    ///
    /// # Errors
    /// fcntl(2)'s, which no healthy descriptor gives.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        set_nonblocking(self.fd(), on)
    }

    /// Waits for the next event, and takes it; None when there is none and the channel does not block. A signal
    /// handler that ran ends the wait with EINTR; `ibv_get_cq_event(3)`.
    ///
    /// # Errors
    /// EINTR.
    pub fn next_event(&self) -> Result<Option<CqEvent<'_>>> {
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a channel that lives as long as `self`, and two valid places for the answer.
        if unsafe { (self.0.context.0.library.0.cq.get_event)(self.0.raw, &mut cq, &mut cookie) } == 0 {
            return Ok(Some(CqEvent { channel: self, cq, id: CqId::of(cookie) }));
        }
        let error = Error::last("ibv_get_cq_event", self.0.context.name());
        if error.errno() == Some(libc::EAGAIN) { Ok(None) } else { Err(error) }
    }
}

/// An event that was taken; acknowledged on drop, or [later](CqEvent::acknowledge_later). The CQ is not destroyed
/// before: a thread that drops the last handle of it waits.
pub struct CqEvent<'a> {
    channel: &'a CompChannel,
    cq: *mut ibv_cq,
    id: CqId,
}

impl CqEvent<'_> {
    /// Which CQ it is about.
    pub fn cq(&self) -> CqId {
        self.id
    }

    /// Delays the acknowledgement, which takes a lock of `cq`: 64 events are acknowledged together, and the rest when
    /// `cq` is dropped. Useful if there are many events. An event of another CQ is acknowledged now.
    pub fn acknowledge_later(self, cq: &Cq) {
        const BATCH: u32 = 64;
        if cq.id() != self.id {
            return;
        }
        // `cq` pays from now on.
        mem::forget(self);
        if cq.0.owed.fetch_add(1, Ordering::Relaxed) + 1 >= BATCH {
            cq.0.acknowledge(cq.0.owed.swap(0, Ordering::Relaxed));
        }
    }
}

impl Drop for CqEvent<'_> {
    fn drop(&mut self) {
        // SAFETY: the CQ that the event named, which is not destroyed before this acknowledgement
        // (ibv_ack_cq_events(3)).
        unsafe { (self.channel.0.context.0.library.0.cq.ack_events)(self.cq, 1) };
    }
}
