//! The management datagrams of the golden captures, by the kernel's connection manager: each is understood, and made
//! again byte for byte. And any others, drawn.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use proptest::prelude::*;
use vervain_wire::cm::{IpHeader, Message, PORTS_TCP, PORTS_UDP, RC, answered, parse, reason, service_id, sidr};
use vervain_wire::mad::{BYTES, Header};

/// Adapters of the two machines of the captures.
const GUIDS: [u64; 2] = [0x5054_00ff_fe77_0002, 0x5054_00ff_fe77_0003];

fn mapped(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, last]
}

/// The MADs of a capture.
fn mads(capture: &str) -> Vec<[u8; BYTES]> {
    let packets = common::packets(common::GOLDEN);
    let of_it = packets.iter().filter(|captured| captured.name.starts_with(&format!("{capture}.pcap")));
    let packets = of_it.map(|captured| vervain_wire::parse(&captured.datagram).unwrap());
    packets.filter(|p| p.headers.bth.dest_qpn == 1).map(|p| p.payload.try_into().unwrap()).collect()
}

/// Takes the MADs of a capture apart, and makes them again.
fn conversation(capture: &str) -> Vec<(Header, Message)> {
    let mads = mads(capture);
    let understood = mads.iter().map(|mad| {
        let (header, message) = parse(mad).unwrap();
        assert_eq!(message.encode(header.tid).unwrap(), *mad, "{capture}: {message:?}");
        (header, message)
    });
    understood.collect()
}

#[test]
fn a_connection_of_rping_says_what_the_notes_say() {
    let messages = conversation("t_rping");
    let [
        (request, Message::Req(req)),
        (_, Message::Rep(rep)),
        (_, Message::Rtu(rtu)),
        (_, Message::Dreq(dreq)),
        (_, Message::Drep(drep)),
    ] = &messages[..]
    else {
        panic!("{messages:?}");
    };
    assert!(messages.iter().all(|(header, _)| header.tid == request.tid && header.status == 0));
    assert_eq!(request.tid, 0x2_e909_5d7a);

    assert_eq!((req.local_comm_id, req.service_id), (0x7a5d_09e9, service_id(PORTS_TCP, 7174)));
    assert_eq!((req.local_ca_guid, req.local_qpn, req.starting_psn), (GUIDS[1], 0x31, 0x49_3a3f));
    assert_eq!((req.responder_resources, req.initiator_depth, req.transport_service), (1, 1, RC));
    assert_eq!((req.remote_cm_response_timeout, req.local_cm_response_timeout, req.max_cm_retries), (20, 20, 15));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.pkey, req.path_mtu), (7, 7, 0xffff, 3));
    assert!(!req.srq && !req.flow_control && !req.primary_subnet_local && !req.is_xrc());
    assert_eq!((req.primary_local_lid, req.primary_remote_lid), (0xffff, 0xffff));
    assert_eq!((req.primary_local_gid, req.primary_remote_gid), (mapped(3), mapped(2)));
    assert_eq!((req.primary_flow_label, req.primary_hop_limit, req.primary_local_ack_timeout), (0x7_73c2, 64, 19));
    let ip = IpHeader::read(&req.private_data).unwrap();
    assert_eq!(
        (ip.source_port, ip.source, ip.destination),
        (0xc0c4, "10.77.0.3".parse().unwrap(), "10.77.0.2".parse().unwrap())
    );
    assert_eq!(ip.encode()[..], req.private_data[..IpHeader::BYTES]);

    assert_eq!((rep.local_comm_id, rep.remote_comm_id), (0x65c2_fff9, req.local_comm_id));
    assert_eq!((rep.local_qpn, rep.starting_psn, rep.local_ca_guid), (0x31, 0x75_f5f6, GUIDS[0]));
    assert_eq!((rep.responder_resources, rep.initiator_depth, rep.target_ack_delay), (1, 1, 15));
    assert_eq!((rep.failover_accepted, rep.rnr_retry_count, rep.srq), (0, 7, false));

    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert_eq!(dreq.remote_qpn, rep.local_qpn);
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (rep.local_comm_id, req.local_comm_id));
}

#[test]
fn the_server_of_ucmatose_ends_the_connection_in_a_transaction_of_its_own() {
    let messages = conversation("t_ucmatose");
    let [
        (_, Message::Req(req)),
        (_, Message::Rep(rep)),
        (_, Message::Rtu(_)),
        (request, Message::Dreq(dreq)),
        (answer, Message::Drep(_)),
    ] = &messages[..]
    else {
        panic!("{messages:?}");
    };
    assert_eq!((req.service_id, req.retry_count, req.rnr_retry_count), (service_id(PORTS_TCP, 7471), 5, 0));
    assert_eq!(rep.rnr_retry_count, 7);
    assert_eq!((dreq.local_comm_id, dreq.remote_qpn), (rep.local_comm_id, req.local_qpn));
    assert_eq!((request.tid, answer.tid), (0x2_f9ff_c267, 0x2_f9ff_c267));
}

#[test]
fn where_nobody_listens_the_service_id_is_refused() {
    let messages = conversation("t_rping_refused");
    let [(_, Message::Req(req)), (_, Message::Rej(rej))] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!(req.service_id, service_id(PORTS_TCP, 9999));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (0, req.local_comm_id));
    assert_eq!((rej.message, rej.reason, rej.information_length), (answered::REQ, reason::INVALID_SERVICE_ID, 0));
}

#[test]
fn udaddy_asks_for_a_qp_and_its_key() {
    let messages = conversation("t_udaddy");
    let [(_, Message::SidrReq(req)), (_, Message::SidrRep(rep))] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((req.request_id, req.pkey, req.service_id), (0x785d_09e9, 0xffff, service_id(PORTS_UDP, 7174)));
    assert_eq!(IpHeader::read(&req.private_data).unwrap().source_port, 0x8625);
    assert_eq!((rep.request_id, rep.status, rep.service_id), (req.request_id, sidr::SUCCESS, req.service_id));
    assert_eq!((rep.qpn, rep.qkey), (0x33, 0x0123_4567));
}

/// Any MAD, mostly one with a header that is understood.
fn any_mad() -> impl Strategy<Value = [u8; BYTES]> {
    let bytes = prop::collection::vec(any::<u8>(), BYTES);
    (bytes, 0..20u8, 0x0f..0x1d_u8).prop_map(|(bytes, whole, attribute)| {
        let mut mad: [u8; BYTES] = bytes.try_into().unwrap();
        if whole > 0 {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, attribute]);
            // Lengths of additional information, half of them small enough.
            mad[29] &= if whole % 2 == 0 { 0x3f } else { 0xff };
            mad[33] &= if whole % 2 == 0 { 0x7f } else { 0xff };
        }
        mad
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_understood_is_made_again(mad in any_mad()) {
        if let Ok((header, message)) = parse(&mad)
            && let Some(again) = message.encode(header.tid)
        {
            let (header_again, message_again) = parse(&again).unwrap();
            prop_assert_eq!(message_again, message);
            prop_assert_eq!(header_again.tid, header.tid);
            // Reserved bits are the only ones that are lost.
            let lost = mad.iter().zip(&again).map(|(old, new)| (old & !new, new & !old)).collect::<Vec<_>>();
            prop_assert!(lost.iter().all(|(_, made)| *made == 0), "{:?}", lost);
            prop_assert_eq!(&mad[200..], &again[200..]);
        }
    }
}
