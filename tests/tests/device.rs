//! The C programs of `tests/c` against the device: the table of operations and faults, the state machine, the objects
//! and the data, in one process and between two, over every way to a peer's memory.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vervain_tests::counters::Counters;
use vervain_tests::netns::Network;
use vervain_tests::{Failures, Job, c_program, failure, have_c, side_by_side, skip, under_vervain, way, windows};

const WAYS: &[&str] = &["auto", "vm", "owner", "shared", "adopt", "roce", "window", "write_only"];

/// The runs of a program whose time goes into waiting for what must not come.
const ALL_AT_ONCE: usize = WAYS.len();

/// A program, its arguments and its variables.
type Run<'a> = (&'a str, Vec<&'a str>, Vec<(&'a str, &'a str)>);

/// Makes the runs, `at_once` of them beside each other.
fn run(at_once: usize, limit: u64, runs: &[Run]) {
    run_in(at_once, limit, runs, false);
}

/// The same, each in a network of its own, where nobody else takes the numbers that a saved process is to have again.
fn run_apart(at_once: usize, limit: u64, runs: &[Run]) {
    run_in(at_once, limit, runs, true);
}

fn run_in(at_once: usize, limit: u64, runs: &[Run], is_apart: bool) {
    if !have_c() {
        return;
    }
    let failures = Mutex::new(Failures::default());
    side_by_side(at_once, runs, |(program, args, vars)| {
        let mut command = under_vervain(c_program(program));
        command.args(args).envs(vars.iter().copied());
        let network = if is_apart { Network::of_one() } else { None };
        match &network {
            Some(network) => command = network.first().enter(&command),
            None if is_apart => return,
            None => {}
        }
        let end = Job::start(&mut command).finish(Duration::from_secs(limit));
        if let Some(why) = failure(&end) {
            let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.add(&format!("{program} {} {vars:?}", args.join(" ")), why);
        }
    });
    failures.into_inner().unwrap_or_else(PoisonError::into_inner).assert_none();
}

fn in_one_process(program: &str, limit: u64) {
    // Groups reach every process of the host.
    let at_once = if program == "objects_ud" { 1 } else { ALL_AT_ONCE };
    run(at_once, limit, &["auto", "roce", "window", "write_only"].map(|name| (program, vec![], way(name))));
}

fn between_two(program: &str, limit: u64) {
    let runs: Vec<_> = WAYS.iter().map(|name| (program, vec!["--two"], way(name))).collect();
    run(ALL_AT_ONCE, limit, &runs);
}

/// A program that starts its own processes and keeps them busy.
fn busily(program: &str, limit: u64) {
    let runs: Vec<_> = WAYS.iter().map(|name| (program, vec![], way(name))).collect();
    run(1, limit, &runs);
}

/// The table of operations and faults by each way, which the counters have to prove.
fn conformance(ways: &[&str], args: &[&str]) {
    if !have_c() {
        return;
    }
    let program = c_program("conformance").display().to_string();
    let failures = Mutex::new(Failures::default());
    side_by_side(ALL_AT_ONCE, ways, |name| {
        let counters = Counters::new(&way(name));
        let end = Job::start(counters.command(&program).args(args)).finish(Duration::from_secs(120));
        let refused = end.output.lines().find(|line| line.contains("VERVAIN_ADOPT=on has no effect"));
        let way = || match (counters.not_by(name), refused) {
            (Some(_), Some(line)) => {
                skip(line);
                None
            }
            (why, _) => why,
        };
        if let Some(why) = failure(&end).or_else(way) {
            let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.add(&format!("conformance {} {name}", args.join(" ")), why);
        }
    });
    failures.into_inner().unwrap_or_else(PoisonError::into_inner).assert_none();
}

#[test]
fn every_operation_and_fault_in_one_process() {
    conformance(&["auto", "roce", "window", "write_only"], &[]);
}

#[test]
fn every_operation_and_fault_between_two_processes() {
    conformance(WAYS, &["--two"]);
}

#[test]
fn every_operation_and_fault_on_infiniband() {
    let vars = vec![("VERVAIN_LINK_LAYER", "infiniband")];
    let runs = [("conformance", vec!["--two"]), ("objects_ud", vec![]), ("state_machine", vec![])];
    run(ALL_AT_ONCE, 120, &runs.map(|(program, args)| (program, args, vars.clone())));
}

#[test]
fn faults_of_the_posting_call() {
    in_one_process("posting", 60);
}

#[test]
fn retries_order_and_revocation_in_one_process() {
    in_one_process("sequences", 120);
}

#[test]
fn retries_order_and_revocation_between_two_processes() {
    between_two("sequences", 120);
}

#[test]
fn memory_windows_in_one_process() {
    in_one_process("mw", 60);
}

#[test]
fn memory_windows_between_two_processes() {
    between_two("mw", 60);
}

#[test]
fn state_machine() {
    in_one_process("state_machine", 60);
}

#[test]
fn limits_and_refusals() {
    in_one_process("objects_limits", 60);
}

#[test]
fn completion_queues() {
    in_one_process("objects_cq", 60);
}

#[test]
fn memory_objects() {
    in_one_process("objects_mr", 60);
}

#[test]
fn memory_taken_away_in_one_process() {
    in_one_process("withdrawn", 120);
}

#[test]
fn memory_taken_away_between_two_processes() {
    between_two("withdrawn", 120);
}

#[test]
fn ud_multicast_and_xrc() {
    in_one_process("objects_ud", 60);
}

#[test]
fn data_between_two_processes() {
    busily("data", 180);
}

#[test]
fn what_a_program_has_seen_is_acknowledged_though_its_qp_goes() {
    let case = vec!["what_is_seen_is_acknowledged"];
    run(1, 60, &WAYS.iter().map(|name| ("seen_and_gone", case.clone(), way(name))).collect::<Vec<_>>());
}

#[test]
fn what_a_program_has_posted_arrives_though_it_goes() {
    let case = vec!["what_was_posted_arrives"];
    run(1, 60, &WAYS.iter().map(|name| ("seen_and_gone", case.clone(), way(name))).collect::<Vec<_>>());
}

#[test]
fn what_was_sent_to_a_process_that_stands_arrives_though_the_sender_dies() {
    let case = vec!["what_was_sent_to_one_that_stands_arrives_though_the_sender_dies"];
    // Processes come until one has the number of the one that died: others are to find numbers meanwhile.
    let (_window, name) = windows::of_its_own();
    let window = vec![("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &*name)];
    run(1, 60, &[("seen_and_gone", case.clone(), way("auto")), ("seen_and_gone", case, window)]);
}

#[test]
fn a_process_that_stands_and_one_that_goes_on() {
    let all =
        |cases: &[&'static str]| WAYS.iter().map(|name| ("standing", cases.to_vec(), way(name))).collect::<Vec<_>>();
    run(ALL_AT_ONCE, 180, &all(&["refusals", "taken_back", "killed"]));
    run(2, 180, &all(&["in_traffic"]));
}

#[test]
fn saved_and_restored_objects() {
    let mut runs: Vec<Run> = Vec::new();
    for name in ["auto", "vm", "owner", "roce"] {
        runs.extend(["saved_objects", "saved_work"].map(|program| (program, vec![], way(name))));
    }
    run_apart(2, 120, &runs);
    let refused: Vec<_> =
        ["auto", "roce", "window", "write_only"].map(|name| ("saved_refused", vec![], way(name))).into();
    run(ALL_AT_ONCE, 120, &refused);
}

#[test]
fn saved_and_restored_between_two_processes() {
    let mut runs: Vec<Run> = Vec::new();
    for name in ["auto", "vm", "owner", "shared", "adopt", "roce"] {
        let points = |case, by_srq: bool| {
            let mut vars = way(name);
            vars.push(("VT_POINTS", "8"));
            vars.extend(by_srq.then_some(("VT_BY_SRQ", "1")));
            ("saved", vec![case], vars)
        };
        runs.extend([points("random_points", false), points("random_points", true), points("both", false)]);
    }
    run_apart(2, 120, &runs);
}

#[test]
fn peers_of_a_saved_process() {
    // By packets nobody is told of a save.
    let cases =
        ["another_past", "late_peer", "saved_again", "one_after_the_other", "frozen_peer", "killed_in_the_middle"];
    let runs = cases.map(|case| {
        let mut vars = way("auto");
        vars.push(("VT_POINTS", "4"));
        ("saved", vec![case], vars)
    });
    run_apart(cases.len(), 120, &runs);
}

#[test]
fn many_contexts_and_many_qps_stand() {
    run(1, 120, &[("standing", vec!["many_contexts", "many_qps"], way("auto"))]);
}

#[test]
fn threads_share_objects() {
    busily("threads", 180);
}
