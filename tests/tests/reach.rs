//! What `ibv_modify_qp` to RTR and `ibv_create_ah` say of hosts that cannot be reached: `tests/c/reach` names them.

use std::time::Duration;

use vervain_tests::netns::Network;
use vervain_tests::{Job, c_program, have_c, under_vervain};

const LIMIT: Duration = Duration::from_secs(60);

fn network() -> Option<Network> {
    have_c().then(|| Network::of_two(1500)).flatten()
}

/// Runs `reach` on the first host with these addresses, and asserts what is printed of each.
fn must_be_reached(network: &Network, gid: &str, expected: &[(&str, &str)]) {
    let mut command = under_vervain(c_program("reach"));
    command.args(expected.iter().map(|(address, _)| address)).env("VT_GID", gid).env("VERVAIN_LOG", "info");
    let end = Job::start(&mut network.first().enter(&command)).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    println!("{}", end.output);
    for (address, errno) in expected {
        let line = format!("{address} modify {errno}, handle {errno}\n");
        assert!(end.output.contains(&line), "not {line}{}", end.describe());
    }
}

/// What the kernel's `ib_resolve_eth_dmac` says of an RNIC's peers, within a second.
#[test]
fn a_host_without_a_route_or_a_neighbour_is_refused_where_it_is_named() {
    let Some(network) = network() else { return };
    let host = network.first();
    host.ip(&["route", "add", "unreachable", "198.51.100.0/24"]);
    host.ip(&["route", "add", "192.0.2.0/25", "via", "10.47.91.2"]);
    host.ip(&["route", "add", "192.0.2.128/25", "via", "10.47.91.78"]);
    let v4 = [
        ("203.0.113.1", "ENETUNREACH"),
        ("198.51.100.1", "EHOSTUNREACH"),
        ("10.47.91.77", "ETIMEDOUT"),
        ("192.0.2.129", "ETIMEDOUT"),
        ("192.0.2.1", "0"),
        ("10.47.91.2", "0"),
        ("10.47.91.1", "0"),
        ("127.0.0.1", "0"),
    ];
    must_be_reached(&network, "0", &v4);
    let v6 = [("2001:db8::1", "ENETUNREACH"), ("fd47:91::77", "ETIMEDOUT"), ("fd47:91::2", "0"), ("fd47:91::1", "0")];
    must_be_reached(&network, "1", &v6);
}

/// An empty datagram makes the kernel ask for the neighbour; none is sent to one that is known.
#[test]
fn a_neighbour_that_is_not_known_yet_is_asked_for_and_a_known_one_is_not() {
    let Some(network) = network() else { return };
    let host = network.first();
    let sent = host.datagrams_sent();
    must_be_reached(&network, "0", &[("10.47.91.2", "0")]);
    assert_eq!(host.datagrams_sent(), sent, "datagrams to a known neighbour");
    host.ip(&["neighbour", "flush", "dev", "eth0", "nud", "permanent"]);
    must_be_reached(&network, "0", &[("10.47.91.2", "0")]);
    must_be_reached(&network, "1", &[("fd47:91::2", "0")]);
    assert_eq!(host.datagrams_sent(), sent + 1, "IPv6 ones count elsewhere");
}
