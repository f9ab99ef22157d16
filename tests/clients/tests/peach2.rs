//! Programs whose nodes put by a model of PEACH2 boards, with and without the time that those take: as through any window, and no chain
//! is put that a board refuses.

use std::time::Duration;

use vervain_tests::counters::Counters;
use vervain_tests::matrix::PERFTEST;
use vervain_tests::pairs::{has_all_sizes, perftest_by_turns};
use vervain_tests::pairs::{pair, words};
use vervain_tests::{Failures, Job, Runs, beside_others, c_program, have, have_c, windows};

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
        ("seen_and_gone", &[]),
        ("owner_atomics", &[]),
    ] {
        Runs { program, cases: &[cases], ..RUNS }.must_hold();
    }
}

#[test]
fn many_processes_talk_by_boards() {
    for (program, cases) in [
        ("shared_queue", &["busily", "the_limit_is_told_once", "asleep"][..]),
        ("crowd", &["all_to_all"]),
        ("crowd", &["one_is_killed"]),
        ("fork_traffic", &[]),
    ] {
        Runs { program, cases: &[cases], ..RUNS }.must_hold();
    }
    // Twenty-four processes that each wait for their transfers make pairs for too long on two CPUs.
    Runs { program: "fan_in", ways: &["peach2"], ..RUNS }.must_hold();
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

const WAYS: [&str; 3] = ["window_direct_bytes", "window_ring_bytes", "window_staged_bytes"];

/// What the counters say of so many random requests of one program to another, by boards of which more is said: what is wrong with it, and
/// the bytes that went direct.
fn random_requests(more: &'static str, rounds: &str, limit: Duration) -> (Option<String>, u64) {
    let window = windows::boards(more);
    let counters = Counters::new(&[("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", window), ("VT_ROUNDS", rounds)]);
    let program = c_program("data");
    let end = Job::start(counters.command(program.to_str().expect("a plain path")).arg("random_ops")).finish(limit);
    if !end.success() {
        return (Some(end.describe()), 0);
    }
    let note = end.output.lines().find_map(|line| line.strip_prefix("note ")?.split_once(" moved "));
    let moved: Option<u64> = note.and_then(|(_, bytes)| bytes.split(' ').next()?.parse().ok());
    let ways = WAYS.map(|name| counters.read(name));
    let [refused, by_memory] = ["window_refusals", "memory_bytes"].map(|name| counters.read(name));
    let is_right = moved == Some(ways.iter().sum()) && refused == 0 && by_memory == 0;
    let why = format!("{moved:?} bytes, of which {ways:?} by the window and {by_memory} by memory; {refused} refused");
    ((!is_right).then_some(why), ways[0])
}

#[test]
fn counters_account_for_each_byte_that_boards_put() {
    if !have_c() {
        return;
    }
    // Else others take what this leaves for a moment for what theirs have left.
    let _turn = beside_others();
    let mut failures = Failures::default();
    for more in [
        "",
        ",timing=on",
        ",direct=off",
        ",without=chaining",
        ",without=low-latency+high-bandwidth",
        ",without=internal+zero-copy",
        ",without=prepared,timing=on,links=all-to-all,hop=0",
    ] {
        let (wrong, direct) = random_requests(more, "1000", Duration::from_secs(60));
        wrong.iter().for_each(|why| failures.add(more, why));
        if wrong.is_none() && (direct == 0) != more.contains("direct=off") {
            failures.add(more, format!("{direct} bytes direct"));
        }
    }
    failures.assert_none();
}

/// `make soak`.
#[test]
#[ignore = "a million requests: make soak"]
fn soak() {
    let (wrong, _) = random_requests("", "1000000", Duration::from_secs(3600));
    assert_eq!(wrong, None);
}

#[test]
fn memory_of_a_gpu_is_read_and_written() {
    let vars = &[("VERVAIN_WINDOW", windows::gpus("")), ("VT_ROUNDS", "300")];
    for (program, cases) in [("data", &["random_ops"][..]), ("conformance", &["--two"]), ("torn_tail", &[])] {
        Runs { program, cases: &[cases], ways: &["peach2"], vars, ..RUNS }.must_hold();
    }
}

/// What the board could neither read nor write is refused when it is registered, if a program wants to know.
#[test]
fn a_strict_board_tells_which_memory_it_cannot_reach() {
    if !have(&["ib_write_lat"]) {
        return;
    }
    let _turn = beside_others();
    let strict = windows::boards(",strict=on");
    let elsewhere = strict.replace(",heap=on", "");
    for (window, works) in [(strict, true), (&*elsewhere, false)] {
        let vars = [("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", window)];
        let (server, client) = pair("ib_write_lat", &words("-F -x 0 -n 100"), &vars, Duration::from_secs(60));
        let ends = [&server, &client];
        let says = "the board reads and writes memory of the window only";
        let is_refused = ends.iter().any(|end| !end.success() && end.output.contains(says));
        let is_right = if works { ends.iter().all(|end| end.success()) } else { is_refused };
        assert!(is_right, "{window}: {}\n{}", server.describe(), client.describe());
    }
}
