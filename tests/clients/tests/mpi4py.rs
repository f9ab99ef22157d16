//! mpi4py's own tests: Debian's module for Open MPI, the tests from the source distribution of the same version on
//! PyPI, over UCX confined to verbs. `tests/clients/data/mpi4py.txt` says which are left out, and why.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::{Failures, Job, OPEN_MPI, alone, fetched, have, skip};

/// Debian's module is for Debian's Python, whichever other one comes first in `$PATH`.
const PYTHON: &str = "/usr/bin/python3";
/// Debian 12's version; the names in the list are of this one.
const VERSION: &str = "3.1.4";
const LIMIT: Duration = Duration::from_secs(600);

/// What four ranks run: messages, collectives, windows, files. The others ask little more of more ranks, and take
/// their time where processors are fewer than ranks.
const OF_FOUR: &[&str] = &[
    "test_p2p_buf",
    "test_p2p_buf_matched",
    "test_p2p_obj",
    "test_p2p_obj_matched",
    "test_cco_buf",
    "test_cco_nb_buf",
    "test_cco_obj",
    "test_cco_obj_inter",
    "test_cco_ngh_obj",
    "test_comm",
    "test_comm_inter",
    "test_comm_topo",
    "test_msgspec",
    "test_msgzero",
    "test_io",
    "test_win",
    "test_util_pkl5",
    "test_dynproc",
];

const IN_PACKETS: &[&str] = &[
    "test_p2p_buf",
    "test_p2p_obj",
    "test_cco_buf",
    "test_cco_nb_vec",
    "test_cco_obj",
    "test_msgspec",
    "test_rma",
    "test_rma_nb",
    "test_win",
];

/// The folder `test` of the source distribution; None, with a printed reason, if it is not here.
fn sources() -> Option<PathBuf> {
    let python = |program: &str| Command::new(PYTHON).args(["-c", program]).output();
    let version = python("import mpi4py; print(mpi4py.__version__)").ok()?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    if version != VERSION {
        skip(format_args!("this machine has no python3-mpi4py {VERSION} of Debian 12; it has '{version}'"));
        return None;
    }
    Some(fetched("mpi4py")?.join("test"))
}

/// The test that a rank was in when the program ended or was ended, by the lines that it wrote.
fn unfinished(lines: &str) -> Option<&str> {
    lines.lines().last()?.strip_prefix("start\t")
}

/// Runs them on some numbers of ranks: `names` of modules, all without, at least `least` tests, so that a list that
/// leaves out all, or finds none, is noticed.
fn mpi4py(link: &str, runs: &[(u32, &[&str], usize)]) {
    if !have(&[OPEN_MPI.launcher]) {
        return;
    }
    let _turn = alone();
    let Some(folder) = sources() else { return };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut failures = Failures::default();
    for (ranks, names, least) in runs {
        let results = |rank: u32| folder.join(format!("results-{link}-{ranks}-{rank}"));
        for rank in 0..*ranks {
            let _ = std::fs::remove_file(results(rank));
        }
        let mut command = OPEN_MPI.launch(link, *ranks, PYTHON);
        command.arg(here.join("python/run_mpi4py.py")).arg(&folder).arg(here.join("data/mpi4py.txt"));
        let end = Job::start(command.arg(folder.join(format!("results-{link}-{ranks}-"))).args(*names)).finish(LIMIT);
        println!("mpi4py {link} {ranks} ranks: {:.1} s", end.took.as_secs_f64());
        let mut wrong = Vec::new();
        for rank in 0..*ranks {
            let lines = std::fs::read_to_string(results(rank)).unwrap_or_default();
            if let Some(test) = unfinished(&lines) {
                wrong.push(format!("rank {rank} ended or hung in {test}"));
            }
            let passed = lines.lines().filter(|l| l.split('\t').nth(2) == Some("pass")).count();
            if passed < *least {
                wrong.push(format!("rank {rank}: {passed} tests passed; expected: {least} or more"));
            }
        }
        if !end.success() || !wrong.is_empty() {
            failures.add(&format!("mpi4py {link} {ranks} ranks"), format!("{}\n{}", end.describe(), wrong.join("\n")));
        }
    }
    failures.assert_none();
}

#[test]
fn the_tests_of_mpi4py_pass_by_memory() {
    // Some 110 of 1,323 skip, less without numpy.
    mpi4py("auto", &[(2, &[], 1100), (4, OF_FOUR, 600)]);
}

#[test]
fn the_tests_of_mpi4py_on_messages_and_windows_pass_in_packets() {
    mpi4py("roce", &[(2, IN_PACKETS, 300)]);
}
