//! The MPIs whose programs run over UCX over Vervain, and how a run of `tests/mpi/check.c` ends well.

use std::process::Command;

use vervain_tests::{Failures, Finished};

/// An MPI: its compiler, its launcher and what that is told.
pub struct Mpi {
    pub compiler: &'static str,
    pub launcher: &'static str,
    pub arguments: &'static [&'static str],
}

pub const OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: "mpirun.openmpi",
    // More ranks than processors; messages and windows by UCX and by nothing else.
    arguments: &["--oversubscribe", "--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "self"],
};
pub const MPICH: Mpi = Mpi { compiler: "mpicc.mpich", launcher: "mpirun.mpich", arguments: &[] };

/// Leaves UCX verbs (and itself, for messages to oneself).
pub fn verbs_only(command: &mut Command) -> &mut Command {
    command.env("UCX_TLS", "rc_v,self").envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
}

/// Prints how long a run of `check` took, and notes it where it did not end well.
pub fn judge(what: &str, ranks: u32, end: &Finished, failures: &mut Failures) {
    println!("{what}: {:.2} s", end.took.as_secs_f64());
    if !end.success() || !end.output.contains(&format!("{ranks} ranks: ")) || !end.output.contains(" 0 failed") {
        failures.add(what, end.describe());
    }
}
