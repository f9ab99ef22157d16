//! Programs whose nodes put by a model of PEACH2 boards, with and without the time that those take: as through any window, and no chain
//! is put that a board refuses.

use vervain_tests::Runs;
use vervain_tests::matrix::PERFTEST;
use vervain_tests::pairs::{has_all_sizes, perftest_by_turns};

const BOARDS: &[&str] = &["peach2", "peach2-timed"];

const RUNS: Runs<'_> =
    Runs { program: "", cases: &[&[]], ways: BOARDS, vars: &[("VT_ROUNDS", "10")], at_once: 1, seconds: 120 };

#[test]
fn what_boards_put_is_as_what_is_sent() {
    for (program, cases) in [
        ("conformance", &["--two"][..]),
        ("sequences", &["--two"]),
        ("mw", &[]),
        ("data", &["random_ops"]),
        ("objects_mr", &[]),
        ("withdrawn", &["--two"]),
        ("torn_tail", &[]),
        ("owner_atomics", &[]),
    ] {
        Runs { program, cases: &[cases], ..RUNS }.must_hold();
    }
}

#[test]
fn many_processes_talk_by_boards() {
    for (program, cases) in [
        ("fan_in", &[][..]),
        ("shared_queue", &["busily", "the_limit_is_told_once", "asleep"]),
        ("crowd", &["all_to_all"]),
        ("crowd", &["one_is_killed"]),
        ("fork_traffic", &[]),
    ] {
        Runs { program, cases: &[cases], ..RUNS }.must_hold();
    }
}

#[test]
fn peers_that_put_by_boards_are_killed_and_stopped() {
    for case in ["kill_under_load", "stop_and_continue"] {
        Runs { program: "kill", cases: &[&[case]], ..RUNS }.must_hold();
    }
    Runs { program: "absent", cases: &[&["reliable", "unreliable"]], vars: &[], at_once: 4, ..RUNS }.must_hold();
}

/// Every line of perftest's by one of the two.
#[test]
fn every_tool_of_perftest_runs_by_boards() {
    for (tool, _) in PERFTEST {
        perftest_by_turns(tool, BOARDS, |line| !has_all_sizes(line) && !line.contains(":239:"));
    }
}
