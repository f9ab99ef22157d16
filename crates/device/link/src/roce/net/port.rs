//! A port: the sockets of one local address. Packets come in at UDP port 4791, which the processes of a user share; they
//! leave by one of several source ports, so that those of different QPs may take different queues and paths (IBA annex
//! A17.9.1). Those to different processes of a host have different ones: a network card merges the packets of one port on
//! arrival, and what is for two processes had to be parted again.

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
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use vervain_hca::host::address_map::{actual, is_moved};
use vervain_hca::{Error, Result};
use vervain_wire::UDP_PORT;

/// How many source ports the QPs of one peer process share.
pub const SPREAD: usize = 4;
/// Source ports in use at most; every eighth process slot has the same.
const FLOWS: usize = 8 * SPREAD;
/// Source ports are those from here to the end, as adapters choose them.
const FIRST_SOURCE_PORT: u16 = 0xc000;
/// How many ports may be taken by others before a flow does with [`UDP_PORT`].
const TRIES: u16 = 64;

/// The sockets of one local address, as the program knows it; they are bound to what that has become.
pub struct Port {
    ip: IpAddr,
    interface: AtomicU32,
    receive: OwnedFd,
    flows: [OnceLock<Option<Flow>>; FLOWS],
    /// The interface takes trains, as far as is known.
    trains: AtomicBool,
    /// Hop limits are asked for.
    hop_limits: AtomicBool,
    /// The kernel lets programs choose the flow label; asked when one does.
    labels: OnceLock<bool>,
    /// Multicast packets come back to this host's members too.
    multicast_loops: AtomicBool,
    /// What its receive buffer holds, as the kernel counts it.
    room: u64,
    counters: Counters,
    pub(super) groups: Groups,
    pub(super) lines: Option<Arc<Lines>>,
    pub(super) capture: Option<&'static Capture>,
}

/// A socket that packets leave by.
struct Flow {
    socket: OwnedFd,
    source: AtomicU16,
}

impl Port {
    /// Opens the sockets of address `ip` on the interface with index `interface`. The errors: EADDRINUSE when somebody
    /// else has UDP port 4791 there, EACCES, EADDRNOTAVAIL when the host has no such address (any more).
    pub fn open(ip: IpAddr, interface: u32) -> Result<Port> {
        Port::with_socket(ip, interface, Port::bind(ip, interface)?)
    }

    /// The socket alone that packets come in by, bound and ready. It is the last of its reuseport group.
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

    /// A port that takes packets from `receive`, which [`Port::bind`] made for the same address. The error: a variable that
    /// asks for faults or for a capture is wrong.
    pub fn with_socket(ip: IpAddr, interface: u32, receive: OwnedFd) -> Result<Port> {
        let room = options::get(receive.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or_default();
        Ok(Port {
            room: u64::try_from(room).unwrap_or_default(),
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

    /// The address as it is, with a port.
    #[cold]
    pub(super) fn local(&self, port: u16) -> SocketAddr {
        scoped(actual(self.ip), port, self.interface())
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// This host's members of multicast groups get their copies in another way: they are not sent any. To be said before the
    /// first packet.
    pub fn spare_own_members(&self) {
        self.multicast_loops.store(false, Ordering::Relaxed);
    }

    /// Bytes that its receive buffer holds, as the kernel counts them: with the memory around each packet.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// The socket that packets come in by, to wait for.
    pub fn receive_socket(&self) -> BorrowedFd<'_> {
        self.receive.as_fd()
    }

    /// From now on hop limit, traffic class and flow label of what comes in are told, as the GRH of a datagram needs them. Not from the
    /// beginning, for they cost 170 ns a packet.
    pub fn tell_hop_limits(&self) {
        self.hop_limits.store(true, Ordering::Relaxed);
        if let Err(e) = options::for_hop_limits(self.receive.as_fd(), self.ip()) {
            log::warn!("{}: no hop limits of received packets: {e}", self.ip());
        }
    }

    /// When the next packet is due that faults hold back (CLOCK_MONOTONIC, ns): [`Port::release`] is to be called then, and
    /// packets are to be asked for.
    pub fn next_release(&self) -> Option<u64> {
        self.lines.as_ref()?.next_release()
    }

    /// The largest IP packet that the way to `to` takes, in bytes, as far as the kernel knows.
    pub fn path_mtu(&self, to: IpAddr) -> io::Result<usize> {
        let socket = open(to)?;
        options::for_sending(socket.as_fd(), to)?;
        sys::bind(socket.as_fd(), self.local(0))?;
        sys::connect(socket.as_fd(), scoped(actual(to), UDP_PORT, self.interface()))?;
        let (level, name) =
            if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
        options::get(socket.as_fd(), level, name).map(|mtu| mtu as usize)
    }

    /// The address that packets of a flow go to, as it is.
    pub(super) fn remote(&self, key: &FlowKey) -> SocketAddr {
        let mut to = scoped(key.to, UDP_PORT, self.interface());
        if is_moved() {
            to = self.remote_of_moved(key.to);
        }
        if let SocketAddr::V6(to) = &mut to {
            to.set_flowinfo(key.label.to_be());
        }
        to
    }

    #[cold]
    fn remote_of_moved(&self, to: IpAddr) -> SocketAddr {
        scoped(actual(to), UDP_PORT, self.interface())
    }

    /// What packets come from that leave by a source port, for their ICRC.
    #[inline]
    pub(super) fn source(&self, port: u16) -> SocketAddr {
        if is_moved() { self.local(port) } else { SocketAddr::new(self.ip, port) }
    }

    /// Whether packets can have the flow label that the program wants. Any process may choose one, since Linux 5.3, unless
    /// somebody in the network namespace has one to himself (IPV6_FL_S_EXCL): then all have to be leased.
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

    /// The index of the port's interface, 0 if it is not known.
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

    /// A socket to send by, bound to the source port that `first` stands for or one of the next; and which that is.
    fn open_flow_from(&self, first: u16) -> Option<(OwnedFd, u16)> {
        let socket = open(self.ip()).ok()?;
        options::for_sending(socket.as_fd(), self.ip()).ok()?;
        let loops = self.multicast_loops.load(Ordering::Relaxed);
        if let Err(e) = self.send_multicast_by(socket.as_fd(), loops) {
            log::debug!("{}: no multicast: {e}", self.ip());
        }
        // Nothing is meant to come in here.
        options::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &0).ok()?;
        let is_free = |source: &u16| sys::bind(socket.as_fd(), self.local(*source)).is_ok();
        let source =
            (0..TRIES).map(|i| FIRST_SOURCE_PORT | (first.wrapping_add(i) & !FIRST_SOURCE_PORT)).find(is_free)?;
        Some((socket, source))
    }

    /// Closes all its sockets but the one that packets come in by, which stands for nothing any more, until [`Port::reopen`].
    pub fn close(&self) -> io::Result<()> {
        self.flows
            .iter()
            .filter_map(|flow| flow.get()?.as_ref())
            .try_for_each(|flow| sys::vacate(flow.socket.as_fd()))?;
        self.groups.close()?;
        sys::vacate(self.receive.as_fd())
    }

    /// Opens them again, on the interface with index `interface`, by the source ports that they had where these are free, and takes packets
    /// from `receive` from now on. In place of a socket to send by that is not to be had there is another one of the port's.
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

    /// The sockets that packets come in by, those of multicast groups too.
    pub fn each_receive_socket(&self, mut f: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        f(self.receive.as_fd())?;
        self.groups.each(f)
    }

    /// Counts packets that the kernel gave; `dropped` are those that it did not, so far.
    pub(super) fn received(&self, packets: usize, bytes: usize, dropped: Option<u32>) {
        self.counters.received_packets.add(packets as u64);
        self.counters.received_bytes.add(bytes as u64);
        if let Some(dropped) = dropped {
            self.counters.dropped.set(u64::from(dropped));
        }
    }

    /// Whether several packets may go as one train.
    pub fn takes_trains(&self) -> bool {
        self.trains.load(Ordering::Relaxed)
    }

    /// The interface does not take trains: one without checksum offload, for instance.
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
