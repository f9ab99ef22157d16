//! The networks that whole programs are tested over, and unmodified clients and C programs of `tests/c` run across one.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::netns::Network;
use crate::pairs::{complaint, each_line, has_all_sizes, pair_between, perftest_options, words};
use crate::{Failures, Job, alone, c_program, failure, have, have_c, must_hold, side_by_side, under_vervain};

const LIMIT: Duration = Duration::from_secs(60);
/// For lines that go through all sizes.
const LONG_LIMIT: Duration = Duration::from_secs(180);
/// What the kernel must allow as receive buffer for the datagrams that a line sends to a group, which are not paced: 300 of
/// 1 KiB, each counted with 2,304 bytes, and the kernel doubles what is asked for.
const GROUP_ROOM: u64 = 400_000;

/// What lies between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// A cable between two hosts, with this MTU.
    Cable(u32),
    /// The loopback of one host, whose processes are made to use packets.
    Loopback,
}

impl Wire {
    /// The network, or None with a printed reason.
    pub fn lay(self) -> Option<Network> {
        match self {
            Wire::Cable(mtu) => Network::of_two(mtu),
            Wire::Loopback => Network::of_one(),
        }
    }

    /// The network, whose packets nftables sees one by one, or None with a printed reason.
    pub fn lay_for_filters(self) -> Option<Network> {
        let network = self.lay()?;
        if self != Wire::Loopback {
            network.cut_trains();
        }
        Some(network)
    }

    /// The variables of a program there.
    pub fn variables(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Wire::Cable(_) => vec![],
            Wire::Loopback => vec![("VERVAIN_LINK", "roce")],
        }
    }

    /// The largest path MTU that fits.
    pub fn path_mtu(self) -> u32 {
        match self {
            Wire::Cable(mtu) => [4096, 2048, 1024, 512].into_iter().find(|n| n + 80 <= mtu).unwrap_or(256),
            Wire::Loopback => 4096,
        }
    }
}

/// The command of a C program on the first host, whose other processes run on the second; they connect by GID 0.
pub fn across(network: &Network, wire: Wire, program: &str, args: &[&str]) -> Command {
    let mut command = under_vervain(c_program(program));
    command.args(args).envs(wire.variables()).env("VT_GID", "0");
    if wire != Wire::Loopback {
        command.env("VT_PEER_NETNS", network.second().path());
    }
    network.first().enter(&command)
}

/// Runs a C program to its end, which must be a good one.
///
/// # Panics
/// When it is not.
pub fn run_across(network: &Network, wire: Wire, program: &str, args: &[&str], seconds: u64) {
    must_hold(&Job::start(&mut across(network, wire, program, args)).finish(Duration::from_secs(seconds)));
}

/// Runs every line of a table that fits the wire, `at_most` so many of a tool, addressed by GID `gid`; ways to a peer's memory
/// are for peers of one host.
///
/// # Panics
/// When a run fails.
pub fn matrix(wire: Wire, table: &[(&str, &[&str])], gid: u32, at_most: usize) {
    let _turn = alone();
    let Some(network) = wire.lay() else { return };
    let mut failures = Failures::default();
    for (tool, lines) in table.iter().filter(|(tool, _)| have(&[tool])) {
        let fits = |line: &&&str| {
            let (args, mtu) = (words(line), mtu_in(line));
            // All sizes take perftest ten seconds: over one wire is enough.
            let is_long = has_all_sizes(line) && wire != Wire::Cable(1500);
            !line.contains(": ") && !is_long && !is_open(tool, &args) && mtu.is_none_or(|mtu| mtu <= wire.path_mtu())
        };
        let lines: Vec<_> = lines.iter().filter(fits).take(at_most).copied().collect();
        each_line(tool, &lines, &mut failures, |line| {
            let args = if tool.starts_with("ibv_") {
                [words(line), vec!["-g".to_owned(), gid.to_string()]].concat()
            } else {
                perftest_options(tool, line, gid)
            };
            let limit = if has_all_sizes(line) { LONG_LIMIT } else { LIMIT };
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
///
/// # Panics
/// When a run fails.
pub fn programs(wire: Wire, lines: &[&str]) {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let Some(network) = wire.lay() else { return };
    let failures = Mutex::new(Failures::default());
    // Some of them mostly wait.
    side_by_side(2, lines, |line| {
        let parts = words(line);
        let args: Vec<_> = parts[1..].iter().map(String::as_str).collect();
        let end = Job::start(&mut across(&network, wire, &parts[0], &args)).finish(Duration::from_secs(180));
        println!("{line}: {:.2} s", end.took.as_secs_f64());
        if let Some(why) = failure(&end) {
            failures.lock().unwrap_or_else(PoisonError::into_inner).add(line, why);
        }
    });
    failures.into_inner().unwrap_or_else(PoisonError::into_inner).assert_none();
}

/// Moves so many MiB each way over 64 QPs between two hosts, each of which drops one packet of a hundred that come, and at least
/// `dropped`: every byte must arrive once.
///
/// # Panics
/// When it does not.
pub fn flood_under_loss(mebibytes: u64, dropped: u64) {
    if !have_c() || !have(&["nft"]) {
        return;
    }
    let _turn = alone();
    let wire = Wire::Cable(1500);
    let Some(network) = wire.lay_for_filters() else { return };
    for host in [network.first(), network.second()] {
        host.drop_incoming("udp dport 4791 numgen random mod 100 < 1");
    }
    let mut command = across(&network, wire, "net_flood", &[]);
    let end = Job::start(command.env("VT_FLOOD_MB", mebibytes.to_string())).finish(Duration::from_secs(400));
    must_hold(&end);
    let found = [network.first().dropped(), network.second().dropped()];
    println!("{found:?} packets dropped");
    assert!(found.iter().all(|n| *n > dropped), "nftables has dropped {found:?} packets only");
}
