//! Whether the model's memory is one: what it allows and what it forbids, by the small programs that are known for it.

use crate::check::check;
use crate::host::atomic::{AtomicU32, Ordering, fence};
use crate::memory::fence_everywhere;
use crate::thread;
use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

type Words = [AtomicU32; 2];
type Outcomes = BTreeSet<[u32; 2]>;

/// What two threads return who share two words.
fn outcomes(
    seeds: Range<u64>,
    one: impl Fn(&Words) -> u32 + Clone + Send + Sync + 'static,
    other: impl Fn(&Words) -> u32 + Clone + Send + Sync + 'static,
) -> Outcomes {
    let seen = Arc::new(Mutex::new(Outcomes::new()));
    let found = Arc::clone(&seen);
    check("litmus", seeds, move |_| {
        let words: Arc<Words> = Arc::default();
        let theirs = Arc::clone(&words);
        let one = one.clone();
        let thread = thread::spawn(move || one(&theirs));
        let other = other(&words);
        found.lock().unwrap().insert([thread.join(), other]);
    });
    Arc::into_inner(seen).unwrap().into_inner().unwrap()
}

/// Each stores to its own word and loads the other's, with something between.
fn store_and_load(
    seeds: Range<u64>,
    one: impl Fn() + Clone + Send + Sync + 'static,
    other: impl Fn() + Clone + Send + Sync + 'static,
) -> Outcomes {
    outcomes(
        seeds,
        move |words| {
            words[0].store(1, Relaxed);
            one();
            words[1].load(Relaxed)
        },
        move |words| {
            words[1].store(1, Relaxed);
            other();
            words[0].load(Relaxed)
        },
    )
}

/// Store buffering: both miss the other's store, unless there are two fences or one in every thread.
pub fn a_store_may_be_seen_late(seeds: Range<u64>) {
    let full = || fence(SeqCst);
    assert!(store_and_load(seeds.clone(), || (), || ()).contains(&[0, 0]));
    assert!(store_and_load(seeds.clone(), full, || ()).contains(&[0, 0]));
    assert!(store_and_load(seeds.clone(), || fence(AcqRel), || fence(AcqRel)).contains(&[0, 0]));
    assert_eq!(store_and_load(seeds, full, full), [[0, 1], [1, 0], [1, 1]].into());
}

/// One side has a fence in every thread, and the other none.
pub fn a_barrier_for_everybody_serves_both_sides(seeds: Range<u64>) {
    let everybody = || {
        fence(SeqCst);
        fence_everywhere();
        fence(SeqCst);
    };
    let seen = outcomes(
        seeds,
        |words| {
            words[0].store(1, Relaxed);
            words[1].load(Relaxed)
        },
        move |words| {
            words[1].store(1, Relaxed);
            everybody();
            words[0].load(Relaxed)
        },
    );
    let forbidden = [0, 0];
    // A store before it is seen by all, and those of all others by the caller.
    assert!(!seen.contains(&forbidden), "{seen:?}");
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// Message passing: word 1 says that word 0 is there. What was found of both when word 1 was seen.
fn message(seeds: Range<u64>, store: Ordering, load: Ordering) -> Outcomes {
    outcomes(
        seeds,
        move |words| {
            words[0].store(1, Relaxed);
            words[1].store(1, store);
            0
        },
        move |words| words[1].load(load) << 1 | words[0].load(Relaxed),
    )
}

/// Only what was released and acquired comes in order.
pub fn a_message_needs_release_and_acquire(seeds: Range<u64>) {
    let torn = [0, 2];
    assert!(message(seeds.clone(), Relaxed, Relaxed).contains(&torn));
    assert!(message(seeds.clone(), Release, Relaxed).contains(&torn));
    assert!(message(seeds.clone(), Relaxed, Acquire).contains(&torn));
    assert!(!message(seeds, Release, Acquire).contains(&torn));
}

/// A store that is read and replaced in one step goes on telling what it told; one that is stored over does not.
pub fn what_was_released_is_carried_on_by_an_exchange_only(seeds: Range<u64>) {
    let over = |next: fn(&AtomicU32)| {
        outcomes(
            seeds.clone(),
            move |words| {
                words[0].store(1, Relaxed);
                words[1].store(1, Release);
                next(&words[1]);
                0
            },
            |words| words[1].load(Acquire) << 1 | words[0].load(Relaxed),
        )
    };
    let torn = [0, 4];
    assert!(!over(|word| _ = word.compare_exchange(1, 2, Relaxed, Relaxed)).contains(&torn));
    assert!(over(|word| word.store(2, Relaxed)).contains(&torn));
}

/// Loads of one word never go back.
pub fn loads_of_a_word_never_go_back(seeds: Range<u64>) {
    let seen = outcomes(
        seeds,
        |words| {
            words[0].store(1, Relaxed);
            words[0].store(2, Relaxed);
            0
        },
        |words| words[0].load(Relaxed) << 2 | words[0].load(Relaxed),
    );
    assert!(seen.iter().all(|[_, both]| both >> 2 <= both & 3), "{seen:?}");
    assert_eq!(seen.len(), 6, "{seen:?}");
}
