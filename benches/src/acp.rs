//! ACP over Vervain, beside the same operations in verbs (`rdma.c`), beside one-sided MPI, and beside PMIx for its start:
//! `acp.c`, under `vervain launch`. All is measured in the same rounds, so that any two columns can be held against each other.

use std::collections::HashMap;
use std::process::Command;

use anyhow::{Context, Result};

use crate::containers;
use crate::messages::{LAUNCHER, Way, environment, is_there, options};
use crate::mpi;
use crate::perftest::Test;
use crate::process::numbers;
use crate::report::{Row, Section, Target, Unit};
use crate::rounds::{Columns, Measure, interleaved};
use crate::setup::{LIMIT, Setup};

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
    let measured = Measured::all(setup);
    vec![
        measured.section(
            "ACP: an access and its completion, beside verbs",
            "acp.c: acp_copy or an atomic operation, and acp_complete, by rank 0 on memory of rank 1, which sleeps; all of it from\n\
             malloc's allocator. Beside it rdma.c: post and poll of the same operation. Batches of 20.",
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
            "mpi.c: the operation and MPI_Win_flush on a window of MPI_Win_create, by the MPIs' own ways; medians.",
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

/// What each measurement gave, by its name.
pub(crate) struct Measured(HashMap<&'static str, Result<Columns, String>>);

impl Measured {
    fn all(setup: &Setup) -> Measured {
        let acp = |name, ranks, mode: &'static [&'static str]| (name, launched(setup, "acp", ranks, mode));
        let rdma = |name, mode: &'static [&'static str]| (name, in_verbs(setup, mode));
        let named: Vec<(&'static str, Measure)> = vec![
            acp("put", 2, &["put", WORD, PAGE]),
            rdma("write", &["write", WORD, PAGE, LARGE]),
            acp("get", 2, &["get", WORD, PAGE]),
            rdma("read", &["read", WORD, PAGE]),
            acp("add8", 2, &["add8", WORD]),
            rdma("add", &["add", WORD]),
            acp("cas8", 2, &["cas8", WORD]),
            rdma("cas", &["cas", WORD]),
            acp("third", 3, &["third", WORD, PAGE, LARGE]),
            ("send", Box::new(|| Ok(vec![SLEEPING_SEND.typical_ns(setup)?]))),
            acp("put-bw", 2, &["put-bw", STREAM]),
            acp("third-bw", 3, &["third-bw", STREAM]),
            ("write-bw", Box::new(|| Ok(vec![WRITE_BW.bandwidth(setup)?]))),
            ("Open MPI", Box::new(|| one_sided(setup, "openmpi", mpi::OPEN_MPI))),
            ("MPICH", Box::new(|| one_sided(setup, "mpich", mpi::MPICH))),
            acp("sync of 2", 2, &["sync", "0:20000"]),
            acp("sync of 8", 8, &["sync", "0:400"]),
            acp("idle", 2, &["idle", "2"]),
            ("init", Box::new(|| under_mpirun(setup, "acp"))),
            ("PMIx", Box::new(|| under_mpirun(setup, "pmix"))),
        ];
        Measured::of(setup, named)
    }

    /// All of these in the same rounds.
    pub(crate) fn of<'a>(setup: &Setup, named: Vec<(&'static str, Measure<'a>)>) -> Measured {
        let (names, measures): (Vec<_>, Vec<_>) = named.into_iter().unzip();
        let results = interleaved(setup.fewer_rounds(), measures);
        let results = results.into_iter().map(|result| result.map_err(|e| format!("{e:#}")));
        Measured(names.into_iter().zip(results).collect())
    }

    /// One number of a measurement, in each round.
    pub(crate) fn column(&self, name: &str, index: usize) -> Result<&[f64]> {
        let columns = self.0.get(name).with_context(|| format!("nothing is called {name}"))?;
        let columns = columns.as_ref().map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
        columns.get(index).map(Vec::as_slice).with_context(|| format!("{name} printed too few numbers"))
    }

    /// A table of those rows that could be measured, and why the others could not.
    pub(crate) fn section(
        &self,
        title: &'static str,
        how: &'static str,
        rows: impl Fn(&Measured) -> Vec<Result<Option<Row>>>,
    ) -> Section {
        let mut section = Section::new(title, how, Ok(Vec::new()));
        for row in rows(self) {
            match row {
                Ok(row) => section.rows.extend(row),
                Err(e) => section.skipped.push(format!("{e:#}")),
            }
        }
        section.skipped.dedup();
        section
    }

    /// A row of two columns.
    pub(crate) fn pair(
        &self,
        what: impl Into<String>,
        unit: Unit,
        ours: (&str, usize),
        raw: (&'static str, &str, usize),
        target: Option<Target>,
    ) -> Result<Option<Row>> {
        let row = Row::beside(what, unit, self.column(ours.0, ours.1)?, raw.0, self.column(raw.1, raw.2)?);
        Ok(row.map(|row| target.into_iter().fold(row, Row::target)))
    }
}

fn accesses(measured: &Measured) -> Vec<Result<Option<Row>>> {
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
    let streamed = ("put-bw", 0);
    let target = Some(Target::RatioAtLeast(0.95));
    rows.push(measured.pair(
        "put of 1 MiB, 16 outstanding",
        Unit::MibPerS,
        streamed,
        ("ib_write_bw", "write-bw", 0),
        target,
    ));
    rows
}

fn third_parties(measured: &Measured) -> Vec<Result<Option<Row>>> {
    let mut rows = Vec::new();
    for (what, size) in [("8 B", 0), ("4 KiB", 1)] {
        for (i, statistic) in STATISTICS.into_iter().enumerate() {
            let at = size * STATISTICS.len() + i;
            let target = (i == 0).then_some(Target::RatioAtMost(3.0));
            rows.push(measured.pair(
                format!("{what}: {statistic}"),
                Unit::Ns,
                ("third", at),
                ("put", "put", at),
                target,
            ));
        }
    }
    let at = 2 * STATISTICS.len();
    rows.push(command(measured, at));
    for (i, statistic) in STATISTICS.into_iter().enumerate().skip(1) {
        let ours = measured.column("third", at + i);
        rows.push(ours.map(|ours| Row::new(format!("192 KiB, by a command: {statistic}"), Unit::Ns, ours)));
    }
    let target = Some(Target::RatioAtLeast(0.8));
    rows.push(measured.pair("1 MiB, 16 outstanding", Unit::MibPerS, ("third-bw", 0), ("put", "put-bw", 0), target));
    rows
}

/// The command beside what it cannot do without.
fn command(measured: &Measured, at: usize) -> Result<Option<Row>> {
    let (send, write) = (measured.column("send", 0)?, measured.column("write", at)?);
    let both: Vec<f64> = send.iter().zip(write).map(|(send, write)| send + write).collect();
    let ours = measured.column("third", at)?;
    let row = Row::beside("192 KiB, by a command: median", Unit::Ns, ours, "a Send that wakes, and a Write", &both);
    Ok(row.map(|row| row.target(Target::RatioAtMost(1.5))))
}

fn beside_mpi(measured: &Measured) -> Vec<Result<Option<Row>>> {
    let kinds = [("put", "put"), ("get", "get"), ("fetch and add", "add8")];
    let mut rows = Vec::new();
    for (i, (what, ours)) in kinds.into_iter().enumerate() {
        for peer in ["Open MPI", "MPICH"] {
            let target = Some(Target::RatioAtMost(1.0));
            rows.push(measured.pair(format!("{what}, {peer}"), Unit::Ns, (ours, 0), (peer, peer, i), target));
        }
    }
    rows
}

fn ranks(measured: &Measured) -> Vec<Result<Option<Row>>> {
    const TWO_AT_MOST: f64 = 2e3;
    const EIGHT_AT_MOST: f64 = 1e6;
    // A hundredth of a processor, in the 2 s of the measurement.
    const IDLE_AT_MOST: f64 = 20.0;
    let single = |what: String, unit, name, index, target: Option<f64>| {
        let row = Row::new(what, unit, measured.column(name, index)?);
        Ok(row.map(|row| target.map(Target::AtMost).into_iter().fold(row, Row::target)))
    };
    let mut rows = Vec::new();
    for (what, name, most) in [("2 ranks", "sync of 2", TWO_AT_MOST), ("8 ranks", "sync of 8", EIGHT_AT_MOST)] {
        for (i, statistic) in STATISTICS.into_iter().enumerate() {
            let target = (i == 0).then_some(most);
            rows.push(single(format!("acp_sync of {what}: {statistic}"), Unit::Ns, name, i, target));
        }
    }
    rows.push(single("processor time of a rank in 2 s of sleep".into(), Unit::Ms, "idle", 0, Some(IDLE_AT_MOST)));
    let target = Some(Target::OverByAtMost(20.0));
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
        let (first, second) = (setup.cpus.client.to_string(), setup.cpus.server.to_string());
        let cpus: Vec<&str> = (0..ranks)
            .map(|rank| if rank % 2 == 0 && !(ranks == 3 && rank > 0) { &first } else { &second })
            .map(String::as_str)
            .collect();
        let mut command = Command::new(&setup.vervain);
        command.args(["launch", "-n", &ranks.to_string(), "--no-prefix", "--"]);
        command.arg(setup.program(program)?).args(mode).env("ACP_CPUS", cpus.join(","));
        numbers(&mut command, None, LIMIT)
    })
}

fn in_verbs<'a>(setup: &'a Setup, mode: &'static [&'static str]) -> Measure<'a> {
    Box::new(move || {
        let mut command = setup.under_vervain(&[], setup.program("rdma")?);
        command.args([mode[0], &setup.cpus.server.to_string(), &setup.cpus.client.to_string()]).args(&mode[1..]);
        numbers(&mut command, None, LIMIT)
    })
}

/// Put, get, fetch and add of 8 bytes.
fn one_sided(setup: &Setup, library: &str, options: &[&str]) -> Result<Vec<f64>> {
    let one = |mode| mpi::run(setup, library, options, mode, &[WORD.to_owned()]);
    Ok(["put", "get", "fetch-add"].into_iter().map(one).collect::<Result<Vec<_>>>()?.concat())
}

/// What joining takes: two ranks of Open MPI's launcher, in the same environment for all programs.
fn under_mpirun(setup: &Setup, program: &str) -> Result<Vec<f64>> {
    is_there()?;
    let mut command = setup.under_vervain(&[], LAUNCHER);
    command.args(options(Way::Own, true)).args(["-np", "2"]).arg(setup.program(program)?).arg("init");
    numbers(environment(&mut command, Way::Own), None, LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_that_fails_concerns_its_own_rows_only() {
        let six = |first: f64| Ok((0..6).map(|i| vec![first + f64::from(i)]).collect());
        let all =
            [("put", six(140.0)), ("write", six(100.0)), ("get", six(100.0)), ("read", Err("no device".to_owned()))];
        let section = Measured(HashMap::from(all)).section("title", "how", accesses);
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
        let nine = |last: f64| Ok([vec![vec![1.0, 1.0]; 6], vec![vec![last, last]; 3]].concat());
        let all = [("third", nine(300.0)), ("write", nine(120.0)), ("send", Ok(vec![vec![80.0, 180.0]]))];
        let row = command(&Measured(HashMap::from(all)), 6).unwrap().unwrap();
        assert_eq!(row.beside.unwrap().ratio, crate::stats::Summary::of(&[1.5, 1.0]).unwrap());
        assert_eq!(row.met, Some(true));
    }
}
