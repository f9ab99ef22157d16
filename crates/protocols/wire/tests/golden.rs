//! Every packet of the golden captures (`golden/README.md`) is understood, and made again byte for byte, ICRC included.

mod common;

use std::collections::BTreeSet;

use vervain_wire::icrc::Untold;
use vervain_wire::opcode::{
    self, ATOMIC_WRITE, FLUSH, RC, SEND_LAST_IMM, SEND_LAST_INVALIDATE, UC, WRITE_LAST_IMM, WRITE_ONLY,
};
use vervain_wire::{ICRC_LEN, MAX_HEADERS, parse};

#[test]
fn every_captured_packet_is_made_again_byte_for_byte() {
    let packets = common::packets(common::GOLDEN);
    assert_eq!(packets.len(), 708);
    for captured in packets {
        let name = captured.name;
        let packet = parse(&captured.datagram).unwrap_or_else(|malformed| panic!("{name}: {malformed}"));

        let mut headers = [0; MAX_HEADERS];
        let len = packet.headers.emit(&mut headers);
        let headers = &headers[..len];
        let padding = &[0; 3][..packet.headers.bth.pad as usize];
        let mut again = [headers, packet.payload, padding].concat();
        again.extend(captured.flow.icrc(captured.id.unwrap_or(0), &again));
        assert_eq!(again, captured.datagram, "{name}");
    }
}

#[test]
fn the_ipv4_identification_of_every_captured_packet_is_found() {
    for captured in common::packets(common::GOLDEN) {
        let found = captured.flow.verify(0, &captured.datagram);
        assert_eq!(found, Some(Untold::with_df(captured.id.unwrap_or(0))), "{}", captured.name);
    }
}

/// Opcodes that the captures lack are written out by hand in `formats.rs`.
#[test]
fn the_captures_lack_few_opcodes_of_rc_uc_and_ud() {
    let seen: BTreeSet<u8> = common::packets(common::GOLDEN).iter().map(|captured| captured.datagram[0]).collect();
    let lacking: Vec<u8> = (0..=u8::MAX)
        .filter(|&opcode| matches!(opcode::service(opcode), Some(service) if service != opcode::Service::Xrc))
        .filter(|opcode| !seen.contains(opcode))
        .collect();
    let expected = [
        RC | SEND_LAST_IMM,
        RC | SEND_LAST_INVALIDATE,
        RC | FLUSH,
        RC | ATOMIC_WRITE,
        UC | SEND_LAST_IMM,
        UC | WRITE_LAST_IMM,
        UC | WRITE_ONLY,
    ];
    assert_eq!(lacking, expected);
}

#[test]
fn a_packet_cut_short_fails_its_icrc() {
    for captured in common::packets(common::GOLDEN) {
        let datagram = &captured.datagram;
        let shorter = &datagram[..datagram.len() - ICRC_LEN];
        assert_eq!(captured.flow.verify(captured.id.unwrap_or(0), shorter), None, "{}", captured.name);
    }
}
