//! Events of QP 1 that the progress thread waits for.

use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::os::fd::RawFd;
use vervain_hca::Result;
use vervain_sockets::os_error;
use vervain_sockets::unix::Private;

/// Most events taken at once.
const BATCH: usize = 64;

/// Source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// MADs are at the door with this number.
    Door(u32),
    /// A socket has room for the queue with this number.
    Room(u32),
    /// The process of this slot has sent a message, or has ended.
    Peer(u32),
}

impl Token {
    fn data(self) -> epoll::EventData {
        let (kind, n) = match self {
            Token::Door(n) => (0u64, n),
            Token::Room(n) => (1, n),
            Token::Peer(n) => (2, n),
        };
        epoll::EventData::new_u64(kind << 32 | u64::from(n))
    }

    fn of(data: epoll::EventData) -> Token {
        let word = data.u64();
        let n = word as u32;
        match word >> 32 {
            0 => Token::Door(n),
            1 => Token::Room(n),
            _ => Token::Peer(n),
        }
    }
}

/// The watched sockets.
pub struct Events(Private);

impl Events {
    pub fn new() -> Result<Events> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| os_error("epoll", e))?;
        Ok(Events(Private::keep(epoll)))
    }

    /// Descriptor that is readable while there are events.
    pub fn fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    /// Watches a socket until it is closed.
    pub fn watch(&self, socket: impl AsFd, token: Token) -> std::result::Result<(), Errno> {
        let events = match token {
            Token::Room(_) => epoll::EventFlags::OUT,
            Token::Door(_) => epoll::EventFlags::IN,
            Token::Peer(_) => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        };
        epoll::add(&self.0, socket, token.data(), events)
    }

    /// The events that there are now; there may be more.
    pub fn take(&self) -> Vec<Token> {
        let mut events = Vec::with_capacity(BATCH);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&now));
        events.iter().map(|event: &epoll::Event| Token::of(event.data)).collect()
    }
}
