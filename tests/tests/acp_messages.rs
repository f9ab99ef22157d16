//! Channels, segmented buffers and workspaces of libacp: the C programs of `tests/acp` as ranks under `vervain launch`.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use vervain_tests::{Finished, Job, acp, acp_program, have, is_whole};

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

/// A number of the environment's, if it has one.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().expect("a number"))
}

/// That of the environment; in the gate the same each time, else another one, which is printed with the arguments.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time");
    let drawn = if is_whole() { now.as_nanos() as u64 % 1_000_000 } else { 1 };
    setting("VERVAIN_SEED").unwrap_or(drawn)
}

/// Rounds of ping, ring and fan-in.
fn rounds(options: &[&str], ranks: u32, seed: u64, count: u32, longest: usize) {
    acp::holds("rounds", options, &[ranks], &["all", &seed.to_string(), &count.to_string(), &longest.to_string()]);
}

#[test]
fn a_thousand_rounds_of_sizes_that_nobody_knows_arrive() {
    let seed = seed();
    for ranks in [2, 3, 16] {
        rounds(&[], ranks, seed, 1000, 64 << 20);
    }
    for ranks in [2, 3] {
        rounds(&PACKETS, ranks, seed, 1000, 16 << 20);
    }
    rounds(&PACKETS, 16, seed, 100, 2 << 20);
}

#[test]
#[ignore = "runs for VERVAIN_SOAK_SECONDS: make soak"]
fn soak() {
    let (began, seconds) = (Instant::now(), setting("VERVAIN_SOAK_SECONDS").unwrap_or(600));
    let faults = [&PACKETS[..], &["--faults", "delay=50us..500us,drop=0.5%"]].concat();
    for seed in setting("VERVAIN_SEED").unwrap_or_else(|| setting("VERVAIN_SOAK_FROM").unwrap_or(10_000)).. {
        for ranks in [2, 3, 16] {
            rounds(&[], ranks, seed, 1000, 64 << 20);
        }
        rounds(&PACKETS, 3, seed, 1000, 64 << 20);
        rounds(&faults, 2, seed, 200, 1 << 20);
        if began.elapsed() >= Duration::from_secs(seconds) || setting("VERVAIN_SEED").is_some() {
            break;
        }
    }
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
fn odd_uses_are_right_or_refused() {
    acp::holds("odd", &[], &[2, 3], &[]);
    acp::holds("odd", &PACKETS, &[2], &[]);
}

#[test]
fn channels_and_buffers_are_left_open() {
    acp::holds("channel", &[], &[2, 3], &["open"]);
    acp::holds("segbuf", &[], &[2, 3], &["open"]);
    acp::holds("workspace", &[], &[2, 3], &["open"]);
}

#[test]
fn ranks_begin_anew_and_leave_in_the_midst_of_everything() {
    acp::holds("parting", &[], &[2, 3, 4], &["8"]);
    acp::holds("parting", &[&PACKETS[..], &["--faults", "delay=50us..500us,drop=0.5%"]].concat(), &[3], &["4"]);
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

/// Acts of rank 1 in `handshake.c`.
const ACTS: u32 = 12;

#[test]
fn a_rank_that_is_killed_within_the_handshake_ends_the_job() {
    for step in 0..=ACTS {
        ends("handshake", &[], 3, &["die", &step.to_string()], "rank 1 (process");
    }
    ends("handshake", &PACKETS, 3, &["die", "3"], "rank 1 (process");
}

#[test]
fn others_go_on_where_a_rank_stops_within_the_handshake() {
    for step in 0..=ACTS {
        for early in ["0", "1"] {
            acp::holds("handshake", &[], &[3], &["stop", &step.to_string(), early]);
        }
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

/// A rank that stores anything where another one has its ends.
#[test]
fn garbage_of_peers_is_an_error_and_stores_nothing_elsewhere() {
    let ranks = acp::Ranks(env!("CARGO_BIN_EXE_vervain-acp-rank"));
    let seed = seed().to_string();
    println!("seed {seed}");
    ranks.run(2, &[], &["garbage", "2000", &seed]);
    ranks.run(2, &PACKETS, &["garbage", "300", &seed]);
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
fn ranks_without_registrations_have_their_messages() {
    for who in ["1", "2", "3"] {
        acp::holds("exhausted", &[], &[2], &[who]);
    }
    acp::holds("exhausted", &PACKETS, &[2], &["3"]);
}

#[test]
fn workspaces_are_told_of_in_little_starter_memory() {
    acp::holds("workspace", &["--starter-cl", "72"], &[3], &["all"]);
    let Some(end) = run("workspace", &["--starter-cl", "64"], 3, &["all"]) else { return };
    assert!(end.output.contains("ACP_STARTER_MEMORY_CL") && !end.success(), "{}", end.describe());
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
