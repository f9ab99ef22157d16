//! Open MPI and MPICH, as Debian ships them, over UCX, which is told to use nothing but verbs (and itself for messages
//! to oneself).

use std::ffi::OsStr;
use std::process::Command;

use crate::{Failures, Finished, have, under_vervain, way};

/// An MPI: its compiler, its launcher and what that is told.
pub struct Mpi {
    /// The command that compiles C for it.
    pub compiler: &'static str,
    /// The command that starts ranks.
    pub launcher: &'static str,
    /// What the launcher is told.
    pub arguments: &'static [&'static str],
}

/// Open MPI, with more ranks than processors allowed; messages and windows by UCX and by nothing else.
pub const OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: "mpirun.openmpi",
    arguments: &["--oversubscribe", "--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "self"],
};

/// Open MPI over libfabric, which connects by rdma_cm: messages only.
pub const OPEN_MPI_OVER_LIBFABRIC: Mpi = Mpi {
    arguments: &[
        "--oversubscribe",
        "--mca",
        "pml",
        "cm",
        "--mca",
        "mtl",
        "ofi",
        "--mca",
        "mtl_ofi_provider_include",
        "verbs;ofi_rxm",
        "--mca",
        "btl",
        "self",
    ],
    ..OPEN_MPI
};

/// MPICH, which Debian builds for UCX.
pub const MPICH: Mpi = Mpi { compiler: "mpicc.mpich", launcher: "mpirun.mpich", arguments: &[] };

impl Mpi {
    /// Whether compiler and launcher exist; prints what is missing, and that the test is skipped for it.
    pub fn is_there(&self) -> bool {
        have(&[self.compiler, self.launcher])
    }

    /// `vervain run -- LAUNCHER -n RANKS PROGRAM`, to which arguments may be added; peers are reached as `link` says,
    /// a name that [`way`] knows.
    pub fn launch(&self, link: &str, ranks: u32, program: impl AsRef<OsStr>) -> Command {
        let mut command = under_vervain(self.launcher);
        command.args(["-n", &ranks.to_string()]).args(self.arguments).arg(program);
        verbs_only(&mut command).envs(way(link));
        command
    }
}

/// Leaves UCX verbs (and itself, for messages to oneself).
pub fn verbs_only(command: &mut Command) -> &mut Command {
    command.env("UCX_TLS", "rc_v,self").envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
}

/// Prints how long a run of `tests/mpi/check.c` on `ranks` ranks took, and notes it where it did not end well.
pub fn judge(what: &str, ranks: u32, end: &Finished, failures: &mut Failures) {
    println!("{what}: {:.2} s", end.took.as_secs_f64());
    if !end.success() || !end.output.contains(&format!("{ranks} ranks: ")) || !end.output.contains(" 0 failed") {
        failures.add(what, end.describe());
    }
}
