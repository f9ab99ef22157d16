//! Addresses: the program's, the kernel's routes to them, and the GIDs that stand for them.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with};
use vervain_abi::ibv_gid;

use crate::abi::AF_IB;

/// The address of a `struct sockaddr`. EAFNOSUPPORT for AF_IB, and EINVAL for another family than AF_INET and AF_INET6.
///
/// # Safety
/// It is one, of the length of its family.
pub unsafe fn read(at: *const sockaddr) -> Result<SocketAddr, c_int> {
    if at.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's; it may lie anywhere.
    match c_int::from(unsafe { (&raw const (*at).sa_family).read_unaligned() }) {
        libc::AF_INET => {
            // SAFETY: of that family; copied, as it need not be aligned as its type is.
            let from = unsafe { at.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(from.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let from = unsafe { at.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(from.sin6_addr.s6_addr), u16::from_be(from.sin6_port));
            Ok(SocketAddrV6::new(ip, port, from.sin6_flowinfo, from.sin6_scope_id).into())
        }
        AF_IB => Err(libc::EAFNOSUPPORT),
        _ => Err(libc::EINVAL),
    }
}

/// Writes it as the program knows it: as long as its family's is, the rest zero.
pub fn write(to: &mut sockaddr_storage, address: &SocketAddr) {
    // SAFETY: a struct of integers.
    *to = unsafe { std::mem::zeroed() };
    let at: *mut sockaddr_storage = to;
    match address {
        SocketAddr::V4(v4) => {
            let value = sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: it has room for each family's.
            unsafe { at.cast::<sockaddr_in>().write(value) };
        }
        SocketAddr::V6(v6) => {
            let value = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { at.cast::<sockaddr_in6>().write(value) };
        }
    }
}

/// Any address of its family, at that port.
pub(crate) fn any_like(address: &SocketAddr, port: u16) -> SocketAddr {
    let ip: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, port)
}

/// The GID of an IP address (IBA annex A17.4.3).
pub(crate) fn gid_of(ip: IpAddr) -> ibv_gid {
    match ip {
        IpAddr::V4(v4) => ibv_gid { raw: v4.to_ipv6_mapped().octets() },
        IpAddr::V6(v6) => ibv_gid { raw: v6.octets() },
    }
}

/// The GID of a multicast group, as the kernel's rdma_cm makes it of an IP address for RoCE v2.
pub(crate) fn group_gid_of(ip: IpAddr) -> ibv_gid {
    match ip {
        IpAddr::V4(v4) => {
            let mut raw = gid_of(v4.into()).raw;
            raw[..2].copy_from_slice(&[0xff, 0x0e]);
            ibv_gid { raw }
        }
        IpAddr::V6(v6) => ibv_gid { raw: v6.octets() },
    }
}

/// A UDP socket at an address of the host, by system calls: a preload that makes other sockets of the program's does
/// not see it.
pub(crate) fn socket_at(at: &SocketAddr) -> Result<OwnedFd, c_int> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let made = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    made.and_then(|socket| bind(&socket, at).map(|()| socket)).map_err(|e| e.raw_os_error())
}

/// From where the kernel would send to `to`, which may be `from` only if that is said; with port 0.
///
/// # Errors
/// ENETUNREACH and the like where no route leads there.
pub fn source_for(from: Option<&SocketAddr>, to: &SocketAddr) -> Result<SocketAddr, c_int> {
    let mut at = from.map_or_else(|| any_like(to, 0), |from| *from);
    at.set_port(0);
    let socket = socket_at(&at)?;
    // No packet is sent. A port is needed, but any will do.
    let mut to = *to;
    if to.port() == 0 {
        to.set_port(1);
    }
    let connected = connect(&socket, &to).and_then(|()| getsockname(&socket)).map_err(|e| e.raw_os_error())?;
    let mut from = SocketAddr::try_from(connected).map_err(|e| e.raw_os_error())?;
    from.set_port(0);
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["192.0.2.7:7471", "[fe80::1%3]:80", "[2001:db8::9]:0", "0.0.0.0:1"] {
            let address: SocketAddr = text.parse().unwrap();
            // SAFETY: a struct of integers.
            let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
            write(&mut storage, &address);
            // SAFETY: it was just written.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(address), "{text}");
        }
        // SAFETY: a struct of integers.
        let unix = sockaddr { sa_family: libc::AF_UNIX as _, ..unsafe { std::mem::zeroed() } };
        // SAFETY: it is one.
        assert_eq!(unsafe { read(&unix) }, Err(libc::EINVAL));
        // SAFETY: null is looked for.
        assert_eq!(unsafe { read(std::ptr::null()) }, Err(libc::EINVAL));
    }

    #[test]
    fn groups_have_the_gids_of_the_kernel() {
        let gid = group_gid_of("239.1.2.3".parse().unwrap());
        assert_eq!(Ipv6Addr::from(gid.raw).to_string(), "ff0e::ffff:ef01:203");
        let gid = group_gid_of("ff05::7".parse().unwrap());
        assert_eq!(Ipv6Addr::from(gid.raw).to_string(), "ff05::7");
    }
}
