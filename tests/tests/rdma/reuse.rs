//! A QP in more than one life: reset, connected again, flushed, drained; and what it says of itself.

use std::collections::HashSet;

use super::*;

/// The lives of one QP.
const LIVES: u64 = 1000;

/// One QP goes from one peer to the other and back. It ends every other life as the documentation says, and the rest in
/// the midst of traffic; nothing of a life ever shows in the next.
#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_qp_is_used_a_thousand_times_between_two_peers() {
    let a = Side::new(Transport::Rc, |q| q, |_| ());
    let peers = [(); 2].map(|()| Side::new(Transport::Rc, |q| q, |_| ()));
    let mut psns = HashSet::new();
    for life in 0..LIVES {
        let b = &peers[(life % 2) as usize];
        assert_eq!(u64::from(a.qp.generation()), life);
        psns.insert(a.endpoint().psn);
        a.join(&a.qp, b, &b.qp);
        let id = |n: u64| life << 8 | n;
        a.region.store(0, life);
        b.qp.receive(RecvRequest::new(&[b.region.slice(64..72)]).id(id(1))).expect("posted");
        a.qp.receive(RecvRequest::new(&[a.region.slice(64..72)]).id(id(2))).expect("posted");
        let sges = [a.region.slice(0..8)];
        a.qp.post(SendRequest::write(&sges, b.there(128))).expect("posted");
        a.qp.post(SendRequest::send(&sges).id(id(3)).signaled()).expect("posted");
        a.done(id(3), Opcode::Send);
        b.done(id(1), Opcode::Receive);
        assert_eq!((b.region.load(64), b.region.load(128)), (life, life));
        b.qp.post(SendRequest::send(&[b.region.slice(64..72)]).id(id(4)).signaled()).expect("posted");
        b.done(id(4), Opcode::Send);
        a.done(id(2), Opcode::Receive);
        assert_eq!(a.region.load(64), life);
        if life % 4 < 2 {
            // Requests that wait for receives that never come, receives that nobody fills, completions left alone.
            a.qp.post(SendRequest::write(&sges, b.there(128)).id(id(5)).signaled()).expect("posted");
            a.qp.post(SendRequest::send(&sges).id(id(6)).signaled()).expect("posted");
            b.qp.receive(RecvRequest::new(&[b.region.slice(0..4)]).id(id(7))).expect("posted");
            a.qp.receive(RecvRequest::new(&[a.region.slice(72..80)]).id(id(8))).expect("posted");
        } else {
            for side in [&a, b] {
                side.qp.fail().expect("ERR");
                side.qp.post(SendRequest::write(&[], side.there(0)).id(id(9)).signaled()).expect("posted");
                let marker = side.take(1)[0];
                assert_eq!((marker.id(), marker.status()), (id(9), Status::Flushed));
            }
        }
        for side in [&a, b] {
            side.qp.reset().expect("RESET");
            side.qp.init(&side.path, Access::REMOTE).expect("INIT");
        }
    }
    assert!(psns.len() as u64 > LIVES - 10, "{} PSNs", psns.len());
    a.quiet();
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn all_that_is_posted_is_flushed_and_what_is_posted_then_comes_last() {
    let (a, b) = pair(Transport::Rc);
    let sges = [a.region.slice(0..8)];
    for id in 1..4 {
        // Nobody posts a receive for them. Not signaled, but for one.
        let request = SendRequest::send(&sges).id(id);
        a.qp.post(if id == 2 { request.signaled() } else { request }).expect("posted");
    }
    for id in 11..13 {
        a.qp.receive(RecvRequest::new(&[a.region.slice(8..16)]).id(id)).expect("posted");
    }
    a.qp.fail().expect("ERR");
    a.qp.post(SendRequest::send(&sges).id(9).signaled()).expect("posted");
    a.qp.receive(RecvRequest::new(&[]).id(19)).expect("posted");
    let done = a.take(7);
    assert!(done.iter().all(|done| done.status() == Status::Flushed && done.qp_num() == a.qp.number()));
    let ids = |wanted: fn(u64) -> bool| done.iter().map(Completion::id).filter(|&id| wanted(id)).collect::<Vec<_>>();
    assert_eq!((ids(|id| id < 10), ids(|id| id > 10)), (vec![1, 2, 3, 9], vec![11, 12, 19]));
    a.quiet();
    b.quiet();
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_drained_send_queue_says_so_and_goes_on() {
    let (a, b) = pair(Transport::Rc);
    a.region.store(0, 5);
    let sges = [a.region.slice(0..8)];
    a.qp.post(SendRequest::write(&sges, b.there(0)).id(1).signaled()).expect("posted");
    a.done(1, Opcode::Write);
    a.qp.drain_sends(true).expect("SQD");
    assert_eq!(a.event(&[EventKind::SendQueueDrained]).source, EventSource::Qp(a.qp.number()));
    let attr = a.qp.attr().expect("attributes");
    assert_eq!((attr.state, attr.draining), (QpState::SendQueueDrained, false));
    a.qp.post(SendRequest::write(&sges, b.there(8)).id(2).signaled()).expect("posted");
    a.quiet();
    assert_eq!(b.region.load(8), 0);
    // What comes in goes on.
    b.qp.post(SendRequest::write(&[b.region.slice(0..8)], a.there(16)).id(3).signaled()).expect("posted");
    b.done(3, Opcode::Write);
    a.qp.resume_sends().expect("RTS");
    a.done(2, Opcode::Write);
    assert_eq!((b.region.load(8), a.region.load(16)), (5, 5));
    a.qp.drain_sends(false).expect("SQD");
    a.no_event(EventKind::SendQueueDrained);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_qp_says_what_it_was_set_to_and_takes_changes() {
    let set = |path: &mut PathOptions| {
        (path.timeout, path.retry_count, path.rnr_retry, path.min_rnr_timer) = (13, 5, 4, 9);
        (path.max_rd_atomic, path.max_dest_rd_atomic, path.sl) = (3, 2, 1);
        (path.mtu, path.hop_limit) = (Mtu::B512, 31);
    };
    let (a, b) = pair_with(Transport::Rc, |q| q.max_inline(40), set);
    let attr = a.qp.attr().expect("attributes");
    assert_eq!((attr.state, attr.peer, attr.port), (QpState::ReadyToSend, b.qp.number(), 1));
    assert_eq!((attr.timeout, attr.retry_count, attr.rnr_retry, attr.min_rnr_timer), (13, 5, 4, 9));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.mtu), (3, 2, Some(Mtu::B512)));
    assert_eq!((attr.send_psn, attr.receive_psn), (a.endpoint().psn, b.endpoint().psn));
    assert_eq!(attr.address, AddressVector::new(&b.endpoint(), &a.path).expect("a way"));
    assert_eq!((attr.address.sl, attr.address.route.map(|r| r.hop_limit)), (1, a.path.gid_index.map(|_| 31)));
    assert!(
        attr.capacity.max_send >= 32 && attr.capacity.max_receive >= 32 && attr.capacity.max_inline >= 40,
        "{attr:?}"
    );
    assert_eq!(attr.access, Access::REMOTE);

    b.qp.set_min_rnr_timer(3).expect("changed");
    b.qp.set_access(Access::REMOTE_READ).expect("changed");
    let attr = b.qp.attr().expect("attributes");
    assert_eq!((attr.min_rnr_timer, attr.access), (3, Access::REMOTE_READ));
    let sges = [a.region.slice(0..8)];
    a.qp.post(SendRequest::read(&sges, b.there(0)).id(1).signaled()).expect("posted");
    a.done(1, Opcode::Read);
    a.qp.post(SendRequest::write(&sges, b.there(0)).id(2).signaled()).expect("posted");
    let refused = a.take(1)[0].status();
    assert!(matches!(refused, Status::RemoteAccess | Status::RemoteInvalidRequest), "{refused}");

    let datagrams = Side::new(Transport::Ud, |q| q, |_| ());
    assert_eq!(datagrams.qp.attr().expect("attributes").qkey, QKEY);
    assert!(datagrams.qp.set_min_rnr_timer(3).is_err());
}
