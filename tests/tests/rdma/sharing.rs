//! SRQs: QPs that share receives, the limit, the end of a QP on one.

use std::collections::HashMap;

use super::*;

/// Bytes of one receive.
const SLOT: usize = 64;

/// A side whose SRQ has room for 32 receives.
fn with_srq() -> (Side, Srq) {
    let side = Side::new(Transport::Rc, |q| q, |_| ());
    let srq = Srq::new(&side.pd, 32, 2).expect("an SRQ");
    (side, srq)
}

/// Posts the receives `ids`, each into the slot of its number.
fn post(side: &Side, srq: &Srq, ids: std::ops::Range<usize>) {
    let mut list = RecvList::with_capacity(ids.len());
    for id in ids {
        list.push(RecvRequest::new(&[side.region.slice(id * SLOT..(id + 1) * SLOT)]).id(id as u64));
    }
    srq.receive_list(&mut list).expect("posted");
}

/// Sends 8 bytes from the front of `side`, and waits until they are there.
fn send(side: &Side, qp: &Qp) {
    qp.post(SendRequest::send(&[side.region.slice(0..8)]).signaled()).expect("posted");
    let done = side.take(1)[0];
    assert_eq!((done.status(), done.qp_num()), (Status::Success, qp.number()));
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn qps_share_receives_and_each_completion_names_its_qp() {
    let a = Side::new(Transport::Rc, |q| q, |_| ());
    let (b, srq) = with_srq();
    let froms = [(); 3].map(|()| a.another(|q| q));
    let tos = [(); 3].map(|()| b.another(|q| q.srq(&srq)));
    for (from, to) in froms.iter().zip(&tos) {
        a.join(from, &b, to);
    }
    post(&b, &srq, 0..11);
    srq.receive(RecvRequest::new(&[b.region.slice(11 * SLOT..12 * SLOT)]).id(11)).expect("posted");
    for round in 0..4 {
        for (i, from) in froms.iter().enumerate() {
            a.region.store(0, (round * 3 + i) as u64 + 100);
            send(&a, from);
        }
    }
    let mut received = HashMap::new();
    for (i, done) in b.take(12).iter().enumerate() {
        assert_eq!((done.status(), done.bytes(), done.opcode()), (Status::Success, 8, Opcode::Receive));
        // The oldest receive is taken first, whichever QP the message came to; they came one after the other.
        assert_eq!(b.region.load(done.id() as usize * SLOT), done.id() + 100, "completion {i}");
        assert_eq!(done.qp_num(), tos[done.id() as usize % 3].number());
        *received.entry(done.qp_num()).or_insert(0) += 1;
    }
    assert!(received.len() == 3 && received.values().all(|&count| count == 4), "{received:?}");

    // None is left: the message waits, and a receive lets it in.
    froms[1].post(SendRequest::send(&[a.region.slice(0..8)]).id(7).signaled()).expect("posted");
    a.quiet();
    post(&b, &srq, 20..21);
    assert_eq!((a.take(1)[0].id(), b.take(1)[0].id()), (7, 20));
    // The QP has no queue of its own.
    let none = tos[0].receive(RecvRequest::new(&[])).expect_err("on an SRQ");
    assert_eq!((none.errno, none.posted), (22, 0));
    let mut list = RecvList::with_capacity(1);
    list.push(RecvRequest::new(&[]));
    assert_eq!(tos[0].receive_list(&mut list).expect_err("on an SRQ"), none);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn datagrams_take_receives_of_an_srq() {
    let (a, b) = pair(Transport::Ud);
    let srq = Srq::new(&b.pd, 8, 1).expect("an SRQ");
    let qp = Qp::builder(Transport::Ud, &b.pd, &b.cq, &b.cq).srq(&srq).build().expect("a QP");
    qp.activate(&b.path, QKEY).expect("RTS");
    let ah = Ah::new(&a.pd, &b.endpoint(), &a.path).expect("an AH");
    srq.receive(RecvRequest::new(&[b.region.slice(0..100)]).id(5)).expect("posted");
    a.region.store(0, 77);
    let sges = [a.region.slice(0..8)];
    a.qp.post(SendRequest::datagram(&sges, &ah, qp.number(), QKEY).id(1).signaled()).expect("posted");
    a.done(1, Opcode::Send);
    let received = b.take(1)[0];
    assert_eq!((received.id(), received.qp_num(), received.source_qp()), (5, qp.number(), a.qp.number()));
    assert_eq!(b.region.load(GRH_BYTES), 77);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn an_srq_at_its_limit_raises_one_event() {
    let a = Side::new(Transport::Rc, |q| q, |_| ());
    let (b, srq) = with_srq();
    let other = Srq::new(&b.pd, 4, 1).expect("an SRQ");
    assert_ne!(srq.id(), other.id());
    let (from, to) = (a.another(|q| q), b.another(|q| q.srq(&srq)));
    a.join(&from, &b, &to);
    let attr = srq.attr().expect("attributes");
    assert!(attr.max_receive >= 32 && attr.max_sges >= 2 && attr.limit == 0, "{attr:?}");
    let limit = || srq.attr().expect("attributes").limit;
    post(&b, &srq, 0..8);
    srq.arm_limit(6).expect("armed");
    assert_eq!(limit(), 6);
    send(&a, &from);
    send(&a, &from);
    b.take(2);
    b.no_event(EventKind::SrqLimit);
    send(&a, &from);
    b.take(1);
    let event = b.event(&[EventKind::SrqLimit]);
    assert_eq!(event, AsyncEvent { kind: EventKind::SrqLimit, source: EventSource::Srq(srq.id()) });
    assert_eq!(limit(), 0);
    // Once: nothing is armed any more.
    send(&a, &from);
    b.take(1);
    b.no_event(EventKind::SrqLimit);
    // Fewer are there already.
    srq.arm_limit(5).expect("armed");
    b.event(&[EventKind::SrqLimit]);
    srq.arm_limit(3).expect("armed");
    srq.arm_limit(0).expect("disarmed");
    assert_eq!((limit(), srq.arm_limit(attr.max_receive + 1).expect_err("above its size").errno()), (0, Some(22)));
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_qp_that_ends_leaves_the_receives_to_the_others() {
    let a = Side::new(Transport::Rc, |q| q, |_| ());
    let (b, srq) = with_srq();
    let froms = [(); 2].map(|()| a.another(|q| q));
    let tos = [(); 2].map(|()| b.another(|q| q.srq(&srq)));
    for (from, to) in froms.iter().zip(&tos) {
        a.join(from, &b, to);
    }
    post(&b, &srq, 0..2);
    send(&a, &froms[0]);
    assert_eq!(b.take(1)[0].id(), 0);
    tos[0].fail().expect("ERR");
    let event = b.event(&[EventKind::LastWqeReached]);
    assert_eq!(event.source, EventSource::Qp(tos[0].number()));
    b.quiet();
    send(&a, &froms[1]);
    let received = b.take(1)[0];
    assert_eq!((received.id(), received.qp_num(), received.status()), (1, tos[1].number(), Status::Success));
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_qp_keeps_its_srq_with_the_memory_of_it() {
    let a = Side::new(Transport::Rc, |q| q, |_| ());
    let (b, srq) = with_srq();
    let (from, to) = (a.another(|q| q), b.another(|q| q.srq(&srq)));
    a.join(&from, &b, &to);
    // A domain of its own, that only the SRQ has.
    let pd = Pd::new(&b.context).expect("a PD");
    let region = pd.region(LEN, Access::LOCAL_WRITE).expect("a region");
    let foreign = Srq::new(&pd, 4, 1).expect("an SRQ");
    let third = b.another(|q| q.srq(&foreign));
    let second = a.another(|q| q);
    a.join(&second, &b, &third);
    foreign.receive(RecvRequest::new(&[region.slice(0..8)]).id(9)).expect("posted");
    post(&b, &srq, 0..1);
    drop((srq, foreign, region, pd));
    send(&a, &from);
    assert_eq!((b.take(1)[0].id(), third.state().expect("a state")), (0, QpState::ReadyToSend));
    send(&a, &second);
    let received = b.take(1)[0];
    assert_eq!((received.id(), received.status()), (9, Status::Success));
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn impossible_srqs_and_receives_are_refused() {
    let (b, srq) = with_srq();
    let other = Side::new(Transport::Rc, |q| q, |_| ());
    let attr = b.context.attr().expect("attributes");
    let limits = attr.srq;
    assert!(limits.max > 10 && limits.max_queue >= 32 && limits.max_sge >= 2, "{limits:?}");
    let error = Srq::new(&b.pd, limits.max_queue + 1, 1).err().expect("too long");
    assert!(error.to_string().starts_with("ibv_create_srq failed for an SRQ of "), "{error}");
    assert!(Srq::new(&b.pd, 1, limits.max_sge + 1).is_err());
    let mixed = Qp::builder(Transport::Rc, &other.pd, &other.cq, &other.cq).srq(&srq).build();
    assert!(mixed.err().expect("two devices").to_string().contains("of another open device"));
    if attr.capabilities.contains(Capabilities::SRQ_RESIZE) {
        srq.resize(64).expect("resized");
    } else {
        assert_eq!(srq.resize(64).expect_err("not here").errno(), Some(95));
    }
    let room = srq.attr().expect("attributes").max_receive as usize;
    let sges = [b.region.slice(0..8)];
    let mut list = RecvList::with_capacity(room + 1);
    for _ in 0..=room {
        list.push(RecvRequest::new(&sges));
    }
    let full = srq.receive_list(&mut list).expect_err("full");
    assert!(full.is_full() && full.posted == room && full.to_string().starts_with("ibv_post_srq_recv"), "{full}");
    assert!(srq.receive(RecvRequest::new(&sges)).expect_err("full").is_full());
}
