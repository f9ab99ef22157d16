//! Programs whose processes reach each other through a window, in which they write and do not read: in a file, and where the kernel
//! lets them write only. Under load, beside the dead and the stopped; unchanged clients.

use std::time::Duration;

use vervain_tests::matrix::PERFTEST;
use vervain_tests::pairs::{complaint, has_all_sizes, pair, perftest_by_turns, words};
use vervain_tests::{Failures, Runs, have, way};

const WINDOWS: &[&str] = &["window", "write_only"];

const RUNS: Runs<'_> =
    Runs { program: "", cases: &[&[]], ways: WINDOWS, vars: &[("VT_ROUNDS", "10")], at_once: 1, seconds: 120 };

fn run(program: &str, cases: &[&str]) {
    Runs { program, cases: &[cases], ..RUNS }.must_hold();
}

#[test]
fn who_sees_the_end_of_a_message_sees_all_of_it() {
    Runs { program: "torn_tail", vars: &[("VT_LIMIT_MS", "100")], ..RUNS }.must_hold();
}

#[test]
fn many_processes_send_into_one_queue() {
    Runs { program: "fan_in", vars: &[], ..RUNS }.must_hold();
}

#[test]
fn eight_processes_share_one_receive_queue_and_one_completion_queue() {
    run("shared_queue", &["busily", "the_limit_is_told_once", "asleep"]);
}

#[test]
fn atomics_of_peers_and_of_the_owners_threads_add_up() {
    run("owner_atomics", &[]);
}

#[test]
fn sixteen_processes_talk_all_to_all() {
    run("crowd", &["all_to_all"]);
}

#[test]
fn of_sixteen_processes_one_is_killed_and_the_others_finish() {
    run("crowd", &["one_is_killed"]);
}

#[test]
fn peers_are_killed_under_load() {
    run("kill", &["kill_under_load"]);
}

#[test]
fn a_stopped_peer_harms_no_other() {
    run("kill", &["stop_and_continue"]);
}

#[test]
fn no_write_is_lost_while_the_program_forks_execs_and_registers() {
    run("fork_traffic", &[]);
}

/// Every line of perftest's by one of the two windows, but for those that take all sizes. Its IPv4 group has no IPv4 GID to leave
/// from, hence another one.
#[test]
fn every_tool_of_perftest_runs() {
    for (tool, _) in PERFTEST {
        perftest_by_turns(tool, WINDOWS, |line| !has_all_sizes(line) && !line.contains(":239:"));
    }
    if have(&["ib_send_bw"]) {
        let options = "-n 3000 -r 4096 -c UD -g -s 1024 -M 255:30:0:0:0:0:0:0:0:0:0:0:0:0:0:1 -F -x 0";
        let mut failures = Failures::default();
        for window in WINDOWS {
            let (server, client) = pair("ib_send_bw", &words(options), &way(window), Duration::from_secs(60));
            complaint("ib_send_bw", &server, &client).iter().for_each(|why| failures.add(window, why));
        }
        failures.assert_none();
    }
}
