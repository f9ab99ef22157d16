//! Other programs read Vervain's packets: tshark dissects a packet of every opcode and finds the fields that were put
//! in, and scapy's RoCE layer computes the same ICRC. Skipped with a message if they are not installed.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Output};

use vervain_skip::skip;
use vervain_wire::icrc::Flow;
use vervain_wire::opcode::{self, *};
use vervain_wire::{Aeth, AtomicEth, Bth, Deth, Headers, MAX_HEADERS, Reth, UDP_PORT};

const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 3, 2, 1);
const SOURCE_PORT: u16 = 0xc321;

/// Prints the ICRC that scapy computes for each packet, in hexadecimal.
const SCAPY: &str = "
import sys
from scapy.contrib.roce import BTH
from scapy.utils import rdpcap
for packet in rdpcap(sys.argv[1]):
    print(packet[BTH].compute_icrc(b'').hex())
";

/// The fields that tshark is asked for.
const FIELDS: [&str; 21] = [
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
];

/// The packet with the `n`-th opcode: every field that it has holds another value.
fn headers(n: usize, opcode: u8, pad: u8) -> Headers {
    let n = n as u32;
    Headers {
        bth: Bth {
            opcode,
            solicited: n & 1 != 0,
            migration: n & 2 != 0,
            pad,
            pkey: 0x8001,
            dest_qpn: 0x20_0000 + n,
            ack_request: n & 4 != 0,
            mark: if n & 8 != 0 { 0x56 } else { 0 },
            psn: 0xfe_dc00 + n,
        },
        srqn: has_xrceth(opcode).then_some(0x10_2030),
        deth: has_deth(opcode).then_some(Deth { qkey: 0x1111_1111, source_qpn: 0x22_2222 }),
        reth: has_reth(opcode).then_some(Reth { addr: 0x1234_5678_9abc_def0, rkey: 0x5566_7788, length: 13 }),
        atomic: is_atomic(opcode).then_some(AtomicEth {
            addr: 0x0fed_cba9_8765_4321,
            rkey: 0x99aa_bbcc,
            swap_add: 0x0102_0304_0506_0708,
            compare: 0x1112_1314_1516_1718,
        }),
        aeth: has_aeth(opcode).then_some(Aeth { syndrome: 0x1f, msn: 0x03_0201 }),
        atomic_ack: (operation(opcode) == ATOMIC_ACKNOWLEDGE).then_some(0x2122_2324_2526_2728),
        imm: has_imm(opcode).then_some([0xca, 0xfe, 0xba, 0xbe]),
        invalidate: has_invalidate(opcode).then_some(0xdead_beef),
        flush: (operation(opcode) == FLUSH).then_some((1, 2)),
    }
}

/// A packet from the BTH to the ICRC. The IPv4 identification is its number.
fn datagram(n: usize, opcode: u8) -> Vec<u8> {
    let (payload, pad): (&[u8], u8) = match operation(opcode) {
        ATOMIC_WRITE => (&[7; 8], 0),
        _ if opcode == CNP => (&[0; 16], 0),
        _ if [PROBE, ECHO].contains(&opcode) => (&[7; 4], 0),
        _ if has_payload(opcode) => (b"thirteen byte", 3),
        _ => (&[], 0),
    };
    let mut out = [0; MAX_HEADERS];
    let len = headers(n, opcode, pad).emit(&mut out);
    let behind = [payload, &[0; 3][..pad as usize]].concat();
    let flow = Flow::v4((SOURCE, SOURCE_PORT), (DESTINATION, UDP_PORT));
    let covered = [&out[..len], &behind].concat();
    [&covered[..], &flow.icrc(n as u16, &covered)].concat()
}

/// An Ethernet frame with it.
fn frame(n: usize, datagram: &[u8]) -> Vec<u8> {
    let udp_len = 8 + datagram.len() as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend((n as u16).to_be_bytes());
    frame.extend([0x40, 0, 64, 17, 0, 0]);
    frame.extend(SOURCE.octets());
    frame.extend(DESTINATION.octets());
    for half in [SOURCE_PORT, UDP_PORT, udp_len, 0] {
        frame.extend(half.to_be_bytes());
    }
    frame.extend(datagram);
    frame
}

/// A classic pcap file of the packets.
fn capture(name: &str, packets: &[Vec<u8>]) -> PathBuf {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1u32] {
        file.extend(word.to_le_bytes());
    }
    for (n, packet) in packets.iter().enumerate() {
        let frame = frame(n, packet);
        for word in [n as u32, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, file).unwrap();
    path
}

/// Runs a program; None with a message if it is not there.
fn run(command: &mut Command, wanted: &str) -> Option<String> {
    let Ok(Output { status, stdout, stderr }) = command.output() else {
        skip(format_args!("{wanted} is not installed"));
        return None;
    };
    let stderr = String::from_utf8_lossy(&stderr);
    if stderr.contains("No module named") {
        skip(format_args!("{wanted} is not installed"));
        return None;
    }
    assert!(status.success(), "{wanted}: {stderr}");
    Some(String::from_utf8(stdout).unwrap())
}

#[test]
fn scapy_computes_the_same_icrc() {
    let packets: Vec<Vec<u8>> =
        (0..=u8::MAX).filter(|&opcode| is_known(opcode)).enumerate().map(|(n, opcode)| datagram(n, opcode)).collect();
    let path = capture("scapy.pcap", &packets);
    // The distribution's interpreter: that is the one which has the distribution's scapy.
    let mut python = Command::new("/usr/bin/python3");
    let Some(computed) = run(python.args(["-c", SCAPY]).arg(path), "scapy (package python3-scapy)") else { return };
    let ours: Vec<String> = packets.iter().map(|packet| hex(&packet[packet.len() - 4..])).collect();
    assert_eq!(computed.lines().collect::<Vec<_>>(), ours);
}

#[test]
fn tshark_finds_the_fields_that_were_put_in() {
    // Wireshark has no XRC, and no annex A19.
    let opcodes: Vec<u8> = (0..=u8::MAX)
        .filter(|&opcode| matches!(opcode::service(opcode), Some(Service::Rc | Service::Uc | Service::Ud)))
        .filter(|&opcode| !matches!(operation(opcode), FLUSH | ATOMIC_WRITE))
        .collect();
    let packets: Vec<Vec<u8>> = opcodes.iter().enumerate().map(|(n, &opcode)| datagram(n, opcode)).collect();
    let path = capture("tshark.pcap", &packets);
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(path).args(["-T", "fields", "-E", "separator=,", "-E", "occurrence=f"]);
    tshark.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let Some(found) = run(&mut tshark, "tshark") else { return };

    for ((n, &opcode), line) in opcodes.iter().enumerate().zip(found.lines()) {
        let packet = &packets[n];
        let expected = expected(&headers(n, opcode, packet[1] >> 4 & 3), &packet[packet.len() - 4..]);
        for ((field, found), expected) in FIELDS.iter().zip(line.split(',')).zip(expected) {
            assert_eq!(found, expected, "{field} of opcode {opcode:#x}");
        }
    }
    assert_eq!(found.lines().count(), opcodes.len());
}

/// The output of tshark for [`FIELDS`]; empty if the packet lacks the field.
fn expected(headers: &Headers, icrc: &[u8]) -> [String; FIELDS.len()] {
    let bth = headers.bth;
    let Headers { deth, reth, atomic, aeth, .. } = *headers;
    let addr = reth.map(|reth| (reth.addr, reth.rkey)).or(atomic.map(|atomic| (atomic.addr, atomic.rkey)));
    let or_none = |value: Option<String>| value.unwrap_or_default();
    [
        bth.opcode.to_string(),
        u8::from(bth.solicited).to_string(),
        u8::from(bth.migration).to_string(),
        bth.pad.to_string(),
        bth.pkey.to_string(),
        format!("{:#08x}", bth.dest_qpn),
        u8::from(bth.ack_request).to_string(),
        bth.psn.to_string(),
        or_none(deth.map(|deth| format!("{:#018x}", deth.qkey))),
        or_none(deth.map(|deth| format!("{:#010x}", deth.source_qpn))),
        or_none(addr.map(|(addr, _)| format!("{addr:#018x}"))),
        or_none(addr.map(|(_, rkey)| format!("{rkey:#010x}"))),
        or_none(reth.map(|reth| reth.length.to_string())),
        or_none(atomic.map(|atomic| atomic.swap_add.to_string())),
        or_none(atomic.map(|atomic| atomic.compare.to_string())),
        or_none(aeth.map(|aeth| aeth.syndrome.to_string())),
        or_none(aeth.map(|aeth| aeth.msn.to_string())),
        or_none(headers.atomic_ack.map(|word| word.to_string())),
        or_none(headers.imm.map(|imm| hex(&imm))),
        or_none(headers.invalidate.map(|key| hex(&key.to_be_bytes()))),
        format!("0x{}", hex(icrc)),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
