//! The RoCE link over the loopback interface: unmodified perftest with VERVAIN_LINK=roce, beside raw UDP and beside what
//! others do over TCP.

use crate::perftest::Test;
use crate::process::number;
use crate::raw_udp;
use crate::report::{Section, Target, Unit};
use crate::rounds::{Measure, Measured, single};
use crate::setup::Setup;
use crate::ucx;
use anyhow::Result;

/// The bounds.
const POLLING_AT_MOST: f64 = 1.25;
const SLEEPING_AT_MOST: f64 = 1.4;
/// The progress thread is woken by the packet, and wakes the program.
const SLEEPING_IN_POLL_AT_MOST: f64 = 3.0;
const OF_UDP_AT_LEAST: f64 = 0.65;
const OF_TCP_AT_LEAST: f64 = 1.3;
const UNDER_LOSS_AT_LEAST: f64 = 0.8;

const ROCE: &[(&str, &str)] = &[("VERVAIN_LINK", "roce"), ("VERVAIN_INTERFACE", "lo")];
const LOSS: &[(&str, &str)] = &[("VERVAIN_LINK", "roce"), ("VERVAIN_INTERFACE", "lo"), ("VERVAIN_FAULTS", "drop=1%")];

const WRITE_LAT: Test = Test { variables: ROCE, ..Test::new("ib_write_lat", 8, 20_000) };
const SEND_LAT: Test = Test { variables: ROCE, ..Test::new("ib_send_lat", 8, 20_000) };
const SLEEPING_SEND_LAT: Test = Test { variables: ROCE, extra: &["-e"], ..Test::new("ib_send_lat", 8, 5_000) };
const WRITE_BW: Test = Test { variables: ROCE, ..Test::new("ib_write_bw", 1 << 20, 3_000) };
const READ_BW: Test = Test { variables: ROCE, ..Test::new("ib_read_bw", 1 << 20, 3_000) };
const LOSSY_WRITE_BW: Test = Test { variables: LOSS, ..Test::new("ib_write_bw", 1 << 20, 500) };

/// Both tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    vec![latency(setup), bandwidth(setup)]
}

/// A row: what it is of, what stands beside it, the promise.
type Line = (&'static str, &'static str, Option<Target>);

fn latency(setup: &Setup) -> Section {
    let named: [(&str, Measure); 9] = [
        ("ib_write_lat 8 B", single(|| WRITE_LAT.typical_ns(setup))),
        ("ib_send_lat 8 B", single(|| SEND_LAT.typical_ns(setup))),
        ("ib_send_lat 8 B -e", single(|| SLEEPING_SEND_LAT.typical_ns(setup))),
        ("Send 8 B, asleep in poll(2)", single(|| asleep_in_poll(setup))),
        ("raw UDP, polling", single(|| raw_udp::polling(setup))),
        ("raw UDP, sleeping", single(|| raw_udp::sleeping(setup))),
        ("UCX tcp am", single(|| ucx::tcp_am_latency(setup))),
        ("UCX tcp put", single(|| ucx::tcp_put_latency(setup))),
        ("libfabric tcp", single(|| raw_udp::libfabric_latency(setup))),
    ];
    const AHEAD: Option<Target> = Some(Target::RatioAtMost(1.0));
    const LINES: [Line; 8] = [
        ("ib_write_lat 8 B", "raw UDP, polling", Some(Target::RatioAtMost(POLLING_AT_MOST))),
        ("ib_write_lat 8 B", "UCX tcp put", AHEAD),
        ("ib_send_lat 8 B", "raw UDP, polling", None),
        ("ib_send_lat 8 B", "UCX tcp am", AHEAD),
        ("ib_send_lat 8 B", "libfabric tcp", AHEAD),
        ("ib_send_lat 8 B -e", "raw UDP, sleeping", Some(Target::RatioAtMost(SLEEPING_AT_MOST))),
        ("ib_send_lat 8 B -e", "libfabric tcp", None),
        ("Send 8 B, asleep in poll(2)", "raw UDP, sleeping", Some(Target::RatioAtMost(SLEEPING_IN_POLL_AT_MOST))),
    ];
    table(
        setup,
        "RoCE over the loopback interface: latency of 8 bytes, half a round trip",
        "perftest's typical time; the median between two programs that sleep in poll(2) on the descriptor of a completion\n\
         channel. Beside it: a datagram of 8 bytes there and back, by sendto and recv, both sides polling or both sleeping in\n\
         the kernel; UCX's tcp transport (median) and libfabric's tcp provider (mean).",
        Unit::Ns,
        named,
        &LINES,
    )
}

/// A mode of `paired.c`.
fn asleep_in_poll(setup: &Setup) -> Result<f64> {
    let mut command = setup.ours("paired")?;
    number(command.envs(ROCE.iter().copied()).args(["poll", "5000"]).args(setup.cpus.words()), None)
}

fn bandwidth(setup: &Setup) -> Section {
    let named: [(&str, Measure); 8] = [
        ("ib_write_bw 1 MiB", single(|| WRITE_BW.bandwidth(setup))),
        ("ib_read_bw 1 MiB", single(|| READ_BW.bandwidth(setup))),
        ("ib_write_bw 1 MiB, 1 % loss", single(|| LOSSY_WRITE_BW.bandwidth(setup))),
        ("raw UDP, GSO and GRO", single(|| raw_udp::stream(setup))),
        ("iperf3, TCP", single(|| raw_udp::tcp_stream(setup))),
        ("UCX tcp", single(|| ucx::tcp_bandwidth(setup))),
        ("libfabric tcp", single(|| raw_udp::libfabric_rate(setup))),
        ("no loss", single(|| WRITE_BW.bandwidth(setup))),
    ];
    const AHEAD: Option<Target> = Some(Target::RatioAtLeast(1.0));
    const LINES: [Line; 6] = [
        ("ib_write_bw 1 MiB", "raw UDP, GSO and GRO", Some(Target::RatioAtLeast(OF_UDP_AT_LEAST))),
        ("ib_write_bw 1 MiB", "iperf3, TCP", Some(Target::RatioAtLeast(OF_TCP_AT_LEAST))),
        ("ib_write_bw 1 MiB", "UCX tcp", AHEAD),
        ("ib_write_bw 1 MiB", "libfabric tcp", AHEAD),
        ("ib_read_bw 1 MiB", "raw UDP, GSO and GRO", None),
        ("ib_write_bw 1 MiB, 1 % loss", "no loss", Some(Target::RatioAtLeast(UNDER_LOSS_AT_LEAST))),
    ];
    table(
        setup,
        "RoCE over the loopback interface: bandwidth",
        "perftest's average. Beside it: datagrams of 4,112 bytes in trains (UDP_SEGMENT, UDP_GRO) with a window, so that none\n\
         is lost; TCP by iperf3; UCX's tcp transport; libfabric's tcp provider there and back. Loss: VERVAIN_FAULTS=drop=1%.",
        Unit::MibPerS,
        named,
        &LINES,
    )
}

/// Measures all in turns. What cannot be measured is said, and leaves its rows out.
fn table<const N: usize>(
    setup: &Setup,
    title: &'static str,
    how: &'static str,
    unit: Unit,
    named: [(&'static str, Measure); N],
    lines: &[Line],
) -> Section {
    let measured = Measured::of(setup.fewer_rounds(), named);
    let row = |(what, beside, target): &Line| measured.pair(*what, unit, (what, 0), (beside, beside, 0), *target);
    Section::grid(title, how, lines.iter().map(row).collect())
}
