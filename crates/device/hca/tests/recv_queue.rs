//! Receive queues against a simple model, and against many threads.

mod common;

use common::{foreign, process};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use vervain_hca::rq::RecvQueue;

#[derive(Clone, Debug)]
enum Op {
    Post,
    Claim(u32),
    /// The claimer is stopped between its exchange on the ring entry and its note in the WQE.
    Stop(u32),
    Resume(u32),
    Take(usize),
    Reap(u32),
    ReapAndRepost(u32),
    Flush,
}

const CLAIMERS: u32 = 4;

fn op() -> impl Strategy<Value = Op> {
    let claimer = 1..=CLAIMERS;
    prop_oneof![
        30 => Just(Op::Post),
        25 => claimer.clone().prop_map(Op::Claim),
        3 => claimer.clone().prop_map(Op::Stop),
        3 => claimer.clone().prop_map(Op::Resume),
        25 => any::<prop::sample::Index>().prop_map(|i| Op::Take(i.index(1 << 16))),
        3 => claimer.clone().prop_map(Op::Reap),
        3 => claimer.prop_map(Op::ReapAndRepost),
        1 => Just(Op::Flush),
    ]
}

/// The state that the queue should have.
#[derive(Default)]
struct Model {
    /// Cookies not yet claimed, oldest first.
    waiting: VecDeque<u64>,
    /// Claimed cookies by WQE, with their claimers.
    claimed: BTreeMap<u32, (u64, u32)>,
    /// Position and WQE of each stopped claimer.
    stopped: BTreeMap<u32, (u64, u32)>,
    /// Next position to be claimed, and to be posted.
    head: u64,
    tail: u64,
}

impl Model {
    fn outstanding(&self) -> usize {
        self.waiting.len() + self.claimed.len()
    }

    fn of(&self, claimer: u32) -> Vec<(u32, u64)> {
        self.claimed.iter().filter(|(_, (_, c))| *c == claimer).map(|(wqe, (id, _))| (*wqe, *id)).collect()
    }
}

struct Case {
    rq: RecvQueue,
    ring: &'static [AtomicU64],
    model: Model,
    next_id: u64,
}

impl Case {
    fn new(max_wr: u32) -> Case {
        let rq = RecvQueue::create(process(), 1, max_wr, 1, false).unwrap();
        let shared = &rq.view.shared;
        let n = shared.mask.load(Ordering::Relaxed) as usize + 1;
        let ring = process().own.view.slice(shared.ring.load(Ordering::Relaxed), n).unwrap();
        let start = shared.tail.load(Ordering::Relaxed);
        Case { rq, ring, model: Model { head: start, tail: start, ..Model::default() }, next_id: 1 }
    }

    fn wr_id(&self, wqe: u32) -> u64 {
        self.rq.wr_id(wqe).unwrap()
    }

    fn step(&mut self, op: &Op) {
        let m = &mut self.model;
        match *op {
            Op::Post => {
                let fits = m.outstanding() < self.rq.max_wr() as usize;
                let posted = self.rq.post(self.next_id, &[]);
                assert_eq!(posted.is_ok(), fits, "capacity: {posted:?}");
                if fits {
                    m.waiting.push_back(self.next_id);
                    m.tail += 1;
                    self.next_id += 1;
                }
            }
            Op::Claim(c) if !m.stopped.contains_key(&c) => {
                let claimed = self.rq.view.claim(foreign(c));
                assert_eq!(claimed.is_some(), !m.waiting.is_empty(), "a receive is there exactly when one was posted");
                if let (Some(claimed), Some(id)) = (claimed, m.waiting.pop_front()) {
                    m.head += 1;
                    assert_eq!(self.rq.view.waiting(), m.waiting.len() as u64);
                    assert!(m.claimed.insert(claimed, (id, c)).is_none(), "handed out twice");
                    assert_eq!(self.wr_id(claimed), id, "receives are claimed in the order of posting");
                }
            }
            Op::Stop(c) if !m.stopped.contains_key(&c) => {
                let Some(id) = m.waiting.pop_front() else { return };
                let slot = &self.ring[m.head as usize & (self.ring.len() - 1)];
                let e = slot.load(Ordering::Acquire);
                assert_eq!((e >> 40, e & 0xff_ffff), (m.head & 0xff_ffff, 0));
                slot.store(e | u64::from(foreign(c)), Ordering::Release);
                let wqe = (e >> 24) as u32 & 0xffff;
                assert!(m.claimed.insert(wqe, (id, c)).is_none(), "handed out twice");
                m.stopped.insert(c, (m.head, wqe));
                m.head += 1;
                assert_eq!(self.wr_id(wqe), id);
            }
            Op::Resume(c) => {
                let Some((position, wqe)) = m.stopped.remove(&c) else { return };
                let head = &self.rq.view.shared.head;
                let _ = head.compare_exchange(position, position + 1, Ordering::AcqRel, Ordering::Relaxed);
                self.rq.view.wqe(wqe).unwrap().claimer.store(foreign(c), Ordering::Release);
            }
            Op::Take(i) => {
                let mine: Vec<u32> =
                    m.claimed.keys().copied().filter(|w| m.stopped.values().all(|s| s.1 != *w)).collect();
                if mine.is_empty() {
                    return;
                }
                let wqe = mine[i % mine.len()];
                let (id, _) = m.claimed.remove(&wqe).unwrap();
                assert_eq!(self.rq.take(wqe, 9).map(|c| (c.wr_id, c.qp_num)), Some((id, 9)));
                assert!(self.rq.take(wqe, 9).is_none(), "taken twice");
            }
            Op::Reap(c) => {
                let mut got = self.rq.reap(foreign(c));
                let mut want: Vec<u64> = m.of(c).into_iter().map(|(_, id)| id).collect();
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "what a dead claimer held comes back, and nothing else");
                m.claimed.retain(|_, (_, by)| *by != c);
                m.stopped.remove(&c);
            }
            Op::ReapAndRepost(c) => {
                self.rq.reap_and_repost(foreign(c));
                for (wqe, id) in m.of(c) {
                    m.claimed.remove(&wqe);
                    m.waiting.push_back(id);
                    m.tail += 1;
                }
                m.stopped.remove(&c);
            }
            Op::Flush => {
                let got = self.rq.flush();
                let waiting: Vec<u64> = got.iter().copied().filter(|id| m.waiting.contains(id)).collect();
                assert_eq!(waiting, Vec::from(m.waiting.clone()), "flushed in the order of posting");
                let mut got = got;
                let mut want: Vec<u64> = m.waiting.drain(..).chain(m.claimed.values().map(|c| c.0)).collect();
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "every receive is flushed once");
                m.claimed.clear();
                m.stopped.clear();
                m.head = m.tail;
            }
            Op::Claim(_) | Op::Stop(_) => {}
        }
        // The head is not helped past stopped claimers yet, nor past those that died while they were stopped; it lags
        // by the ring at most.
        let (waiting, known) = (self.rq.waiting(), self.model.waiting.len() as u64);
        assert!((known..=known + self.ring.len() as u64).contains(&waiting), "{waiting} waiting, not {known}");
    }

    /// Everything comes out once, and the room for all of it is there again.
    fn finish(&mut self) {
        self.step(&Op::Flush);
        (0..self.rq.max_wr()).for_each(|_| self.step(&Op::Post));
        self.step(&Op::Post);
        (0..=self.rq.max_wr()).for_each(|_| self.step(&Op::Claim(1)));
        self.step(&Op::Reap(1));
        assert_eq!(self.model.outstanding(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]
    #[test]
    fn a_receive_queue_does_what_its_model_does(max_wr in 1u32..10, ops in prop::collection::vec(op(), 1..400)) {
        let mut case = Case::new(max_wr);
        ops.iter().for_each(|op| case.step(op));
        case.finish();
    }
}

#[test]
fn a_posted_receive_does_not_remember_who_had_it_a_lap_ago() {
    for max_wr in [1, 2, 4] {
        let rq = RecvQueue::create(process(), 1, max_wr, 1, false).unwrap();
        for id in 0..u64::from(max_wr) * 3 {
            rq.post(id, &[]).unwrap();
            let claimed = rq.view.claim(foreign(1)).unwrap();
            assert_eq!(rq.take(claimed, 1).map(|c| c.wr_id), Some(id));
        }
        (0..u64::from(max_wr)).for_each(|id| rq.post(100 + id, &[]).unwrap());
        assert_eq!(rq.reap(foreign(1)), [], "the dead claimer held nothing");
        (0..u64::from(max_wr)).for_each(|id| {
            let claimed = rq.view.claim(foreign(2)).unwrap();
            assert_eq!(rq.take(claimed, 1).map(|c| c.wr_id), Some(100 + id));
        });
    }
}

#[test]
fn positions_outlive_the_bits_that_an_entry_has_for_them() {
    // 24 bits; the unoptimised build would take half a minute.
    if cfg!(debug_assertions) {
        return;
    }
    let rq = RecvQueue::create(process(), 1, 3, 1, false).unwrap();
    rq.post(0, &[]).unwrap();
    for id in 1..(1 << 24) + 100u64 {
        rq.post(id, &[]).unwrap();
        let claimed = rq.view.claim(foreign(1)).unwrap();
        assert_eq!(rq.take(claimed, 1).map(|c| c.wr_id), Some(id - 1));
    }
}
