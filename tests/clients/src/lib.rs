//! Tests of clients that bring much with them: MPI, UCX, HPCC, pyverbs, wheels, a browser, containers, sanitizers. What they are
//! made with is in `vervain-tests`, whose own tests need little more than a compiler and perftest.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::Job;

/// What [`tarball`] calls.
pub const TARBALL_TOOLS: [&str; 5] = ["make", "install", "strip", "tar", "gzip"];

/// Puts into `place` a tarball of the build under test, named and laid out as that of `make tarball`, and its folder beside it,
/// which is returned. [`TARBALL_TOOLS`] is what it takes.
///
/// # Panics
/// When it cannot be made.
pub fn tarball(place: &Path) -> PathBuf {
    let name = concat!("vervain-", env!("CARGO_PKG_VERSION"), "-x86_64-linux");
    let (folder, command) = (place.join(name), vervain_tests::vervain());
    let built = command.parent().expect("a directory").display();
    let mut make = Command::new("make");
    // What is built is taken as it is.
    make.args(["-o", "build", "install", &format!("PREFIX={}", folder.display()), &format!("PROFILE_DIR={built}")]);
    make.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    // As what ships: most of what the tests' own build has is for debuggers.
    let mut strip = Command::new("sh");
    strip.args(["-ec", "strip --strip-debug bin/vervain lib/*.so.? lib/vervain/*.so.? lib/vervain/*preload.so"]);
    strip.current_dir(&folder);
    let mut tar = Command::new("tar");
    tar.args(["--use-compress-program", "gzip -1", "-cf", &format!("{name}.tar.gz"), name]).current_dir(place);
    std::fs::create_dir_all(&folder).expect("the folder of the tarball");
    for step in [&mut make, &mut strip, &mut tar] {
        let end = Job::start(step).finish(Duration::from_secs(60));
        assert!(end.success(), "{}", end.describe());
    }
    folder
}
