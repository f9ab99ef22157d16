//! UCX over Vervain: `ucx_info` finds the device, and `ucx_perftest` does everything that UCX can do over verbs, by memory,
//! in packets and through windows.

use std::time::Duration;

use vervain_tests::pairs::pair;
use vervain_tests::ucx::{RC, UD, over_tcp, perftest};
use vervain_tests::{Failures, Job, alone, have, under_vervain, way};

const LIMIT: Duration = Duration::from_secs(60);

const MESSAGES: &[&str] = &["tag_lat", "tag_bw", "tag_sync_lat", "ucp_am_lat", "ucp_am_bw", "stream_lat", "stream_bw"];
const MEMORY: &[&str] = &["ucp_put_lat", "ucp_put_bw", "ucp_get"];
const ATOMICS: &[&str] = &["ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"];

/// Short messages go inline, longer ones through buffers of UCX's, the longest by RDMA Read.
const SIZES: &[&str] = &["8", "8192", "1048576"];

#[test]
fn ucx_info_lists_the_transports_of_the_device() {
    if !have(&["ucx_info"]) {
        return;
    }
    for (name, device) in [("auto", "vervain0:1"), ("roce", "vervain0:1"), ("window", "vervain0:1")] {
        let mut info = under_vervain("ucx_info");
        let end = Job::start(info.arg("-d").envs(way(name))).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        for transport in ["rc_verbs", "ud_verbs"] {
            let listed = end.output.split("Transport: ").any(|t| t.starts_with(transport) && t.contains(device));
            assert!(listed, "{name}: no {transport} on {device}\n{}", end.describe());
        }
    }
}

#[test]
fn every_operation_over_rc_by_memory() {
    perftest("auto", RC, &[MESSAGES, MEMORY], SIZES, "300");
    perftest("auto", RC, &[ATOMICS], &["8"], "1000");
}

#[test]
fn every_operation_over_rc_in_packets() {
    perftest("roce", RC, &[MESSAGES, MEMORY], SIZES, "100");
    perftest("roce", RC, &[ATOMICS], &["8"], "300");
}

#[test]
fn every_operation_over_rc_through_windows() {
    perftest("window", RC, &[MESSAGES, MEMORY], SIZES, "100");
    perftest("window", RC, &[ATOMICS], &["8"], "300");
    perftest("write_only", RC, &[MESSAGES, MEMORY], &["8192"], "100");
}

#[test]
fn every_operation_by_boards() {
    perftest("peach2", RC, &[MESSAGES, MEMORY], &["8", "8192", "65537"], "50");
    perftest("peach2", RC, &[ATOMICS], &["8"], "100");
    perftest("peach2", UD, &[MESSAGES], &["8192"], "50");
    perftest("peach2-timed", RC, &[MESSAGES], &["8192"], "50");
}

#[test]
fn every_operation_over_ud_through_windows() {
    perftest("window", UD, &[MESSAGES], &["8", "65536"], "50");
    perftest("write_only", UD, &[MESSAGES], &["8192"], "50");
}

#[test]
fn every_operation_over_ud_by_memory() {
    perftest("auto", UD, &[MESSAGES], &["8", "65536"], "200");
}

#[test]
fn every_operation_over_ud_in_packets() {
    perftest("roce", UD, &[MESSAGES], &["8", "65536"], "50");
}

#[test]
fn messages_of_64_mib_pass() {
    perftest("auto", RC, &[&["tag_bw", "ucp_put_bw", "ucp_get"]], &["67108864"], "5");
    perftest("roce", RC, &[&["tag_bw"]], &["67108864"], "5");
}

/// Workers that arm their queues and sleep on a descriptor. What came before they armed has to wake them: UCX looks no more.
#[test]
fn workers_that_sleep_are_woken() {
    if !have(&["ucx_perftest"]) {
        return;
    }
    let _turn = alone();
    let mut failures = Failures::default();
    for (link, tls) in [("auto", RC), ("auto", UD), ("roce", RC), ("roce", UD), ("window", RC), ("write_only", UD)] {
        let variables = [way(link), vec![("UCX_TLS", tls)]].concat();
        let words = ["-t", "tag_lat", "-s", "8", "-n", "2000", "-E", "sleep", "-f"];
        let args: Vec<_> = words.iter().chain(over_tcp()).map(|word| (*word).to_owned()).collect();
        let (server, client) = pair("ucx_perftest", &args, &variables, LIMIT);
        println!("{link} {tls} sleeping: {:.2} s", client.took.as_secs_f64());
        for end in [&server, &client].into_iter().filter(|end| !end.success()) {
            failures.add(&format!("{link} {tls} sleeping"), end.describe());
        }
    }
    failures.assert_none();
}
