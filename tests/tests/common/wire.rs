//! The networks that whole programs are tested over, and C programs of `tests/c` run across one.

use std::process::Command;
use std::time::Duration;

use vervain_tests::netns::Network;
use vervain_tests::{Finished, Job, c_program, under_vervain};

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

/// Why a C program's run failed, if it did. Its last line counts the cases.
pub fn failure(end: &Finished) -> Option<String> {
    for line in end.output.lines().filter(|l| l.starts_with("note ") || l.starts_with("skip ")) {
        println!("{line}");
    }
    if end.success() && end.output.contains(" cases, 0 failed") {
        return None;
    }
    let bad: Vec<_> = end.output.lines().filter(|l| l.starts_with("FAIL") || l.starts_with("seed")).collect();
    Some(format!("{}\n{}", bad.join("\n"), end.describe()))
}

/// Runs a C program to its end, which must be a good one.
///
/// # Panics
/// When it is not.
pub fn run_across(network: &Network, wire: Wire, program: &str, args: &[&str], seconds: u64) {
    must_hold(&Job::start(&mut across(network, wire, program, args)).finish(Duration::from_secs(seconds)));
}

/// Fails the test when a C program's run failed.
///
/// # Panics
/// When it did.
pub fn must_hold(end: &Finished) {
    if let Some(why) = failure(end) {
        panic!("{why}");
    }
}
