//! The unmodified clients and the C programs between two hosts, over a cable that carries a path MTU of 1024, by IPv4 and IPv6.
//! The hosts are network namespaces; where they cannot be made, the tests are skipped. Other networks, and each line of perftest's,
//! are in `tests/clients/tests/networks.rs`.

use std::time::Duration;

use vervain_tests::matrix::{CONNECTED, PERFTEST, PING_PONGS};
use vervain_tests::netns::Network;
use vervain_tests::wire::{Wire, matrix, programs};
use vervain_tests::{Job, c_program, have, have_c, skip, under_vervain};

const LIMIT: Duration = Duration::from_secs(60);

const SHARED_QUEUE: &str = "shared_queue busily the_limit_is_told_once asleep";
/// Operations and faults, order and retries, windows, data byte for byte, threads, many processes.
const PROGRAMS: &[&str] =
    &["conformance --two", "sequences --two", "mw --two", "data", "threads", "fan_in", SHARED_QUEUE, "crowd"];

#[test]
fn ping_pongs_over_a_cable_of_1500_bytes() {
    matrix(Wire::Cable(1500), PING_PONGS, 0, usize::MAX);
}

#[test]
fn ping_pongs_over_ipv6() {
    matrix(Wire::Cable(1500), PING_PONGS, 1, 3);
}

#[test]
fn perftest_over_a_cable_of_1500_bytes() {
    matrix(Wire::Cable(1500), PERFTEST, 0, 3);
}

#[test]
fn perftest_over_ipv6() {
    matrix(Wire::Cable(1500), PERFTEST, 1, 1);
}

#[test]
fn perftest_connected_by_librdmacm_over_a_cable() {
    matrix(Wire::Cable(1500), CONNECTED, 0, usize::MAX);
}

#[test]
fn programs_over_a_cable_of_1500_bytes() {
    programs(Wire::Cable(1500), PROGRAMS);
}

/// A host with two interfaces on one network gets back what it sends to a group. Its members have had that by memory.
#[test]
fn what_the_network_brings_back_to_a_group_is_no_second_copy() {
    if !have_c() || !have(&["ibv_devinfo", "ip"]) {
        return;
    }
    let Some(network) = Network::of_one() else { return };
    let host = network.first();
    host.ip(&["link", "add", "one", "type", "veth", "peer", "name", "two"]);
    for (interface, address) in [("one", "10.47.92.1/24"), ("two", "10.47.92.2/24")] {
        host.ip(&["address", "add", address, "dev", interface]);
        host.ip(&["link", "set", interface, "up"]);
    }
    // The kernel drops such IPv4 packets unless it is told that this host may be on the other side; IPv6 ones it does not.
    let allow =
        "cd /proc/sys/net/ipv4/conf && for i in all one two; do echo 1 > $i/accept_local; echo 0 > $i/rp_filter; done";
    let allowed = host.run("sh", &["-c", allow]);
    if !allowed.success() {
        skip(format_args!("accept_local cannot be set: {}", allowed.output));
        return;
    }
    let gids = Job::start(&mut host.enter(under_vervain("ibv_devinfo").arg("-v"))).finish(LIMIT).output;
    let gid =
        gids.lines().find(|line| line.contains("::ffff:10.47.92.1")).and_then(|line| line.split(['[', ']']).nth(1));
    let gid = gid.unwrap_or_else(|| panic!("no GID of 10.47.92.1 in\n{gids}")).trim();
    let mut command = under_vervain(c_program("objects_ud"));
    command.arg("multicast").env("VT_GID", gid);
    let end = Job::start(&mut host.enter(&command)).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
}
