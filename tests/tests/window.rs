//! Programs whose processes reach each other through a window, in which they write and do not read: under load, beside the dead and
//! the stopped.

use vervain_tests::Runs;

const RUNS: Runs<'_> =
    Runs { program: "", cases: &[&[]], ways: &["window"], vars: &[("VT_ROUNDS", "10")], at_once: 1, seconds: 120 };

fn run(program: &str, cases: &[&str]) {
    Runs { program, cases: &[cases], ..RUNS }.must_hold();
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
