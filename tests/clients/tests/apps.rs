//! The kernels of `tests/apps` over Open MPI and MPICH over UCX confined to verbs, and over PM: halo exchange, bucket sort, 3-D
//! FFT, pipelined sweeps. Each compares all its numbers with a serial run of its own and ends with a status other than 0 where they
//! differ.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::{Failures, Job, MPICH, Mpi, OPEN_MPI, acp, alone, app_over_pm, app_program, have, way};

const LIMIT: Duration = Duration::from_secs(60);

/// A kernel with its arguments, and on how many ranks.
type Run = (&'static str, &'static [&'static str], &'static [u32]);

/// The grid's planes and the keys are divided unevenly among 3 and 6 ranks; the FFT wants a power of two.
const BY_MEMORY: &[Run] = &[
    ("halo", &["S", "20"], &[2, 4, 6]),
    ("halo", &["M", "4"], &[2]),
    ("sort", &["S"], &[2, 3, 4]),
    ("sort", &["W", "3"], &[2, 4]),
    ("fft", &["S"], &[2, 4]),
    ("fft", &["W", "2"], &[4]),
    ("wavefront", &["S", "10"], &[2, 4, 6]),
    ("wavefront", &["A", "3"], &[2]),
];
const IN_PACKETS: &[Run] = &[
    ("halo", &["S", "10"], &[2, 3]),
    ("sort", &["W", "2"], &[2, 4]),
    ("fft", &["S", "3"], &[2, 4]),
    ("wavefront", &["S", "3"], &[2, 4]),
];

fn kernels(mpi: &Mpi, link: &str, runs: &[Run]) {
    if mpi.is_there() {
        let program = |kernel: &str| app_program(mpi.compiler, kernel);
        run(&format!("{} {link}", mpi.launcher), runs, program, |ranks, program| mpi.launch(link, ranks, program));
    }
}

fn kernels_over_pm(link: &str, runs: &[Run]) {
    if have(&["cc"]) {
        run(&format!("PM {link}"), runs, app_over_pm, |ranks, program| {
            let mut command = acp::launch(ranks, &["--no-prefix"], program);
            command.envs(way(link));
            command
        });
    }
}

/// Runs each kernel by what `launch` makes of it.
fn run(by: &str, runs: &[Run], program: impl Fn(&str) -> PathBuf, launch: impl Fn(u32, &Path) -> Command) {
    let _turn = alone();
    let mut failures = Failures::default();
    for (kernel, args, each) in runs {
        let program = program(kernel);
        for ranks in *each {
            let end = Job::start(launch(*ranks, &program).args(*args)).finish(LIMIT);
            let line = end.output.lines().find(|l| l.starts_with(&format!("{kernel} {} {ranks} ranks: ", args[0])));
            println!("{by}: {}", line.unwrap_or("nothing"));
            if !end.success() || !line.is_some_and(|l| l.ends_with(" ok")) {
                failures.add(&format!("{by} {kernel} {args:?}"), end.describe());
            }
        }
    }
    failures.assert_none();
}

#[test]
fn kernels_over_open_mpi_get_the_serial_result_by_memory() {
    kernels(&OPEN_MPI, "auto", BY_MEMORY);
}

#[test]
fn kernels_over_mpich_get_the_serial_result_by_memory() {
    kernels(&MPICH, "auto", BY_MEMORY);
}

#[test]
fn kernels_over_open_mpi_get_the_serial_result_in_packets() {
    kernels(&OPEN_MPI, "roce", IN_PACKETS);
}

#[test]
fn kernels_get_the_serial_result_through_windows() {
    kernels(&OPEN_MPI, "window", IN_PACKETS);
    kernels(&MPICH, "write_only", IN_PACKETS);
}

#[test]
fn kernels_get_the_serial_result_by_boards() {
    kernels(&OPEN_MPI, "peach2", IN_PACKETS);
}

#[test]
fn kernels_over_mpich_get_the_serial_result_in_packets() {
    kernels(&MPICH, "roce", IN_PACKETS);
}

#[test]
fn kernels_over_pm_get_the_serial_result() {
    kernels_over_pm("auto", BY_MEMORY);
    kernels_over_pm("roce", IN_PACKETS);
}
