//! The sockets of the process, by descriptor.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::calls::Calls;
use crate::datagram::DatagramSocket;
use crate::fabric::{Errno, Fabric, Result};
use crate::rdma::Rdma;
use crate::stream::StreamSocket;
use crate::waiting::Waitable;

/// A socket of one of both kinds.
#[derive(Clone)]
pub enum Socket {
    /// SOCK_STREAM.
    Stream(Arc<StreamSocket>),
    /// SOCK_DGRAM.
    Datagram(Arc<DatagramSocket>),
}

impl Socket {
    /// The socket as an object to wait for.
    pub fn waitable(&self) -> &dyn Waitable {
        match self {
            Socket::Stream(socket) => &**socket,
            Socket::Datagram(socket) => &**socket,
        }
    }

    /// The events that poll(2) is to report of it.
    pub fn events(&self, interest: i16) -> i16 {
        match self {
            Socket::Stream(socket) => socket.events(interest),
            Socket::Datagram(socket) => socket.events(interest),
        }
    }

    /// Its options and waiters.
    pub fn calls(&self) -> &Calls {
        match self {
            Socket::Stream(socket) => &socket.calls,
            Socket::Datagram(socket) => &socket.calls,
        }
    }

    fn descriptor(&self) -> RawFd {
        match self {
            Socket::Stream(socket) => socket.descriptor(),
            Socket::Datagram(socket) => socket.descriptor(),
        }
    }
}

/// A socket, and what only the program's calls ask of it.
pub struct Entry {
    /// The socket.
    pub socket: Socket,
    /// AF_INET or AF_INET6.
    pub domain: i32,
    /// F_SETFL.
    pub flags: AtomicI32,
    /// Options that are only kept, by level and name.
    pub kept: Mutex<HashMap<(i32, i32), i32>>,
}

impl Entry {
    /// The stream that it is.
    ///
    /// # Errors
    /// EOPNOTSUPP: it is none.
    pub fn stream(&self) -> Result<&Arc<StreamSocket>> {
        match &self.socket {
            Socket::Stream(socket) => Ok(socket),
            Socket::Datagram(_) => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    /// Keeps the flags of F_SETFL.
    pub fn set_flags(&self, flags: i32) {
        self.flags.store(flags, Ordering::Relaxed);
        self.socket.calls().set_nonblocking(flags & libc::O_NONBLOCK != 0);
    }

    /// Its address here: the unspecified one before it has one.
    pub fn local(&self) -> SocketAddr {
        let found = match &self.socket {
            Socket::Stream(socket) => socket.id().local(),
            Socket::Datagram(socket) => socket.local().ok(),
        };
        let any: std::net::IpAddr = if self.domain == libc::AF_INET6 {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        };
        found.unwrap_or(SocketAddr::new(any, 0))
    }
}

static TABLE: RwLock<Vec<Option<Arc<Entry>>>> = RwLock::new(Vec::new());

/// The socket that has a descriptor.
///
/// # Errors
/// EBADF: none has.
pub fn find(descriptor: RawFd) -> Result<Arc<Entry>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let at = usize::try_from(descriptor).ok();
    at.and_then(|at| table.get(at)?.clone()).ok_or(Errno(libc::EBADF))
}

/// Puts a socket in; its descriptor.
pub fn insert(socket: Socket, domain: i32) -> RawFd {
    let descriptor = socket.descriptor();
    let entry = Entry { socket, domain, flags: AtomicI32::new(libc::O_RDWR), kept: Mutex::default() };
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let at = usize::try_from(descriptor).expect("an open descriptor");
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    table[at] = Some(Arc::new(entry));
    descriptor
}

/// Takes a socket out.
///
/// # Errors
/// EBADF: there is none.
pub fn remove(descriptor: RawFd) -> Result<Arc<Entry>> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let at = usize::try_from(descriptor).ok();
    at.and_then(|at| table.get_mut(at)?.take()).ok_or(Errno(libc::EBADF))
}

static FABRIC: OnceLock<Arc<dyn Fabric>> = OnceLock::new();

/// Has sockets made over this network, for tests: before the first is.
pub fn install(fabric: Arc<dyn Fabric>) {
    FABRIC.get_or_init(|| fabric);
}

/// The network: rdma_cm's, unless another was installed.
pub fn fabric() -> &'static Arc<dyn Fabric> {
    FABRIC.get_or_init(|| Arc::new(Rdma))
}
