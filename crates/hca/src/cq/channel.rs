//! Where programs wait: completion channels and the async events of a context. Both are pipes, so that they can be
//! polled, put in epoll and made non-blocking; a new event is a new write, and so a fresh edge.

use crate::cq::Cq;
use crate::cq::peer_events::write_event;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::process::Process;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

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

/// A pair of stream sockets, the second of which never blocks: like a pipe, and a byte can be taken back without waiting.
fn stream_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: as in `pipe`.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) != 0 {
            return Err(Error::last_os("cannot make an event socket"));
        }
        libc::fcntl(fds[1], libc::F_SETFL, libc::O_NONBLOCK);
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// Reads one message of the size of `T`. Blocks, or EAGAIN, as the program set the descriptor. A cancellation point, as the
/// program expects of a blocking call, so nothing with a destructor lives across it in the callers.
fn read_message<T: Copy + Default>(fd: RawFd) -> Result<T> {
    let mut message = T::default();
    // SAFETY: reads at most the size of `message` into it; T is a plain integer here.
    let n = unsafe { libc::read(fd, (&raw mut message).cast(), size_of::<T>()) };
    if n == size_of::<T>() as isize {
        return Ok(message);
    }
    if n < 0 {
        // EINTR too goes to the caller, as from the kernel's event files.
        return Err(Error::last_os("no event"));
    }
    Err(Error::new(libc::EIO, "the event pipe is closed"))
}

fn write_message<T: Copy>(fd: RawFd, message: T) -> bool {
    // SAFETY: writes a plain integer; below PIPE_BUF it is written whole or not at all. The read end is open as long as the
    // write end, so no SIGPIPE.
    unsafe { libc::write(fd, (&raw const message).cast(), size_of::<T>()) == size_of::<T>() as isize }
}

/// Events told to the program and acknowledged by it, of one object. Destroying the object waits until they balance.
#[derive(Default)]
pub struct EventCount {
    reported: AtomicU32,
    acked: AtomicU32,
    completions: AtomicU32,
    completions_acked: AtomicU32,
}

impl EventCount {
    /// The program has acknowledged one async event.
    pub fn ack(&self) {
        self.acked.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn ack_completions(&self, n: u32) {
        self.completions_acked.fetch_add(n, Ordering::Release);
    }

    /// Waits until every async event told was acknowledged. More acknowledgements than events do no harm (fio does that).
    pub(crate) fn wait(&self) {
        wait_for(&self.reported, &self.acked);
    }

    /// The same for completion events.
    pub(crate) fn wait_completions(&self) {
        wait_for(&self.completions, &self.completions_acked);
    }
}

fn wait_for(reported: &AtomicU32, acked: &AtomicU32) {
    // The count may wrap: compare as a distance.
    while (acked.load(Ordering::Acquire).wrapping_sub(reported.load(Ordering::Acquire)) as i32) < 0 {
        std::thread::sleep(std::time::Duration::from_micros(100));
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
    pub(crate) fn create() -> Result<Arc<CompChannel>> {
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
        if !write_event(self.write.as_raw_fd(), id) {
            self.cqs.lock().backlog.push_back(id);
        }
    }

    /// Waits for the next event; gives the cookie of its CQ. EAGAIN or EINTR as the descriptor says (`man ibv_get_cq_event`).
    pub fn next_event(&self) -> Result<usize> {
        loop {
            if let Some(process) = Process::current().filter(|p| p.expects_packets()) {
                process.link.wait_for(process, self.read.as_raw_fd())?;
            }
            let id: u64 = read_message(self.read.as_raw_fd())?;
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

    /// Destroys it; EBUSY while CQs report here.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Error::busy("the completion channel is in use by completion queues"));
        }
        Ok(())
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        crate::cq::peer_events::leave(self.number, self.handed_out.load(Ordering::Relaxed));
    }
}

/// What an async event is about: the object's cookie, or a port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A completion queue.
    Cq(usize),
    /// A queue pair.
    Qp(usize),
    /// A shared receive queue.
    Srq(usize),
    /// A port.
    Port(u8),
}

/// An async event (`struct ibv_async_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// `enum ibv_event_type`.
    pub event_type: u32,
    /// What it is about.
    pub element: Element,
}

struct Queued {
    event: AsyncEvent,
    count: Arc<EventCount>,
}

/// The async events of a context. The socket holds one byte for each queued event.
pub(crate) struct AsyncQueue {
    read: OwnedFd,
    write: OwnedFd,
    queue: OwnerLock<VecDeque<Queued>>,
}

impl AsyncQueue {
    pub(crate) fn create() -> Result<AsyncQueue> {
        let (read, write) = stream_pair()?;
        Ok(AsyncQueue { read, write, queue: OwnerLock::default() })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    /// In a forked child: its own socket under the same descriptors, and none of the events.
    pub(crate) fn leave_to_parent(&self) -> Result<()> {
        let mut queue = self.queue.lock();
        let (read, write) = stream_pair()?;
        for (own, shared) in [(read, &self.read), (write, &self.write)] {
            // SAFETY: status flags of two descriptors of ours, then one in the place of the other, in one step; what
            // the program polls and set O_NONBLOCK on keeps its number and that flag.
            let rc = unsafe {
                let flags = libc::fcntl(shared.as_raw_fd(), libc::F_GETFL);
                libc::fcntl(own.as_raw_fd(), libc::F_SETFL, flags);
                libc::dup3(own.as_raw_fd(), shared.as_raw_fd(), libc::O_CLOEXEC)
            };
            if rc < 0 {
                return Err(Error::last_os("cannot replace the descriptor of async events"));
            }
        }
        queue.clear();
        Ok(())
    }

    pub(crate) fn push(&self, event: AsyncEvent, count: &Arc<EventCount>) {
        let mut queue = self.queue.lock();
        if write_message(self.write.as_raw_fd(), 1u8) {
            queue.push_back(Queued { event, count: Arc::clone(count) });
        }
    }

    pub(crate) fn next(&self) -> Result<AsyncEvent> {
        loop {
            read_message::<u8>(self.read.as_raw_fd())?;
            if let Some(queued) = self.queue.lock().pop_front() {
                queued.count.reported.fetch_add(1, Ordering::Release);
                return Ok(queued.event);
            }
        }
    }

    /// Drops the events about an object that is being destroyed, with their bytes.
    pub(crate) fn forget(&self, element: Element) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|q| q.event.element != element);
        for _ in queue.len()..before {
            let mut byte = 0u8;
            // SAFETY: takes at most one byte of our own socket into a local variable. A reader in another thread may have
            // taken it: then that one finds the queue shorter and waits on.
            unsafe { libc::recv(self.read.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
        }
    }
}
