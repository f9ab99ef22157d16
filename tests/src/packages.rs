//! Packages of the build under test, made as users make them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Finished, Job, have, vervain};

/// Making a package is compressing, on a machine that may be busy.
const LIMIT: Duration = Duration::from_secs(180);

/// The source tree.
///
/// # Panics
/// When it has gone.
pub fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the source tree")
}

/// The directory of the build under test.
///
/// # Panics
/// When nothing is built.
pub fn build() -> PathBuf {
    vervain().parent().expect("a file is in a directory").to_owned()
}

/// Whether packages can be made here.
pub fn can_make() -> bool {
    have(&["make", "objcopy", "readelf", "tar", "gzip", "dpkg-deb", "dpkg"])
}

/// `make GOAL` for that build as it is, by a user with this umask. What the goal makes goes into `to`; the path of the
/// last is returned.
///
/// # Panics
/// When it fails.
pub fn make(goal: &str, to: &Path, umask: &str) -> PathBuf {
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask "$0"; exec make --no-print-directory -o build "$@""#, umask, goal]);
    command.arg(format!("PROFILE_DIR={}", build().display())).arg(format!("PACKAGE_DIR={}", to.display()));
    // Users wait once for a package that is small, tests each time.
    command.env("DPKG_DEB_COMPRESSOR_LEVEL", "0").current_dir(source());
    let end = Job::start(&mut command).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    PathBuf::from(end.output.lines().last().expect("it prints the path"))
}

/// Unpacks a tarball into a directory, which is made; the one directory that it has.
///
/// # Panics
/// When it cannot be unpacked, or has more.
pub fn unpack(tarball: &Path, place: &Path) -> PathBuf {
    fs::create_dir_all(place).expect("a directory");
    run("tar", &[&"-C", &place, &"-xf", &tarball]);
    let inside: Vec<_> = fs::read_dir(place).expect("its content").flatten().map(|entry| entry.path()).collect();
    let [root] = &inside[..] else { panic!("one directory, not {inside:?}") };
    root.clone()
}

/// Runs a program to its end, which must be a good one.
///
/// # Panics
/// When it fails.
pub fn run(program: &str, arguments: &[&dyn AsRef<OsStr>]) -> Finished {
    let mut command = Command::new(program);
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    let end = Job::start(&mut command).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    end
}
