//! Initiators that end or stop in the middle of a delivery, at the instructions where it could be felt later.

mod common;

use common::{INITIATORS_LIVE, TURN, bind, context, enter, foreign, poll, process, publish, receiver, to_rtr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vervain_hca::Nak;
use vervain_hca::arena::layout::found;
use vervain_hca::responder::{Barred, Responder};
use vervain_hca::{Context, Cq, Mr, Mw, Pd, QpAttr, QpState, Sge, Srq, SrqInit, Status, access, attr};

/// The objects of each test, and its turn.
struct Owner {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    _turn: MutexGuard<'static, ()>,
}

fn owner() -> Owner {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let context = context();
    let (pd, cq) = (context.alloc_pd().unwrap(), Cq::create(&context, 255, None, 0, 0, false, false).unwrap());
    Owner { context, pd, cq, _turn: turn }
}

/// Rings that a CQ looks at without being told of them, and more.
const WATCHED: usize = 16;

#[test]
fn receives_are_found_after_an_initiator_that_died_before_it_set_the_ready_bit() {
    let Owner { context, pd, cq, _turn } = owner();
    let _others: Vec<_> = (0..WATCHED).map(|_| receiver(&context, &pd, &cq, None, 1)).collect();
    let qp = receiver(&context, &pd, &cq, None, 4);
    let target = bind(&qp, foreign(1));
    // It says that it will set the bit, and is killed.
    assert_eq!(target.lane.mode.swap(found::SIGNALLED, Ordering::SeqCst), found::QUIET);
    INITIATORS_LIVE.store(false, Ordering::SeqCst);
    process().lanes.reap(&[common::FOREIGN_SLOT]);
    INITIATORS_LIVE.store(true, Ordering::SeqCst);
    qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();
    to_rtr(&context, &qp);
    qp.post_recv(5, &[]).unwrap();
    let target = bind(&qp, foreign(2));
    let mark = enter(&target);
    let wqe = target.claim().unwrap();
    publish(&target, wqe, 9);
    drop(mark);
    let got = poll(&cq, 4);
    assert_eq!(got.iter().map(|c| (c.wr_id, c.imm_or_rkey)).collect::<Vec<_>>(), [(5, 9)]);
}

#[test]
fn one_that_was_cut_off_completes_no_receive_of_the_next_connection() {
    let Owner { context, pd, cq, _turn } = owner();
    let qp = receiver(&context, &pd, &cq, None, 1);
    qp.post_recv(1, &[]).unwrap();
    let stopped = bind(&qp, foreign(1));
    let mark = enter(&stopped);
    let wqe = stopped.claim().unwrap();
    // It is stopped here; the reset waits for two seconds and cuts it off.
    qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();
    to_rtr(&context, &qp);
    qp.post_recv(2, &[]).unwrap();
    publish(&stopped, wqe, 7);
    drop(mark);
    assert!(poll(&cq, 4).is_empty(), "nothing has arrived on the new connection");
    let target = bind(&qp, foreign(2));
    let mark = enter(&target);
    let wqe = target.claim().expect("the receive waits for the new peer");
    publish(&target, wqe, 8);
    drop(mark);
    assert_eq!(poll(&cq, 4).iter().map(|c| (c.wr_id, c.imm_or_rkey)).collect::<Vec<_>>(), [(2, 8)]);
    stopped.release();
}

/// Waits until the progress thread has looked at a QP whose `established` was set to 1 before it was called: it looks
/// at that first.
fn await_look(target: &Responder) {
    let until = Instant::now() + Duration::from_secs(20);
    while target.qp.established.load(Ordering::SeqCst) == 1 {
        assert!(Instant::now() < until, "the progress thread does not come");
        std::thread::yield_now();
    }
}

/// Calls the progress thread to a QP.
fn call_to(target: &Responder) {
    target.qp.established.store(1, Ordering::SeqCst);
    target.space.raise(target.qp.attention.load(Ordering::SeqCst));
    await_look(target);
}

#[test]
fn an_error_that_is_attended_to_after_a_reset_ends_nothing_of_the_next_connection() {
    let Owner { context, pd, cq, _turn } = owner();
    let qp = receiver(&context, &pd, &cq, None, 1);
    let other = receiver(&context, &pd, &cq, None, 1);
    let elsewhere = bind(&other, foreign(3));
    for round in 0..20 {
        let target = bind(&qp, foreign(1));
        // The progress thread is called, and finds a thread that posts.
        qp.post_send(|_| {
            target.qp.established.store(1, Ordering::SeqCst);
            target.fail(None);
            await_look(&target);
            // Time to fall asleep, so that it mostly wakes after what follows.
            std::thread::sleep(Duration::from_millis(5));
        });
        target.release();
        qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();
        to_rtr(&context, &qp);
        qp.post_recv(round, &[]).unwrap();
        // The next call, which the progress thread answers after that one.
        let target = bind(&qp, foreign(2));
        call_to(&target);
        // And one elsewhere: when it is there, it has left this QP, and does not wait for who posts to it next.
        call_to(&elsewhere);
        let mark = enter(&target);
        let wqe = target.claim().expect("the receive waits for the peer");
        publish(&target, wqe, 9);
        drop(mark);
        target.release();
        assert_eq!(poll(&cq, 4).iter().map(|c| (c.wr_id, c.imm_or_rkey)).collect::<Vec<_>>(), [(round, 9)]);
        assert_eq!(qp.state(), QpState::Rtr);
    }
    elsewhere.release();
}

fn register(pd: &Arc<Pd>, memory: &mut [u8]) -> Arc<Mr> {
    let (addr, len) = (memory.as_mut_ptr() as u64, memory.len() as u64);
    Mr::register(pd, addr, len, addr, access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ).unwrap()
}

fn to_err(qp: &vervain_hca::Qp) {
    qp.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, attr::STATE).unwrap();
}

#[test]
fn what_ends_after_its_initiator_was_cut_off_does_not_count() {
    let Owner { context, pd, cq, _turn } = owner();
    let qp = receiver(&context, &pd, &cq, None, 4);
    let mut memory = vec![0u8; 8192];
    let mr = register(&pd, &mut memory);
    for wr_id in 1..3 {
        qp.post_recv(wr_id, &[Sge { addr: mr.addr(), length: 64, lkey: mr.lkey() }]).unwrap();
    }
    let stopped = bind(&qp, foreign(1));
    // One message arrives as it should, and the next stops in its copy.
    let mark = enter(&stopped);
    let wqe = stopped.claim().unwrap();
    publish(&stopped, wqe, 1);
    assert_eq!(stopped.leave_done(mark), Ok(()));
    let mark = enter(&stopped);
    let wqe = stopped.claim().unwrap();
    assert!(stopped.receive_memory(wqe, 0, 64).unwrap().is_some());
    to_err(&qp);
    let seen: Vec<_> = poll(&cq, 8).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(seen, [(1, Status::Success.to_verbs()), (2, Status::Flushed.to_verbs())]);
    // It goes on: there is no memory for it any more, no receive, and no success.
    assert!(matches!(stopped.receive_memory(wqe, 0, 64), Err(Nak::Silence)));
    assert_eq!(stopped.remote_memory(mr.rkey(), mr.addr(), 8, access::REMOTE_WRITE), Err(Nak::Silence));
    publish(&stopped, wqe, 2);
    assert!(!stopped.counts());
    assert_eq!(stopped.leave_done(mark), Err(Nak::Silence));
    assert!(matches!(stopped.enter(), Err(Barred::Silence)));
    assert!(matches!(stopped.enter_at(mr.rkey(), mr.addr()), Err(Barred::Silence)));
    assert!(poll(&cq, 8).is_empty(), "the receive was flushed once");
    stopped.release();
    qp.destroy().unwrap();
    mr.deregister().unwrap();
}

#[test]
fn what_was_published_before_the_cut_off_is_kept() {
    let Owner { context, pd, cq, _turn } = owner();
    let qp = receiver(&context, &pd, &cq, None, 4);
    qp.post_recv(1, &[]).unwrap();
    let stopped = bind(&qp, foreign(1));
    let mark = enter(&stopped);
    publish(&stopped, stopped.claim().unwrap(), 7);
    // Stopped between the publication and the look whether it counts: the receiver has the message, the sender cannot
    // know.
    to_err(&qp);
    assert_eq!(poll(&cq, 8).iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), [(1, Status::Success.to_verbs())]);
    assert_eq!(stopped.leave_done(mark), Err(Nak::Silence));
    stopped.release();
    qp.destroy().unwrap();
}

#[test]
fn a_revocation_neither_waits_for_nor_cuts_off_those_that_are_elsewhere() {
    let Owner { context, pd, cq, _turn } = owner();
    let qp = receiver(&context, &pd, &cq, None, 4);
    let (mut a, mut b) = (vec![0u8; 8192], vec![0u8; 8192]);
    let (used, other) = (register(&pd, &mut a), register(&pd, &mut b));
    qp.post_recv(1, &[Sge { addr: used.addr(), length: 64, lkey: used.lkey() }]).unwrap();
    let stopped = bind(&qp, foreign(1));
    for visit in 0..2 {
        let mark = enter(&stopped);
        match visit {
            0 => drop(stopped.remote_memory(used.rkey(), used.addr(), 8, access::REMOTE_WRITE).unwrap()),
            _ => drop(stopped.receive_memory(stopped.claim().unwrap(), 0, 64).unwrap()),
        }
        let again = register(&pd, &mut vec![0u8; 4096]);
        again.rereg(4, None, 0, 0, access::LOCAL_WRITE).unwrap();
        again.deregister().unwrap();
        assert_eq!(stopped.leave_done(mark), Ok(()), "nobody took anything away from it");
    }
    // A window hides the region under it, and may have been invalidated by a peer: the drain waits for any lane that
    // names one.
    let window = Mw::alloc(&pd, 2).unwrap();
    let named = window.rkey();
    let mark = enter(&stopped);
    assert!(stopped.remote_memory(named, used.addr(), 8, access::REMOTE_WRITE).is_err(), "it is not bound");
    let entry = &process().own.keys[named as usize >> 8];
    entry
        .domain
        .store(u64::from(vervain_hca::arena::layout::KEY_WINDOW) << 32 | u64::from(entry.pd()), Ordering::SeqCst);
    other.deregister().unwrap();
    assert_eq!(stopped.leave_done(mark), Err(Nak::Silence));
    stopped.release();
    window.dealloc().unwrap();
    qp.destroy().unwrap();
    used.deregister().unwrap();
}

#[test]
fn all_that_stand_still_are_waited_for_at_the_same_time() {
    const STOPPED: u32 = 8;
    let Owner { context, pd, cq, _turn } = owner();
    let mut memory = vec![0u8; 8192];
    let mr = register(&pd, &mut memory);
    let qps: Vec<_> = (0..STOPPED).map(|_| receiver(&context, &pd, &cq, None, 1)).collect();
    let targets: Vec<_> = qps.iter().zip(1..).map(|(qp, i)| bind(qp, foreign(i))).collect();
    let marks: Vec<_> = targets.iter().map(enter).collect();
    for target in &targets[..4] {
        target.remote_memory(mr.rkey(), mr.addr(), 8, access::REMOTE_WRITE).unwrap();
    }
    // Four are in the region; all stand in the way of the ends of their QPs. One after the other would take 16 s.
    let began = Instant::now();
    mr.deregister().unwrap();
    qps.iter().for_each(|qp| qp.destroy().unwrap());
    assert!(began.elapsed() < Duration::from_secs(12), "took {:?}", began.elapsed());
    marks.into_iter().zip(&targets).for_each(|(mark, target)| assert_eq!(target.leave_done(mark), Err(Nak::Silence)));
    targets.iter().for_each(vervain_hca::responder::Responder::release);
}

#[test]
fn a_shared_queue_gives_back_what_was_taken_and_keeps_its_room() {
    let Owner { context, pd, cq, _turn } = owner();
    let init = SrqInit { max_wr: 4, max_sge: 1, cookie: 0, xrc: None };
    let srq = Srq::create(&context, &pd, &init).unwrap();
    let qp = receiver(&context, &pd, &cq, Some(&srq), 0);
    for wr_id in 0..4 {
        srq.post_recv(wr_id, &[]).unwrap();
    }
    assert!(srq.post_recv(9, &[]).is_err(), "it holds four");
    let stopped = bind(&qp, foreign(0));
    let mark = enter(&stopped);
    let taken = stopped.claim().unwrap();
    to_err(&qp);
    let seen: Vec<_> = poll(&cq, 8).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(seen, [(0, Status::Flushed.to_verbs())], "the receive that the stopped one has taken is flushed");
    for _ in 0..3 {
        srq.post_recv(4, &[]).unwrap();
        assert!(srq.post_recv(9, &[]).is_err(), "it holds four");
        // Another QP takes one from it: never the one that the stopped initiator may still write into.
        let healthy = receiver(&context, &pd, &cq, Some(&srq), 0);
        let target = bind(&healthy, foreign(2));
        let inside = enter(&target);
        let wqe = target.claim().unwrap();
        assert_ne!(wqe, taken);
        publish(&target, wqe, 3);
        assert_eq!(target.leave_done(inside), Ok(()));
        assert_eq!(poll(&cq, 8).len(), 1);
        target.release();
        healthy.destroy().unwrap();
    }
    assert_eq!(stopped.leave_done(mark), Err(Nak::Silence));
    stopped.release();
    qp.destroy().unwrap();
    srq.destroy().unwrap();
}
