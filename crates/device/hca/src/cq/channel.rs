//! Completion channels (`man ibv_create_comp_channel`). A channel is a pipe, so that it can be polled, put in epoll and
//! made non-blocking; a new event is a new write, and so a fresh edge.

use crate::context::Context;
use crate::context::async_events::read_message;
use crate::cq::Cq;
use crate::cq::peer_events::write_event;
use crate::error::{Error, Result};
use crate::host::cancel::Uncancelled;
use crate::host::lock::OwnerLock;
use crate::host::signals::SignalsHeld;
use crate::process::Process;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// More bytes than a pipe holds.
const PIPE_ROOM: usize = 1 << 20;

/// A pipe whose write end never blocks.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fills the two descriptors, which are owned at once; fcntl changes the write end's own description only.
    unsafe {
        if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(Error::last_os("cannot make an event pipe"));
        }
        libc::fcntl(fds[1], libc::F_SETFL, libc::O_NONBLOCK);
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// A completion channel.
pub struct CompChannel {
    /// The process that made it.
    process: Option<&'static Process>,
    /// Its number, by which peers ask for it.
    pub(crate) number: u32,
    handed_out: AtomicBool,
    read: OwnedFd,
    write: OwnedFd,
    cqs: OwnerLock<Registered>,
    pub(crate) users: AtomicU32,
}

#[derive(Default)]
struct Registered {
    cqs: Vec<(u32, Weak<Cq>)>,
    next: u32,
    /// Events that found the pipe full.
    backlog: VecDeque<u32>,
}

impl CompChannel {
    /// Makes a channel of `context`.
    pub fn create(context: &Context) -> Result<Arc<CompChannel>> {
        context.process()?;
        CompChannel::new()
    }

    pub(crate) fn new() -> Result<Arc<CompChannel>> {
        let (read, write) = pipe()?;
        let channel = Arc::new(CompChannel {
            process: Process::current(),
            number: crate::cq::peer_events::new_number(),
            handed_out: AtomicBool::new(false),
            read,
            write,
            cqs: OwnerLock::default(),
            users: AtomicU32::new(0),
        });
        crate::cq::peer_events::enter(&channel);
        Ok(channel)
    }

    /// EIO in a forked child that did not make it.
    pub(crate) fn check(&self) -> Result<()> {
        self.process.map_or(Ok(()), Process::check)
    }

    /// Both ends of its pipe, for a peer that writes events itself (`events`). Called by the link.
    pub fn ends(&self) -> [BorrowedFd<'_>; 2] {
        self.handed_out.store(true, Ordering::Relaxed);
        [self.read.as_fd(), self.write.as_fd()]
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    pub(crate) fn register(&self, cq: Weak<Cq>) -> u32 {
        let mut r = self.cqs.lock();
        r.next += 1;
        let id = r.next;
        r.cqs.push((id, cq));
        id
    }

    pub(crate) fn unregister(&self, id: u32) {
        self.cqs.lock().cqs.retain(|(i, _)| *i != id);
    }

    pub(crate) fn post(&self, id: u32) {
        if write_event(self.write.as_raw_fd(), id) {
            return;
        }
        // Once more, now that nobody looks for a backlog: who has just read all there was would look for none again.
        // A post or a poll is under way, and the backlog grows in the allocator.
        let _held = SignalsHeld::begin();
        let mut cqs = self.cqs.lock();
        if !cqs.backlog.is_empty() || !write_event(self.write.as_raw_fd(), id) {
            cqs.backlog.push_back(id);
        }
    }

    /// Waits for the next event; gives the cookie of its CQ. EAGAIN or EINTR as the descriptor says (`man
    /// ibv_get_cq_event`).
    pub fn next_event(&self) -> Result<usize> {
        loop {
            if let Some(process) = Process::current().filter(|p| p.packets.are_expected()) {
                process.packets.wait_for_fd(process, self.read.as_raw_fd())?;
            }
            let id: u64 = read_message(self.read.as_raw_fd())?;
            // An event that was read must reach the caller.
            let _whole = Uncancelled::begin();
            let mut r = self.cqs.lock();
            if let Some(waiting) = r.backlog.pop_front()
                && !write_event(self.write.as_raw_fd(), waiting)
            {
                r.backlog.push_front(waiting);
            }
            // An event of a CQ that was destroyed meanwhile is nobody's.
            if let Some(cq) = r.cqs.iter().find(|(i, _)| u64::from(*i) == id).and_then(|(_, cq)| cq.upgrade()) {
                cq.events.completions.fetch_add(1, Ordering::Release);
                drop(r);
                cq.event_got();
                return Ok(cq.cookie());
            }
        }
    }

    /// The CQs of the events that the program has not read, oldest first.
    pub fn unread(&self) -> Result<Vec<Arc<Cq>>> {
        let (copy, end) = pipe()?;
        // SAFETY: makes what lies in one pipe of ours lie in another too, without taking it or waiting.
        let copied = unsafe { libc::tee(self.read.as_raw_fd(), end.as_raw_fd(), PIPE_ROOM, libc::SPLICE_F_NONBLOCK) };
        let mut ids = Vec::new();
        for _ in 0..copied.max(0) as usize / size_of::<u64>() {
            ids.push(read_message::<u64>(copy.as_raw_fd())?);
        }
        let r = self.cqs.lock();
        ids.extend(r.backlog.iter().map(|id| u64::from(*id)));
        let with = |id: u64| r.cqs.iter().find(|(i, _)| u64::from(*i) == id).and_then(|(_, cq)| cq.upgrade());
        Ok(ids.into_iter().filter_map(with).collect())
    }

    /// Destroys it; EBUSY while CQs report here.
    pub fn destroy(&self) -> Result<()> {
        let users = self.users.load(Ordering::Acquire);
        if users != 0 {
            return Err(Error::busy(format!("completion queues use the completion channel: {users}")));
        }
        Ok(())
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        crate::cq::peer_events::leave(self.number, self.handed_out.load(Ordering::Relaxed));
    }
}
