//! Completion queues: several lanes and the process's own completions merged, lanes that go hot and cool, overrun;
//! against a model, and with threads that try to get past the poller unseen.

mod common;

use common::{Random, TURN, bind, context, foreign, poll, process, publish, receiver};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vervain_hca::Nak;
use vervain_hca::responder::Responder;
use vervain_hca::{Context, Cq, Pd, Qp, QpAttr, QpState, Srq, SrqInit, Status, attr, event};

/// More than are kept hot.
const LANES: usize = 11;
/// Empty polls until every hot lane is cool again.
const COOL: usize = 300;

#[derive(Clone, Debug)]
enum Op {
    /// Messages into one lane.
    Receive(usize, u8),
    /// A completion of the process's own.
    Own,
    Poll(usize),
    /// Polls without a completion, so that lanes cool.
    Idle,
    /// To ERR and back: what was published moves into the own queue.
    Reset(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        40 => (0..LANES, 1u8..6).prop_map(|(lane, n)| Op::Receive(lane, n)),
        10 => Just(Op::Own),
        30 => prop_oneof![Just(1usize), 1usize..8, Just(64)].prop_map(Op::Poll),
        4 => Just(Op::Idle),
        2 => (0..LANES).prop_map(Op::Reset),
    ]
}

struct Side {
    qp: Arc<Qp>,
    target: Responder,
    sent: VecDeque<u32>,
    posted: VecDeque<u64>,
}

struct Case {
    context: Arc<Context>,
    cq: Arc<Cq>,
    sides: Vec<Side>,
    /// A QP in ERR: its receives complete at once, as the process's own completions.
    broken: Arc<Qp>,
    own: VecDeque<u64>,
    waiting: usize,
    next: u32,
}

const DEPTH: u32 = 8;
const CAPACITY: u32 = 63;
/// Without progress for this long there is none to come.
const LIMIT: Duration = Duration::from_secs(20);

impl Case {
    fn new(context: &Arc<Context>, pd: &Arc<Pd>) -> Case {
        let cq = Cq::create(context, CAPACITY, None, 0, 0, false, false).unwrap();
        let sides = (0..LANES)
            .map(|i| {
                let qp = receiver(context, pd, &cq, None, DEPTH);
                let target = bind(&qp, foreign(1 + i as u32));
                Side { qp, target, sent: VecDeque::new(), posted: VecDeque::new() }
            })
            .collect();
        let broken = receiver(context, pd, &cq, None, 64);
        broken.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, attr::STATE).unwrap();
        let (context, own) = (Arc::clone(context), VecDeque::new());
        Case { context, cq, sides, broken, own, waiting: 0, next: 1 }
    }

    fn take(&mut self, max: usize) {
        let got = poll(&self.cq, max);
        assert_eq!(got.len(), max.min(self.waiting), "a completion was not found, or came twice");
        self.waiting -= got.len();
        for c in got {
            if c.qp_num == self.broken.qp_num() {
                assert_eq!((Some(c.wr_id), c.status), (self.own.pop_front(), Status::Flushed.to_verbs()));
                continue;
            }
            let side = self.sides.iter_mut().find(|s| s.qp.qp_num() == c.qp_num).expect("the QP of a completion");
            assert_eq!((Some(c.wr_id), Some(c.imm_or_rkey)), (side.posted.pop_front(), side.sent.pop_front()));
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Receive(lane, n) => {
                for _ in 0..n {
                    let side = &mut self.sides[lane];
                    if self.waiting == CAPACITY as usize || side.posted.len() == DEPTH as usize {
                        return;
                    }
                    let (id, imm) = (u64::from(self.next) << 8, self.next);
                    self.next += 1;
                    side.qp.post_recv(id, &[]).unwrap();
                    let mark = common::enter(&side.target);
                    let wqe = side.target.claim().unwrap();
                    publish(&side.target, wqe, imm);
                    drop(mark);
                    side.posted.push_back(id);
                    side.sent.push_back(imm);
                    self.waiting += 1;
                }
            }
            Op::Own => {
                if self.waiting < CAPACITY as usize {
                    self.next += 1;
                    self.broken.post_recv(u64::from(self.next), &[]).unwrap();
                    self.own.push_back(u64::from(self.next));
                    self.waiting += 1;
                }
            }
            Op::Poll(max) => self.take(max),
            Op::Idle => {
                self.take(self.waiting);
                (0..COOL).for_each(|_| self.take(1));
            }
            Op::Reset(lane) => {
                // Completions that came before the error are kept in order; a reset drops those that were not polled.
                self.sides[lane]
                    .qp
                    .modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, attr::STATE)
                    .unwrap();
                self.take(self.waiting);
                let side = &mut self.sides[lane];
                side.target.release();
                side.qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();
                common::to_rtr(&self.context, &side.qp);
                self.next += 1;
                side.target = bind(&side.qp, foreign(100 + self.next));
            }
        }
    }

    fn finish(mut self) {
        self.take(self.waiting + 1);
        assert!(!self.cq.failed(), "it never held more than fits");
        for side in &self.sides {
            side.qp.destroy().unwrap();
        }
        self.broken.destroy().unwrap();
        self.cq.destroy().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 120,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]
    #[test]
    fn every_completion_is_polled_once_and_in_the_order_of_its_qp(ops in prop::collection::vec(op(), 1..120)) {
        let context = context();
        let pd = context.alloc_pd().unwrap();
        let mut case = Case::new(&context, &pd);
        ops.iter().for_each(|op| case.step(op));
        case.finish();
    }

    #[test]
    fn a_cq_overruns_with_one_completion_more_than_fits(cqe in 1u32..40, own in 0u32..60, ignore: bool) {
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let context = context();
        let pd = context.alloc_pd().unwrap();
        let cq = Cq::create(&context, cqe, None, 0, 5, ignore, false).unwrap();
        let fits = cq.cqe();
        let own = own.min(fits);
        let qp = receiver(&context, &pd, &cq, None, 64);
        let broken = receiver(&context, &pd, &cq, None, 64);
        broken.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, attr::STATE).unwrap();
        let target = bind(&qp, foreign(1));
        (0..own).for_each(|i| broken.post_recv(u64::from(i), &[]).unwrap());
        let send = || {
            qp.post_recv(0, &[]).unwrap();
            publish(&target, target.claim().unwrap(), 0);
        };
        (own..fits).for_each(|_| send());
        std::thread::sleep(Duration::from_micros(200));
        prop_assert!(!cq.failed());
        send();
        if ignore {
            std::thread::sleep(Duration::from_millis(1));
            prop_assert!(!cq.failed());
            prop_assert_eq!(poll(&cq, 200).len() as u32, fits + 1);
        } else {
            // The progress thread reports the error, to the QPs first.
            loop {
                let mut ready = libc::pollfd { fd: context.async_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one descriptor, in a struct on this stack.
                prop_assert_eq!(unsafe { libc::poll(&raw mut ready, 1, 10_000) }, 1, "no event came");
                let raised = context.next_event().unwrap().event_type;
                prop_assert_eq!(qp.state(), QpState::Err);
                if raised == event::CQ_ERR {
                    break;
                }
                prop_assert_eq!(raised, event::QP_FATAL);
            }
            prop_assert!(cq.failed());
        }
    }
}

/// Counts a thread out, also when it panics.
struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < LIMIT, "{what}");
    }
}

/// Producers that rest for about as long as a lane takes to cool, each waiting until its last message was seen: one
/// that goes unseen leaves its producer waiting for ever.
fn hunt(lanes: usize, seconds: f64) {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 255, None, 0, 0, false, false).unwrap();
    let qps: Vec<_> = (0..lanes).map(|_| receiver(&context, &pd, &cq, None, 4)).collect();
    let seen: Vec<AtomicU32> = (0..lanes).map(|_| AtomicU32::new(0)).collect();
    let stop = AtomicBool::new(false);
    let running = AtomicU32::new(2);
    qps.iter().for_each(|qp| qp.post_recv(0, &[]).unwrap());
    std::thread::scope(|s| {
        for thread in 0..2usize {
            let (qps, seen, stop, running) = (&qps, &seen, &stop, &running);
            s.spawn(move || {
                let _running = Running(running);
                let mut r = Random(99 + thread as u64);
                let mine: Vec<usize> = (0..qps.len()).filter(|i| i % 2 == thread % qps.len().min(2)).collect();
                let targets: Vec<Responder> = if mine.is_empty() || (qps.len() == 1 && thread == 1) {
                    Vec::new()
                } else {
                    mine.iter().map(|&i| bind(&qps[i], foreign(i as u32 + 1))).collect()
                };
                let mut sent = vec![0u32; targets.len()];
                while !stop.load(Ordering::Relaxed) && !targets.is_empty() {
                    let k = r.below(targets.len() as u64) as usize;
                    let pause = r.below(3);
                    let spins = r.below([10, 2_000, 40_000][pause as usize]);
                    (0..spins).for_each(|_| std::hint::spin_loop());
                    let mark = common::enter(&targets[k]);
                    let wqe = targets[k].claim().unwrap();
                    sent[k] += 1;
                    publish(&targets[k], wqe, sent[k]);
                    drop(mark);
                    until("a message was never found", || {
                        let found = seen[mine[k]].load(Ordering::Acquire) == sent[k];
                        if !found {
                            std::hint::spin_loop();
                        }
                        found
                    });
                }
            });
        }
        let by_number: HashMap<u32, usize> = qps.iter().enumerate().map(|(i, qp)| (qp.qp_num(), i)).collect();
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let mut n = 0u64;
        while running.load(Ordering::Acquire) > 0 {
            // On a busy machine it takes as long as it takes.
            if Instant::now() >= end && n > 100 {
                stop.store(true, Ordering::Relaxed);
            }
            for c in poll(&cq, 4) {
                let i = by_number[&c.qp_num];
                assert_eq!(c.imm_or_rkey, seen[i].load(Ordering::Relaxed) + 1);
                qps[i].post_recv(0, &[]).unwrap();
                seen[i].store(c.imm_or_rkey, Ordering::Release);
                n += 1;
            }
        }
    });
}

#[test]
fn no_lane_waits_behind_others_that_are_always_busy() {
    const BUSY: usize = 3 * LANES;
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, CAPACITY, None, 0, 0, false, false).unwrap();
    let lanes: Vec<_> = (0..BUSY)
        .map(|i| {
            let qp = receiver(&context, &pd, &cq, None, DEPTH);
            let target = bind(&qp, foreign(1 + i as u32));
            (qp, target)
        })
        .collect();
    let send = |lane: usize| {
        let (qp, target) = &lanes[lane];
        qp.post_recv(lane as u64, &[]).unwrap();
        let _mark = common::enter(target);
        publish(target, target.claim().unwrap(), 0);
    };
    (0..BUSY).for_each(send);
    let mut polled = [0; BUSY];
    for _ in 0..24 * BUSY {
        let lane = poll(&cq, 1)[0].wr_id as usize;
        polled[lane] += 1;
        send(lane);
    }
    assert!(polled.iter().all(|&n| n >= 8), "{polled:?}");
}

#[test]
fn no_message_slips_past_a_lane_that_cools() {
    hunt(1, 1.5);
    hunt(3, 1.5);
    hunt(12, 1.5);
}

/// Initiators on one SRQ, some of which die between claim and publication, while the owner polls and posts again.
#[test]
fn each_receive_of_a_shared_queue_completes_once_whoever_dies() {
    const MESSAGES: u32 = 20_000;
    const CLAIMERS: usize = 3;
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 1023, None, 0, 0, false, false).unwrap();
    let init = SrqInit { max_wr: 16, max_sge: 1, cookie: 0, xrc: None };
    let srq = Srq::create(&context, &pd, &init).unwrap();
    let qps: Vec<_> = (0..CLAIMERS).map(|_| receiver(&context, &pd, &cq, Some(&srq), 0)).collect();
    let next_id = AtomicU64::new(16);
    (0..16).for_each(|id| srq.post_recv(id, &[]).unwrap());
    let (lost, sent) = (AtomicU32::new(0), AtomicU32::new(0));
    let running = AtomicU32::new(CLAIMERS as u32);
    let mut outstanding: std::collections::HashSet<u64> = (0..16).collect();
    std::thread::scope(|s| {
        for (i, qp) in qps.iter().enumerate() {
            let (lost, sent, running) = (&lost, &sent, &running);
            s.spawn(move || {
                let _running = Running(running);
                let mut r = Random(5 + i as u64);
                // Each initiator has a process slot of its own, so that only it is reaped.
                let slot = |life: u32| (500 + i as u32) << 14 | life;
                let mut life = 1;
                let mut target = bind(qp, slot(life));
                let (mut count, mut progress) = (0, Instant::now());
                while count < MESSAGES {
                    let mark = common::enter(&target);
                    let wqe = match target.claim() {
                        Ok(wqe) => wqe,
                        Err(Nak::ReceiverNotReady(_)) => {
                            drop(mark);
                            assert!(progress.elapsed() < LIMIT, "the owner posts no more");
                            std::thread::yield_now();
                            continue;
                        }
                        Err(e) => panic!("{e:?}"),
                    };
                    (count, progress) = (count + 1, Instant::now());
                    if r.below(200) == 0 {
                        // Dies here; its process is found dead, and another initiator comes.
                        lost.fetch_add(1, Ordering::Relaxed);
                        drop(mark);
                        process().lanes.reap(&[500 + i as u32]);
                        life += 1;
                        target = bind(qp, slot(life));
                        continue;
                    }
                    publish(&target, wqe, count);
                    sent.fetch_add(1, Ordering::Relaxed);
                    drop(mark);
                }
            });
        }
        let mut last: HashMap<u32, u32> = HashMap::new();
        let (mut got, mut flushed, mut progress) = (0u32, 0u32, Instant::now());
        loop {
            let ended = running.load(Ordering::Acquire) == 0;
            let polled = poll(&cq, 7);
            if ended && polled.is_empty() {
                break;
            }
            assert!(progress.elapsed() < LIMIT, "{got} of {} came", sent.load(Ordering::Relaxed));
            for c in polled {
                progress = Instant::now();
                assert!(outstanding.remove(&c.wr_id), "receive {} completed twice", c.wr_id);
                if c.status == Status::Success.to_verbs() {
                    let before = last.insert(c.qp_num, c.imm_or_rkey).unwrap_or(0);
                    assert!(c.imm_or_rkey > before, "out of order");
                    got += 1;
                } else {
                    assert_eq!(c.status, Status::Flushed.to_verbs());
                    flushed += 1;
                }
                let id = next_id.fetch_add(1, Ordering::Relaxed);
                srq.post_recv(id, &[]).expect("a polled receive leaves room for another");
                outstanding.insert(id);
            }
        }
        assert_eq!((got, flushed), (sent.load(Ordering::Relaxed), lost.load(Ordering::Relaxed)));
        assert_eq!(outstanding.len(), 16);
        assert!(srq.post_recv(0, &[]).is_err(), "all receives are outstanding again");
    });
}

/// Has the calling thread run on one CPU.
fn pin(cpu: usize) {
    // SAFETY: a set of bits, and a local.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// The number of messages sent, in the test below.
static SENT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// True if one was sent while the CPU of this thread was lent.
    static SENT_WHILE_LENT: Cell<bool> = const { Cell::new(false) };
}

/// sched_yield(2), by which a poll lends its CPU: in place of libc's, to know what happens meanwhile.
#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> libc::c_int {
    let before = SENT.load(Ordering::Acquire);
    // SAFETY: without arguments.
    let answer = unsafe { libc::syscall(libc::SYS_sched_yield) };
    if SENT.load(Ordering::Acquire) != before {
        SENT_WHILE_LENT.set(true);
    }
    answer as libc::c_int
}

/// Two threads of one CPU, of which the second completes something while a poll of the first lends it the CPU: that
/// poll must return it. The next event for the program may be that the peer has gone, and then it counts completions as
/// lost that it has not seen.
#[test]
fn a_poll_that_lends_its_cpu_tells_of_what_came_meanwhile() {
    /// Messages, and polls that are to have lent the CPU for one: on a busy machine others lose it to the tick, and are
    /// told no more than any.
    const MOST: u32 = 20_000;
    const LENT: u32 = 100;
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 255, None, 0, 0, false, false).unwrap();
    let qp = receiver(&context, &pd, &cq, None, 4);
    let target = bind(&qp, foreign(1));
    let (round, is_polling, is_over) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
    // SAFETY: without arguments.
    let cpu = unsafe { libc::sched_getcpu() } as usize;
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(cpu);
            for n in 1.. {
                while round.load(Ordering::Acquire) < n || !is_polling.load(Ordering::Acquire) {
                    if is_over.load(Ordering::Acquire) {
                        return;
                    }
                    std::thread::yield_now();
                }
                let _mark = common::enter(&target);
                publish(&target, target.claim().unwrap(), n);
                SENT.store(n, Ordering::Release);
            }
        });
        let polls = s.spawn(|| {
            pin(cpu);
            let (mut lent, mut stale) = (0, 0);
            let mut n = 0;
            while n < MOST && lent < LENT {
                n += 1;
                qp.post_recv(u64::from(n), &[]).unwrap();
                round.store(n, Ordering::Release);
                until("a completion never came", || {
                    SENT_WHILE_LENT.set(false);
                    is_polling.store(true, Ordering::Release);
                    let got = poll(&cq, 1).len();
                    is_polling.store(false, Ordering::Release);
                    if SENT_WHILE_LENT.get() {
                        lent += 1;
                        stale += u32::from(got == 0);
                    }
                    got == 1
                });
            }
            is_over.store(true, Ordering::Release);
            (lent, stale)
        });
        let (lent, stale) = polls.join().unwrap();
        assert!(lent > 0, "no poll has lent its CPU");
        assert_eq!(stale, 0, "of {lent} polls so many told of nothing, and there was something");
    });
}
