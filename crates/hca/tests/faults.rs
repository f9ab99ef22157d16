//! Initiators that end or stop in the middle of a delivery, at the instructions where it could be felt later.

mod common;

use common::{INITIATORS_LIVE, TURN, bind, context, enter, foreign, poll, process, publish, receiver, to_rtr};
use std::sync::atomic::Ordering;
use vervain_hca::layout::found;
use vervain_hca::{QpAttr, QpState, attr};

/// Rings that a CQ looks at without being told of them, and more.
const WATCHED: usize = 16;

#[test]
fn receives_are_found_after_an_initiator_that_died_before_it_set_the_ready_bit() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(255, None, 0, 0, false, false).unwrap();
    let _others: Vec<_> = (0..WATCHED).map(|_| receiver(&context, &pd, &cq, None, 1)).collect();
    let qp = receiver(&context, &pd, &cq, None, 4);
    let target = bind(&qp, foreign(1));
    // It says that it will set the bit, and is killed.
    assert_eq!(target.lane.mode.swap(found::SIGNALLED, Ordering::SeqCst), found::QUIET);
    INITIATORS_LIVE.store(false, Ordering::SeqCst);
    process().reap(&[common::FOREIGN_SLOT]);
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
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(63, None, 0, 0, false, false).unwrap();
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
