//! The fast path of a request beside the long way, errors, and CQs that begin to count: looped QPs of one process.

mod fixture;

use fixture::{ALL, qp, wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vervain_hca::{
    Context, Cq, Data, Mr, Opcode, Qp, QpAttr, QpCap, QpState, QpType, SendRequest, Sge, Status, WorkRequest, devices,
    send_flags, wc,
};

const CAP: QpCap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };

fn context() -> Arc<Context> {
    vervain_link::open(&devices().unwrap()[0]).unwrap()
}

fn connect(context: &Arc<Context>, a: &Qp, b: &Qp) {
    for (me, peer) in [(a, b), (b, a)] {
        let way = QpAttr {
            qp_access_flags: ALL,
            dest_qp_num: peer.qp_num(),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            timeout: 8,
            retry_cnt: 2,
            rnr_retry: 1,
            ..QpAttr::default()
        };
        fixture::to_rts(context, me, &way);
    }
}

/// A work request with one piece of data.
struct One {
    wr_id: u64,
    flags: u32,
    data: Sge,
    remote: (u64, u32),
}

impl WorkRequest for One {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }
    fn flags(&self) -> u32 {
        self.flags
    }
    fn data(&self) -> Sge {
        self.data
    }
    fn imm(&self) -> u32 {
        0
    }
    fn remote(&self) -> (u64, u32) {
        self.remote
    }
    fn atomic(&self) -> (u64, u32, u64, u64) {
        (self.remote.0, self.remote.1, 0, 0)
    }
}

/// Posts like `ibv_post_send`: the fast path if there is one.
fn post(qp: &Qp, opcode: Opcode, one: &One) -> Result<(), vervain_hca::Error> {
    let sges = [one.data];
    let request = SendRequest {
        wr_id: one.wr_id,
        opcode,
        flags: one.flags,
        remote_addr: one.remote.0,
        rkey: one.remote.1,
        data: Data::Sges(&sges),
        ..SendRequest::default()
    };
    qp.post_send(|p| if p.fast(opcode, one) { Ok(()) } else { p.push(&request) })
}

#[test]
fn the_short_way_takes_no_more_pieces_than_the_queue() {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 64, None, 0, 0, false, false).unwrap();
    let a = qp(&context, &pd, &cq, QpType::Rc, QpCap { max_send_sge: 0, ..CAP });
    let b = qp(&context, &pd, &cq, QpType::Rc, CAP);
    connect(&context, &a, &b);
    let words = vec![0u64; 64];
    let at = words.as_ptr() as u64;
    let mr = Mr::register(&pd, at, 512, at, ALL).unwrap();
    let data = |length| Sge { addr: at, length, lkey: mr.lkey() };
    b.post_recv(1, &[data(64)]).unwrap();
    b.post_recv(2, &[data(64)]).unwrap();
    let one = One { wr_id: 3, flags: send_flags::SIGNALED, data: Sge::default(), remote: (at + 256, mr.rkey()) };
    // The first request finds the peer, by the long way.
    let nothing = SendRequest { wr_id: 3, opcode: Opcode::Send, flags: send_flags::SIGNALED, ..SendRequest::default() };
    a.post_send(|p| p.push(&nothing)).unwrap();
    assert_eq!((wait(&cq).status, wait(&cq).status), (Status::Success.to_verbs(), Status::Success.to_verbs()));
    let refused = post(&a, Opcode::Send, &One { data: data(8), ..one });
    assert!(refused.is_err(), "the QP takes no SGE");
}

#[test]
fn a_message_that_uc_drops_half_way_leaves_its_receive_to_the_next() {
    // The progress thread may move the whole message before its memory is gone; not each time.
    assert!((0..100).any(|_| a_message_is_dropped_half_way()), "no message was still on its way when its memory went");
}

/// One try; false where the message was faster.
fn a_message_is_dropped_half_way() -> bool {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 64, None, 0, 0, false, false).unwrap();
    let (a, b) = (qp(&context, &pd, &cq, QpType::Uc, CAP), qp(&context, &pd, &cq, QpType::Uc, CAP));
    connect(&context, &a, &b);
    const LONG: usize = 4 << 20;
    let (from, to) = (vec![1u8; LONG], vec![0u8; LONG]);
    let (at, there) = (from.as_ptr() as u64, to.as_ptr() as u64);
    let here = Mr::register(&pd, at, LONG as u64, at, ALL).unwrap();
    let away = Mr::register(&pd, there, LONG as u64, there, ALL).unwrap();
    let small = [0u64; 8];
    let small_at = small.as_ptr() as u64;
    let kept = Mr::register(&pd, small_at, 64, small_at, ALL).unwrap();
    b.post_recv(1, &[Sge { addr: small_at, length: 64, lkey: kept.lkey() }]).unwrap();
    b.post_recv(2, &[Sge { addr: small_at, length: 64, lkey: kept.lkey() }]).unwrap();
    let data = [Sge { addr: at, length: LONG as u32, lkey: here.lkey() }];
    let request = SendRequest {
        wr_id: 10,
        opcode: Opcode::WriteImm,
        flags: send_flags::SIGNALED,
        remote_addr: there,
        rkey: away.rkey(),
        data: Data::Sges(&data),
        ..SendRequest::default()
    };
    a.post_send(|p| p.push(&request)).unwrap();
    // Posting moves the first pieces only.
    away.deregister().unwrap();
    let c = wait(&cq);
    if c.opcode == wc::OP_RECV_RDMA_WITH_IMM {
        return false;
    }
    assert_eq!((c.wr_id, c.status), (10, Status::Success.to_verbs()));
    let hello = One {
        wr_id: 11,
        flags: send_flags::SIGNALED,
        data: Sge { addr: at, length: 8, lkey: here.lkey() },
        remote: (0, 0),
    };
    post(&a, Opcode::Send, &hello).unwrap();
    let (x, y) = (wait(&cq), wait(&cq));
    if [&x, &y].iter().any(|c| c.opcode == wc::OP_RECV_RDMA_WITH_IMM) {
        return false;
    }
    let mut ids = [x.wr_id, y.wr_id];
    ids.sort_unstable();
    assert_eq!((ids, x.status, y.status), ([1, 11], Status::Success.to_verbs(), Status::Success.to_verbs()));
    true
}

/// A CQ that begins to count while completions flow has counted each once: as many as fit do not overrun it.
#[test]
fn counting_begins_between_two_completions() {
    const ROUNDS: u32 = 2_000;
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let words = vec![0u64; 64];
    let at = words.as_ptr() as u64;
    let mr = Mr::register(&pd, at, 512, at, ALL).unwrap();
    let data = Sge { addr: at, length: 8, lkey: mr.lkey() };
    let write = One { wr_id: 1, flags: send_flags::SIGNALED, data, remote: (at + 64, mr.rkey()) };
    for round in 0..ROUNDS {
        let cq = Cq::create(&context, 63, None, 0, 0, false, false).unwrap();
        let peer_cq = Cq::create(&context, 63, None, 0, 0, false, false).unwrap();
        let (a, b) = (qp(&context, &pd, &cq, QpType::Rc, CAP), qp(&context, &pd, &peer_cq, QpType::Rc, CAP));
        connect(&context, &a, &b);
        let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|s| {
            let poster = s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    post(&a, Opcode::Write, &write).unwrap();
                    wait(&cq);
                    ready.store(true, Ordering::Relaxed);
                }
            });
            while !ready.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            // Smaller than the queues that report to it: 16 requests and 16 receives.
            cq.resize(15).unwrap();
            stop.store(true, Ordering::Relaxed);
            poster.join().unwrap();
        });
        for _ in 0..15 {
            post(&a, Opcode::Write, &write).unwrap();
        }
        (0..15).for_each(|_| assert_eq!(wait(&cq).status, Status::Success.to_verbs(), "round {round}"));
        assert_eq!(a.state(), QpState::Rts, "round {round}: 15 completions fit");
        a.destroy().unwrap();
        b.destroy().unwrap();
        cq.destroy().unwrap();
        peer_cq.destroy().unwrap();
    }
}
