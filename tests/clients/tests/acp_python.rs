//! The Python package of ACP, which `make install` installs, as ranks under `vervain launch`: from there, and in a virtual
//! environment that pip has installed it into.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::{Failures, Job, acp, skip};

const LIMIT: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the source tree")
}

/// Debian's Python, if its numpy is there.
fn python() -> Option<PathBuf> {
    let python = Path::new("/usr/bin/python3");
    let has = |module: &str| {
        let end = Job::start(Command::new(python).args(["-c", &format!("import {module}")])).finish(LIMIT);
        end.success()
    };
    if python.exists() && has("numpy") {
        return Some(python.to_path_buf());
    }
    skip("this machine has no numpy for /usr/bin/python3 (package python3-numpy)");
    None
}

/// Files and folders below one, in the order of their names.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()).collect();
    let folders: Vec<_> = found.iter().filter(|path| path.is_dir()).cloned().collect();
    found.extend(folders.iter().flat_map(|folder| files_below(folder)));
    found.sort_unstable();
    found
}

/// The test program on some numbers of ranks.
fn holds(what: &str, python: &Path, variables: &[(&str, &Path)]) {
    let mut failures = Failures::default();
    for ranks in [1, 4] {
        let mut command = acp::launch(ranks, &[], python);
        command.arg(root().join("tests/python/global_memory.py")).envs(variables.iter().copied());
        acp::judge(what, ranks, &Job::start(&mut command).finish(LIMIT), &mut failures);
    }
    failures.assert_none();
}

#[test]
fn the_package_that_is_installed() {
    let Some(python) = python() else { return };
    let prefix = acp::prefix();
    let mut directory = Command::new(root().join("scripts/python-directory.sh"));
    let said = Job::start(directory.arg(&prefix)).finish(LIMIT);
    assert!(said.success(), "{}", said.describe());
    // It finds the library of its own installation.
    holds("installed", &python, &[("PYTHONPATH", &prefix.join(said.output.trim()))]);
}

#[test]
fn the_package_in_a_virtual_environment() {
    let Some(python) = python() else { return };
    let out = tempfile::tempdir().expect("a directory");
    let (environment, source) = (out.path().join("environment"), out.path().join("source"));
    // With Debian's numpy and setuptools: nothing is fetched.
    let mut venv = Command::new(&python);
    let made = Job::start(venv.args(["-m", "venv", "--system-site-packages"]).arg(&environment)).finish(LIMIT);
    if !made.success() {
        return skip("this machine cannot make virtual environments (package python3-venv)");
    }
    fs::create_dir_all(source.join("vervain_acp")).expect("a copy of the package");
    let files = fs::read_dir(root().join("python/vervain_acp")).expect("the package").flatten();
    let files = files.map(|file| Path::new("vervain_acp").join(file.file_name()));
    for file in files
        .filter(|file| file.extension().is_some_and(|e| e == "py"))
        .chain(["pyproject.toml", "setup.py"].map(Into::into))
    {
        fs::copy(root().join("python").join(&file), source.join(&file)).expect("a file of the package");
    }
    let before = files_below(&source);
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args(["-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps"]).arg(&source);
    let installed = Job::start(&mut pip).finish(LIMIT);
    if installed.output.contains("Cannot import 'setuptools.build_meta'") {
        return skip("this machine has no setuptools for /usr/bin/python3");
    }
    assert!(installed.success(), "{}", installed.describe());
    assert_eq!(files_below(&source), before, "what pip leaves in the source tree");
    let library = acp::prefix().join("lib/libacp.so.3");
    holds("venv", &environment.join("bin/python"), &[("ACP_LIBRARY", &library)]);
}
