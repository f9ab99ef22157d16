//! Packets as bytes between simulated hosts, with the ICRC that the link would put on them.

use std::net::Ipv4Addr;

use vervain_transport::Nanos;
use vervain_wire::icrc::{Flow, Untold};
use vervain_wire::{Headers, ICRC_LEN, MAX_HEADERS, Packet, UDP_PORT, parse};

fn flow(from: usize, to: usize) -> Flow {
    let address = |host: usize| (Ipv4Addr::new(10, 0, 0, host as u8), UDP_PORT);
    Flow::v4(address(from), address(to))
}

/// BTH to ICRC.
pub fn encode(from: usize, to: usize, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [0; MAX_HEADERS];
    let length = headers.emit(&mut bytes);
    let pad = usize::from(headers.bth.pad);
    let mut packet = Vec::with_capacity(length + payload.len() + pad + ICRC_LEN);
    packet.extend_from_slice(&bytes[..length]);
    packet.extend_from_slice(payload);
    packet.resize(packet.len() + pad, 0);
    packet.extend(flow(from, to).icrc(0, &packet));
    packet
}

/// The packet, if it is whole.
pub fn decode(from: usize, to: usize, packet: &[u8]) -> Option<Packet<'_>> {
    let parsed = parse(packet).ok()?;
    (flow(from, to).verify(0, packet) == Some(Untold::with_df(0))).then_some(parsed)
}

/// Prints a packet in one line.
pub fn print(now: Nanos, from: usize, to: usize, packet: &[u8]) {
    let Ok(Packet { headers, payload }) = parse(packet) else { return };
    let bth = &headers.bth;
    let mut line = format!(
        "{:>12.3} us  host {from} > {to}  QP {:#x}  op {:#04x} psn {:#08x} {}bytes {}",
        now as f64 / 1e3,
        bth.dest_qpn,
        bth.opcode,
        bth.psn,
        if bth.ack_request { "ack? " } else { "" },
        payload.len(),
    );
    if let Some(aeth) = headers.aeth {
        line += &format!(" syndrome {:#x} msn {}", aeth.syndrome, aeth.msn);
    }
    if let Some(reth) = headers.reth {
        line += &format!(" addr {:#x} length {}", reth.addr, reth.length);
    }
    println!("{line}");
}
