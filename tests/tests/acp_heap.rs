//! ACP's global heap, by the C program `tests/acp/malloc.c` and by its Rust crate, as ranks under `vervain launch`.

use std::path::Path;
use std::time::Duration;

use vervain_tests::{Failures, Finished, Job, acp, acp_program, have};

/// Far more than any of these takes: a hang is what it finds.
const LIMIT: Duration = Duration::from_secs(100);
const RANK: &str = env!("CARGO_BIN_EXE_vervain-acp-rank");
/// Packets over the loopback interface, to no other host.
const PACKETS: [&str; 4] = ["--link", "roce", "--interface", "lo"];

/// How it ended on so many ranks.
fn run(ranks: u32, options: &[&str], variables: &[(&str, &str)], arguments: &[&str]) -> Finished {
    let program = acp_program("cc", &[], "malloc");
    Job::start(acp::launch(ranks, options, &program).args(arguments).envs(variables.iter().copied())).finish(LIMIT)
}

/// It holds on each of these numbers of ranks.
fn holds(ranks: &[u32], options: &[&str], variables: &[(&str, &str)], arguments: &[&str]) {
    if !have(&["cc"]) {
        return;
    }
    let mut failures = Failures::default();
    for &ranks in ranks {
        let end = run(ranks, options, variables, arguments);
        acp::judge(&format!("malloc {} {variables:?}", arguments.join(" ")), ranks, &end, &mut failures);
    }
    failures.assert_none();
}

/// It ends the job, with this sentence once and without any other failure.
fn ends(ranks: u32, arguments: &[&str], sentence: &str) {
    if !have(&["cc"]) {
        return;
    }
    let end = run(ranks, &[], &[], arguments);
    assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
    assert_eq!(end.output.matches(sentence).count(), 1, "{}", end.describe());
    assert!(!end.output.contains("FAIL"), "{}", end.describe());
}

/// Ranks that use the crate.
fn ranks(ranks: u32, options: &[&str], what: &[&str]) -> Finished {
    let end = Job::start(acp::launch(ranks, options, Path::new(RANK)).args(what)).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    end
}

#[test]
fn most_blocks_are_one_round_trip() {
    for options in [&[][..], &PACKETS] {
        let end = ranks(2, options, &["heap-trips"]);
        assert!(end.output.contains("another one: 1 round trips"), "{}", end.describe());
    }
}

#[test]
fn threads_of_all_ranks_never_share_a_block() {
    ranks(3, &[], &["heap-threads", "4000"]);
    ranks(1, &[], &["heap-threads", "4000"]);
    ranks(3, &PACKETS, &["heap-threads", "200"]);
}

#[test]
fn nonsense_in_a_heap_leads_nowhere() {
    for seed in ["1", "2"] {
        let end = ranks(2, &[], &["heap-nonsense", "300", seed]);
        assert!(end.output.contains("survived"), "{}", end.describe());
    }
}

#[test]
fn every_rank_has_memory_of_every_rank() {
    holds(&[1, 2, 3, 4], &[], &[], &["sizes"]);
}

#[test]
fn every_rank_has_memory_of_every_rank_in_packets() {
    holds(&[3], &PACKETS, &[], &["sizes"]);
}

#[test]
fn a_million_of_four_ranks_leave_nothing() {
    holds(&[4], &[], &[("ACP_HEAP", "512k")], &["churn", "250000"]);
}

#[test]
fn ranks_in_packets_leave_nothing() {
    holds(&[3], &PACKETS, &[("ACP_HEAP", "512k")], &["churn", "1000"]);
}

#[test]
fn ranks_whose_processor_does_the_atomics_leave_nothing() {
    holds(&[3], &[], &[("ACP_HEAP", "512k"), ("ACP_ATOMICS", "owner")], &["churn", "5000"]);
}

#[test]
fn ranks_with_few_connections_leave_nothing() {
    holds(&[5], &[], &[("ACP_HEAP", "512k"), ("ACP_CONNECTIONS", "2")], &["churn", "5000"]);
}

#[test]
fn a_heap_has_a_limit() {
    holds(&[1, 2], &[], &[("ACP_HEAP", "1M")], &["limit"]);
}

#[test]
fn small_blocks_that_were_freed_are_large_ones_again() {
    holds(&[1, 2], &[], &[("ACP_HEAP", "16M")], &["rejoin"]);
}

#[test]
fn a_heap_without_a_directory_has_no_memory() {
    for bytes in ["0", "16", "24"] {
        holds(&[2], &[], &[("ACP_STARTER_MEMORY_DL", bytes)], &["none"]);
    }
    holds(&[2], &[], &[("ACP_HEAP", "0")], &["none"]);
}

#[test]
fn large_blocks_come_and_go() {
    holds(&[1, 2], &[], &[], &["huge"]);
}

#[test]
fn what_is_no_block_is_not_freed() {
    for what in ["twice", "twice large", "inside", "foreign"] {
        ends(3, &[what], "is no block that is allocated");
    }
}

#[test]
fn a_rank_that_is_killed_holds_nobody_up() {
    ends(3, &["kill"], "was killed by SIGKILL");
}
