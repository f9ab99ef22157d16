//! Networks that lose packets and fail: packets dropped by nftables between two hosts, at random or by opcode; cables
//! pulled, peers killed, hosts gone. What fails deterministically, by a seed, is tested by the simulation of `transport`.

use std::time::Duration;

use vervain_tests::netns::Network;
use vervain_tests::wire::{Wire, across, flood_under_loss, run_across};
use vervain_tests::{Failures, Job, alone, beside_others, failure, have, have_c, must_hold, side_by_side};

const WIRE: Wire = Wire::Cable(1500);

/// A network whose packets nftables sees one by one.
fn network(wire: Wire) -> Option<Network> {
    if have_c() && have(&["nft"]) { wire.lay_for_filters() } else { None }
}

/// Drops packets of an opcode: those of which `every` says so, an expression of numgen.
fn by_opcode(opcode: u8, every: &str) -> String {
    format!("udp dport 4791 @th,64,8 {opcode:#x} numgen {every}")
}

#[test]
fn a_quarter_of_a_gibibyte_each_way_over_64_qps_under_one_percent_of_loss() {
    // That is more than 250,000 packets of 1024 bytes each way.
    flood_under_loss(256, 1_250);
}

#[test]
fn a_third_of_all_packets_lost_is_slow_and_nothing_else() {
    let _turn = alone();
    let Some(network) = network(WIRE) else { return };
    for host in [network.first(), network.second()] {
        host.drop_incoming("udp dport 4791 numgen random mod 100 < 30");
    }
    let mut command = across(&network, WIRE, "net_flood", &[]);
    let end = Job::start(command.env("VT_FLOOD_MB", "2")).finish(Duration::from_secs(120));
    must_hold(&end);
    assert!(network.second().dropped() > 500);
}

/// The packet that each rule takes away is missed in its own way: an ACK, a request's middle or end, a response.
#[test]
fn the_loss_of_any_kind_of_packet_is_made_good() {
    let _turn = alone();
    let mut failures = Failures::default();
    let kinds = [
        ("SEND first", 0x00),
        ("SEND middle", 0x01),
        ("SEND last with immediate", 0x03),
        ("WRITE first", 0x06),
        ("WRITE middle", 0x07),
        ("WRITE last", 0x08),
        ("READ request", 0x0c),
        ("READ response first", 0x0d),
        ("READ response middle", 0x0e),
        ("READ response last", 0x0f),
        ("READ response only", 0x10),
        ("ACK", 0x11),
        ("atomic ACK", 0x12),
        ("FETCH_ADD", 0x14),
    ];
    for (name, opcode) in kinds {
        let Some(network) = network(WIRE) else { return };
        for host in [network.first(), network.second()] {
            host.drop_incoming(&by_opcode(opcode, "inc mod 7 == 0"));
        }
        let mut command = across(&network, WIRE, "net_flood", &[]);
        let end = Job::start(command.env("VT_FLOOD_MB", "20")).finish(Duration::from_secs(60));
        let dropped = network.first().dropped() + network.second().dropped();
        println!("{name}: {dropped} dropped, {:.2} s", end.took.as_secs_f64());
        if let Some(why) = failure(&end) {
            failures.add(name, why);
        }
        if dropped == 0 {
            failures.add(name, "no such packet passed");
        }
    }
    failures.assert_none();
}

#[test]
fn a_pulled_cable_is_told_and_connections_end_or_wait_for_it() {
    let _turn = beside_others();
    let Some(network) = network(WIRE) else { return };
    run_across(&network, WIRE, "net_events", &["a_pulled_cable", "a_cable_that_is_soon_back"], 120);
}

#[test]
fn a_killed_peer_ends_its_own_connections_only() {
    let _turn = beside_others();
    side_by_side(2, &[WIRE, Wire::Loopback], |wire| {
        let Some(network) = network(*wire) else { return };
        run_across(&network, *wire, "net_events", &["a_killed_peer"], 60);
    });
}

#[test]
fn a_host_that_is_gone_ends_connections_to_it() {
    let _turn = beside_others();
    let Some(mut network) = network(WIRE) else { return };
    let mut job = Job::start(&mut across(&network, WIRE, "net_events", &["a_host_that_is_gone"]));
    assert!(job.wait_output("the host may go", Duration::from_secs(20)), "{}", job.finish(Duration::ZERO).describe());
    network.end_second();
    let end = job.finish(Duration::from_secs(60));
    must_hold(&end);
}
