//! Two QPs of one process: the whole way of each operation through queues, lanes and the responder, without the C ABI.

mod fixture;

use fixture::{ALL, wait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::arena::layout::{CqShared, Lane};
use vervain_hca::{
    Context, Cq, Data, Dm, Mr, Opcode, Pd, Qp, QpAttr, QpCap, QpState, QpType, SendRequest, Sge, Status, devices,
    event, send_flags,
};

struct Side {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
}

fn side(context: &Arc<Context>, qp_type: QpType) -> Side {
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(context, 64, None, 0, 0, false, false).unwrap();
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
    let qp = fixture::qp(context, &pd, &cq, qp_type, cap);
    Side { pd, cq, qp }
}

fn connect(context: &Arc<Context>, a: &Side, b: &Side, rnr_retry: u8) {
    for (me, peer) in [(a, b), (b, a)] {
        let way = QpAttr {
            qp_access_flags: ALL,
            dest_qp_num: peer.qp.qp_num(),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            timeout: 8,
            retry_cnt: 2,
            rnr_retry,
            ..QpAttr::default()
        };
        fixture::to_rts(context, &me.qp, &way);
    }
}

fn pair() -> (Arc<Context>, Side, Side) {
    let device = &devices().unwrap()[0];
    let context = vervain_link::open(device).unwrap();
    let (a, b) = (side(&context, QpType::Rc), side(&context, QpType::Rc));
    connect(&context, &a, &b, 1);
    (context, a, b)
}

fn post(qp: &Qp, request: &SendRequest<'_>) {
    qp.post_send(|p| p.push(request)).unwrap();
}

#[test]
fn write_read_and_atomics_move_the_right_bytes() {
    let (_context, a, b) = pair();
    let mut ours = vec![0u64; 4096];
    let mut theirs = vec![0u64; 4096];
    ours.iter_mut().enumerate().for_each(|(i, w)| *w = i as u64 * 3);
    let len = 4096 * 8;
    let ma = Mr::register(&a.pd, ours.as_ptr() as u64, len, ours.as_ptr() as u64, ALL).unwrap();
    let mb = Mr::register(&b.pd, theirs.as_ptr() as u64, len, theirs.as_ptr() as u64, ALL).unwrap();
    let sge = [Sge { addr: ours.as_ptr() as u64, length: len as u32, lkey: ma.lkey() }];
    let base = SendRequest {
        flags: send_flags::SIGNALED,
        remote_addr: theirs.as_ptr() as u64,
        rkey: mb.rkey(),
        ..SendRequest::default()
    };
    post(&a.qp, &SendRequest { wr_id: 1, opcode: Opcode::Write, data: Data::Sges(&sge), ..base });
    let c = wait(&a.cq);
    assert_eq!((c.wr_id, c.status, c.opcode), (1, Status::Success.to_verbs(), 1));
    assert_eq!(ours, theirs);
    theirs[7] = 99;
    let base = SendRequest {
        flags: send_flags::SIGNALED,
        remote_addr: theirs.as_ptr() as u64,
        rkey: mb.rkey(),
        ..SendRequest::default()
    };
    post(&a.qp, &SendRequest { wr_id: 2, opcode: Opcode::Read, data: Data::Sges(&sge), ..base });
    assert_eq!((wait(&a.cq).status, ours[7]), (Status::Success.to_verbs(), 99));
    let word = [Sge { addr: ours.as_ptr() as u64, length: 8, lkey: ma.lkey() }];
    let base = SendRequest {
        flags: send_flags::SIGNALED,
        remote_addr: theirs.as_ptr() as u64 + 56,
        rkey: mb.rkey(),
        ..SendRequest::default()
    };
    post(&a.qp, &SendRequest { wr_id: 3, opcode: Opcode::FetchAdd, compare_add: 5, data: Data::Sges(&word), ..base });
    assert_eq!((wait(&a.cq).status, ours[0], theirs[7]), (Status::Success.to_verbs(), 99, 104));
    ma.deregister().unwrap();
    mb.deregister().unwrap();
    a.qp.destroy().unwrap();
    b.qp.destroy().unwrap();
}

#[test]
fn a_send_completes_on_both_sides_and_without_a_receive_it_is_not_ready() {
    let (_context, a, b) = pair();
    let buffer = [0u8; 64];
    let mb = Mr::register(&b.pd, buffer.as_ptr() as u64, 64, buffer.as_ptr() as u64, ALL).unwrap();
    b.qp.post_recv(77, &[Sge { addr: buffer.as_ptr() as u64, length: 64, lkey: mb.lkey() }]).unwrap();
    let hello: &[u8] = b"hello";
    let inline = [hello];
    let request = || SendRequest {
        wr_id: 5,
        opcode: Opcode::SendImm,
        imm_or_rkey: 42,
        flags: 2 | 8,
        data: Data::Inline(&inline),
        ..SendRequest::default()
    };
    post(&a.qp, &request());
    assert_eq!(wait(&a.cq).status, Status::Success.to_verbs());
    let r = wait(&b.cq);
    assert_eq!(
        (r.wr_id, r.status, r.byte_len, r.imm_or_rkey, r.src_qp),
        (77, Status::Success.to_verbs(), 5, 42, a.qp.qp_num())
    );
    assert_eq!(&buffer[..5], hello);
    post(&a.qp, &request());
    assert_eq!(wait(&a.cq).status, Status::RnrRetryExceeded.to_verbs());
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Rts));
}

#[test]
fn a_bad_rkey_stops_both_sides_and_raises_an_access_error() {
    let (context, a, b) = pair();
    let buffer = [0u8; 64];
    let ma = Mr::register(&a.pd, buffer.as_ptr() as u64, 64, buffer.as_ptr() as u64, ALL).unwrap();
    let sge = [Sge { addr: buffer.as_ptr() as u64, length: 8, lkey: ma.lkey() }];
    post(&a.qp, &SendRequest { opcode: Opcode::Write, rkey: 0xdead, data: Data::Sges(&sge), ..SendRequest::default() });
    assert_eq!(wait(&a.cq).status, Status::RemoteAccess.to_verbs());
    // Established first, then the error; the progress thread tells of both.
    let mut seen = vec![context.next_event().unwrap().event_type];
    if seen[0] == event::COMM_EST {
        seen.push(context.next_event().unwrap().event_type);
    }
    assert!(seen.contains(&event::QP_ACCESS_ERR), "{seen:?}");
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
}

#[test]
fn a_peer_that_is_gone_ends_in_retries_exceeded() {
    let (_context, a, b) = pair();
    b.qp.destroy().unwrap();
    post(&a.qp, &SendRequest { opcode: Opcode::Send, ..SendRequest::default() });
    assert_eq!(wait(&a.cq).status, Status::RetryExceeded.to_verbs());
}

// Its memory in the arena is given back: what lies there is nothing that it would answer, and not to be written to.
#[test]
fn a_peer_that_is_destroyed_on_the_way_ends_in_retries_exceeded() {
    for opcode in [Opcode::Write, Opcode::Read, Opcode::FetchAdd, Opcode::CompareSwap] {
        let (context, a, b) = pair();
        let words = [0u64; 2];
        let at = words.as_ptr() as u64;
        let ours = Mr::register(&a.pd, at, 16, at, ALL).unwrap();
        let theirs = Mr::register(&b.pd, at, 16, at, ALL).unwrap();
        let sge = [Sge { addr: at, length: 8, lkey: ours.lkey() }];
        let request = |opcode| SendRequest {
            opcode,
            flags: send_flags::SIGNALED,
            data: Data::Sges(&sge),
            remote_addr: at + 8,
            rkey: theirs.rkey(),
            ..SendRequest::default()
        };
        post(&a.qp, &request(Opcode::Write));
        assert_eq!(wait(&a.cq).status, Status::Success.to_verbs());
        b.qp.destroy().unwrap();
        drop(b);
        let there: Vec<_> = (0..100).map(|_| Dm::alloc(&context, 64, 0).unwrap()).collect();
        there.iter().for_each(|dm| dm.write(0, &[0x5a; 64]).unwrap());
        post(&a.qp, &request(opcode));
        assert_eq!(wait(&a.cq).status, Status::RetryExceeded.to_verbs(), "{opcode:?}");
        for dm in there {
            let mut found = [0; 64];
            dm.read(0, &mut found).unwrap();
            dm.free().unwrap();
            assert_eq!(found, [0x5a; 64], "{opcode:?}");
        }
    }
}

/// Offset of the receive CQ of `qp` in the arena.
fn place_of_cq(qp: &Qp) -> u64 {
    let own = &qp.process().own;
    let lane = own.qp(qp.qp_num()).unwrap().lane.load(Ordering::Relaxed);
    own.view.get::<Lane>(lane).unwrap().leads_to.cq.load(Ordering::Relaxed)
}

// A thread that has completed something raises the event later, and may stand still before it does.
#[test]
fn memory_of_a_cq_becomes_nothing_but_a_cq() {
    let (context, a, b) = pair();
    let place = place_of_cq(&b.qp);
    let at = b.qp.process().own.view.at(place, size_of::<CqShared>() as u64).unwrap() as u64;
    b.qp.destroy().unwrap();
    b.cq.destroy().unwrap();
    drop(b);
    let others: Vec<_> = (0..1000).map(|_| Dm::alloc(&context, 64, 0).unwrap()).collect();
    for dm in &others {
        let from = dm.addr() as u64;
        assert!(from + 64 <= at || at + size_of::<CqShared>() as u64 <= from, "device memory lies where a CQ lay");
    }
    drop(a);
    others.iter().for_each(|dm| dm.free().unwrap());
}

#[test]
fn a_fast_sender_and_a_slow_receiver_lose_nothing() {
    let device = &devices().unwrap()[0];
    let context = vervain_link::open(device).unwrap();
    let (a, b) = (side(&context, QpType::Rc), side(&context, QpType::Rc));
    connect(&context, &a, &b, 7);
    let buffer = [0u8; 64];
    let mb = Mr::register(&b.pd, buffer.as_ptr() as u64, 64, buffer.as_ptr() as u64, ALL).unwrap();
    let sge = [Sge { addr: buffer.as_ptr() as u64, length: 64, lkey: mb.lkey() }];
    const N: u64 = 50_000;
    for i in 0..16 {
        b.qp.post_recv(i, &sge).unwrap();
    }
    std::thread::scope(|s| {
        s.spawn(|| {
            let word: &[u8] = b"hello";
            let inline = [word];
            let (mut posted, mut done) = (0, 0);
            while done < N {
                while posted < N && posted - done < 16 {
                    post(
                        &a.qp,
                        &SendRequest {
                            wr_id: posted,
                            flags: 2 | 8,
                            data: Data::Inline(&inline),
                            ..SendRequest::default()
                        },
                    );
                    posted += 1;
                }
                let c = wait(&a.cq);
                assert_eq!((c.wr_id, c.status), (done, Status::Success.to_verbs()));
                done += 1;
            }
        });
        for i in 0..N {
            let c = wait(&b.cq);
            assert_eq!((c.wr_id, c.status), (i % 16, Status::Success.to_verbs()), "message {i}");
            b.qp.post_recv(i % 16, &sge).unwrap();
        }
    });
}
