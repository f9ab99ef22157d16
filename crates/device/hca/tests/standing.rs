//! Contexts that are stopped, as one process sees it: by initiators that are driven by hand, and by QPs that are
//! connected to themselves.

mod common;

use common::{Random, TURN, bind, context, foreign, poll, process, receiver};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vervain_hca::arena::layout::{Switch, request};
use vervain_hca::qp::sq::wqe::UdDest;
use vervain_hca::responder::Barred;
use vervain_hca::{
    Ah, AhAttr, Context, Cq, Data, Grh, Mr, Opcode, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SendRequest, Sge,
    Status, WorkRequest, access, attr, event, send_flags, wc,
};

const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// Longer than anything takes that is done at once.
const A_WHILE: Duration = Duration::from_millis(60);
const TIMEOUT: Duration = Duration::from_secs(20);

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context with what QPs need.
struct World {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
}

impl World {
    fn new() -> World {
        let context = context();
        let pd = context.alloc_pd().unwrap();
        let cq = Cq::create(&context, 1024, None, 0, 0, false, false).unwrap();
        World { context, pd, cq }
    }

    fn qp(&self, qp_type: QpType) -> Arc<Qp> {
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (Some(&self.cq), Some(&self.cq));
        let init = QpInit { qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true, cookie: 0 };
        Qp::create(&self.context, Some(&self.pd), &init).unwrap()
    }

    fn ah(&self) -> AhAttr {
        let dgid = self.context.device().gids(1)[0].gid;
        AhAttr { is_global: true, port_num: 1, grh: Grh { dgid, ..Grh::default() }, ..AhAttr::default() }
    }

    /// A QP that is ready to send to `peer`, which waits for it for `4.096 µs × 2^timeout` and no longer.
    fn connect(&self, qp: &Qp, peer: u32, timeout: u8) {
        let init = QpAttr { qp_state: QpState::Init, port_num: 1, qp_access_flags: ALL, ..QpAttr::default() };
        qp.modify(&init, attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS).unwrap();
        let (path_mtu, ah) = (5, self.ah());
        let rtr = QpAttr { qp_state: QpState::Rtr, path_mtu, dest_qp_num: peer, max_dest_rd_atomic: 1, ah, ..init };
        let mask = attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        qp.modify(&rtr, mask | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER).unwrap();
        let rts = QpAttr { qp_state: QpState::Rts, timeout, max_rd_atomic: 1, ..rtr };
        let mask = attr::STATE | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN;
        qp.modify(&rts, mask | attr::MAX_QP_RD_ATOMIC).unwrap();
    }

    fn register(&self, memory: &[AtomicU64]) -> Arc<Mr> {
        let addr = memory.as_ptr() as u64;
        Mr::register(&self.pd, addr, size_of_val(memory) as u64, addr, ALL).unwrap()
    }
}

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

/// Posts the write of one word of `mr` to another.
fn write(qp: &Qp, mr: &Mr, from: &AtomicU64, to: &AtomicU64) {
    let sges = [Sge { addr: from.as_ptr() as u64, length: 8, lkey: mr.lkey() }];
    let request = SendRequest {
        opcode: Opcode::Write,
        flags: send_flags::SIGNALED,
        remote_addr: to.as_ptr() as u64,
        rkey: mr.rkey(),
        data: Data::Sges(&sges),
        ..SendRequest::default()
    };
    qp.post_send(|poster| poster.push(&request)).unwrap();
}

/// The write of one word, as a program's own request.
struct Write {
    data: Sge,
    remote: (u64, u32),
}

impl WorkRequest for Write {
    fn wr_id(&self) -> u64 {
        0
    }
    fn flags(&self) -> u32 {
        send_flags::SIGNALED
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
        (0, 0, 0, 0)
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < TIMEOUT, "{what}");
        std::thread::yield_now();
    }
}

/// The completion that comes.
fn completion(cq: &Cq) -> vervain_hca::Completion {
    let mut got = Vec::new();
    until("a completion", || {
        got = poll(cq, 1);
        !got.is_empty()
    });
    got[0]
}

#[test]
fn a_stopped_context_lets_nobody_in_and_another_does() {
    let _turn = turn();
    let (one, other) = (World::new(), World::new());
    let stopped = receiver(&one.context, &one.pd, &one.cq, None, 1);
    let free = receiver(&other.context, &other.pd, &other.cq, None, 1);
    let (there, elsewhere) = (bind(&stopped, foreign(1)), bind(&free, foreign(2)));
    one.context.stop(None).unwrap();
    assert_eq!(one.context.stop(None).unwrap_err().errno(), libc::EALREADY);
    assert_eq!(there.enter().err(), Some(Barred::Stopped));
    assert!(elsewhere.enter().is_ok());
    // A stop of the process as a whole, and of both: a context that is stopped twice goes on when both are over.
    process().stop_all(None).unwrap();
    assert_eq!(process().stop_all(None).unwrap_err().errno(), libc::EALREADY);
    assert_eq!(elsewhere.enter().err(), Some(Barred::Stopped));
    assert!(process().is_stopped() && process().handle_packets(|| ()).is_none());
    one.context.go().unwrap();
    assert_eq!(one.context.go().unwrap_err().errno(), libc::EALREADY);
    assert_eq!(there.enter().err(), Some(Barred::Stopped));
    process().go_all().unwrap();
    assert_eq!(process().go_all().unwrap_err().errno(), libc::EALREADY);
    assert!(there.enter().is_ok() && elsewhere.enter().is_ok());
    assert!(process().handle_packets(|| ()).is_some());
}

#[test]
fn a_parked_process_does_not_go_on_by_itself_and_its_program_notices_nothing() {
    let _turn = turn();
    let world = World::new();
    let qp = receiver(&world.context, &world.pd, &world.cq, None, 1);
    let there = bind(&qp, foreign(1));
    let process = process();
    assert_eq!(
        [process.parking.leave(process), process.parking.rejoin(process, &[], || ())]
            .map(|step| step.unwrap_err().errno()),
        [libc::EINVAL; 2]
    );
    process.parking.unpark(process).unwrap();
    // The program stops and goes on meanwhile, or does one of both.
    for (stops_before, stops, goes) in
        [(false, false, false), (false, true, true), (false, true, false), (true, false, true), (true, false, false)]
    {
        if stops_before {
            process.stop_all(None).unwrap();
        }
        process.parking.park(process).unwrap();
        process.parking.park(process).unwrap();
        assert_eq!(there.enter().err(), Some(Barred::Stopped));
        process.parking.leave(process).unwrap();
        process.parking.leave(process).unwrap();
        if stops {
            process.stop_all(None).unwrap();
            assert_eq!(process.stop_all(None).unwrap_err().errno(), libc::EALREADY);
        }
        if goes {
            process.go_all().unwrap();
            assert_eq!(process.go_all().unwrap_err().errno(), libc::EALREADY);
        }
        assert_eq!(there.enter().err(), Some(Barred::Stopped), "it is parked still");
        assert_eq!(process.parking.unpark(process).unwrap_err().errno(), libc::EBUSY);
        process.parking.rejoin(process, &[], || ()).unwrap();
        process.parking.unpark(process).unwrap();
        process.parking.unpark(process).unwrap();
        let is_stopped = (stops_before || stops) && !goes;
        assert_eq!(there.enter().err(), is_stopped.then_some(Barred::Stopped));
        if is_stopped {
            process.go_all().unwrap();
        }
        assert!(there.enter().is_ok());
    }
}

#[test]
fn nothing_is_stopped_while_somebody_stands_inside() {
    let _turn = turn();
    let (world, other) = (World::new(), World::new());
    let qp = receiver(&world.context, &world.pd, &world.cq, None, 1);
    let (inside, also) = (bind(&qp, foreign(1)), receiver(&other.context, &other.pd, &other.cq, None, 1));
    let also = bind(&also, foreign(2));
    let mark = inside.enter().unwrap();
    let late = world.context.stop(Some(20_000_000)).unwrap_err();
    assert_eq!(late.errno(), libc::ETIMEDOUT);
    assert!(late.to_string().contains(&format!("{:#x}", foreign(1))), "{late}");
    assert_eq!(process().stop_all(Some(20_000_000)).unwrap_err().errno(), libc::ETIMEDOUT);
    // Nothing was taken away: the initiator's work counts, and new operations may begin.
    assert!(inside.counts() && also.enter().is_ok());
    // An initiator that is in flight elsewhere does not concern a context.
    other.context.stop(Some(20_000_000)).unwrap();
    other.context.go().unwrap();
    drop(mark);
    world.context.stop(None).unwrap();
    world.context.go().unwrap();
    assert!(inside.enter().is_ok());
}

#[test]
fn an_initiator_that_has_ended_inside_is_not_waited_for() {
    let _turn = turn();
    let world = World::new();
    let qp = receiver(&world.context, &world.pd, &world.cq, None, 1);
    let target = bind(&qp, foreign(1));
    std::mem::forget(target.enter().unwrap());
    common::INITIATORS_LIVE.store(false, Ordering::Relaxed);
    let stopped = world.context.stop(None);
    common::INITIATORS_LIVE.store(true, Ordering::Relaxed);
    stopped.unwrap();
    world.context.go().unwrap();
    target.leave();
}

#[test]
fn what_is_posted_to_a_stopped_context_is_done_when_it_goes_on() {
    let _turn = turn();
    let world = World::new();
    let memory = words(2);
    let (qp, mr) = (world.qp(QpType::Rc), world.register(&memory));
    world.connect(&qp, qp.qp_num(), 1);
    memory[0].store(7, Ordering::Relaxed);
    world.context.stop(None).unwrap();
    // As many receives as the queue has room for, and no more.
    let sges = [Sge { addr: memory[0].as_ptr() as u64, length: 8, lkey: mr.lkey() }];
    let receive = |wr_id| qp.post_recv(wr_id, &sges);
    for _ in 0..64 {
        write(&qp, &mr, &memory[0], &memory[1]);
    }
    assert!(qp.post_send(|poster| poster.push(&SendRequest::default())).is_err(), "the queue is full");
    receive(5).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < A_WHILE {
        assert_eq!((poll(&world.cq, 1).len(), memory[1].load(Ordering::SeqCst)), (0, 0));
    }
    // Operations of the program on its own objects are allowed all the same.
    let idle = world.qp(QpType::Rc);
    world.connect(&idle, idle.qp_num(), 1);
    write(&idle, &mr, &memory[0], &memory[1]);
    idle.destroy().unwrap();
    world.register(&memory).deregister().unwrap();
    world.context.go().unwrap();
    for _ in 0..64 {
        assert_eq!(completion(&world.cq).status, Status::Success.to_verbs());
    }
    assert_eq!(memory[1].load(Ordering::SeqCst), 7);
}

#[test]
fn a_stopped_peer_is_no_silent_peer_and_does_nothing() {
    let _turn = turn();
    let (here, there) = (World::new(), World::new());
    let memory = words(2);
    let mine = here.register(&memory);
    let theirs = there.register(&memory);
    let (from, to) = (here.qp(QpType::Rc), there.qp(QpType::Rc));
    // Some 8 µs, and no retry.
    here.connect(&from, to.qp_num(), 1);
    there.connect(&to, from.qp_num(), 1);
    let post = || {
        let sges = [Sge { addr: memory[0].as_ptr() as u64, length: 8, lkey: mine.lkey() }];
        let (remote_addr, rkey) = (memory[1].as_ptr() as u64, theirs.rkey());
        let (opcode, data) = (Opcode::Write, Data::Sges(&sges));
        from.post_send(|poster| poster.push(&SendRequest { opcode, remote_addr, rkey, data, ..Default::default() }))
            .unwrap();
    };
    memory[0].store(3, Ordering::Relaxed);
    there.context.stop(None).unwrap();
    post();
    let begin = Instant::now();
    while begin.elapsed() < A_WHILE {
        assert_eq!((poll(&here.cq, 1).len(), memory[1].load(Ordering::SeqCst)), (0, 0));
    }
    there.context.go().unwrap();
    assert_eq!((completion(&here.cq).status, memory[1].load(Ordering::SeqCst)), (Status::Success.to_verbs(), 3));
    // Nor does anything come from one that is stopped.
    memory[0].store(4, Ordering::Relaxed);
    here.context.stop(None).unwrap();
    post();
    let begin = Instant::now();
    while begin.elapsed() < A_WHILE {
        assert_eq!((poll(&here.cq, 1).len(), memory[1].load(Ordering::SeqCst)), (0, 3));
    }
    here.context.go().unwrap();
    assert_eq!((completion(&here.cq).status, memory[1].load(Ordering::SeqCst)), (Status::Success.to_verbs(), 4));
    // Nor at once, when nothing waits before it.
    let data = Sge { addr: memory[0].as_ptr() as u64, length: 8, lkey: mine.lkey() };
    let now = Write { data, remote: (memory[1].as_ptr() as u64, theirs.rkey()) };
    let at_once = || from.post_send(|poster| poster.fast(Opcode::Write, &now));
    memory[0].store(5, Ordering::Relaxed);
    for stopped in [&here, &there] {
        stopped.context.stop(None).unwrap();
        assert!(!at_once());
        assert_eq!(memory[1].load(Ordering::SeqCst), 4);
        stopped.context.go().unwrap();
    }
    assert!(at_once());
    assert_eq!((completion(&here.cq).status, memory[1].load(Ordering::SeqCst)), (Status::Success.to_verbs(), 5));
    // One that is destroyed meanwhile is silent, and will be.
    there.context.stop(None).unwrap();
    post();
    to.destroy().unwrap();
    assert_eq!(completion(&here.cq).status, Status::RetryExceeded.to_verbs());
    there.context.go().unwrap();
}

#[test]
fn time_that_a_qp_stands_does_not_count_against_its_peer() {
    let _turn = turn();
    let world = World::new();
    let memory = words(2);
    let (qp, mr) = (world.qp(QpType::Rc), world.register(&memory));
    // A QP that there is not, for half a second.
    world.connect(&qp, qp.qp_num() + 1, 17);
    write(&qp, &mr, &memory[0], &memory[1]);
    let own = &process().own;
    let offset = own.qp(qp.qp_num()).unwrap().switch.load(Ordering::Relaxed);
    let stood = &own.view.get::<Switch>(offset).unwrap().stood;
    // Longer than is looked, and shorter than the host has been up: what has stood for longer is nobody.
    const STOOD: u64 = 5 * 1_000_000_000;
    stood.fetch_add(STOOD, Ordering::SeqCst);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(800) {
        assert_eq!(poll(&world.cq, 1).len(), 0);
    }
    stood.fetch_sub(STOOD, Ordering::SeqCst);
    assert_eq!(completion(&world.cq).status, Status::RetryExceeded.to_verbs());
}

#[test]
fn datagrams_to_a_stopped_qp_arrive_when_it_goes_on() {
    let _turn = turn();
    let (here, there) = (World::new(), World::new());
    let memory = words(64);
    let mine = here.register(&memory);
    let theirs = there.register(&memory);
    let (from, to, third) = (here.qp(QpType::Ud), there.qp(QpType::Ud), here.qp(QpType::Ud));
    for (world, qp) in [(&here, &from), (&there, &to), (&here, &third)] {
        let init = QpAttr { qp_state: QpState::Init, port_num: 1, qkey: 5, ..QpAttr::default() };
        qp.modify(&init, attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::QKEY).unwrap();
        qp.modify(&QpAttr { qp_state: QpState::Rtr, ..init }, attr::STATE).unwrap();
        qp.modify(&QpAttr { qp_state: QpState::Rts, ..init }, attr::STATE | attr::SQ_PSN).unwrap();
        let lkey = if Arc::ptr_eq(&world.cq, &there.cq) { theirs.lkey() } else { mine.lkey() };
        for wr_id in 0..8 {
            qp.post_recv(wr_id, &[Sge { addr: memory[8].as_ptr() as u64, length: 48, lkey }]).unwrap();
        }
    }
    let ah = Ah::create(&here.pd, &here.ah()).unwrap();
    let post = |to: &Qp, imm: u32| {
        let ud = Some(UdDest { ah: &ah, qpn: to.qp_num(), qkey: 5 });
        let sges = [Sge { addr: memory[0].as_ptr() as u64, length: 8, lkey: mine.lkey() }];
        let (opcode, data) = (Opcode::SendImm, Data::Sges(&sges));
        from.post_send(|p| p.push(&SendRequest { opcode, imm_or_rkey: imm, data, ud, ..Default::default() })).unwrap();
    };
    there.context.stop(None).unwrap();
    (0..4).for_each(|imm| post(&to, imm));
    post(&third, 9);
    // All have left, and the one to another QP has come.
    let mut arrived = Vec::new();
    for _ in 0..6 {
        let c = completion(&here.cq);
        assert_eq!(c.status, Status::Success.to_verbs());
        arrived.extend((c.opcode == wc::OP_RECV).then_some(c.imm_or_rkey));
    }
    assert_eq!(arrived, [9]);
    // Longer than a message waits for who is no longer stopped.
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(poll(&there.cq, 8).len(), 0);
    there.context.go().unwrap();
    let came: Vec<u32> = (0..4).map(|_| completion(&there.cq).imm_or_rkey).collect();
    assert_eq!(came, [0, 1, 2, 3]);
}

#[test]
fn an_owner_leaves_requests_for_a_stopped_qp_until_it_goes_on() {
    let _turn = turn();
    let world = World::new();
    let memory = words(1);
    let mr = world.register(&memory);
    let qp = receiver(&world.context, &world.pd, &world.cq, None, 1);
    let target = bind(&qp, foreign(1));
    let r = &target.lane.request;
    world.context.stop(None).unwrap();
    r.op.store(request::FETCH_ADD, Ordering::Relaxed);
    r.key.store(mr.rkey(), Ordering::Relaxed);
    r.addr.store(memory[0].as_ptr() as u64, Ordering::Relaxed);
    r.len.store(8, Ordering::Relaxed);
    r.compare.store(5, Ordering::Relaxed);
    r.state.store(request::POSTED, Ordering::SeqCst);
    process().own.raise(target.lane.attention.load(Ordering::Relaxed));
    std::thread::sleep(A_WHILE);
    assert_eq!((r.state.load(Ordering::SeqCst), memory[0].load(Ordering::SeqCst)), (request::POSTED, 0));
    // It is the initiator's to take back until then.
    assert!(!target.withdraw());
    assert_eq!(r.state.load(Ordering::SeqCst), request::IDLE);
    r.state.store(request::POSTED, Ordering::SeqCst);
    process().own.raise(target.lane.attention.load(Ordering::Relaxed));
    std::thread::sleep(A_WHILE);
    world.context.go().unwrap();
    until("the owner's answer", || r.state.load(Ordering::SeqCst) == request::DONE);
    assert_eq!((r.status.load(Ordering::SeqCst), memory[0].load(Ordering::SeqCst)), (0, 5));
}

#[test]
fn what_a_peer_has_done_before_is_seen_to_when_the_stop_is_over() {
    let _turn = turn();
    let world = World::new();
    let qp = receiver(&world.context, &world.pd, &world.cq, None, 4);
    (0..3).for_each(|wr_id| qp.post_recv(wr_id, &[]).unwrap());
    bind(&qp, foreign(1)).fail(Some(event::QP_ACCESS_ERR));
    world.context.stop(None).unwrap();
    let flushed: Vec<u64> = poll(&world.cq, 8).iter().map(|c| c.wr_id).collect();
    assert_eq!(flushed, [0, 1, 2]);
    world.context.go().unwrap();
}

/// Threads that post all the time, and stops at moments that nobody has chosen: memory and completions stand still
/// between each stop and its end, and nothing is lost or done twice.
#[test]
fn nothing_moves_while_it_is_stopped() {
    const THREADS: usize = 3;
    let _turn = turn();
    let world = World::new();
    let is_over = AtomicBool::new(false);
    let memory = words(2 * THREADS);
    let mr = world.register(&memory);
    let qps: Vec<_> = (0..THREADS)
        .map(|_| {
            let own = World { cq: World::new().cq, context: Arc::clone(&world.context), pd: Arc::clone(&world.pd) };
            let qp = own.qp(QpType::Rc);
            own.connect(&qp, qp.qp_num(), 1);
            (qp, own.cq)
        })
        .collect();
    let add = |qp: &Qp, place: &[AtomicU64]| {
        let sges = [Sge { addr: place[0].as_ptr() as u64, length: 8, lkey: mr.lkey() }];
        let (remote_addr, rkey) = (place[1].as_ptr() as u64, mr.rkey());
        let (opcode, data) = (Opcode::FetchAdd, Data::Sges(&sges));
        let request = SendRequest { opcode, remote_addr, rkey, compare_add: 1, data, ..Default::default() };
        qp.post_send(|poster| poster.push(&request)).is_ok()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = qps
            .iter()
            .zip(memory.chunks(2))
            .map(|((qp, cq), place)| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let (mut posted, mut completed) = (0, 0);
                    while !is_over.load(Ordering::Relaxed) || completed < posted {
                        if !is_over.load(Ordering::Relaxed) && posted - completed < 32 {
                            posted += u64::from(add(qp, place));
                        }
                        for c in poll(cq, 16) {
                            assert_eq!(c.status, Status::Success.to_verbs());
                            completed += 1;
                        }
                    }
                    assert_eq!(place[1].load(Ordering::SeqCst), posted, "each is done once");
                })
            })
            .collect();
        let mut random = Random(22);
        let mut seen = 0;
        for round in 0..150 {
            let now = || memory.iter().map(|word| word.load(Ordering::SeqCst)).collect::<Vec<_>>();
            let process_too = round % 5 == 0;
            if process_too { process().stop_all(None) } else { world.context.stop(None) }.unwrap();
            let before = now();
            std::thread::sleep(Duration::from_micros(random.below(500)));
            assert_eq!(now(), before);
            seen += usize::from(before.iter().any(|word| *word > 0));
            if process_too { process().go_all() } else { world.context.go() }.unwrap();
            std::thread::sleep(Duration::from_micros(random.below(500)));
        }
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(seen > 0, "nobody got anywhere");
    });
}

/// A thread that sends long messages to a context that goes on: when the one that it sends from is stopped, its piece
/// is over.
#[test]
fn who_sends_has_ended_the_piece_in_hand() {
    /// Words of a message of 256 KiB, which one call moves.
    const WORDS: usize = 32 << 10;
    let _turn = turn();
    let (here, there) = (World::new(), World::new());
    let (source, target) = (words(WORDS), words(WORDS));
    let (mine, theirs) = (here.register(&source), there.register(&target));
    let (from, to) = (here.qp(QpType::Rc), there.qp(QpType::Rc));
    here.connect(&from, to.qp_num(), 1);
    there.connect(&to, from.qp_num(), 1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut n = 0;
            while !is_over.load(Ordering::Relaxed) {
                n += 1;
                // The last word is stored last.
                source[WORDS - 1].store(n, Ordering::Relaxed);
                let sges = [Sge { addr: source.as_ptr() as u64, length: 8 * WORDS as u32, lkey: mine.lkey() }];
                let (remote_addr, rkey) = (target.as_ptr() as u64, theirs.rkey());
                let (opcode, data) = (Opcode::Write, Data::Sges(&sges));
                let request = SendRequest { opcode, remote_addr, rkey, data, ..Default::default() };
                from.post_send(|poster| poster.push(&request)).unwrap();
                assert_eq!(completion(&here.cq).status, Status::Success.to_verbs());
            }
            n
        });
        let mut random = Random(7);
        for _ in 0..200 {
            here.context.stop(None).unwrap();
            let before = target[WORDS - 1].load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(300));
            assert_eq!(target[WORDS - 1].load(Ordering::SeqCst), before);
            here.context.go().unwrap();
            std::thread::sleep(Duration::from_micros(random.below(300)));
        }
        is_over.store(true, Ordering::Relaxed);
        let n = sender.join().unwrap();
        assert!(n > 1 && target[WORDS - 1].load(Ordering::SeqCst) == n);
    });
}
