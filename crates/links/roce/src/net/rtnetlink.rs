//! Questions to the kernel about routes, interfaces and neighbours (rtnetlink(7)), which every user may ask.

use super::sys;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};
use std::io;
use std::net::IpAddr;

/// Most bytes of an answer, which is one message.
const ROOM: usize = 8 << 10;
/// Bytes of a message's header, and of an attribute's.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// Missing from libc for some C libraries.
const RTA_VIA: u16 = 18;
/// Milliseconds that an answer may take. The kernel answers within the call that asks.
const PATIENCE_MS: i64 = 1000;

/// The next host on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its address.
    pub ip: IpAddr,
    /// Index of the interface to it.
    pub interface: u32,
}

/// A socket for questions, which also receives notifications about neighbours.
pub struct Rtnetlink {
    socket: OwnedFd,
    asked: u32,
    /// True if a message came that was no answer.
    heard: bool,
}

impl Rtnetlink {
    /// Opens a socket.
    pub fn open() -> io::Result<Rtnetlink> {
        // NETLINK_ROUTE is protocol 0.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, libc::RTMGRP_NEIGH as u32))?;
        Ok(Rtnetlink { socket, asked: 0, heard: false })
    }

    /// The next hop on the route from `from` to `to`, by `interface` unless that is 0; None: `to` is an address of this
    /// host.
    pub fn next_hop(&mut self, from: IpAddr, to: IpAddr, interface: u32) -> io::Result<Option<Hop>> {
        // struct rtmsg: family, lengths of the prefixes, and fields left 0, the kind of route among them.
        const LENGTH: usize = 12;
        const KIND: usize = 7;
        let bits = if to.is_ipv4() { 32 } else { 128 };
        let mut question = vec![0; LENGTH];
        question[..3].copy_from_slice(&[family(to), bits, bits]);
        attribute(&mut question, libc::RTA_DST, &bytes(to));
        attribute(&mut question, libc::RTA_SRC, &bytes(from));
        if interface != 0 {
            attribute(&mut question, libc::RTA_OIF, &interface.to_ne_bytes());
        }
        let answer = self.ask(libc::RTM_GETROUTE, &question)?;
        if answer.get(KIND) == Some(&libc::RTN_LOCAL) {
            return Ok(None);
        }
        let mut hop = Hop { ip: to, interface };
        for (kind, value) in attributes(answer.get(LENGTH..).unwrap_or_default()) {
            match kind {
                libc::RTA_OIF => hop.interface = value.try_into().map_or(interface, u32::from_ne_bytes),
                libc::RTA_GATEWAY => hop.ip = address(value).unwrap_or(to),
                // Of another family: struct rtvia, which begins with two bytes for the family.
                RTA_VIA => hop.ip = value.get(2..).and_then(address).unwrap_or(to),
                _ => {}
            }
        }
        Ok(Some(hop))
    }

    /// Returns true if the neighbours behind an interface have link-layer addresses.
    pub fn resolves(&mut self, interface: u32) -> io::Result<bool> {
        // struct ifinfomsg: family, type, index, flags, mask of changed flags.
        let mut question = vec![0; 16];
        question[4..8].copy_from_slice(&interface.to_ne_bytes());
        let answer = self.ask(libc::RTM_GETLINK, &question)?;
        let flags = answer.get(8..12).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
        Ok(flags & (libc::IFF_NOARP | libc::IFF_LOOPBACK) == 0)
    }

    /// Returns true if the link-layer address of a neighbour is known.
    pub fn knows(&mut self, hop: Hop) -> io::Result<bool> {
        const VALID: u16 = libc::NUD_PERMANENT
            | libc::NUD_NOARP
            | libc::NUD_REACHABLE
            | libc::NUD_PROBE
            | libc::NUD_STALE
            | libc::NUD_DELAY;
        // struct ndmsg: family, index, state, flags and type.
        let mut question = vec![0; 12];
        question[0] = family(hop.ip);
        question[4..8].copy_from_slice(&hop.interface.to_ne_bytes());
        attribute(&mut question, libc::NDA_DST, &bytes(hop.ip));
        match self.ask(libc::RTM_GETNEIGH, &question) {
            Ok(answer) => {
                let state = answer.get(8..10).and_then(|b| b.try_into().ok()).map_or(0, u16::from_ne_bytes);
                Ok(state & VALID != 0)
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Waits at most `milliseconds` for a notification about a neighbour since the last call.
    pub fn wait_for_change(&mut self, milliseconds: i64) {
        if !std::mem::take(&mut self.heard) && sys::is_readable_within(self.socket.as_raw_fd(), milliseconds) {
            // Its contents do not matter: the next question shows the present state. NOBUFS (some were lost) means the
            // same.
            let _ = recv(&self.socket, &mut [0u8; 1], RecvFlags::DONTWAIT);
        }
    }

    /// The kernel's answer to one question, without its header.
    fn ask(&mut self, kind: u16, question: &[u8]) -> io::Result<Vec<u8>> {
        self.asked += 1;
        let mut message = Vec::with_capacity(HEADER + question.len());
        message.extend_from_slice(&((HEADER + question.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
        message.extend_from_slice(&self.asked.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(question);
        send(&self.socket, &message, SendFlags::empty())?;
        loop {
            let mut room = vec![0; ROOM];
            let (length, _) = match recv(self.socket.as_fd(), &mut room[..], RecvFlags::DONTWAIT) {
                Ok(received) => received,
                Err(rustix::io::Errno::AGAIN) if sys::is_readable_within(self.socket.as_raw_fd(), PATIENCE_MS) => {
                    continue;
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            room.truncate(length);
            let word = |at: usize| room.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
            if word(8) != self.asked {
                self.heard = true;
                continue;
            }
            let is_error = i32::from(word(4) as u16) == libc::NLMSG_ERROR;
            return match word(HEADER) as i32 {
                error if is_error && error != 0 => Err(io::Error::from_raw_os_error(-error)),
                _ => Ok(room.split_off(HEADER.min(room.len()))),
            };
        }
    }
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Appends an attribute, whose value consists of whole words.
fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend_from_slice(&((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
}

/// The attributes of an answer.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let ([l0, l1, k0, k1], _) = bytes.split_first_chunk::<ATTRIBUTE>()?;
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let value = bytes.get(ATTRIBUTE..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([*k0, *k1]), value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_an_address_of_this_host_has_no_next_hop() {
        let mut kernel = Rtnetlink::open().unwrap();
        let lo = [127, 0, 0, 1].into();
        assert_eq!(kernel.next_hop(lo, lo, 0).unwrap(), None);
        assert!(!kernel.resolves(1).unwrap(), "the loopback interface");
        assert!(kernel.resolves(0x7fff_ffff).is_err(), "there is none");
    }

    #[test]
    fn torn_attributes_end_the_list() {
        let mut message = Vec::new();
        attribute(&mut message, 7, &[1, 2, 3, 4]);
        attribute(&mut message, 8, &[5; 16]);
        let read = |bytes| attributes(bytes).map(|(kind, value)| (kind, value.len())).collect::<Vec<_>>();
        assert_eq!(read(&message), [(7, 4), (8, 16)]);
        assert_eq!(read(&message[..message.len() - 1]), [(7, 4)]);
        assert_eq!(read(&[0, 0, 0, 0]), [], "shorter than its own header");
    }
}
