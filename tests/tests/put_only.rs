//! The table of conformance over a carrier that only the tests have (`tests/put_only`): a device that can only put, in memory, in
//! order and without loss. It is added beside RoCE without a line there, and is held to what all ways are held to.

use std::time::Duration;

use vervain_tests::{Failures, Job, c_program, failure, have_c, under_vervain, way};

/// The library with that carrier, under the name that programs ask for.
fn library() -> tempfile::TempDir {
    let built = std::env::current_exe().expect("this program").with_file_name("libput_only_ibverbs.so");
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(&built, folder.path().join("libibverbs.so.1")).expect("a link");
    assert!(built.exists(), "{} is not built", built.display());
    folder
}

/// Runs a program of `tests/c` with the library in place of Vervain's own.
fn run(failures: &mut Failures, folder: &tempfile::TempDir, program: &str, args: &[&str]) {
    let shell = "export LD_LIBRARY_PATH=\"$1:$LD_LIBRARY_PATH\"; shift; exec \"$@\"";
    let program = c_program(program);
    let mut command = under_vervain("/bin/sh");
    command.args(["-c", shell, "sh"]).arg(folder.path()).arg(&program).args(args);
    // Carriers are preferred to memory, as packets are.
    command.envs(way("roce")).env("VERVAIN_LOG", "info");
    let end = Job::start(&mut command).finish(Duration::from_secs(120));
    let what = format!("{} {}", program.display(), args.join(" "));
    if let Some(why) = failure(&end) {
        failures.add(&what, why);
    } else if !end.output.contains("is connected by puts") {
        failures.add(&what, "no QP was connected by the carrier of the tests");
    }
}

#[test]
fn every_operation_and_fault_over_a_device_that_can_only_put() {
    if !have_c() {
        return;
    }
    let (folder, mut failures) = (library(), Failures::default());
    for program in ["conformance", "sequences", "posting", "state_machine"] {
        run(&mut failures, &folder, program, &[]);
    }
    failures.assert_none();
}
