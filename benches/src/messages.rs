//! Open MPI over UCX over Vervain, beside Open MPI's own ways: shared memory inside a host, TCP between two. Messages and
//! one-sided operations by `ranks.c`, on malloc'd memory, and the kernels of `tests/apps`.

use std::process::Command;

use anyhow::{Context, Result, bail};
use vervain_tests::app_program;
use vervain_tests::netns::Network;

use crate::process::{LIMIT, numbers, output};
use crate::ranks::{self, Operations, number_of, of_two};
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Measure, all};
use crate::setup::{Setup, installed, package_directory};

pub(crate) const LAUNCHER: &str = "mpirun.openmpi";
const COMPILER: &str = "mpicc.openmpi";

/// What Open MPI goes by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Its shared memory (vader), or TCP; as Debian sets it up.
    Own,
    /// UCX over verbs, and nothing else.
    Vervain,
}

/// A program that runs both ways, and what is promised of it.
struct Pair {
    what: &'static str,
    unit: Unit,
    mode: &'static str,
    size: Operations,
    target: Option<Target>,
    limit: Option<&'static str>,
}

const fn pair(what: &'static str, unit: Unit, mode: &'static str, size: Operations, target: Option<Target>) -> Pair {
    Pair { what, unit, mode, size, target, limit: None }
}

const LATENCY_LIMIT: &str = "UCX polls a queue for messages and one for datagrams in turn, each by a call; what it costs \
     itself shows its own tag_lat over posix (part ucx) beside Open MPI's shared memory";

/// All tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    let mut all = vec![inside(setup), between(setup), kernels(setup)];
    all.extend(ranks::sections(setup));
    all
}

fn inside(setup: &Setup) -> Section {
    let pairs = [
        Pair {
            limit: Some(LATENCY_LIMIT),
            ..pair("message, 8 B", Unit::Ns, "lat", (8, 20_000), Some(Target::RatioAtMost(2.0)))
        },
        pair("message, 64 KiB", Unit::Ns, "lat", (65_536, 2_000), None),
        pair("message, 1 MiB", Unit::Ns, "lat", (1 << 20, 200), None),
        pair("messages of 8 B", Unit::MibPerS, "bw", (8, 100_000), None),
        pair("messages of 64 KiB", Unit::MibPerS, "bw", (65_536, 10_000), None),
        pair("messages of 1 MiB", Unit::MibPerS, "bw", (1 << 20, 500), Some(Target::RatioAtLeast(1.5))),
        pair("put, 8 B", Unit::Ns, "put-created", (8, 20_000), Some(Target::RatioAtMost(0.5))),
        pair("get, 8 B", Unit::Ns, "get-created", (8, 20_000), Some(Target::RatioAtMost(0.5))),
        pair("put, 1 MiB", Unit::Ns, "put-created", (1 << 20, 200), Some(Target::RatioAtMost(0.5))),
        pair("get, 1 MiB", Unit::Ns, "get-created", (1 << 20, 200), Some(Target::RatioAtMost(0.5))),
        pair("fetch and add, 8 B", Unit::Ns, "fetch-add-created", (8, 20_000), None),
    ];
    let rows = rows(setup, &pairs, "its shared memory", |way, pair| {
        let mut command = mpirun(setup, way, 2, true)?;
        of_two(&mut command, setup, "openmpi", pair.mode, &[pair.size])?;
        Ok(command)
    });
    let how = "ranks.c, two ranks: half a round trip, windows of 64 messages, and one-sided operations on malloc'd windows\n\
         with their flush. UCX over rc_verbs has no atomics of the kinds that MPI wants and sends messages for them.";
    Section::new("Open MPI over Vervain inside a host, beside its shared memory", how, rows)
}

fn between(setup: &Setup) -> Section {
    let pairs = [
        pair("message, 8 B", Unit::Ns, "lat", (8, 5_000), Some(Target::RatioAtMost(1.0))),
        pair("message, 64 KiB", Unit::Ns, "lat", (65_536, 500), Some(Target::RatioAtMost(1.0))),
        pair("messages of 64 KiB", Unit::MibPerS, "bw", (65_536, 5_000), Some(Target::RatioAtLeast(1.0))),
        pair("messages of 1 MiB", Unit::MibPerS, "bw", (1 << 20, 500), Some(Target::RatioAtLeast(1.0))),
    ];
    let rows = Network::of_two(9000).context("this user may not make network namespaces").and_then(|network| {
        let hosts = [network.first(), network.second()];
        let agent = package_directory()?.join("../tests/mpi/ssh.sh");
        let list = format!("{}:1,{}:1", hosts[0].v4, hosts[1].v4);
        let who = hosts.map(|host| format!("{}={}", host.v4, host.pid())).join(" ");
        rows(setup, &pairs, "its TCP", |way, pair| {
            let mut command = launch(Command::new(LAUNCHER), way, 2, true)?;
            command
                .args(["--host", &list, "--mca", "plm_rsh_agent"])
                .arg(&agent)
                .env("VT_HOSTS", &who)
                .args(["-x", "RANKS_CPUS"]);
            if way == Way::Vervain {
                command.args(["-x", "UCX_TLS"]).arg(&setup.vervain).args(["run", "--"]);
            } else {
                command.args(["--mca", "btl", "tcp,self"]);
            }
            Ok(network.first().enter(of_two(&mut command, setup, "openmpi", pair.mode, &[pair.size])?))
        })
    });
    let how = "The same with a rank in each of two network namespaces, joined by a cable with an MTU of 9000 bytes.";
    Section::new("Open MPI over Vervain between two hosts, beside its TCP", how, rows)
}

fn kernels(setup: &Setup) -> Section {
    /// What it is, the program, its size, its iterations.
    const KERNELS: [(&str, [&str; 3]); 4] = [
        ("halo exchange and allreduce (as Himeno, size M)", ["halo", "M", "10"]),
        ("bucket sort by all-to-all (as NPB IS, size A)", ["sort", "A", "10"]),
        ("3-D FFT by all-to-all (as NPB FT, size A)", ["fft", "A", "4"]),
        ("pipelined sweeps (as NPB LU, size A)", ["wavefront", "A", "20"]),
    ];
    let measure = |way| -> Measure {
        Box::new(move || {
            let run = |(_, [kernel, size, iterations]): &(_, [&str; 3])| {
                let mut command = mpirun(setup, way, 2, true)?;
                command.arg(app_program(COMPILER, kernel)).args([size, iterations, "unchecked"]);
                seconds(&output(&mut command, None, LIMIT)?).map(|s| s * 1000.0)
            };
            KERNELS.iter().map(run).collect()
        })
    };
    let rows = both(setup, measure).map(|both| {
        let row = |((what, _), (ours, own)): ((&str, _), (Vec<f64>, Vec<f64>))| {
            Row::beside(what, Unit::Ms, &ours, ("its shared memory", &own), Target::RatioAtMost(1.05))
        };
        KERNELS.into_iter().zip(both).map(row).collect()
    });
    let how = "tests/apps, two ranks, without the serial run that they are checked by elsewhere.";
    Section::new("Kernels over Open MPI over Vervain, beside its shared memory", how, rows)
}

/// The time in a kernel's line "halo M 2 ranks: 0.123456 s, ...".
fn seconds(text: &str) -> Result<f64> {
    let time = text.lines().find_map(|line| line.split_once("ranks: ")?.1.split_once(" s,")?.0.parse().ok());
    time.with_context(|| format!("a kernel printed {text:?}"))
}

/// Each pair both ways, in turns.
fn rows(
    setup: &Setup,
    pairs: &[Pair],
    own: &'static str,
    command: impl Fn(Way, &Pair) -> Result<Command>,
) -> Result<Rows> {
    let command = &command;
    let measure = |way| -> Measure {
        Box::new(move || {
            let one = |pair: &Pair| number_of(pair.mode, pair.size, &numbers(&mut command(way, pair)?, None)?);
            pairs.iter().map(one).collect()
        })
    };
    let row = |(pair, (ours, theirs)): (&Pair, (Vec<f64>, Vec<f64>))| {
        let row = Row::beside(pair.what, pair.unit, &ours, (own, &theirs), pair.target)?;
        Ok(row.limit(pair.limit))
    };
    Ok(pairs.iter().zip(both(setup, measure)?).map(row).collect())
}

/// Each number of a measurement by Vervain's way and by Open MPI's own, in turns.
pub(crate) fn both<'a>(setup: &Setup, measure: impl Fn(Way) -> Measure<'a>) -> Result<Vec<(Vec<f64>, Vec<f64>)>> {
    let mut columns = all(setup.fewer_rounds(), [Way::Vervain, Way::Own].map(measure))?;
    let (Some(own), Some(ours)) = (columns.pop(), columns.pop()) else { bail!("no result") };
    Ok(ours.into_iter().zip(own).collect())
}

/// The launcher of this many ranks by `way`.
pub(crate) fn mpirun(setup: &Setup, way: Way, ranks: u32, crowded: bool) -> Result<Command> {
    let launcher = match way {
        Way::Own => Command::new(LAUNCHER),
        Way::Vervain => setup.under_vervain(&[], LAUNCHER),
    };
    launch(launcher, way, ranks, crowded)
}

/// A launcher with its options; more ranks than processors if `crowded`: then a rank that waits gives its processor away.
pub(crate) fn launch(mut launcher: Command, way: Way, ranks: u32, crowded: bool) -> Result<Command> {
    installed(LAUNCHER, "openmpi-bin libopenmpi-dev")?;
    launcher.args(["--bind-to", "none"]).args(crowded.then_some("--oversubscribe")).envs(AS_ROOT);
    match way {
        Way::Own => launcher.args(["--mca", "pml", "ob1"]),
        Way::Vervain => launcher
            .args(["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "self"])
            .env("UCX_TLS", "rc_v,self"),
    };
    launcher.args(["-np", &ranks.to_string()]);
    Ok(launcher)
}

/// Open MPI asks for these before it starts as root.
pub(crate) const AS_ROOT: [(&str, &str); 2] =
    [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn the_time_of_a_kernel_is_found() {
        assert_eq!(seconds("noise\nhalo M 2 ranks: 0.250000 s, 456 MFLOPS, ok\n").unwrap(), 0.25);
        assert!(seconds("halo: MISMATCH").is_err());
    }
}
