//! The captures of the kernel's rdma_rxe, replayed: our responder gives the answers that it gave, our requester sends
//! the packets that it sent. The contents of each capture are described beside them, in the golden tests of
//! `crates/protocols/wire`.

use std::fs;

use pcap_parser::PcapCapture;
use vervain_wire::{Packet, opcode};

use super::host::{Host, parsed};
use super::pair::{FIRST_PSN, requester_config, responder_config};
use crate::*;

/// The UDP payloads of a capture, those to the passive side first.
fn capture(name: &str) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let path = format!("{}/../wire/tests/golden/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = fs::read(path).unwrap();
    let blocks = PcapCapture::from_file(&file).unwrap().blocks;
    let datagrams = blocks.iter().map(|block| {
        let ip = &block.data[14..];
        let udp = &ip[if ip[0] >> 4 == 4 { 20 } else { 40 }..];
        udp[8..usize::from(u16::from_be_bytes([udp[4], udp[5]]))].to_vec()
    });
    datagrams.partition(|datagram| opcode::is_request(datagram[0]))
}

/// The contents of an answer, except for the data of a READ response.
fn meaning(bytes: &[u8]) -> (vervain_wire::Headers, usize) {
    let packet = parsed(bytes);
    (packet.headers, packet.payload.len())
}

/// Gives a responder the captured requests but those in `lost`; what it answers, and its host.
fn answers(name: &str, mtu: u32, lost: &[usize], change: impl FnOnce(&mut Host)) -> (Vec<Vec<u8>>, Host) {
    let (requests, responses) = capture(name);
    let config = ResponderConfig {
        dest_qpn: parsed(&responses[0]).headers.bth.dest_qpn,
        mtu,
        expected_psn: FIRST_PSN,
        ..responder_config(Service::Rc)
    };
    let mut responder = Responder::new(&config);
    let mut host = Host::new();
    host.any_key = true;
    host.posted.extend([1 << 20; 64]);
    let addr = requests.iter().find_map(|bytes| {
        let headers = parsed(bytes).headers;
        headers.reth.map(|reth| reth.addr).or(headers.atomic.map(|atomic| atomic.addr))
    });
    host.base = addr.unwrap_or(0) & !0xfff;
    change(&mut host);
    for (i, bytes) in requests.iter().enumerate() {
        if !lost.contains(&i) {
            responder.handle_packet(&parsed(bytes), &mut host);
            while responder.poll_transmit(1, &mut host) {}
        }
    }
    (host.wire.drain(..).collect(), host)
}

#[test]
fn our_responder_answers_as_rxe_did() {
    for (name, mtu, lost) in [
        ("rc_send", 1024, &[][..]),
        ("rc_send_burst", 1024, &[]),
        ("rc_write", 1024, &[]),
        ("rc_read", 1024, &[]),
        ("rc_atomic", 1024, &[]),
        ("rc_ipv6", 1024, &[]),
        ("rc_long", 1024, &[]),
        ("rc_mtu4096", 4096, &[]),
        ("seq_nak", 1024, &[2]),
        ("ack_lost", 1024, &[]),
        ("last_lost", 1024, &[1]),
        ("atomic_ack_lost", 1024, &[]),
    ] {
        let (ours, _) = answers(name, mtu, lost, |host| host.memory[..8].copy_from_slice(&5u64.to_ne_bytes()));
        let theirs = capture(name).1;
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!(meaning(ours), meaning(theirs), "{name} answer {i}");
        }
    }
}

#[test]
fn our_responder_refuses_as_rxe_did() {
    for (name, nak) in [
        ("nak_bad_rkey", Nak::RemoteAccess),
        ("nak_oob_write", Nak::RemoteAccess),
        ("nak_read_noaccess", Nak::RemoteAccess),
        ("nak_atomic_noaccess", Nak::RemoteAccess),
    ] {
        let (ours, host) = answers(name, 1024, &[], |host| host.rights.clear());
        let theirs = capture(name).1;
        assert_eq!(meaning(&ours[0]), meaning(&theirs[0]), "{name}");
        assert_eq!((ours.len(), host.failed), (1, Some(nak)), "{name}: told once, then silence");
    }
}

/// The requests whose packets were captured, and their data.
fn posted(requests: &[Vec<u8>]) -> Vec<(Request, Vec<u8>)> {
    let mut posted: Vec<(Request, Vec<u8>)> = Vec::new();
    for bytes in requests {
        let Packet { headers, payload } = parsed(bytes);
        if opcode::starts(headers.bth.opcode) {
            let (addr, rkey) = match (headers.reth, headers.atomic) {
                (Some(reth), _) => (reth.addr, reth.rkey),
                (_, Some(atomic)) => (atomic.addr, atomic.rkey),
                _ => (0, 0),
            };
            let request = Request { remote_addr: addr, rkey, ..Request::default() };
            posted.push((request, Vec::new()));
        }
        let (request, data) = posted.last_mut().unwrap();
        data.extend_from_slice(payload);
        request.length = data.len() as u64;
        request.flags |= if headers.bth.solicited { send_flags::SOLICITED } else { 0 };
        request.opcode = match opcode::operation(headers.bth.opcode) {
            opcode::READ_REQUEST => Opcode::Read,
            opcode::COMPARE_SWAP => Opcode::CompareSwap,
            opcode::FETCH_ADD => Opcode::FetchAdd,
            code if opcode::has_imm(code) && opcode::is_write(code) => Opcode::WriteImm,
            code if opcode::has_imm(code) => Opcode::SendImm,
            code if opcode::has_invalidate(code) => Opcode::SendInv,
            code if opcode::is_write(code) => Opcode::Write,
            _ => Opcode::Send,
        };
        if let Some(atomic) = headers.atomic {
            (request.length, request.swap) = (8, atomic.swap_add);
            let is_swap = request.opcode == Opcode::CompareSwap;
            request.compare_add = if is_swap { atomic.compare } else { atomic.swap_add };
        }
        if request.opcode == Opcode::Read {
            request.length = u64::from(headers.reth.unwrap().length);
        }
        request.imm_or_rkey = headers.imm.map(u32::from_ne_bytes).or(headers.invalidate).unwrap_or(0);
    }
    posted
}

#[test]
fn our_requester_sends_what_rxe_sent_and_takes_what_it_answered() {
    for (name, mtu, service) in [
        ("rc_send", 1024, Service::Rc),
        ("rc_send_burst", 1024, Service::Rc),
        ("rc_write", 1024, Service::Rc),
        ("rc_read", 1024, Service::Rc),
        ("rc_atomic", 1024, Service::Rc),
        ("rc_ipv6", 1024, Service::Rc),
        ("rc_mtu4096", 4096, Service::Rc),
        ("uc", 1024, Service::Uc),
    ] {
        let (requests, responses) = capture(name);
        let config = RequesterConfig {
            service,
            dest_qpn: parsed(&requests[0]).headers.bth.dest_qpn,
            mtu,
            first_psn: FIRST_PSN,
            ..requester_config(service)
        };
        let mut requester = Requester::new(&config);
        let mut window = Window::new(mtu, 1 << 20);
        let mut host = Host::new();
        host.requests = posted(&requests);
        host.delivered = host.requests.iter().map(|(request, _)| vec![0; request.length as usize]).collect();
        requester.poll_transmit(0, &mut window, &mut host);
        let ours: Vec<_> = host.wire.drain(..).collect();
        assert_eq!(ours.len(), requests.len(), "{name}");
        for (i, (ours, theirs)) in ours.iter().zip(&requests).enumerate() {
            assert_eq!(parsed(ours), parsed(theirs), "{name} request {i}");
        }
        for bytes in &responses {
            requester.handle_packet(1, &parsed(bytes), &mut window, &mut host);
        }
        assert_eq!(host.completions.len(), host.requests.len(), "{name}");
        assert!(host.completions.iter().all(|completion| completion.1 == Status::Success));
        assert_eq!((requester.counters().stale, window.in_flight()), (0, 0), "{name}");
    }
}

/// READ of 5000 bytes, a response lost; rxe answers the second request from the middle with MIDDLE and LAST.
#[test]
fn our_requester_takes_what_rxe_answers_to_a_read_asked_for_again() {
    let (requests, responses) = capture("read_resp_lost");
    let config = RequesterConfig {
        dest_qpn: parsed(&requests[0]).headers.bth.dest_qpn,
        timeout: 12,
        ..requester_config(Service::Rc)
    };
    let mut requester = Requester::new(&config);
    let mut window = Window::new(1024, 1 << 20);
    let mut host = Host::new();
    host.requests = posted(&requests[..1]);
    host.delivered = vec![vec![0; 5000]];
    requester.poll_transmit(0, &mut window, &mut host);
    // The capture has the five answers before the third was dropped.
    for bytes in [&responses[0], &responses[1], &responses[3], &responses[4]] {
        requester.handle_packet(1, &parsed(bytes), &mut window, &mut host);
    }
    requester.poll_transmit(1, &mut window, &mut host);
    assert_eq!(meaning(&host.wire[1]), meaning(&requests[1]), "the rest, with its PSN, address and length");
    for bytes in &responses[5..] {
        requester.handle_packet(2, &parsed(bytes), &mut window, &mut host);
    }
    assert_eq!(host.completions, [(0, Status::Success)]);
}
