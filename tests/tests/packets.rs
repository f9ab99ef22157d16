//! What leaves the host: every packet of many programs is captured between two hosts, dissected by tshark as RoCE v2, and
//! its ICRC recomputed by a program that shares no code with Vervain (`tests/python/icrc.py`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use vervain_tests::netns::Network;
use vervain_tests::pairs::{complaint, pair_between, perftest_options, words};
use vervain_tests::wire::{Wire, across};
use vervain_tests::{Failures, Finished, Job, alone, have, have_c, must_hold, side_by_side, tool};

const LIMIT: Duration = Duration::from_secs(60);
/// From the start of a capture to its end.
const CAPTURE_LIMIT: Duration = Duration::from_secs(600);

/// What a datagram to the discard port says, which no program sends: all that was sent before it has been captured.
const MARK: &str = "vervain-end-of-capture";

/// A capture under way on the second host.
struct Capture<'a> {
    job: Job,
    packets: Packets,
    network: &'a Network,
}

impl Capture<'_> {
    fn start(network: &Network) -> Capture<'_> {
        let file = std::env::temp_dir().join(format!("vervain-packets-{}.pcap", std::process::id()));
        let mut command = Command::new(tool("dumpcap").expect("looked for before"));
        command.args(["-i", "eth0", "-P", "-q", "-B", "64", "-f", "udp port 4791 or udp dst port 9", "-w"]).arg(&file);
        let mut job = Job::start(&mut network.second().enter(&command));
        assert!(job.wait_output("File:", LIMIT), "{}", job.finish(Duration::ZERO).describe());
        Capture { job, packets: Packets(file), network }
    }

    /// The file, complete; none of the packets may have been missed.
    fn stop(self) -> Packets {
        // dumpcap writes what it has twice a second, and what it has not taken in at its end is lost.
        let (begin, to) = (Instant::now(), self.network.second().v4);
        let socket = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)";
        while !self.packets.are_marked() {
            assert!(begin.elapsed() < LIMIT, "no mark in the capture: {}", self.job.output());
            let sent =
                self.network.first().run("python3", &["-c", &format!("{socket}.sendto(b'{MARK}', ('{to}', 9))")]);
            assert!(sent.success(), "{}", sent.describe());
        }
        self.job.signal_group(libc::SIGINT);
        let end = self.job.finish(CAPTURE_LIMIT);
        assert!(end.success() && end.output.contains("dropped on interface 'eth0': "), "{}", end.describe());
        assert!(end.output.contains("/0 (pcap:0/"), "the capture has missed packets: {}", end.describe());
        self.packets
    }
}

/// A capture file, which goes with it.
struct Packets(PathBuf);

impl Drop for Packets {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What tshark would guess that a payload is by its first bytes, which are any bytes here.
const GUESSED: &[&str] =
    &["smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband.eoib", "infiniband_sdp", "fcoib"];

impl Packets {
    /// Whether a mark is among the last.
    fn are_marked(&self) -> bool {
        let mut file = File::open(&self.0).expect("the capture");
        let length = file.metadata().expect("its length").len();
        let mut last = Vec::new();
        file.seek(SeekFrom::Start(length.saturating_sub(1 << 16))).expect("a place in it");
        file.read_to_end(&mut last).expect("its end");
        last.windows(MARK.len()).any(|bytes| bytes == MARK.as_bytes())
    }

    fn run(program: &str, args: &[&str], file: &Path) -> Finished {
        Job::start(Command::new(program).args(args).arg(file)).finish(LIMIT)
    }

    /// The number of packets for each opcode, after every ICRC was found right.
    fn icrcs(&self) -> Vec<(u8, u64)> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/icrc.py");
        let end = Packets::run("python3", &[script.to_str().expect("a plain path")], &self.0);
        assert!(end.success() && end.output.contains(" 0 wrong"), "{}", end.describe());
        println!("{}", end.output.trim());
        let list = end.output.rsplit_once("by opcode: ").map_or("", |(_, list)| list);
        let number = |text: &str| u8::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        list.split_whitespace()
            .filter_map(|w| w.split_once(':'))
            .filter_map(|(o, n)| Some((number(o)?, n.parse().ok()?)))
            .collect()
    }

    /// tshark must take each packet for RoCE v2 with every header that its opcode has, and find none malformed.
    fn dissected(&self) {
        let mut args = vec!["-T", "fields", "-E", "separator=;", "-e", "frame.number", "-e", "frame.protocols"];
        args.extend(["-e", "infiniband.bth.opcode", "-e", "_ws.malformed", "--disable-heuristic", "eth_over_ib"]);
        GUESSED.iter().for_each(|name| args.extend(["--disable-protocol", *name]));
        args.extend(["-Y", "udp.port == 4791", "-r"]);
        let end = Packets::run("tshark", &args, &self.0);
        assert!(end.success(), "{}", end.describe());
        let rows: Vec<Vec<&str>> =
            end.output.lines().filter(|l| l.contains(';')).map(|l| l.split(';').collect()).collect();
        assert!(!rows.is_empty(), "{}", end.describe());
        let wrong: Vec<_> = rows
            .iter()
            .filter(|row| {
                !row[1].contains(":udp:infiniband") || row[2].is_empty() || row[3..].iter().any(|w| !w.is_empty())
            })
            .take(10)
            .collect();
        assert!(wrong.is_empty(), "tshark finds packets that are not RoCE v2: {wrong:#?}");
    }
}

fn network() -> Option<(Network, Wire)> {
    if !have(&["dumpcap", "tshark", "python3"]) {
        return None;
    }
    let wire = Wire::Cable(1500);
    let network = wire.lay()?;
    network.cut_trains();
    Some((network, wire))
}

/// Clients whose packets are every opcode but those with immediate data, over each transport.
const LINES: &[&str] = &[
    "ibv_rc_pingpong -c -n 100 -s 3001",
    "ibv_uc_pingpong -c -n 50 -s 3001",
    "ibv_ud_pingpong -c -n 50 -s 1000",
    "ibv_xsrq_pingpong -n 20",
    "ib_send_lat -n 20 -s 100",
    "ib_send_lat -n 20 -s 100000",
    "ib_write_lat -n 20 -s 8",
    "ib_write_lat -n 20 -s 5000",
    "ib_read_lat -n 20 -s 8",
    "ib_write_bw -n 20 -s 65536",
    "ib_write_bw -n 20 -m 256 -s 10000",
    "ib_read_bw -n 20 -s 65536",
    "ib_atomic_lat -n 20",
    "ib_atomic_lat -n 20 -A CMP_AND_SWAP",
    "ib_send_bw -c UD -n 2000 -s 1024",
    "ib_write_lat -c XRC -n 20 -s 3000",
];

#[test]
fn every_packet_of_the_clients_is_roce_v2_with_the_right_icrc() {
    let _turn = alone();
    let Some((network, wire)) = network() else { return };
    if !LINES.iter().filter_map(|line| line.split(' ').next()).all(|tool| have(&[tool])) {
        return;
    }
    let mut failures = Failures::default();
    for gid in [0, 1] {
        let capture = Capture::start(&network);
        let wrong = Mutex::new(Vec::new());
        side_by_side(2, LINES, |line| {
            let (tool, options) = line.split_once(' ').expect("a tool and its options");
            let args = if tool.starts_with("ibv_") {
                [words(options), vec!["-g".to_owned(), gid.to_string()]].concat()
            } else {
                perftest_options(tool, options, gid)
            };
            let (server, client) = pair_between(&network, tool, &args, &wire.variables(), LIMIT);
            println!("{line}: {:.2} s", client.took.as_secs_f64());
            wrong
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(complaint(tool, &server, &client).into_iter().map(|why| (line.to_string(), why)));
        });
        for (line, why) in wrong.into_inner().unwrap_or_else(PoisonError::into_inner) {
            failures.add(&line, why);
        }
        let packets = capture.stop();
        let found = packets.icrcs();
        packets.dissected();
        // RC 0, UC 1, UD 3, XRC 5 (IBA table 38).
        for service in [0, 1, 3, 5].into_iter().filter(|s| !found.iter().any(|(opcode, _)| opcode >> 5 == *s)) {
            failures.add(&format!("GID {gid}"), format!("no packet of service {service}"));
        }
        // Every opcode of RC but those with immediate data, and Vervain's own: a probe and its echo.
        let expected = (0x00..=0x14).filter(|opcode| ![0x03, 0x05, 0x09, 0x0b].contains(opcode)).chain([0xec, 0xf1]);
        for opcode in expected.filter(|opcode| !found.iter().any(|(o, _)| o == opcode)) {
            failures.add(&format!("GID {gid}"), format!("no packet with opcode {opcode:#x}"));
        }
    }
    failures.assert_none();
}

#[test]
fn every_packet_of_every_operation_and_fault_is_roce_v2_with_the_right_icrc() {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let Some((network, wire)) = network() else { return };
    let capture = Capture::start(&network);
    let end = Job::start(&mut across(&network, wire, "conformance", &["--two"])).finish(Duration::from_secs(180));
    let packets = capture.stop();
    let found = packets.icrcs();
    packets.dissected();
    assert!(found.len() > 30, "{found:?}");
    must_hold(&end);
}

/// Requests in a file that a program has written (`VERVAIN_PCAP`): destination QP and source port of each.
fn requests(file: &[u8]) -> Vec<(u32, u16)> {
    let (mut found, mut rest) = (Vec::new(), &file[24..]);
    while let Some((head, after)) = rest.split_first_chunk::<16>() {
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let (packet, after) = after.split_at(length);
        rest = after;
        let udp = &packet[20..];
        // RC: SENDs, RDMA Writes, RDMA READ requests (IBA table 38).
        if udp[8] <= 0x0c {
            found.push((u32::from_be_bytes([0, udp[13], udp[14], udp[15]]), u16::from_be_bytes([udp[0], udp[1]])));
        }
    }
    found
}

/// So switches lead the streams of two processes by several ways, and cards spread them over several queues (IBA annex
/// A17.9.1). Small messages of all QPs leave together.
#[test]
fn streams_of_qps_have_source_ports_of_their_own_and_small_messages_share_one() {
    let wire = Wire::Cable(1500);
    let tool = "ib_write_bw";
    if !have(&[tool]) {
        return;
    }
    let _turn = alone();
    let Some(network) = wire.lay() else { return };
    for (line, ports) in [("-F -x 0 -q 4 -n 100 -s 65536", 4), ("-F -x 0 -q 4 -n 100 -s 8", 1)] {
        let directory = std::env::temp_dir().join(format!("vervain-spread-{}-{ports}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for captures");
        let name = directory.join("%p.pcap");
        let variables = [("VERVAIN_PCAP", name.to_str().expect("a plain path"))];
        let (server, client) = pair_between(&network, tool, &words(line), &variables, LIMIT);
        let files = std::fs::read_dir(&directory).expect("the directory").flatten();
        let captures = files.filter_map(|file| std::fs::read(file.path()).ok()).map(|file| requests(&file));
        // Whoever lists devices begins a file too.
        let captures: Vec<_> = captures.filter(|requests| !requests.is_empty()).collect();
        let _ = std::fs::remove_dir_all(&directory);
        assert_eq!(complaint(tool, &server, &client), [""; 0], "{line}");
        assert_eq!(captures.len(), 2, "each side has written one");
        for capture in captures {
            let mut of_qp = BTreeMap::<u32, BTreeSet<u16>>::new();
            for (qpn, port) in capture {
                of_qp.entry(qpn).or_default().insert(port);
            }
            let all: BTreeSet<_> = of_qp.values().flatten().collect();
            assert_eq!((of_qp.len(), all.len()), (4, ports), "{line}: {of_qp:?}");
            assert!(of_qp.values().all(|ports| ports.len() == 1), "{line}: {of_qp:?}");
        }
    }
}
