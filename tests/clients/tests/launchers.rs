//! `vervain-bootstrap` under the launchers of others: Open MPI's and Slurm's, which speak PMIx, and MPICH's, which does not. The ranks are
//! `tests/src/rank.rs`, which use no device; and programs of `tests/acp` and `tests/pm`, over Vervain's.

use std::process::Command;
use std::time::Duration;

use vervain_tests::mpi::IN_OWN_FOLDER;
use vervain_tests::slurm::Slurm;
use vervain_tests::{Failures, Finished, Job, OPEN_MPI, acp, acp_program, have, pm_program, unswayed};

const LIMIT: Duration = Duration::from_secs(120);
const RANK: &str = env!("CARGO_BIN_EXE_vervain-mpi-rank");

/// Open MPI's launcher, in a temporary folder of its own, with more ranks than processors allowed.
fn open_mpi(ranks: u32, what: &str) -> Finished {
    let [shell, rest @ ..] = IN_OWN_FOLDER;
    let mut command = unswayed(shell);
    command.args(rest).arg("mpirun.openmpi");
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    Job::start(command.args(["--oversubscribe", "-n", &ranks.to_string(), RANK, what])).finish(LIMIT)
}

#[test]
fn ranks_of_open_mpi_exchange_values() {
    if !have(&["mpirun.openmpi"]) {
        return;
    }
    for ranks in [4, 1] {
        exchange(&open_mpi(ranks, "exchange"), ranks);
    }
}

/// Each rank has said once that it knows the others.
fn exchange(end: &Finished, ranks: u32) {
    assert!(end.success(), "{}", end.describe());
    for rank in 0..ranks {
        let line = format!("rank {rank} of {ranks}, local Some({ranks}), job ");
        assert_eq!(end.output.matches(&line).count(), 1, "{}", end.describe());
    }
}

#[test]
fn a_rank_of_open_mpi_that_aborts_ends_the_others() {
    if !have(&["mpirun.openmpi"]) {
        return;
    }
    let end = open_mpi(4, "abort");
    assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
    let sentence = "vervain: rank 3 aborted the job with status 9: no more of this";
    assert_eq!(end.output.matches(sentence).count(), 1, "{}", end.describe());
}

#[test]
fn ranks_of_slurm_exchange_values_by_pmix() {
    let Some(slurm) = Slurm::start() else { return };
    for ranks in [4, 1] {
        exchange(&Job::start(slurm.srun("pmix", ranks).args([RANK, "exchange"])).finish(LIMIT), ranks);
    }
    // One that aborts ends the others, which wait for it.
    let end = Job::start(slurm.srun("pmix", 4).args([RANK, "abort"])).finish(LIMIT);
    assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
    let sentence = "vervain: rank 3 aborted the job with status 9: no more of this";
    assert_eq!(end.output.matches(sentence).count(), 1, "{}", end.describe());
}

#[test]
fn ranks_of_slurm_without_pmix_are_told_what_to_do() {
    let Some(slurm) = Slurm::start() else { return };
    for (mpi, variable) in [("none", "SLURM_STEP_NUM_TASKS is 2"), ("pmi2", "PMI_")] {
        let end = Job::start(slurm.srun(mpi, 2).args([RANK, "exchange"])).finish(LIMIT);
        assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
        let sentences: Vec<_> = end.output.lines().filter(|line| line.starts_with("rank: ")).collect();
        assert!(!sentences.is_empty(), "{}", end.describe());
        for sentence in sentences {
            assert!(sentence.contains(variable) && sentence.contains("`srun --mpi=pmix`"), "{sentence}");
        }
    }
}

#[test]
fn ranks_of_mpich_are_told_what_to_do() {
    if !have(&["mpirun.mpich"]) {
        return;
    }
    let end = Job::start(unswayed("mpirun.mpich").args(["-n", "2", RANK, "exchange"])).finish(LIMIT);
    assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
    let sentences: Vec<_> = end.output.lines().filter(|line| line.starts_with("rank: ")).collect();
    assert!(!sentences.is_empty(), "{}", end.describe());
    for sentence in sentences {
        assert!(sentence.contains("PMI_") && sentence.contains("start the program with `vervain launch"), "{sentence}");
    }
}

#[test]
fn without_libpmix_or_its_server_it_is_one_sentence() {
    let end =
        Job::start(unswayed(RANK).arg("exchange").envs([("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "x")])).finish(LIMIT);
    assert_eq!(end.code(), Some(3), "{}", end.describe());
    let sentences = end.output.lines().filter(|line| line.starts_with("rank: ")).count();
    assert_eq!(sentences, 1, "{}", end.describe());
    assert!(end.output.contains("PMI"), "{}", end.describe());
}

#[test]
fn the_launcher_inside_another_counts() {
    if !have(&["mpirun.openmpi"]) {
        return;
    }
    let vervain = vervain_tests::vervain();
    let inside = |outer: &mut Command, inner: &[&str]| {
        outer.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]).args(inner);
        Job::start(outer.args([RANK, "exchange"])).finish(LIMIT)
    };
    let ours = vervain.to_str().expect("UTF-8");
    let mpirun = [&IN_OWN_FOLDER[..], &["mpirun.openmpi", "--oversubscribe", "-n", "2"]].concat();
    let launch = [ours, "launch", "-n", "2", "--verbs", "system"];
    for (outer, inner) in [(&mpirun[..], &launch[..]), (&launch[..], &mpirun[..])] {
        let end = inside(unswayed(outer[0]).args(&outer[1..]), inner);
        assert!(end.success(), "{}", end.describe());
        for rank in 0..2 {
            // Two jobs of two ranks.
            let line = format!("rank {rank} of 2, local Some(2), job ");
            assert_eq!(end.output.matches(&line).count(), 2, "{}", end.describe());
        }
    }
}

#[test]
fn ranks_of_slurm_use_acp() {
    let Some(slurm) = Slurm::start() else { return };
    let started = |name: &str, arguments: &[&str]| {
        let mut command = slurm.srun("pmix", 3);
        command.arg(vervain_tests::vervain()).args(["run", "--"]).arg(acp_program("cc", &[], name)).args(arguments);
        Job::start(&mut command).finish(LIMIT)
    };
    let mut failures = Failures::default();
    for name in ["life", "copy", "order", "atomics", "memory", "reset"] {
        acp::judge(name, 3, &started(name, &[]), &mut failures);
    }
    failures.assert_none();
    ends(&started("abort", &["kill"]));
    quits(started);
}

/// A rank that ends with status 0 and without acp_finalize has the others ended with a sentence, whatever the launcher makes of
/// it. One that leaves in a function of atexit(3), or has a child that ends, does not.
fn quits(started: impl Fn(&str, &[&str]) -> Finished) {
    for how in ["return", "exit", "signal"] {
        let end = started("quits", &[how, "sync"]);
        println!("{how}: {:.2} s", end.took.as_secs_f64());
        assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
        let sentence = "rank 2 aborted the job with status 1: it ended without acp_finalize";
        assert!(end.output.contains(sentence), "{}", end.describe());
        assert!(!end.output.contains("FAIL"), "{}", end.describe());
    }
    let mut failures = Failures::default();
    for how in ["atexit", "child"] {
        acp::judge(how, 3, &started("quits", &[how]), &mut failures);
    }
    failures.assert_none();
}

/// A rank was killed: the others have ended, with a sentence.
fn ends(end: &Finished) {
    println!("killed: {:.2} s", end.took.as_secs_f64());
    assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
    assert!(!end.output.contains("FAIL"), "{}", end.describe());
    let told = ["exited on signal 9", "Killed", "aborted the job with status"];
    assert!(told.iter().any(|sentence| end.output.contains(sentence)), "{}", end.describe());
}

#[test]
fn ranks_of_open_mpi_use_acp() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let mut failures = Failures::default();
    let started = |name: &str, arguments: &[&str]| {
        Job::start(OPEN_MPI.launch("auto", 3, acp_program("cc", &[], name)).args(arguments)).finish(LIMIT)
    };
    for name in ["life", "copy", "order", "atomics", "memory", "reset"] {
        acp::judge(name, 3, &started(name, &[]), &mut failures);
    }
    failures.assert_none();
    ends(&started("abort", &["kill"]));
    quits(started);
}

#[test]
fn ranks_of_both_use_pm() {
    let programs = [("exchange", &["100", "sleep"][..]), ("rdma", &[]), ("select", &[]), ("score", &[])];
    let mut failures = Failures::default();
    for (name, arguments) in programs {
        if OPEN_MPI.is_there() {
            let mut command = OPEN_MPI.launch("auto", 3, pm_program("cc", &[], name));
            acp::judge(name, 3, &Job::start(command.args(arguments)).finish(LIMIT), &mut failures);
        }
    }
    if let Some(slurm) = Slurm::start() {
        for (name, arguments) in programs {
            let mut command = slurm.srun("pmix", 3);
            command.arg(vervain_tests::vervain()).args(["run", "--"]).arg(pm_program("cc", &[], name)).args(arguments);
            acp::judge(name, 3, &Job::start(&mut command).finish(LIMIT), &mut failures);
        }
    }
    failures.assert_none();
}

#[test]
fn an_mpi_program_uses_acp_too() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let program = acp_program(OPEN_MPI.compiler, &[], "mixed");
    let mut failures = Failures::default();
    for order in ["acp-first", "mpi-first"] {
        let end = Job::start(OPEN_MPI.launch("auto", 2, &program).arg(order)).finish(LIMIT);
        acp::judge(&format!("mixed {order}"), 2, &end, &mut failures);
    }
    failures.assert_none();
}
