//! Peers that are not Vervain: `tests/python/foreign.py` makes packets from the IP header on as RNICs and soft-RoCE do, and
//! an ordinary UDP socket cannot. `tests/c/answer` answers them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vervain_tests::netns::{Host, Network};
use vervain_tests::{Finished, Job, c_program, have, have_c, under_vervain};

const LIMIT: Duration = Duration::from_secs(60);

/// Two hosts whose packets are seen one by one.
fn network() -> Option<Network> {
    if !have_c() || !have(&["python3"]) {
        return None;
    }
    let network = Network::of_two(1500)?;
    network.cut_trains();
    Some(network)
}

/// The addresses of both hosts and a group, of IPv4 or IPv6.
fn addresses(network: &Network, v6: bool) -> [&'static str; 3] {
    let address = |host: &Host| if v6 { host.v6 } else { host.v4 };
    [address(network.first()), address(network.second()), if v6 { "ff0e::4791:1" } else { "239.47.91.1" }]
}

/// Runs `answer` on the second host and a peer on the first, which goes its way; what both have printed.
fn meet(network: &Network, v6: bool, way: &str, label: &str) -> (Finished, String) {
    let [local, remote, group] = addresses(network, v6);
    let mut command = under_vervain(c_program("answer"));
    command.args([local, group, label]).env("VT_GID", if v6 { "1" } else { "0" }).env("VERVAIN_LOG", "info");
    let mut answer = Job::start(&mut network.second().enter(&command));
    assert!(answer.wait_output(" end\n", LIMIT), "{}", answer.finish(Duration::ZERO).describe());
    let printed = answer.output();
    let numbers = printed.lines().find_map(|line| line.strip_prefix("numbers ")).expect("it was waited for");
    let numbers: Vec<_> = numbers.split_whitespace().take(4).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/foreign.py");
    let mut command = Command::new("python3");
    command.arg(script).args([way, local, remote, group]).args(numbers);
    let peer = Job::start(&mut network.first().enter(&command)).finish(LIMIT);
    (peer, answer.finish(Duration::ZERO).output)
}

/// Has the peer send its packets, all of which must be answered.
fn must_be_answered(v6: bool, way: &str) {
    let Some(network) = network() else { return };
    let (peer, answer) = meet(&network, v6, way, "0");
    println!("{}", peer.output);
    assert!(peer.success(), "{}\n{answer}", peer.describe());
}

#[test]
fn packets_with_udp_checksum_0_are_answered_over_ipv4() {
    must_be_answered(false, "plain");
}

#[test]
fn packets_with_udp_checksum_0_are_answered_over_ipv6() {
    must_be_answered(true, "plain");
}

/// Any IPv4 identification, and routers may cut the packet.
#[test]
fn packets_that_may_be_fragmented_are_answered() {
    must_be_answered(false, "clear");
}

#[test]
fn packets_that_were_fragmented_are_answered() {
    must_be_answered(false, "fragments");
}

/// A program may say which packets are a flow: in its address vectors, and by answering a datagram with the header that came
/// with it.
#[test]
fn flow_labels_are_those_of_the_address_vectors() {
    let Some(network) = network() else { return };
    let (peer, answer) = meet(&network, true, "plain", "0x4791f");
    println!("{}", peer.output);
    assert!(peer.success(), "{}\n{answer}", peer.describe());
    let labels = |qp: &str| peer.output.lines().find(|line| line.starts_with(qp)).unwrap_or_default();
    assert!(labels("QP 0x11:").ends_with("flow labels ['0x4791f']"), "{}", labels("QP 0x11:"));
    // The answer to the group's datagram, which had none, has one of the kernel's.
    assert!(labels("QP 0x12:").contains("'0xabcde'"), "{}", labels("QP 0x12:"));
    assert!(answer.contains("from QP 0x12, flow label 0xabcde"), "{answer}");
}

/// The ICRC knows no IPv4 options (IBA annex A17.3.1). Who has such a peer is told.
#[test]
fn packets_with_options_are_counted_and_named() {
    let Some(network) = network() else { return };
    let (peer, answer) = meet(&network, false, "options", "0");
    assert!(peer.success(), "{}\n{answer}", peer.describe());
    assert!(answer.contains("has a wrong ICRC"), "{answer}");
}
