//! Answers to datagrams: the way back from a completion.

use std::collections::HashMap;

use super::*;

/// Has `a` send its number to `b` in a datagram: its completion there, and the bytes in front of it.
fn datagram(a: &Side, b: &Side, ah: &Ah, id: u64) -> (Completion, [u8; GRH_BYTES]) {
    b.qp.receive(RecvRequest::new(&[b.region.slice(0..1000)]).id(id)).expect("posted");
    a.region.store(2000, id);
    let sges = [a.region.slice(2000..2008)];
    a.qp.post(SendRequest::datagram(&sges, ah, b.qp.number(), QKEY).id(id).signaled()).expect("posted");
    a.done(id, Opcode::Send);
    let received = b.done(id, Opcode::Receive);
    assert_eq!(b.region.load(GRH_BYTES), id);
    let mut grh = [0; GRH_BYTES];
    b.region.read(0, &mut grh);
    (received, grh)
}

/// A sends, B answers to what it knows from the completion, twice; with handles that it keeps.
fn answers(path: impl Fn(&mut PathOptions)) {
    let (a, b) = pair_with(Transport::Ud, |q| q, &path);
    let ah = Ah::new(&a.pd, &b.endpoint(), &a.path).expect("an AH");
    let mut handles = HashMap::new();
    for round in 1..3 {
        let (received, grh) = datagram(&a, &b, &ah, 4 * round);
        assert_eq!(received.has_grh(), a.path.gid_index.is_some());
        if received.has_grh() {
            assert_eq!(sender_gid(&grh), a.endpoint().gid);
        }
        assert_eq!(received.source_qp(), a.qp.number());
        // On RoCE there is no LID, and devices tell of the packet's header in the place of a service level.
        if b.context.port(1).expect("a port").link_layer == LinkLayer::InfiniBand {
            let lid = a.context.port(1).expect("a port").lid;
            assert_eq!((received.source_lid(), received.service_level()), (lid, a.path.sl));
        }
        let back = AddressVector::from_completion(&b.context, 1, &received, &grh).expect("a way back");
        assert_eq!((back.port, back.sl, back.route.is_some()), (1, received.service_level(), received.has_grh()));
        let reply = handles.entry(back).or_insert_with(|| Ah::to(&b.pd, &back).expect("an AH"));
        datagram(&b, &a, reply, 4 * round + 1);
        let (received, grh) = datagram(&a, &b, &ah, 4 * round + 2);
        datagram(&b, &a, &Ah::from_completion(&b.pd, 1, &received, &grh).expect("an AH"), 4 * round + 3);
    }
    assert_eq!(handles.len(), 1);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_datagram_is_answered_by_what_its_completion_says() {
    answers(|_| ());
    answers(|path| path.sl = 3);
}

/// By LID with a GRH on InfiniBand; on RoCE there is no other way.
#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_datagram_with_a_grh_is_answered_with_one() {
    answers(|path| path.gid_index = path.gid_index.or(Some(0)));
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn what_is_no_grh_leads_nowhere() {
    let (a, b) = pair_with(Transport::Ud, |q| q, |path| path.gid_index = path.gid_index.or(Some(0)));
    let ah = Ah::new(&a.pd, &b.endpoint(), &a.path).expect("an AH");
    let (received, _) = datagram(&a, &b, &ah, 1);
    let error = Ah::from_completion(&b.pd, 1, &received, &[0x11; GRH_BYTES]).err().expect("no GRH");
    assert!(error.to_string().starts_with("ibv_init_ah_from_wc failed for a datagram of QP "), "{error}");
    assert_eq!(sender_gid(&[0x11; GRH_BYTES]), None);
}
