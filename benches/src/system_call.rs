//! Two processes whose memory is not shared: Vervain by process_vm_writev beside the bare calls. This is how memory is
//! reached that the preload did not serve and that nobody adopted.

use anyhow::Result;

use crate::between::raw;
use crate::perftest::Test;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{single, together};
use crate::setup::Setup;

const MIB: usize = 1 << 20;
/// Bounds of the ratios.
const LATENCY_AT_MOST: f64 = 1.2;
const BANDWIDTH_AT_LEAST: f64 = 0.9;

const UNSHARED: &[(&str, &str)] = &[("VERVAIN_SHARE", "off"), ("VERVAIN_MEMORY", "vm")];
const WRITE_LAT: Test = Test { variables: UNSHARED, ..Test::new("ib_write_lat", 8, 20_000) };
const WRITE_BW: Test = Test { variables: UNSHARED, ..Test::new("ib_write_bw", MIB, 500) };

/// Latency and bandwidth.
pub fn section(setup: &Setup) -> Section {
    Section::new(
        "Two processes: memory reached by process_vm (VERVAIN_SHARE=off, VERVAIN_MEMORY=vm)",
        "One call as its caller sees it, and the same ping-pong made of such calls (what the target sees starts\n\
         before the call returns, so this may be the smaller one). Bandwidths: each round takes the best of three short runs\n\
         of either, since what disturbs a bandwidth only ever lowers it.",
        rows(setup),
    )
}

fn rows(setup: &Setup) -> Result<Rows> {
    let columns = together(
        setup.rounds,
        [
            single(|| WRITE_LAT.typical_ns(setup)),
            single(|| raw(setup, "raw", &["call", "20000"])),
            single(|| raw(setup, "raw", &["pingpong", "20000"])),
        ],
    )?;
    let [ours, call, pingpong] = &columns[..] else { return Ok(Vec::new()) };
    let copies = together(
        setup.rounds,
        [
            single(|| best_of_three(|| WRITE_BW.bandwidth(setup))),
            single(|| best_of_three(|| raw(setup, "raw", &["bandwidth", &MIB.to_string(), "500"]))),
        ],
    )?;
    let at_most = Target::RatioAtMost(LATENCY_AT_MOST);
    let raw_copies: (_, &[f64]) = ("process_vm_writev of 1 MiB", &copies[1]);
    let at_least = Target::RatioAtLeast(BANDWIDTH_AT_LEAST);
    Ok(vec![
        Row::beside("ib_write_lat 8 B / one call", Unit::Ns, ours, ("process_vm_writev", call), at_most),
        Row::beside("ib_write_lat 8 B / ping-pong", Unit::Ns, ours, ("process_vm_writev ping-pong", pingpong), at_most),
        Row::beside("ib_write_bw 1 MiB", Unit::MibPerS, &copies[0], raw_copies, at_least),
    ])
}

fn best_of_three(measure: impl Fn() -> Result<f64>) -> Result<f64> {
    let runs = (0..3).map(|_| measure()).collect::<Result<Vec<_>>>()?;
    Ok(runs.into_iter().fold(0.0, f64::max))
}
