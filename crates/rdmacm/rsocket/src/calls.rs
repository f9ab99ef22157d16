//! The state that calls on a socket of either kind have in common: its options, whether they wait, and the threads that
//! do.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::link::Wishes;
use crate::protocol::datagram::MAX_BYTES;
use crate::settings::Settings;
use crate::waiting::{Waiters, lock};

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

/// Options that act here; bits of others are kept with the socket's descriptor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes.
    pub wishes: Wishes,
    /// SO_LINGER: time that a close waits; None: until all is sent.
    pub linger: Option<Duration>,
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

impl Options {
    /// Receives of each QP of a datagram socket, and datagrams that are kept for the program.
    pub fn datagram_receives(&self) -> u32 {
        u32::from(self.wishes.receives).min(self.wishes.receive_bytes / MAX_BYTES as u32).max(1)
    }

    /// Datagrams under way from each QP of a datagram socket.
    pub fn datagram_sends(&self) -> u32 {
        u32::from(self.wishes.send_requests).min(self.wishes.send_bytes / MAX_BYTES as u32).max(1)
    }
}

/// The options of a socket, O_NONBLOCK, and the threads that wait for it.
pub struct Calls {
    options: Mutex<Options>,
    nonblocking: AtomicBool,
    /// Threads that wait for the socket.
    pub waiters: Waiters,
}

impl Calls {
    /// A socket whose calls wait.
    pub fn new(options: Options) -> Calls {
        let (options, nonblocking) = (Mutex::new(options), AtomicBool::new(false));
        Calls { options, nonblocking, waiters: Waiters::default() }
    }

    /// Reads or changes the options, under their lock.
    pub fn with_options<T>(&self, with: impl FnOnce(&mut Options) -> T) -> T {
        with(&mut lock(&self.options))
    }

    /// Chooses that calls return rather than wait (O_NONBLOCK).
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Returns true if a call with these flags waits.
    pub fn may_wait(&self, flags: Flags) -> bool {
        !flags.dont_wait && !self.nonblocking.load(Ordering::Relaxed)
    }
}
