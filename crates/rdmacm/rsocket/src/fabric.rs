//! The part of rdma_cm and of verbs that sockets need, so that they run over librdmacm, and in tests over a network in
//! the process.
//!
//! Nothing here waits, but for [`Id::resolve_datagram`]: a call that takes time ends in an [`Event`], whose descriptor
//! can be polled.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// The error of a call: an errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(self.0))]
pub struct Errno(pub i32);

impl Errno {
    /// The errno of this thread's last call into C.
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Errno>;

/// The maker of identifiers.
pub trait Fabric: Send + Sync {
    /// A new identifier, of streams or of datagrams, with event channel of its own.
    ///
    /// # Errors
    /// There are none to be had: no device, no descriptor.
    fn identifier(&self, kind: Kind) -> Result<Box<dyn Id>>;
}

/// The purpose of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RC, RDMA_PS_TCP.
    Stream,
    /// UD, RDMA_PS_UDP.
    Datagram,
}

/// A change of an identifier's state.
pub enum Event {
    /// The peer's address is known.
    AddressResolved,
    /// The way there is known.
    RouteResolved,
    /// Somebody wants to connect, by this identifier, with this private data.
    Request(Box<dyn Id>, Vec<u8>),
    /// It is connected; with the private data of the reply, if this end asked.
    Established(Vec<u8>),
    /// The operation that was begun has failed.
    Failed(Errno),
    /// The peer is gone.
    Disconnected,
    /// Another.
    Other,
}

/// Options of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdOption {
    /// SO_REUSEADDR.
    ReuseAddress,
    /// IPV6_V6ONLY.
    V6Only,
}

/// An identifier of rdma_cm. Errors are errno values of the functions of the same names.
pub trait Id: Send + Sync {
    /// Descriptor of its event channel; readable while [`Id::event`] has one.
    fn descriptor(&self) -> RawFd;
    /// The next event.
    fn event(&self) -> Result<Option<Event>>;
    /// Gives it an address.
    fn bind(&self, address: &SocketAddr) -> Result<()>;
    /// Requests for its address become events.
    fn listen(&self, backlog: i32) -> Result<()>;
    /// Finds the device that leads to an address, and the peer.
    fn resolve_address(&self, to: &SocketAddr, timeout: Duration) -> Result<()>;
    /// Finds the way.
    fn resolve_route(&self, timeout: Duration) -> Result<()>;
    /// Says the way, an array of struct ibv_path_data.
    fn set_route(&self, route: &[u8]) -> Result<()>;
    /// The way, as such an array.
    fn route(&self) -> Vec<u8>;
    /// Bytes of a packet's payload on the way, where that is known.
    fn path_mtu(&self) -> Option<u32>;
    /// Sets an option.
    fn set_option(&self, option: IdOption, value: i32) -> Result<()>;
    /// Makes a QP with a CQ, of the identifier's kind, on the device of its address. They live as long as any of both.
    fn queues(&self, sizes: &QueueSizes) -> Result<Arc<dyn Queues>>;
    /// Asks the peer to connect.
    fn connect(&self, private: &[u8]) -> Result<()>;
    /// Takes a request.
    fn accept(&self, private: &[u8]) -> Result<()>;
    /// Refuses it.
    fn reject(&self);
    /// Ends a connection; all requests of the QP are flushed.
    fn disconnect(&self);
    /// The address here, once it has one.
    fn local(&self) -> Option<SocketAddr>;
    /// The peer's, once it is known.
    fn peer(&self) -> Option<SocketAddr>;
    /// The device's limits, once a device is known.
    fn limits(&self) -> Limits;
    /// The destination of datagrams from the QP of this identifier to an address. Waits, for `timeout` at most.
    fn resolve_datagram(&self, to: &SocketAddr, timeout: Duration) -> Result<Arc<dyn Handle>>;
}

/// The limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests of a queue.
    pub requests: u32,
    /// Its Writes carry no immediate data (iWARP).
    pub separate: bool,
    /// The largest datagram.
    pub datagram: u32,
}

/// Sizes of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSizes {
    /// Entries of the send queue.
    pub send_requests: u32,
    /// Entries of the receive queue.
    pub receives: u32,
    /// Bytes that are wished for in a request; there may be fewer.
    pub inline_bytes: u32,
}

/// A part of registered memory, or of any for what is copied into a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Address of its first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Its lkey.
    pub key: u32,
}

/// How a request has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    #[default]
    Success,
    /// Not at all: its QP is in the error state.
    Flushed,
    /// The peer did not answer, or was not ready, for as often as it was tried.
    Silent,
    /// In another way.
    Failed,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The identifier that it was posted with.
    pub id: u64,
    /// How.
    pub outcome: Outcome,
    /// Bytes that have come; of a datagram: with its GRH.
    pub bytes: u32,
    /// Immediate data, as a number.
    pub immediate: Option<u32>,
}

/// The operation of a request to send.
#[derive(Clone, Copy)]
pub enum Operation<'a> {
    /// RDMA Write, to this address by this rkey, with immediate data or without.
    Write(u64, u32, Option<u32>),
    /// Send over the connection.
    Send,
    /// Send to this peer: its address handle, the number of its QP, its queue key.
    SendTo(&'a dyn Handle, u32, u32),
}

/// A QP and the CQ of both its queues. Functions may be called by several threads at once.
pub trait Queues: Send + Sync {
    /// The QP's number.
    fn number(&self) -> u32;
    /// Bytes that a request can hold.
    fn inline_bytes(&self) -> u32;
    /// Registers memory, for Writes of the peer too if `remote`.
    ///
    /// # Errors
    /// As of ibv_reg_mr(3).
    ///
    /// # Safety
    /// The memory stays until the region is dropped, and its readers expect that it changes.
    unsafe fn register(&self, address: *mut u8, length: usize, remote: bool) -> Result<Box<dyn Region>>;
    /// Descriptor of the completion channel; readable after [`Queues::arm`] once something is completed.
    fn descriptor(&self) -> RawFd;
    /// Has the next completion make the descriptor readable.
    fn arm(&self) -> Result<()>;
    /// Takes an event off the channel. Returns true if there was one.
    fn take_event(&self) -> bool;
    /// Completions: how many were put into `into`.
    fn poll(&self, into: &mut [Completion]) -> Result<usize>;
    /// Posts a receive.
    ///
    /// # Errors
    /// As of ibv_post_recv(3).
    ///
    /// # Safety
    /// The parts are of registered memory.
    unsafe fn receive(&self, id: u64, parts: &[Part]) -> Result<()>;
    /// Posts a request. `inline`: the parts are copied now, and may be of any memory.
    ///
    /// # Errors
    /// As of ibv_post_send(3).
    ///
    /// # Safety
    /// The parts are of registered memory, or may be read now.
    unsafe fn send(&self, id: u64, parts: &[Part], inline: bool, operation: Operation<'_>) -> Result<()>;
}

/// Registered memory. Dropped, it is not any more.
pub trait Region: Send + Sync {
    /// The key by which this end names it.
    fn local_key(&self) -> u32;
    /// The key by which peers name it.
    fn remote_key(&self) -> u32;
}

/// A destination of datagrams: an address handle. Dropped, it is destroyed.
pub trait Handle: Send + Sync {
    /// The implementation's own type.
    fn as_any(&self) -> &dyn std::any::Any;
}
