//! README.md: it stays short, what it points to is there, and its commands work as they are written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::netns::Network;
use vervain_tests::{Failures, Job, have, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(60);
/// perftest's own port.
const PORT: u16 = 18515;
/// The address of the first host in the example of two.
const ADDRESS: &str = "192.0.2.7";
/// More than this a newcomer does not read.
const LINES_AT_MOST: usize = 120;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the source tree")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The blocks of commands, but not the picture.
fn blocks() -> Vec<String> {
    let text = read(&root().join("README.md"));
    let blocks = text.split("```").skip(1).step_by(2).map(str::trim_start);
    blocks.filter(|block| !block.contains('┌')).map(str::to_owned).collect()
}

/// A command with Vervain in the path, as for who has installed it, and a home of its own; temporary files lie there too, for the
/// session folder of Open MPI has one name for all of a user's.
fn shell(script: &str, home: &Path) -> Command {
    let vervain = vervain();
    let path = std::env::var("PATH").expect("PATH");
    let mut command = unswayed("bash");
    command.args(["-exc", script]).env("HOME", home).env("TMPDIR", home);
    command.env("PATH", format!("{}:{path}", vervain.parent().expect("its directory").display()));
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("GITHUB_ENV", home.join("github"));
    command
}

#[test]
fn the_readme_is_short() {
    let lines = read(&root().join("README.md")).lines().count();
    assert!(lines <= LINES_AT_MOST, "README.md has {lines} lines, {LINES_AT_MOST} at most are read");
}

/// Of README.md and of all pages under docs and examples, so that a page that moves takes its readers along.
#[test]
fn every_link_leads_to_a_file() {
    let root = root();
    let mut pages = vec![root.join("README.md")];
    for directory in ["docs", "docs/clients"] {
        let entries = fs::read_dir(root.join(directory)).expect("the documents").flatten().map(|entry| entry.path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    let (mut failures, mut links) = (Failures::default(), 0);
    for page in &pages {
        let text = read(page);
        // What follows `](`; code has that too, but no page's name ends there.
        for target in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") {
                continue;
            }
            links += 1;
            if !page.parent().expect("a directory").join(file).exists() {
                failures.add(&page.display().to_string(), format!("{target} is not there"));
            }
        }
    }
    assert!(links > 100, "{links} links in {} pages", pages.len());
    failures.assert_none();
}

#[test]
fn the_targets_of_make_are_there() {
    let blocks = blocks().concat();
    let lines = blocks.lines().filter(|line| line.starts_with("make "));
    let mut tried = 0;
    for line in lines {
        // Printed, not done.
        let script = line.replacen("make", "make --dry-run", 1);
        let home = tempfile::tempdir().expect("a directory");
        let end = Job::start(shell(&script, home.path()).current_dir(root())).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        tried += 1;
    }
    assert!(tried >= 2, "{tried} lines of make");
}

/// Waits until the shell's program in the background listens on the TCP port, or has ended: its client does not try twice.
fn until_it_listens(port: u16) -> String {
    let listens = format!("grep -qs ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6");
    format!("while kill -0 $! 2>/dev/null && ! {listens}; do sleep 0.02; done")
}

/// Two processes that talk, so that packets are there to be captured.
fn my_program() -> String {
    let server = format!("ibv_rc_pingpong -g 0 -p 18600 >server.txt &\n{}", until_it_listens(18600));
    format!("#!/bin/sh\n{server}\nibv_rc_pingpong -g 0 -p 18600 localhost; wait\n")
}

/// One shell runs all of them in turn, as who pastes them has it.
#[test]
fn the_commands_of_one_host_run() {
    if !have(&["bash", "ibv_rc_pingpong", "ibv_devinfo", "ibv_devices", "mpirun"]) {
        return;
    }
    let Some(network) = Network::of_one() else { return };
    let home = tempfile::tempdir().expect("a directory");
    let program = home.path().join("my-program");
    fs::write(&program, my_program()).expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    let blocks: String = blocks().into_iter().filter(|block| !block.contains(ADDRESS)).collect();
    let lines = blocks.lines().filter(|line| !line.starts_with("make "));
    let mut script: String = lines.clone().map(|line| format!("{line}\n")).collect();
    assert!(lines.count() > 10, "{script}");
    script = script.replace("/tmp/", &format!("{}/", home.path().display()));
    // A second is enough for who types it, not on every machine that tests.
    assert!(script.contains("sleep 1;"), "{script}");
    script = script.replace("sleep 1;", &format!("{};", until_it_listens(PORT)));
    // The shell is on Vervain's devices at the end.
    script += "wait\nibv_devices | grep vervain0\n";
    let end = Job::start(network.first().enter(&shell(&script, home.path())).current_dir(home.path())).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    assert!(read(&home.path().join("github")).contains("LD_LIBRARY_PATH="), "no variables for later steps");
    let captures = fs::read_dir(home.path()).expect("the directory").flatten();
    let captures = captures.filter(|entry| entry.file_name().to_string_lossy().ends_with(".pcap")).count();
    assert_eq!(captures, 2, "one of each process");
}

#[test]
fn the_commands_of_two_hosts_run() {
    if !have(&["bash", "ib_write_bw"]) {
        return;
    }
    let Some(network) = Network::of_two(1500) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let block = blocks().into_iter().find(|block| block.contains(ADDRESS)).expect("the block of two hosts");
    let lines: Vec<&str> = block.lines().filter(|line| !line.is_empty()).collect();
    let [first, second] = lines[..] else { panic!("{block}") };
    let address = network.second().v4;
    let server = network.second().enter(&shell(&first.replace(ADDRESS, address), home.path()));
    let client = network.first().enter(&shell(&second.replace(ADDRESS, address), home.path()));
    for end in <[_; 2]>::from(vervain_tests::pairs::serve(server, client, PORT, LIMIT)) {
        assert!(end.success(), "{}", end.describe());
        assert!(end.output.contains("65536"), "no result in {}", end.describe());
    }
}
