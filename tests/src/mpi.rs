//! Open MPI and MPICH, as Debian ships them, over UCX, which is told to use nothing but verbs (and itself for messages
//! to oneself).

use std::ffi::OsStr;
use std::process::Command;

use crate::{have, under_vervain, way};

/// An MPI: its compiler, its launcher and what that is told.
pub struct Mpi {
    /// The command that compiles C for it.
    pub compiler: &'static str,
    /// The command that starts ranks.
    pub launcher: &'static str,
    arguments: &'static [&'static str],
}

/// Open MPI, with more ranks than processors allowed; messages and windows by UCX and by nothing else.
pub const OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: "mpirun.openmpi",
    arguments: &["--oversubscribe", "--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "self"],
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
        command.env("UCX_TLS", "rc_v,self").envs(way(link));
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        command
    }
}
