//! Two ports on the loopback interface, each test on addresses of its own.

use super::*;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vervain_hca::mr::transfer::Pieces;
use vervain_wire::icrc::Untold;
use vervain_wire::{Bth, Headers, opcode, parse};

/// An address of this host that no other test uses: a process holds 1,024 of them.
fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let low = (std::process::id() << 10 | NEXT.fetch_add(1, Ordering::Relaxed)) & 0xff_ffff;
    Ipv4Addr::from(127 << 24 | low).into()
}

/// Gives this thread a network of its own, where it may make one: IPv6 has one loopback address, and a program of the
/// same user that has its port would share it with the test.
fn own_network() {
    // SAFETY: no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        let status = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip (Debian: iproute2)");
        assert!(status.success(), "the loopback interface is down");
    }
}

fn port() -> Arc<Port> {
    Arc::new(Port::open(address(), 0).unwrap())
}

/// Headers of a SEND ONLY, and a payload that tells packets apart.
fn headers(n: usize, payload: usize) -> Headers {
    let pad = (payload.wrapping_neg() % 4) as u8;
    let bth = Bth { opcode: opcode::SEND_ONLY, pad, pkey: 0xffff, dest_qpn: 17, psn: n as u32, ..Bth::default() };
    Headers { bth, ..Headers::default() }
}

fn payload(n: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + n * 13) as u8).collect()
}

/// A payload with one piece for each slice.
fn pieces(slices: &[&[u8]]) -> Pieces {
    let mut pieces = Pieces::new();
    slices.iter().for_each(|slice| pieces.push(slice.as_ptr().cast_mut(), slice.len() as u64));
    pieces
}

fn push(batch: &mut SendBatch, to: &FlowKey, headers: &Headers, payload: &Pieces) {
    // SAFETY: the tests' payloads live longer than the call.
    assert!(unsafe { batch.push(to, headers, payload) }.is_ok());
}

fn flow_to(to: &Port) -> FlowKey {
    FlowKey { to: to.ip(), slot: 0, spread: 0, label: 0, hop_limit: 0, tos: 0 }
}

/// Pushes packets of these sizes, each in two pieces, and flushes.
fn send(batch: &mut SendBatch, to: &Port, sizes: &[usize]) {
    for (n, size) in sizes.iter().enumerate() {
        let bytes = payload(n, *size);
        let (head, tail) = bytes.split_at(size / 3);
        push(batch, &flow_to(to), &headers(n, *size), &pieces(&[head, tail]));
    }
    batch.flush();
}

/// Receives `count` packets; each is handed to `check` with its number.
fn receive(port: &Port, count: usize, mut check: impl FnMut(usize, &Datagram<'_>)) {
    let (mut batch, mut n) = (ReceiveBatch::new(), 0);
    let mut last = Instant::now();
    while n < count {
        assert!(last.elapsed() < Duration::from_secs(10), "{n} packets of {count} have come; {:?}", port.counters());
        batch.receive(port);
        let before = n;
        for datagram in batch.datagrams() {
            check(n, &datagram);
            n += 1;
        }
        match n == before {
            // The sender may want this CPU.
            true => std::thread::yield_now(),
            false => last = Instant::now(),
        }
    }
    assert!(!batch.receive(port), "more packets than were sent");
}

fn check_one(n: usize, length: usize, datagram: &Datagram<'_>) {
    let padded = length.next_multiple_of(4);
    assert!(datagram.is_intact(), "packet {n}");
    assert_eq!(datagram.icrc().as_ref(), datagram.bytes.last_chunk(), "packet {n}");
    assert_eq!(datagram.bytes.len(), 12 + padded + 4, "packet {n}");
    assert_eq!(parse(datagram.bytes).map(|packet| packet.headers), Ok(headers(n, length)), "packet {n}");
    assert_eq!(datagram.bytes[12..12 + length], payload(n, length), "packet {n}");
    assert_eq!(datagram.bytes[12 + length..12 + padded], [0; 3][..padded - length], "packet {n}");
}

fn there_and_intact(sizes: &[usize]) -> (Arc<Port>, Arc<Port>) {
    let (from, to) = (port(), port());
    send(&mut SendBatch::new(from.clone()), &to, sizes);
    receive(&to, sizes.len(), |n, datagram| {
        check_one(n, sizes[n], datagram);
        assert_eq!((datagram.from.ip(), datagram.to), (from.ip(), to.ip()));
    });
    (from, to)
}

#[test]
fn packets_of_all_sizes_arrive_in_order_with_right_icrcs() {
    let sizes: Vec<usize> =
        (0..300).map(|n| [0, 1, 8, 63, 256, 1023, 2048, 2049, 4096, 4096, 4096][n * n % 11]).collect();
    let (from, to) = there_and_intact(&sizes);
    assert_eq!(from.counters().sent_packets.get(), 300);
    assert_eq!(to.counters().received_packets.get(), 300);
    assert_eq!(from.counters().sent_bytes.get(), to.counters().received_bytes.get());
}

#[test]
fn a_train_goes_whole_over_loopback() {
    let (from, to) = (port(), port());
    let sizes = [vec![4096; 14], vec![100]].concat();
    send(&mut SendBatch::new(from.clone()), &to, &sizes);
    let mut indices = Vec::new();
    receive(&to, 15, |n, datagram| {
        check_one(n, sizes[n], datagram);
        indices.push(usize::from(datagram.index));
    });
    assert_eq!(indices, (0..15).collect::<Vec<_>>());
}

#[test]
fn packets_that_are_kept_together_share_a_train_wherever_it_would_end() {
    // 62 packets of 1,040 bytes, or 64 of whatever is small, fill a train.
    for (count, size, last) in
        [(1, 0, 1024), (60, 1024, 1024), (61, 1024, 1024), (3, 1024, 100), (62, 16, 16), (63, 16, 16)]
    {
        let (from, to) = (port(), port());
        let sizes = [vec![size; count], vec![last, 4]].concat();
        let mut batch = SendBatch::new(from);
        for (n, size) in sizes.iter().enumerate() {
            let bytes = payload(n, *size);
            if n == count {
                batch.keep_together();
            }
            push(&mut batch, &flow_to(&to), &headers(n, *size), &pieces(&[&bytes]));
        }
        batch.flush();
        let mut indices = Vec::new();
        receive(&to, sizes.len(), |n, datagram| {
            check_one(n, sizes[n], datagram);
            indices.push(usize::from(datagram.index));
        });
        assert_eq!(indices[count] + 1, indices[count + 1], "{count} of {size} bytes: {indices:?}");
    }
}

#[test]
fn without_trains_packets_go_one_by_one() {
    let (from, to) = (port(), port());
    from.without_trains();
    send(&mut SendBatch::new(from.clone()), &to, &[1024; 10]);
    receive(&to, 10, |n, datagram| {
        check_one(n, 1024, datagram);
        assert_eq!(datagram.index, 0);
    });
}

#[test]
fn hop_limit_and_type_of_service_are_sent_and_told() {
    let (from, to) = (port(), port());
    to.tell_hop_limits();
    let mut batch = SendBatch::new(from);
    let values = [(1, 0), (255, 0x68), (0, 0x20), (64, 0)];
    for (n, (hop_limit, tos)) in values.into_iter().enumerate() {
        let bytes = payload(n, 20);
        push(&mut batch, &FlowKey { hop_limit, tos, ..flow_to(&to) }, &headers(n, 20), &pieces(&[&bytes]));
    }
    batch.flush();
    receive(&to, values.len(), |n, datagram| {
        check_one(n, 20, datagram);
        let (hop_limit, tos) = values[n];
        assert_eq!((datagram.hop_limit, datagram.tos), (if hop_limit == 0 { 64 } else { hop_limit }, tos));
    });
}

/// Sends packets with these types of service by `from`, and checks those that come to `to`.
fn classes_arrive(from: &Arc<Port>, to: &Port, classes: &[u8]) {
    let mut batch = SendBatch::new(Arc::clone(from));
    for (n, tos) in classes.iter().enumerate() {
        let bytes = payload(n, 20);
        push(&mut batch, &FlowKey { tos: *tos, ..flow_to(to) }, &headers(n, 20), &pieces(&[&bytes]));
    }
    batch.flush();
    receive(to, classes.len(), |n, datagram| {
        check_one(n, 20, datagram);
        assert_eq!((datagram.tos, datagram.is_marked()), (classes[n], classes[n] & 3 == 3), "packet {n}");
    });
}

#[test]
fn ecn_bits_are_sent_and_told_from_the_beginning() {
    // The kernel merges no packets whose bits differ.
    let classes = [ECT0, 0, 1, CE, CE, ECT0, 0x68 | ECT0, 0x68 | CE, 0xfc, 0xff];
    classes_arrive(&port(), &port(), &classes);
    own_network();
    let both = Arc::new(Port::open("::1".parse().unwrap(), 1).unwrap());
    classes_arrive(&both, &both, &classes);
    both.tell_hop_limits();
    classes_arrive(&both, &both, &classes);
}

#[test]
fn a_packet_without_control_messages_is_ecn_capable() {
    let from = port();
    for socket in [from.receive_socket(), from.flow(0, 0).0] {
        assert_eq!(options::get(socket, libc::IPPROTO_IP, libc::IP_TOS).unwrap(), i32::from(ECT0));
    }
}

#[test]
fn packets_to_two_processes_never_share_a_train() {
    let (from, to) = (port(), port());
    let mut batch = SendBatch::new(from);
    for n in 0..12 {
        let bytes = payload(n, 40);
        let slot = n as u32 / 3;
        push(&mut batch, &FlowKey { slot, ..flow_to(&to) }, &headers(n, 40), &pieces(&[&bytes]));
    }
    batch.flush();
    receive(&to, 12, |n, datagram| {
        check_one(n, 40, datagram);
        assert_eq!(usize::from(datagram.index), n % 3);
    });
}

#[test]
fn source_ports_are_spread_and_differ_between_processes() {
    let port = port();
    let all: std::collections::BTreeSet<u16> = (0..8)
        .flat_map(|slot| (0..SPREAD as u32).map(move |spread| (slot, spread)))
        .map(|(s, n)| port.flow(s, n).1)
        .collect();
    assert_eq!(all.len(), 8 * SPREAD);
    assert!(all.iter().all(|source| *source >= 0xc000));
    assert_eq!(port.flow(3, 1).1, port.flow(3, 1 + SPREAD as u32).1);
}

#[test]
fn flow_labels_are_sent_and_told() {
    own_network();
    let open = || Arc::new(Port::open("::1".parse().unwrap(), 1).unwrap());
    let port = open();
    port.tell_hop_limits();
    let mut batch = SendBatch::new(port.clone());
    let labels = [0x12345, 0xfffff, 1, 0x80000];
    for (n, label) in labels.into_iter().enumerate() {
        let bytes = payload(n, 20);
        push(&mut batch, &FlowKey { label, tos: 0x28, ..flow_to(&port) }, &headers(n, 20), &pieces(&[&bytes]));
    }
    batch.flush();
    receive(&port, labels.len(), |n, datagram| {
        check_one(n, 20, datagram);
        assert_eq!((datagram.label, datagram.tos, datagram.hop_limit), (labels[n], 0x28, 64));
    });
}

#[test]
fn a_changed_packet_is_not_intact() {
    let (from, to) = (port(), port());
    send(&mut SendBatch::new(from), &to, &[64]);
    receive(&to, 1, |_, datagram| {
        assert!(datagram.is_intact());
        for at in [0, 5, 20, 75] {
            let mut bytes = datagram.bytes.to_vec();
            bytes[at] ^= 1;
            assert!(!Datagram { bytes: &bytes, ..*datagram }.is_intact(), "byte {at}");
        }
        assert!(!Datagram { to: address(), ..*datagram }.is_intact());
        assert!(!Datagram { bytes: &datagram.bytes[..8], ..*datagram }.is_intact());
    });
}

#[test]
fn who_has_the_port_is_told() {
    let taken = address();
    let _other = std::net::UdpSocket::bind((taken, 4791)).unwrap();
    let refused = Port::open(taken, 0).err().unwrap();
    assert_eq!(refused.errno(), libc::EADDRINUSE);
    assert!(refused.to_string().contains("another user, or the kernel's rdma_rxe"), "{refused}");
    let gone = Port::open("192.0.2.1".parse().unwrap(), 0).err().unwrap();
    assert_eq!(gone.errno(), libc::EADDRNOTAVAIL);
    assert!(gone.to_string().contains("192.0.2.1:4791: the address is gone"), "{gone}");
}

/// A port with faults.
fn port_with(faults: &str) -> Arc<Port> {
    let mut port = Port::open(address(), 0).unwrap();
    port.lines = faults::Lines::new(faults).unwrap().map(Arc::new);
    Arc::new(port)
}

#[test]
fn faults_at_the_sender_lose_and_spoil_and_repeat_packets() {
    let (from, to) = (port_with("drop=send_only@2,corrupt=send_only@3,dup=send_only@5"), port());
    send(&mut SendBatch::new(from), &to, &[256; 6]);
    let mut came = Vec::new();
    receive(&to, 6, |_, datagram| came.push((datagram.bytes[11], datagram.is_intact())));
    let good: Vec<u8> = came.iter().filter(|(_, intact)| *intact).map(|(n, _)| *n).collect();
    assert_eq!(good, [0, 3, 4, 4, 5]);
    assert_eq!(came.len(), 6, "the spoiled one comes too");
}

#[test]
fn a_train_is_parted_at_the_packets_that_faults_take_out() {
    let (from, to) = (port_with("drop=send_only@3,delay=send_only@6:20ms"), port());
    send(&mut SendBatch::new(from.clone()), &to, &[256, 256, 256, 256, 256, 256, 256, 256, 8]);
    let mut came = Vec::new();
    receive(&to, 4, |_, datagram| {
        assert!(datagram.is_intact());
        came.push((datagram.bytes[11], datagram.index));
    });
    assert_eq!(came, [(0, 0), (1, 1), (3, 0), (4, 1)], "what follows a late packet waits for it");
    while from.next_release().is_some() {
        from.release();
    }
    let mut late = Vec::new();
    receive(&to, 4, |_, datagram| late.push((datagram.bytes[11], datagram.index, datagram.is_intact())));
    assert_eq!(late, [5, 6, 7, 8].map(|n| (n, 0, true)));
}

#[test]
fn faults_at_the_receiver_meet_the_packets_of_a_train_one_by_one() {
    let (from, to) = (port(), port_with("rx.drop=send_only@3"));
    send(&mut SendBatch::new(from), &to, &[256; 5]);
    let mut came = Vec::new();
    receive(&to, 4, |_, datagram| {
        assert!(datagram.is_intact());
        came.push((datagram.bytes[11], datagram.index));
    });
    assert_eq!(came, [(0, 0), (1, 1), (3, 3), (4, 4)]);
}

#[test]
fn late_packets_tell_when_they_are_due() {
    let (from, to) = (port_with("delay=20ms:send_only@1"), port_with("rx.delay=20ms:send_only@1"));
    let begin = vervain_hca::now_ns();
    send(&mut SendBatch::new(from.clone()), &to, &[8]);
    assert_eq!(from.counters().sent_packets.get(), 0);
    let due = from.next_release().unwrap();
    assert!((begin + 20_000_000..begin + 10_000_000_000).contains(&due), "{begin} {due}");
    assert_eq!(to.next_release(), None);
    while from.next_release().is_some() {
        from.release();
    }
    assert_eq!(from.counters().sent_packets.get(), 1);
    let mut batch = ReceiveBatch::new();
    while to.next_release().is_none() {
        batch.receive(&to);
        assert_eq!(batch.datagrams().count(), 0);
    }
    receive(&to, 1, |n, datagram| check_one(n, 8, datagram));
    assert_eq!(to.next_release(), None);
}

#[test]
fn every_member_of_a_group_gets_a_copy_and_others_none() {
    let (from, member, other) = (port(), port(), port());
    let group: IpAddr = "239.77.1.2".parse().unwrap();
    let mut watched = 0;
    for port in [&from, &member] {
        for _ in 0..2 {
            port.join(group, |_| {
                watched += 1;
                Ok(())
            })
            .unwrap();
        }
    }
    assert_eq!(watched, 2);
    member.leave(group);
    let mut batch = SendBatch::new(from.clone());
    let mut send_one = |n: usize| {
        let bytes = payload(n, 100);
        let (headers, pieces) = (headers(n, 100), pieces(&[&bytes]));
        push(&mut batch, &FlowKey { to: group, hop_limit: 3, ..flow_to(&from) }, &headers, &pieces);
        batch.flush();
    };
    send_one(0);
    for port in [&from, &member] {
        receive(port, 1, |n, datagram| {
            check_one(n, 100, datagram);
            assert_eq!((datagram.from.ip(), datagram.to, datagram.hop_limit), (from.ip(), group, 3));
        });
    }
    member.leave(group);
    send_one(1);
    receive(&from, 1, |_, datagram| check_one(1, 100, datagram));
    for port in [&member, &other] {
        assert!(!ReceiveBatch::new().receive(port));
    }
}

#[test]
fn a_train_that_is_refused_goes_packet_by_packet_and_so_do_all_after_it() {
    let (from, to) = (port(), port());
    // Segments need a checksum each, so a socket without checksums refuses trains.
    options::set(from.flow(0, 0).0, libc::SOL_SOCKET, libc::SO_NO_CHECK, &1i32).unwrap();
    let mut batch = SendBatch::new(from.clone());
    for _ in 0..2 {
        send(&mut batch, &to, &[1000, 1000, 1000, 3]);
        receive(&to, 4, |n, datagram| {
            check_one(n, [1000, 1000, 1000, 3][n], datagram);
            assert_eq!(datagram.index, 0);
        });
    }
    assert_eq!(from.counters().refused_trains.get(), 1);
    assert_eq!(from.counters().sent_packets.get(), 8);
    assert!(!from.takes_trains());
}

#[test]
fn packets_that_find_no_room_at_the_receiver_are_counted() {
    let from = port();
    let to = {
        let at = address();
        let socket = Port::bind(at, 0).unwrap();
        options::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &0i32).unwrap();
        Arc::new(Port::with_socket(at, 0, socket).unwrap())
    };
    let mut batch = SendBatch::new(from.clone());
    let count = || {
        let mut batch = ReceiveBatch::new();
        std::iter::from_fn(|| batch.receive(&to).then(|| batch.datagrams().count())).sum::<usize>()
    };
    // Each larger than the one before, so that there are no trains, which the kernel would count as one.
    send(&mut batch, &to, &(0..100).map(|n| 4 * n).collect::<Vec<_>>());
    let came = count();
    assert!(came > 0 && came < 100, "{came}");
    // The kernel tells with the next packet, and with those after it.
    send(&mut batch, &to, &[1]);
    let mut overflowed = Vec::new();
    receive(&to, 1, |_, datagram| overflowed.push(datagram.overflowed));
    send(&mut batch, &to, &[1]);
    receive(&to, 1, |_, datagram| overflowed.push(datagram.overflowed));
    assert_eq!(overflowed, [true, false], "once for each time that packets are dropped");
    assert_eq!(to.counters().dropped.get() + came as u64, 100);
    assert_eq!(from.counters().sent_packets.get(), 102);
}

#[test]
fn packets_with_a_wrong_checksum_do_not_make_a_socket_look_full() {
    let to = port();
    assert!(!to.received(1, 64, Some(0)));
    // As the kernel counts them: one with each genuine packet, of which the buffer holds more.
    let few = to.room() as u32 / 4 / 600;
    for dropped in 1..few {
        assert!(!to.received(1, 64, Some(dropped)), "after {dropped}, of a buffer of {}", to.room());
    }
    assert!(to.received(to.room() as usize / 4 / 500, 64, Some(few)), "as many have come as it holds");
    assert!(!to.received(to.room() as usize, 64, Some(few)), "no more are dropped");
    assert!(to.received(1, 64, Some(few + 1)));
    assert!(!to.received(1, 64, Some(few + 2)), "it was empty since");
}

#[test]
fn packets_to_the_other_family_are_counted_as_unreachable() {
    let from = port();
    let mut batch = SendBatch::new(from.clone());
    let bytes = payload(0, 8);
    let to = "::1".parse().unwrap();
    push(&mut batch, &FlowKey { to, ..flow_to(&from) }, &headers(0, 8), &pieces(&[&bytes]));
    batch.flush();
    assert_eq!((from.counters().unreachable.get(), from.counters().sent_packets.get()), (1, 0));
}

/// The records of a capture: source port, IPv4 header, and whether the ICRC is right for its identification.
fn captured(file: &std::path::Path) -> Vec<(u16, etherparse::Ipv4Header, bool)> {
    let bytes = std::fs::read(file).unwrap();
    let mut capture = pcap_parser::PcapCapture::from_file(&bytes).unwrap();
    assert_eq!(capture.header.network, pcap_parser::Linktype::RAW);
    let read = |block: &mut pcap_parser::LegacyPcapBlock<'_>| {
        let packet = etherparse::SlicedPacket::from_ip(block.data).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = packet.net else { panic!("not IPv4") };
        let Some(etherparse::TransportSlice::Udp(udp)) = packet.transport else { panic!("not UDP") };
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        let udp_header = udp.to_header();
        assert_eq!(udp_header.checksum, udp_header.calc_checksum_ipv4(&header, udp.payload()).unwrap());
        assert_eq!(udp_header.destination_port, 4791);
        let from = std::net::SocketAddrV4::new(header.source.into(), udp_header.source_port);
        let to = std::net::SocketAddrV4::new(header.destination.into(), 4791);
        let flow = icrc::flow(from.into(), to.into()).unwrap();
        let right = flow.verify(header.identification, udp.payload()) == Some(Untold::with_df(header.identification));
        (udp_header.source_port, header, right)
    };
    capture.blocks.iter_mut().map(read).collect()
}

#[test]
fn a_capture_has_the_packets_as_they_are_on_the_wire() {
    let file = std::env::temp_dir().join(format!("vervain-capture-{}.pcap", std::process::id()));
    let capture: &'static _ = Box::leak(Box::new(capture::Capture::create(file.to_str().unwrap()).unwrap()));
    let again = capture::Capture::create(file.to_str().unwrap()).err().unwrap();
    assert!(again.to_string().contains("another process writes"), "{again}");
    let with_capture = || {
        let mut port = Port::open(address(), 0).unwrap();
        port.capture = Some(capture);
        Arc::new(port)
    };
    let (from, to) = (with_capture(), with_capture());
    let sizes = [1024, 1024, 1024, 5];
    send(&mut SendBatch::new(from.clone()), &to, &sizes);
    receive(&to, 4, |n, datagram| check_one(n, sizes[n], datagram));
    let records = captured(&file);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(records.len(), 8, "sent and received");
    for (n, (source, ip, right)) in records.iter().enumerate() {
        assert!(*right, "ICRC of record {n}");
        assert_eq!(usize::from(ip.identification), n % 4);
        assert!(ip.dont_fragment && ip.time_to_live == 64 && *source >= 0xc000, "{ip:?}");
        assert_eq!((IpAddr::from(ip.source), IpAddr::from(ip.destination)), (from.ip(), to.ip()));
    }
}

/// The records of a capture: time in nanoseconds, sender, and PSN.
fn captured_order(file: &std::path::Path) -> Vec<(u64, IpAddr, usize)> {
    let bytes = std::fs::read(file).unwrap();
    let mut capture = pcap_parser::PcapCapture::from_file(&bytes).unwrap();
    let read = |block: &mut pcap_parser::LegacyPcapBlock<'_>| {
        let time = u64::from(block.ts_sec) * 1_000_000_000 + u64::from(block.ts_usec);
        let sender: [u8; 4] = block.data[12..16].try_into().unwrap();
        // The last two bytes of the BTH, behind the headers of IPv4 and UDP.
        (time, IpAddr::from(sender), usize::from(u16::from_be_bytes([block.data[38], block.data[39]])))
    };
    capture.blocks.iter_mut().map(read).collect()
}

#[test]
fn a_capture_has_no_answer_before_what_it_answers() {
    const PACKETS: usize = 500;
    let file = std::env::temp_dir().join(format!("vervain-order-{}.pcap", std::process::id()));
    let capture: &'static _ = Box::leak(Box::new(capture::Capture::create(file.to_str().unwrap()).unwrap()));
    let with_capture = || {
        let mut port = Port::open(address(), 0).unwrap();
        port.capture = Some(capture);
        Arc::new(port)
    };
    let (from, to) = (with_capture(), with_capture());
    let bytes = payload(0, 8);
    let send_one = |batch: &mut SendBatch, to: &Port, n| {
        push(batch, &flow_to(to), &headers(n, 8), &pieces(&[&bytes]));
        batch.flush();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = SendBatch::new(to.clone());
            receive(&to, PACKETS, |n, _| send_one(&mut batch, &from, n));
        });
        let mut batch = SendBatch::new(from.clone());
        for n in 0..PACKETS {
            send_one(&mut batch, &to, n);
            receive(&from, 1, |_, _| {});
        }
    });
    let records = captured_order(&file);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(records.len(), 4 * PACKETS, "each packet sent and received");
    assert!(records.is_sorted_by_key(|(time, ..)| *time), "times go back");
    for (n, four) in records.chunks(4).enumerate() {
        let senders = four.iter().map(|(_, sender, psn)| (*sender, *psn));
        assert!(senders.eq([from.ip(), from.ip(), to.ip(), to.ip()].map(|sender| (sender, n))), "{n}: {four:?}");
    }
}

#[test]
fn faults_that_are_not_understood_are_refused_with_a_sentence() {
    let refused = faults::Lines::new("drop=often").err().unwrap();
    assert_eq!(refused.errno(), libc::EINVAL);
    assert!(refused.to_string().contains("VERVAIN_FAULTS") && refused.to_string().contains("drop=often"), "{refused}");
    assert!(faults::Lines::new("seed=3").unwrap().is_none(), "no faults, no lines");
}
