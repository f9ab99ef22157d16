//! What holds for any bytes that claim to be a packet. The fuzz target `packet` and the bounded run in
//! `crates/protocols/wire/tests/mutated.rs` call this.

use std::net::{Ipv4Addr, Ipv6Addr};

use vervain_wire::icrc::{Flow, Untold};
use vervain_wire::opcode::{self, headers_len};
use vervain_wire::{ICRC_LEN, MAX_HEADERS, parse};

/// Panics where a rule is broken. Returns whether the bytes were taken for a packet.
pub fn check(datagram: &[u8]) -> bool {
    icrc(datagram);
    let packet = match parse(datagram) {
        Ok(packet) => packet,
        Err(malformed) => {
            assert!(!malformed.to_string().is_empty());
            return false;
        }
    };
    let bth = packet.headers.bth;
    let mut headers = [0; MAX_HEADERS];
    let len = packet.headers.emit(&mut headers);
    assert_eq!(len, headers_len(bth.opcode));
    assert_eq!(len + packet.payload.len() + usize::from(bth.pad) + ICRC_LEN, datagram.len());
    assert_eq!(packet.payload, &datagram[len..][..packet.payload.len()]);

    // What was understood is made again; nothing else differs but reserved bits.
    let again = [&headers[..len], &datagram[len..]].concat();
    assert_eq!(parse(&again), Ok(packet));
    for (at, (&before, &after)) in datagram[..len].iter().zip(&headers[..len]).enumerate() {
        assert_eq!((before ^ after) & !reserved(bth.opcode, at), 0, "byte {at} of {datagram:02x?}");
    }
    true
}

/// The reserved bits of a byte of the headers.
fn reserved(opcode: u8, at: usize) -> u8 {
    let xrc = opcode::has_xrceth(opcode);
    let flush = opcode::operation(opcode) == opcode::FLUSH && opcode != opcode::CNP;
    let feth = if xrc { 16 } else { 12 };
    match at {
        4 => 0xff,
        12 if xrc => 0xff,
        16 if opcode::has_deth(opcode) => 0xff,
        _ if flush && (feth..feth + 3).contains(&at) => 0xff,
        _ if flush && at == feth + 3 => 0xc0,
        _ => 0,
    }
}

/// An identification that is found is one with which the ICRC is right.
fn icrc(datagram: &[u8]) {
    let v4 = Flow::v4((Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::BROADCAST, 2));
    if let Some(found @ Untold { id, dont_fragment: true }) = v4.verify(0, datagram) {
        assert_eq!(v4.verify(id, datagram), Some(found));
        let (covered, sent) = datagram.split_at(datagram.len() - ICRC_LEN);
        assert_eq!(v4.icrc(id, covered), sent);
    }
    let v6 = Flow::v6((Ipv6Addr::LOCALHOST, 1), (Ipv6Addr::UNSPECIFIED, 2));
    assert_eq!(v6.verify(0, datagram).is_some(), v6.verify(9, datagram).is_some());
}
