//! The UDP sockets that sharing itself makes, and the owners of other sockets at an address.

use super::Names;
use crate::net::options;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use vervain_hca::host::cancel::nap;
use vervain_hca::{Error, Result};
use vervain_names::Other;

/// Time within which the sockets of ending processes are closed.
const SETTLE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(1);

fn open(at: SocketAddr) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    options::for_any_packets(socket.as_fd(), at.ip())?;
    Ok(socket)
}

/// Returns true if nobody has a socket at the address, so that it has no group.
pub fn is_vacant(names: &Names) -> bool {
    open(names.at).and_then(|socket| Ok(bind(&socket, &names.at)?)).is_ok()
}

/// Checks that nobody else has a socket at the address: one that shares it would be part of the group, unknown to it.
pub fn must_be_vacant(names: &Names) -> Result<()> {
    let end = Instant::now() + SETTLE;
    loop {
        match open(names.at).and_then(|socket| Ok(bind(&socket, &names.at)?)) {
            Ok(()) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) && Instant::now() < end && !is_others(names) => {
                nap(NAP);
            }
            Err(e) => return Err(refusal(names, &e)),
        }
    }
}

/// The first socket of a group, which gets the packets that are for no process.
pub fn sink(names: &Names) -> Result<OwnedFd> {
    let made = open(names.at).and_then(|socket| {
        options::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, &1i32)?;
        options::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &0i32)?;
        bind(&socket, &names.at)?;
        Ok(socket)
    });
    made.map_err(|e| refusal(names, &e))
}

/// Checks that the group has `count` sockets. A stranger's among them would shift the places of those that join later.
pub fn must_be_alone(names: &Names, count: usize) -> Result<()> {
    let end = Instant::now() + SETTLE;
    loop {
        match sockets_at(names.at) {
            Some(owners) if owners.len() != count && Instant::now() < end => nap(NAP),
            Some(owners) if owners.len() > count => {
                let what = "a program that is not Vervain shares the port (see ss -ulnp); it has to end first";
                return Err(names.error(libc::EADDRINUSE, what));
            }
            _ => return Ok(()),
        }
    }
}

/// The error of an address that cannot be bound.
fn refusal(names: &Names, e: &io::Error) -> Error {
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    if errno != libc::EADDRINUSE {
        return names.error(errno, &e.to_string());
    }
    let owner = owner(names.at);
    let rxe = std::path::Path::new("/sys/module/rdma_rxe").exists();
    match owner {
        // The kernel's own sockets look like root's.
        Some(Owner { uid: 0, .. }) | None if rxe => names
            .error(errno, "the kernel's rdma_rxe has that port of every address (rdma link show; rdma link delete)"),
        Some(Owner { uid, inode }) if uid != rustix::process::geteuid().as_raw() => {
            names.other_user(&Other { uid, names: 1, process: vervain_names::process_with(inode) })
        }
        _ => names.error(errno, "another program has that port (see ss -ulnp)"),
    }
}

/// Owner of a socket.
#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    inode: u32,
}

/// Owner of a socket at the address, or at all addresses of its family.
fn owner(at: SocketAddr) -> Option<Owner> {
    let any = SocketAddr::new(if at.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() }, at.port());
    [at, any].into_iter().find_map(|at| sockets_at(at)?.first().copied())
}

/// Returns true if another user has the address: then there is no use in waiting for an ending process of this user.
fn is_others(names: &Names) -> bool {
    owner(names.at).is_some_and(|owner| owner.uid != rustix::process::geteuid().as_raw())
}

/// The UDP sockets bound to exactly `at`, in this thread's network namespace; None: /proc does not show them, as for an
/// address of a link, for which it would show those of all links.
fn sockets_at(at: SocketAddr) -> Option<Vec<Owner>> {
    let (file, local) = match at {
        SocketAddr::V4(a) => ("udp", format!("{:08X}:{:04X}", u32::from_ne_bytes(a.ip().octets()), a.port())),
        SocketAddr::V6(a) if a.scope_id() != 0 => return None,
        SocketAddr::V6(a) => {
            let words = a.ip().octets();
            let words = words.chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
            ("udp6", format!("{}:{:04X}", words.map(|w| format!("{w:08X}")).collect::<String>(), a.port()))
        }
    };
    let table = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).ok()?;
    // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ... (`man 5 proc`)
    let rows = table.lines().skip(1).map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
    let owner = |row: Vec<&str>| Some(Owner { uid: row.get(7)?.parse().ok()?, inode: row.get(9)?.parse().ok()? });
    Some(rows.filter(|row| row.get(1) == Some(&local.as_str())).filter_map(owner).collect())
}

/// Drops the packets in a socket that a process has left behind.
pub fn drain(socket: &OwnedFd) {
    let mut byte = [0u8; 1];
    // Bounded, as packets may come as fast as they are dropped.
    for _ in 0..100_000 {
        if rustix::net::recv(socket, &mut byte[..], rustix::net::RecvFlags::DONTWAIT).is_err() {
            return;
        }
    }
}

/// The IPv6 form of an address, in which both families travel.
pub fn to_wide(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
