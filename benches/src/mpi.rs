//! One-sided MPI on windows over malloc'd memory, as the OSU benchmarks measure it, beside the same program in verbs
//! (`onesided.c`): one operation at a time from its call to its completion, on memory from malloc's allocator.

use std::process::Command;

use anyhow::Result;

use crate::messages::AS_ROOT;
use crate::peers::{Operation, Peer, Promise, Size, names, sizes};
use crate::process::numbers;
use crate::ranks::{Operations, number_of, of_two};
use crate::report::{Section, Unit};
use crate::rounds::Measure;
use crate::setup::{Setup, installed};

/// Options of the launchers.
pub(crate) const OPEN_MPI: &[&str] = &["--bind-to", "none", "--oversubscribe"];
pub(crate) const MPICH: &[&str] = &["-bind-to", "none"];

const HOW: &str = "MPI: the operation and MPI_Win_flush, under MPI_Win_lock_all; the target waits in MPI_Barrier.\n\
     Vervain: post and poll; the target sleeps. All on windows and buffers from posix_memalign; target: ahead.";

/// All tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    let sizes = sizes(setup);
    let word: Vec<Size> = sizes.iter().take(1).copied().collect();
    let mut streamed = sizes.clone();
    streamed.iter_mut().for_each(|size| size.operations = size.streamed);
    let cases = [
        ("RDMA Write against MPI_Put: latency of the operation, median", Unit::Ns, "write", "put-created", &sizes),
        ("RDMA Read against MPI_Get: latency of the operation, median", Unit::Ns, "read", "get-created", &sizes),
        ("Fetch and add against MPI_Fetch_and_op: median", Unit::Ns, "fetch-add", "fetch-add-created", &word),
        (
            "RDMA Write against MPI_Put: bandwidth, windows of 64",
            Unit::MibPerS,
            "write-bw",
            "put-bw-created",
            &streamed,
        ),
    ];
    let section = |(title, unit, verbs, mpi, sizes): (_, _, &'static str, &'static str, &Vec<Size>)| {
        Operation {
            title,
            how: HOW,
            unit,
            lines: names(sizes),
            ours: ours(setup, verbs, sizes),
            peers: vec![
                peer(setup, "Open MPI", "openmpi", OPEN_MPI, mpi, sizes),
                peer(setup, "MPICH", "mpich", MPICH, mpi, sizes),
            ],
            limit: None,
        }
        .section(setup)
    };
    cases.into_iter().map(section).collect()
}

fn ours<'a>(setup: &'a Setup, mode: &'static str, sizes: &[Size]) -> Measure<'a> {
    let sizes: Vec<String> = sizes.iter().map(|size| format!("{}:{}", size.bytes, size.operations)).collect();
    Box::new(move || {
        let (mut command, [client, server]) = (setup.ours("onesided")?, setup.cpus.words());
        numbers(command.args([mode, &server, &client]).args(&sizes), None)
    })
}

fn peer<'a>(
    setup: &'a Setup,
    name: &'static str,
    library: &'static str,
    options: &'static [&'static str],
    mode: &'static str,
    sizes: &[Size],
) -> Peer<'a> {
    let sizes: Vec<Operations> = sizes.iter().map(|size| (size.bytes, size.operations)).collect();
    let measure: Measure = Box::new(move || run(setup, library, options, mode, &sizes));
    Peer { name, promise: Promise::Ahead, measure }
}

/// What a one-sided operation takes by an MPI's own ways, for each of `sizes`.
pub(crate) fn run(
    setup: &Setup,
    library: &str,
    options: &[&str],
    mode: &str,
    sizes: &[Operations],
) -> Result<Vec<f64>> {
    let printed = numbers(of_two(&mut launcher(library, options, 2)?, setup, library, mode, sizes)?, None)?;
    sizes.iter().zip(printed.chunks(2)).map(|(size, printed)| number_of(mode, *size, printed)).collect()
}

/// Millions of inserts a second of `keys` keys, by `ranks` ranks, into a hash table in an MPI's windows (`rma_map.c`).
pub(crate) fn inserts(setup: &Setup, library: &str, options: &[&str], ranks: usize, keys: usize) -> Result<Vec<f64>> {
    let mut command = launcher(library, options, ranks)?;
    command.arg(setup.program(&format!("rma-{library}"))?).arg(keys.to_string());
    numbers(command.args(setup.cpus.words()), None)
}

fn launcher(library: &str, options: &[&str], ranks: usize) -> Result<Command> {
    let launcher = format!("mpirun.{library}");
    installed(&launcher, "openmpi-bin mpich")?;
    let mut command = Command::new(launcher);
    command.args(options).args(["-np", &ranks.to_string()]).envs(AS_ROOT);
    Ok(command)
}
