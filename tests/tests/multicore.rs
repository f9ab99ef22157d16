//! Several processors at once: what one process sees while others store into its memory, send into its queues, count in
//! its words, and while it forks under all that. Over every way to memory; one by one, for they load the machine.

use std::time::Duration;

use vervain_tests::{Failures, Job, Leftovers, alone, c_program, failure, have_c, under_vervain, way};

/// Runs a program once for each way.
fn on_each_way(program: &str, cases: &[&str], ways: &[&str], limit: u64) {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let before = Leftovers::watch();
    let mut failures = Failures::default();
    for name in ways {
        let mut command = under_vervain(c_program(program));
        command.args(cases).envs(way(name));
        let end = Job::start(&mut command).finish(Duration::from_secs(limit));
        if let Some(why) = failure(&end) {
            failures.add(&format!("{program} {cases:?} {name}"), why);
        }
    }
    let left = before.new_ones();
    if !left.is_empty() {
        failures.add(program, format!("left behind: {left:#?}"));
    }
    failures.assert_none();
}

#[test]
fn who_sees_the_last_byte_of_a_write_sees_all_of_it() {
    on_each_way("torn_tail", &["last_byte", "last_word"], &["auto", "vm", "owner", "shared", "adopt"], 60);
}

#[test]
fn who_sees_a_completion_sees_all_of_its_message() {
    on_each_way("torn_tail", &["immediate", "send"], &["auto", "vm", "owner", "shared", "adopt"], 60);
}

#[test]
fn sixteen_processes_talk_all_to_all_on_few_processors() {
    on_each_way("crowd", &["all_to_all"], &["auto", "vm", "owner"], 60);
}

#[test]
fn of_sixteen_processes_one_is_killed_and_the_others_finish() {
    on_each_way("crowd", &["one_is_killed"], &["auto", "vm", "owner"], 60);
}

#[test]
fn eight_processes_share_one_receive_queue_and_one_completion_queue() {
    on_each_way("shared_queue", &[], &["auto", "vm", "owner"], 60);
}

#[test]
fn atomics_of_peers_and_of_the_owners_threads_add_up() {
    on_each_way("owner_atomics", &[], &["auto", "vm", "owner", "adopt"], 60);
}

#[test]
fn no_write_is_lost_while_the_program_forks_execs_and_registers() {
    on_each_way("fork_traffic", &[], &["auto", "vm", "owner", "adopt"], 60);
}
