//! Heaps of processes in a window: memory without a number, beside what processes claim for messages.

#[allow(dead_code)] // each test file uses a part of it
mod common;

use common::{Agent, folder, kill, options};
use std::path::Path;
use vervain_window::{FileDevice, GRANULE, Layout, PutDevice};

#[test]
#[ignore = "a process of its own, started by Agent::new"]
fn agent() {
    common::serve();
}

const OPTIONS: &str = "size=25165824 nodes=2";

fn layout() -> Layout {
    Layout::new(2, 24 << 20).unwrap()
}

/// A process of a node whose region has room for a heap.
fn process(path: &Path, node: u32) -> Agent {
    let mut agent = Agent::new();
    agent.get(&format!("open file {} {OPTIONS} node={node}", path.display()));
    agent
}

/// One with a heap: its incarnation, and the granules of heaps.
fn with_heap(path: &Path) -> (Agent, u64, std::ops::Range<u64>) {
    let mut agent = process(path, 0);
    let [incarnation, start, end] = agent.get("heap")[..] else { panic!() };
    (agent, incarnation, start..end)
}

#[test]
fn heaps_leave_room_for_messages_and_take_no_numbers() {
    let (_folder, path) = folder();
    let (mut heap, _, granules) = with_heap(&path);
    let all = layout().granules();
    assert_eq!((granules.start, granules.end), (u64::from(all.start) + (8 << 20) / GRANULE, all.end.into()));
    let n = granules.end - granules.start;
    assert_eq!(heap.get(&format!("claim_heap {n} 1")), [granules.start, granules.end]);
    let (errno, sentence) = heap.ask("claim_heap 1 1").unwrap_err();
    assert_eq!((errno, sentence.contains(&format!("{n} granules of 64 KiB, has no room for 1"))), (libc::ENOMEM, true));
    let mut other = process(&path, 0);
    assert_eq!(other.get("process")[0], 0);
    assert_eq!(other.get("claim 128"), [all.start.into(), granules.start]);
    assert_eq!(other.ask("claim 1").unwrap_err().0, libc::ENOMEM);
    // And with all numbers taken there are heaps.
    let device = FileDevice::open(&path, &options(&["size=25165824", "nodes=2", "node=0"])).unwrap();
    let _processes: Vec<_> = (0..63).map(|_| device.claims().process().unwrap()).collect();
    assert_eq!(device.claims().process().unwrap_err().errno(), libc::ENOSPC);
    device.claims().heap().unwrap();
    // A small region has none.
    let small = path.with_extension("small");
    let (errno, sentence) = Agent::on("file", &small, 0).ask("heap").unwrap_err();
    assert_eq!((errno, sentence.contains("is too small for a heap")), (libc::ENOMEM, true), "{sentence}");
}

#[test]
fn memory_of_heaps_is_aligned_as_asked_for() {
    let (_folder, path) = folder();
    let (mut heap, _, granules) = with_heap(&path);
    assert_eq!(heap.get("claim_heap 1 1"), [granules.start, granules.start + 1]);
    let aligned = |at: u64, align: u64| at.next_multiple_of(align);
    let first = aligned(granules.start + 1, 16);
    assert_eq!(heap.get("claim_heap 3 16"), [first, first + 3]);
    assert_eq!(heap.get("claim_heap 1 16"), [first + 16, first + 17], "the next place, not the next granule");
    // Another process goes around what this has, from multiple to multiple.
    let (mut other, ..) = with_heap(&path);
    assert_eq!(other.get("claim_heap 2 16"), [first + 32, first + 34]);
    assert_eq!(other.ask("claim_heap 1 16384").unwrap_err().0, libc::ENOMEM);
}

#[test]
fn memory_of_a_heap_is_its_own_until_it_dies() {
    let (_folder, path) = folder();
    let (mut owner, incarnation, granules) = with_heap(&path);
    let (mut heir, heirs, _) = with_heap(&path);
    let mut user = process(&path, 1);
    assert_ne!(incarnation, heirs);
    let n = granules.end - granules.start;
    let mine = owner.get(&format!("claim_heap {n} 1"));
    user.get(&format!("use 0 {} {} {incarnation}", mine[0], mine[0] + 2));
    user.get(&format!("put 0 {} 77", mine[0] * GRANULE));
    assert_eq!(owner.get(&format!("read {}", mine[0] * GRANULE)), [77]);
    owner.signal(libc::SIGSTOP);
    assert_eq!(heir.ask("claim_heap 1 1").unwrap_err().0, libc::ENOMEM, "stopped is not dead");
    owner.kill();
    // But for what the peer may still put to.
    assert_eq!(heir.get(&format!("claim_heap {} 1", n - 2)), [mine[0] + 2, mine[1]]);
    assert_eq!(user.ask(&format!("use 0 {} {} {incarnation}", mine[0], mine[0] + 1)).unwrap_err().0, libc::ESTALE);
    user.get("unuse 0");
    assert_eq!(heir.get("claim_heap 2 1"), [mine[0], mine[0] + 2]);
    assert_eq!(heir.get(&format!("read {}", mine[0] * GRANULE)), [0]);
    user.get(&format!("use 0 {} {} {heirs}", mine[0], mine[0] + 1));
}

#[test]
fn a_heap_is_over_when_it_and_its_memory_are_given_back() {
    let (_folder, path) = folder();
    let device = FileDevice::open(&path, &options(&["size=25165824", "nodes=2", "node=0"])).unwrap();
    let heap = device.claims().heap().unwrap();
    let incarnation = heap.incarnation();
    let claim = heap.claim(1, 1).unwrap();
    drop(heap);
    let mut user = process(&path, 1);
    let use_of = |granules: std::ops::Range<u32>| format!("use 0 {} {} {incarnation}", granules.start, granules.end);
    user.get(&use_of(claim.granules()));
    // The device's own process may use it too.
    drop(device.claims().use_of(0, claim.granules(), incarnation).unwrap());
    let granules = claim.granules();
    drop(claim);
    assert_eq!(user.ask(&use_of(granules.clone())).unwrap_err().0, libc::ESTALE);
    assert_eq!(device.claims().use_of(0, granules, incarnation).unwrap_err().errno(), libc::ESTALE);
}

#[test]
fn a_child_that_the_c_library_knows_nothing_of_can_give_the_locks_up() {
    for gives_up in [false, true] {
        let (_folder, path) = folder();
        let (mut parent, _, granules) = with_heap(&path);
        let (mut heir, ..) = with_heap(&path);
        let n = granules.end - granules.start;
        parent.get(&format!("claim_heap {n} 1"));
        let child = parent.get(if gives_up { "clone gives_up" } else { "clone keeps" })[0] as i32;
        parent.kill();
        let got = heir.ask("claim_heap 1 1");
        kill(child, libc::SIGKILL);
        assert_eq!(got.is_ok(), gives_up, "{got:?}");
    }
}
