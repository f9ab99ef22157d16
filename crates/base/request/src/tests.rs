use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use super::*;

fn both() -> (tempfile::TempDir, Requests, Node) {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("request");
    let requests = Requests::create(&path).unwrap();
    let node = Node::open(&path).unwrap();
    (tmp, requests, node)
}

#[test]
fn all_take_it_at_the_first_call_that_none_has_begun() {
    let (_tmp, requests, node) = both();
    assert!(!node.begin(1) && !node.begin(1) && !node.begin(2));
    assert!(requests.ask() && !requests.ask());
    // One that is behind comes to its second call, then both to their third.
    assert!(!node.begin(2));
    assert_eq!(requests.progress(), Progress::Asked);
    assert!(node.begin(3));
    assert_eq!(requests.progress(), Progress::Begun);
    assert!(!requests.take_back(), "it would never be over for who has begun");
    assert!(!node.begin(2) && node.begin(3));
    node.saved(3);
    assert_eq!(requests.progress(), Progress::Saved);
    assert!(!node.is_over(3));
    requests.go_on();
    assert!(node.is_over(3) && !node.begin(4));
    assert!(requests.ask() && !node.begin(4) && node.begin(5));
}

#[test]
fn what_is_taken_back_is_taken_by_nobody() {
    let (_tmp, requests, node) = both();
    assert!(requests.ask() && requests.take_back() && !requests.take_back());
    assert!(!node.begin(1));
    assert!(requests.ask() && node.begin(2));
}

#[test]
fn one_that_has_failed_is_over_and_is_told() {
    let (_tmp, requests, node) = both();
    assert!(requests.ask() && node.begin(1));
    node.failed(1, 28);
    assert_eq!(requests.progress(), Progress::Failed(28));
    assert!(!node.begin(2) && !requests.ask());
    requests.go_on();
    assert!(requests.ask() && !node.begin(2) && node.begin(3));
    // The request has not been ended, but a node goes on.
    assert!(!node.begin(4));
    assert_eq!(requests.progress(), Progress::Failed(0));
    requests.go_on();
    assert_eq!(requests.progress(), Progress::Idle);
}

#[test]
fn nodes_know_their_file_their_context_and_whether_they_are_alone() {
    let (tmp, requests, node) = both();
    let path = tmp.path().join("request");
    assert_eq!(requests.callers(), Callers::None);
    node.meet(true);
    assert_eq!(requests.callers(), Callers::Together);
    node.meet(false);
    assert_eq!(requests.callers(), Callers::Apart);
    assert!(node.is_of(1) && node.is_of(1) && !node.is_of(0));
    assert!(!node.is_alone());
    drop(requests);
    assert!(node.is_alone());
    let again = Requests::create(&path).unwrap();
    let other = Node::open(&path).unwrap();
    assert!(other.identity() != 0 && other.identity() != node.identity());
    drop(again);
    for (name, bytes) in [("short", vec![0; 8]), ("zeros", vec![0; LEN])] {
        std::fs::write(tmp.path().join(name), bytes).unwrap();
        assert!(Node::open(&tmp.path().join(name)).is_err(), "{name}");
    }
    std::os::unix::fs::symlink(&path, tmp.path().join("link")).unwrap();
    assert!(Node::open(&tmp.path().join("link")).is_err());
}

#[test]
fn a_word_that_nobody_writes_asks_for_nothing() {
    let (_tmp, requests, node) = both();
    requests.0.page().word.store(u64::MAX, Relaxed);
    assert!(!node.begin(1) && !requests.ask() && !requests.take_back());
    assert_eq!(requests.progress(), Progress::Idle);
    requests.go_on();
}

/// Nodes in threads that go on at their own pace and meet nowhere but where they take one. They end with a checkpoint
/// that is the last for all of them, so how fast they and the supervisor are makes no difference.
#[test]
fn nodes_that_are_at_different_calls_take_the_same_ones() {
    const NODES: usize = 4;
    const CHECKPOINTS: usize = 50;
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("request");
    let requests = Requests::create(&path).unwrap();
    let (meeting, is_last) = (Arc::new(Barrier::new(NODES)), Arc::new(AtomicBool::new(false)));
    let (ends, ended) = mpsc::channel();
    for number in 0..NODES {
        let (node, meeting) = (Node::open(&path).unwrap(), meeting.clone());
        let (is_last, ends) = (is_last.clone(), ends.clone());
        thread::spawn(move || {
            let (mut taken, mut random) = (Vec::new(), fastrand::Rng::with_seed(number as u64));
            for call in 1.. {
                (0..random.u32(..300)).for_each(|_| std::hint::spin_loop());
                if !node.begin(call) {
                    continue;
                }
                meeting.wait();
                if number == 0 {
                    node.saved(call);
                    while !node.is_over(call) {
                        thread::yield_now();
                    }
                }
                meeting.wait();
                taken.push(call);
                if is_last.load(Relaxed) {
                    break;
                }
            }
            ends.send(taken).unwrap();
        });
    }
    thread::spawn(move || {
        let (mut made, mut random) = (0, fastrand::Rng::with_seed(99));
        while made < CHECKPOINTS {
            requests.ask();
            (0..random.u32(..2000)).for_each(|_| std::hint::spin_loop());
            if random.bool() {
                requests.take_back();
            }
            if requests.progress() == Progress::Saved {
                made += 1;
                is_last.store(made == CHECKPOINTS, Relaxed);
                requests.go_on();
            }
            thread::yield_now();
        }
    });
    let taken =
        (0..NODES).map(|_| ended.recv_timeout(Duration::from_secs(60)).expect("a node that waits for the others"));
    let taken: Vec<Vec<u64>> = taken.collect();
    assert!(taken.iter().all(|calls| *calls == taken[0] && calls.len() == CHECKPOINTS), "{taken:?}");
}
