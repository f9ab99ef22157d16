//! Tests of clients that bring much with them: MPI, UCX, HPCC, pyverbs, wheels, a browser, containers, sanitizers. What they are
//! made with is in `vervain-tests`, whose own tests need little more than a compiler and perftest.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use vervain_tests::Job;

/// What [`tarball`] calls.
pub const TARBALL_TOOLS: [&str; 5] = ["make", "objcopy", "readelf", "tar", "gzip"];

/// Puts into `place` what `make tarball` makes of the build under test, and unpacks it there; returns the folder. [`TARBALL_TOOLS`] is
/// what it takes.
///
/// # Panics
/// When it cannot be made.
pub fn tarball(place: &Path) -> PathBuf {
    let file = made();
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    std::fs::copy(file, place.join(name)).expect("a copy of the tarball");
    let unpacked = Job::start(Command::new("tar").arg("-xzf").arg(file).current_dir(place)).finish(LIMIT);
    assert!(unpacked.success(), "{}", unpacked.describe());
    place.join(name.strip_suffix(".tar.gz").expect("a tarball"))
}

/// Compressing takes seconds, on a machine that may be busy: once for all tests of a program.
const LIMIT: Duration = Duration::from_secs(180);

fn made() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the source tree");
        let (program, command) = (std::env::current_exe().expect("this program"), vervain_tests::vervain());
        let to = source.join("target/tmp/tarballs").join(program.file_stem().expect("its name"));
        let built = command.parent().expect("a directory").display();
        let mut make = Command::new("make");
        // What is built is taken as it is.
        make.args(["--no-print-directory", "-o", "build", "tarball", &format!("PROFILE_DIR={built}")]);
        make.arg(format!("PACKAGE_DIR={}", to.display())).current_dir(&source);
        let end = Job::start(&mut make).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        PathBuf::from(end.output.lines().last().expect("a path"))
    })
}
