//! CPython's own tests of mappings, threads, child processes and memory that those share, as Debian's package
//! libpython3.11-testsuite has them: each does under `vervain run` what it does without.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::{Failures, Job, skip, under_vervain};

/// Debian's tests are for Debian's Python, whichever other one comes first in `$PATH`.
const PYTHON: &str = "/usr/bin/python3";
/// A hang is what it finds.
const LIMIT: Duration = Duration::from_secs(300);

/// Tests whose outcome differs, and why.
const DIFFER: &[(&str, &str)] = &[(
    "test.test_subprocess.POSIXProcessTestCase.test_pass_fds_redirected",
    "a child looks which of its descriptors are open, and finds that of its shared heap",
)];

/// Waits of a second and more, of which another test of the same kind is left.
const SLOW: &[&str] = &[
    "*_timeout",
    "*_timeout_large_output",
    "*_dead",
    "test_communicate_repeated_call_after_stdout_close",
    "test_leaking_fds_on_error",
    "test_join_nondaemon_on_shutdown",
];

/// What each test of a report of regrtest's (`--junit-xml`) did.
fn outcomes(report: &str) -> BTreeMap<String, &'static str> {
    let case = |text: &str| {
        let name = text.strip_prefix(" name=\"")?.split('"').next()?.to_owned();
        let kinds = [("<failure", "fails"), ("<error", "fails"), ("<skipped", "skips")];
        let found = kinds.into_iter().find(|(mark, _)| text.contains(mark));
        Some((name, found.map_or("passes", |(_, outcome)| outcome)))
    };
    report.split("<testcase").filter_map(case).collect()
}

/// A run of regrtest, and what each test did in it.
struct Run {
    job: Job,
    report: PathBuf,
}

impl Run {
    fn start(mut command: Command, report: PathBuf, options: &[&str], module: &str) -> Self {
        command.args(["-m", "test", "--junit-xml"]).arg(&report).args(options).arg(module);
        let job = Job::start(command.current_dir(report.parent().expect("a directory")));
        Self { job, report }
    }

    fn finish(self) -> (BTreeMap<String, &'static str>, String) {
        let got = self.job.finish(LIMIT);
        let text = std::fs::read_to_string(&self.report).unwrap_or_default();
        assert!(got.status.is_some() && !text.is_empty(), "{}", got.describe());
        (outcomes(&text), got.describe())
    }
}

/// Runs the tests of a module, without Vervain and with it at the same time, and compares what each does.
fn same_as_without(module: &str, options: &[&str], at_least: usize) {
    let there = Command::new(PYTHON).args(["-c", &format!("import test.{module}")]).output();
    if !there.is_ok_and(|o| o.status.success()) {
        skip("this machine has no tests of CPython (package libpython3.11-testsuite)");
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cpython-{module}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let bare = Run::start(Command::new(PYTHON), dir.join("bare"), options, module);
    let served = Run::start(under_vervain(PYTHON), dir.join("served"), options, module);
    let ((bare, said), (mut served, mut describe)) = (bare.finish(), served.finish());
    assert!(bare.len() >= at_least, "only {} tests: {said}", bare.len());
    // Some have a fifth of a second for what a loaded machine takes longer for: those alone, again.
    for (name, outcome) in bare.iter().filter(|(name, _)| !DIFFER.iter().any(|(test, _)| test == name)) {
        for _ in 0..3 {
            if served.get(name) == Some(outcome) {
                break;
            }
            let (again, text) = Run::start(under_vervain(PYTHON), dir.join("again"), &["-m", name], module).finish();
            served.extend(again);
            describe = text;
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    let mut failures = Failures::default();
    for (name, outcome) in &bare {
        let got = served.get(name).copied().unwrap_or("is missing");
        match DIFFER.iter().find(|(test, _)| test == name) {
            None if got != *outcome => failures.add(name, format!("{outcome} alone, {got} under Vervain\n{describe}")),
            Some((_, why)) if got == *outcome => eprintln!("{name} {got}: it no longer differs ({why})"),
            _ => {}
        }
    }
    if bare.len() != served.len() {
        failures.add(module, format!("{} tests alone, {} under Vervain", bare.len(), served.len()));
    }
    failures.assert_none();
}

#[test]
fn mappings_do_the_same() {
    same_as_without("test_mmap", &[], 40);
}

#[test]
fn threads_do_the_same() {
    let slow: Vec<_> = SLOW.iter().flat_map(|name| ["-i", name]).collect();
    same_as_without("test_threading", &slow, 150);
}

#[test]
fn child_processes_do_the_same() {
    let slow: Vec<_> = SLOW.iter().flat_map(|name| ["-i", name]).collect();
    same_as_without("test_subprocess", &slow, 250);
}

#[test]
fn memory_shared_by_forked_processes_does_the_same() {
    let classes = ["*Array*", "*Value*", "*Heap*", "*SharedCTypes*", "*SharedMemory*", "*WithProcessesTestPool.*"];
    let chosen: Vec<_> = classes.iter().flat_map(|name| ["-m", name]).collect();
    same_as_without("test_multiprocessing_fork", &chosen, 40);
}

#[test]
fn memory_shared_by_spawned_processes_does_the_same() {
    let classes = ["*WithProcessesTestArray*", "*WithProcessesTestValue*", "*WithProcessesTestHeap*", "*SharedCTypes*"];
    let chosen: Vec<_> = classes.iter().flat_map(|name| ["-m", name]).collect();
    same_as_without("test_multiprocessing_spawn", &chosen, 10);
}
