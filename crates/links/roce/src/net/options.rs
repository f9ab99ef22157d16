//! The socket options that RoCE v2 packets need.

use super::limits::{ECT0, HOP_LIMIT};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of room that sockets ask for: a burst of 64 windows of full packets. The kernel limits it to net.core.rmem_max
/// unless the process may exceed that.
const ROOM: i32 = 16 << 20;

/// The value of a switch.
const ON: i32 = 1;

/// Sets one option.
pub fn set<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let (pointer, length) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `length` bytes, those of `value`.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads one option that is an int.
pub fn get(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let (mut value, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `length` bytes, into `value`, and the length into `length`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast::<libc::c_void>(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// For a socket that packets leave by: never fragmented, so that IPv4 identification is 0, with the flow label of
/// their address, unless that is 0, and ECN-capable, which most packets are: a control message would cost each train.
pub fn for_sending(fd: BorrowedFd<'_>, local: IpAddr) -> io::Result<()> {
    let (hops, class) = (i32::from(HOP_LIMIT), i32::from(ECT0));
    if local.is_ipv4() {
        set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
        set(fd, libc::IPPROTO_IP, libc::IP_TTL, &hops)?;
        set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, &hops)?;
        set(fd, libc::IPPROTO_IP, libc::IP_TOS, &class)?;
    } else {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &libc::IPV6_PMTUDISC_DO)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, &hops)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, &hops)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND, &ON)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class)?;
    }
    set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &ROOM)
}

/// For a socket that packets come in by, those of an address: the processes of a user share it.
pub fn for_receiving(fd: BorrowedFd<'_>, local: IpAddr) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &ON)?;
    for_packets(fd, local)
}

/// For any socket that packets come in by. Traffic class or TOS come with them, for the network's marks (RFC 3168); a
/// network stack that does not tell them has none.
pub fn for_packets(fd: BorrowedFd<'_>, local: IpAddr) -> io::Result<()> {
    for_any_packets(fd, local)?;
    let _ = match local {
        IpAddr::V4(_) => set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, &ON),
        IpAddr::V6(_) => set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &ON),
    };
    set(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &ON)?;
    set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &ROOM)
        .or_else(|_| set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &ROOM))
}

/// Sets the options of all sockets of an address, including the one that nobody reads. IPv6 sockets take no IPv4
/// packets. Trains come whole; the kernel asks any of the sockets for that before it knows whose the packet is. UDP
/// checksum 0, to which RoCE senders have a right (IBA annex A17), is accepted over IPv6, where other sockets drop it
/// (RFC 6935). A network stack without trains, such as a sandbox's, hands out each packet by itself.
pub fn for_any_packets(fd: BorrowedFd<'_>, local: IpAddr) -> io::Result<()> {
    if local.is_ipv6() {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &ON)?;
        set(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, &ON)?;
    }
    let _ = set(fd, libc::SOL_UDP, libc::UDP_GRO, &ON);
    Ok(())
}

/// Asks for hop limit and flow label of what comes in.
pub fn for_hop_limits(fd: BorrowedFd<'_>, local: IpAddr) -> io::Result<()> {
    if local.is_ipv4() {
        set(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, &ON)
    } else {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &ON)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, &ON)
    }
}
