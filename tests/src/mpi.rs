//! Open MPI and MPICH, as Debian ships them, over UCX, which is told to use nothing but verbs (and itself for messages
//! to oneself).

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use crate::counters::Counters;
use crate::{Failures, Finished, Job, alone, have, mpi_program, under_vervain, way};

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

/// Words before those of an `mpirun`, which give it a temporary folder of its own. Open MPI's session folder has one name for all
/// of a user's: if two start at the same moment, one may find it just made by the other, and fails.
pub const IN_OWN_FOLDER: [&str; 4] = [
    "sh",
    "-c",
    // The arguments are the command, so that more may be added behind. The exit status is the command's.
    r#"TMPDIR=$(mktemp -d) || exit; export TMPDIR; trap 'rm -rf "$TMPDIR"' EXIT; "$@""#,
    "sh",
];

impl Mpi {
    /// Whether compiler and launcher exist; prints what is missing, and that the test is skipped for it.
    pub fn is_there(&self) -> bool {
        have(&[self.compiler, self.launcher])
    }

    /// `vervain run -- LAUNCHER -n RANKS PROGRAM`, in a temporary folder of its own, to which arguments may be added; peers are
    /// reached as `link` says, a name that [`way`] knows.
    pub fn launch(&self, link: &str, ranks: u32, program: impl AsRef<OsStr>) -> Command {
        let [shell, rest @ ..] = IN_OWN_FOLDER;
        let mut command = under_vervain(shell);
        command.args(rest).args([self.launcher, "-n", &ranks.to_string()]).args(self.arguments).arg(program);
        verbs_only(&mut command).envs(way(link));
        command
    }
}

/// Leaves UCX verbs (and itself, for messages to oneself).
pub fn verbs_only(command: &mut Command) -> &mut Command {
    command.env("UCX_TLS", "rc_v,self").envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
}

/// Far more than any run takes: a hang is what it finds.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `parts` of `tests/mpi/check.c` by `mpi` with each number of ranks, on a link that [`way`] knows; the counters prove that all of it
/// took that one.
///
/// # Panics
/// When a rank fails, or bytes went another way.
pub fn run(mpi: &Mpi, link: &str, parts: &[&str], ranks: &[u32]) {
    if !mpi.is_there() {
        return;
    }
    let _turn = alone();
    let program = mpi_program(mpi.compiler, "check");
    let mut failures = Failures::default();
    for ranks in ranks {
        let what = format!("{} {link} {ranks} ranks {parts:?}", mpi.launcher);
        let counters = Counters::new(&way(link));
        let end = Job::start(mpi.launch(link, *ranks, &program).envs(counters.variables()).args(parts)).finish(LIMIT);
        judge(&what, *ranks, &end, &mut failures);
        // The least that any of the parts sends.
        let [memory, packets] = ["memory_bytes", "sent_pkts"].map(|name| counters.read(name));
        let window = ["window_direct_bytes", "window_ring_bytes", "window_staged_bytes"];
        let window: u64 = window.iter().map(|name| counters.read(name)).sum();
        let went = format!("{memory} bytes by memory, {window} by a window, {packets} packets or messages");
        println!("{what}: {went}");
        let wrong = match link {
            "roce" => memory > 0 || window > 0 || packets < 1000,
            "window" | "write_only" => memory > 0 || window < 1 << 20,
            "peach2" | "peach2-timed" => memory > 0 || window < 1 << 20 || counters.read("window_refusals") > 0,
            _ => memory < 1 << 20 || window > 0 || packets > 0,
        };
        if wrong {
            failures.add(&what, went);
        }
    }
    failures.assert_none();
}

/// Prints how long a run of `tests/mpi/check.c` on `ranks` ranks took, and notes it where it did not end well.
pub fn judge(what: &str, ranks: u32, end: &Finished, failures: &mut Failures) {
    println!("{what}: {:.2} s", end.took.as_secs_f64());
    if !end.success() || !end.output.contains(&format!("{ranks} ranks: ")) || !end.output.contains(" 0 failed") {
        failures.add(what, end.describe());
    }
}
