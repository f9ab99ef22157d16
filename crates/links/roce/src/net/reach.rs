//! Reachability of another host, tested when a QP is connected to it or an address handle is made. An RNIC has to know
//! the link-layer address of the next hop by then, and the kernel resolves it: without a route the verb fails at once,
//! without an answer with ETIMEDOUT after a second. This does the same, so that a program gets an error for a wrong
//! address where it names it, not by a completion much later.
//!
//! A process without privileges can neither ask for a link-layer address nor wait for the answer. But it can read the
//! kernel's neighbour table (rtnetlink(7)), and a datagram makes the kernel ask. That datagram is empty and goes to the
//! discard port, not to the RoCE port: Debian's rdma_rxe panics the peer's kernel if an empty datagram comes there by
//! IPv6.

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

/// Shortest time that the next hop has to answer (the kernel's `rdma_addr_find_l2_eth_by_grh`), and interval of the
/// questions.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for which a host that was reached is not asked again: programs connect many QPs to one peer.
const KNOWN: Duration = Duration::from_secs(10);

/// Port for datagrams that only make the kernel ask for the next hop: "discard" (RFC 863).
const DISCARD_PORT: u16 = 9;

/// A local address, its interface, and a host.
type HostPair = (IpAddr, u32, IpAddr);

/// The hosts that have been reached lately.
#[derive(Default)]
pub struct Reach(OwnerLock<HashMap<HostPair, Instant>>);

impl Reach {
    /// Checks that `to` can be reached from `from`, an address of `interface`; both are the addresses that the program
    /// knows. Waits for `patience`, at least a second. ENETUNREACH, EHOSTUNREACH and others: the error of the route;
    /// ETIMEDOUT: the next hop does not answer.
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
    // An error of the own address shows when its port is opened.
    let Some(socket) = prober(from, interface, to)? else { return Ok(()) };
    match resolve(&socket, from, interface, to, patience) {
        Ok(None) => Ok(()),
        Ok(Some(hop)) => {
            let by = if hop.ip == to { String::new() } else { format!(" by way of {}", hop.ip) };
            let what = format!("{to} cannot be reached from {from}{by}: nobody answers there within {patience:?}");
            Err(Error::new(libc::ETIMEDOUT, what))
        }
        Err(e) => {
            // A sandbox without netlink sockets: an unreachable host shows later, by retries.
            log::debug!("whether {to} can be reached from {from} is not told: {e}");
            Ok(())
        }
    }
}

/// A socket that sends from one address to another; None: the own address is not there.
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

/// Makes the kernel find the link-layer address of the next hop, if it needs one. Returns the hop if it does not
/// answer.
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
