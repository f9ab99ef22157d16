//! Several processors at once: what one process sees while others store into its memory, send into its queues, count in
//! its words, and while it forks under all that. Over every way to memory; one by one, for they load the machine.

use vervain_tests::Runs;

/// Runs a program once for each way.
fn on_each_way(program: &str, cases: &[&str], ways: &[&str]) {
    Runs { program, cases: &[cases], ways, seconds: 60, ..Runs::default() }.must_hold();
}

#[test]
fn who_sees_the_last_byte_of_a_write_sees_all_of_it() {
    on_each_way("torn_tail", &["last_byte", "last_word"], &["auto", "vm", "owner", "shared", "adopt"]);
}

#[test]
fn who_sees_a_completion_sees_all_of_its_message() {
    on_each_way("torn_tail", &["immediate", "send"], &["auto", "vm", "owner", "shared", "adopt"]);
}

#[test]
fn of_two_that_write_and_then_read_one_sees_the_other() {
    let ways = &["auto", "vm", "owner", "shared", "adopt", "roce"];
    Runs { program: "store_buffering", ways, seconds: 60, ..Runs::default() }.must_hold();
}

#[test]
fn sixteen_processes_talk_all_to_all_on_few_processors() {
    on_each_way("crowd", &["all_to_all"], &["auto", "vm", "owner"]);
}

#[test]
fn of_sixteen_processes_one_is_killed_and_the_others_finish() {
    on_each_way("crowd", &["one_is_killed"], &["auto", "vm", "owner"]);
}

#[test]
fn eight_processes_share_one_receive_queue_and_one_completion_queue() {
    on_each_way("shared_queue", &["busily", "the_limit_is_told_once", "asleep"], &["auto", "vm", "owner"]);
}

#[test]
fn who_sends_to_receives_far_apart_takes_few_page_faults() {
    on_each_way("shared_queue", &["far_apart"], &["auto"]);
}

#[test]
fn short_messages_that_wait_in_their_completions_are_in_memory_in_time() {
    on_each_way("inline_receive", &[], &["auto", "vm", "owner", "shared"]);
}

#[test]
fn atomics_of_peers_and_of_the_owners_threads_add_up() {
    on_each_way("owner_atomics", &[], &["auto", "vm", "owner", "adopt"]);
}

#[test]
fn who_sleeps_while_the_owner_works_for_it_is_woken() {
    on_each_way("owner_sleepers", &[], &["auto", "vm", "owner", "adopt"]);
}

#[test]
fn no_write_is_lost_while_the_program_forks_execs_and_registers() {
    on_each_way("fork_traffic", &[], &["auto", "vm", "owner", "adopt"]);
}
