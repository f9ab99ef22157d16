//! README.md: it stays short, what it points to is there, its commands work as they are written, and print what it shows. The index
//! of the documents has each of them. examples/hello.c, which README.md begins with, does what it says.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::netns::Network;
use vervain_tests::{Failures, Job, have, have_c, under_vervain, unswayed, vervain};

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

/// The blocks of README.md.
fn all_blocks() -> Vec<String> {
    let text = read(&root().join("README.md"));
    text.split("```").skip(1).step_by(2).map(|block| block.trim_start().to_owned()).collect()
}

/// Before a command, in a block that shows what commands print.
const PROMPT: &str = "$ ";

/// The blocks of commands alone.
fn blocks() -> Vec<String> {
    all_blocks().into_iter().filter(|block| !block.starts_with(PROMPT)).collect()
}

/// A command with Vervain in the path, as for who has installed it, and a home of its own; temporary files lie there too, for the
/// session folder of Open MPI has one name for all of a user's.
fn shell(script: &str, home: &Path) -> Command {
    bash("-exc", script, home)
}

fn bash(options: &str, script: &str, home: &Path) -> Command {
    let vervain = vervain();
    let path = std::env::var("PATH").expect("PATH");
    let mut command = unswayed("bash");
    command.args([options, script]).env("HOME", home).env("TMPDIR", home);
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
fn the_index_has_every_document_once() {
    let root = root().join("docs");
    let mut failures = Failures::default();
    for (index, folder) in [("README.md", ""), ("clients/README.md", "clients")] {
        let text = read(&root.join(index));
        let files = fs::read_dir(root.join(folder)).expect("the documents").flatten().map(|entry| entry.file_name());
        let mut pages: Vec<_> = files.map(|name| name.to_string_lossy().into_owned()).collect();
        pages.retain(|name| name.ends_with(".md") && name != "README.md");
        pages.extend(folder.is_empty().then(|| "clients/README.md".to_owned()));
        assert!(pages.len() > 10, "{pages:?}");
        for page in pages {
            let times = text.matches(&format!("]({page})")).count();
            if times != 1 {
                failures.add(index, format!("it has {page} {times} times"));
            }
        }
    }
    failures.assert_none();
}

/// What is shown or printed, without numbers that differ between runs and machines, in one line each: a terminal breaks those that are
/// too long.
fn plain(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let words = line.split_whitespace().map(|word| {
            let number = word.trim_end_matches([',', ':', ';']);
            if number.starts_with("0x") { word.replace(number, "#") } else { word.to_owned() }
        });
        let line = words.collect::<Vec<_>>().join(" ");
        match lines.last_mut() {
            Some(last) if last.ends_with(';') => *last += &format!(" {line}"),
            _ => lines.push(line),
        }
    }
    lines
}

/// The program of examples/hello.c in a folder of its own; None, with a printed reason, where it cannot be compiled.
fn hello() -> Option<tempfile::TempDir> {
    if !have_c() || !have(&["cc"]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", "hello"]);
    compile.arg(root().join("examples/hello.c")).arg("-libverbs").current_dir(folder.path());
    let end = Job::start(&mut compile).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    Some(folder)
}

#[test]
fn the_first_program_says_what_it_did_and_vervain_what_was_wrong() {
    let Some(folder) = hello() else { return };
    const CONNECTED: &str = "vervain0: QP # and QP # are connected";
    const SENT: &str = "Send: success, and the target holds \"Hello\"";
    let remark = "; VERVAIN_LOG=info reports all failures as they happen";
    for (mistake, status, said, reason) in [
        ("", 0, &[SENT, "RDMA Write: success, and the target holds \"Hello again\""][..], None),
        ("no-receive", 1, &["Send: RNR retry counter exceeded"], Some("the peer has no receive posted")),
        ("wrong-lkey", 1, &["Send: local protection error"], Some("SGE 0: lkey # is not registered")),
        ("wrong-rkey", 1, &[SENT, "RDMA Write: remote access error"], Some("rkey # is not registered at the peer")),
    ] {
        let mut command = under_vervain(folder.path().join("hello"));
        command.args((!mistake.is_empty()).then_some(mistake));
        let end = Job::start(&mut command).finish(LIMIT);
        assert_eq!(end.code(), Some(status), "{}", end.describe());
        let lines = plain(&end.output);
        let (reasons, own): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.starts_with("vervain: "));
        assert_eq!(own, [&[CONNECTED], said].concat(), "{mistake}: {}", end.describe());
        // Both ends of a refused request have one, in either order.
        let expected = reason.map(|reason| format!(": {reason}{remark}"));
        let is_told = expected.as_ref().is_none_or(|said| reasons.iter().any(|line| line.ends_with(said)));
        assert!(is_told && reasons.is_empty() == reason.is_none(), "{mistake}: {}", end.describe());
    }
}

/// Commands of the first block and what it shows of each are what a newcomer types and sees.
#[test]
fn the_first_block_shows_what_its_commands_print() {
    if !have_c() || !have(&["bash", "cc"]) {
        return;
    }
    let sessions: Vec<_> = all_blocks().into_iter().filter(|block| block.starts_with(PROMPT)).collect();
    let [session] = &sessions[..] else { panic!("{sessions:#?}") };
    let folder = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(root().join("examples"), folder.path().join("examples")).expect("the examples");
    let mut shown = 0;
    for part in session.split(PROMPT).skip(1) {
        let (command, output) = part.split_once('\n').expect("a command and what it prints");
        let end = Job::start(bash("-ec", command, folder.path()).current_dir(folder.path())).finish(LIMIT);
        let (mut found, mut expected) = (plain(&end.output), plain(output));
        if command == "vervain devices" {
            // Of its own addresses each machine has others, and more.
            let form = |line: &String| {
                let words: Vec<_> = line.split(' ').collect();
                let parts = [words.first(), words.get(3), words.get(4)].map(Option::<&&str>::copied);
                line.split_once(", MTU ").map_or(format!("{parts:?}"), |(before, _)| before.to_owned())
            };
            found.truncate(expected.len());
            [&mut found, &mut expected].into_iter().for_each(|lines| *lines = lines.iter().map(form).collect());
        } else {
            // A pipe gets the lines of the program at its end, behind those of the library.
            found.sort();
            expected.sort();
        }
        assert_eq!(found, expected, "{command}: {}", end.describe());
        shown += 1;
    }
    assert!(shown >= 3, "{session}");
}

#[test]
fn the_targets_of_make_are_there() {
    let text = read(&root().join("README.md"));
    let in_text = text.split('`').skip(1).step_by(2).filter(|code| !code.contains('\n'));
    let blocks = blocks().concat();
    let lines = blocks.lines().chain(in_text).filter(|line| line.starts_with("make "));
    let mut tried = 0;
    for line in lines {
        // Printed, not done.
        let script = line.replacen("make", "make --dry-run", 1);
        let home = tempfile::tempdir().expect("a directory");
        let end = Job::start(shell(&script, home.path()).current_dir(root())).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        tried += 1;
    }
    assert!(tried >= 5, "{tried} lines of make");
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
