//! PM beside the verbs that it stands on, and what data in the work request saves: `examples/pm/pmtest.c`, under `vervain launch`.

use std::process::Command;

use anyhow::{Result, bail};

use crate::perftest::Test;
use crate::process::numbers;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Measure, Measured, single};
use crate::setup::Setup;

/// The longest message.
const MTU: usize = 8 << 10;
const LONG: usize = 1 << 20;

const SEND: Test = Test::new("ib_send_lat", 8, 20_000);
const SENDS: Test = Test::new("ib_send_bw", MTU, 20_000);
const WRITES: Test = Test::new("ib_write_bw", LONG, 500);
const READS: Test = Test::new("ib_read_bw", LONG, 500);

/// How much longer a round trip takes without data in the work request: the paper's design saved 12.5 % (GC-LE), so 1 / 0.875.
const WITHOUT_INLINE: f64 = 1.14;

/// The tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    let pmtest = |name, arguments: &'static [&'static str], variables: &'static [(&'static str, &'static str)]| {
        (name, single(move || run(setup, arguments, variables)))
    };
    let named: Vec<(&'static str, Measure<'_>)> = vec![
        pmtest("round trip", &["-r", "-s", "8"], &[]),
        // As perftest's typical time is of half of one.
        ("send", single(move || Ok(2.0 * SEND.typical_ns(setup)?))),
        pmtest("no inline", &["-r", "-s", "8"], &[("PM_INLINE", "0")]),
        pmtest("own receives", &["-r", "-s", "8"], OWN_RECEIVES),
        pmtest("messages, own receives", &["-m", "-s", "8192", "-n", "50000"], OWN_RECEIVES),
        pmtest("packets", &["-r", "-s", "8"], PACKETS),
        pmtest("packets, no inline", &["-r", "-s", "8"], PACKETS_NO_INLINE),
        pmtest("messages", &["-m", "-s", "8192", "-n", "50000"], &[]),
        ("send-bw", single(move || SENDS.bandwidth(setup))),
        pmtest("writes", &["-w", "-s", "1048576", "-n", "500"], &[]),
        ("write-bw", single(move || WRITES.bandwidth(setup))),
        pmtest("reads", &["-g", "-s", "1048576", "-n", "500"], &[]),
        ("read-bw", single(move || READS.bandwidth(setup))),
        ("standing", Box::new(move || standing(setup))),
    ];
    let measured = Measured::of(setup.fewer_rounds(), named);
    vec![
        measured.section(
            "PM: messages and copies, beside verbs",
            "pmtest: two nodes that poll. The round trip is beside two of ib_send_lat's, which are half of one.",
            rows,
        ),
        measured.section(
            "PM: data in the work request",
            "pmtest with PM_INLINE=0, beside the same with data inside: the paper's design saved 12.5 % of a round trip.",
            inline,
        ),
        measured.section(
            "PM: receives of each connection",
            "pmtest with PM_SRQ=off, which takes 1 MiB for each connection, beside the same with receives that all share.",
            own_receives,
        ),
        measured.section(
            "A context that is stopped, saved and restored",
            "10,000 QPs, each connected to itself: the best of 51 stops and of 5 saves into a memfd, in each round.",
            costs_of_standing,
        ),
    ]
}

fn costs_of_standing(measured: &Measured) -> Rows {
    let both = measured.combined(("standing", 2), ("standing", 3), |save, restore| save + restore);
    vec![
        measured.row("stop", Unit::Ms, ("standing", 0), Target::AtMost(1.0)),
        measured.row("going on", Unit::Ms, ("standing", 1), Target::AtMost(1.0)),
        both.and_then(|both| Row::new("save and restore", Unit::Ms, &both, Target::AtMost(1000.0))),
    ]
}

/// Milliseconds of a stop, of its end, of a save and of a restore.
fn standing(setup: &Setup) -> Result<Vec<f64>> {
    match numbers(setup.ours("standing")?.arg("10000"), Some(setup.cpus.client))?[..] {
        [stop, go, save, restore] => Ok(vec![stop / 1e3, go / 1e3, save, restore]),
        _ => bail!("standing printed something else than four numbers"),
    }
}

const OWN_RECEIVES: &[(&str, &str)] = &[("PM_SRQ", "off")];

const PACKETS: &[(&str, &str)] = &[("VERVAIN_LINK", "roce"), ("VERVAIN_INTERFACE", "lo")];
const PACKETS_NO_INLINE: &[(&str, &str)] = &[("VERVAIN_LINK", "roce"), ("VERVAIN_INTERFACE", "lo"), ("PM_INLINE", "0")];

fn rows(measured: &Measured) -> Rows {
    let (at_least, twice) = (Target::RatioAtLeast, ("2 × ib_send_lat", "send", 0));
    vec![
        measured.pair("round trip, 8 B", Unit::Ns, ("round trip", 0), twice, Target::RatioAtMost(1.2)),
        measured.pair("messages of 8 KiB", Unit::MibPerS, ("messages", 0), ("ib_send_bw", "send-bw", 0), at_least(0.9)),
        measured.pair("pmWrite, 1 MiB", Unit::MibPerS, ("writes", 0), ("ib_write_bw", "write-bw", 0), at_least(0.95)),
        measured.pair("pmRead, 1 MiB", Unit::MibPerS, ("reads", 0), ("ib_read_bw", "read-bw", 0), at_least(0.95)),
    ]
}

fn inline(measured: &Measured) -> Rows {
    let row = |what, without, with| {
        let target = Target::RatioAtLeast(WITHOUT_INLINE);
        measured.pair(what, Unit::Ns, (without, 0), ("with data inside", with, 0), target)
    };
    vec![
        row("round trip without, 8 B, through memory", "no inline", "round trip"),
        row("round trip without, 8 B, by packets", "packets, no inline", "packets"),
    ]
}

fn own_receives(measured: &Measured) -> Rows {
    let row = |what, unit, own, shared| measured.pair(what, unit, (own, 0), ("shared", shared, 0), None);
    vec![
        row("round trip, 8 B", Unit::Ns, "own receives", "round trip"),
        row("messages of 8 KiB", Unit::MibPerS, "messages, own receives", "messages"),
    ]
}

/// The last number that pmtest prints: nanoseconds, or MiB per second.
fn run(setup: &Setup, arguments: &[&str], variables: &[(&str, &str)]) -> Result<f64> {
    let mut command = Command::new(&setup.vervain);
    command.args(["launch", "-n", "2", "--no-prefix", "--"]).arg(setup.program("pmtest")?).args(arguments);
    command.args(["-c", &setup.cpus.words().join(",")]).envs(variables.iter().copied());
    match numbers(&mut command, None)?[..] {
        [_, us] if arguments[0] == "-r" => Ok(us * 1e3),
        [_, mb] => Ok(mb * 1e6 / f64::from(1 << 20)),
        _ => bail!("pmtest printed another line than one of a length"),
    }
}
