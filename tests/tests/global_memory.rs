//! ACP's basic layer by its Rust crate: jobs of `vervain-acp-rank` (`tests/src/acp_rank`) under `vervain launch`, over memory and in
//! packets.

use std::process::Command;

use vervain_tests::netns::Network;
use vervain_tests::{Job, acp, unswayed, vervain};

const RANK: acp::Ranks = acp::Ranks(env!("CARGO_BIN_EXE_vervain-acp-rank"));
const PACKETS: &[&str] = &["--link", "roce", "--interface", "lo"];

#[test]
fn random_programs_do_what_the_model_says() {
    for (seed, count) in [("1", "100000"), ("2", "20000")] {
        RANK.run(3, &[], &["random", count, seed]);
    }
}

#[test]
fn random_programs_in_packets_that_are_late_and_lost() {
    RANK.run(3, PACKETS, &["random", "5000", "3"]);
    RANK.run(3, &[PACKETS, &["--faults", "delay=50us..500us,drop=0.5%"]].concat(), &["random", "1000", "4"]);
}

#[test]
fn random_programs_with_few_connections() {
    let mut command = RANK.launch(5, &[], &["random", "3000", "5"]);
    let end = Job::start(command.env("ACP_CONNECTIONS", "2")).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn atomics_of_eight_ranks_sum_exactly() {
    RANK.run(8, &[], &["atomics", "2000"]);
    RANK.run(3, PACKETS, &["atomics", "100"]);
    // By the owner's processor, asked by commands.
    for what in [["atomics", "300"], ["random", "3000"]] {
        let end = Job::start(RANK.launch(4, &[], &what).env("ACP_ATOMICS", "owner")).finish(acp::LIMIT);
        assert!(end.success(), "{}", end.describe());
    }
}

#[test]
fn libraries_have_batches_segments_and_are_woken() {
    RANK.run(4, &[], &["libraries", "1000"]);
    RANK.run(3, PACKETS, &["libraries", "100"]);
    RANK.run(1, &[], &["libraries", "300"]);
}

#[test]
fn commands_that_flood_both_ways_come_to_an_end() {
    RANK.run(2 + 1, &[], &["flood", "20000"]);
    RANK.run(4, PACKETS, &["flood", "300"]);
}

#[test]
fn connections_are_given_up_for_others() {
    let mut command = RANK.launch(9, &[], &["contacts", "300"]);
    let end = Job::start(command.env("ACP_CONNECTIONS", "3")).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn keys_that_are_used_again_never_lead_to_what_was_there() {
    RANK.run(3, &[], &["keys", "3000"]);
}

#[test]
fn ranks_are_renumbered() {
    RANK.run(4, &[], &["reset", "10", "7"]);
    RANK.run(1, &[], &["reset", "2"]);
    RANK.run(2, PACKETS, &["reset", "2"]);
}

#[test]
fn each_color_is_a_device() {
    RANK.run(2, &["--devices", "2"], &["colors", "50"]);
    RANK.run(2, &[PACKETS, &["--devices", "2"]].concat(), &["colors", "20"]);
    RANK.run(3, &["--devices", "2"], &["random", "2000", "6"]);
}

#[test]
fn ranks_of_two_hosts_reach_each_other() {
    let Some(network) = Network::of_two(1500) else { return };
    let words = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_str().expect("UTF-8").to_owned()).collect::<Vec<_>>().join(" ")
    };
    for what in [["random", "5000", "8"], ["atomics", "200", "0"], ["contacts", "50", "9"], ["flood", "2000", "0"]] {
        // Every other rank moves to the second host: by memory where both are on one, in packets between them.
        let mut rank = Command::new(RANK.0);
        rank.args(what);
        let (stays, moves) = (words(&rank), words(&network.second().enter_from_other(&rank)));
        let script = format!("if [ $((VERVAIN_JOB_RANK % 2)) = 0 ]; then exec {stays}; else exec {moves}; fi");
        let mut command = unswayed(vervain());
        command.args(["launch", "-n", "4", "--interface", "eth0", "--", "sh", "-c", &script]);
        let end = Job::start(&mut network.first().enter(&command)).finish(acp::LIMIT);
        assert!(end.success(), "{what:?}: {}", end.describe());
    }
    assert!(network.first().datagrams_sent() > 10_000);
}

#[test]
fn the_end_of_a_rank_ends_the_others() {
    acp::end_by_a_death(Job::start(&mut RANK.launch(3, &["--no-prefix"], &["wait"])), "waits as ");
}

#[test]
fn sizes_of_starter_memory_that_differ_are_one_sentence() {
    let mut command = unswayed(vervain());
    let script = format!("ACP_STARTER_MEMORY=$((4096 * (VERVAIN_JOB_RANK + 1))) exec {} sync 1", RANK.0);
    let end = Job::start(command.args(["launch", "-n", "2", "--", "sh", "-c", &script])).finish(acp::LIMIT);
    assert!(!end.success() && end.status.is_some(), "{}", end.describe());
    assert!(end.output.contains("ranks disagree about the sizes of starter memory"), "{}", end.describe());
    assert!(end.output.contains("rank 0 has 4096, 4096, 4096, rank 1 has 8192"), "{}", end.describe());
}
