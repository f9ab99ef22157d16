//! A stream socket: its options, its events, what it waits for, and its end.

mod opening;
mod transfer;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::calls::{Calls, Flags, Options};
use crate::fabric::{Errno, Event, Fabric, Id, IdOption, Kind, Result};
use crate::link::Link;
use crate::protocol::stream::Phase;
use crate::waiting::{Waitable, Waiters, lock, wait};

/// How seldom who asks again and again without waiting looks for events of the connection, which takes a system call.
const LOOK_NS: u64 = 10_000_000;

/// The state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Made.
    New,
    /// It has an address.
    Bound,
    /// It takes requests.
    Listening,
    /// The peer's address is looked for.
    ResolvingAddress,
    /// The way there is.
    ResolvingRoute,
    /// The peer was asked.
    Connecting,
    /// The peer has asked, and was answered.
    Accepting,
    /// It is a stream, or was.
    Open,
    /// There was no connection.
    Failed,
}

impl State {
    fn is_opening(self) -> bool {
        matches!(self, State::ResolvingAddress | State::ResolvingRoute | State::Connecting | State::Accepting)
    }
}

struct Inner {
    state: State,
    /// SO_ERROR.
    error: Option<Errno>,
    tries: u32,
    destination: Option<SocketAddr>,
    /// Requests that were not accepted yet, and how many may wait.
    requests: VecDeque<(Box<dyn Id>, Vec<u8>)>,
    backlog: usize,
}

/// A stream socket.
pub struct StreamSocket {
    // The link before the identifier, whose QP it has.
    link: OnceLock<Link>,
    id: Box<dyn Id>,
    inner: Mutex<Inner>,
    /// Options and waiters.
    pub calls: Calls,
    closed: AtomicBool,
    /// This end has shut down its writing.
    shut: AtomicBool,
    /// True after SO_ERROR was set because the stream is broken.
    noted: AtomicBool,
    /// One sends, one reads; each has what it needs for that.
    sender: Mutex<Vec<u8>>,
    receiver: Mutex<()>,
    /// When events were last looked for (CLOCK_MONOTONIC, ns).
    looked: AtomicU64,
}

fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl StreamSocket {
    /// A new one.
    ///
    /// # Errors
    /// As of rdma_create_id(3).
    pub fn new(fabric: &dyn Fabric) -> Result<StreamSocket> {
        Ok(StreamSocket::of(fabric.identifier(Kind::Stream)?, State::New, Options::default()))
    }

    fn of(id: Box<dyn Id>, state: State, options: Options) -> StreamSocket {
        let (destination, requests) = (None, VecDeque::new());
        let inner = Inner { state, error: None, tries: 0, destination, requests, backlog: 0 };
        StreamSocket {
            link: OnceLock::new(),
            id,
            inner: Mutex::new(inner),
            calls: Calls::new(options),
            closed: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            noted: AtomicBool::new(false),
            sender: Mutex::default(),
            receiver: Mutex::default(),
            looked: AtomicU64::new(0),
        }
    }

    /// The descriptor of its event channel, by which the program names it.
    pub fn descriptor(&self) -> RawFd {
        self.id.descriptor()
    }

    /// Its state.
    pub fn state(&self) -> State {
        lock(&self.inner).state
    }

    /// Its identifier.
    pub fn id(&self) -> &dyn Id {
        &*self.id
    }

    /// Its queues and memory, once there are any.
    pub fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// SO_ERROR, which is no more then.
    pub fn take_error(&self) -> Option<Errno> {
        self.note_broken();
        lock(&self.inner).error.take()
    }

    /// SO_REUSEADDR and IPV6_V6ONLY.
    ///
    /// # Errors
    /// As of rdma_set_option(3).
    pub fn set_option(&self, option: IdOption, value: i32) -> Result<()> {
        self.id.set_option(option, value)
    }

    /// Takes what the connection manager has to say.
    fn look(&self) {
        self.looked.store(now_ns(), Ordering::Relaxed);
        let mut inner = lock(&self.inner);
        let mut changed = false;
        loop {
            let (event, is_last) = match self.id.event() {
                Ok(Some(event)) => (event, false),
                Ok(None) | Err(Errno(libc::EINTR)) => break,
                // The channel itself is broken.
                Err(error) => (Event::Failed(error), true),
            };
            changed = true;
            if let Err(error) = self.take_event(&mut inner, event) {
                if inner.state.is_opening() {
                    inner.state = State::Failed;
                }
                inner.error = Some(error);
                if let Some(link) = self.link.get() {
                    link.break_off(error.0);
                }
            }
            if is_last {
                break;
            }
        }
        drop(inner);
        if changed {
            self.calls.waiters.wake();
        }
    }

    /// A stream that has broken has an error for who asks first.
    fn note_broken(&self) {
        let Some(Phase::Broken(errno)) = self.link.get().map(Link::phase) else { return };
        if !self.noted.swap(true, Ordering::AcqRel) {
            lock(&self.inner).error.get_or_insert(Errno(errno));
        }
    }

    fn wait<T>(
        &self,
        flags: Flags,
        timeout: Option<Duration>,
        mut check: impl FnMut(&mut [libc::pollfd]) -> Option<T>,
    ) -> Result<T> {
        if !self.calls.may_wait(flags) {
            self.progress();
            return match check(&mut []) {
                Some(found) => Ok(found),
                None => {
                    self.look_sometimes();
                    check(&mut []).ok_or(Errno(libc::EAGAIN))
                }
            };
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        wait(&[self], &mut [], deadline, check)?.ok_or(Errno(libc::EAGAIN))
    }

    fn look_sometimes(&self) {
        let opening = !matches!(self.state(), State::Open);
        if opening || now_ns().saturating_sub(self.looked.load(Ordering::Relaxed)) >= LOOK_NS {
            self.look();
        }
    }

    /// shutdown(2). Waits until what was sent has arrived, for as long as SO_LINGER says.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn shut_down(&self, reading: bool, writing: bool) -> Result<()> {
        let link = match self.state() {
            State::Open | State::Accepting => self.stream(Flags::default(), None)?,
            _ => return Err(Errno(libc::ENOTCONN)),
        };
        if writing {
            self.shut.store(true, Ordering::Release);
        }
        link.shut_down(reading, writing);
        self.calls.waiters.wake();
        let deadline = self.calls.with_options(|options| options.linger).map(|linger| Instant::now() + linger);
        // A signal is no reason not to wait for the end.
        while wait(&[self], &mut [], deadline, |_| link.is_done().then_some(())) == Err(Errno(libc::EINTR)) {}
        if link.phase() != Phase::Open {
            self.id.disconnect();
        }
        Ok(())
    }

    /// close(2): what is left of the socket goes when nobody uses it any more.
    pub fn close(&self) {
        let aborts = self.calls.with_options(|options| options.linger) == Some(Duration::ZERO);
        if self.state() == State::Open && !aborts {
            let _ = self.shut_down(true, true);
        }
        self.closed.store(true, Ordering::Release);
        if let Some(link) = self.link.get() {
            link.disconnect();
            self.id.disconnect();
        }
        lock(&self.inner).requests.drain(..).for_each(|(id, _)| id.reject());
        self.calls.waiters.wake();
    }

    /// The events that poll(2) is to report of it.
    pub fn events(&self, interest: i16) -> i16 {
        let found = match (self.state(), self.link.get()) {
            (State::Listening, _) => {
                if lock(&self.inner).requests.is_empty() {
                    0
                } else {
                    libc::POLLIN
                }
            }
            (State::Failed, _) => libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP,
            (State::Open, Some(link)) => {
                let (readable, writable) = link.readiness();
                let over = match link.phase() {
                    Phase::Open => 0,
                    // Programs take it for the end, so it comes after the data.
                    Phase::Disconnected if link.unread() > 0 => 0,
                    Phase::Disconnected => libc::POLLHUP,
                    Phase::Broken(_) => libc::POLLERR | libc::POLLHUP,
                };
                let end = if link.is_receiving() { 0 } else { libc::POLLRDHUP };
                over | end | if readable { libc::POLLIN } else { 0 } | if writable { libc::POLLOUT } else { 0 }
            }
            _ => 0,
        };
        let mut said = found;
        if found & libc::POLLIN != 0 {
            said |= libc::POLLRDNORM;
        }
        if found & libc::POLLOUT != 0 {
            said |= libc::POLLWRNORM;
        }
        said & (interest | libc::POLLERR | libc::POLLHUP)
    }

    /// Looks for events of the connection too, for who asks without waiting.
    pub fn refresh(&self) {
        self.progress();
        self.look_sometimes();
    }

    /// Shows the network whether the peer is there.
    pub fn keep_alive(&self) {
        if let (State::Open, Some(link)) = (self.state(), self.link.get()) {
            link.keep_alive();
        }
    }
}

impl Waitable for StreamSocket {
    fn progress(&self) {
        let Some(link) = self.link.get() else { return };
        let mut changed = link.progress();
        if link.has_failed() {
            // A peer that is gone has said so, to the connection manager or as its last message, and what is still sent
            // to it fails.
            link.progress();
            self.look();
            link.settle();
            changed = true;
        }
        if changed {
            self.calls.waiters.wake();
        }
    }

    fn arm(&self) {
        if let Some(link) = self.link.get() {
            link.arm();
        }
    }

    fn descriptors(&self, into: &mut Vec<libc::pollfd>) {
        let polled = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        into.push(polled(self.id.descriptor()));
        into.extend(self.link.get().map(|link| polled(link.descriptor())));
    }

    fn woken(&self, polled: &[libc::pollfd]) {
        if polled[0].revents != 0 {
            self.look();
        }
        if let (Some(true), Some(link)) = (polled.get(1).map(|one| one.revents != 0), self.link.get()) {
            link.take_event();
            self.calls.waiters.wake();
        }
    }

    fn waiters(&self) -> &Waiters {
        &self.calls.waiters
    }
}
