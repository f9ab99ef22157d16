//! QPs whose peer is a device that is not Vervain's: what it is told, and when, and what it is not sent.

#[path = "../hostile_packets/forge.rs"]
#[allow(dead_code)]
mod forge;
mod rxe;
#[path = "../hostile_packets/side.rs"]
#[allow(dead_code)]
mod side;
#[path = "../hostile_packets/world.rs"]
#[allow(dead_code)]
mod world;

use forge::Rng;
use rxe::{Kind, Rxe, THEIR_QPN, THERE};
use side::{Side, poll};
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vervain_hca::{Ah, Data, Opcode, QpAttr, QpState, QpType, SendRequest, UdDest, attr};
use vervain_wire::aeth::{NO_CREDIT_LIMIT, Syndrome, credit_code};
use vervain_wire::{Headers, TAKES_GAPS, VERVAIN, opcode};
use world::{FIRST_PSN, MAX_READS, MTU, QKEY, World, address_of, alone, connect_to};

const LIMIT: Duration = Duration::from_secs(20);
const RECEIVES: u32 = 64;
/// Looks after which nothing more is on its way; if something is, it counts as lost.
const LOOKS: u32 = 300;
/// Offsets at which the peer reads, writes and counts.
const READ_AT: u64 = 16 << 10;
const WRITE_AT: u64 = 32 << 10;
const WORD_AT: u64 = 48 << 10;

/// An RC QP whose peer is the device.
fn rc(receives: u32) -> (World, Side, Rxe) {
    let world = World::new(&[QpType::Rc]);
    let side = Side::new(&world.context, QpType::Rc, receives.max(1));
    let rxe = Rxe::new(&side);
    connect_to(&side.qp, address_of(&world.context, THERE), THEIR_QPN);
    (0..receives).for_each(|n| side.post_receive(n.into()));
    (world, side, rxe)
}

/// Posts and sends a request of the device.
fn request(rxe: &mut Rxe, side: &Side, kind: Kind, length: u32) -> u32 {
    let n = post(rxe, side, kind, length);
    rxe.packets(n).iter().for_each(|packet| rxe.send(packet));
    FIRST_PSN + rxe.requests[n].first + rxe.requests[n].packets - 1
}

fn post(rxe: &mut Rxe, side: &Side, kind: Kind, length: u32) -> usize {
    let offset = match kind {
        Kind::Send => 0,
        Kind::Read => READ_AT,
        Kind::Write => WRITE_AT,
        Kind::FetchAdd => WORD_AT,
    };
    rxe.post(kind, length, side.memory.as_ptr() as u64 + offset, side.mr.rkey())
}

/// The next packet that comes to the device, while the program polls; but notifications of congestion, for a test may
/// send more than a socket holds.
fn next(rxe: &Rxe, side: &Side) -> Headers {
    let since = Instant::now();
    loop {
        poll(&side.sent);
        poll(&side.received);
        if let Some((headers, _)) = rxe.receive()
            && headers.bth.opcode != opcode::CNP
        {
            return headers;
        }
        assert!(since.elapsed() < LIMIT, "no packet came");
    }
}

/// The next packet but requests before this PSN: one that is acknowledged late is sent again.
fn next_from(rxe: &Rxe, side: &Side, psn: u32) -> Headers {
    loop {
        let headers = next(rxe, side);
        if !opcode::is_request(headers.bth.opcode) || headers.bth.psn >= psn {
            return headers;
        }
    }
}

fn is_plain(headers: &Headers) -> bool {
    opcode::operation(headers.bth.opcode) == opcode::ACKNOWLEDGE
}

#[test]
fn requests_that_come_again_in_any_order_never_complete_a_read_or_atomic_without_its_data() {
    alone("requests_that_come_again_in_any_order_never_complete_a_read_or_atomic_without_its_data", || {
        let (_world, mut side, mut rxe) = rc(RECEIVES);
        for (i, byte) in side.memory[READ_AT as usize..WRITE_AT as usize].iter_mut().enumerate() {
            *byte = (i * 31 + i / 256 * 7) as u8;
        }
        side.memory[WORD_AT as usize..WORD_AT as usize + 8].fill(0);
        let mut rng = Rng(0x5eed_0002);
        let (mut atomics, mut received) = (0u64, 0);
        for round in 0..200 {
            let first = rxe.requests.len();
            rxe.migration = round % 2 == 0;
            for _ in 0..1 + rng.below(7) {
                let outstanding = rxe.requests[first..].iter().filter(|request| request.is_answered()).count();
                let kinds = if outstanding == MAX_READS.into() { 2 } else { 4 };
                let kind = [Kind::Send, Kind::Write, Kind::Read, Kind::FetchAdd][rng.below(kinds) as usize];
                let length = if kind == Kind::FetchAdd { 8 } else { 4 * (1 + rng.below(500)) };
                post(&mut rxe, &side, kind, length);
            }
            let since = Instant::now();
            while let Some(oldest) = (first..rxe.requests.len()).find(|n| !rxe.requests[*n].done) {
                let left = || (oldest..rxe.requests.len()).filter(|n| !rxe.requests[*n].done);
                let mut packets: Vec<_> = left().flat_map(|n| rxe.packets(n)).collect();
                match rng.below(5) {
                    0 => packets.reverse(),
                    1 => packets.retain(|bytes| opcode::is_send(bytes[0]) || opcode::is_write(bytes[0])),
                    2 => packets.truncate(1),
                    3 => packets.retain(|_| rng.below(3) > 0),
                    _ => {}
                }
                packets.iter().for_each(|packet| rxe.send(packet));
                let lossy = rng.below(2) == 0;
                for _ in 0..LOOKS {
                    received += poll(&side.received).len();
                    if let Some((headers, payload)) = rxe.receive()
                        && !(lossy && rng.below(3) == 0)
                    {
                        rxe.take(&headers, &payload);
                    }
                }
                assert!(since.elapsed() < LIMIT, "round {round}: {:?}", &rxe.requests[oldest..]);
            }
            for request in &rxe.requests[first..] {
                let is_right = match request.kind {
                    Kind::Read => request.data == side.memory[READ_AT as usize..][..request.length as usize],
                    Kind::FetchAdd => {
                        atomics += 1;
                        request.data == (atomics - 1).to_ne_bytes()
                    }
                    _ => true,
                };
                assert!(is_right, "round {round}: {request:?}");
            }
            let sends = rxe.requests.iter().filter(|request| request.kind == Kind::Send).count();
            assert_eq!(received, sends, "round {round}: messages");
            rxe.requests[first..]
                .iter()
                .filter(|request| request.kind == Kind::Send)
                .for_each(|_| side.post_receive(0));
        }
    });
}

// An HCA acknowledges a message before the program sees it. The device's program may take the first event after a send
// for the send's completion.
#[test]
fn a_message_is_acknowledged_before_its_answer() {
    alone("a_message_is_acknowledged_before_its_answer", || {
        for (operation, length) in [
            (Opcode::Send, 0),
            (Opcode::Send, 8),
            (Opcode::Send, MTU),
            (Opcode::Send, 2 * MTU + 8),
            (Opcode::Write, 8),
            (Opcode::Read, 8),
        ] {
            let (_world, side, mut rxe) = rc(RECEIVES);
            let mut answered = FIRST_PSN;
            for round in 0..6 {
                let sleeps = round % 2 == 1;
                if sleeps {
                    side.received.req_notify(false).unwrap();
                }
                let asked = request(&mut rxe, &side, Kind::Send, 8);
                if sleeps {
                    side.channel.next_event().unwrap();
                    side.received.ack_events(1);
                }
                let since = Instant::now();
                while poll(&side.received).is_empty() {
                    assert!(since.elapsed() < LIMIT, "no message came");
                }
                let sge = side.sge(length);
                let answer = SendRequest {
                    opcode: operation,
                    remote_addr: 0x1000,
                    rkey: 7,
                    data: Data::Sges(&sge),
                    ..SendRequest::default()
                };
                side.qp.post_send(|p| p.push(&answer)).unwrap();
                let (first, last) = (answered, answered + length.div_ceil(MTU).max(1) as u32 - 1);
                answered = last + 1;
                let is_new = |headers: &Headers| !is_plain(headers) && headers.bth.psn >= first;
                // Requests answered before may come again.
                let mut packets = iter::from_fn(|| Some(next(&rxe, &side))).skip_while(|headers| {
                    let is_acknowledged = is_plain(headers) && headers.bth.psn == asked;
                    assert!(
                        !is_new(headers),
                        "{operation:?} of {length} bytes, round {round}: {headers:?} comes first"
                    );
                    !is_acknowledged
                });
                assert!(packets.any(|headers| is_new(&headers) && headers.bth.psn == last));
                if operation == Opcode::Read {
                    break;
                }
                rxe.acknowledge(last);
            }
        }
    });
}

#[test]
fn a_qp_without_receives_gives_no_credit_and_another_gives_what_it_has() {
    alone("a_qp_without_receives_gives_no_credit_and_another_gives_what_it_has", || {
        for receives in [0, 3] {
            let (_world, side, mut rxe) = rc(receives);
            for kind in [Kind::Write, Kind::Read, Kind::FetchAdd] {
                request(&mut rxe, &side, kind, 8);
                let code = if receives == 0 { NO_CREDIT_LIMIT } else { credit_code(receives) };
                let syndrome = next(&rxe, &side).aeth.unwrap().syndrome;
                assert_eq!(Syndrome::decode(syndrome), Some(Syndrome::Ack(code)), "{kind:?} with {receives} receives");
            }
            if receives > 0 {
                // The last one has been taken: now the device is to wait for the next.
                for left in (0..receives).rev() {
                    request(&mut rxe, &side, Kind::Send, 8);
                    let syndrome = next(&rxe, &side).aeth.unwrap().syndrome;
                    assert_eq!(Syndrome::decode(syndrome), Some(Syndrome::Ack(credit_code(left))));
                }
            }
        }
    });
}

// IBA 17.2.8: a QP in the state "migrated", as ibv_query_qp says it is, sets MigReq; one that hears of it does nothing.
#[test]
fn packets_say_that_the_path_has_migrated_and_those_of_either_kind_are_taken() {
    alone("packets_say_that_the_path_has_migrated_and_those_of_either_kind_are_taken", || {
        let (_world, side, mut rxe) = rc(RECEIVES);
        for (psn, migration) in (FIRST_PSN..).zip([false, true, false]) {
            rxe.migration = migration;
            for kind in [Kind::Write, Kind::Read, Kind::FetchAdd, Kind::Send] {
                request(&mut rxe, &side, kind, 8);
                assert!(next_from(&rxe, &side, psn).bth.migration, "what answers {kind:?}");
            }
            side.post(0, None);
            let asked = next_from(&rxe, &side, psn);
            assert!(asked.bth.migration && opcode::is_request(asked.bth.opcode), "{asked:?}");
            rxe.acknowledge(asked.bth.psn);
        }
    });
}

#[test]
fn what_was_posted_before_the_end_of_the_send_queue_has_left() {
    alone("what_was_posted_before_the_end_of_the_send_queue_has_left", || {
        for qp_state in [QpState::Err, QpState::Sqd] {
            let (_world, side, rxe) = rc(RECEIVES);
            // The second one would wait for a third, or for the acknowledgement of the first.
            side.post(1, None);
            side.post(2, None);
            side.qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, attr::STATE).unwrap();
            let (mut wanted, since) = (FIRST_PSN, Instant::now());
            while wanted < FIRST_PSN + 2 {
                // One that is not acknowledged comes again.
                wanted += rxe.receive().map_or(0, |(headers, _)| u32::from(headers.bth.psn == wanted));
                assert!(since.elapsed() < LIMIT, "to {qp_state:?}: no packet {wanted:#x} came");
            }
        }
    });
}

#[test]
fn reserved_bits_are_zero_once_the_device_has_answered_twice() {
    alone("reserved_bits_are_zero_once_the_device_has_answered_twice", || {
        let (_world, side, mut rxe) = rc(RECEIVES);
        for (psn, round) in (FIRST_PSN..).zip(0..5) {
            side.post(round, None);
            let asked = next_from(&rxe, &side, psn);
            let mark = [VERVAIN, TAKES_GAPS].get(round as usize).copied().unwrap_or(0);
            assert_eq!(asked.bth.mark, mark, "request {round}");
            rxe.acknowledge(asked.bth.psn);
            let since = Instant::now();
            while poll(&side.sent).is_empty() {
                assert!(since.elapsed() < LIMIT, "no completion came");
            }
            request(&mut rxe, &side, Kind::Send, 8);
            assert_eq!(next_from(&rxe, &side, psn + 1).bth.mark, 0, "an acknowledgement");
        }
    });
}

// Its state and its PSN come with one modify; whoever takes packets in meanwhile sees both or neither.
#[test]
fn answers_to_an_earlier_connection_do_not_start_the_next_from_another_psn() {
    alone("answers_to_an_earlier_connection_do_not_start_the_next_from_another_psn", || {
        const LIVES: u64 = 20_000;
        let (_world, side, rxe) = rc(1);
        let (there, over) = (address_of(&side.context, THERE), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    rxe.acknowledge(FIRST_PSN - 1);
                    poll(&side.received);
                }
            });
            let set = |qp_state, mask| side.qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, mask);
            for life in 0..LIVES {
                set(QpState::Reset, attr::STATE).expect("RESET");
                connect_to(&side.qp, there, THEIR_QPN);
                side.post(life, None);
                let first = next(&rxe, &side).bth.psn;
                // Before an assertion fails, so that the other thread ends.
                over.store(life + 1 == LIVES || first != FIRST_PSN, Ordering::Relaxed);
                assert_eq!(first, FIRST_PSN, "life {life}");
            }
        });
    });
}

/// Messages to the device: it gets those, and nothing else.
fn nothing_but_messages(qp_type: QpType, service: u8) {
    // More than is under way to a process of Vervain's that has not answered, and not more than a socket has room for.
    const MESSAGES: u64 = 80;
    let world = World::new(&[QpType::Rc]);
    let side = Side::new(&world.context, qp_type, 1);
    let rxe = Rxe::new(&side);
    let there = address_of(&world.context, THERE);
    connect_to(&side.qp, there, THEIR_QPN);
    let ah = (qp_type == QpType::Ud).then(|| Ah::create(&side.pd, &there).unwrap());
    let to = || ah.as_ref().map(|ah| UdDest { ah, qpn: THEIR_QPN, qkey: QKEY });
    (0..MESSAGES).for_each(|n| side.post(n, to()));
    let messages: Vec<_> = (0..MESSAGES).map(|_| next(&rxe, &side)).collect();
    for headers in &messages {
        assert!(headers.bth.opcode == service | opcode::SEND_ONLY && headers.bth.migration, "{headers:?}");
    }
    let marked = messages.iter().filter(|headers| headers.bth.is_vervain()).count();
    assert!(messages[0].bth.is_vervain() && marked <= 10, "{marked} with the mark");
    for _ in 0..LOOKS {
        poll(&side.sent);
        assert!(rxe.receive().is_none());
    }
}

#[test]
fn a_device_gets_uc_messages_and_nothing_else() {
    alone("a_device_gets_uc_messages_and_nothing_else", || nothing_but_messages(QpType::Uc, opcode::UC));
}

#[test]
fn a_device_gets_datagrams_and_nothing_else() {
    alone("a_device_gets_datagrams_and_nothing_else", || nothing_but_messages(QpType::Ud, opcode::UD));
}
