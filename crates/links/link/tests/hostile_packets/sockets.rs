//! Hostile packets from other programs of this host or the network: they come through the kernel.

use super::forge::{Forged, Forger};
use super::world::{HERE, World, alone};
use super::{KINDS, captured, counted, growth, note, packets, seed};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use vervain_skip::skip;
use vervain_wire::UDP_PORT;

/// Datagrams that are sent before their arrival is waited for.
const BURST: usize = 32;
const NOBODY: libc::c_long = 65_534;

/// Sends packets from a stranger's address and from the peer's, and has them all accounted for.
fn attack(world: &mut World, stranger: &UdpSocket, peer: &UdpSocket, count: usize) {
    let (strange, known) = (stranger.local_addr().unwrap(), peer.local_addr().unwrap());
    let mut forger = Forger::new(world, seed(), captured()).from(strange, known);
    let port = world.roce.port(HERE).unwrap();
    let counters = port.counters();
    let (before, sent) = (counted(world), counters.sent_packets.get());
    let mut fates = BTreeMap::new();
    for _ in 0..count / BURST {
        let arrived = counters.received_packets.get() + BURST as u64;
        for _ in 0..BURST {
            // Not those for other processes: the kernel leads them elsewhere.
            let Forged { from, bytes, fate } = forger.refused(false);
            let socket = if from == strange { stranger } else { peer };
            assert_eq!(socket.send_to(&bytes, (HERE, UDP_PORT)).unwrap(), bytes.len());
            note(&mut fates, fate);
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while counters.received_packets.get() < arrived {
            assert!(Instant::now() < deadline, "packets are missing; the kernel dropped {}", counters.dropped.get());
            world.pairs[0].poll();
        }
    }
    world.unchanged("after an attack through sockets");
    assert_eq!(growth(&before, &counted(world)), fates, "what is counted, what was sent");
    assert_eq!(counters.sent_packets.get(), sent, "packets that went out");
    world.works();
}

fn enemies() -> [UdpSocket; 2] {
    ["127.0.0.2:0", "127.0.0.1:0"].map(|at| UdpSocket::bind(at).unwrap())
}

#[test]
fn what_comes_through_the_kernel_changes_nothing_but_its_counter() {
    alone("sockets::what_comes_through_the_kernel_changes_nothing_but_its_counter", || {
        let mut world = World::new(&KINDS);
        let [stranger, peer] = enemies();
        attack(&mut world, &stranger, &peer, packets(0.02));
    });
}

#[test]
fn another_user_of_this_host_can_neither_share_the_port_nor_change_anything() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip("needs root, to become somebody else");
        return;
    }
    alone("sockets::another_user_of_this_host_can_neither_share_the_port_nor_change_anything", || {
        let mut world = World::new(&KINDS);
        // The kernel knows users by thread; only the C library makes a process of them.
        let theirs = std::thread::spawn(|| {
            // SAFETY: changes the user of this thread, which ends here and touches nothing that is the process's.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
            (enemies(), share_port())
        });
        let ([stranger, peer], shared) = theirs.join().unwrap();
        assert_eq!(shared.unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        attack(&mut world, &stranger, &peer, packets(0.002));
    });
}

/// Binds the port of this host's RoCE packets as its owner's other processes do.
fn share_port() -> std::io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let on: libc::c_int = 1;
    // SAFETY: the option is an int on this stack.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, (&raw const on).cast(), 4)
    };
    assert_eq!(set, 0);
    Ok(rustix::net::bind(&socket, &std::net::SocketAddr::new(HERE, UDP_PORT))?)
}
