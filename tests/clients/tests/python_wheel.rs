//! The Python wheel of `make wheel` as its users have it: installed by pip into a virtual environment, without network, with pytest
//! and pyverbs of Debian's. `tests/tests/python_package.rs` tests what needs no pip.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use vervain_tests::netns::Network;
use vervain_tests::{Finished, Job, fetched, have, skip, unswayed, wheel};

const LIMIT: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the source tree")
}

/// A virtual environment of Debian's Python that sees Debian's packages, with Vervain's wheel in it.
struct Environment {
    folder: TempDir,
    wheel: PathBuf,
    /// What there was before the wheel was installed.
    before: Vec<PathBuf>,
}

impl Environment {
    /// None, with a printed reason, where it cannot be had.
    fn new() -> Option<Environment> {
        let folder = tempfile::tempdir().expect("a folder");
        let wheel = wheel::make(&folder.path().join("wheel"))?;
        let environment = Environment { folder, wheel, before: Vec::new() };
        let mut venv = Command::new("/usr/bin/python3");
        venv.args(["-m", "venv", "--system-site-packages"]).arg(environment.path(""));
        if !Path::new("/usr/bin/python3").is_file() || !Job::start(&mut venv).finish(LIMIT).success() {
            skip("this machine cannot make virtual environments (package python3-venv)");
            return None;
        }
        let before = files_below(&environment.path(""));
        let end = environment.run("bin/python", &["-m", "pip", "install", "--no-index", environment.wheel_name()]);
        assert!(end.success(), "{}", end.describe());
        Some(Environment { before, ..environment })
    }

    fn wheel_name(&self) -> &str {
        self.wheel.to_str().expect("a plain name")
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join("environment").join(below)
    }

    /// A program of the environment, which leaves no compiled Python anywhere.
    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = unswayed(self.path(program));
        command.args(args).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(self.folder.path());
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> Finished {
        Job::start(&mut self.command(program, args)).finish(LIMIT)
    }

    /// The command in the package.
    fn bundled(&self) -> PathBuf {
        let end = self.run("bin/python", &["-c", "import vervain; print(vervain.executable())"]);
        assert!(end.success(), "{}", end.describe());
        end.output.trim().into()
    }

    /// pytest on a network of its own, without what other plugins of this machine add.
    fn pytest(&self, network: &Network, runner: &[&str], file: &Path) -> Finished {
        let pytest = ["-m", "pytest", "-p", "no:cacheprovider", "-rs", "--color=no"];
        let python = self.path("bin/python");
        let words: Vec<_> =
            runner.iter().copied().chain([python.to_str().expect("a plain name")]).chain(pytest).collect();
        let mut command = self.command(words[0], &words[1..]);
        Job::start(&mut network.first().enter(command.arg(file))).finish(LIMIT)
    }
}

/// Files and folders below one, in the order of their names.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()).collect();
    let is_folder = |path: &&PathBuf| path.is_dir() && !path.is_symlink();
    let folders: Vec<_> = found.iter().filter(is_folder).cloned().collect();
    found.extend(folders.iter().flat_map(|folder| files_below(folder)));
    found.sort_unstable();
    found
}

/// Whether Debian's Python has a module.
fn has_module(module: &str, package: &str) -> bool {
    let import = Command::new("/usr/bin/python3").args(["-c", &format!("import {module}")]).output();
    let has = import.is_ok_and(|end| end.status.success());
    if !has {
        skip(format_args!("/usr/bin/python3 has no {module} (package {package})"));
    }
    has
}

#[test]
fn the_same_files_make_the_same_wheel() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = |name: &str| wheel::make(&folder.path().join(name));
    let (Some(one), Some(other)) = (made("one"), made("other")) else { return };
    assert!(fs::read(one).expect("a wheel") == fs::read(other).expect("a wheel"), "two wheels of one build differ");
}

#[test]
fn pip_installs_it_and_takes_all_of_it_away() {
    let Some(environment) = Environment::new() else { return };
    assert!(environment.path("bin/vervain").is_file());
    let doctor = environment.run("bin/vervain", &["doctor"]);
    assert!(doctor.success(), "{}", doctor.describe());
    if let Some(network) = Network::of_one().filter(|_| have(&["ibv_rc_pingpong", "ibv_devices", "rping"])) {
        let tests = wheel::package_tests(&environment.path("bin/python"), &environment.bundled());
        let end = Job::start(&mut network.first().enter(&tests)).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
    }
    let end = environment.run("bin/python", &["-m", "pip", "uninstall", "--yes", "vervain"]);
    assert!(end.success(), "{}", end.describe());
    assert_eq!(files_below(&environment.path("")), environment.before, "what pip leaves");
}

#[test]
fn it_is_whole_in_a_folder_too() {
    let Some(environment) = Environment::new() else { return };
    let install = ["-m", "pip", "install", "--no-index", "--target", "folder", environment.wheel_name()];
    let end = environment.run("bin/python", &install);
    assert!(end.success(), "{}", end.describe());
    let command = environment.folder.path().join("folder/vervain/_prefix/bin/vervain");
    let end = Job::start(unswayed(command).args(["run", "--", "true"])).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn the_example_passes_with_the_plugin() {
    if !has_module("pytest", "python3-pytest")
        || !has_module("pyverbs.qp", "python3-pyverbs")
        || !have(&["ibv_rc_pingpong"])
    {
        return;
    }
    let (Some(environment), Some(network)) = (Environment::new(), Network::of_one()) else { return };
    let example = root().join("examples/test_rdma.py");
    let end = environment.pytest(&network, &[], &example);
    assert!(end.success() && end.output.contains("2 passed, 3 skipped"), "{}", end.describe());
    let end = environment.pytest(&network, &["bin/vervain", "run", "--"], &example);
    assert!(end.success() && end.output.contains("5 passed"), "{}", end.describe());
}

/// A test file, and what pytest has to print about its failures.
const FAILING: &str = r#"
import subprocess

import pytest


def pair(rdma):
    line = ["ibv_rc_pingpong", "-g", "0", "-n", "100"]
    server = rdma.popen(line)
    server.wait_listening(18515)
    rdma.run([*line, "localhost"], check=True)
    assert server.wait() == 0


@pytest.mark.rdma(link="roce", faults="drop=5%:send,seed=7")
def test_that_is_wrong(rdma):
    pair(rdma)
    assert rdma.counters()["resent_pkts"] == 0


@pytest.mark.rdma(lnk="roce")
def test_with_a_name_that_is_no_option(rdma):
    pass


@pytest.mark.rdma(link="air")
def test_with_a_value_that_is_wrong(rdma):
    pass


@pytest.fixture
def fails(rdma):
    rdma.run(["sh", "-c", "echo 'said in the fixture' >&2; exit 3"], check=True)


def test_whose_fixture_fails(fails):
    pass


def test_that_passes(rdma):
    pair(rdma)
    global left
    left = rdma.popen(["sh", "-c", "setsid sleep 1000 & exec sleep 1000"])


def test_that_nothing_is_left():
    assert left.returncode == -9


class TestNearest:
    pytestmark = pytest.mark.rdma(link="roce", devices=2)

    @pytest.mark.rdma(devices=3)
    def test_marks(self, rdma):
        assert rdma.options == {"link": "roce", "devices": 3}
        assert len(rdma.devices) == 3
"#;

#[test]
fn the_report_of_a_failing_test_explains_it() {
    if !has_module("pytest", "python3-pytest") || !have(&["ibv_rc_pingpong", "setsid"]) {
        return;
    }
    let (Some(environment), Some(network)) = (Environment::new(), Network::of_one()) else { return };
    let file = environment.folder.path().join("test_failing.py");
    fs::write(&file, FAILING).expect("a test");
    let end = environment.pytest(&network, &[], &file);
    assert!(end.output.contains("1 failed, 3 passed, 3 errors"), "{}", end.describe());
    let counter = |line: &str| line.strip_prefix("resent_pkts").and_then(|value| value.trim().parse().ok());
    let resent: Option<u64> = end.output.lines().find_map(counter);
    assert!(resent.is_some_and(|resent| resent > 0), "{}", end.output);
    for part in [
        "seed=7 repeats these decisions",
        "run --link=roce --faults=drop=5%:send,seed=7 -- ibv_rc_pingpong -g 0 -n 100 localhost",
        "mark rdma: lnk is no option",
        "--link is 'air'; it can be auto, local, roce or window",
        "said in the fixture",
        "ended with status 3",
    ] {
        assert!(end.output.contains(part), "no {part}: {}", end.output);
    }
    // What passes is not reported.
    assert!(!end.output.contains("exec sleep"), "{}", end.output);
}

/// Calls functions that have other versions since glibc 2.32, 2.33 and 2.34.
const CALLS_WHAT_MOVED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

static void *work(void *value) { return value; }

int main(void)
{
    pthread_t thread;
    void *value;
    sigset_t none;
    struct stat stat_of_root;
    sigemptyset(&none);
    if (pthread_sigmask(SIG_SETMASK, &none, NULL) || pthread_create(&thread, NULL, work, &thread)) return 1;
    if (pthread_join(thread, &value)) return 1;
    if (value != &thread || stat("/", &stat_of_root) || !dlsym(RTLD_DEFAULT, "printf")) return 2;
    return puts("all worked") < 0;
}
"#;

/// The compiler of `make wheel-old`; what it links runs with Debian 11's C library, and with this machine's.
#[test]
fn what_is_linked_against_an_old_glibc_runs_with_it() {
    let old = root().join("target/old-glibc");
    if !old.join("bin/cc").is_file() {
        return skip("target/old-glibc is missing; scripts/fetch.sh downloads it where it can be had");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("moved.c"), folder.path().join("moved"));
    fs::write(&source, CALLS_WHAT_MOVED).expect("a source");
    let mut compile = Command::new(old.join("bin/cc"));
    let end = Job::start(compile.args([&source, Path::new("-o"), &program]).args(["-lpthread", "-ldl"])).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    let is_linker = |path: &PathBuf| path.file_name().is_some_and(|name| name == "ld-2.31.so");
    let linker = files_below(&old.join("root/lib")).into_iter().find(is_linker).expect("a dynamic linker");
    let mut with_old = Command::new(&linker);
    with_old.arg("--library-path").arg(linker.parent().expect("its folder")).arg(&program);
    for mut command in [with_old, Command::new(&program)] {
        let end = Job::start(&mut command).finish(LIMIT);
        assert!(end.success() && end.output.contains("all worked"), "{}", end.describe());
    }
}

#[test]
fn auditwheel_agrees_with_the_tag() {
    let folder = tempfile::tempdir().expect("a folder");
    let (Some(auditwheel), Some(wheel)) = (fetched("auditwheel"), wheel::make(folder.path())) else { return };
    let mut show = Command::new(auditwheel.join("bin/python"));
    let end = Job::start(show.args(["-m", "auditwheel", "show"]).arg(&wheel)).finish(LIMIT);
    let name = wheel.file_stem().expect("a name").to_string_lossy();
    let tag = name.rsplit('-').next().expect("a tag");
    // Its lines are broken where a terminal would end.
    let said = end.output.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        end.success() && said.contains(&format!("is consistent with the following platform tag: \"{tag}\"")),
        "{said}"
    );
}
