//! Trials of what the RoCE link does between hosts: UDP port 4791, the sizes of socket buffers, interfaces and the path
//! MTU that they carry, segmentation of UDP. All are notes: without a network Vervain still joins processes of one
//! host.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::ifaddrs::getifaddrs;
use nix::libc::{BPF_K, BPF_RET, sock_filter, sock_fprog};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt as options};

use super::access::read;
use super::{Finding, Status};

/// RoCE v2's UDP port (IBA annex A17.3.1).
const PORT: u16 = 4791;
/// The receive buffer that a socket of the RoCE link asks for: room for some thousand packets while the program does
/// not look.
const BUFFER: u64 = 4 << 20;
/// Bytes of an interface's MTU that headers take.
const OVERHEAD: u32 = 80;

/// Checks that programs of this user can bind the port, and names its holder if not.
pub fn port() -> Finding {
    const CHECK: &str = "UDP port 4791";
    let v4 = shared_bind((Ipv4Addr::UNSPECIFIED, PORT).into()).err();
    let v6 = shared_bind((Ipv6Addr::UNSPECIFIED, PORT).into()).err();
    let refused = [v4, v6].into_iter().flatten().find(|e| *e == rustix::io::Errno::ADDRINUSE);
    // A host without IPv6 has the other.
    if let (None, Some(e), Some(_)) = (refused, v4, v6) {
        return Finding::not_tested(CHECK, format!("could not be tried: {}", io::Error::from(e)));
    }
    let holders = holders();
    let own = rustix::process::geteuid().as_raw();
    let rxe = rxe_devices();
    if refused.is_none() {
        if let Err(e) = share_out() {
            return judge_sharing(&e);
        }
        let shared = holders.contains(&own);
        return Finding::ok(CHECK, if shared { "in use by programs of this user, which share it" } else { "free" });
    }
    let (by, remedy) = if !rxe.is_empty() {
        let links: Vec<_> = rxe.iter().map(|name| format!("rdma link delete {name}")).collect();
        (format!("the kernel's soft-RoCE ({})", rxe.join(", ")), format!("as root: {}", links.join("; ")))
    } else {
        let other = holders.iter().find(|uid| **uid != own);
        let by = other.map_or("a program that does not share it".to_owned(), |uid| format!("user id {uid}"));
        (by, "end that program (ss -lunp sport = 4791), or run in a network namespace of your own".to_owned())
    };
    Finding::with(
        Status::Note,
        CHECK,
        format!("held by {by}"),
        "no packets to other hosts; peers of this host are reached",
        remedy,
    )
}

/// Binds as programs do: the users of one port must all say that they share it, and be of one user id (socket(7)).
fn shared_bind(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(ipproto::UDP))?;
    if address.is_ipv6() {
        options::set_ipv6_v6only(&socket, true)?;
    }
    options::set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Attaches a program that hands out the packets of a port, as the RoCE link does (docs/port-sharing.md), on a port of
/// its own: one at 4791 would be the program of all this user's processes.
fn share_out() -> io::Result<()> {
    let socket = shared_bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let mut first = [sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = sock_fprog { len: 1, filter: first.as_mut_ptr() };
    Ok(setsockopt(&socket, sockopt::AttachReusePortCbpf, &program)?)
}

fn judge_sharing(e: &io::Error) -> Finding {
    Finding::with(
        Status::Note,
        "UDP port 4791",
        format!("the processes of a user cannot share it: SO_ATTACH_REUSEPORT_CBPF fails: {e}"),
        "no packets to other hosts; peers of this host are reached",
        "Linux 4.5 or later itself: qemu-user and sandboxes with a network stack of their own may lack it",
    )
}

/// User ids of the sockets that are bound to the port in this network namespace.
fn holders() -> Vec<u32> {
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().filter_map(holder)).collect()
}

/// A line of /proc/net/udp: slot, local address and port in hex, remote, state, queues, timer, retransmits, uid.
fn holder(line: &str) -> Option<u32> {
    let field: Vec<_> = line.split_whitespace().collect();
    let port = field.get(1)?.rsplit(':').next()?;
    (u16::from_str_radix(port, 16).ok()? == PORT).then(|| field.get(7)?.parse().ok()).flatten()
}

/// Devices of the kernel's own soft-RoCE.
fn rxe_devices() -> Vec<String> {
    let of_rxe =
        |name: &String| name.starts_with("rxe") || read(&format!("/sys/class/infiniband/{name}/parent")).is_some();
    let mut names: Vec<_> = fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(of_rxe)
        .collect();
    names.sort();
    names
}

/// The largest buffers that sockets may have.
pub fn buffers() -> Finding {
    let limit = |name: &str| read(&format!("/proc/sys/net/core/{name}")).and_then(|text| text.parse().ok());
    judge_buffers(limit("rmem_max"), limit("wmem_max"))
}

fn judge_buffers(rmem: Option<u64>, wmem: Option<u64>) -> Finding {
    const CHECK: &str = "socket buffers";
    let (Some(rmem), Some(wmem)) = (rmem, wmem) else {
        return Finding::not_tested(CHECK, "net.core.rmem_max and wmem_max are not shown in this network namespace");
    };
    let found = format!("net.core.rmem_max {rmem}, wmem_max {wmem}");
    let small: Vec<_> = [("rmem_max", rmem), ("wmem_max", wmem)]
        .into_iter()
        .filter(|(_, bytes)| *bytes < BUFFER)
        .map(|(name, _)| format!("net.core.{name}={BUFFER}"))
        .collect();
    if small.is_empty() {
        return Finding::ok(CHECK, found);
    }
    Finding::with(
        Status::Note,
        CHECK,
        found,
        "between hosts, bursts of packets are lost and sent again: a fraction of the bandwidth",
        format!("as root, in the host's network namespace: sysctl -w {}", small.join(" ")),
    )
}

/// UDP packets that the kernel has dropped for their checksum, in this network namespace. Over IPv6 these include
/// packets with checksum 0, as RNICs and soft-RoCE send them, while no program of this version has the port.
pub fn checksums() -> Finding {
    let table = |name: &str| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    judge_checksums(udp_checksum_errors(&table("snmp")), udp6_checksum_errors(&table("snmp6")))
}

fn judge_checksums(v4: Option<u64>, v6: Option<u64>) -> Finding {
    const CHECK: &str = "UDP checksums";
    if v4.is_none() && v6.is_none() {
        return Finding::not_tested(CHECK, "the kernel does not show here how many packets it drops for them");
    }
    let (v4, v6) = (v4.unwrap_or(0), v6.unwrap_or(0));
    if v4 + v6 == 0 {
        return Finding::ok(CHECK, "no packet was dropped for its checksum");
    }
    let found = format!("packets dropped for it: {v4} over IPv4 (InCsumErrors), {v6} over IPv6 (Udp6InCsumErrors)");
    let (cost, remedy) = if v6 > 0 {
        (
            "RNICs and soft-RoCE send checksum 0, and over IPv6 the kernel drops that if no program of this version of \
             Vervain has the port; other packets were damaged",
            "see whether it grows while programs run (nstat -az Udp6InCsumErrors): then end programs that run on an older \
             version, or look for the damage: ethtool -S, ethtool -K INTERFACE rx off",
        )
    } else {
        (
            "packets were damaged on their way; RoCE's are sent again",
            "see whether it grows (nstat -az UdpInCsumErrors): ethtool -S, ethtool -K INTERFACE rx off",
        )
    };
    Finding::with(Status::Note, CHECK, found, cost, remedy)
}

/// InCsumErrors of /proc/net/snmp: a row of names and one of values.
fn udp_checksum_errors(table: &str) -> Option<u64> {
    let mut rows = table.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (rows.next()?, rows.next()?);
    let mut cells = names.split_whitespace().zip(values.split_whitespace());
    cells.find(|(name, _)| *name == "InCsumErrors")?.1.parse().ok()
}

/// The wrong checksums in /proc/net/snmp6, which has a row for each count.
fn udp6_checksum_errors(table: &str) -> Option<u64> {
    table.lines().find_map(|line| line.strip_prefix("Udp6InCsumErrors")).and_then(|value| value.trim().parse().ok())
}

struct Interface {
    name: String,
    running: bool,
    mtu: u32,
    address: bool,
}

/// MTU of each interface that has an address, and the path MTU that follows from it.
pub fn interfaces() -> Finding {
    const CHECK: &str = "interfaces";
    match look().map(|all| judge_interfaces(&all)) {
        Ok(finding) => finding,
        Err(e) => Finding::with(
            Status::Note,
            CHECK,
            format!("not told: {e:#}"),
            "no GIDs: programs cannot name their peers",
            "a sandbox refuses netlink sockets: allow AF_NETLINK",
        ),
    }
}

fn judge_interfaces(all: &[Interface]) -> Finding {
    const CHECK: &str = "interfaces";
    let mut words = Vec::new();
    for i in all.iter().filter(|i| i.address) {
        let state = if i.running { "" } else { ", down" };
        words.push(format!("{} MTU {}: path MTU {}{state}", i.name, i.mtu, path_mtu(i.mtu)));
    }
    if words.is_empty() {
        let remedy = "ip link set lo up, and an address on an interface";
        return Finding::with(
            Status::Note,
            CHECK,
            "none has an address",
            "the GID table is empty, the port down",
            remedy,
        );
    }
    Finding::ok(CHECK, words.join("; "))
}

/// The largest IB MTU that leaves room for the headers.
fn path_mtu(mtu: u32) -> u32 {
    [4096, 2048, 1024, 512].into_iter().find(|bytes| bytes + OVERHEAD <= mtu).unwrap_or(256)
}

fn look() -> Result<Vec<Interface>> {
    let mut all: Vec<Interface> = Vec::new();
    for entry in getifaddrs().context("getifaddrs fails")? {
        let name = entry.interface_name.split(':').next().unwrap_or_default().to_owned();
        let Some(address) = entry.address else { continue };
        let inet = address.as_sockaddr_in().is_some() || address.as_sockaddr_in6().is_some();
        match all.iter_mut().find(|i| i.name == name) {
            Some(known) => known.address |= inet,
            None => all.push(Interface {
                running: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
                mtu: mtu_of(&name).with_context(|| format!("the MTU of {name}"))?,
                address: inet,
                name,
            }),
        }
    }
    Ok(all)
}

/// By ioctl: /sys may show another network namespace.
fn mtu_of(name: &str) -> io::Result<u32> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: an ifreq of zeros is valid; the name is shorter than its array and followed by a zero; the call reads the
    // name and writes the MTU.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        let room = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(request.ifr_ifru.ifru_mtu as u32)
    }
}

/// Trains of packets in one call (UDP_SEGMENT, UDP_GRO), really sent and received.
pub fn segmentation() -> Finding {
    const CHECK: &str = "UDP segmentation";
    match send_a_train() {
        Ok(together) => {
            let how =
                if together { "a train of packets passes in one call" } else { "trains are sent, and received apart" };
            Finding::ok(CHECK, format!("UDP_SEGMENT and UDP_GRO work: {how}"))
        }
        Err(e) => Finding::with(
            Status::Note,
            CHECK,
            format!("{e:#}"),
            "between hosts, a system call for each packet: a fraction of the bandwidth",
            "Linux 5.0 or later; a sandbox such as gVisor has its own network stack: use the host's",
        ),
    }
}

/// Sends two packets of 100 bytes in one call; whether they came in one.
fn send_a_train() -> Result<bool> {
    const PACKET: usize = 100;
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot bind a socket")?;
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    setsockopt(&receiver, sockopt::UdpGroSegment, &true).context("UDP_GRO is refused")?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let SocketAddr::V4(to) = receiver.local_addr()? else { anyhow::bail!("an IPv6 address was bound") };
    let (bytes, size) = ([7; 2 * PACKET], PACKET as u16);
    let segments = [ControlMessage::UdpGsoSegments(&size)];
    let to = SockaddrIn::from(to);
    sendmsg(sender.as_raw_fd(), &[IoSlice::new(&bytes)], &segments, MsgFlags::empty(), Some(&to))
        .context("UDP_SEGMENT is refused")?;
    let mut buffer = [0; 4 * PACKET];
    let mut room = nix::cmsg_space!(i32);
    let mut into = [IoSliceMut::new(&mut buffer)];
    let got = recvmsg::<SockaddrIn>(receiver.as_raw_fd(), &mut into, Some(&mut room), MsgFlags::empty())
        .context("a train does not arrive")?;
    ensure!(got.bytes == PACKET || got.bytes == 2 * PACKET, "a train of {} bytes arrives as {}", 2 * PACKET, got.bytes);
    let marked = got.cmsgs()?.any(|c| matches!(c, ControlMessageOwned::UdpGroSegments(n) if n as usize == PACKET));
    ensure!(marked || got.bytes == PACKET, "a train arrives without the length of its packets");
    Ok(marked)
}

/// The check that is impossible from here.
pub fn translation() -> Finding {
    Finding::not_tested(
        "address translation",
        "cannot be seen from one host. NAT between hosts or containers breaks the ICRC, which covers the addresses, and \
         peers drop every packet: route, or share the host's network (--network host)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_come_with_the_sysctl_to_set() {
        let f = judge_buffers(Some(212_992), Some(BUFFER));
        assert_eq!(f.status, Status::Note);
        assert!(f.remedy.ends_with("sysctl -w net.core.rmem_max=4194304"), "{}", f.remedy);
        assert_eq!(judge_buffers(Some(BUFFER), Some(BUFFER)).status, Status::Ok);
        assert_eq!(judge_buffers(None, None).status, Status::NotTested);
    }

    #[test]
    fn a_port_that_cannot_be_shared_costs_packets_only() {
        share_out().expect("Linux has had it since 4.5");
        let f = judge_sharing(&io::Error::from(nix::Error::ENOPROTOOPT));
        assert!(f.status == Status::Note && f.found.contains("Protocol not available"), "{f:?}");
        assert!(f.cost.contains("peers of this host"), "{f:?}");
    }

    #[test]
    fn packets_dropped_for_their_checksum_are_named() {
        let v4 = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors InCsumErrors MemErrors\nUdp: 36 0 9 7 0\n";
        assert_eq!(udp_checksum_errors(v4), Some(7));
        assert_eq!(udp_checksum_errors("Udp: InDatagrams\nUdp: 36\n"), None);
        let v6 = "Udp6InErrors                    \t9\nUdp6InCsumErrors                \t12\nUdp6IgnoredMulti \t0\n";
        assert_eq!(udp6_checksum_errors(v6), Some(12));
        assert_eq!(judge_checksums(Some(0), Some(0)).status, Status::Ok);
        assert_eq!(judge_checksums(None, None).status, Status::NotTested);
        let f = judge_checksums(Some(0), Some(12));
        assert!(f.status == Status::Note && f.found.contains("12 over IPv6") && f.cost.contains("checksum 0"), "{f:?}");
        assert!(!judge_checksums(Some(7), None).cost.contains("checksum 0"));
    }

    #[test]
    fn the_holder_of_the_port_is_read_from_the_kernels_table() {
        let line =
            "  414: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 123 2 0 0";
        assert_eq!(holder(line), Some(1000));
        assert_eq!(holder(&line.replace("12B7", "12B8")), None);
        assert_eq!(holder("   sl  local_address rem_address   st"), None);
    }

    #[test]
    fn a_path_mtu_is_told_for_each_interface_with_an_address() {
        let interface = |name: &str, running, mtu, address| Interface { name: name.into(), running, mtu, address };
        let all = [
            interface("lo", true, 65536, true),
            interface("ifb0", false, 1500, false),
            interface("eth0", false, 1500, true),
        ];
        let f = judge_interfaces(&all);
        assert_eq!(f.found, "lo MTU 65536: path MTU 4096; eth0 MTU 1500: path MTU 1024, down");
        assert_eq!(judge_interfaces(&all[1..2]).status, Status::Note);
    }

    #[test]
    fn a_train_is_sent_and_received() {
        let f = segmentation();
        assert!(f.status == Status::Ok || !f.remedy.is_empty(), "{f:?}");
    }
}
