//! A stream socket: from its making over bind, listen, accept or connect to its end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use crate::fabric::{Errno, Event, Fabric, Id, IdOption, Kind, Result};
use crate::link::{Link, Stop, Wishes};
use crate::memory::Vectors;
use crate::protocol::stream::Phase;
use crate::protocol::wire::Hello;
use crate::settings::Settings;
use crate::waiting::{Waitable, Waiters, lock, wait};

/// How often an address or a way is looked for, each time for twice as long.
const TRIES: u32 = 7;

/// For how long the first time.
const FIRST_TRY: Duration = Duration::from_secs(1);

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

/// SO_LINGER: for how long a close waits.
pub type Linger = Option<Duration>;

/// Options that act here; bits of others are kept with the socket's descriptor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes.
    pub wishes: Wishes,
    /// SO_LINGER; None: until all is sent.
    pub linger: Linger,
    /// SO_RCVTIMEO.
    pub receive_timeout: Option<Duration>,
    /// SO_SNDTIMEO.
    pub send_timeout: Option<Duration>,
    /// SO_KEEPALIVE.
    pub keep_alive: bool,
    /// TCP_KEEPIDLE.
    pub keep_idle: Duration,
    /// RDMA_ROUTE.
    pub route: Option<Vec<u8>>,
}

impl Default for Options {
    fn default() -> Options {
        let settings = Settings::get();
        Options {
            wishes: Wishes {
                send_bytes: settings.send_bytes,
                receive_bytes: settings.receive_bytes,
                send_requests: settings.send_requests,
                receives: settings.receives,
                inline_bytes: settings.inline_bytes,
                io_maps: settings.io_maps,
            },
            linger: None,
            receive_timeout: None,
            send_timeout: None,
            keep_alive: false,
            keep_idle: crate::service::default_keep_idle(),
            route: None,
        }
    }
}

struct Inner {
    state: State,
    options: Options,
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
    nonblocking: AtomicBool,
    closed: AtomicBool,
    /// This end has shut down its writing.
    shut: AtomicBool,
    /// True after SO_ERROR was set because the stream is broken.
    noted: AtomicBool,
    /// One sends, one reads; each has what it needs for that.
    sender: Mutex<Vec<u8>>,
    receiver: Mutex<()>,
    waiters: Waiters,
    /// When events were last looked for (CLOCK_MONOTONIC, ns).
    looked: AtomicU64,
}

/// Requests that may wait: what listen(2) was given, up to the system's limit, which stands for none too.
fn backlog_of(given: i32) -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    let limit = *LIMIT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        text.ok().and_then(|text| text.trim().parse().ok()).filter(|limit| *limit > 0).unwrap_or(4096)
    });
    usize::try_from(given).ok().filter(|given| *given > 0).map_or(limit, |given| given.min(limit))
}

/// Returns true if who has asked, by this identifier, is gone: before an answer nothing else happens to it.
fn has_given_up(id: &dyn Id) -> bool {
    while let Ok(Some(event)) = id.event() {
        if matches!(event, Event::Disconnected | Event::Failed(_)) {
            return true;
        }
    }
    false
}

/// The flags of a call about waiting.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    /// MSG_DONTWAIT.
    pub dont_wait: bool,
    /// MSG_PEEK.
    pub peek: bool,
    /// MSG_WAITALL.
    pub wait_all: bool,
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
        let inner = Inner { state, options, error: None, tries: 0, destination, requests, backlog: 0 };
        StreamSocket {
            link: OnceLock::new(),
            id,
            inner: Mutex::new(inner),
            nonblocking: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            noted: AtomicBool::new(false),
            sender: Mutex::default(),
            receiver: Mutex::default(),
            waiters: Waiters::default(),
            looked: AtomicU64::new(0),
        }
    }

    /// The descriptor of its event channel, by which the program names it.
    pub fn descriptor(&self) -> RawFd {
        self.id.descriptor()
    }

    /// Chooses that calls return rather than wait (O_NONBLOCK).
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Returns true if they do.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Its options.
    pub fn with_options<T>(&self, with: impl FnOnce(&mut Options) -> T) -> T {
        with(&mut lock(&self.inner).options)
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

    /// bind(2).
    ///
    /// # Errors
    /// As of rdma_bind_addr(3); EINVAL: it has an address.
    pub fn bind(&self, address: &SocketAddr) -> Result<()> {
        let mut inner = lock(&self.inner);
        if inner.state != State::New {
            return Err(Errno(libc::EINVAL));
        }
        self.id.bind(address)?;
        inner.state = State::Bound;
        Ok(())
    }

    /// listen(2). Once it listens, only the backlog changes.
    ///
    /// # Errors
    /// As of rdma_listen(3); EINVAL: it is, or will be, connected.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        let mut inner = lock(&self.inner);
        match inner.state {
            State::New | State::Bound => self.id.listen(backlog)?,
            State::Listening => {}
            _ => return Err(Errno(libc::EINVAL)),
        }
        // The identifier's own backlog counts what this end has not seen yet, and it takes all as it comes.
        inner.backlog = backlog_of(backlog);
        inner.state = State::Listening;
        Ok(())
    }

    /// accept(2).
    ///
    /// # Errors
    /// EINVAL: it does not listen. EAGAIN. Others: the connection could not be made.
    pub fn accept(&self) -> Result<StreamSocket> {
        loop {
            let next = |_: &mut [libc::pollfd]| match &mut *lock(&self.inner) {
                _ if self.closed.load(Ordering::Acquire) => Some(Err(Errno(libc::EBADF))),
                inner if inner.state != State::Listening => Some(Err(Errno(libc::EINVAL))),
                inner => Some(Ok((inner.requests.pop_front()?, inner.options.clone()))),
            };
            let timeout = self.with_options(|options| options.receive_timeout);
            let ((id, private), options) = self.wait(Flags::default(), timeout, next)??;
            // One that speaks another protocol is nobody that the program wants to know of.
            if Hello::decode(&private).is_err() {
                id.reject();
                continue;
            }
            let socket = StreamSocket::of(id, State::Accepting, Options { route: None, ..options });
            match socket.answer(&private) {
                Ok(()) => return Ok(socket),
                // It is nobody that the program could speak to, as with accept(2): the next one.
                Err(_) if has_given_up(&*socket.id) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn answer(&self, private: &[u8]) -> Result<()> {
        let link = self.make_link(&lock(&self.inner).options.wishes)?;
        link.greet(private)?;
        self.id.accept(&link.hello())
    }

    fn make_link(&self, wishes: &Wishes) -> Result<&Link> {
        let link = Link::new(&*self.id, wishes, self.id.limits())?;
        Ok(self.link.get_or_init(|| link))
    }

    /// connect(2).
    ///
    /// # Errors
    /// EINPROGRESS: it goes on by itself. EISCONN, EALREADY, and why there was no connection.
    pub fn connect(&self, to: &SocketAddr) -> Result<()> {
        {
            let mut inner = lock(&self.inner);
            match inner.state {
                State::New | State::Bound => {}
                State::Open => return Err(Errno(libc::EISCONN)),
                state if state.is_opening() => return Err(Errno(libc::EALREADY)),
                _ => return Err(Errno(libc::EINVAL)),
            }
            inner.destination = Some(*to);
            inner.tries = 0;
            self.resolve_address(&mut inner)?;
        }
        let flags = Flags { dont_wait: self.is_nonblocking(), ..Flags::default() };
        let timeout = self.with_options(|options| options.send_timeout);
        match self.wait(flags, timeout, |_| self.opened()) {
            Ok(outcome) => outcome,
            Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EINPROGRESS)),
            Err(error) => Err(error),
        }
    }

    /// The result of opening the stream; None while it is not known.
    fn opened(&self) -> Option<Result<()>> {
        let mut inner = lock(&self.inner);
        match inner.state {
            _ if self.closed.load(Ordering::Acquire) => Some(Err(Errno(libc::EBADF))),
            State::Open => Some(Ok(())),
            State::Failed => Some(Err(inner.error.take().unwrap_or(Errno(libc::ENOTCONN)))),
            state if state.is_opening() => None,
            _ => Some(Err(Errno(libc::ENOTCONN))),
        }
    }

    fn next_timeout(inner: &mut Inner) -> Duration {
        let timeout = FIRST_TRY * (1 << inner.tries);
        inner.tries += 1;
        timeout
    }

    fn resolve_address(&self, inner: &mut Inner) -> Result<()> {
        let to = inner.destination.ok_or(Errno(libc::EDESTADDRREQ))?;
        self.id.resolve_address(&to, StreamSocket::next_timeout(inner))?;
        inner.state = State::ResolvingAddress;
        Ok(())
    }

    fn resolve_route(&self, inner: &mut Inner) -> Result<()> {
        match inner.options.route.take() {
            Some(route) => self.id.set_route(&route)?,
            None => self.id.resolve_route(StreamSocket::next_timeout(inner))?,
        }
        inner.state = State::ResolvingRoute;
        Ok(())
    }

    fn ask(&self, inner: &mut Inner) -> Result<()> {
        let link = self.make_link(&inner.options.wishes)?;
        self.id.connect(&link.hello())?;
        inner.state = State::Connecting;
        Ok(())
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
            self.waiters.wake();
        }
    }

    fn take_event(&self, inner: &mut MutexGuard<'_, Inner>, event: Event) -> Result<()> {
        match (inner.state, event) {
            (State::ResolvingAddress, Event::AddressResolved) => {
                inner.tries = 0;
                self.resolve_route(inner)
            }
            (State::ResolvingRoute, Event::RouteResolved) => self.ask(inner),
            (State::ResolvingAddress, Event::Failed(Errno(libc::ETIMEDOUT))) if inner.tries < TRIES => {
                self.resolve_address(inner)
            }
            (State::ResolvingRoute, Event::Failed(Errno(libc::ETIMEDOUT))) if inner.tries < TRIES => {
                self.resolve_route(inner)
            }
            (State::Connecting, Event::Established(private)) => {
                let link = self.link.get().ok_or(Errno(libc::EIO))?;
                link.greet(&private).inspect_err(|_| self.id.disconnect())?;
                link.begin();
                inner.state = State::Open;
                Ok(())
            }
            (State::Accepting, Event::Established(_)) => {
                self.link.get().ok_or(Errno(libc::EIO))?.begin();
                inner.state = State::Open;
                Ok(())
            }
            (State::Listening, Event::Request(id, private)) => {
                if inner.requests.len() >= inner.backlog {
                    // Those who are gone take nobody's place.
                    inner.requests.retain(|(id, _)| !has_given_up(&**id));
                }
                if inner.requests.len() < inner.backlog {
                    inner.requests.push_back((id, private));
                } else {
                    id.reject();
                }
                Ok(())
            }
            (_, Event::Request(id, _)) => {
                id.reject();
                Ok(())
            }
            (_, Event::Disconnected) => {
                if let Some(link) = self.link.get() {
                    // Data that came before the end counts.
                    link.progress();
                    link.disconnect();
                }
                if inner.state == State::Accepting {
                    inner.state = State::Open;
                }
                self.id.disconnect();
                Ok(())
            }
            (state, Event::Failed(error)) if state.is_opening() => Err(error),
            _ => Ok(()),
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
        if flags.dont_wait || self.is_nonblocking() {
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

    /// The stream, once it is open.
    fn stream(&self, flags: Flags, timeout: Option<Duration>) -> Result<&Link> {
        if self.state() != State::Open {
            self.wait(flags, timeout, |_| self.opened())??;
        }
        self.link.get().ok_or(Errno(libc::ENOTCONN))
    }

    /// The error of a send that finds the stream ended.
    fn ended(&self) -> Errno {
        self.note_broken();
        let error = lock(&self.inner).error.take();
        let own = self.shut.load(Ordering::Acquire);
        error.unwrap_or(Errno(if own { libc::EPIPE } else { libc::ECONNRESET }))
    }

    /// Locks the side of those who send, or read: one at a time. EAGAIN where that would mean to wait.
    fn side<'a, T>(&self, side: &'a Mutex<T>, flags: Flags) -> Result<MutexGuard<'a, T>> {
        if !flags.dont_wait && !self.is_nonblocking() {
            return Ok(lock(side));
        }
        match side.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno(libc::EAGAIN)),
        }
    }

    /// send(2), and its kin: how many bytes.
    ///
    /// # Errors
    /// EAGAIN, ENOTCONN; ECONNRESET: the peer takes no more; EPIPE: this end has shut down.
    pub fn send(&self, data: &mut Vectors<'_>, flags: Flags) -> Result<usize> {
        let total = data.left();
        let writable = |link: &Link| link.readiness().1;
        self.transfer(flags, total, writable, |link, before, scratch| Some(link.write(data, before, scratch)))
    }

    /// riowrite: how many bytes, fewer than all where no buffer of the peer's has the next offset.
    ///
    /// # Errors
    /// As of [`StreamSocket::send`].
    pub fn io_write(&self, data: &mut Vectors<'_>, offset: u64, flags: Flags) -> Result<usize> {
        let total = data.left();
        self.transfer(flags, total, Link::is_io_writable, |link, before, scratch| {
            let at = offset.checked_add(before as u64)?;
            link.io_write(data, before, at, scratch).ok()
        })
    }

    /// Moves `total` bytes by steps, each of which gets the number of bytes moved before; None from a step: there is no
    /// destination for more.
    fn transfer(
        &self,
        flags: Flags,
        total: usize,
        is_ready: impl Fn(&Link) -> bool,
        mut step: impl FnMut(&Link, usize, &mut Vec<u8>) -> Option<std::result::Result<usize, Stop>>,
    ) -> Result<usize> {
        let timeout = self.with_options(|options| options.send_timeout);
        let link = self.stream(flags, timeout)?;
        let mut scratch = self.side(&self.sender, flags)?;
        self.progress();
        let (mut done, mut told) = (0, false);
        while done < total {
            let moved = if told {
                match step(link, done, &mut scratch) {
                    Some(moved) => moved,
                    None => break,
                }
            } else {
                link.tell_maps(&mut scratch).map(|()| {
                    told = true;
                    0
                })
            };
            let error = match moved {
                Ok(moved) => {
                    done += moved;
                    continue;
                }
                Err(Stop::Ended) => self.ended(),
                Err(Stop::Wait) => {
                    let ready = |_: &mut [libc::pollfd]| (!link.is_sending() || is_ready(link)).then_some(());
                    match self.wait(flags, timeout, ready) {
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
            };
            return if done > 0 { Ok(done) } else { Err(error) };
        }
        Ok(done)
    }

    /// recv(2), and its kin: how many bytes; 0: there will be no more.
    ///
    /// # Errors
    /// EAGAIN, ENOTCONN, and once why the stream is broken.
    pub fn receive(&self, into: &mut Vectors<'_>, flags: Flags) -> Result<usize> {
        let timeout = self.with_options(|options| options.receive_timeout);
        let link = self.stream(flags, timeout)?;
        let _side = self.side(&self.receiver, flags)?;
        let (total, mut done) = (into.left(), 0);
        while done < total {
            let error = match link.read(into, flags.peek) {
                Ok(length) => {
                    done += length;
                    if flags.peek || !flags.wait_all {
                        break;
                    }
                    continue;
                }
                Err(Stop::Ended) if done > 0 => break,
                Err(Stop::Ended) => {
                    self.note_broken();
                    return lock(&self.inner).error.take().map_or(Ok(0), Err);
                }
                Err(Stop::Wait) => match self.wait(flags, timeout, |_| link.readiness().0.then_some(())) {
                    Ok(()) => continue,
                    Err(error) => error,
                },
            };
            return if done > 0 { Ok(done) } else { Err(error) };
        }
        Ok(done)
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
        self.waiters.wake();
        let deadline = self.with_options(|options| options.linger).map(|linger| Instant::now() + linger);
        // A signal is no reason not to wait for the end.
        while wait(&[self], &mut [], deadline, |_| link.is_done().then_some(())) == Err(Errno(libc::EINTR)) {}
        if link.phase() != Phase::Open {
            self.id.disconnect();
        }
        Ok(())
    }

    /// close(2): what is left of the socket goes when nobody uses it any more.
    pub fn close(&self) {
        let aborts = self.with_options(|options| options.linger) == Some(Duration::ZERO);
        if self.state() == State::Open && !aborts {
            let _ = self.shut_down(true, true);
        }
        self.closed.store(true, Ordering::Release);
        if let Some(link) = self.link.get() {
            link.disconnect();
            self.id.disconnect();
        }
        lock(&self.inner).requests.drain(..).for_each(|(id, _)| id.reject());
        self.waiters.wake();
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
            self.waiters.wake();
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
            self.waiters.wake();
        }
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}
