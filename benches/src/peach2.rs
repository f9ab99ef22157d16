//! Windows that nodes put to by the model of PEACH2 boards, in the time that boards take: unmodified perftest and Open MPI, beside
//! what "TCA Verbs" (2015) measured on the boards.

use anyhow::Result;

use crate::messages::{Way, mpirun};
use crate::perftest::Test;
use crate::process::numbers;
use crate::ranks::{number_of, of_two};
use crate::report::{Row, Section, Target, Unit};
use crate::rounds::{Measured, single, together};
use crate::setup::Setup;
use crate::window::{new_window, paired};

/// Memory of the processor, or of a GPU.
const CPU: &str = ",heap=on,timing=on";
const GPU: &str = ",heap=gpu,timing=on";

const SEND: Test = Test::new("ib_send_lat", 8, 10_000);
const WRITE: Test = Test::new("ib_write_lat", 8, 10_000);
const READ: Test = Test::new("ib_read_lat", 8, 10_000);
const FETCH_ADD: Test = Test { size: None, extra: &["-A", "FETCH_AND_ADD"], ..Test::new("ib_atomic_lat", 8, 10_000) };
const SWAP: Test = Test { size: None, extra: &["-A", "CMP_AND_SWAP"], ..Test::new("ib_atomic_lat", 8, 10_000) };
const WRITES: Test = Test::new("ib_write_bw", 1 << 20, 500);
const SENDS: Test = Test::new("ib_send_bw", 1 << 20, 500);
const READS: Test = Test::new("ib_read_bw", 1 << 20, 500);

/// What is measured.
enum What {
    Perftest(&'static Test<'static>),
    /// A mode of `paired.c`.
    Paired(&'static str),
    OpenMpi,
}

/// A row: of latency in ns, with the paper's value and the target.
struct Line {
    what: &'static str,
    how: What,
    model: &'static str,
    paper: Option<f64>,
    target: Option<f64>,
}

/// The tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    vec![latency(setup), bandwidth(setup), parts(setup)]
}

fn latency(setup: &Setup) -> Section {
    let line = |what, how, model, paper: Option<f64>, target: Option<f64>| Line { what, how, model, paper, target };
    let lines = [
        line("Write 8 B, direct", What::Perftest(&WRITE), CPU, None, None),
        line("Send 8 B", What::Perftest(&SEND), CPU, Some(3500.0), Some(2300.0)),
        line("Write with immediate 8 B, inline", What::Paired("write-imm"), CPU, Some(3500.0), Some(2300.0)),
        line("Read 8 B", What::Perftest(&READ), CPU, Some(6500.0), Some(4600.0)),
        line("fetch and add", What::Perftest(&FETCH_ADD), CPU, Some(6500.0), Some(4600.0)),
        line("compare and swap", What::Perftest(&SWAP), CPU, Some(6500.0), Some(4600.0)),
        line("Open MPI, message of 8 B", What::OpenMpi, CPU, Some(3600.0), Some(2800.0)),
        line("Send 8 B, memory of a GPU", What::Perftest(&SEND), GPU, Some(4200.0), Some(2800.0)),
        line("Read 8 B, memory of a GPU", What::Perftest(&READ), GPU, Some(7200.0), Some(5100.0)),
        line("Open MPI, message of 8 B, memory of a GPU", What::OpenMpi, GPU, Some(4600.0), Some(3300.0)),
    ];
    let named = lines.iter().map(|line| (line.what, single(move || measure(setup, &line.how, line.model))));
    let row = |measured: &Measured, line: &Line| {
        let (ours, target) = (measured.column((line.what, 0))?, line.target.map(Target::AtMost));
        let Some(paper) = line.paper else { return Row::new(line.what, Unit::Ns, ours, target) };
        Row::beside(line.what, Unit::Ns, ours, ("PEACH2, in the paper", &vec![paper; ours.len()]), target)
    };
    let how = "VERVAIN_WINDOW=peach2:FILE,timing=on: a model, whose transfers take 2.0 µs (descriptors in the board's memory) or 2.2 µs (in\n\
         the host's). Half a round trip of Writes, Sends and messages, the whole operation of Reads and atomics.";
    let rows = |measured: &Measured| lines.iter().map(|line| row(measured, line)).collect();
    Measured::of(setup.rounds, named).section("A model of PEACH2: latency of 8 bytes", how, rows)
}

fn measure(setup: &Setup, how: &What, model: &str) -> Result<f64> {
    let (_folder, file) = new_window()?;
    let window = format!("peach2:{file}{model}");
    let variables = [("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &*window)];
    match how {
        What::Perftest(test) => Test { variables: &variables, ..(*test).clone() }.typical_ns(setup),
        What::Paired(mode) => paired(setup, &window, mode, "10000"),
        What::OpenMpi => {
            let mut command = mpirun(setup, Way::Vervain, 2, true)?;
            let (mode, size) = ("lat", (8, 10_000));
            number_of(mode, size, &numbers(of_two(command.envs(variables), setup, "openmpi", mode, &[size])?, None)?)
        }
    }
}

fn bandwidth(setup: &Setup) -> Section {
    // GB/s of the paper in MiB/s.
    let mib = |gb: f64| gb * 1e9 / f64::from(1 << 20);
    let lines = [
        ("ib_write_bw 1 MiB", &WRITES, CPU, mib(3.5)),
        ("ib_send_bw 1 MiB", &SENDS, CPU, mib(3.5)),
        ("ib_read_bw 1 MiB", &READS, CPU, mib(3.5)),
        ("ib_write_bw 1 MiB, memory of a GPU", &WRITES, GPU, mib(2.8)),
        ("ib_send_bw 1 MiB, memory of a GPU", &SENDS, GPU, mib(2.8)),
    ];
    let run = |test: &'static Test<'static>, model: &'static str| -> Result<f64> {
        let (_folder, file) = new_window()?;
        let window = format!("peach2:{file}{model}");
        let variables = [("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &*window)];
        Test { variables: &variables, ..test.clone() }.bandwidth(setup)
    };
    let row = |((what, .., rate), ours): ((&str, _, _, f64), Vec<f64>)| {
        let rates = vec![rate; ours.len()];
        Row::beside(what, Unit::MibPerS, &ours, ("the board's own rate", &rates), Target::RatioAtLeast(0.97))
    };
    let columns = together(setup.rounds, lines.map(|(_, test, model, _)| single(move || run(test, model))));
    Section::new(
        "A model of PEACH2: bandwidth",
        "perftest's average; the model moves 3.5 GB/s, 2.8 to and from memory of a GPU.",
        columns.map(|columns| lines.into_iter().zip(columns).map(row).collect()),
    )
}

fn parts(setup: &Setup) -> Section {
    let lines = [
        ("everything", CPU),
        ("no chaining: each put is a transfer", ",heap=on,timing=on,without=chaining"),
        ("no low-latency ring: descriptors made on the fly", ",heap=on,timing=on,without=low-latency"),
        ("no descriptors in the board's memory", ",heap=on,timing=on,without=internal"),
        ("those made anew for each message", ",heap=on,timing=on,without=prepared"),
    ];
    let measures = lines.map(|(_, model)| single(move || measure(setup, &What::Perftest(&SEND), model)));
    let rows = together(setup.rounds, measures).map(|columns| {
        let everything: (_, &[f64]) = ("everything", &columns[0]);
        let lines = lines.iter().zip(&columns);
        lines.map(|((what, _), ours)| Row::beside(*what, Unit::Ns, ours, everything, None)).collect()
    });
    Section::new(
        "A model of PEACH2: what each part is worth, ib_send_lat 8 B",
        "Parts of the protocol left out (`without=`).",
        rows,
    )
}
