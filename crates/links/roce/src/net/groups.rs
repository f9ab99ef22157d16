//! Multicast groups of a port (IBA 10.5.2, over IP multicast by annex A17.4). A socket bound to a unicast address gets
//! no multicast packets, so each group has a socket of its own, bound to the group's address. Every process that has
//! joined gets a copy, including the sender's own.

use super::address::scoped;
use super::options::{self, set};
use super::port::{self, Port};
use super::sys;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::forget_private_fd;
use vervain_hca::{Error, Result};
use vervain_wire::UDP_PORT;

/// Missing from libc: limits delivery to this socket's own memberships.
const IPV6_MULTICAST_ALL: i32 = 29;

/// The groups of a port.
#[derive(Default)]
pub struct Groups {
    list: OwnerLock<Vec<Group>>,
    /// True if there are any, for a look after each packet.
    any: AtomicBool,
}

struct Group {
    ip: IpAddr,
    socket: OwnedFd,
    joins: usize,
}

/// The watcher of the socket may have noted it for closing in children; its number may soon be a file of the program.
impl Drop for Group {
    fn drop(&mut self) {
        forget_private_fd(self.socket.as_raw_fd());
    }
}

impl Port {
    /// Enters a group. The first entry calls `watch` with the socket for its packets, to wait for;
    /// [`super::ReceiveBatch::receive`] asks there too.
    pub fn join(&self, group: IpAddr, watch: impl FnOnce(BorrowedFd<'_>) -> Result<()>) -> Result<()> {
        let mut list = self.groups.list.lock();
        if let Some(known) = list.iter_mut().find(|known| known.ip == group) {
            known.joins += 1;
            return Ok(());
        }
        let socket = self.open_group(group).map_err(|e| {
            let what = format!("{} cannot join the multicast group {group}: {e}", self.ip());
            Error::new(e.raw_os_error().unwrap_or(libc::EIO), what)
        })?;
        let joined = Group { ip: group, socket, joins: 1 };
        watch(joined.socket.as_fd())?;
        list.push(joined);
        self.groups.any.store(true, Ordering::Release);
        Ok(())
    }

    /// Leaves a group that was joined. The last one to leave closes its socket.
    pub fn leave(&self, group: IpAddr) {
        let mut list = self.groups.list.lock();
        let Some(at) = list.iter().position(|known| known.ip == group) else { return };
        list[at].joins -= 1;
        if list[at].joins == 0 {
            list.swap_remove(at);
            self.groups.any.store(!list.is_empty(), Ordering::Release);
        }
    }

    /// Opens the sockets again that [`Groups::close`] has closed.
    pub(super) fn reopen_groups(&self) -> io::Result<()> {
        let list = self.groups.list.lock();
        list.iter().try_for_each(|group| sys::refill(group.socket.as_fd(), self.open_group(group.ip)?))
    }

    fn open_group(&self, group: IpAddr) -> io::Result<OwnedFd> {
        const ON: i32 = 1;
        const OFF: i32 = 0;
        let socket = port::open(group)?;
        let fd = socket.as_fd();
        // Not SO_REUSEPORT: that would keep other users out, and every socket gets a copy anyway.
        set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &ON)?;
        options::for_packets(fd, group)?;
        options::for_hop_limits(fd, group)?;
        sys::bind(fd, scoped(group, UDP_PORT, self.interface()))?;
        match group {
            IpAddr::V4(group) => {
                set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &OFF)?;
                let IpAddr::V4(local) = self.local(0).ip() else { return Err(io::ErrorKind::InvalidInput.into()) };
                let membership = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
                    imr_address: libc::in_addr { s_addr: u32::from_ne_bytes(local.octets()) },
                    imr_ifindex: self.interface() as i32,
                };
                set(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &membership)?;
            }
            IpAddr::V6(group) => {
                set(fd, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, &OFF)?;
                let membership = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                    ipv6mr_interface: self.interface(),
                };
                set(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &membership)?;
            }
        }
        Ok(socket)
    }

    /// Makes `socket` send to IPv6 groups by the port's interface (to IPv4 ones its address decides), and with `loops`
    /// also back to this host's members.
    pub(super) fn send_multicast_by(&self, socket: BorrowedFd<'_>, loops: bool) -> io::Result<()> {
        let loops = i32::from(loops);
        if self.ip().is_ipv4() {
            return set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, &loops);
        }
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, &loops)?;
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &self.interface())
    }
}

impl Groups {
    /// Closes the sockets; the groups stay joined.
    pub(super) fn close(&self) -> io::Result<()> {
        self.each(sys::vacate)
    }

    /// Calls `f` with each socket.
    pub(super) fn each(&self, mut f: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        self.list.lock().iter().try_for_each(|group| f(group.socket.as_fd()))
    }

    /// Calls `take` with the socket and address of each group until it returns true. Returns true if it did.
    pub fn any(&self, mut take: impl FnMut(BorrowedFd<'_>, IpAddr) -> bool) -> bool {
        self.any.load(Ordering::Acquire) && self.list.lock().iter().any(|group| take(group.socket.as_fd(), group.ip))
    }
}
