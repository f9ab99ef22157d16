//! The RoCE link over the loopback interface: unmodified perftest with VERVAIN_LINK=roce, beside raw UDP and beside what
//! others do over TCP.

use anyhow::Result;

use crate::perftest::Test;
use crate::raw_udp;
use crate::report::{Row, Section, Target, Unit};
use crate::rounds::{Columns, Measure, interleaved, single};
use crate::setup::Setup;
use crate::ucx;

/// The bounds.
const POLLING_AT_MOST: f64 = 1.25;
const SLEEPING_AT_MOST: f64 = 1.4;
const OF_UDP_AT_LEAST: f64 = 0.65;
const OF_TCP_AT_LEAST: f64 = 1.3;
const UNDER_LOSS_AT_LEAST: f64 = 0.3;

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

/// A row: what it is of, by its place among ours; what stands beside it, by its place among theirs; the promise.
type Line = (&'static str, usize, &'static str, usize, Option<Target>);

fn latency(setup: &Setup) -> Section {
    let ours: Vec<Measure> = vec![
        single(|| WRITE_LAT.typical_ns(setup)),
        single(|| SEND_LAT.typical_ns(setup)),
        single(|| SLEEPING_SEND_LAT.typical_ns(setup)),
    ];
    let theirs: Vec<Measure> = vec![
        single(|| raw_udp::polling(setup)),
        single(|| raw_udp::sleeping(setup)),
        single(|| ucx::tcp_am_latency(setup)),
        single(|| ucx::tcp_put_latency(setup)),
        single(|| raw_udp::libfabric_latency(setup)),
    ];
    const AHEAD: Option<Target> = Some(Target::RatioAtMost(1.0));
    const LINES: [Line; 7] = [
        ("ib_write_lat 8 B", 0, "raw UDP, polling", 0, Some(Target::RatioAtMost(POLLING_AT_MOST))),
        ("ib_write_lat 8 B", 0, "UCX tcp put", 3, AHEAD),
        ("ib_send_lat 8 B", 1, "raw UDP, polling", 0, None),
        ("ib_send_lat 8 B", 1, "UCX tcp am", 2, AHEAD),
        ("ib_send_lat 8 B", 1, "libfabric tcp", 4, AHEAD),
        ("ib_send_lat 8 B -e", 2, "raw UDP, sleeping", 1, Some(Target::RatioAtMost(SLEEPING_AT_MOST))),
        ("ib_send_lat 8 B -e", 2, "libfabric tcp", 4, None),
    ];
    table(
        setup,
        "RoCE over the loopback interface: latency of 8 bytes, half a round trip",
        "perftest's typical time. Beside it: a datagram of 8 bytes there and back, by sendto and recv, both sides polling or\n\
         both sleeping in the kernel; UCX's tcp transport (median) and libfabric's tcp provider (mean).",
        Unit::Ns,
        ours,
        theirs,
        &LINES,
    )
}

fn bandwidth(setup: &Setup) -> Section {
    let ours: Vec<Measure> = vec![
        single(|| WRITE_BW.bandwidth(setup)),
        single(|| READ_BW.bandwidth(setup)),
        single(|| LOSSY_WRITE_BW.bandwidth(setup)),
    ];
    let theirs: Vec<Measure> = vec![
        single(|| raw_udp::stream(setup)),
        single(|| raw_udp::tcp_stream(setup)),
        single(|| ucx::tcp_bandwidth(setup)),
        single(|| raw_udp::libfabric_rate(setup)),
        single(|| WRITE_BW.bandwidth(setup)),
    ];
    const AHEAD: Option<Target> = Some(Target::RatioAtLeast(1.0));
    const LINES: [Line; 6] = [
        ("ib_write_bw 1 MiB", 0, "raw UDP, GSO and GRO", 0, Some(Target::RatioAtLeast(OF_UDP_AT_LEAST))),
        ("ib_write_bw 1 MiB", 0, "iperf3, TCP", 1, Some(Target::RatioAtLeast(OF_TCP_AT_LEAST))),
        ("ib_write_bw 1 MiB", 0, "UCX tcp", 2, AHEAD),
        ("ib_write_bw 1 MiB", 0, "libfabric tcp", 3, AHEAD),
        ("ib_read_bw 1 MiB", 1, "raw UDP, GSO and GRO", 0, None),
        ("ib_write_bw 1 MiB, 1 % loss", 2, "no loss", 4, Some(Target::RatioAtLeast(UNDER_LOSS_AT_LEAST))),
    ];
    table(
        setup,
        "RoCE over the loopback interface: bandwidth",
        "perftest's average. Beside it: datagrams of 4,112 bytes in trains (UDP_SEGMENT, UDP_GRO) with a window, so that none\n\
         is lost; TCP by iperf3; UCX's tcp transport; libfabric's tcp provider there and back. Loss: VERVAIN_FAULTS=drop=1%.",
        Unit::MibPerS,
        ours,
        theirs,
        &LINES,
    )
}

/// Measures all in turns. What cannot be measured is said, and leaves its rows out.
fn table(
    setup: &Setup,
    title: &'static str,
    how: &'static str,
    unit: Unit,
    ours: Vec<Measure>,
    theirs: Vec<Measure>,
    lines: &[Line],
) -> Section {
    let own = ours.len();
    let measured = interleaved(setup.fewer_rounds(), ours.into_iter().chain(theirs).collect());
    let (ours, theirs) = measured.split_at(own);
    let rows = lines.iter().filter_map(|line| row(unit, ours, theirs, line)).collect();
    let missing = measured.iter().filter_map(|result| result.as_ref().err()).map(|e| format!("{e:#}")).collect();
    Section::grid(title, how, rows, missing)
}

fn row(unit: Unit, ours: &[Result<Columns>], theirs: &[Result<Columns>], line: &Line) -> Option<Row> {
    let (what, our, beside, their, target) = *line;
    let (ours, theirs) = (ours[our].as_ref().ok()?, theirs[their].as_ref().ok()?);
    let row = Row::beside(what, unit, &ours[0], beside, &theirs[0])?;
    Some(target.into_iter().fold(row, Row::target))
}
