//! The `vervain` binary as a user meets it: exit statuses, the environment of the program, and what it prints. A small
//! libibverbs in C stands for the library, so that nothing but the command is tested here.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

/// A directory with the stand-in library and an empty preload, made once.
fn lib_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-lib");
        fs::create_dir_all(&dir).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_verbs.c");
        let cc = |args: &[&str], out: &str| {
            let aside = dir.join(format!("{out}.{}", std::process::id()));
            let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&aside).args(args).status().unwrap();
            assert!(status.success(), "cc and libibverbs-dev are needed for this test");
            fs::rename(aside, dir.join(out)).unwrap();
        };
        cc(&[source.to_str().unwrap(), "-Wl,-soname,libibverbs.so.1"], "libibverbs.so.1");
        cc(&["-x", "c", "/dev/null"], "libvervain_preload.so");
        dir.canonicalize().unwrap()
    })
}

/// The tester's settings.
fn vervains() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| name.as_encoded_bytes().starts_with(b"VERVAIN_"))
}

/// The command, with a runtime directory of its own and none of the tester's settings.
fn vervain(args: &[&str]) -> (Command, TempDir) {
    let runtime = tempfile::tempdir().unwrap();
    fs::set_permissions(runtime.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vervain"));
    command.args(args).env("XDG_RUNTIME_DIR", runtime.path()).stdin(Stdio::null());
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "SYSFS_PATH"].map(Into::into).into_iter().chain(vervains()) {
        command.env_remove(name);
    }
    (command, runtime)
}

/// `vervain SUBCOMMAND --lib-dir … ARGS`.
fn with_libs(subcommand: &str, args: &[&str]) -> Output {
    let (mut command, _runtime) = vervain(&[subcommand, "--lib-dir", lib_dir().to_str().unwrap()]);
    command.args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_program_gets_the_environment() {
    let (mut command, runtime) = vervain(&["run", "--devices", "2", "--lib-dir", lib_dir().to_str().unwrap()]);
    command.env("LD_LIBRARY_PATH", "/users/own").args([
        "--",
        "sh",
        "-c",
        "env; ls $VERVAIN_SYSFS/sys/class/infiniband",
    ]);
    let output = command.output().unwrap();
    let text = stdout(&output);
    let dir = lib_dir().display();
    assert!(text.contains(&format!("LD_LIBRARY_PATH={dir}:/users/own\n")), "{text}");
    assert!(text.contains(&format!("LD_PRELOAD={dir}/libvervain_preload.so\n")), "{text}");
    assert!(text.contains("VERVAIN_DEVICES=2\n"), "{text}");
    assert!(text.contains(&format!("VERVAIN_SYSFS={}/vervain/sysfs-", runtime.path().display())), "{text}");
    assert!(text.contains("vervain0\nvervain1\n"), "{text}");
    assert_eq!(stderr(&output), "");
}

#[test]
fn two_runs_share_one_tree_and_leave_nothing_else() {
    let (mut first, runtime) = vervain(&["run", "--lib-dir", lib_dir().to_str().unwrap(), "true"]);
    assert!(first.status().unwrap().success());
    assert!(first.status().unwrap().success());
    assert_eq!(fs::read_dir(runtime.path().join("vervain")).unwrap().count(), 1);
}

#[test]
fn without_the_preload_there_is_no_view() {
    let text = stdout(&with_libs("run", &["--no-preload", "env"]));
    assert!(text.contains("LD_LIBRARY_PATH="), "{text}");
    assert!(!text.contains("LD_PRELOAD=") && !text.contains("VERVAIN_SYSFS="), "{text}");
}

#[test]
fn a_run_inside_a_run_can_be_without_the_preload() {
    let inside =
        [env!("CARGO_BIN_EXE_vervain"), "run", "--no-preload", "--lib-dir", lib_dir().to_str().unwrap(), "env"];
    let text = stdout(&with_libs("run", &inside));
    assert!(text.contains("LD_LIBRARY_PATH="), "{text}");
    assert!(!text.contains("LD_PRELOAD=") && !text.contains("VERVAIN_SYSFS="), "{text}");
}

#[test]
fn exit_status_and_signals_are_the_programs() {
    assert_eq!(with_libs("run", &["--", "sh", "-c", "exit 42"]).status.code(), Some(42));
    assert_eq!(with_libs("run", &["--", "sh", "-c", "kill -TERM $$"]).status.signal(), Some(libc::SIGTERM));
}

#[test]
fn the_pid_is_the_programs() {
    let (mut command, _runtime) =
        vervain(&["run", "--lib-dir", lib_dir().to_str().unwrap(), "--", "sh", "-c", "echo $$"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    assert_eq!(stdout(&child.wait_with_output().unwrap()).trim(), pid.to_string());
}

#[test]
fn a_program_that_is_not_there_is_127() {
    for name in ["no-such-program", "/no/such/program"] {
        let output = with_libs("run", &["--", name]);
        assert_eq!(output.status.code(), Some(127));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains(name));
    }
}

#[test]
fn a_file_that_is_not_executable_is_126() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = with_libs("run", &["--", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126));
    assert!(stderr(&output).contains("not executable"), "{}", stderr(&output));
}

#[test]
fn a_missing_interpreter_is_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let output = with_libs("run", &["--", script.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126));
    assert!(stderr(&output).contains("interpreter that it names is missing"), "{}", stderr(&output));
}

#[test]
fn missing_libraries_are_one_sentence_that_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let command = dir.path().join("vervain");
    fs::copy(env!("CARGO_BIN_EXE_vervain"), &command).unwrap();
    let output = Command::new(&command).args(["run", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let place = dir.path().canonicalize().unwrap().join("lib/vervain");
    assert!(stderr(&output).contains(place.to_str().unwrap()), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
}

#[test]
fn a_library_that_fails_does_not_keep_the_program_from_running() {
    let (mut command, _runtime) = vervain(&["run", "--lib-dir", lib_dir().to_str().unwrap(), "--", "echo", "ran"]);
    let output = command.env("FAKE_VERBS", "fail").output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    assert!(stderr(&output).contains("no view of /sys/class/infiniband"), "{}", stderr(&output));
}

#[test]
fn a_library_that_hangs_is_given_up() {
    let (mut command, _runtime) = vervain(&["devices", "--lib-dir", lib_dir().to_str().unwrap()]);
    let output = command.env("FAKE_VERBS", "hang").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("did not answer within"), "{}", stderr(&output));
}

#[test]
fn a_wrong_option_value_is_2_and_names_the_range() {
    let output = with_libs("run", &["--devices", "17", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "vervain: --devices is '17'; it can be 1 to 16\n");
}

#[test]
fn an_unknown_option_is_2_and_one_line_with_the_option_that_was_meant() {
    let output = with_libs("run", &["--device", "2", "--", "ls"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "vervain: unknown option '--device'; did you mean '--devices'?\n");
    assert_eq!(stdout(&output), "");
}

/// A value that a variable cannot have, if the command can judge it by itself; None for a text that the library or the
/// machine judges.
fn wrong_value(variable: &vervain_config::Variable) -> Option<&'static str> {
    use vervain_config::Syntax;
    match variable.syntax {
        Syntax::Words(_) => Some("nonsense"),
        Syntax::Number { .. } => Some("0"),
        Syntax::Bytes => Some("lots"),
        Syntax::Text(_) => (variable.name() == "VERVAIN_FAULTS").then_some("drop=1"),
    }
}

fn of_users() -> impl Iterator<Item = &'static vervain_config::Variable> {
    vervain_config::TABLE.into_iter().filter(|variable| variable.setter == vervain_config::Setter::User)
}

#[test]
fn a_wrong_value_of_each_variable_and_option_is_2_and_one_line_that_begins_with_its_name() {
    let mut tried = 0;
    for variable in of_users() {
        let Some(value) = wrong_value(variable) else { continue };
        let option = format!("--{}", variable.option.unwrap().long);
        let said = match variable.name() {
            "VERVAIN_FAULTS" => ": 'drop=1': drop takes a percentage, as in drop=1%".to_owned(),
            _ => format!(" is '{value}'; it can be {}", variable.syntax),
        };
        for subcommand in [
            &["run", "true"][..],
            &["run", "--no-preload", "true"],
            &["run", "/no/such/program"],
            &["devices"],
            &["env"],
            &["env", "--list"],
            &["bench", "run"],
        ] {
            let (mut by_variable, _runtime) = vervain(subcommand);
            let by_variable = by_variable.env(variable.name(), value).output().unwrap();
            let (mut by_option, _runtime) = vervain(&[]);
            let at = subcommand.iter().take_while(|word| ["run", "devices", "env", "bench"].contains(word)).count();
            let (before, behind) = subcommand.split_at(at);
            let by_option = by_option.args(before).args([option.as_str(), value]).args(behind).output().unwrap();
            for (output, name) in [(by_variable, variable.name()), (by_option, &option)] {
                assert_eq!(output.status.code(), Some(2), "{name}: {subcommand:?}");
                assert_eq!(stderr(&output), format!("vervain: {name}{said}\n"), "{subcommand:?}");
            }
            tried += 1;
        }
    }
    assert!(tried >= 9 * 7, "{tried}");
}

#[test]
fn each_variable_of_vervains_that_users_set_has_an_option_that_sets_it_and_with_an_empty_value_unsets_it() {
    let (mut command, _runtime) = vervain(&["run", "--help"]);
    let help = stdout(&command.output().unwrap());
    for variable in of_users().filter(|variable| variable.name().starts_with("VERVAIN_")) {
        let name = variable.name();
        let option = format!("--{}", variable.option.unwrap_or_else(|| panic!("{name} has no option")).long);
        assert!(help.contains(&format!(" {option} <")), "{option}: {help}");
        let value = match name {
            "VERVAIN_FAULTS" => "drop=1%",
            "VERVAIN_FORK_LIMIT" => "4096",
            "VERVAIN_INTERFACE" => "lo",
            "VERVAIN_PCAP" => "/tmp/x-%p.pcap",
            _ => variable.default,
        };
        for (given, seen) in [(value, format!("{name}={value}\n")), ("", String::new())] {
            let (mut command, _runtime) = vervain(&["run", "--lib-dir", lib_dir().to_str().unwrap(), &option, given]);
            let output = command.env(name, value).args(["--", "sh", "-c", &format!("env | grep ^{name}=")]).output();
            let output = output.unwrap();
            assert_eq!((stdout(&output), stderr(&output)), (seen, String::new()), "{option} {given}");
        }
    }
}

#[test]
fn a_wrong_variable_is_2_and_one_sentence() {
    for (name, value, can_be) in [
        ("VERVAIN_LINK_LAYER", "token-ring", "ethernet or infiniband"),
        ("VERVAIN_SHARE", "maybe", "auto, always or off"),
        ("VERVAIN_FORK_LIMIT", "lots", "a number of bytes, such as 4096, 512M or 4G"),
    ] {
        for subcommand in [&["run", "true"][..], &["devices"], &["env"], &["env", "--list"]] {
            let (mut command, _runtime) = vervain(&[subcommand[0], "--lib-dir", lib_dir().to_str().unwrap()]);
            let output = command.args(&subcommand[1..]).env(name, value).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{subcommand:?}");
            assert_eq!(
                stderr(&output),
                format!("vervain: {name} is '{value}'; it can be {can_be}\n"),
                "{subcommand:?}"
            );
        }
    }
}

#[test]
fn an_option_comes_before_its_variable_and_an_empty_variable_counts_as_none() {
    let (mut command, _runtime) = vervain(&["run", "--link", "local", "--lib-dir", lib_dir().to_str().unwrap()]);
    command.env("VERVAIN_LINK", "air").env("VERVAIN_LINK_LAYER", "").args(["--", "sh", "-c", "echo $VERVAIN_LINK"]);
    let output = command.output().unwrap();
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("local\n", ""));
}

#[test]
fn what_the_library_says_of_a_variable_is_the_commands_word_too() {
    let (mut command, _runtime) = vervain(&["run", "--lib-dir", lib_dir().to_str().unwrap(), "--", "echo", "ran"]);
    let output = command.env("FAKE_VERBS", "refuse").env("VERVAIN_LOG", "off").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "vervain: VERVAIN_INTERFACE is 'x'; it can be some of lo\n");
    assert_eq!(stdout(&output), "");
    for words in [&["run", "--no-preload", "--interface", "x", "true"][..], &["devices", "--interface", "x"]] {
        let (mut command, _runtime) = vervain(&[words[0], "--lib-dir", lib_dir().to_str().unwrap()]);
        let output = command.env("FAKE_VERBS", "refuse").env("VERVAIN_LOG", "off").args(&words[1..]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(stderr(&output), "vervain: --interface is 'x'; it can be some of lo\n", "{words:?}");
    }
}

#[test]
fn a_variable_that_nobody_reads_is_told_with_the_one_that_was_meant() {
    let (mut command, _runtime) = vervain(&["run", "--lib-dir", lib_dir().to_str().unwrap(), "--", "echo", "ran"]);
    let output = command.env("VERVAIN_LNK", "roce").output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    let said = "vervain: warning: VERVAIN_LNK: unknown variable; did you mean VERVAIN_LINK?\n";
    assert_eq!(stderr(&output), said);
}

#[test]
fn the_list_has_each_variable_with_its_value_and_its_default() {
    let list = |args: &[&str]| {
        let (mut command, _runtime) = vervain(&["env", "--list"]);
        stdout(&command.env("VERVAIN_LINK", "local").args(args).output().unwrap())
    };
    let json: serde_json::Value = serde_json::from_str(&list(&["--format", "json", "--ports", "2"])).unwrap();
    let of = |name: &str, what: &str| {
        let variable = json.as_array().unwrap().iter().find(|variable| variable["name"] == name);
        variable.unwrap_or_else(|| panic!("no {name}"))[what].clone()
    };
    assert_eq!((of("VERVAIN_LINK", "value"), of("VERVAIN_LINK", "default")), ("local".into(), "auto".into()));
    assert_eq!((of("VERVAIN_PORTS", "value"), of("VERVAIN_PORTS", "option")), ("2".into(), "--ports".into()));
    assert_eq!(of("VERVAIN_DEVICES", "value"), serde_json::Value::Null);
    assert_eq!(of("VERVAIN_LINK", "words")[2][0], "roce");
    let table = list(&[]);
    let row = table.lines().find(|line| line.contains("VERVAIN_LINK ")).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[1..4], ["VERVAIN_LINK", "local", "auto"], "{table}");
    assert!(row.contains("Way to peers: auto, local, roce or window"), "{table}");
    assert!(!table.contains("VERVAIN_BIN"), "what only tests read is not for users");
}

#[test]
fn verbose_names_the_library_that_is_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("p.c"), dir.path().join("p"));
    fs::write(
        &source,
        "int ibv_query_pkey(void); int main(int n, char **v) { return v && n > 9 ? ibv_query_pkey() : 0; }",
    )
    .unwrap();
    let link = |extra: &[&str]| {
        let library = lib_dir().join("libibverbs.so.1");
        let status = Command::new("cc").arg("-o").arg(&program).args([&source, &library]).args(extra).status();
        assert!(status.unwrap().success());
        stderr(&with_libs("run", &["-v", "--", program.to_str().unwrap()]))
    };
    let told = link(&[]);
    assert!(
        told.contains(&format!("libibverbs.so.1 => {}/libibverbs.so.1 (Vervain's)", lib_dir().display())),
        "{told}"
    );

    // A DT_RPATH with another libibverbs in it wins, and that is said twice: as a warning and in the answer.
    fs::copy(lib_dir().join("libibverbs.so.1"), dir.path().join("libibverbs.so.1")).unwrap();
    let told = link(&["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN"]);
    assert!(told.contains("DT_RPATH") && told.contains("(NOT Vervain's"), "{told}");
    let told = link(&["-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN"]);
    assert!(told.contains("(Vervain's)") && !told.contains("warning"), "{told}");
}

#[test]
fn a_static_program_is_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("p.c"), dir.path().join("p"));
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    assert!(Command::new("cc").arg("-static").arg("-o").args([&program, &source]).status().unwrap().success());
    let output = with_libs("run", &["--", program.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("statically linked"), "{}", stderr(&output));
}

#[test]
fn devices_are_what_the_library_answers() {
    let table = stdout(&with_libs("devices", &["--devices", "2"]));
    for part in [
        "vervain0 port 1: ethernet, active, MTU 4096\n",
        "vervain1 port 1",
        "  GID 1   ::ffff:127.0.0.1  RoCE v2  lo\n",
    ] {
        assert!(table.contains(part), "{part} is not in {table}");
    }
    let json: serde_json::Value = serde_json::from_str(&stdout(&with_libs("devices", &["--json"]))).unwrap();
    assert_eq!(json[0]["ports"][0]["gids"][0]["netdev"], "lo");
    assert_eq!(json[0]["node_guid"], "0211:2233:4455:6677");
}

#[test]
fn the_environment_is_printed_for_a_shell_that_then_has_it() {
    let (mut command, _runtime) = vervain(&["env", "--lib-dir", lib_dir().to_str().unwrap(), "--ports", "2"]);
    let text = stdout(&command.output().unwrap());
    let script = format!("{text}\necho \"$LD_LIBRARY_PATH $VERVAIN_PORTS\"");
    let output = Command::new("sh").arg("-c").arg(script).env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert_eq!(stdout(&output).trim(), format!("{} 2", lib_dir().display()));
    let json: serde_json::Value = serde_json::from_str(&stdout(&with_libs("env", &["--format", "json"]))).unwrap();
    assert_eq!(json["LD_LIBRARY_PATH"], lib_dir().to_str().unwrap());
}

#[test]
fn a_dockerfile_gets_the_path_inside_the_image_and_nothing_of_this_machine() {
    let (mut command, _runtime) = vervain(&["env", "--format", "docker", "--devices", "2"]);
    let output = command.env("VERVAIN_LINK", "air").env("LD_LIBRARY_PATH", "/users/own").output().unwrap();
    let lines: Vec<_> = stdout(&output).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    // The prefix of the example.
    let dockerfile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/Dockerfile");
    let dockerfile = fs::read_to_string(dockerfile).unwrap();
    let prefix = dockerfile.lines().find_map(|line| line.strip_prefix("RUN make install PREFIX=")).unwrap();
    let path =
        |prefix: &str| format!("ENV LD_LIBRARY_PATH=\"{prefix}/lib/vervain${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"");
    assert_eq!(lines, [path(prefix), "ENV VERVAIN_DEVICES=\"2\"".to_owned()]);
    let other = stdout(&vervain(&["env", "--format", "docker", "--prefix", "/usr/local/"]).0.output().unwrap());
    assert_eq!(other.lines().last(), Some(path("/usr/local").as_str()));
    for (words, said) in [
        (
            &["--format", "docker", "--prefix", "here"][..],
            "--prefix is 'here'; it can be an absolute path without any of : ; $ \" \\",
        ),
        (
            &["--format", "docker", "--prefix", "/a:b"],
            "--prefix is '/a:b'; it can be an absolute path without any of : ; $ \" \\",
        ),
        (
            &["--format", "docker", "--lib-dir", "/x"],
            "--lib-dir is a place on this machine; --prefix is the one in the image",
        ),
        (&["--prefix", "/x"], "--prefix needs --format docker"),
    ] {
        let output = vervain(&["env"]).0.args(words).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(2), format!("vervain: {said}\n")), "{words:?}");
    }
}

/// The output of a command on a terminal with this number of columns.
fn on_terminal(command: &mut Command, columns: u16) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, size).unwrap();
    let mut child = command.stdout(terminal).spawn().unwrap();
    // The command keeps the terminal open until it has another standard output.
    command.stdout(Stdio::null());
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    // EIO when nobody has the terminal any more.
    while let Ok(count @ 1..) = File::from(master.try_clone().unwrap()).read(&mut buffer) {
        said.extend_from_slice(&buffer[..count]);
    }
    child.wait().unwrap();
    String::from_utf8(said).unwrap().replace("\r\n", "\n")
}

#[test]
fn on_a_terminal_no_line_is_wider_and_no_word_is_cut_and_elsewhere_each_check_is_one_line() {
    for words in [&["doctor"][..], &["devices", "--devices", "2"]] {
        let run = || {
            let (mut command, runtime) = vervain(&[words[0], "--lib-dir", lib_dir().to_str().unwrap()]);
            command.args(&words[1..]).env("TERM", "xterm");
            (command, runtime)
        };
        let piped = stdout(&run().0.output().unwrap());
        let shown = on_terminal(run().0.env("NO_COLOR", "1"), 80);
        // A serial console does not know its size.
        let of_no_size = on_terminal(run().0.env("NO_COLOR", "1"), 0);
        assert_eq!(of_no_size.lines().count(), shown.lines().count(), "{of_no_size}");
        for text in [&piped, &shown] {
            assert!(!text.contains('\x1b'), "{text}");
        }
        // The path of the libraries depends on the machine, and does not fit on every one.
        let wide = shown.lines().filter(|line| line.chars().count() > 80 && !line.contains("fake-lib"));
        assert_eq!(wide.collect::<Vec<_>>(), [""; 0], "{shown}");
        // Numbers, such as free memory, change between two runs.
        let whole = |text: &str| -> BTreeSet<String> {
            let words = text.split_whitespace().map(|word| word.trim_end_matches(';').to_owned());
            words.filter(|word| !word.contains(|c: char| c.is_ascii_digit())).collect()
        };
        assert_eq!(whole(&shown), whole(&piped));
    }
    let piped = stdout(&with_libs("doctor", &[]));
    let mut lines = piped.lines();
    assert!(lines.next().unwrap().starts_with("Vervain "), "{piped}");
    assert_eq!(lines.next(), Some(""));
    for line in lines {
        let mark = line.get(..12).unwrap_or_default().trim_end();
        assert!(["ok", "not tested", "note", "slower", "fails"].contains(&mark), "{line}");
    }
    assert!(piped.contains("\nnot tested  address translation: cannot be seen from one host."), "{piped}");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    for (variable, terminal, coloured) in
        [("IGNORED", true, true), ("NO_COLOR", true, false), ("IGNORED", false, false), ("CLICOLOR_FORCE", false, true)]
    {
        let (mut command, _runtime) = vervain(&["doctor", "--lib-dir", lib_dir().to_str().unwrap()]);
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        command.env("TERM", "xterm").env(variable, "1");
        let text = if terminal { on_terminal(&mut command, 80) } else { stdout(&command.output().unwrap()) };
        assert_eq!(text.contains('\x1b'), coloured, "{variable}, terminal: {terminal}");
    }
}

#[test]
fn doctor_says_the_verdict_first_and_in_its_status() {
    let good = with_libs("doctor", &[]);
    assert!(stdout(&good).starts_with("Vervain runs here"), "{}", stdout(&good));
    assert_eq!(good.status.code(), Some(0));
    let empty = tempfile::tempdir().unwrap();
    let (mut command, _runtime) = vervain(&["doctor", "--json", "--lib-dir", empty.path().to_str().unwrap()]);
    let broken = command.output().unwrap();
    assert_eq!(broken.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_str(&stdout(&broken)).unwrap();
    assert_eq!(report["runs"], false);
    assert!(report["verdict"].as_str().unwrap().contains("libraries"));
}

#[test]
fn doctor_names_a_criu_that_is_too_old_and_runs_without() {
    let tools = tempfile::tempdir().unwrap();
    let criu = tools.path().join("criu");
    fs::write(&criu, "#!/bin/sh\necho Version: 3.17.1\n").unwrap();
    fs::set_permissions(&criu, fs::Permissions::from_mode(0o755)).unwrap();
    let (mut command, _runtime) = vervain(&["doctor", "--lib-dir", lib_dir().to_str().unwrap()]);
    let said = command.env("PATH", tools.path()).output().unwrap();
    let line = stdout(&said).lines().find(|line| line.contains(" CRIU: ")).map(str::to_owned).unwrap_or_default();
    assert!(line.starts_with("note ") && line.contains("is CRIU 3.17, and 4.2 is needed"), "{}", stdout(&said));
    assert!(line.contains("; remedy: a package of CRIU 4.2 or later"), "{line}");
    assert_eq!(said.status.code(), Some(0));
}

/// The commit of this tree, as far as git knows of one.
fn commit() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap();
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&root).args(words).output().ok()?;
        output.status.success().then(|| stdout(&output).trim().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    (Path::new(&top).canonicalize().unwrap() == root).then(|| git(&["rev-parse", "HEAD"]))?
}

#[test]
fn the_version_names_the_commit_and_the_target_and_doctor_says_the_same() {
    let said = |words: &[&str]| stdout(&vervain(words).0.output().unwrap());
    let version = said(&["--version"]);
    let of_package = concat!("vervain ", env!("CARGO_PKG_VERSION"));
    let (build, rest) = version
        .strip_prefix(&format!("{of_package} (build "))
        .and_then(|rest| rest.split_once(", "))
        .unwrap_or_else(|| panic!("{version}"));
    let build = build.strip_suffix("+dirty").unwrap_or(build);
    match commit() {
        Some(commit) => assert!(build.len() >= 12 && commit.starts_with(build), "{version} of commit {commit}"),
        None => assert_eq!(build, "unknown"),
    }
    assert!(rest.starts_with(&format!("{}-", env::consts::ARCH)) && rest.contains("-linux-gnu, CPU features "));
    assert!(said(&["run", "--version"]).contains(build));
    let doctor = stdout(&with_libs("doctor", &[]));
    assert!(doctor.contains(&format!("ok          build: {version}")), "{doctor}");
    // Scripts compare the short form, and a page of the manual is the same for all builds of a version.
    assert_eq!(said(&["-V"]), format!("{of_package}\n"));
    assert!(!said(&["man"]).contains(build));
}

#[test]
fn libraries_in_a_directory_with_a_blank_are_tried_with_their_preload() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("a b");
    fs::create_dir(&dir).unwrap();
    fs::copy(lib_dir().join("libibverbs.so.1"), dir.join("libibverbs.so.1")).unwrap();
    // A preload that says that it was loaded.
    let source = place.path().join("preload.c");
    let said = "#include <unistd.h>\n\
        __attribute__((constructor)) static void say(void) { if (write(1, \"loaded \", 7) != 7) _exit(1); }\n";
    fs::write(&source, said).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(dir.join("libvervain_preload.so")).arg(&source);
    assert!(cc.status().unwrap().success(), "cc is needed for this test");
    let (mut command, _runtime) = vervain(&["doctor", "--lib-dir", dir.to_str().unwrap()]);
    let doctor = stdout(&command.output().unwrap());
    assert!(doctor.contains("the second process answered 'loaded"), "{doctor}");
}

#[test]
fn help_manual_and_completions_are_real() {
    for subcommand in ["run", "devices", "doctor", "env"] {
        let (mut command, _runtime) = vervain(&[subcommand, "--help"]);
        assert!(stdout(&command.output().unwrap()).contains("Usage: vervain"), "{subcommand}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut command, _runtime) = vervain(&["man", dir.path().to_str().unwrap()]);
    assert!(command.status().unwrap().success());
    for page in ["vervain.1", "vervain-run.1", "vervain-doctor.1"] {
        assert!(dir.path().join(page).is_file(), "{page}");
    }
    assert!(!dir.path().join("vervain-probe.1").exists(), "inner commands have no page");
    for shell in ["bash", "zsh", "fish"] {
        let (mut command, _runtime) = vervain(&["completions", shell]);
        assert!(stdout(&command.output().unwrap()).contains("vervain"), "{shell}");
    }
}

#[test]
fn a_link_in_place_of_the_private_directory_is_refused() {
    let (mut command, runtime) = vervain(&["run", "--lib-dir", lib_dir().to_str().unwrap(), "true"]);
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), runtime.path().join("vervain")).unwrap();
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert!(stderr(&output).contains("not a directory that only this user can enter"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}
