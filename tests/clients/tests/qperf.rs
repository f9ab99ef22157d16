//! qperf, unmodified: every test of its that is for RDMA, polling and sleeping, and message sizes. It knows addresses by
//! LID only, so without librdmacm it needs InfiniBand ports, here as on an adapter.

use std::process::Command;
use std::time::Duration;

use vervain_tests::{Finished, Job, free_port, have, under_vervain, way};

const LIMIT: Duration = Duration::from_secs(90);
/// How long a server may take to start, and to hear of its client's end.
const SHORT: Duration = Duration::from_secs(10);
const INFINIBAND: (&str, &str) = ("VERVAIN_LINK_LAYER", "infiniband");

/// Each runs for a second, the shortest time that qperf can be told. Its xrc_* are not compiled into Debian's.
const TESTS: &[&str] = &[
    "rc_lat",
    "rc_bw",
    "rc_bi_bw",
    "uc_lat",
    "uc_bw",
    "uc_bi_bw",
    "ud_lat",
    "ud_bw",
    "ud_bi_bw",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_poll_lat",
    "uc_rdma_write_bw",
    "uc_rdma_write_lat",
    "uc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    // These compare each old value with what it must have been.
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// A server, and the end of a client that was given `args`, of a failure with the server's words behind; none where there is
/// no qperf.
fn run(args: &[&str], vars: &[(&str, &str)]) -> Option<Finished> {
    if !have(&["qperf"]) {
        return None;
    }
    let port = free_port();
    let side = || {
        let mut side = under_vervain("qperf");
        side.envs(vars.iter().copied()).args(["-lp", &port.to_string()]);
        side
    };
    let mut server = Job::start(&mut side());
    assert!(server.listens(port, SHORT), "{}", server.finish(Duration::ZERO).describe());
    let client = |side: &mut Command, args: &[&str]| Job::start(side.arg("127.0.0.1").args(args));
    let mut end = client(&mut side(), args).finish(LIMIT);
    if end.success() {
        // The server hears of the end by TCP; a server that hangs is a failure too.
        let quit = client(&mut side(), &["quit"]).finish(SHORT);
        let server = server.finish(LIMIT + SHORT);
        assert!(quit.success() && server.success(), "{}\n{}", quit.describe(), server.describe());
        assert!(server.output.is_empty(), "{}", server.describe());
    } else {
        // With all that it had said when it told the client.
        end.output += &server.finish(Duration::ZERO).output;
    }
    Some(end)
}

/// What each test of a run reported, in its order: the name, and the values by their names.
fn results(run: &Finished) -> Vec<(&str, Vec<(&str, f64)>)> {
    let mut tests: Vec<(&str, Vec<_>)> = Vec::new();
    for line in run.output.lines() {
        if let Some(name) = line.strip_suffix(':') {
            tests.push((name, Vec::new()));
        } else if let (Some((name, value)), Some((_, values))) = (line.split_once('='), tests.last_mut()) {
            let number = value.split_whitespace().next().and_then(|v| v.replace(',', "").parse().ok());
            values.push((name.trim(), number.unwrap_or(0.0)));
        }
    }
    tests
}

/// Every test reports something, and nothing of it is zero: latency, rate, and of UC and UD what arrived.
fn complete(run: &Finished, tests: &[&str]) {
    assert!(run.success(), "{}", run.describe());
    let results = results(run);
    assert_eq!(results.iter().map(|r| r.0).collect::<Vec<_>>(), tests, "{}", run.describe());
    for (name, values) in results {
        let measured = !values.is_empty() && values.iter().all(|&(_, v)| v > 0.0);
        assert!(measured, "{name}: {values:?}\n{}", run.output);
    }
}

#[test]
fn every_test_that_polls() {
    if let Some(end) = run(&[&["-t", "1", "-cp", "1"], TESTS].concat(), &[INFINIBAND]) {
        complete(&end, TESTS);
    }
}

#[test]
fn every_test_that_sleeps() {
    if let Some(end) = run(&[&["-t", "1", "-cp", "0"], TESTS].concat(), &[INFINIBAND]) {
        complete(&end, TESTS);
    }
}

#[test]
fn messages_of_every_size() {
    for (sizes, tests) in
        [("msg_size:1:1M:*1024", &["rc_bw", "rc_rdma_read_bw"][..]), ("msg_size:1:4096:*4096", &["ud_lat"])]
    {
        let args = [&["-t", "1", "-vu", "-oo", sizes], tests].concat();
        let Some(end) = run(&args, &[INFINIBAND]) else { return };
        // A loop goes through the sizes for one test after the other; 1 and 1024 and 1 MiB, 1 and 4096.
        let times = if tests.len() > 1 { 3 } else { 2 };
        let each: Vec<_> = tests.iter().flat_map(|t| std::iter::repeat_n(*t, times)).collect();
        complete(&end, &each);
    }
}

#[test]
fn a_device_and_a_second_port_can_be_chosen() {
    let vars = [INFINIBAND, ("VERVAIN_DEVICES", "2"), ("VERVAIN_PORTS", "2")];
    if let Some(end) = run(&["-t", "1", "-i", "vervain1:2", "-mt", "512", "rc_bw"], &vars) {
        complete(&end, &["rc_bw"]);
    }
}

#[test]
fn the_configuration_of_both_ends_is_shown() {
    if let Some(end) = run(&["conf"], &[INFINIBAND]) {
        assert!(end.success() && end.output.matches("_qperf").count() == 2, "{}", end.describe());
    }
}

/// By librdmacm qperf knows more than LIDs, for RC only ("-cm1 set but not used").
#[test]
fn on_ethernet_it_connects_by_librdmacm() {
    // 0.4.11 names the server's port before it listens there, and its client does not try again.
    for name in ["auto", "roce"] {
        for test in ["rc_lat", "rc_rdma_read_bw", "ver_rc_fetch_add"] {
            let Some(end) = run(&["-t", "1", "-cm1", test], &way(name)) else { return };
            complete(&end, &[test]);
        }
    }
}

#[test]
fn on_ethernet_it_is_told_what_is_missing() {
    for (test, call) in [("rc_lat", "failed to modify QP to RTR"), ("ud_lat", "failed to create address handle")] {
        // Whichever end fails first tells the other.
        let Some(end) = run(&["-t", "1", test], &[("VERVAIN_LOG", "info")]) else { return };
        assert!(!end.success() && end.status.is_some(), "{}", end.describe());
        let told = end.output.contains(&format!("{call}: Invalid argument")) && end.output.contains("needs a GID");
        assert!(told, "{}", end.describe());
    }
}
