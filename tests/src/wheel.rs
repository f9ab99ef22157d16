//! The Python wheel of `make wheel`, made from the build under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Job, have, skip, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(120);

/// The seconds that its files are dated by.
pub const EPOCH: &str = "1700000000";

/// The wheel, made below `folder`; None, with a printed reason, where it cannot be made.
///
/// # Panics
/// When it is not made.
pub fn make(folder: &Path) -> Option<PathBuf> {
    let build = vervain().parent().expect("its directory").to_owned();
    if !build.join("libibverbs.so").is_file() {
        skip("an installed command is no build that a wheel could be made from");
        return None;
    }
    if !have(&["python3", "cc", "readelf"]) {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/make-wheel.py");
    let mut make = Command::new(script);
    make.arg(build).arg(folder).arg(env!("CARGO_PKG_VERSION")).env("SOURCE_DATE_EPOCH", EPOCH);
    let end = Job::start(&mut make).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    Some(end.output.lines().last().expect("its path").into())
}

/// The wheel's files below `folder`, after they were held against what the wheel says of itself.
///
/// # Panics
/// When they contradict it.
pub fn unpack(wheel: &Path, folder: &Path) {
    let mut python = unswayed("python3");
    python.arg("-B").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/wheel.py")).args([wheel, folder]);
    let end = Job::start(&mut python).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
}

/// The tests of the package in Python, `tests/python/package.py`, with a package whose command is `command`.
pub fn package_tests(python: &Path, command: &Path) -> Command {
    let mut tests = unswayed(python);
    tests.arg("-B").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/package.py"));
    tests.env("VERVAIN_TEST_COMMAND", command);
    tests
}
