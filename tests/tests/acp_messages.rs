//! Channels, segmented buffers and workspaces of libacp: the C programs of `tests/acp` as ranks under `vervain launch`.

use std::path::Path;
use std::time::Duration;

use vervain_tests::{Finished, Job, acp, acp_program, have};

/// Far more than any of these takes: a hang is what it finds.
const LIMIT: Duration = Duration::from_secs(120);
/// Packets over the loopback interface, to no other host.
const PACKETS: [&str; 4] = ["--link", "roce", "--interface", "lo"];

fn run(name: &str, options: &[&str], ranks: u32, arguments: &[&str]) -> Option<Finished> {
    let program = have(&["cc"]).then(|| acp_program("cc", &[], name))?;
    Some(Job::start(acp::launch(ranks, options, &program).args(arguments)).finish(LIMIT))
}

/// The job ends with this sentence, and nobody has found a failure.
fn ends(name: &str, options: &[&str], ranks: u32, arguments: &[&str], sentence: &str) {
    let Some(end) = run(name, options, ranks, arguments) else { return };
    assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
    assert!(end.output.contains(sentence) && !end.output.contains("FAIL"), "{sentence}: {}", end.describe());
}

#[test]
fn channels_have_their_functions() {
    acp::holds("channel", &[], &[1, 2, 3, 4], &["all"]);
    acp::holds("channel", &PACKETS, &[2, 3], &["all"]);
    acp::holds("channel", &[&PACKETS[..], &["--faults", "delay=50us..500us,drop=0.5%"]].concat(), &[2], &["all"]);
}

#[test]
fn messages_of_all_sizes_arrive_in_order() {
    acp::holds("channel", &[], &[2], &["rounds", "1000", "20000"]);
    acp::holds("channel", &[], &[2], &["rounds", "3", "67108864"]);
    acp::holds("channel", &[], &[3], &["rounds", "100", "1000000"]);
    acp::holds("channel", &[], &[16], &["rounds", "20", "100000"]);
    acp::holds("channel", &PACKETS, &[3], &["rounds", "10", "100000"]);
}

#[test]
fn a_message_of_1_gib_arrives() {
    acp::holds("channel", &[], &[2], &["long", "1024"]);
}

#[test]
fn a_rank_that_stops_for_a_second_harms_nothing() {
    acp::holds("channel", &[], &[3], &["late"]);
}

#[test]
fn a_rank_that_is_stopped_keeps_nobody_from_others() {
    acp::holds("channel", &[], &[3], &["stopped"]);
}

#[test]
fn channels_and_buffers_are_left_open() {
    acp::holds("channel", &[], &[2, 3], &["open"]);
    acp::holds("segbuf", &[], &[2, 3], &["open"]);
    acp::holds("workspace", &[], &[2, 3], &["open"]);
}

#[test]
fn a_rank_that_is_killed_ends_those_that_wait_for_it() {
    for step in ["0", "1", "2", "3", "4"] {
        ends("channel", &[], 3, &["die", step], "was killed by SIGKILL");
    }
    ends("channel", &PACKETS, 2, &["die", "2"], "was killed by SIGKILL");
    for step in ["0", "1", "2"] {
        ends("segbuf", &[], 3, &["die", step], "was killed by SIGKILL");
    }
}

#[test]
fn threads_use_channels_of_values_side_by_side() {
    for (ranks, count) in [(2, "3000"), (3, "3000")] {
        let mut command = acp::launch(ranks, &[], Path::new(env!("CARGO_BIN_EXE_vervain-acp-rank")));
        let end = Job::start(command.args(["channels", count])).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
    }
}

#[test]
fn segmented_buffers_have_their_functions() {
    acp::holds("segbuf", &[], &[1, 2, 3, 4], &["all"]);
    acp::holds("segbuf", &PACKETS, &[2], &["all"]);
}

#[test]
fn workspaces_have_their_functions() {
    acp::holds("workspace", &[], &[1, 2, 3, 4], &["all"]);
    acp::holds("workspace", &PACKETS, &[3], &["all"]);
}

#[test]
fn ranks_that_create_different_workspaces_end_the_job() {
    ends("workspace", &[], 3, &["differ"], "ranks create different workspaces");
}

#[test]
fn starter_memory_may_have_one_word_and_not_less() {
    acp::holds("channel", &["--starter-cl", "16"], &[2], &["rounds", "10", "1000"]);
    let Some(end) = run("channel", &["--starter-cl", "0"], 2, &["rounds", "1", "10"]) else { return };
    assert!(end.output.contains("ACP_STARTER_MEMORY_CL") && !end.success(), "{}", end.describe());
}
