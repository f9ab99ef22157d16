//! ACP over Vervain, beside the same operations in verbs (`onesided.c`), beside one-sided MPI, and beside PMIx for its start:
//! `acp.c`, under `vervain launch`. All is measured in the same rounds, so that any two columns can be held against each other.

use std::process::Command;

use anyhow::Result;

use crate::containers;
use crate::messages::{LAUNCHER, Way, launch};
use crate::mpi;
use crate::perftest::Test;
use crate::process::numbers;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Measure, Measured, single};
use crate::setup::Setup;

/// What a run prints of each size.
pub(crate) const STATISTICS: [&str; 3] = ["median", "mean", "99th percentile"];

const WRITE_BW: Test = Test::new("ib_write_bw", 1 << 20, 500);
const SLEEPING_SEND: Test = Test { extra: &["-e"], ..Test::new("ib_send_lat", 8, 5_000) };

const WORD: &str = "8:20000";
const PAGE: &str = "4096:10000";
/// Above the size up to which a third party moves the data through itself.
const LARGE: &str = "196608:1000";
/// In windows of 16.
const STREAM: &str = "1048576:500";

/// All tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    let measured = measured(setup);
    vec![
        measured.section(
            "ACP: an access and its completion, beside verbs",
            "acp.c: acp_copy or an atomic operation, and acp_complete, by rank 0 on memory of rank 1, which sleeps; all of it from\n\
             malloc's allocator. Beside it onesided.c: post and poll of the same operation. Batches of 20.",
            accesses,
        ),
        measured.section(
            "ACP: copies by a third party",
            "From rank 1 to rank 2, issued by rank 0; both sleep. Beside them a put by rank 0 itself. The command is for a copy that\n\
             is too large to go through rank 0; beside it half a round trip of ib_send_lat -e and a Write of that size.",
            third_parties,
        ),
        measured.section(
            "ACP beside one-sided MPI, 8 B",
            "ranks.c: the operation and MPI_Win_flush on a window of MPI_Win_create, by the MPIs' own ways; medians.",
            beside_mpi,
        ),
        measured.section(
            "ACP: ranks that meet, sleep and start",
            "acp_sync: two ranks have a processor each, eight share the same two. acp_init: two ranks of mpirun; beside it PMIx_Init,\n\
             with the loading of its library.",
            ranks,
        ),
    ]
    .into_iter()
    .chain(containers::sections(setup))
    .collect()
}

fn measured(setup: &Setup) -> Measured {
    let acp = |name, ranks, mode: &'static [&'static str]| (name, launched(setup, "acp", ranks, mode));
    let verbs = |name, mode: &'static [&'static str]| (name, in_verbs(setup, mode));
    let named: Vec<(&'static str, Measure)> = vec![
        acp("put", 2, &["put", WORD, PAGE]),
        verbs("write", &["write-tail", WORD, PAGE, LARGE]),
        acp("get", 2, &["get", WORD, PAGE]),
        verbs("read", &["read-tail", WORD, PAGE]),
        acp("add8", 2, &["add8", WORD]),
        verbs("add", &["fetch-add-tail", WORD]),
        acp("cas8", 2, &["cas8", WORD]),
        verbs("cas", &["compare-swap-tail", WORD]),
        acp("third", 3, &["third", WORD, PAGE, LARGE]),
        ("send", single(|| SLEEPING_SEND.typical_ns(setup))),
        acp("put-bw", 2, &["put-bw", STREAM]),
        acp("third-bw", 3, &["third-bw", STREAM]),
        ("write-bw", single(|| WRITE_BW.bandwidth(setup))),
        ("Open MPI", Box::new(|| one_sided(setup, "openmpi", mpi::OPEN_MPI))),
        ("MPICH", Box::new(|| one_sided(setup, "mpich", mpi::MPICH))),
        acp("sync of 2", 2, &["sync", "0:20000"]),
        acp("sync of 8", 8, &["sync", "0:400"]),
        acp("idle", 2, &["idle", "2"]),
        ("init", Box::new(|| under_mpirun(setup, "acp"))),
        ("PMIx", Box::new(|| under_mpirun(setup, "pmix"))),
    ];
    Measured::of(setup.fewer_rounds(), named)
}

fn accesses(measured: &Measured) -> Rows {
    // As much as a handle, its order and the prefix may cost.
    const WORD_OVER_BY: Target = Target::OverByAtMost(40.0);
    const PAGE_RATIO: Target = Target::RatioAtMost(1.15);
    let kinds = [
        ("put of 8 B", "put", "Write", "write", 0, WORD_OVER_BY),
        ("get of 8 B", "get", "Read", "read", 0, WORD_OVER_BY),
        ("acp_add8", "add8", "Fetch and Add", "add", 0, WORD_OVER_BY),
        ("acp_cas8", "cas8", "Compare and Swap", "cas", 0, WORD_OVER_BY),
        ("put of 4 KiB", "put", "Write", "write", 1, PAGE_RATIO),
        ("get of 4 KiB", "get", "Read", "read", 1, PAGE_RATIO),
    ];
    let mut rows = Vec::new();
    for (what, ours, raw_what, raw, size, target) in kinds {
        for (i, statistic) in STATISTICS.into_iter().enumerate() {
            let at = size * STATISTICS.len() + i;
            let target = (i == 0).then_some(target);
            let what = format!("{what}: {statistic}");
            rows.push(measured.pair(what, Unit::Ns, (ours, at), (raw_what, raw, at), target));
        }
    }
    let (what, beside) = ("put of 1 MiB, 16 outstanding", ("ib_write_bw", "write-bw", 0));
    rows.push(measured.pair(what, Unit::MibPerS, ("put-bw", 0), beside, Target::RatioAtLeast(0.95)));
    rows
}

fn third_parties(measured: &Measured) -> Rows {
    let mut rows = Vec::new();
    for (what, size) in [("8 B", 0), ("4 KiB", 1)] {
        for (i, statistic) in STATISTICS.into_iter().enumerate() {
            let at = size * STATISTICS.len() + i;
            let target = (i == 0).then_some(Target::RatioAtMost(3.0));
            let what = format!("{what}: {statistic}");
            rows.push(measured.pair(what, Unit::Ns, ("third", at), ("put", "put", at), target));
        }
    }
    let at = 2 * STATISTICS.len();
    rows.push(command(measured, at));
    for (i, statistic) in STATISTICS.into_iter().enumerate().skip(1) {
        rows.push(measured.row(format!("192 KiB, by a command: {statistic}"), Unit::Ns, ("third", at + i), None));
    }
    let target = Target::RatioAtLeast(0.8);
    rows.push(measured.pair("1 MiB, 16 outstanding", Unit::MibPerS, ("third-bw", 0), ("put", "put-bw", 0), target));
    rows
}

/// The command beside what it cannot do without.
fn command(measured: &Measured, at: usize) -> Result<Row> {
    let both = measured.combined(("send", 0), ("write", at), |send, write| send + write)?;
    let (ours, both) = (measured.column(("third", at))?, ("a Send that wakes, and a Write", &both[..]));
    Row::beside("192 KiB, by a command: median", Unit::Ns, ours, both, Target::RatioAtMost(1.5))
}

fn beside_mpi(measured: &Measured) -> Rows {
    let kinds = [("put", "put"), ("get", "get"), ("fetch and add", "add8")];
    let mut rows = Vec::new();
    for (i, (what, ours)) in kinds.into_iter().enumerate() {
        for peer in ["Open MPI", "MPICH"] {
            let target = Target::RatioAtMost(1.0);
            rows.push(measured.pair(format!("{what}, {peer}"), Unit::Ns, (ours, 0), (peer, peer, i), target));
        }
    }
    rows
}

fn ranks(measured: &Measured) -> Rows {
    const TWO_AT_MOST: f64 = 2e3;
    const EIGHT_AT_MOST: f64 = 1e6;
    // A hundredth of a processor, in the 2 s of the measurement.
    const IDLE_AT_MOST: f64 = 20.0;
    let mut rows = Vec::new();
    for (what, name, most) in [("2 ranks", "sync of 2", TWO_AT_MOST), ("8 ranks", "sync of 8", EIGHT_AT_MOST)] {
        for (i, statistic) in STATISTICS.into_iter().enumerate() {
            let target = (i == 0).then_some(Target::AtMost(most));
            rows.push(measured.row(format!("acp_sync of {what}: {statistic}"), Unit::Ns, (name, i), target));
        }
    }
    let idle = Target::AtMost(IDLE_AT_MOST);
    rows.push(measured.row("processor time of a rank in 2 s of sleep", Unit::Ms, ("idle", 0), idle));
    let target = Target::OverByAtMost(20.0);
    rows.push(measured.pair("acp_init", Unit::Ms, ("init", 0), ("PMIx_Init", "PMIx", 0), target));
    rows
}

/// `vervain launch` of a program: rank 0 has a processor, the next one the other, and further ranks both in turn; of three, the two
/// that sleep share one.
pub(crate) fn launched<'a>(
    setup: &'a Setup,
    program: &'static str,
    ranks: usize,
    mode: &'static [&'static str],
) -> Measure<'a> {
    Box::new(move || {
        let [first, second] = setup.cpus.words();
        let cpus: Vec<&str> = (0..ranks)
            .map(|rank| if rank % 2 == 0 && !(ranks == 3 && rank > 0) { &first } else { &second })
            .map(String::as_str)
            .collect();
        let mut command = Command::new(&setup.vervain);
        command.args(["launch", "-n", &ranks.to_string(), "--no-prefix", "--"]);
        numbers(command.arg(setup.program(program)?).args(mode).env("ACP_CPUS", cpus.join(",")), None)
    })
}

fn in_verbs<'a>(setup: &'a Setup, mode: &'static [&'static str]) -> Measure<'a> {
    Box::new(move || {
        let (mut command, [client, server]) = (setup.ours("onesided")?, setup.cpus.words());
        numbers(command.args([mode[0], &server, &client]).args(&mode[1..]), None)
    })
}

/// Put, get, fetch and add of 8 bytes.
fn one_sided(setup: &Setup, library: &str, options: &[&str]) -> Result<Vec<f64>> {
    let one = |mode| mpi::run(setup, library, options, mode, &[(8, 20_000)]);
    Ok(["put-created", "get-created", "fetch-add-created"].into_iter().map(one).collect::<Result<Vec<_>>>()?.concat())
}

/// What joining takes: two ranks of Open MPI's launcher, in the same environment for all programs.
fn under_mpirun(setup: &Setup, program: &str) -> Result<Vec<f64>> {
    let mut command = launch(setup.under_vervain(&[], LAUNCHER), Way::Own, 2, true)?;
    numbers(command.arg(setup.program(program)?).arg("init"), None)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_measurement_that_fails_concerns_its_own_rows_only() {
        let six = |first: f64| -> Measure { Box::new(move || Ok((0..6).map(|i| first + f64::from(i)).collect())) };
        let read: Measure = Box::new(|| bail!("no device"));
        let named = [("put", six(140.0)), ("write", six(100.0)), ("get", six(100.0)), ("read", read)];
        let section = Measured::of(1, named).section("title", "how", accesses);
        let names: Vec<&str> = section.rows.iter().map(|row| row.what.as_str()).collect();
        assert_eq!(names[..3], ["put of 8 B: median", "put of 8 B: mean", "put of 8 B: 99th percentile"]);
        assert_eq!(names[3..], ["put of 4 KiB: median", "put of 4 KiB: mean", "put of 4 KiB: 99th percentile"]);
        let met: Vec<_> = section.rows.iter().map(|row| row.met).collect();
        assert_eq!(met, [Some(true), None, None, Some(false), None, None], "140 - 100 <= 40, 143 / 103 > 1.15");
        assert!(section.skipped.contains(&"read: no device".to_owned()), "{:?}", section.skipped);
        assert!(section.skipped.contains(&"nothing is called add8".to_owned()), "{:?}", section.skipped);
    }

    #[test]
    fn a_command_is_held_against_a_send_and_a_write_together() {
        let nine = |last| -> Measure { Box::new(move || Ok([[1.0; 6].as_slice(), &[last; 3]].concat())) };
        let mut send = 80.0;
        let send: Measure = Box::new(move || Ok(vec![std::mem::replace(&mut send, 180.0)]));
        let row =
            command(&Measured::of(2, [("third", nine(300.0)), ("write", nine(120.0)), ("send", send)]), 6).unwrap();
        assert_eq!(row.beside.unwrap().ratio, crate::report::Summary::of(&[1.5, 1.0]).unwrap());
        assert_eq!(row.met, Some(true));
    }
}
