//! What `make` does before and after cargo, on a machine that has nothing: `scripts/cargo.sh` sets up a Rust of the pinned version,
//! from a stand-in for its host on the loopback, and changes nothing outside of the tree; `scripts/test.sh` counts tests; what
//! `make install` puts somewhere `make uninstall` removes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;
use vervain_tests::{Finished, Job, have, tool};

const LIMIT: Duration = Duration::from_secs(60);

/// What the scripts call; no cargo, no rustup, no compiler.
const TOOLS: &[&str] = &[
    "sh",
    "sed",
    "tr",
    "cut",
    "sort",
    "head",
    "uname",
    "dirname",
    "mkdir",
    "chmod",
    "cat",
    "sha256sum",
    "curl",
    "touch",
];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the source tree")
}

fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("the directory of a program");
    fs::write(path, text).expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its permissions");
}

/// A machine of its own: a tree, a home and a PATH.
struct Machine(TempDir);

impl Machine {
    fn new() -> Option<Machine> {
        if !have(TOOLS) {
            return None;
        }
        let machine = Machine(tempfile::tempdir().expect("a directory"));
        for directory in ["tree/scripts", "home", "bin"] {
            fs::create_dir_all(machine.at(directory)).expect("a directory");
        }
        for file in ["Cargo.toml", "rust-toolchain.toml", "scripts/cargo.sh", "scripts/progress.sh"] {
            fs::copy(source().join(file), machine.at("tree").join(file)).expect("a file of the tree");
        }
        for name in TOOLS {
            symlink(tool(name).expect("it was asked for"), machine.at("bin").join(name)).expect("a tool");
        }
        Some(machine)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Puts a rustc of this version, and a cargo that says that it is its, into a directory.
    fn rust(&self, directory: &str, version: &str) {
        for name in ["rustc", "cargo"] {
            let text = format!("#!/bin/sh\necho \"{name} {version} (of {directory})\" \"$@\"\n");
            program(&self.at(directory).join(name), &text);
        }
    }

    fn cargo(&self, words: &[&str], host: &str) -> Finished {
        let mut command = Command::new(self.at("tree/scripts/cargo.sh"));
        command.args(words).env_clear().env("HOME", self.at("home")).env("PATH", self.at("bin"));
        command.env("RUSTUP_UPDATE_ROOT", format!("{host}/rustup"));
        Job::start(&mut command).finish(LIMIT)
    }
}

fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(source().join(file)).expect("a file of the tree");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} = "))).expect("the field");
    line.trim_matches('"').to_owned()
}

/// A host of downloads on the loopback, whose rustup-init makes a cargo where rustup would put it; `sum` is what it says that
/// the file's SHA-256 is, if not the right one. Ends with the test's process.
fn host(sum: Option<&str>) -> String {
    let init = "#!/bin/sh\nset -eu\nfor word; do version=$previous; case $word in --profile) break; esac; previous=$word; done\n\
                bin=$RUSTUP_HOME/toolchains/$version-$(uname -m)-unknown-linux-gnu/bin\nmkdir -p \"$bin\" \"$CARGO_HOME\"\n\
                echo '#!/bin/sh' > \"$bin/cargo\"\necho 'echo pinned \"$@\"' >> \"$bin/cargo\"\nchmod +x \"$bin/cargo\"\n\
                echo \"$@\" > \"$RUSTUP_HOME/words\"\n";
    let init = init.replace("for word;", "previous=\nfor word;");
    let mut hashes = Command::new("sha256sum");
    let mut hashes =
        hashes.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().expect("hash");
    hashes.stdin.take().expect("a pipe").write_all(init.as_bytes()).expect("what to hash");
    let Output { stdout, .. } = hashes.wait_with_output().expect("a hash");
    let sum = sum.map_or_else(|| String::from_utf8_lossy(&stdout)[..64].to_owned(), str::to_owned);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut request = [0; 2048];
            let count = client.read(&mut request).unwrap_or(0);
            let line = String::from_utf8_lossy(&request[..count]);
            let path = line.split_whitespace().nth(1).unwrap_or_default();
            let (status, body) = match path.rsplit('/').next() {
                Some("rustup-init") => ("200 OK", init.as_str()),
                Some("rustup-init.sha256") => ("200 OK", sum.as_str()),
                _ => ("404 Not Found", ""),
            };
            let head = format!("HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = client.write_all((head + body).as_bytes());
        }
    });
    format!("http://{address}")
}

/// A host that does not answer: a port that nobody listens on.
const NO_HOST: &str = "http://127.0.0.1:1";

#[test]
fn a_machine_without_cargo_gets_the_pinned_one_below_target_and_nothing_elsewhere() {
    let Some(machine) = Machine::new() else { return };
    let host = host(None);
    let first = machine.cargo(&["--version"], &host);
    assert!(first.success() && first.output.ends_with("pinned --version\n"), "{}", first.describe());
    assert!(first.output.contains("setting up Rust"), "{}", first.describe());
    let words =
        fs::read_to_string(machine.at("tree/target/toolchain/rustup/words")).expect("what rustup-init was told");
    let pinned = field("rust-toolchain.toml", "channel");
    let told = format!(
        "-y --no-modify-path --default-toolchain {pinned} --profile minimal --component clippy --component rustfmt"
    );
    assert_eq!(words.trim(), told);
    assert_eq!(fs::read_dir(machine.at("home")).expect("the home").count(), 0);
    // The second time nothing is downloaded, and nothing said.
    let again = machine.cargo(&["fmt", "--all"], NO_HOST);
    assert_eq!(again.output, "pinned fmt --all\n");
    assert_eq!(machine.cargo(&["--needs"], NO_HOST).output, "");
}

#[test]
fn where_nothing_can_be_downloaded_one_sentence_says_what_to_type() {
    let Some(machine) = Machine::new() else { return };
    for (host, why) in [(NO_HOST.to_owned(), "onnect"), (host(Some(&"0".repeat(64))), "did NOT match")] {
        let end = machine.cargo(&["build"], &host);
        let [first, sentence] = end.output.lines().collect::<Vec<_>>()[..] else { panic!("{}", end.describe()) };
        assert!(!end.success() && first.contains("setting up Rust"), "{}", end.describe());
        assert!(sentence.contains(why) && sentence.ends_with("type:  make toolchain"), "{}", end.describe());
    }
    fs::remove_file(machine.at("bin/curl")).expect("curl is there");
    let end = machine.cargo(&["build"], NO_HOST);
    assert!(!end.success() && end.output.ends_with("apt-get install -y curl ca-certificates\n"), "{}", end.describe());
    assert_eq!(end.output.lines().count(), 1, "{}", end.describe());
    assert_eq!(machine.cargo(&["--needs"], NO_HOST).output, "rustup|curl ca-certificates\n");
}

#[test]
fn a_cargo_that_is_new_enough_is_taken_from_the_path_or_the_home() {
    let Some(machine) = Machine::new() else { return };
    let oldest = field("Cargo.toml", "rust-version");
    machine.rust("home/.cargo/bin", &format!("{oldest}.0"));
    assert!(machine.cargo(&["--set-up"], NO_HOST).output.is_empty());
    assert!(machine.cargo(&["fmt"], NO_HOST).output.contains("of home/.cargo/bin) fmt"));
    // 1.9 is older than 1.90, and a distribution's is not replaced.
    machine.rust("bin", "1.9.0");
    assert!(machine.cargo(&["fmt"], NO_HOST).output.contains("of home/.cargo/bin) fmt"));
    fs::remove_dir_all(machine.at("home/.cargo")).expect("the cargo of the home");
    assert!(machine.cargo(&["fmt"], NO_HOST).output.contains("setting up Rust"));
    assert_eq!(machine.cargo(&["--needs"], NO_HOST).output, "curl ca-certificates\n");
    machine.rust("bin", "1.100.0-nightly");
    assert!(machine.cargo(&["fmt"], NO_HOST).output.contains("of bin) fmt"));
    // Cargo is there; what links is not.
    let end = machine.cargo(&["build"], NO_HOST);
    assert!(!end.success() && end.output.contains("apt-get install -y gcc libc6-dev"), "{}", end.describe());
}

#[test]
fn a_long_step_shows_its_last_line_on_a_terminal_and_nothing_elsewhere() {
    if !have(&["script"]) {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let log = place.path().join("log");
    let step = format!(
        "'{}' '{}' sh -c 'echo first; sleep 3; echo last; exit 3'",
        source().join("scripts/progress.sh").display(),
        log.display()
    );
    let plain = Job::start(Command::new("sh").args(["-c", &step])).finish(LIMIT);
    assert_eq!((plain.code(), plain.output.as_str()), (Some(3), ""));
    assert_eq!(fs::read_to_string(&log).expect("the log"), "first\nlast\n");
    let shown = Job::start(Command::new("script").args(["--quiet", "--return", "--command", &step, "/dev/null"]));
    let shown = shown.finish(LIMIT);
    assert_eq!(shown.code(), Some(3), "{}", shown.describe());
    assert!(shown.output.contains("first") && shown.output.ends_with("\r\u{1b}[K"), "{}", shown.describe());
}

/// `scripts/test.sh` with a cargo that prints this, runs these test programs (shell scripts, with the names that cargo gives), and ends
/// with this status if they pass; its last lines, without the times.
fn counted(printed: &str, programs: &[(&str, &str)], skipped: &str, status: i32) -> (Finished, Vec<String>) {
    let dir = tempfile::tempdir().expect("a directory");
    for folder in ["scripts", "programs"] {
        fs::create_dir_all(dir.path().join(folder)).expect("a directory");
    }
    for script in ["scripts/test.sh", "scripts/run-tests.sh"] {
        fs::copy(source().join(script), dir.path().join(script)).expect("the script");
    }
    for (name, text) in programs {
        program(&dir.path().join(format!("programs/{name}-0123456789abcdef")), &format!("#!/bin/sh\n{text}"));
    }
    fs::write(dir.path().join("printed"), printed).expect("what it prints");
    fs::write(dir.path().join("skipped"), skipped).expect("what it skips");
    let text = format!(
        "#!/bin/sh\ncat printed\ncat skipped >> \"$VERVAIN_TESTS_SKIPPED\"\nstatus={status}\nfor each in programs/*; do\n    \
        [ ! -e \"$each\" ] || scripts/run-tests.sh target/tmp/test.records \"$PWD/$each\" || status=101\ndone\nexit $status\n"
    );
    program(&dir.path().join("cargo"), &text);
    let mut command = Command::new(dir.path().join("scripts/test.sh"));
    let end = Job::start(command.arg("test").env("CARGO", dir.path().join("cargo"))).finish(LIMIT);
    let mut lines: Vec<_> = end.output.lines().map(str::to_owned).collect();
    let last: Vec<_> = lines.split_off(lines.iter().rposition(String::is_empty).expect("an empty line") + 1);
    (end, last.into_iter().filter(|line| !line.starts_with("slowest ")).collect())
}

/// A test program that prints an outcome for each test, and what the harness prints at its end.
fn harness(tests: &str, passed: u32, failed: u32) -> String {
    let word = if failed > 0 { "FAILED" } else { "ok" };
    format!(
        "printf '\\nrunning tests\\n{tests}\\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; \
        0 filtered out; finished in 0.1s\\n\\n'; exit {}",
        if failed > 0 { 101 } else { 0 }
    )
}

/// One whose tests `luck1` to `luckN` fail together and pass alone, each in a process of its own, which prints a list of
/// failures too.
fn lucky(n: u32) -> String {
    let each = |i| {
        let list = format!("\\nfailures:\\n    luck{i}\\n\\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\\n\\n");
        format!("test luck{i} ... FAILED\\n{list}test luck{i} ... FAILED\\n")
    };
    let names: String = (1..=n).map(|i| format!("    luck{i}\\n")).collect();
    let tests = (1..=n).map(each).collect::<String>()
        + "\\nfailures:\\n\\n---- luck1 stdout ----\\n    at x\\n\\nfailures:\\n"
        + &names;
    format!("case \"$*\" in *--exact*) {};; *) {};; esac", harness("test luck ... ok\\n", 1, 0), harness(&tests, 0, n))
}

#[test]
fn the_last_lines_count_tests_over_all_programs_and_name_those_that_failed_or_were_skipped() {
    let inside = "test one ... ok\\ntest two ... FAILED\\ntest three ... ok\\n\\nfailures:\\n\\n---- two stdout ----\\n\
        test inner ... FAILED\\ntest result: FAILED. 7 passed; 9 failed; 0 ignored\\n\\nfailures:\\n    two\\n";
    let programs = [
        ("vervain_x", harness("test a::b ... ok\\ntest a::c ... ok\\n", 2, 0)),
        ("w", lucky(2)),
        ("y", harness(inside, 2, 1)),
        ("z", "echo running 1 test; exit 1".to_owned()),
    ];
    let programs = programs.each_ref().map(|(name, text)| (*name, text.as_str()));
    let skipped = "y::three\tno compiler\ny::three\tno nft\ny::two\tno ip\n";
    let (end, lines) = counted("   Compiling x v0.1.0\n", &programs, skipped, 0);
    let expected = [
        "skipped  y::three: no compiler",
        "FLAKY    w::luck1",
        "FLAKY    w::luck2",
        "FAILED   y::two",
        "FAILED   z: ended before its tests did, with status 1",
    ];
    assert_eq!(lines[..5], expected, "{}", end.describe());
    assert!(lines[5].starts_with("make test: 5 passed, 2 failed, 1 skipped, in 0 min "), "{}", end.describe());
    assert_eq!((lines.len(), end.code()), (6, Some(101)));
}

#[test]
fn three_tests_may_pass_by_luck_and_no_more() {
    for (n, status) in [(3, 0), (4, 1)] {
        let (end, lines) = counted("", &[("w", &lucky(n))], "", 0);
        assert_eq!(end.code(), Some(status), "{}", end.describe());
        assert_eq!(lines.iter().filter(|line| line.starts_with("FLAKY ")).count(), n as usize, "{}", end.describe());
        assert_eq!(lines.iter().any(|line| line.contains("4 tests are flaky")), n > 3, "{}", end.describe());
    }
}

#[test]
fn a_program_that_crashes_once_is_flaky_as_a_whole() {
    let text = format!("[ -e crashed ] || {{ touch crashed; exit 134; }}\n{}", harness("test a ... ok\\n", 1, 0));
    let (end, lines) = counted("", &[("v", &text)], "", 0);
    assert!(
        end.success() && lines[0] == "FLAKY    v" && lines[1].starts_with("make test: 1 passed, 0 failed"),
        "{lines:?}"
    );
}

#[test]
fn a_build_that_fails_is_a_failure_and_success_is_the_status_of_cargo() {
    let (end, lines) = counted("error: could not compile `x`\n", &[], "", 101);
    assert_eq!((lines.len(), end.code()), (2, Some(101)), "{}", end.describe());
    assert_eq!(lines[0], "FAILED   cargo, with status 101: see above");
    let (end, lines) = counted("", &[], "", 0);
    assert!(end.success() && lines[0].starts_with("make test: 0 passed, 0 failed, 0 skipped"), "{}", end.describe());
}

/// Files and links below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").flatten();
    let below = |entry: fs::DirEntry| match entry.file_type().expect("its type").is_dir() {
        true => files(&entry.path()),
        false => vec![entry.path()],
    };
    entries.flat_map(below).collect()
}

#[test]
fn uninstalling_removes_what_installing_put_there_and_nothing_else() {
    if !have(&["make", "install", "sed", "objcopy"]) {
        return;
    }
    let command = vervain_tests::vervain();
    let built = format!("PROFILE_DIR={}", command.parent().expect("a directory").display());
    let place = tempfile::tempdir().expect("a directory");
    let make = |goal: &str| {
        let destdir = format!("DESTDIR={}", place.path().display());
        // What is built is taken as it is.
        let mut command = Command::new("make");
        command.args(["-o", "build", goal, "PREFIX=/opt/its own", &destdir, &built]).current_dir(source());
        let end = Job::start(&mut command).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
    };
    make("install");
    let installed = files(place.path());
    assert!(installed.len() > 30, "{installed:?}");
    make("install-debug");
    let of_debuggers = files(place.path()).len() - installed.len();
    // The command, two libraries of jobs, the rsockets' preload, Vervain's own nine.
    assert_eq!(of_debuggers, 13);
    let root = place.path().join("opt/its own");
    let foreign = ["bin/other", "lib/vervain/other.so", "share/man/man1/vervain-other.1"].map(|file| root.join(file));
    for file in &foreign {
        fs::write(file, "").expect("a file of somebody else's");
    }
    make("uninstall");
    let mut left = files(place.path());
    left.sort();
    assert_eq!(left, foreign);
    assert!(!root.join("share/doc/vervain").exists(), "an empty directory of its own stays");
    fs::remove_file(&foreign[1]).expect("somebody else's file");
    make("uninstall");
    assert!(!root.join("lib/vervain").exists(), "an empty directory of its own stays");
}
