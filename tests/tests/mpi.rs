//! Open MPI and MPICH, as Debian ships them, over UCX over Vervain: `tests/mpi/check.c` in all its parts, by memory and in
//! packets. UCX is told to use nothing but verbs (and itself for messages to oneself).

mod common;

use std::time::Duration;

use common::mpi::{MPICH, Mpi, OPEN_MPI, judge, verbs_only};
use vervain_tests::{Failures, Job, alone, have, mpi_program, under_vervain, way};

const LIMIT: Duration = Duration::from_secs(120);

fn run(mpi: &Mpi, link: &str, parts: &[&str], ranks: &[u32]) {
    if !have(&[mpi.compiler, mpi.launcher]) {
        return;
    }
    let _turn = alone();
    let program = mpi_program(mpi.compiler, "check");
    let mut failures = Failures::default();
    for ranks in ranks {
        let mut command = under_vervain(mpi.launcher);
        command.args(["-n", &ranks.to_string()]).args(mpi.arguments).arg(&program).args(parts);
        verbs_only(&mut command).envs(way(link));
        let end = Job::start(&mut command).finish(LIMIT);
        judge(&format!("{} {link} {ranks} ranks {parts:?}", mpi.launcher), *ranks, &end, &mut failures);
    }
    failures.assert_none();
}

const ALL: &[&str] = &["point", "collective", "onesided", "threads"];
/// Threads that poll on more ranks than processors take their time, over every transport.
const SINGLE: &[&str] = &["point", "collective", "onesided"];

#[test]
fn open_mpi_by_memory() {
    run(&OPEN_MPI, "auto", SINGLE, &[2, 4]);
    // Locks of 16 ranks that poll on two processors take minutes.
    run(&OPEN_MPI, "auto", &["point", "collective"], &[16]);
    run(&OPEN_MPI, "auto", &["threads"], &[2]);
}

#[test]
fn mpich_by_memory() {
    run(&MPICH, "auto", ALL, &[2]);
    run(&MPICH, "auto", SINGLE, &[5, 16]);
}

#[test]
fn open_mpi_in_packets() {
    run(&OPEN_MPI, "roce", SINGLE, &[2, 4]);
}

#[test]
fn mpich_in_packets() {
    run(&MPICH, "roce", SINGLE, &[2, 4]);
}
