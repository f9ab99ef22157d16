//! Receives that several initiators claim, against the owner who posts them and takes back those of the dead. Each is claimed
//! once, none is lost, and nobody who stands still keeps the others from theirs.

use crate::check::check;
use crate::host::atomic::{AtomicU32, AtomicU64, Ordering, spin_loop};
use crate::process::Process;
use crate::rq::{RecvQueue, RqView};
use crate::thread;
use std::ops::Range;
use std::sync::Arc;
use vervain_iba::Sge;

/// Initiators.
const ONE: u32 = 5;
const OTHER: u32 = 6;

fn queue(process: &'static Process, max_wr: u32) -> Arc<RecvQueue> {
    Arc::new(RecvQueue::create(process, 1, max_wr, 1, false).unwrap())
}

/// Where the buffer of receive `id` is.
fn buffer(id: u64) -> u64 {
    id << 12
}

fn post(rq: &RecvQueue, id: u64) {
    rq.post(id, &[Sge { addr: buffer(id), length: 8, lkey: 1 }]).unwrap();
}

/// Claims a receive: which one it is, as its buffer tells, and its WQE.
fn claim(rq: &RqView, me: u32) -> Option<(u64, u32)> {
    let index = rq.claim(me)?;
    let [sge] = rq.sges(index).expect("a WQE") else { panic!("a receive without its buffer") };
    Some((RqView::sge(sge).addr >> 12, index))
}

/// A claimer that ends right after the exchange that claims: which receive it has.
fn claim_and_die(rq: &RecvQueue, process: &'static Process, me: u32) -> u64 {
    let shared = rq.view.shared.clone();
    let slots = shared.mask.load(Ordering::Relaxed) as usize + 1;
    let ring = process.arena.view().slice::<AtomicU64>(shared.ring.load(Ordering::Relaxed), slots).unwrap();
    let slot = &ring[shared.head.first.load(Ordering::Acquire) as usize % slots];
    let e = slot.load(Ordering::Acquire);
    slot.compare_exchange(e, e | u64::from(me), Ordering::AcqRel, Ordering::Relaxed).expect("nobody else claims yet");
    rq.wr_id((e >> 24) as u32 & 0xffff).unwrap()
}

/// Claims what is left; with it all of `ids` were claimed once, and then the queue is empty.
fn claim_the_rest(rq: &RecvQueue, mut claimed: Vec<u64>, ids: std::ops::Range<u64>) {
    while let Some((id, _)) = claim(&rq.view, OTHER) {
        claimed.push(id);
    }
    claimed.sort_unstable();
    assert_eq!(claimed, ids.collect::<Vec<_>>(), "receives that were claimed");
    assert_eq!(rq.waiting(), 0, "the head stands still");
}

/// Two claimers while the owner posts: each gets one of the two oldest.
pub fn each_receive_is_claimed_once(seeds: Range<u64>) {
    check("two claimers", seeds, |process| {
        let rq = queue(process, 3);
        (0..2).for_each(|id| post(&rq, id));
        let claimers = [ONE, OTHER].map(|me| {
            let rq = rq.view.clone();
            thread::spawn(move || claim(&rq, me).expect("as many receives as claimers").0)
        });
        post(&rq, 2);
        let claimed = claimers.into_iter().map(|claimer| claimer.join()).collect();
        claim_the_rest(&rq, claimed, 0..3);
    });
}

/// The same where several QPs share the queue, whose receives stand in two rings then.
pub fn each_receive_of_two_rings_is_claimed_once(seeds: Range<u64>) {
    check("two claimers, two rings", seeds, |process| {
        let rq = queue(process, 4);
        rq.users.store(2, Ordering::Relaxed);
        (0..2).for_each(|id| post(&rq, id));
        (0..2).for_each(|id| {
            let (_, index) = claim(&rq.view, ONE).unwrap();
            assert_eq!(rq.take(index, 0).unwrap().wr_id, id);
        });
        // Both of them anew, and a first one.
        (2..5).for_each(|id| post(&rq, id));
        assert_eq!(
            rq.view.shared.tail.again.load(Ordering::Relaxed) - rq.view.shared.head.again.load(Ordering::Relaxed),
            2
        );
        let claimers = [ONE, OTHER].map(|me| {
            let rq = rq.view.clone();
            thread::spawn(move || (0..2).map(|_| claim(&rq, me).map(|(id, _)| id)).collect::<Vec<_>>())
        });
        post(&rq, 5);
        let claimed: Vec<_> = claimers.into_iter().flat_map(|claimer| claimer.join()).collect();
        assert!(claimed.iter().filter(|id| id.is_some()).count() >= 3, "as many as were there before");
        claim_the_rest(&rq, claimed.into_iter().flatten().chain(0..2).collect(), 0..6);
    });
}

/// The queue goes round: a WQE is posted again as soon as its receive was taken, and entries of the last lap are overwritten.
pub fn entries_of_the_last_lap_are_told_from_new_ones(seeds: Range<u64>) {
    [1, 2].into_iter().for_each(|users| round_the_ring(users, seeds.clone()));
}

fn round_the_ring(users: u32, seeds: Range<u64>) {
    check("round the ring", seeds, move |process| {
        let rq = queue(process, 1);
        rq.users.store(users, Ordering::Relaxed);
        (0..3).for_each(|id| {
            post(&rq, id);
            let (claimed, index) = claim(&rq.view, ONE).unwrap();
            assert_eq!((claimed, rq.take(index, 0).unwrap().wr_id), (id, id));
        });
        post(&rq, 3);
        // What each claimer has got: the WQE, plus 1.
        let got = [ONE, OTHER].map(|me| (me, Arc::new(AtomicU32::new(0))));
        let claimers = got.clone().map(|(me, got)| {
            let rq = rq.view.clone();
            thread::spawn(move || {
                loop {
                    if let Some((id, index)) = claim(&rq, me) {
                        got.store(index + 1, Ordering::Release);
                        return id;
                    }
                    spin_loop();
                }
            })
        });
        // The queue has room for one: the second is posted when the first was taken.
        let first = loop {
            if let Some(first) = got.iter().map(|(_, got)| got.load(Ordering::Acquire)).find(|index| *index != 0) {
                break first - 1;
            }
            spin_loop();
        };
        assert_eq!(rq.take(first, 0).unwrap().wr_id, 3);
        post(&rq, 4);
        let mut claimed: Vec<u64> = claimers.into_iter().map(|claimer| claimer.join()).collect();
        claimed.extend(0..3);
        claim_the_rest(&rq, claimed, 0..5);
    });
}

/// A claimer that was killed right after its exchange: the others claim on, and the owner finds what it had.
pub fn what_the_dead_have_claimed_is_found(seeds: Range<u64>) {
    check("a dead claimer", seeds, |process| {
        let rq = queue(process, 4);
        (0..3).for_each(|id| post(&rq, id));
        let had = claim_and_die(&rq, process, 9);
        let claimers = [ONE, OTHER].map(|me| {
            let rq = rq.view.clone();
            thread::spawn(move || claim(&rq, me).expect("as many receives as claimers").0)
        });
        post(&rq, 3);
        let reaped = rq.reap(9);
        assert_eq!(reaped, [had], "what the dead had");
        let mut claimed: Vec<u64> = claimers.into_iter().map(|claimer| claimer.join()).collect();
        claimed.extend(reaped);
        claim_the_rest(&rq, claimed, 0..4);
    });
}

/// The same a lap later: what it had is known after its entry was written over.
pub fn what_the_dead_have_claimed_is_known_a_lap_later(seeds: Range<u64>) {
    check("a dead claimer, a lap later", seeds, |process| {
        let rq = queue(process, 2);
        (0..2).for_each(|id| post(&rq, id));
        let had = claim_and_die(&rq, process, 9);
        let got = Arc::new(AtomicU32::new(0));
        let claimer = thread::spawn({
            let (rq, got) = (rq.view.clone(), Arc::clone(&got));
            move || {
                for expected in 1..6 {
                    let (id, index) = loop {
                        if let Some(claimed) = claim(&rq, ONE) {
                            break claimed;
                        }
                        spin_loop();
                    };
                    assert_eq!(id, expected, "receives are claimed in the order of posting");
                    got.store(index + 1, Ordering::Release);
                    while got.load(Ordering::Acquire) != 0 {
                        spin_loop();
                    }
                }
            }
        });
        for id in 1..6 {
            let index = loop {
                match got.load(Ordering::Acquire) {
                    0 => spin_loop(),
                    index => break index - 1,
                }
            };
            assert_eq!(rq.take(index, 0).unwrap().wr_id, id);
            if id < 5 {
                post(&rq, id + 1);
            }
            got.store(0, Ordering::Release);
        }
        claimer.join();
        assert_eq!(rq.reap(9), [had], "what the dead had");
        assert_eq!(rq.waiting(), 0, "the head stands still");
    });
}

/// The same for datagrams: what the dead had goes back to the end of the queue.
pub fn what_the_dead_have_claimed_is_posted_again(seeds: Range<u64>) {
    check("a dead claimer of datagrams", seeds, |process| {
        let rq = queue(process, 2);
        (0..2).for_each(|id| post(&rq, id));
        claim_and_die(&rq, process, 9);
        let claimers = [ONE, OTHER].map(|me| {
            let rq = rq.view.clone();
            thread::spawn(move || claim(&rq, me).map(|(id, _)| id))
        });
        rq.reap_and_repost(9);
        let claimed = claimers.into_iter().filter_map(|claimer| claimer.join()).collect();
        claim_the_rest(&rq, claimed, 0..2);
    });
}
