//! Whether another host can be reached, found out when a QP is connected to it or an address handle made. An RNIC has to
//! know the link-layer address of the next hop by then, and the kernel finds it out: without a route the verb fails at
//! once, with ETIMEDOUT when nobody answers within a second. So it does here, and a program hears of a wrong address where it
//! has named it, not by a completion much later.
//!
//! A process without privileges can neither ask for a link-layer address nor wait for the answer. But it can look at what
//! the kernel knows (rtnetlink(7)), and a datagram makes the kernel ask. It is an empty one to the discard port, not to the RoCE
//! port: Debian's rdma_rxe panics the peer's kernel if an empty datagram comes there by IPv6.

use super::address::scoped;
use super::rtnetlink::{Hop, Rtnetlink};
use super::{port, sys};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use vervain_hca::host::address_map::actual;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::{Error, Result};

/// How long the next hop may take to answer at least (the kernel's `rdma_addr_find_l2_eth_by_grh`), and after which it is asked again.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a host that was reached is not asked for again: programs connect many QPs to one peer.
const KNOWN: Duration = Duration::from_secs(10);

/// Where datagrams go that only make the kernel ask for the next hop: "discard" (RFC 863).
const DISCARD_PORT: u16 = 9;

/// A local address, its interface, and a host.
type HostPair = (IpAddr, u32, IpAddr);

/// The hosts that have been reached lately.
#[derive(Default)]
pub struct Reach(OwnerLock<HashMap<HostPair, Instant>>);

impl Reach {
    /// Makes sure that `to` can be reached from `from`, an address of `interface`; waits for `patience`, or a second, whichever is longer.
    /// ENETUNREACH, EHOSTUNREACH and others as routes say, ETIMEDOUT when the next hop does not answer. Both are as the program knows them.
    pub fn check(&self, from: IpAddr, interface: u32, to: IpAddr, patience: Duration) -> Result<()> {
        let [from, to] = [from, to].map(actual);
        if from == to || to.is_multicast() {
            return Ok(());
        }
        let now = Instant::now();
        if self.0.lock().get(&(from, interface, to)).is_some_and(|since| now - *since < KNOWN) {
            return Ok(());
        }
        find(from, interface, to, patience.max(PATIENCE))?;
        let mut known = self.0.lock();
        known.retain(|_, since| now.saturating_duration_since(*since) < KNOWN);
        known.insert((from, interface, to), now);
        Ok(())
    }
}

fn find(from: IpAddr, interface: u32, to: IpAddr, patience: Duration) -> Result<()> {
    // Whatever is wrong with the own address shows when its port is opened.
    let Some(socket) = prober(from, interface, to)? else { return Ok(()) };
    match resolve(&socket, from, interface, to, patience) {
        Ok(None) => Ok(()),
        Ok(Some(hop)) => {
            let by = if hop.ip == to { String::new() } else { format!(" by way of {}", hop.ip) };
            let what = format!("{to} cannot be reached from {from}{by}: nobody answers there within {patience:?}");
            Err(Error::new(libc::ETIMEDOUT, what))
        }
        Err(e) => {
            // A sandbox without netlink sockets: what cannot be reached shows by retries, later.
            log::debug!("whether {to} can be reached from {from} is not told: {e}");
            Ok(())
        }
    }
}

/// A socket that sends from one address to another; none if the own one is not there.
fn prober(from: IpAddr, interface: u32, to: IpAddr) -> Result<Option<OwnedFd>> {
    let Ok(socket) = port::open(from).and_then(|s| sys::bind(s.as_fd(), scoped(from, 0, interface)).map(|()| s)) else {
        return Ok(None);
    };
    sys::connect(socket.as_fd(), scoped(to, DISCARD_PORT, interface)).map_err(|e| {
        let errno = e.raw_os_error().unwrap_or(libc::EHOSTUNREACH);
        Error::new(errno, format!("there is no route from {from} to {to}: {e}"))
    })?;
    Ok(Some(socket))
}

/// Has the kernel find the link-layer address of the next hop, if it needs one; the hop if it does not answer.
fn resolve(socket: &OwnedFd, from: IpAddr, interface: u32, to: IpAddr, patience: Duration) -> io::Result<Option<Hop>> {
    let mut kernel = Rtnetlink::open()?;
    let of_link = matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
    let Some(hop) = kernel.next_hop(from, to, if of_link { interface } else { 0 })? else { return Ok(None) };
    if !kernel.resolves(hop.interface)? || kernel.knows(hop)? {
        return Ok(None);
    }
    let mut now = Instant::now();
    let (end, mut again) = (now + patience, now);
    while !kernel.knows(hop)? {
        if now >= end {
            return Ok(Some(hop));
        }
        if now >= again {
            // The kernel gives up after a while too.
            if send(socket, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Err(Errno::PERM) {
                // A firewall that lets the RoCE port through and not this one: the kernel did not ask.
                return Ok(None);
            }
            again = now + PATIENCE;
        }
        kernel.wait_for_change(end.min(again).saturating_duration_since(now).as_millis() as i64 + 1);
        now = Instant::now();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::getpeername;
    use std::net::SocketAddr;

    #[test]
    fn no_empty_datagram_goes_to_the_roce_port() {
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().expect("an address");
            // None: a machine without this family.
            let Some(socket) = prober(ip, 0, ip).expect("a route") else { continue };
            let peer = getpeername(&socket).expect("connected").expect("a peer");
            let peer = SocketAddr::try_from(peer).expect("of IP");
            assert_eq!(peer, SocketAddr::from((ip, DISCARD_PORT)));
            assert_ne!(peer.port(), vervain_wire::UDP_PORT);
        }
    }
}
