//! What packages do on machines that have nothing else, and with the tools that look for their files: pkg-config, gdb.

use std::fs;
use std::process::Command;
use std::time::Duration;

use vervain_tests::container::is_root;
use vervain_tests::packages::{can_make, make, run, source, unpack};
use vervain_tests::{Job, have, skip, unswayed};

/// A root is made of some 60 MB of packages, from a mirror.
const LIMIT: Duration = Duration::from_secs(600);

/// The name of this machine's release of Debian or Ubuntu, whose packages its apt knows; else that of Debian 12.
fn suite() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.unwrap_or("bookworm").trim_matches('"').to_owned()
}

#[test]
fn packages_are_installed_run_and_go_on_a_machine_without_network_and_cargo() {
    if !can_make() || !have(&["bash", "mmdebstrap", "unshare", "pivot_root", "setpriv", "ip"]) {
        return;
    }
    if !is_root() {
        return skip("making a root needs root");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (deb, tarball, suite) = (make("deb", dir.path(), "022"), make("tarball", dir.path(), "022"), suite());
    let mut command = Command::new(source().join("scripts/fresh-packages.sh"));
    let end = Job::start(command.arg(deb).arg(tarball).arg(&suite)).finish(LIMIT);
    if end.output.contains(&format!("{suite}: skipped: ")) {
        return skip(format_args!("no root of {suite} can be made: {}", end.describe()));
    }
    assert!(end.success() && end.output.contains(&format!("{suite}: passed")), "{}", end.describe());
}

#[test]
fn pkg_config_finds_a_tarball_where_it_is_unpacked() {
    if !can_make() || !have(&["cc", "pkg-config"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let root = unpack(&make("tarball", dir.path(), "022"), &dir.path().join("a place with blanks"));
    let program = dir.path().join("program");
    let script = r#"export PKG_CONFIG_PATH="$1/lib/pkgconfig"
        eval libraries="$(pkg-config --variable=libdir vervain)"
        test "$libraries/libibverbs.so" -ef "$1/lib/vervain/libibverbs.so"
        eval cc -D_GNU_SOURCE '"$2"' -o '"$3"' "$(pkg-config --cflags --libs acp)" '-Wl,-rpath,"$1/lib"'"#;
    let example = source().join("tests/acp/original.c");
    run("sh", &[&"-ec", &script, &"sh", &root, &example, &program]);
    let mut launch = unswayed(root.join("bin/vervain"));
    launch.args(["launch", "-n", "2", "--"]).arg(&program).args(["--acp-nprocs", "2"]);
    let end = Job::start(&mut launch).finish(LIMIT);
    assert!(end.success() && end.output.contains("OK rank"), "{}", end.describe());
}

#[test]
fn gdb_finds_the_lines_of_what_was_stripped() {
    if !can_make() || !have(&["gdb"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("place");
    let root = unpack(&make("tarball", dir.path(), "022"), &place);
    let library = root.join("lib/vervain/libibverbs.so.1");
    let lines = || run("gdb", &[&"-q", &"-batch", &"-ex", &"info line ibv_open_device", &library]).output;
    // The stripped one knows the function, and nothing of its lines.
    let before = lines();
    assert!(before.contains("ibv_open_device") && !before.contains("context.rs"), "{before}");
    // Over the tarball, and by build ID.
    unpack(&make("packages-debug", dir.path(), "022"), &place);
    assert!(lines().contains("crates/verbs/verbs/src/context.rs"), "{}", lines());
    fs::remove_dir_all(root.join("lib/vervain/.debug")).expect("what was unpacked");
    let deb = fs::read_dir(dir.path()).expect("the packages").flatten().map(|entry| entry.path());
    let deb =
        deb.into_iter().find(|path| path.to_string_lossy().contains("dbgsym")).expect("the package for debuggers");
    let installed = dir.path().join("installed");
    run("dpkg-deb", &[&"--extract", &deb, &installed]);
    let directory = format!("set debug-file-directory {}/usr/lib/debug", installed.display());
    let by_id = run("gdb", &[&"-q", &"-batch", &"-iex", &directory, &"-ex", &"info line ibv_open_device", &library]);
    assert!(by_id.output.contains("crates/verbs/verbs/src/context.rs"), "{}", by_id.output);
}
