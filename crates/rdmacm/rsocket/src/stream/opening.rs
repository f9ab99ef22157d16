//! The opening of a stream: bind, listen and accept, or connect, which goes from the peer's address over the way there
//! to its answer.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, OnceLock};
use std::time::Duration;

use super::{Inner, State, StreamSocket};
use crate::calls::{Flags, Options};
use crate::fabric::{Errno, Event, Id, Result};
use crate::link::Link;
use crate::protocol::wire::Hello;
use crate::waiting::lock;

/// How often an address or a way is looked for, each time for twice as long.
const TRIES: u32 = 7;

/// For how long the first time.
const FIRST_TRY: Duration = Duration::from_secs(1);

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

impl StreamSocket {
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
                inner => Some(Ok(inner.requests.pop_front()?)),
            };
            let timeout = self.calls.with_options(|options| options.receive_timeout);
            let (id, private) = self.wait(Flags::default(), timeout, next)??;
            // One that speaks another protocol is nobody that the program wants to know of.
            if Hello::decode(&private).is_err() {
                id.reject();
                continue;
            }
            let options = self.calls.with_options(|options| Options { route: None, ..options.clone() });
            let socket = StreamSocket::of(id, State::Accepting, options);
            match socket.answer(&private) {
                Ok(()) => return Ok(socket),
                // It is nobody that the program could speak to, as with accept(2): the next one.
                Err(_) if has_given_up(&*socket.id) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn answer(&self, private: &[u8]) -> Result<()> {
        let link = self.make_link()?;
        link.greet(private)?;
        self.id.accept(&link.hello())
    }

    fn make_link(&self) -> Result<&Link> {
        let link = self.calls.with_options(|options| Link::new(&*self.id, &options.wishes, self.id.limits()))?;
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
        let timeout = self.calls.with_options(|options| options.send_timeout);
        match self.wait(Flags::default(), timeout, |_| self.opened()) {
            Ok(outcome) => outcome,
            Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EINPROGRESS)),
            Err(error) => Err(error),
        }
    }

    /// The result of opening the stream; None while it is not known.
    pub(super) fn opened(&self) -> Option<Result<()>> {
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
        match self.calls.with_options(|options| options.route.take()) {
            Some(route) => self.id.set_route(&route)?,
            None => self.id.resolve_route(StreamSocket::next_timeout(inner))?,
        }
        inner.state = State::ResolvingRoute;
        Ok(())
    }

    fn ask(&self, inner: &mut Inner) -> Result<()> {
        let link = self.make_link()?;
        self.id.connect(&link.hello())?;
        inner.state = State::Connecting;
        Ok(())
    }

    pub(super) fn take_event(&self, inner: &mut MutexGuard<'_, Inner>, event: Event) -> Result<()> {
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
}
