//! The host's network at one moment: interfaces, their state, MTU and addresses. They come from `getifaddrs` and not
//! from sysfs, which may show another network namespace than the process's.

use crate::host::address_map;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A network interface that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub index: u32,
    pub name: String,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// Up, and its cable carries.
    pub running: bool,
    pub loopback: bool,
    pub addresses: Vec<IpAddr>,
}

/// All interfaces, in the order of their indices, with the addresses and names that the program knows; none where the
/// kernel does not tell.
pub(crate) fn interfaces() -> Vec<Interface> {
    address_map::as_known(at_present())
}

/// All interfaces as they are.
pub(crate) fn at_present() -> Vec<Interface> {
    let Ok(entries) = getifaddrs() else { return Vec::new() };
    let mut all: Vec<Interface> = Vec::new();
    let mut addresses = Vec::new();
    for entry in entries {
        let Some(address) = entry.address else { continue };
        // An address may have a label of its own, as in "eth0:1".
        let name = entry.interface_name.split(':').next().unwrap_or_default().to_owned();
        if let Some(link) = address.as_link_addr() {
            all.push(Interface {
                index: link.ifindex() as u32,
                mtu: 0,
                running: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                addresses: Vec::new(),
                name,
            });
        } else if let Some(v4) = address.as_sockaddr_in() {
            addresses.push((name, IpAddr::V4(v4.ip())));
        } else if let Some(v6) = address.as_sockaddr_in6() {
            addresses.push((name, IpAddr::V6(v6.ip())));
        }
    }
    all.sort_by_key(|i| i.index);
    for (name, address) in addresses {
        if let Some(interface) = all.iter_mut().find(|i| i.name == name) {
            interface.addresses.push(address);
        }
    }
    ask_mtus(&mut all);
    all
}

/// Sets the MTU of each interface; 0 for one that is gone meanwhile.
fn ask_mtus(all: &mut [Interface]) {
    // SAFETY: makes a socket, which only carries questions about interfaces and is closed below.
    let socket = unsafe {
        match libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
            fd @ 0.. => OwnedFd::from_raw_fd(fd),
            _ => return,
        }
    };
    for interface in all {
        // SAFETY: an ifreq of zeros is valid; the name is shorter than its array and followed by a zero; SIOCGIFMTU
        // reads the name and writes the MTU, the member that is read when the call says that it did.
        interface.mtu = unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            let room = request.ifr_name.len() - 1;
            for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.name.bytes()) {
                *to = from as libc::c_char;
            }
            match libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) {
                0 => request.ifr_ifru.ifru_mtu as u32,
                _ => 0,
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_address_and_an_mtu() {
        let all = interfaces();
        let lo = all.iter().find(|i| i.loopback).unwrap_or_else(|| panic!("no loopback in {all:?}"));
        assert!(lo.mtu >= 1280 && lo.index > 0, "{lo:?}");
        assert!(!lo.running || lo.addresses.iter().any(IpAddr::is_loopback), "{lo:?}");
    }
}
