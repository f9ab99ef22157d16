//! Receive queues against a simple model, and against many threads.

mod common;

use common::{foreign, process};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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

/// Receives that stay in the second ring while the first one has some.
const KEPT: usize = 16;

/// One ring as it should be.
#[derive(Default)]
struct ModelRing {
    /// Cookies not yet claimed, oldest first.
    waiting: VecDeque<u64>,
    /// Next position to be claimed.
    head: u64,
    /// Next position to be posted.
    tail: u64,
}

/// The state that the queue should have.
#[derive(Default)]
struct Model {
    /// Receives in the order of posting, and those used again.
    rings: [ModelRing; 2],
    /// A receive has come free.
    is_used_again: bool,
    /// Claimed cookies by WQE, with their claimers.
    claimed: BTreeMap<u32, (u64, u32)>,
    /// Ring, position and WQE of each stopped claimer.
    stopped: BTreeMap<u32, (usize, u64, u32)>,
}

impl Model {
    fn outstanding(&self) -> usize {
        self.waiting() + self.claimed.len()
    }

    fn waiting(&self) -> usize {
        self.rings.iter().map(|ring| ring.waiting.len()).sum()
    }

    /// The ring from which a receive is claimed next.
    fn next(&self) -> Option<usize> {
        let [first, again] = self.rings.each_ref().map(|ring| ring.waiting.len());
        let order = if again > KEPT || first == 0 { [1, 0] } else { [0, 1] };
        order.into_iter().find(|i| !self.rings[*i].waiting.is_empty())
    }

    /// `id` was posted to ring `i`.
    fn posted(&mut self, i: usize, id: u64) {
        self.rings[i].waiting.push_back(id);
        self.rings[i].tail += 1;
    }

    /// The next receive is claimed: its ring, position and cookie.
    fn claim(&mut self) -> Option<(usize, u64, u64)> {
        self.next().and_then(|i| self.claim_from(i))
    }

    fn claim_from(&mut self, i: usize) -> Option<(usize, u64, u64)> {
        let ring = &mut self.rings[i];
        ring.head += 1;
        Some((i, ring.head - 1, ring.waiting.pop_front()?))
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
    fn new(max_wr: u32, users: u32) -> Case {
        let rq = RecvQueue::create(process(), 1, max_wr, 1, false).unwrap();
        rq.users.store(users, Ordering::Relaxed);
        let shared = &rq.view.shared;
        let n = shared.mask.load(Ordering::Relaxed) as usize + 1;
        let ring = process().own.view.slice(shared.ring.load(Ordering::Relaxed), 2 * n).unwrap();
        let start = shared.tail.first.load(Ordering::Relaxed);
        let rings = [(); 2].map(|()| ModelRing { head: start, tail: start, ..ModelRing::default() });
        Case { rq, ring, model: Model { rings, ..Model::default() }, next_id: 1 }
    }

    /// The rings in which the queue has posted more than the model knows of.
    fn ring_posted_to(&self) -> Vec<usize> {
        let shared = &self.rq.view.shared;
        let tails = [&shared.tail.first, &shared.tail.again].map(|tail| tail.load(Ordering::Relaxed));
        (0..2).filter(|i| tails[*i] > self.model.rings[*i].tail).collect()
    }

    /// The one ring that a receive was posted to: the second only if several QPs share the queue and a receive has
    /// come free, which may be the one that is posted now.
    fn posted(&mut self, id: u64) {
        let [i] = self.ring_posted_to()[..] else { panic!("posted once") };
        let may_be_again = self.model.is_used_again && self.rq.users.load(Ordering::Relaxed) > 1;
        assert!(i == 0 || may_be_again, "in the order of posting");
        self.model.posted(i, id);
    }

    fn entry(&self, ring: usize, position: u64) -> &'static AtomicU64 {
        let n = self.ring.len() / 2;
        &self.ring[ring * n + (position as usize & (n - 1))]
    }

    fn wr_id(&self, wqe: u32) -> u64 {
        self.rq.wr_id(wqe).unwrap()
    }

    fn step(&mut self, op: &Op) {
        let shared = &self.rq.view.shared;
        let heads = [&shared.head.first, &shared.head.again].map(|head| head.load(Ordering::Relaxed));
        let m = &mut self.model;
        // The heads are not helped past stopped claimers yet, nor past those that died while they were stopped.
        let lags = heads != m.rings.each_ref().map(|ring| ring.head);
        match *op {
            Op::Post => {
                let fits = m.outstanding() < self.rq.max_wr() as usize;
                let id = self.next_id;
                let posted = self.rq.post(id, &[]);
                assert_eq!(posted.is_ok(), fits, "capacity: {posted:?}");
                if fits {
                    self.posted(id);
                    self.next_id += 1;
                }
            }
            Op::Claim(c) if !m.stopped.contains_key(&c) => {
                let claimed = self.rq.view.claim(foreign(c));
                assert_eq!(claimed.is_some(), m.waiting() != 0, "a receive is there exactly when one was posted");
                if let Some(claimed) = claimed {
                    let id = self.rq.wr_id(claimed).unwrap();
                    let is_next = |i: &usize| m.rings[*i].waiting.front() == Some(&id);
                    let ring = (0..2).find(is_next).expect("receives are claimed in the order of their ring");
                    assert!(lags || Some(ring) == m.next(), "ring {ring}");
                    m.claim_from(ring);
                    let head = [&shared.head.first, &shared.head.again][ring].load(Ordering::Relaxed);
                    assert_eq!(head, m.rings[ring].head, "a claim moves its ring's head to itself");
                    assert!(m.claimed.insert(claimed, (id, c)).is_none(), "handed out twice");
                }
            }
            Op::Stop(c) if !m.stopped.contains_key(&c) => {
                let Some((ring, position, id)) = m.claim() else { return };
                let slot = self.entry(ring, position);
                let e = slot.load(Ordering::Acquire);
                assert_eq!((e >> 40, e & 0xff_ffff), (position & 0x7f_ffff | (ring as u64) << 23, 0));
                slot.store(e | u64::from(foreign(c)), Ordering::Release);
                let wqe = (e >> 24) as u32 & 0xffff;
                let m = &mut self.model;
                assert!(m.claimed.insert(wqe, (id, c)).is_none(), "handed out twice");
                m.stopped.insert(c, (ring, position, wqe));
                assert_eq!(self.wr_id(wqe), id);
            }
            Op::Resume(c) => {
                let Some((ring, position, wqe)) = m.stopped.remove(&c) else { return };
                let shared = &self.rq.view.shared;
                let head = [&shared.head.first, &shared.head.again][ring];
                let _ = head.compare_exchange(position, position + 1, Ordering::AcqRel, Ordering::Relaxed);
                self.rq.view.wqe(wqe).unwrap().claimer.store(foreign(c), Ordering::Release);
            }
            Op::Take(i) => {
                let mine: Vec<u32> =
                    m.claimed.keys().copied().filter(|w| m.stopped.values().all(|s| s.2 != *w)).collect();
                if mine.is_empty() {
                    return;
                }
                let wqe = mine[i % mine.len()];
                let (id, _) = m.claimed.remove(&wqe).unwrap();
                m.is_used_again = true;
                assert_eq!(self.rq.take(wqe, 9).map(|c| (c.wr_id, c.qp_num)), Some((id, 9)));
                assert!(self.rq.take(wqe, 9).is_none(), "taken twice");
            }
            Op::Reap(c) => {
                let mut got = self.rq.reap(foreign(c));
                let mut want: Vec<u64> = m.of(c).into_iter().map(|(_, id)| id).collect();
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "what a dead claimer held comes back, and nothing else");
                m.is_used_again |= !got.is_empty();
                m.claimed.retain(|_, (_, by)| *by != c);
                m.stopped.remove(&c);
            }
            Op::ReapAndRepost(c) => {
                self.rq.reap_and_repost(foreign(c));
                m.is_used_again = true;
                // Those that were claimed have been posted before.
                let i = usize::from(self.rq.users.load(Ordering::Relaxed) > 1);
                for (wqe, id) in m.of(c) {
                    m.claimed.remove(&wqe);
                    m.posted(i, id);
                }
                m.stopped.remove(&c);
                assert_eq!(self.ring_posted_to(), []);
            }
            Op::Flush => {
                let got = self.rq.flush();
                let of_rings = m.rings.iter_mut().rev().flat_map(|ring| ring.waiting.drain(..));
                let waiting: Vec<u64> = of_rings.collect();
                let flushed: Vec<u64> = got.iter().copied().filter(|id| waiting.contains(id)).collect();
                assert_eq!(flushed, waiting, "flushed in the order of their rings");
                let mut got = got;
                let mut want: Vec<u64> = waiting.into_iter().chain(m.claimed.values().map(|c| c.0)).collect();
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "every receive is flushed once");
                m.is_used_again |= !got.is_empty();
                m.claimed.clear();
                m.stopped.clear();
                m.rings.iter_mut().for_each(|ring| ring.head = ring.tail);
            }
            Op::Claim(_) | Op::Stop(_) => {}
        }
        // The heads lag by their rings at most.
        let (waiting, known) = (self.rq.waiting(), self.model.waiting() as u64);
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
    fn a_receive_queue_does_what_its_model_does(
        max_wr in prop_oneof![1u32..10, 18u32..40],
        users in 0u32..4,
        ops in prop::collection::vec(op(), 1..400),
    ) {
        let mut case = Case::new(max_wr, users);
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

/// Receives of `users` QPs' queue are posted once, and each again when its message has come: the number of those that
/// had a message, of `max_wr`.
fn used_of(max_wr: u32, users: u32, messages: u64) -> usize {
    let rq = RecvQueue::create(process(), 1, max_wr, 1, false).unwrap();
    rq.users.store(users, Ordering::Relaxed);
    (0..u64::from(max_wr)).for_each(|id| rq.post(id, &[]).unwrap());
    let mut used = BTreeSet::new();
    for n in 0..messages {
        let next = rq.view.fetch_next();
        let claimed = rq.view.claim(foreign(1));
        assert!(claimed.is_some() && next == claimed, "message {n}: fetched for {next:?}, and came to {claimed:?}");
        let id = claimed.and_then(|claimed| rq.take(claimed, 1)).unwrap().wr_id;
        assert!(users > 1 || id == n % u64::from(max_wr), "in the order of posting");
        used.insert(id);
        rq.post(id, &[]).unwrap();
    }
    used.len()
}

#[test]
fn receives_that_several_qps_share_are_used_again_soon() {
    assert_eq!(used_of(1000, 1, 5000), 1000);
    assert_eq!(used_of(1000, 2, 5000), KEPT + 1);
    // All of them are there for messages that come at once.
    let rq = RecvQueue::create(process(), 1, 100, 1, false).unwrap();
    rq.users.store(2, Ordering::Relaxed);
    (0..100).for_each(|id| rq.post(id, &[]).unwrap());
    (0..50).for_each(|_| {
        let id = rq.view.claim(foreign(1)).and_then(|claimed| rq.take(claimed, 1)).unwrap().wr_id;
        rq.post(id, &[]).unwrap();
    });
    assert_eq!(rq.view.waiting(), 100);
    let all: BTreeSet<u64> = (0..100).map(|_| rq.wr_id(rq.view.claim(foreign(1)).unwrap()).unwrap()).collect();
    assert_eq!((all.len(), rq.view.claim(foreign(1))), (100, None));
}
