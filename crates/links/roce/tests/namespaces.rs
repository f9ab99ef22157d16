//! Ports in two network namespaces with a veth pair between them: packets on the wire, seen by a packet socket, where
//! the kernel cuts trains itself. Needs root and `ip`; without them the tests print that and pass.

mod veth;

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;
use vervain_hca::mr::transfer::Pieces;
use vervain_roce::net::{FlowKey, Port, ReceiveBatch, SendBatch, TooLarge};
use vervain_skip::skip;
use vervain_wire::icrc::{Flow, Untold};
use vervain_wire::{Bth, Headers, opcode};
use veth::{LIMIT, ip, wait_for_carrier};

/// Actions of a side.
type Side = fn(&Wire);

/// A side's end of the veth pair.
struct Wire {
    mine: [IpAddr; 3],
    theirs: [IpAddr; 3],
    interface: u32,
    /// Tells the other side something, or hears of it.
    tell: Sender<()>,
    hear: Receiver<()>,
}

impl Wire {
    fn port(&self, family: usize) -> Arc<Port> {
        Arc::new(Port::open(self.mine[family], self.interface).unwrap())
    }

    fn meet(&self) {
        self.tell.send(()).unwrap();
        self.hear.recv_timeout(LIMIT).expect("the other side has not come so far");
    }
}

/// Runs both sides, each in a namespace of its own, over a veth pair of this MTU. False if that cannot be had here.
fn between_namespaces(mtu: u32, sides: [Side; 2]) -> bool {
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    let has_ip = Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !root || !has_ip {
        skip("needs root and ip (Debian: iproute2)");
        return false;
    }
    let (to_first, from_second) = channel();
    let (to_second, from_first) = channel();
    let (thread_id, of_second) = channel();
    let second = start(move || {
        if !leave_for_own_namespace() {
            return;
        }
        // SAFETY: no arguments.
        thread_id.send(unsafe { libc::gettid() }).unwrap();
        from_first.recv_timeout(LIMIT).unwrap();
        sides[1](&wire(1, mtu, to_first, from_first));
    });
    let first = start(move || {
        let Ok(other) = of_second.recv_timeout(LIMIT) else { return };
        if !leave_for_own_namespace() {
            return;
        }
        ip(&format!("link add v0 mtu {mtu} type veth peer name v1 mtu {mtu}"));
        ip(&format!("link set v1 netns {other}"));
        to_second.send(()).unwrap();
        sides[0](&wire(0, mtu, to_second, from_second));
    });
    for side in [first, second] {
        side.join().unwrap();
    }
    true
}

fn start(side: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(side)
}

/// Returns true if this thread now has a network namespace of its own.
fn leave_for_own_namespace() -> bool {
    // SAFETY: no memory is involved.
    let left = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !left {
        skip(format_args!("no network namespace: {}", std::io::Error::last_os_error()));
    }
    left
}

fn wire(side: usize, mtu: u32, tell: Sender<()>, hear: Receiver<()>) -> Wire {
    let addresses = |side: usize| -> [IpAddr; 3] {
        ["192.0.2.", "fe80::", "2001:db8::"].map(|net| format!("{net}{}", side + 1).parse().unwrap())
    };
    let name = format!("v{side}");
    ip("link set lo up");
    // Another network, where the kernel would send multicast by itself.
    ip("link add d0 type veth peer name d1");
    ip("link set d0 up");
    ip("link set d1 up");
    ip(&format!("addr add {}/24 dev {name}", addresses(side)[0]));
    ip(&format!("link set {name} mtu {mtu} gso_max_segs 1 up"));
    for v6 in &addresses(side)[1..] {
        ip(&format!("addr add {v6}/64 dev {name} nodad"));
    }
    let c_name = std::ffi::CString::new(name).unwrap();
    // SAFETY: a C string.
    let interface = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
    let wire = Wire { mine: addresses(side), theirs: addresses(1 - side), interface, tell, hear };
    wire.meet();
    wait_for_carrier(&format!("v{side}"));
    wire.meet();
    wire
}

fn push(batch: &mut SendBatch, to: IpAddr, n: usize, length: usize) {
    let payload: Vec<u8> = (0..length).map(|i| (i * 3 + n) as u8).collect();
    let mut pieces = Pieces::new();
    pieces.push(payload.as_ptr().cast_mut(), length as u64);
    let pad = (length.wrapping_neg() % 4) as u8;
    let bth = Bth { opcode: opcode::SEND_ONLY, pad, pkey: 0xffff, dest_qpn: 17, psn: n as u32, ..Bth::default() };
    let to = FlowKey { to, slot: 0, spread: 1, label: 0, hop_limit: 0, tos: 0 };
    // SAFETY: the payload lives longer than the call.
    assert!(unsafe { batch.push(&to, &Headers { bth, ..Headers::default() }, &pieces) }.is_ok());
}

/// Receives `count` packets with right ICRCs; the numbers in their headers.
fn receive(port: &Port, count: usize) -> Vec<u8> {
    let (mut batch, mut numbers) = (ReceiveBatch::new(), Vec::new());
    let deadline = Instant::now() + LIMIT;
    while numbers.len() < count {
        assert!(Instant::now() < deadline, "{numbers:?} came; {:?}", port.counters());
        batch.receive(port);
        for datagram in batch.datagrams() {
            assert!(datagram.is_intact());
            numbers.push(datagram.bytes[11]);
        }
    }
    numbers
}

const SIZES: [usize; 24] = [
    4096, 4096, 4096, 100, 8, 8, 8, 8, 3, 1024, 1024, 1024, 1023, 0, 2048, 2049, 4096, 4096, 4096, 4096, 4096, 1, 2, 3,
];

fn sender(wire: &Wire) {
    for family in 0..3 {
        let port = wire.port(family);
        wire.meet();
        let mut batch = SendBatch::new(port.clone());
        SIZES.iter().enumerate().for_each(|(n, length)| push(&mut batch, wire.theirs[family], n, *length));
        batch.flush();
        assert_eq!(batch.take_too_large(), None);
        assert_eq!(port.counters().sent_packets.get(), SIZES.len() as u64);
        wire.meet();
    }
}

fn receiver(wire: &Wire) {
    for family in 0..3 {
        let port = wire.port(family);
        wire.meet();
        let numbers = receive(&port, SIZES.len());
        assert_eq!(numbers, (0..SIZES.len() as u8).collect::<Vec<_>>());
        wire.meet();
    }
}

#[test]
fn packets_cross_a_network_over_ipv4_and_ipv6() {
    between_namespaces(4200, [sender, receiver]);
}

/// IPv4 packets to port 4791 that a packet socket sees, from the IP header on.
fn watch() -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    let protocol = i32::from((libc::ETH_P_IP as u16).to_be());
    // SAFETY: a new descriptor belongs to whoever asked for it.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        std::os::fd::OwnedFd::from_raw_fd(fd)
    }
}

fn next_seen(watch: &std::os::fd::OwnedFd) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    let mut bytes = vec![0u8; 70_000];
    // SAFETY: the kernel writes at most as many bytes as there are.
    let length = unsafe { libc::recv(watch.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes.truncate(usize::try_from(length).unwrap());
    bytes
}

fn watcher(wire: &Wire) {
    let watch = watch();
    let port = wire.port(0);
    wire.meet();
    let numbers = receive(&port, SIZES.len());
    assert_eq!(numbers.len(), SIZES.len());
    let mut ids = Vec::new();
    while ids.len() < SIZES.len() {
        let packet = next_seen(&watch);
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        if packet[9] != 17 || word(22) != 4791 {
            continue;
        }
        let (id, source) = (word(4), word(20));
        assert_eq!((packet[0], word(6)), (0x45, 0x4000), "20 bytes of header, and DF");
        assert!(source >= 0xc000);
        let [IpAddr::V4(from), IpAddr::V4(to)] = [wire.theirs[0], wire.mine[0]] else { unreachable!() };
        let flow = Flow::v4((from, source), (to, 4791));
        assert_eq!(flow.verify(id, &packet[28..]), Some(Untold::with_df(id)), "packet {}", ids.len());
        ids.push(id);
    }
    assert_eq!(ids, [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0, 0, 1, 2, 3, 4, 5, 0, 1]);
    wire.meet();
}

fn sender_over_ipv4(wire: &Wire) {
    let port = wire.port(0);
    wire.meet();
    let mut batch = SendBatch::new(port.clone());
    SIZES.iter().enumerate().for_each(|(n, length)| push(&mut batch, wire.theirs[0], n, *length));
    batch.flush();
    wire.meet();
}

#[test]
fn on_the_wire_identifications_count_up_and_every_icrc_is_right_for_its_own() {
    between_namespaces(4200, [sender_over_ipv4, watcher]);
}

fn sender_of_large_packets(wire: &Wire) {
    let port = wire.port(0);
    wire.meet();
    assert_eq!(port.path_mtu(wire.theirs[0]).unwrap(), 1500);
    let mut batch = SendBatch::new(port.clone());
    // Alone, as a train, and after such a train.
    for (n, length) in [1024, 2048, 4096, 4096, 1024].into_iter().enumerate() {
        push(&mut batch, wire.theirs[0], n, length);
    }
    batch.flush();
    let bytes = 12 + 4096 + 4;
    assert_eq!(batch.take_too_large(), Some(TooLarge { to: wire.theirs[0], bytes }));
    assert_eq!(batch.take_too_large(), None);
    assert_eq!((port.counters().too_large.get(), port.counters().sent_packets.get()), (3, 2));
    (5..8).for_each(|n| push(&mut batch, wire.theirs[0], n, 1024));
    batch.flush();
    assert_eq!(port.counters().refused_trains.get(), 0, "trains of packets that fit are still sent");
    wire.meet();
}

fn receiver_of_small_packets(wire: &Wire) {
    let port = wire.port(0);
    wire.meet();
    assert_eq!(receive(&port, 5), [0, 4, 5, 6, 7]);
    wire.meet();
}

#[test]
fn packets_larger_than_the_mtu_are_reported_and_lost_and_others_are_not() {
    between_namespaces(1500, [sender_of_large_packets, receiver_of_small_packets]);
}

/// A group for each address.
const GROUPS: [&str; 3] = ["239.1.2.3", "ff02::77", "ff0e::77"];

fn joiner(wire: &Wire) {
    for (family, group) in GROUPS.into_iter().enumerate() {
        let port = wire.port(family);
        let group: IpAddr = group.parse().unwrap();
        port.join(group, |_| Ok(())).unwrap();
        wire.meet();
        let mut batch = ReceiveBatch::new();
        let deadline = Instant::now() + LIMIT;
        while !batch.receive(&port) {
            assert!(Instant::now() < deadline, "nothing for {group}");
        }
        let datagram = batch.datagrams().next().unwrap();
        assert!(datagram.is_intact());
        let (from, expected): (SocketAddr, _) = (datagram.from, wire.theirs[family]);
        assert_eq!((from.ip(), datagram.to, datagram.hop_limit), (expected, group, 64));
        wire.meet();
    }
}

fn sender_to_groups(wire: &Wire) {
    for (family, group) in GROUPS.into_iter().enumerate() {
        let mut batch = SendBatch::new(wire.port(family));
        wire.meet();
        push(&mut batch, group.parse().unwrap(), 0, 100);
        batch.flush();
        assert_eq!(batch.port().counters().sent_packets.get(), 1);
        wire.meet();
    }
}

#[test]
fn members_of_a_group_are_reached_by_the_interface_of_the_port() {
    between_namespaces(1500, [sender_to_groups, joiner]);
}
