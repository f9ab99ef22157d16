//! The golden captures, as UDP payloads with the flow that each came in.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use pcap_parser::PcapCapture;
use vervain_wire::icrc::Flow;

/// A captured packet.
pub struct Captured {
    /// Capture and number of the packet, for messages.
    pub name: String,
    /// Addresses and ports.
    pub flow: Flow,
    /// IPv4 identification; none for IPv6.
    pub id: Option<u16>,
    /// From the BTH to the ICRC.
    pub datagram: Vec<u8>,
}

/// The folder of the captures.
pub const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

/// All packets of all captures, in order.
pub fn packets(golden: impl AsRef<Path>) -> Vec<Captured> {
    let mut paths: Vec<_> = fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    paths.sort();
    paths.iter().flat_map(|path| capture(path)).collect()
}

fn capture(path: &Path) -> Vec<Captured> {
    let file = fs::read(path).unwrap();
    let name = path.file_name().unwrap().to_string_lossy();
    let blocks = PcapCapture::from_file(&file).unwrap().blocks;
    blocks.iter().enumerate().map(|(n, block)| dissect(format!("{name} packet {}", n + 1), block.data)).collect()
}

/// Takes an Ethernet frame apart.
fn dissect(name: String, frame: &[u8]) -> Captured {
    let ip = &frame[14..];
    let half = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (ip_len, id) = match half(frame, 12) {
        0x0800 => (usize::from(ip[0] & 0xf) * 4, Some(half(ip, 4))),
        0x86dd => (40, None),
        other => panic!("{name}: ethertype {other:#x}"),
    };
    let udp = &ip[ip_len..];
    let udp = &udp[..usize::from(half(udp, 4))];
    let (source, destination) = (half(udp, 0), half(udp, 2));
    let flow = if id.is_some() {
        let addr = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
        Flow::v4((addr(12), source), (addr(16), destination))
    } else {
        let addr = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
        Flow::v6((addr(8), source), (addr(24), destination))
    };
    Captured { name, flow, id, datagram: udp[8..].to_vec() }
}
