//! Requests to a process whose handshake is under way for as long as the test lasts.

mod common;

use common::{IS_SLOW, SLOW_SLOT, TURN, context, poll};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vervain_hca::arena::layout::INDEX_BITS;
use vervain_hca::{
    AhAttr, Context, Cq, Data, Grh, Opcode, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SendRequest, Status, attr,
    send_flags,
};

/// Time of a handshake if no process is slow.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// Until what is due has surely come.
const LONG: Duration = Duration::from_secs(20);

/// A QP in RTS, whose retries take a millisecond.
fn sender(context: &Arc<Context>, cq: &Arc<Cq>, qp_type: QpType) -> Arc<Qp> {
    let pd = context.alloc_pd().unwrap();
    let init = QpInit {
        qp_type,
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq: None,
        xrcd: None,
        cap: QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 },
        sq_sig_all: false,
        cookie: 0,
    };
    let qp = Qp::create(context, Some(&pd), &init).unwrap();
    let dgid = context.device().gids(1)[0].gid;
    let ah = AhAttr { is_global: true, port_num: 1, grh: Grh { dgid, ..Grh::default() }, ..AhAttr::default() };
    let new = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        path_mtu: 5,
        dest_qp_num: SLOW_SLOT << INDEX_BITS | 1,
        timeout: 8,
        ah,
        ..QpAttr::default()
    };
    let of_reliable = |mask| if qp_type == QpType::Rc { mask } else { 0 };
    qp.modify(&new, attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS).unwrap();
    let mask = attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
    let mask = mask | of_reliable(attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER);
    qp.modify(&QpAttr { qp_state: QpState::Rtr, ..new }, mask).unwrap();
    let mask = of_reliable(attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC);
    qp.modify(&QpAttr { qp_state: QpState::Rts, ..new }, attr::STATE | attr::SQ_PSN | mask).unwrap();
    qp
}

fn post(qp: &Qp) {
    let request = SendRequest { opcode: Opcode::Send, flags: send_flags::SIGNALED, ..SendRequest::default() };
    qp.post_send(|p| p.push(&SendRequest { data: Data::Sges(&[]), ..request })).unwrap();
}

/// Polls for `time` at most; the status of what has completed.
fn status_within(cq: &Cq, time: Duration) -> Option<u32> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        if let Some(completion) = poll(cq, 1).first() {
            return Some(completion.status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// True if the progress thread sleeps until it is woken; None if the kernel does not show its state.
fn sleeps_until_woken() -> Option<bool> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let is_it =
        |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "vervain\n");
    let task = tasks.flatten().find(is_it)?;
    // The number of the call and its arguments; "running" outside of calls.
    let call = fs::read_to_string(task.path().join("syscall")).ok()?;
    let words: Vec<&str> = call.split(' ').collect();
    let number = words[0].parse() == Ok(libc::SYS_ppoll);
    // The time that it sleeps at most.
    Some(number && words.get(3) == Some(&"0x0"))
}

#[test]
fn nobody_looks_after_requests_that_have_been_flushed() {
    let _turn = TURN.lock();
    let context = context();
    let cq = Cq::create(&context, 16, None, 0, 0, false, false).unwrap();
    if sleeps_until_woken().is_none() {
        return vervain_skip::skip("the kernel does not show which call a thread is in");
    }
    IS_SLOW.store(true, Ordering::Relaxed);
    let qp = sender(&context, &cq, QpType::Rc);
    post(&qp);
    until("the progress thread looks after the request", || sleeps_until_woken() == Some(false));
    qp.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, attr::STATE).unwrap();
    assert_eq!(status_within(&cq, LONG), Some(Status::Flushed.to_verbs()));
    until("the progress thread has nothing to look after", || sleeps_until_woken() == Some(true));
    qp.destroy().unwrap();
}

#[test]
fn a_request_waits_for_a_slow_process_and_ends_when_that_is_slow_no_more() {
    let _turn = TURN.lock();
    let context = context();
    let cq = Cq::create(&context, 16, None, 0, 0, false, false).unwrap();
    IS_SLOW.store(true, Ordering::Relaxed);
    let reliable = sender(&context, &cq, QpType::Rc);
    post(&reliable);
    assert_eq!(status_within(&cq, 3 * HANDSHAKE), None, "the process may answer still");
    IS_SLOW.store(false, Ordering::Relaxed);
    assert_eq!(status_within(&cq, LONG), Some(Status::RetryExceeded.to_verbs()));
    reliable.destroy().unwrap();
    IS_SLOW.store(true, Ordering::Relaxed);
    // Over UC nobody waits for an answer.
    let unreliable = sender(&context, &cq, QpType::Uc);
    post(&unreliable);
    assert_eq!(status_within(&cq, LONG), Some(Status::Success.to_verbs()));
    unreliable.destroy().unwrap();
    // The end of a QP waits, too, but not for ever.
    let reliable = sender(&context, &cq, QpType::Rc);
    post(&reliable);
    let begin = Instant::now();
    reliable.destroy().unwrap();
    let took = begin.elapsed();
    assert!(took >= HANDSHAKE / 2 && took < LONG, "it took {took:?}");
}
