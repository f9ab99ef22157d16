//! The unmodified clients and the C programs between two hosts, over cables that carry path MTUs of 1024 and 4096, and over
//! the loopback in packets. The hosts are network namespaces; where they cannot be made, the tests say so and pass.

mod common;

use std::time::Duration;

use common::matrix::{PERFTEST, PING_PONGS};
use common::wire::{Wire, across, failure};
use common::{complaint, each_line, pair_between, words};
use vervain_tests::netns::Network;
use vervain_tests::{Failures, Job, alone, c_program, have, have_c, under_vervain};

const LIMIT: Duration = Duration::from_secs(60);
/// For lines that go through all sizes.
const LONG_LIMIT: Duration = Duration::from_secs(180);
/// What the kernel must allow as receive buffer for the datagrams that a line sends to a group, which are not paced: 300 of
/// 1 KiB, each counted with 2,304 bytes, and the kernel doubles what is asked for.
const GROUP_ROOM: u64 = 400_000;

/// Every line of a table that fits the wire, addressed by GID `gid`; ways to a peer's memory are for peers of one host.
fn matrix(wire: Wire, table: &[(&str, &[&str])], gid: u32, at_most: usize) {
    let _turn = alone();
    let Some(network) = wire.lay() else { return };
    let mut failures = Failures::default();
    for (tool, lines) in table.iter().filter(|(tool, _)| have(&[tool])) {
        let fits = |line: &&&str| {
            let (args, mtu) = (words(line), mtu_in(line));
            // All sizes take perftest ten seconds: over one wire is enough.
            let is_long = args.iter().any(|a| a == "-a") && wire != Wire::Cable(1500);
            !line.contains(": ") && !is_long && !is_open(tool, &args) && mtu.is_none_or(|mtu| mtu <= wire.path_mtu())
        };
        let lines: Vec<_> = lines.iter().filter(fits).take(at_most).copied().collect();
        each_line(tool, &lines, &mut failures, |line| {
            let mut args = words(line);
            if tool.starts_with("ibv_") {
                args.extend(["-g".to_owned(), gid.to_string()]);
            } else {
                args.extend(["-F".to_owned(), "-x".to_owned(), gid.to_string()]);
            }
            let limit = if args.iter().any(|a| a == "-a") { LONG_LIMIT } else { LIMIT };
            let (server, client) = pair_between(&network, tool, &args, &wire.variables(), limit);
            println!("{tool} {line}: {:.2} s", client.took.as_secs_f64());
            complaint(tool, &server, &client)
        });
    }
    failures.assert_none();
}

/// Lines that cannot pass over a network. perftest's own multicast group, an IPv6 one of interface-local scope, leaves no host
/// (RFC 4291, 2.7); another is no better where the receiver's socket has no room for all that is sent to it.
fn is_open(tool: &str, args: &[String]) -> bool {
    let has = |word: &str| args.iter().any(|a| a == word);
    tool.starts_with("ib_") && has("-g") && (!has("-M") || !groups_have_room())
}

fn groups_have_room() -> bool {
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max");
    most.is_ok_and(|bytes| bytes.trim().parse().is_ok_and(|bytes: u64| bytes >= GROUP_ROOM))
}

/// The path MTU that a line asks for.
fn mtu_in(line: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip_while(|w| *w != "-m");
    words.nth(1)?.parse().ok()
}

/// Runs C programs, with their arguments, across the wire.
fn programs(wire: Wire, lines: &[&str]) {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let Some(network) = wire.lay() else { return };
    let mut failures = Failures::default();
    for line in lines {
        let parts = words(line);
        let args: Vec<_> = parts[1..].iter().map(String::as_str).collect();
        let end = Job::start(&mut across(&network, wire, &parts[0], &args)).finish(Duration::from_secs(180));
        println!("{line}: {:.2} s", end.took.as_secs_f64());
        if let Some(why) = failure(&end) {
            failures.add(line, why);
        }
    }
    failures.assert_none();
}

/// Operations and faults, order and retries, windows, data byte for byte, threads, many processes.
const PROGRAMS: &[&str] =
    &["conformance --two", "sequences --two", "mw --two", "data", "threads", "fan_in", "shared_queue", "crowd"];

#[test]
fn ping_pongs_over_a_cable_of_1500_bytes() {
    matrix(Wire::Cable(1500), PING_PONGS, 0, usize::MAX);
}

#[test]
fn ping_pongs_over_a_cable_of_9000_bytes() {
    matrix(Wire::Cable(9000), PING_PONGS, 0, 3);
}

#[test]
fn ping_pongs_over_ipv6() {
    matrix(Wire::Cable(1500), PING_PONGS, 1, 3);
}

#[test]
fn ping_pongs_over_the_loopback_in_packets() {
    matrix(Wire::Loopback, PING_PONGS, 0, usize::MAX);
}

#[test]
fn perftest_over_a_cable_of_1500_bytes() {
    matrix(Wire::Cable(1500), PERFTEST, 0, usize::MAX);
}

#[test]
fn perftest_over_a_cable_of_9000_bytes() {
    matrix(Wire::Cable(9000), PERFTEST, 0, 2);
}

#[test]
fn perftest_over_ipv6() {
    matrix(Wire::Cable(1500), PERFTEST, 1, 1);
}

#[test]
fn perftest_over_the_loopback_in_packets() {
    matrix(Wire::Loopback, PERFTEST, 0, usize::MAX);
}

#[test]
fn programs_over_a_cable_of_1500_bytes() {
    programs(Wire::Cable(1500), PROGRAMS);
}

#[test]
fn programs_over_a_cable_of_9000_bytes() {
    programs(Wire::Cable(9000), &["conformance --two", "data"]);
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
        eprintln!("skipped: accept_local cannot be set: {}", allowed.output);
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
