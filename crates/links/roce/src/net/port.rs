//! A port: the sockets of one local address. Packets come in at UDP port 4791, which the processes of a user share.
//! They leave by one of several source ports, so that those of different QPs can take different queues and paths (IBA
//! annex A17.9.1). Packets to different processes of a host have different source ports: a network card merges the
//! packets of one port on arrival, and packets for two processes would have to be parted again.

use super::address::scoped;
use super::capture::Capture;
use super::counters::Counters;
use super::faults::Lines;
use super::groups::Groups;
use super::train::FlowKey;
use super::{options, sys};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use vervain_hca::host::address_map::{actual, is_moved};
use vervain_hca::{Error, Result};
use vervain_wire::UDP_PORT;

/// Source ports that the QPs of one peer process share.
pub const SPREAD: usize = 4;
/// Most source ports in use; every eighth process slot shares the same ones.
const FLOWS: usize = 8 * SPREAD;
/// First of the source ports, which reach to 65535; adapters use the same range.
const FIRST_SOURCE_PORT: u16 = 0xc000;
/// Source ports of others that a flow tries before it uses [`UDP_PORT`].
const TRIES: u16 = 64;
/// Memory that the kernel takes for a packet beyond its bytes, at least.
const OVERHEAD: u64 = 512;

/// The sockets of one local address, by which the program knows it; they are bound to its present address.
pub struct Port {
    ip: IpAddr,
    interface: AtomicU32,
    receive: OwnedFd,
    flows: [OnceLock<Option<Flow>>; FLOWS],
    /// True while the interface is thought to take trains.
    trains: AtomicBool,
    /// True once hop limits are asked for.
    hop_limits: AtomicBool,
    /// True if the kernel lets programs choose the flow label; tested when a program first does.
    labels: OnceLock<bool>,
    /// True if multicast packets are also sent back to this host's members.
    multicast_loops: AtomicBool,
    /// Bytes that its receive buffer holds, as the kernel counts them.
    room: u64,
    /// Bytes that had been received when the buffer was last found full, with [`OVERHEAD`].
    taken_when_full: AtomicU64,
    counters: Counters,
    pub(super) groups: Groups,
    pub(super) lines: Option<Arc<Lines>>,
    pub(super) capture: Option<&'static Capture>,
}

/// A socket by which packets leave.
struct Flow {
    socket: OwnedFd,
    source: AtomicU16,
}

impl Port {
    /// Opens the sockets of address `ip` on the interface with index `interface`. EADDRINUSE: another user or program
    /// has UDP port 4791 there; EACCES: this process may not open it; EADDRNOTAVAIL: the host does not have the address
    /// (any more).
    pub fn open(ip: IpAddr, interface: u32) -> Result<Port> {
        Port::with_socket(ip, interface, Port::bind(ip, interface)?)
    }

    /// Only the socket for incoming packets, bound and ready. It is the last of its reuseport group.
    pub fn bind(ip: IpAddr, interface: u32) -> Result<OwnedFd> {
        let local = scoped(actual(ip), UDP_PORT, interface);
        let opened = open(local.ip()).and_then(|socket| {
            options::for_receiving(socket.as_fd(), ip)?;
            options::for_sending(socket.as_fd(), ip)?;
            sys::bind(socket.as_fd(), local)?;
            Ok(socket)
        });
        opened.map_err(|e| refusal(local.ip(), &e))
    }

    /// A port that receives from `receive`, which [`Port::bind`] made for the same address. Fails if a variable that
    /// asks for faults or for a capture is invalid.
    pub fn with_socket(ip: IpAddr, interface: u32, receive: OwnedFd) -> Result<Port> {
        let room = options::get(receive.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or_default();
        Ok(Port {
            room: u64::try_from(room).unwrap_or_default(),
            taken_when_full: AtomicU64::new(0),
            ip,
            interface: AtomicU32::new(interface),
            receive,
            flows: std::array::from_fn(|_| OnceLock::new()),
            trains: AtomicBool::new(true),
            hop_limits: AtomicBool::new(false),
            labels: OnceLock::new(),
            multicast_loops: AtomicBool::new(true),
            counters: Counters::default(),
            groups: Groups::default(),
            lines: Lines::from_environment()?,
            capture: Capture::from_environment()?,
        })
    }

    /// The address, as the program knows it.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The present address, with a port.
    #[cold]
    pub(super) fn local(&self, port: u16) -> SocketAddr {
        scoped(actual(self.ip), port, self.interface())
    }

    /// The port's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sends no multicast packets back to this host's members, which get their copies in another way. To be called
    /// before the first packet.
    pub fn spare_own_members(&self) {
        self.multicast_loops.store(false, Ordering::Relaxed);
    }

    /// Bytes that its receive buffer holds, as the kernel counts them: including the memory around each packet.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// The socket for incoming packets, to wait for.
    pub fn receive_socket(&self) -> BorrowedFd<'_> {
        self.receive.as_fd()
    }

    /// Makes hop limit and flow label of incoming packets available from now on, for the GRH of datagrams. Not from the
    /// beginning, as they cost time for each train.
    pub fn tell_hop_limits(&self) {
        self.hop_limits.store(true, Ordering::Relaxed);
        if let Err(e) = options::for_hop_limits(self.receive.as_fd(), self.ip()) {
            log::warn!("{}: no hop limits of received packets: {e}", self.ip());
        }
    }

    /// Time at which the next packet that faults hold back is due (CLOCK_MONOTONIC, nanoseconds): [`Port::release`] is
    /// to be called then, and packets are to be asked for.
    pub fn next_release(&self) -> Option<u64> {
        self.lines.as_ref()?.next_release()
    }

    /// Bytes of the largest IP packet that the route to `to` takes, as far as the kernel knows.
    pub fn path_mtu(&self, to: IpAddr) -> io::Result<usize> {
        let socket = open(to)?;
        options::for_sending(socket.as_fd(), to)?;
        sys::bind(socket.as_fd(), self.local(0))?;
        sys::connect(socket.as_fd(), scoped(actual(to), UDP_PORT, self.interface()))?;
        let (level, name) =
            if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
        options::get(socket.as_fd(), level, name).map(|mtu| mtu as usize)
    }

    /// The present address of a flow's receiver.
    pub(super) fn remote(&self, key: &FlowKey) -> SocketAddr {
        let mut to = scoped(key.to, UDP_PORT, self.interface());
        if is_moved() {
            to = self.remote_of_moved(key.to);
        }
        if let SocketAddr::V6(to) = &mut to {
            to.set_flowinfo(self.label(key).to_be());
        }
        to
    }

    /// The flow label that packets of a flow get; 0: the kernel chooses one.
    pub(super) fn label(&self, key: &FlowKey) -> u32 {
        if key.label != 0 && self.sends_labels() { key.label } else { 0 }
    }

    #[cold]
    fn remote_of_moved(&self, to: IpAddr) -> SocketAddr {
        scoped(actual(to), UDP_PORT, self.interface())
    }

    /// The source of packets that leave by source port `port`, for their ICRC.
    #[inline]
    pub(super) fn source(&self, port: u16) -> SocketAddr {
        if is_moved() { self.local(port) } else { SocketAddr::new(self.ip, port) }
    }

    /// Returns true if packets can have the flow label that the program wants. Since Linux 5.3 any process may choose
    /// one, unless a socket in the network namespace has an exclusive one (IPV6_FL_S_EXCL): then all have to be leased.
    #[inline]
    pub(super) fn sends_labels(&self) -> bool {
        *self.labels.get_or_init(|| {
            let SocketAddr::V6(mut own) = self.local(UDP_PORT) else { return false };
            own.set_flowinfo(1u32.to_be());
            let tried = open(self.ip()).and_then(|socket| {
                options::for_sending(socket.as_fd(), self.ip())?;
                sys::connect(socket.as_fd(), own.into())
            });
            if let Err(e) = &tried {
                log::info!("{}: the kernel chooses the flow labels of packets: {e}", self.ip());
            }
            tried.is_ok()
        })
    }

    /// Index of the port's interface; 0: unknown.
    pub fn interface(&self) -> u32 {
        self.interface.load(Ordering::Relaxed)
    }

    /// The socket and source port for packets to a process slot, one of [`SPREAD`].
    pub(super) fn flow(&self, slot: u32, spread: u32) -> (BorrowedFd<'_>, u16) {
        let n = (slot as usize * SPREAD + spread as usize % SPREAD) % FLOWS;
        let opened = self.flows[n].get_or_init(|| self.open_flow(n as u16));
        match opened {
            Some(flow) => (flow.socket.as_fd(), flow.source.load(Ordering::Relaxed)),
            None => (self.receive.as_fd(), UDP_PORT),
        }
    }

    fn open_flow(&self, n: u16) -> Option<Flow> {
        // Spread by process id, so that processes seldom try each other's ports.
        let first = (std::process::id() as u16).wrapping_mul(FLOWS as u16).wrapping_add(n);
        let (socket, source) = self.open_flow_from(first)?;
        Some(Flow { socket, source: AtomicU16::new(source) })
    }

    /// A socket to send by, and its source port: the one that `first` stands for, or one of the next.
    fn open_flow_from(&self, first: u16) -> Option<(OwnedFd, u16)> {
        let socket = open(self.ip()).ok()?;
        options::for_sending(socket.as_fd(), self.ip()).ok()?;
        let loops = self.multicast_loops.load(Ordering::Relaxed);
        if let Err(e) = self.send_multicast_by(socket.as_fd(), loops) {
            log::debug!("{}: no multicast: {e}", self.ip());
        }
        // No packets are expected here.
        options::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &0).ok()?;
        let is_free = |source: &u16| sys::bind(socket.as_fd(), self.local(*source)).is_ok();
        let source =
            (0..TRIES).map(|i| FIRST_SOURCE_PORT | (first.wrapping_add(i) & !FIRST_SOURCE_PORT)).find(is_free)?;
        Some((socket, source))
    }

    /// Closes all sockets but the one for incoming packets, whose descriptor stands for nothing until [`Port::reopen`].
    pub fn close(&self) -> io::Result<()> {
        self.flows
            .iter()
            .filter_map(|flow| flow.get()?.as_ref())
            .try_for_each(|flow| sys::vacate(flow.socket.as_fd()))?;
        self.groups.close()?;
        sys::vacate(self.receive.as_fd())
    }

    /// Opens the sockets again, on the interface with index `interface`, with their previous source ports where these
    /// are free, and receives from `receive` from now on. A sending socket that cannot be opened is replaced by another
    /// of the port's.
    pub fn reopen(&self, receive: OwnedFd, interface: u32) -> io::Result<()> {
        self.interface.store(interface, Ordering::Relaxed);
        sys::refill(self.receive.as_fd(), receive)?;
        if self.hop_limits.load(Ordering::Relaxed) {
            self.tell_hop_limits();
        }
        for flow in self.flows.iter().filter_map(|flow| flow.get()?.as_ref()) {
            let (socket, source) = match self.open_flow_from(flow.source.load(Ordering::Relaxed)) {
                Some(opened) => opened,
                None => (self.receive.try_clone()?, UDP_PORT),
            };
            sys::refill(flow.socket.as_fd(), socket)?;
            flow.source.store(source, Ordering::Relaxed);
        }
        self.reopen_groups()
    }

    /// Calls `f` with the sockets for incoming packets, including those of multicast groups.
    pub fn each_receive_socket(&self, mut f: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        f(self.receive.as_fd())?;
        self.groups.each(f)
    }

    /// Counts received packets; `dropped` are those that the kernel has dropped so far. Returns true if there are more
    /// of them.
    pub(super) fn received(&self, packets: usize, bytes: usize, dropped: Option<u32>) -> bool {
        self.counters.received_packets.add(packets as u64);
        self.counters.received_bytes.add(bytes as u64);
        let Some(dropped) = dropped.map(u64::from) else { return false };
        let more = dropped != self.counters.dropped.get();
        self.counters.dropped.set(dropped);
        more && self.can_have_been_full()
    }

    /// Returns true if so much has come since the last time that the receive buffer may have been full. The kernel also
    /// counts packets with a wrong checksum as dropped: who sends such must not slow down others.
    #[cold]
    fn can_have_been_full(&self) -> bool {
        let taken = self.counters.received_bytes.get() + OVERHEAD * self.counters.received_packets.get();
        let since = taken - self.taken_when_full.load(Ordering::Relaxed).min(taken);
        let enough = since >= self.room / 4;
        if enough {
            self.taken_when_full.store(taken, Ordering::Relaxed);
        }
        enough
    }

    /// Returns true if several packets may leave as one train.
    pub fn takes_trains(&self) -> bool {
        self.trains.load(Ordering::Relaxed)
    }

    /// Notes that the interface does not take trains: it has no checksum offload, for instance.
    pub(super) fn without_trains(&self) {
        if self.trains.swap(false, Ordering::Relaxed) {
            self.counters.refused_trains.add(1);
            log::info!("{}: the network interface takes single packets only (no UDP_SEGMENT)", self.ip());
        }
    }
}

/// A socket of the family of `ip`.
pub(super) fn open(ip: IpAddr) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// One sentence for why there is no port on `ip`.
fn refusal(ip: IpAddr, e: &io::Error) -> Error {
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    let at = if ip.is_ipv6() { format!("[{ip}]:{UDP_PORT}") } else { format!("{ip}:{UDP_PORT}") };
    let reason = match errno {
        libc::EADDRINUSE => "another user, or the kernel's rdma_rxe, has this UDP port".to_owned(),
        libc::EACCES | libc::EPERM => format!("this process may not open it ({e})"),
        libc::EADDRNOTAVAIL | libc::ENODEV => "the address is gone from this host".to_owned(),
        libc::EMFILE | libc::ENFILE => format!("no descriptor is left ({e})"),
        libc::EAFNOSUPPORT => "the host has no such protocol".to_owned(),
        _ => e.to_string(),
    };
    Error::new(errno, format!("cannot receive RoCE packets at {at}: {reason}"))
}
