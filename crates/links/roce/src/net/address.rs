//! Socket addresses as the kernel takes and gives them.

use libc::{sockaddr_in, sockaddr_in6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A `struct sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy)]
#[repr(C)]
pub union RawAddress {
    family: libc::sa_family_t,
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl RawAddress {
    /// No address, for the kernel to fill in.
    pub const EMPTY: RawAddress = RawAddress { v6: sockaddr_in6 { sin6_family: 0, ..V6 } };
    /// Its size.
    pub const SIZE: u32 = size_of::<RawAddress>() as u32;

    /// The kernel's form of `address`, and its length.
    pub fn new(address: SocketAddr) -> (RawAddress, u32) {
        match address {
            SocketAddr::V4(a) => {
                let v4 = sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (RawAddress { v4 }, size_of::<sockaddr_in>() as u32)
            }
            SocketAddr::V6(a) => {
                let v6 = sockaddr_in6 {
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                    ..V6
                };
                (RawAddress { v6 }, size_of::<sockaddr_in6>() as u32)
            }
        }
    }

    /// The address that the kernel filled in; None: it is no IP address.
    pub fn get(&self) -> Option<SocketAddr> {
        // SAFETY: every bit pattern is a valid value of all members, and all bytes are initialised.
        unsafe {
            match i32::from(self.family) {
                libc::AF_INET => {
                    let ip = Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes());
                    Some((ip, u16::from_be(self.v4.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                    Some(SocketAddrV6::new(ip, u16::from_be(self.v6.sin6_port), 0, self.v6.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }
}

const V6: sockaddr_in6 = sockaddr_in6 {
    sin6_family: libc::AF_INET6 as libc::sa_family_t,
    sin6_port: 0,
    sin6_flowinfo: 0,
    sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
    sin6_scope_id: 0,
};

/// `ip` and `port`, with the interface `scope` where the address means nothing without one (RFC 4007).
pub fn scoped(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => {
            let multicast_of_link = ip.is_multicast() && ip.octets()[1] & 0x0f == 2;
            let needed = ip.is_unicast_link_local() || multicast_of_link;
            SocketAddrV6::new(ip, port, 0, if needed { scope } else { 0 }).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_the_kernel_and_back() {
        for text in ["192.0.2.7:4791", "[2001:db8::7]:49152"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::new(address).0.get(), Some(address));
        }
        let scoped = scoped("fe80::1".parse().unwrap(), 4791, 3);
        assert_eq!(RawAddress::new(scoped).0.get(), Some(scoped));
        assert_eq!(RawAddress::EMPTY.get(), None);
    }

    #[test]
    fn only_addresses_of_a_link_get_a_scope() {
        let scope_of = |text: &str| match scoped(text.parse().unwrap(), 1, 9) {
            SocketAddr::V6(a) => a.scope_id(),
            SocketAddr::V4(_) => unreachable!(),
        };
        assert_eq!(
            [scope_of("fe80::1"), scope_of("ff02::5"), scope_of("2001:db8::1"), scope_of("ff0e::5")],
            [9, 9, 0, 0]
        );
    }
}
