//! Packet formats byte by byte, as IBA draws them; each way to be malformed; and headers of every kind there and back.

use proptest::prelude::*;
use vervain_wire::opcode::{self, *};
use vervain_wire::{Aeth, AtomicEth, Bth, Deth, Headers, MAX_HEADERS, Malformed, Packet, Reth, parse, parse_to};

/// BTH fields that are the same in all packets here, as bytes: solicited, no padding, P_Key 0xffff, QP 0x123456,
/// AckReq, PSN 0xabcdef.
const BTH: [u8; 11] = [0x80, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];
const ADDR_AND_KEY: [u8; 12] = [0, 0, 0x7f, 1, 2, 3, 4, 5, 0xc0, 0xff, 0xee, 0];
const ADDR: u64 = 0x7f01_0203_0405;
const RKEY: u32 = 0xc0ff_ee00;

fn bth(opcode: u8) -> Bth {
    Bth {
        opcode,
        solicited: true,
        migration: false,
        pad: 0,
        pkey: 0xffff,
        dest_qpn: 0x12_3456,
        ack_request: true,
        mark: 0,
        psn: 0xab_cdef,
    }
}

/// Parses and emits, and compares with bytes written by hand.
#[track_caller]
fn assert_format(headers: Headers, extended: &[u8], payload: &[u8]) {
    let bytes = [&[headers.bth.opcode], &BTH[..], extended].concat();
    let mut out = [0; MAX_HEADERS];
    let len = headers.emit(&mut out);
    assert_eq!(out[..len], bytes);

    let datagram = [&bytes, payload, &[0xde, 0xad, 0xbe, 0xef]].concat();
    let packet = parse(&datagram).unwrap();
    assert_eq!(packet.headers, headers);
    assert_eq!(packet.payload, payload);
}

#[test]
fn sends() {
    let plain = |opcode| Headers { bth: bth(opcode), ..Headers::default() };
    assert_format(plain(RC | SEND_FIRST), &[], &[1; 8]);
    assert_format(plain(UC | SEND_MIDDLE), &[], &[1; 8]);
    for opcode in [RC | SEND_LAST_IMM, UC | SEND_LAST_IMM, RC | WRITE_LAST_IMM, UC | WRITE_LAST_IMM] {
        assert_format(Headers { imm: Some([1, 2, 3, 4]), ..plain(opcode) }, &[1, 2, 3, 4], &[7; 4]);
    }
    for opcode in [RC | SEND_LAST_INVALIDATE, RC | SEND_ONLY_INVALIDATE] {
        assert_format(Headers { invalidate: Some(0x0102_0304), ..plain(opcode) }, &[1, 2, 3, 4], &[7; 4]);
    }
}

#[test]
fn datagrams() {
    let deth = Some(Deth { qkey: 0x8001_0000, source_qpn: 0x00_beef });
    let headers = Headers { bth: bth(UD | SEND_ONLY), deth, ..Headers::default() };
    assert_format(headers, &[0x80, 1, 0, 0, 0, 0, 0xbe, 0xef], &[]);
    let headers = Headers { bth: bth(UD | SEND_ONLY_IMM), imm: Some([9, 8, 7, 6]), ..headers };
    assert_format(headers, &[0x80, 1, 0, 0, 0, 0, 0xbe, 0xef, 9, 8, 7, 6], &[1; 4]);
}

#[test]
fn rdma() {
    let reth = Some(Reth { addr: ADDR, rkey: RKEY, length: 0x1_0002 });
    let bytes = [&ADDR_AND_KEY[..], &[0, 1, 0, 2]].concat();
    let rdma = |opcode| Headers { bth: bth(opcode), reth, ..Headers::default() };
    assert_format(rdma(UC | WRITE_ONLY), &bytes, &[1; 4]);
    assert_format(rdma(RC | READ_REQUEST), &bytes, &[]);
    assert_format(rdma(RC | ATOMIC_WRITE), &bytes, &[1; 8]);
    let with_imm = Headers { imm: Some([1, 2, 3, 4]), ..rdma(RC | WRITE_ONLY_IMM) };
    assert_format(with_imm, &[&bytes[..], &[1, 2, 3, 4]].concat(), &[1; 4]);
    // A19: the FETH comes first; placement type in bits 3 to 0, selectivity level in bits 5 and 4.
    let flush = Headers { flush: Some((2, 1)), ..rdma(RC | FLUSH) };
    assert_format(flush, &[&[0, 0, 0, 0x12], &bytes[..]].concat(), &[]);
}

#[test]
fn atomics_and_responses() {
    let atomic = Some(AtomicEth { addr: ADDR, rkey: RKEY, swap_add: 5, compare: 6 });
    let bytes = [&ADDR_AND_KEY[..], &5u64.to_be_bytes(), &6u64.to_be_bytes()].concat();
    assert_format(Headers { bth: bth(RC | COMPARE_SWAP), atomic, ..Headers::default() }, &bytes, &[]);

    let aeth = Some(Aeth { syndrome: 0x62, msn: 0x01_0203 });
    let answer = |opcode| Headers { bth: bth(opcode), aeth, ..Headers::default() };
    assert_format(answer(RC | ACKNOWLEDGE), &[0x62, 1, 2, 3], &[]);
    assert_format(answer(RC | READ_RESPONSE_ONLY), &[0x62, 1, 2, 3], &[]);
    assert_format(answer(RC | READ_RESPONSE_LAST), &[0x62, 1, 2, 3], &[1; 4]);
    let word = Headers { atomic_ack: Some(7), ..answer(RC | ATOMIC_ACKNOWLEDGE) };
    assert_format(word, &[0x62, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 7], &[]);
}

/// A14.2.2: the XRCETH is the first extended header of requests; responses have none.
#[test]
fn extended_reliable_connections() {
    let request = |opcode| Headers { bth: bth(opcode), srqn: Some(0x01_0203), ..Headers::default() };
    assert_format(request(XRC | SEND_MIDDLE), &[0, 1, 2, 3], &[1; 4]);
    let atomic = Some(AtomicEth { addr: ADDR, rkey: RKEY, swap_add: 5, compare: 0 });
    let bytes = [&[0, 1, 2, 3], &ADDR_AND_KEY[..], &5u64.to_be_bytes(), &[0; 8]].concat();
    assert_format(Headers { atomic, ..request(XRC | FETCH_ADD) }, &bytes, &[]);
    let aeth = Some(Aeth { syndrome: 0x1f, msn: 4 });
    assert_format(Headers { bth: bth(XRC | ACKNOWLEDGE), aeth, ..Headers::default() }, &[0x1f, 0, 0, 4], &[]);
}

/// A17.9.3: BTH with BECN, then 16 reserved bytes.
#[test]
fn congestion_notification() {
    let headers = Headers { bth: bth(CNP), ..Headers::default() };
    let mut out = [0; MAX_HEADERS];
    assert_eq!(headers.emit(&mut out), 12);
    assert_eq!(out[4], 0x40);
    let datagram = [&out[..12], &[0; 16 + 4]].concat();
    assert_eq!(parse(&datagram).unwrap().headers, headers);
}

/// IBA 9.2: reserved bits are sent as zeros and ignored on receipt; FECN and BECN are the network's.
#[test]
fn reserved_bits_are_ignored() {
    let headers = Headers { bth: bth(UD | SEND_ONLY), deth: Some(Deth::default()), ..Headers::default() };
    let mut out = [0; MAX_HEADERS];
    let len = headers.emit(&mut out);
    out[4] = 0xff;
    out[8] |= 0x7f;
    out[16] = 0xff;
    let datagram = [&out[..len], &[0; 4]].concat();
    let read = parse(&datagram).unwrap().headers;
    assert_eq!(read, Headers { bth: Bth { mark: 0x7f, ..headers.bth }, ..headers });
    assert!(!read.bth.is_vervain(), "all bits together are no mark");
}

/// docs/protocol.md, The marks in connections.
#[test]
fn a_mark_is_all_seven_bits() {
    let of_vervain = |mark| Bth { mark, ..Bth::default() }.is_vervain();
    assert!((0..0x80).filter(|mark| of_vervain(*mark)).eq([0x29, 0x56]));
}

/// Vervain's own: an AETH, and runs of missing and kept packets.
#[test]
fn reports_of_gaps() {
    let headers = Headers { aeth: Some(Aeth { syndrome: 0x1f, msn: 7 }), bth: bth(GAPS), ..Headers::default() };
    assert_format(headers, &[0x1f, 0, 0, 7], &[0, 1, 0, 2]);
    let mut out = [0; MAX_HEADERS];
    let len = headers.emit(&mut out);
    let is_good = |payload: &[u8]| parse(&[&out[..len], payload, &[0; 4]].concat()).is_ok();
    assert!(is_good(&[0, 1, 0, 1]) && is_good(&[0, 1, 0, 1].repeat(64)));
    assert!(!is_good(&[]) && !is_good(&[0, 1, 0, 0]) && !is_good(&[0, 1, 0, 1].repeat(65)));
    assert!(!is_good(&[0; 4]) && !is_good(&[0xff; 4]), "no packets, and too many");
    // Padding would cut a gap in two.
    out[1] |= 0x10;
    assert!(parse(&[&out[..len], &[0, 1, 0, 1], &[0; 4]].concat()).is_err());
}

#[test]
fn fields_of_24_bits_are_cut_to_size() {
    let large = u32::MAX;
    let emit = |opcode, headers: Headers| {
        let bth = Bth { opcode, dest_qpn: large, psn: large, pad: 0xff, ..Bth::default() };
        let mut out = [0; MAX_HEADERS];
        let len = Headers { bth, ..headers }.emit(&mut out);
        assert_eq!(out[..12], [opcode, 0x30, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff]);
        out[12..len].to_vec()
    };
    let deth = Some(Deth { qkey: large, source_qpn: large });
    assert_eq!(emit(UD | SEND_ONLY, Headers { deth, ..Headers::default() }), [255, 255, 255, 255, 0, 255, 255, 255]);
    let aeth = Some(Aeth { syndrome: 0, msn: large });
    assert_eq!(emit(RC | ACKNOWLEDGE, Headers { aeth, ..Headers::default() }), [0, 255, 255, 255]);
    let srqn = Some(large);
    assert_eq!(emit(XRC | SEND_MIDDLE, Headers { srqn, ..Headers::default() }), [0, 255, 255, 255]);
    let flush = emit(RC | FLUSH, Headers { flush: Some((0xff, 0xff)), ..Headers::default() });
    assert_eq!(flush[..4], [0, 0, 0, 0x3f]);
}

/// Vervain's own: a DETH, and four bytes.
#[test]
fn a_probe_and_its_echo_are_of_one_length() {
    let deth = Some(Deth { qkey: 0, source_qpn: 0x01_0203 });
    for opcode in [PROBE, ECHO] {
        assert_format(Headers { bth: bth(opcode), deth, ..Headers::default() }, &[0, 0, 0, 0, 0, 1, 2, 3], &[7; 4]);
    }
}

/// The headers of an opcode, all zeros, and this much behind them.
fn datagram(opcode: u8, pad: u8, behind: usize) -> Vec<u8> {
    let headers = Headers { bth: Bth { opcode, pad, ..Bth::default() }, ..Headers::default() };
    let mut out = [0; MAX_HEADERS];
    let len = headers.emit(&mut out);
    let mut datagram = out[..len].to_vec();
    datagram.resize(len + behind, 0);
    datagram
}

#[test]
fn every_prefix_of_a_packet_is_too_short_or_unaligned() {
    for opcode in (0..=u8::MAX).filter(|&opcode| is_known(opcode)) {
        let whole = datagram(opcode, 0, 4);
        for len in 0..whole.len() {
            let wanted = if len < 16 { 16 } else { whole.len() };
            assert_eq!(parse(&whole[..len]), Err(Malformed::Short { wanted, found: len }), "{opcode:#x}");
        }
    }
    for odd in 1..4 {
        let datagram = datagram(RC | SEND_ONLY, 0, 4 + odd);
        assert_eq!(parse(&datagram), Err(Malformed::Unaligned(16 + odd)));
    }
}

#[test]
fn unknown_opcodes_are_malformed() {
    for opcode in (0..=u8::MAX).filter(|&opcode| !is_known(opcode)) {
        assert_eq!(parse(&datagram(opcode, 0, 64)), Err(Malformed::Opcode(opcode)));
    }
}

#[test]
fn other_versions_are_malformed() {
    for version in 1..16 {
        let mut datagram = datagram(RC | SEND_ONLY, 0, 8);
        datagram[1] |= version;
        assert_eq!(parse(&datagram), Err(Malformed::Version(version)));
    }
}

#[test]
fn padding_is_part_of_the_payload() {
    for pad in 1..4 {
        assert_eq!(parse(&datagram(RC | SEND_ONLY, pad, 4)), Err(Malformed::Padding { pad, found: 0 }));
        assert_eq!(parse(&datagram(RC | SEND_ONLY, pad, 4 + 8)).unwrap().payload.len(), 8 - usize::from(pad));
    }
}

#[test]
fn payload_is_where_the_opcode_allows_it() {
    for opcode in (0..=u8::MAX).filter(|&opcode| is_known(opcode)) {
        for (pad, len) in [(0, 0), (0, 4), (1, 8), (0, 8), (0, 16), (0, 4096)] {
            let right = match operation(opcode) {
                _ if opcode == CNP => len == 16,
                // Runs of no packets.
                _ if opcode == GAPS => false,
                _ if [PROBE, ECHO].contains(&opcode) => len == 4 && pad == 0,
                READ_REQUEST | ACKNOWLEDGE | ATOMIC_ACKNOWLEDGE | COMPARE_SWAP | FETCH_ADD | FLUSH => len == 0,
                ATOMIC_WRITE => len == 8 && pad == 0,
                _ => true,
            };
            let datagram = datagram(opcode, pad, len + 4);
            let parsed = parse(&datagram);
            let expected = Err(Malformed::Payload { opcode, found: len });
            assert!(if right { parsed.is_ok() } else { parsed == expected }, "{opcode:#x} with {len}: {parsed:?}");
        }
    }
}

#[test]
fn a_packet_has_no_headers_of_the_one_that_was_parsed_before_it() {
    let any_length = |opcode| [0, 4, 8, 16].into_iter().map(move |len| datagram(opcode, 0, len + 4));
    let known = (0..=u8::MAX).filter(|&opcode| is_known(opcode));
    let datagrams: Vec<Vec<u8>> = known.flat_map(any_length).filter(|datagram| parse(datagram).is_ok()).collect();
    assert!(datagrams.len() > 64);
    for before in &datagrams {
        for datagram in &datagrams {
            let mut packet = Packet::default();
            parse_to(before, &mut packet).unwrap();
            let malformed = parse_to(&datagram[..12], &mut packet);
            assert!(malformed.is_err() && packet == parse(before).unwrap(), "it stays as it was");
            parse_to(datagram, &mut packet).unwrap();
            assert_eq!(packet, parse(datagram).unwrap(), "{:#x} behind {:#x}", datagram[0], before[0]);
        }
    }
}

#[test]
fn what_is_malformed_says_what_was_wanted_and_found() {
    let said = |datagram: &[u8]| parse(datagram).unwrap_err().to_string();
    assert_eq!(said(&[]), "0 bytes where at least 16 were wanted");
    assert_eq!(said(&datagram(RC | SEND_ONLY, 0, 6)), "18 bytes, which is not a multiple of 4");
    assert_eq!(said(&datagram(0x40, 0, 4)), "opcode 0x40 is not known");
    assert_eq!(said(&datagram(RC | SEND_ONLY, 3, 4)), "3 bytes of padding in a payload of 0");
    assert_eq!(said(&datagram(RC | READ_REQUEST, 0, 8)), "4 bytes of payload, which opcode 0x0c does not allow");
    let mut version = datagram(RC | SEND_ONLY, 0, 4);
    version[1] = 3;
    assert_eq!(said(&version), "transport header version 3 where 0 was wanted");
}

/// Headers of any known opcode of a service, with those extended headers that it has.
fn any_headers() -> impl Strategy<Value = Headers> {
    let known: Vec<u8> = (0..=u8::MAX).filter(|&opcode| opcode::service(opcode).is_some()).collect();
    let bth =
        (proptest::sample::select(known), any::<[bool; 3]>(), 0..0x80u8, any::<u16>(), 0..1u32 << 24, 0..1u32 << 24);
    let numbers = (any::<[u32; 5]>(), any::<[u64; 4]>(), any::<[u8; 4]>(), 0..16u8, 0..4u8);
    (bth, numbers).prop_map(|((opcode, [solicited, migration, ack_request], mark, pkey, dest_qpn, psn), numbers)| {
        let (words, doubles, imm, placement, selectivity) = numbers;
        let bth = Bth { opcode, solicited, migration, pad: 0, pkey, dest_qpn, ack_request, mark, psn };
        let operation = operation(opcode);
        Headers {
            bth,
            srqn: has_xrceth(opcode).then_some(words[0] >> 8),
            deth: (service(opcode) == Some(Service::Ud)).then_some(Deth { qkey: words[0], source_qpn: words[1] >> 8 }),
            reth: has_reth(opcode).then_some(Reth { addr: doubles[0], rkey: words[2], length: words[3] }),
            atomic: is_atomic(opcode).then_some(AtomicEth {
                addr: doubles[0],
                rkey: words[2],
                swap_add: doubles[1],
                compare: doubles[2],
            }),
            aeth: has_aeth(opcode).then_some(Aeth { syndrome: imm[0], msn: words[4] >> 8 }),
            atomic_ack: (operation == ATOMIC_ACKNOWLEDGE).then_some(doubles[3]),
            imm: has_imm(opcode).then_some(imm),
            invalidate: has_invalidate(opcode).then_some(words[2]),
            flush: (operation == FLUSH).then_some((placement, selectivity)),
        }
    })
}

proptest! {
    #[test]
    fn headers_come_back_as_they_went(mut headers in any_headers(), payload in prop::collection::vec(any::<u8>(), 0..64)) {
        let payload = match operation(headers.bth.opcode) {
            ATOMIC_WRITE => &[7; 8][..],
            _ if has_payload(headers.bth.opcode) => &payload,
            _ => &[],
        };
        headers.bth.pad = (payload.len().wrapping_neg() & 3) as u8;
        let mut out = [0; MAX_HEADERS];
        let len = headers.emit(&mut out);
        prop_assert_eq!(len, headers_len(headers.bth.opcode));
        let datagram = [&out[..len], payload, &[0; 3][..headers.bth.pad as usize], &[1, 2, 3, 4]].concat();
        let packet = parse(&datagram).unwrap();
        prop_assert_eq!(packet.headers, headers);
        prop_assert_eq!(packet.payload, payload);
    }
}
