//! ACP's sets, multisets and maps: the C programs of `tests/acp` with every function, and jobs of `vervain-acp-maps-rank`
//! (`tests/src/acp_maps`), which use the Rust crate.

use std::time::{Duration, Instant};

use vervain_tests::{Job, acp};

const RANK: acp::Ranks = acp::Ranks(env!("CARGO_BIN_EXE_vervain-acp-maps-rank"));
const PACKETS: &[&str] = &["--link", "roce", "--interface", "lo"];

#[test]
fn every_function_of_sets() {
    acp::holds("set", &[], &[1, 2, 3, 4], &[]);
}

#[test]
fn every_function_of_multisets() {
    acp::holds("multiset", &[], &[1, 2, 3, 4], &[]);
}

#[test]
fn every_function_of_maps() {
    acp::holds("map", &[], &[1, 2, 3, 4], &[]);
    acp::holds("map", PACKETS, &[2], &[]);
}

#[test]
fn random_programs_do_what_the_model_says() {
    for (ranks, count, seed) in [(1, "3000", "1"), (3, "6000", "2"), (4, "3000", "3")] {
        RANK.run(ranks, &[], &["model", count, seed]);
    }
    RANK.run(3, PACKETS, &["model", "300", "4"]);
}

#[test]
fn what_all_ranks_do_at_once_adds_up() {
    for ranks in [2, 4] {
        RANK.run(ranks, &[], &["contend", "6000"]);
    }
    RANK.run(3, PACKETS, &["contend", "400"]);
    let end = Job::start(RANK.launch(3, &[], &["contend", "400"]).env("ACP_ATOMICS", "owner")).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn values_are_whole_while_others_remove_them() {
    // The third is the largest value: one that is read in the slot only, and one that is not.
    RANK.run(3, &[], &["churn", "2000", "80000"]);
    RANK.run(4, &[], &["churn", "6000", "800"]);
    RANK.run(3, PACKETS, &["churn", "200", "3000"]);
}

#[test]
fn round_trips_are_as_documented() {
    RANK.run(2, &[], &["trips"]);
    RANK.run(2, PACKETS, &["trips"]);
}

#[test]
fn what_finds_no_memory_changes_nothing() {
    let mut job = RANK.launch(2, &[], &["swap", "300"]);
    let end = Job::start(job.env("ACP_HEAP", "1M")).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn what_is_refused_leaves_no_slot_locked_and_no_block() {
    let end = Job::start(RANK.launch(2, &[], &["refused"]).env("ACP_HEAP", "8M")).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn iterators_are_of_their_containers_and_slots() {
    for ranks in [1, 2] {
        RANK.run(ranks, &[], &["cursors"]);
    }
}

#[test]
fn containers_are_used_with_themselves_and_with_elements_of_any_length() {
    for ranks in [1, 3] {
        let end = Job::start(RANK.launch(ranks, &[], &["odd"]).env("ACP_HEAP", "32M")).finish(acp::LIMIT);
        assert!(end.success(), "{}", end.describe());
    }
}

#[test]
fn what_is_in_no_slot_is_not_marked() {
    RANK.run(3, &[], &["unlinked", "20000"]);
}

#[test]
fn a_slot_that_goes_to_another_rank_leaves_no_block() {
    let end = Job::start(RANK.launch(3, &[], &["elsewhere", "20000"]).env("ACP_HEAP", "8M")).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
}

/// Four ranks replace all keys many times, and nothing is left.
fn replace(options: &[&str], count: &str, seed: u64) {
    let mut job = RANK.launch(4, options, &["replace", count, &seed.to_string()]);
    let end = Job::start(job.env("ACP_HEAP", "16M")).finish(acp::LIMIT);
    assert!(end.success(), "seed {seed}: {}", end.describe());
}

#[test]
fn elements_of_all_lengths_are_whole_and_leave_nothing() {
    replace(&[], "6000", 1);
    replace(PACKETS, "200", 2);
}

/// `make soak`.
#[test]
#[ignore = "runs for long; make soak"]
fn soak() {
    let number = |name: &str, or: u64| std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(or);
    if let Ok(Ok(seed)) = std::env::var("VERVAIN_SEED").map(|seed| seed.parse()) {
        return replace(&[], "10000", seed);
    }
    let (began, mut seed) = (Instant::now(), number("VERVAIN_SOAK_FROM", 10_000));
    while began.elapsed() < Duration::from_secs(number("VERVAIN_SOAK_SECONDS", 600)) {
        let (options, count) = if seed.is_multiple_of(4) { (PACKETS, "400") } else { (&[][..], "10000") };
        replace(options, count, seed);
        seed += 1;
    }
    println!("seeds below {seed}");
}

#[test]
fn containers_come_and_go() {
    RANK.run(3, &[], &["stale", "100"]);
}

#[test]
fn what_was_destroyed_is_refused_though_its_memory_is_gone() {
    let end = Job::start(RANK.launch(2, &[], &["unmapped"]).env("ACP_HEAP", "8216k")).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn a_slot_that_is_locked_for_long_is_waited_for() {
    RANK.run(3, &[], &["locked"]);
}

#[test]
fn what_is_broken_ends_the_job_with_a_sentence() {
    for (what, sentence) in [
        ("loop", "has a list that goes in a circle"),
        ("uncounted", "has more elements than it counts"),
        ("long", "leads to what is no element"),
        ("astray", "leads to no element"),
        ("unlocked-by-nobody", "is locked by rank 2097136, of which there is none"),
    ] {
        let end = Job::start(&mut RANK.launch(2, &[], &[what])).finish(acp::LIMIT);
        assert!(end.status.is_some() && !end.success(), "{what}: {}", end.describe());
        assert!(end.output.contains(sentence), "{what}: {}", end.describe());
    }
}

#[test]
fn the_end_of_a_rank_in_the_midst_of_changes_ends_the_others() {
    for victim in [0, 2] {
        let mut job = Job::start(&mut RANK.launch(3, &["--no-prefix"], &["forever"]));
        let until = Instant::now() + acp::LIMIT;
        let pids = loop {
            let output = job.output();
            let pids: Vec<i32> =
                output.lines().filter_map(|line| line.strip_prefix("works as ")?.parse().ok()).collect();
            if pids.len() == 3 {
                break pids;
            }
            assert!(Instant::now() < until && job.running(), "{output}");
            std::thread::sleep(Duration::from_millis(5));
        };
        // SAFETY: a process that this test has started, and whose parent has not waited for it yet.
        unsafe { libc::kill(pids[victim], libc::SIGKILL) };
        let end = job.finish(acp::LIMIT);
        assert!(end.status.is_some() && !end.success(), "{}", end.describe());
        let sentences = end.output.lines().filter(|line| line.contains("was killed by SIGKILL")).count();
        assert_eq!(sentences, 1, "{}", end.describe());
    }
}
