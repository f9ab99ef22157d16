//! Requesters and responders in the place of others: what was saved, and records that were never saved.

use proptest::prelude::*;

use super::host::Host;
use super::pair::{FIRST_PSN, Pair, requester_config, responder_config};
use crate::*;
use vervain_wire::aeth::{NakCode, Syndrome};

const OPERATIONS: [Opcode; 6] =
    [Opcode::Send, Opcode::Write, Opcode::WriteImm, Opcode::Read, Opcode::FetchAdd, Opcode::AtomicWrite];

/// Two that do not fit each other may have something to say for ever.
fn count_down(left: &mut u32) -> bool {
    *left = left.saturating_sub(1);
    *left > 0
}

fn posted(requests: &[(usize, u64)]) -> Host {
    let mut host = Host::new();
    for (operation, length) in requests {
        let operation = OPERATIONS[operation % OPERATIONS.len()];
        let is_word = matches!(operation, Opcode::FetchAdd | Opcode::AtomicWrite);
        host.post(operation, &vec![7; if is_word { 8 } else { *length as usize }], |_| ());
    }
    host
}

fn requests() -> impl Strategy<Value = Vec<(usize, u64)>> {
    prop::collection::vec((0..OPERATIONS.len(), 0..5000u64), 0..5)
}

/// Close to the first PSN, or any.
fn near() -> impl Strategy<Value = u32> {
    prop_oneof![9 => (0..24u32).prop_map(|n| psn::add(FIRST_PSN, n)), 1 => any::<u32>()]
}

fn saved_requester() -> impl Strategy<Value = SavedRequester> {
    (near(), near(), near(), 0..6u32, prop::collection::vec(near(), 0..4)).prop_map(
        |(first_psn, unacknowledged, highest, begun, reads)| SavedRequester {
            first_psn,
            unacknowledged,
            highest,
            begun,
            reads,
            receives_used: begun,
            receives_granted: None,
            introduces: false,
        },
    )
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        (0..9000u32).prop_map(|length| Body::Read {
            srqn: 0,
            rkey: super::host::RKEY,
            addr: super::host::BASE,
            length
        }),
        any::<u64>().prop_map(Body::Word),
        Just(Body::Nothing),
        Just(Body::Acknowledgement),
    ]
}

fn saved_responder() -> impl Strategy<Value = SavedResponder> {
    let answer = (near(), 0..10u32, body(), any::<bool>()).prop_map(|(psn, packets, body, again)| Answer {
        psn,
        packets,
        body,
        msn: 3,
        begun: again,
        again,
    });
    let resource =
        (near(), 0..10u32, body()).prop_map(|(first_psn, packets, body)| Resource { first_psn, packets, body, msn: 3 });
    let message = (any::<bool>(), 0..3000u64, 0..3000u32).prop_map(|(is_write, done, length)| Message {
        srqn: 0,
        done,
        target: match is_write {
            true => Target::Memory { rkey: super::host::RKEY, addr: super::host::BASE, length },
            false => Target::Receive { receive: 0, room: length.into() },
        },
    });
    let lists = (prop::collection::vec(answer, 0..4), prop::collection::vec(resource, 0..4), prop::option::of(message));
    (near(), near(), any::<bool>(), lists).prop_map(|(expected, beyond, flag, (answers, resources, message))| {
        SavedResponder {
            expected,
            message,
            quiet: flag,
            beyond: flag.then_some(beyond),
            ack_due: flag,
            answers,
            resources,
            ..SavedResponder::default()
        }
    })
}

proptest! {
    /// No record makes a requester do more than send, and end, its requests.
    #[test]
    fn a_requester_from_any_record_works_or_is_refused(requests in requests(), saved in saved_requester()) {
        let mut pair = Pair::new(Service::Rc);
        pair.client = posted(&requests);
        pair.server.posted.extend([8192; 8]);
        let Ok(requester) = Requester::resume(&requester_config(Service::Rc), &saved, &mut pair.client) else { return Ok(()) };
        prop_assert_eq!(requester.save(), Some(saved.clone()));
        pair.requester = requester;
        let expected_psn = saved.unacknowledged;
        pair.responder = Responder::new(&ResponderConfig { expected_psn, ..responder_config(Service::Rc) });
        let mut left = 2000;
        pair.run(|_, _| count_down(&mut left));
        let ended: Vec<u32> = pair.client.completions.iter().map(|(n, _)| *n).collect();
        prop_assert!(ended.into_iter().eq(0..pair.client.completions.len() as u32));
    }

    #[test]
    fn a_responder_from_any_record_works_or_is_refused(requests in requests(), saved in saved_responder()) {
        let mut pair = Pair::new(Service::Rc);
        pair.client = posted(&requests);
        pair.server.receives.push(super::host::Receive { data: vec![0; 1 << 16], room: 1 << 16, done: None });
        pair.server.posted.extend([8192; 8]);
        let Ok(responder) = Responder::resume(&responder_config(Service::Rc), &saved) else { return Ok(()) };
        pair.responder = responder;
        let mut left = 2000;
        pair.run(|_, _| count_down(&mut left));
    }
}

#[test]
fn what_is_under_way_goes_on_elsewhere() {
    for (service, operations) in [(Service::Rc, &OPERATIONS[..]), (Service::Uc, &OPERATIONS[..3])] {
        let mut pair = Pair::new(service);
        pair.server.posted.extend([1 << 16; 8]);
        for operation in operations {
            let is_word = matches!(operation, Opcode::FetchAdd | Opcode::AtomicWrite);
            pair.client.post(*operation, &vec![3; if is_word { 8 } else { 5000 }], |_| ());
        }
        // Two packets leave at a time; then both ends are others.
        for _ in 0..200 {
            pair.client.room = 2;
            pair.transmit();
            let config =
                RequesterConfig { first_request: pair.client.completions.len() as u32, ..requester_config(service) };
            let saved = pair.requester.save().expect("it goes on");
            pair.requester.abandon(&mut pair.window);
            pair.requester = Requester::resume(&config, &saved, &mut pair.client).expect("as it was");
            for bytes in std::mem::take(&mut pair.client.wire) {
                pair.responder.handle_packet(&super::host::parsed(&bytes), &mut pair.server);
            }
            let saved = pair.responder.save(&mut pair.server);
            pair.responder = Responder::resume(&responder_config(service), &saved).expect("as it was");
            pair.responder.poll_transmit(2, &mut pair.server);
            pair.now += pair.one_way;
            pair.take_answers();
        }
        let done: Vec<_> = pair.client.completions.iter().map(|(_, status)| *status).collect();
        assert_eq!(done, vec![Status::Success; operations.len()], "{service:?}");
        assert_eq!(pair.server.atomics, usize::from(service == Service::Rc), "{service:?}");
        assert_eq!(pair.server.receives.len(), 2, "{service:?}");
    }
}

#[test]
fn a_record_for_other_requests_is_refused() {
    let mut pair = Pair::new(Service::Rc);
    pair.client.post(Opcode::Read, &[0; 4096], |_| ());
    pair.client.post(Opcode::Write, &[0; 4096], |_| ());
    pair.transmit();
    let saved = pair.requester.save().expect("it goes on");
    let resume =
        |saved: &SavedRequester, host: &mut Host| Requester::resume(&requester_config(Service::Rc), saved, host);
    assert!(resume(&saved, &mut pair.client).is_ok());
    assert!(resume(&SavedRequester { begun: 3, ..saved.clone() }, &mut pair.client).is_err());
    assert!(
        resume(&SavedRequester { highest: psn::add(saved.highest, 1), ..saved.clone() }, &mut pair.client).is_err()
    );
    assert!(resume(&SavedRequester { unacknowledged: saved.highest, ..saved.clone() }, &mut pair.client).is_err());
    assert!(resume(&SavedRequester { reads: vec![], ..saved.clone() }, &mut pair.client).is_err());
    assert!(
        resume(&SavedRequester { reads: vec![psn::add(saved.first_psn, 5)], ..saved.clone() }, &mut pair.client)
            .is_err()
    );
    let mut others = posted(&[(1, 10), (1, 10)]);
    assert!(resume(&saved, &mut others).is_err());
}

#[test]
fn a_record_of_a_refusal_that_ends_the_qp_has_one_that_does() {
    let syndrome = Syndrome::Nak(NakCode::RemoteOperation);
    for (nak, is_good) in [(Nak::RemoteOperation, true), (Nak::Silence, false), (Nak::ReceiverNotReady(1), false)] {
        let refusal = Some(Refusal { psn: FIRST_PSN, syndrome, then: Then::Fail(nak) });
        let saved = SavedResponder { expected: FIRST_PSN, refusal, ..SavedResponder::default() };
        let resumed = Responder::resume(&responder_config(Service::Rc), &saved);
        assert_eq!(resumed.is_ok(), is_good, "{nak:?}");
    }
}
