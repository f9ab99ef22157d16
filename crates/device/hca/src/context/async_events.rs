//! Async events of a context (`man ibv_get_async_event`). They wait on a socket, so that it can be polled, put in epoll
//! and made non-blocking; a new event is a new write, and so a fresh edge.

use crate::error::{Error, Result};
use crate::host::cancel::{self, Uncancelled};
use crate::host::lock::OwnerLock;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A pair of stream sockets, the second of which never blocks: like a pipe, and a byte can be taken back without
/// waiting.
fn stream_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fills the two descriptors, which are owned at once; fcntl changes the second one's own description only.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) != 0 {
            return Err(Error::last_os("cannot make an event socket"));
        }
        libc::fcntl(fds[1], libc::F_SETFL, libc::O_NONBLOCK);
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// Reads one message of the size of `T`. Blocks, or EAGAIN, as the program set the descriptor. A cancellation point, as
/// the program expects of a blocking call, so nothing with a destructor lives across it in the callers.
pub(crate) fn read_message<T: Copy + Default>(fd: RawFd) -> Result<T> {
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

/// Events told to the program and acknowledged by it, of one object. Destroying the object waits until they balance.
#[derive(Default)]
pub struct EventCount {
    reported: AtomicU32,
    acked: AtomicU32,
    pub(crate) completions: AtomicU32,
    completions_acked: AtomicU32,
    /// The object is being destroyed: no event of it is queued any more. Changed under the lock of the queue.
    retired: AtomicBool,
}

impl EventCount {
    /// The program has acknowledged one async event.
    pub fn ack(&self) {
        self.acked.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn ack_completions(&self, n: u32) {
        self.completions_acked.fetch_add(n, Ordering::Release);
    }

    /// Waits until every async event told was acknowledged. More acknowledgements than events do no harm (fio does
    /// that).
    pub(crate) fn wait(&self) {
        wait_for(&self.reported, &self.acked);
    }

    /// Waits until every completion event told was acknowledged.
    pub(crate) fn wait_completions(&self) {
        wait_for(&self.completions, &self.completions_acked);
    }
}

fn wait_for(reported: &AtomicU32, acked: &AtomicU32) {
    // The count may wrap: compare as a distance.
    while (acked.load(Ordering::Acquire).wrapping_sub(reported.load(Ordering::Acquire)) as i32) < 0 {
        cancel::nap(std::time::Duration::from_micros(100));
    }
}

/// The subject of an async event: the object's cookie, or a port number.
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
    /// Its subject.
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
        // A thread that found the event before the object was destroyed may get here after it.
        if count.retired.load(Ordering::Relaxed) {
            return;
        }
        // The read end is open as long as the write end, so no SIGPIPE.
        if cancel::write(self.write.as_raw_fd(), 1u8) {
            queue.push_back(Queued { event, count: Arc::clone(count) });
        }
    }

    pub(crate) fn next(&self) -> Result<AsyncEvent> {
        loop {
            read_message::<u8>(self.read.as_raw_fd())?;
            // An event that was read must reach the caller.
            let _whole = Uncancelled::begin();
            if let Some(queued) = self.queue.lock().pop_front() {
                queued.count.reported.fetch_add(1, Ordering::Release);
                return Ok(queued.event);
            }
        }
    }

    /// Drops the events about an object that is being destroyed, with their bytes, and lets no other be queued.
    pub(crate) fn forget(&self, count: &Arc<EventCount>) {
        let mut queue = self.queue.lock();
        count.retired.store(true, Ordering::Relaxed);
        let before = queue.len();
        queue.retain(|q| !Arc::ptr_eq(&q.count, count));
        for _ in queue.len()..before {
            let mut byte = 0u8;
            // SAFETY: takes at most one byte of our own socket into a local variable. A reader in another thread may
            // have taken it: then that one finds the queue shorter and waits on.
            unsafe { libc::recv(self.read.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_destroyed_has_no_events() {
        let queue = AsyncQueue::create().unwrap();
        let [gone, other] = [1, 2].map(|cookie| (Element::Qp(cookie), Arc::<EventCount>::default()));
        let push = |(element, count): &(Element, Arc<EventCount>), event_type| {
            queue.push(AsyncEvent { event_type, element: *element }, count);
        };
        push(&gone, 1);
        push(&other, 2);
        queue.forget(&gone.1);
        // Its thread found it before.
        push(&gone, 3);
        push(&other, 4);
        let next = || queue.next().map(|event| (event.element, event.event_type)).unwrap();
        assert_eq!([next(), next()], [(other.0, 2), (other.0, 4)]);
        assert!(queue.queue.lock().is_empty());
        gone.1.wait();
    }
}
