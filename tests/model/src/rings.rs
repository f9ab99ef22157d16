//! The rings of completions: who completes publishes, and the owner of the completion queue finds it, in a ring that each poll
//! looks at or by its ready bit. No completion is lost, none comes twice, and those of one ring come in order.

use crate::arena::layout::{CqShared, Lane};
use crate::check::check;
use crate::cq::completion::Source;
use crate::cq::recv_ring::{Deliveries, RecvRing};
use crate::cq::rings::Rings;
use crate::cq::send_ring::SendRing;
use crate::host::atomic::spin_loop;
use crate::host::barrier;
use crate::process::Process;
use crate::rq::{Receipt, RecvQueue, RqView};
use crate::thread;
use std::ops::Range;
use std::sync::Arc;
use vervain_iba::{Completion, Sge, Status};

/// The completion queue of the model, and what was polled from it: number of the ring and of the completion.
pub(crate) struct Queue {
    pub(crate) shared: &'static CqShared,
    pub(crate) rings: Rings,
    pub(crate) polled: Vec<(u32, u64)>,
}

impl Queue {
    /// A queue that looks at `most` rings in each poll, and makes room there for another after one look in vain.
    pub(crate) fn watching(process: &'static Process, most: usize) -> Queue {
        let shared = process.place();
        Queue { shared, rings: Rings::watching(shared, most, 0), polled: Vec::new() }
    }

    pub(crate) fn add_sends(&mut self, number: u32, slots: u32) -> Arc<SendRing> {
        let ring = Arc::new(SendRing::new(slots, number, self.rings.next_ready_bit(), false));
        self.rings.add(Source::Sends(Arc::clone(&ring)));
        ring
    }

    pub(crate) fn poll(&mut self, max: usize) -> usize {
        let polled = &mut self.polled;
        self.rings.poll(0, max, &mut |c| polled.push((c.qp_num, c.wr_id)), |_| ())
    }

    /// After all have completed: one poll finds what there is, and everything came once and in order.
    fn poll_the_rest(&mut self, of_each: &[(u32, u64)]) {
        self.poll(usize::MAX);
        assert_eq!(self.poll(usize::MAX), 0, "a poll has left something");
        for &(number, n) in of_each {
            let of_this: Vec<u64> = self.polled.iter().filter(|(ring, _)| *ring == number).map(|(_, id)| *id).collect();
            assert_eq!(of_this, (0..n).collect::<Vec<_>>(), "completions of ring {number}");
        }
    }
}

/// Completes requests `first..` of a send queue, each when its slot is free.
fn complete(ring: &SendRing, cq: &CqShared, slots: u32, ids: std::ops::Range<u32>) {
    for id in ids {
        while id - ring.freed() >= slots {
            spin_loop();
        }
        ring.push(cq, id.into(), Status::Success, 0, id, id + 1);
    }
}

/// A ring that each poll looks at, with fewer slots than there are completions.
pub fn a_watched_ring_loses_nothing(seeds: Range<u64>) {
    check("a watched ring", seeds, |process| {
        let mut queue = Queue::watching(process, 1);
        let (ring, cq) = (queue.add_sends(1, 2), queue.shared);
        let producer = thread::spawn(move || complete(&ring, cq, 2, 0..3));
        while queue.polled.len() < 2 {
            if queue.poll(1) == 0 {
                spin_loop();
            }
        }
        producer.join();
        queue.poll_the_rest(&[(1, 3)]);
    });
}

/// A ring that is found by its ready bit.
pub fn a_quiet_ring_loses_nothing(seeds: Range<u64>) {
    check("a quiet ring", seeds, |process| {
        let mut queue = Queue::watching(process, 0);
        let (ring, cq) = (queue.add_sends(1, 4), queue.shared);
        let producer = thread::spawn(move || complete(&ring, cq, 4, 0..3));
        for _ in 0..3 {
            queue.poll(1);
        }
        producer.join();
        queue.poll_the_rest(&[(1, 3)]);
    });
}

/// Two rings that take turns in being watched.
pub fn rings_that_change_places_lose_nothing(seeds: Range<u64>) {
    check("rings that change places", seeds, |process| {
        let mut queue = Queue::watching(process, 1);
        let (watched, quiet, cq) = (queue.add_sends(1, 2), queue.add_sends(2, 2), queue.shared);
        let producers = [
            thread::spawn(move || complete(&watched, cq, 2, 0..1)),
            thread::spawn(move || complete(&quiet, cq, 2, 0..2)),
        ];
        for _ in 0..3 {
            queue.poll(usize::MAX);
        }
        producers.into_iter().for_each(|producer| producer.join());
        queue.poll_the_rest(&[(1, 1), (2, 2)]);
    });
}

/// Two rings with one ready bit.
pub fn rings_with_one_ready_bit_lose_nothing(seeds: Range<u64>) {
    check("rings with one ready bit", seeds, |process| {
        let mut queue = Queue::watching(process, 0);
        let cq = queue.shared;
        let producers = [1, 2].map(|number| {
            let ring = Arc::new(SendRing::new(2, number, 0, false));
            queue.rings.add(Source::Sends(Arc::clone(&ring)));
            thread::spawn(move || complete(&ring, cq, 2, 0..1))
        });
        for _ in 0..2 {
            queue.poll(usize::MAX);
        }
        producers.into_iter().for_each(|producer| producer.join());
        queue.poll_the_rest(&[(1, 1), (2, 1)]);
    });
}

/// The receive ring of a lane, watched or found by its ready bit; its receives have one claimer or more. With more, each second
/// message stands in its completion, and there are more completions than CQEs.
fn delivered(seeds: Range<u64>, name: &str, exclusive: bool, watched: usize) {
    let (receives, at_once): (u64, u32) = if exclusive { (4, 2) } else { (6, 4) };
    check(name, seeds, move |process| {
        let mut queue = Queue::watching(process, watched);
        let cq = queue.shared;
        let lane: &'static Lane = process.place();
        let rq = Arc::new(RecvQueue::create(process, 1, at_once, 1, exclusive).unwrap());
        let post = |id: u64| rq.post(id, &[Sge { addr: buffer(id), length: 8, lkey: 1 }]);
        let (ring, held, cqes, held_cqes) = process.lane_rings(at_once as usize);
        let (cqes, held_cqes) = if exclusive { (None, None) } else { (Some(cqes), Some(held_cqes)) };
        queue.rings.add(Source::Receives(Arc::new(RecvRing::new(lane, ring, cqes, Arc::clone(&rq), 1, true, None))));
        let initiator = thread::spawn({
            let rq = rq.view.clone();
            move || {
                let mut inline = Vec::new();
                let (cqes, full_barrier) = (held_cqes.as_ref(), &!barrier::is_registered());
                let deliveries = Deliveries { lane, ring: &held, cqes, cq, full_barrier };
                for id in 0..receives {
                    let index = claim(&rq, id);
                    let receipt = Receipt { byte_len: id as u32, ..Receipt::default() };
                    let message = (id % 2 == 1 && deliveries.has_cqe()).then_some([!id as u32; 7]);
                    inline.extend(message.map(|[word, ..]| (buffer(id), word)));
                    deliveries.push(&rq, index, rq.wqe(index).unwrap(), &receipt, message.as_ref());
                }
                inline
            }
        });
        let mut lengths = Vec::new();
        let mut posted = 0;
        while lengths.len() < receives as usize - 1 {
            if posted < receives && post(posted).is_ok() {
                posted += 1;
            }
            let polled = &mut queue.polled;
            let mut sink = |c: &Completion| {
                polled.push((1, c.wr_id));
                lengths.push(u64::from(c.byte_len));
            };
            if queue.rings.poll(0, 1, &mut sink, |_| ()) == 0 {
                spin_loop();
            }
        }
        while posted < receives {
            post(posted).unwrap();
            posted += 1;
        }
        let inline = initiator.join();
        queue.poll_the_rest(&[(1, receives)]);
        assert!(lengths.into_iter().eq(0..receives - 1), "what completions say");
        assert_eq!(process.keys.take_scattered(), inline, "messages that came in completions");
    });
}

/// Where the buffer of receive `id` is.
fn buffer(id: u64) -> u64 {
    id << 12
}

/// Claims receive `id`, once it is posted: its WQE.
fn claim(rq: &RqView, id: u64) -> u32 {
    loop {
        if let Some(index) = rq.claim(5) {
            let [sge] = rq.sges(index).expect("a WQE") else { panic!("a receive without its buffer") };
            assert_eq!(RqView::sge(sge).addr, buffer(id), "the buffer of a claimed receive");
            return index;
        }
        spin_loop();
    }
}

/// A message completes, and then its answer comes, again and again; polls for one completion, two, or all. The receives are in a
/// ring that each poll looks at, the sends in one that is found by its ready bit.
pub fn an_answer_is_found_behind_its_message(seeds: Range<u64>) {
    const MESSAGES: u32 = 4;
    check("answers", seeds, |process| {
        let mut queue = Queue::watching(process, 1);
        let cq = queue.shared;
        let lane: &'static Lane = process.place();
        let rq = Arc::new(RecvQueue::create(process, 1, MESSAGES, 1, true).unwrap());
        let sends = Arc::new(SendRing::new(MESSAGES, 2, queue.rings.next_ready_bit(), false));
        let (ring, held, _, _) = process.lane_rings(MESSAGES as usize);
        let receives = RecvRing::new(lane, ring, None, Arc::clone(&rq), 1, false, Some(Arc::clone(&sends)));
        queue.rings.add(Source::Receives(Arc::new(receives)));
        queue.rings.add(Source::Sends(Arc::clone(&sends)));
        for id in 0..u64::from(MESSAGES) {
            rq.post(id, &[Sge { addr: buffer(id), length: 8, lkey: 1 }]).unwrap();
        }
        let peer = thread::spawn({
            let rq = rq.view.clone();
            move || {
                let deliveries =
                    Deliveries { lane, ring: &held, cqes: None, cq, full_barrier: &!barrier::is_registered() };
                for id in 0..MESSAGES {
                    sends.push(cq, id.into(), Status::Success, 0, 8, 1);
                    let index = claim(&rq, id.into());
                    deliveries.push(&rq, index, rq.wqe(index).unwrap(), &Receipt::default(), None);
                }
            }
        });
        let (mut sent, mut answered) = (0, 0);
        for max in [1, 2, usize::MAX].into_iter().cycle() {
            let mut sink = |c: &Completion| match c.qp_num {
                2 => sent += 1,
                _ => {
                    answered += 1;
                    assert!(answered <= sent, "answer {answered} after {sent} completions");
                }
            };
            if queue.rings.poll(0, max, &mut sink, |_| ()) == 0 {
                spin_loop();
            }
            if answered == MESSAGES {
                break;
            }
        }
        peer.join();
        assert_eq!(sent, MESSAGES);
    });
}

/// A lane into a queue with several claimers, watched.
pub fn a_watched_lane_loses_nothing(seeds: Range<u64>) {
    delivered(seeds, "a watched lane", false, 1);
}

/// The same, found by its ready bit.
pub fn a_quiet_lane_loses_nothing(seeds: Range<u64>) {
    delivered(seeds, "a quiet lane", false, 0);
}

/// A lane into the queue of a connected QP, watched.
pub fn a_watched_queue_of_a_connected_qp_loses_nothing(seeds: Range<u64>) {
    delivered(seeds, "a watched queue of a connected QP", true, 1);
}

/// The same, found by its ready bit.
pub fn a_quiet_queue_of_a_connected_qp_loses_nothing(seeds: Range<u64>) {
    delivered(seeds, "a quiet queue of a connected QP", true, 0);
}
