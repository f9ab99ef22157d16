//! Programs whose processes reach each other through a window, in which they write and do not read: in a file, and where the kernel
//! lets them write only. Under load, beside the dead and the stopped; unchanged clients.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use vervain_tests::matrix::PERFTEST;
use vervain_tests::pairs::{complaint, has_all_sizes, pair, pair_apart, perftest_by_turns, words};
use vervain_tests::{
    Failures, Job, Runs, alone, c_program, failure, free_port, have, have_c, under_vervain, way, windows,
};
use vervain_window::Options;

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
fn of_two_that_write_and_then_read_one_sees_the_other() {
    Runs { program: "store_buffering", vars: &[("VT_LIMIT_MS", "100")], ..RUNS }.must_hold();
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
fn requests_to_one_who_has_gone_end() {
    let ways = &["auto", "roce", "window", "write_only"];
    Runs { program: "absent", cases: &[&["reliable", "unreliable"]], ways, vars: &[], at_once: 4, ..RUNS }.must_hold();
}

/// Through memory each waits a second for the peer's answer to the first.
#[test]
fn unreliable_requests_to_one_who_stands_still_end() {
    let cases: &[&[&str]] = &[&["unreliable_to_one_who_stands_still"]];
    Runs { program: "absent", cases, ways: &["roce", "window", "write_only"], vars: &[], at_once: 4, ..RUNS }
        .must_hold();
}

/// A program may use a buffer again when the peer has answered what was in it, as UCX does, whether or not the send is still to be done
/// another time.
#[test]
fn datagrams_to_one_who_stands_still_leave() {
    let cases: &[&[&str]] = &[&["datagrams_to_one_who_stands_still"]];
    let ways = &["auto", "roce", "window", "write_only"];
    Runs { program: "absent", cases, ways, vars: &[], at_once: 4, ..RUNS }.must_hold();
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
fn sixty_four_processes_talk_all_to_all() {
    let vars = &[("VERVAIN_WINDOW", windows::large_memory())];
    Runs { program: "scale", cases: &[&["all_to_all"]], ways: &["window"], vars, ..RUNS }.must_hold();
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
/// Two programs talk through a window into which somebody writes what he likes, time and again with another window, for so many seconds:
/// they end by themselves. Programs in a window of their own do not notice.
fn ravage(seconds: u64) {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let seed =
        std::env::var("VERVAIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("VERVAIN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut failures = Failures::default();
    while Instant::now() < end {
        let mut others = under_vervain(c_program("data"));
        let others = Job::start(others.arg("random_ops").envs(way("window")).env("VT_ROUNDS", "100"));
        ravage_once(&mut random, &mut failures);
        failure(&others.finish(Duration::from_secs(120))).into_iter().for_each(|why| failures.add("others", why));
    }
    failures.assert_none();
}

fn ravage_once(random: &mut fastrand::Rng, failures: &mut Failures) {
    let options = Options { size: Some(64 << 20), ..Options::default() };
    let memory = File::from(vervain_window::memfd(&options).expect("a window"));
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let mut programs = under_vervain(c_program("ravaged"));
    programs.envs([("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &*path), ("VT_ROUNDS", "20")]);
    let mut programs = Job::start(&mut programs);
    let talk = programs.wait_output("they talk", Duration::from_secs(60));
    // Much, which ends all at once, or little, which ends one thing after the other.
    let pause = Duration::from_micros([0, 10, 100, 1000][random.usize(..4)]);
    let end = Instant::now() + Duration::from_millis(1500);
    let len = memory.metadata().expect("its length").len();
    let mut bytes = [0; 256];
    while Instant::now() < end {
        // Most of what is used lies at the beginning of the first region.
        let place = |random: &mut fastrand::Rng| {
            let end = if random.u8(..8) == 0 { len - 256 } else { 4 << 20 };
            random.u64(..end)
        };
        let most = if random.bool() { 8 } else { 256 };
        let n = random.usize(1..=most);
        match random.u8(..4) {
            0 => random.fill(&mut bytes[..n]),
            1 => bytes[..8].copy_from_slice(&random.u64(..1000).to_le_bytes()),
            // What was put before, there or elsewhere.
            _ => drop(memory.read_at(&mut bytes[..n], place(random))),
        }
        let at = place(random);
        let at = if random.bool() { at / 8 * 8 } else { at };
        memory.write_at(&bytes[..n], at).expect("it can be written");
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    let end = programs.finish(Duration::from_secs(120));
    failure(&end).into_iter().for_each(|why| failures.add("ravaged", why));
    if !talk {
        failures.add("ravaged", format!("they do not talk: {}", end.describe()));
    }
}

/// The program's memory lies in the window, and what is written there is put there.
const HEAP: Runs<'_> = Runs { ways: &["window-heap"], ..RUNS };

#[test]
fn what_is_put_where_it_belongs_is_as_what_is_sent() {
    for (program, cases) in [
        ("conformance", &["--two"][..]),
        ("withdrawn", &["--two"]),
        ("data", &["random_ops"]),
        ("sequences", &["--two"]),
        ("objects_mr", &[]),
        ("torn_tail", &[]),
        ("seen_and_gone", &[]),
        ("fork_traffic", &[]),
        ("crowd", &["all_to_all"]),
        ("kill", &["kill_under_load"]),
        ("kill", &["stop_and_continue"]),
    ] {
        Runs { program, cases: &[cases], ..HEAP }.must_hold();
    }
}

/// The answers for which long Sends wait are taken by whoever looks, the program or the watch, while another thread may just be posting.
/// Where one is overlooked, nothing goes on: there is no timeout.
#[test]
fn long_sends_go_on_whoever_takes_in_what_they_wait_for() {
    if have(&["ib_send_bw"]) {
        let options = "-s 65536 -n 20000 -u 31 -F";
        let (server, client) = pair("ib_send_bw", &words(options), &way("window-heap"), Duration::from_secs(60));
        let mut failures = Failures::default();
        complaint("ib_send_bw", &server, &client).iter().for_each(|why| failures.add(options, why));
        failures.assert_none();
    }
}

const INFINIBAND: (&str, &str) = ("VERVAIN_LINK_LAYER", "infiniband");

#[test]
fn ports_of_infiniband_have_lids_in_a_window() {
    for (program, cases, ways) in [
        ("conformance", &["--two"][..], &["window", "window-heap"][..]),
        ("state_machine", &[], &["window"]),
        ("objects_limits", &[], &["window"]),
        ("objects_ud", &[], WINDOWS),
    ] {
        Runs { program, cases: &[cases], ways, vars: &[INFINIBAND], ..RUNS }.must_hold();
    }
    // Datagrams with a GRH, from the port's GID and from that of the node; and what reaches the node itself by memory.
    for gid in ["0", "1"] {
        for link in ["window", "auto"] {
            let vars = &[INFINIBAND, ("VERVAIN_LINK", link), ("VT_GID", gid)];
            Runs { program: "objects_ud", ways: &["window"], vars, ..RUNS }.must_hold();
        }
    }
}

/// Of its own node by memory and through the window both, say.
#[test]
fn a_member_of_a_group_gets_one_copy() {
    for vars in [&[INFINIBAND, ("VERVAIN_LINK", "auto")], &[("VT_GID", "last"), ("VERVAIN_LINK", "auto")]] {
        Runs { program: "objects_ud", cases: &[&["multicast"]], ways: &["window"], vars, ..RUNS }.must_hold();
    }
}

#[test]
fn clients_of_two_nodes_find_each_other_by_lids() {
    let mut failures = Failures::default();
    for (tool, lines) in [
        ("ibv_rc_pingpong", &["-c", "-c -e -g 0", "-c -g 1"][..]),
        ("ibv_uc_pingpong", &["-c"]),
        ("ibv_ud_pingpong", &["-c", "-c -e", "-c -g 1"]),
        ("ibv_srq_pingpong", &["-c"]),
        ("ib_send_lat", &["-n 500 -F", "-n 200 -F -c UD", "-n 200 -F -x 1"]),
        ("ib_write_bw", &["-n 500 -F"]),
    ] {
        if !have(&[tool]) {
            continue;
        }
        for (line, link) in lines.iter().flat_map(|line| ["window", "auto"].map(|link| (line, link))) {
            let window = way("window").into_iter().find(|(name, _)| *name == "VERVAIN_WINDOW").expect("a window").1;
            let nodes = [0, 1].map(|node| format!("{window},node={node}"));
            let vars = nodes.each_ref().map(|node| [INFINIBAND, ("VERVAIN_LINK", link), ("VERVAIN_WINDOW", node)]);
            let (server, client) =
                pair_apart(tool, &words(line), vars.each_ref().map(|vars| &vars[..]), Duration::from_secs(60));
            for why in complaint(tool, &server, &client) {
                failures.add(&format!("{tool} {line} by {link}"), why);
            }
        }
    }
    failures.assert_none();
}

/// In each the process is the first one; the QP numbers of the host are for all.
#[test]
fn twenty_windows_of_a_host_are_used_at_once() {
    if !have(&["ibv_rc_pingpong", "stdbuf"]) {
        return;
    }
    let (folder, limit) = (tempfile::tempdir().expect("a folder"), Duration::from_secs(60));
    let start = |n: usize| {
        let window = folder.path().join(n.to_string()).display().to_string();
        let port = free_port().to_string();
        let mut command = under_vervain("stdbuf");
        command.args(["-oL", "ibv_rc_pingpong", "-g", "0", "-p", &port]);
        Job::start(command.envs([("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &window)]))
    };
    let mut failures = Failures::default();
    let mut servers: Vec<_> = (0..20).map(start).collect();
    for (n, server) in servers.iter_mut().enumerate() {
        if !server.wait_output("local address", limit) {
            failures.add(&format!("window {n}"), server.output());
        }
    }
    failures.assert_none();
}

/// Of a peer that stands still in the midst of a put. Where the key stays good, what it has begun comes through the ring when it goes
/// on, as a packet that was late.
#[test]
fn memory_is_taken_back_from_who_puts_there() {
    let cases: &[&[&str]] = &[
        &["memory_in_use_is_taken_from_one_alone"],
        &["what_is_elsewhere_is_left_alone"],
        &["what_was_seen_has_arrived"],
    ];
    Runs { program: "stands_still", cases, at_once: 3, ..HEAP }.must_hold();
}

#[test]
fn whoever_writes_all_over_a_window_makes_no_program_crash_or_hang() {
    ravage(5);
}

/// `make soak`.
#[test]
#[ignore = "runs for VERVAIN_SOAK_SECONDS: make soak"]
fn soak() {
    let seconds = std::env::var("VERVAIN_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    ravage(seconds.unwrap_or(60));
}
