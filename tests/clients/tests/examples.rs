//! The files under `examples/`, as far as they can be tried without an engine: YAML is parsed and its parts must fit, the
//! steps of the workflow and the commands of the two pods are run, the Dockerfile's packages must exist.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::container::{Container, Limits, VERVAIN, docker_refuses};
use vervain_tests::netns::Network;
use vervain_tests::pairs::complaint;
use vervain_tests::{Finished, Job, acp, alone, have, have_c, skip, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(60);
/// perftest's own, which the manifest names.
const PORT: u16 = 18515;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the source tree")
}

/// A directory with the scripts of the examples; None with a printed reason.
fn scripts() -> Option<tempfile::TempDir> {
    if !have(&["python3", "bash"]) {
        return None;
    }
    let out = tempfile::tempdir().expect("a directory");
    // Debian's own, whose modules are Debian's packages.
    let python = if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" };
    let mut command = Command::new(python);
    command.arg(root().join("tests/clients/python/examples.py")).arg(root().join("examples")).arg(out.path());
    let end = Job::start(&mut command).finish(LIMIT);
    if end.status.and_then(|status| status.code()) == Some(77) {
        skip("this Python has no yaml (package python3-yaml)");
        return None;
    }
    must_succeed(&end);
    Some(out)
}

fn must_succeed(end: &Finished) {
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn the_steps_of_the_workflow_run() {
    if !have(&["ib_write_bw", "ibv_devinfo"]) {
        return;
    }
    let _turn = alone();
    let Some(out) = scripts() else { return };
    std::os::unix::fs::symlink(root(), out.path().join("vervain")).expect("the checkout of Vervain");
    let mut steps: Vec<_> = fs::read_dir(out.path()).expect("steps").flatten().map(|entry| entry.path()).collect();
    steps.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")));
    steps.sort();
    let path =
        format!("{}:{}", vervain().parent().expect("a directory").display(), std::env::var("PATH").expect("PATH"));
    let environment = out.path().join("environment");
    fs::write(&environment, "").expect("the file of variables");
    let (mut ran, pyverbs) = (0, has_pyverbs());
    for step in steps {
        let script = fs::read_to_string(&step).expect("a step");
        let name = script.lines().next().expect("its name").to_owned();
        if ["apt-get", "make "].iter().any(|word| script.contains(word)) || (script.contains("unittest") && !pyverbs) {
            println!("{name}: not run");
            continue;
        }
        // As a runner starts them, with the variables that earlier steps have left.
        let mut command = unswayed("bash");
        command.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(&step).current_dir(out.path());
        command.env("PATH", &path).env("GITHUB_ENV", &environment);
        let left = fs::read_to_string(&environment).expect("the file of variables");
        command.envs(left.lines().filter_map(|line| line.split_once('=')));
        let end = Job::start(&mut command).finish(LIMIT);
        println!("{name}: {:.2} s", end.took.as_secs_f64());
        must_succeed(&end);
        ran += 1;
    }
    assert!(ran >= if pyverbs { 6 } else { 4 }, "{ran} steps ran");
}

/// A server that fails after its client has ended well: bash's `wait` without a process id would say that all is well.
#[test]
fn the_workflow_fails_with_its_server() {
    let Some(out) = scripts() else { return };
    let steps = fs::read_dir(out.path()).expect("steps").flatten().map(|entry| entry.path());
    let serving =
        |path: &PathBuf| fs::read_to_string(path).is_ok_and(|script| script.contains("ib_write_bw -F -n 1000 &"));
    let step = steps.into_iter().find(serving).expect("the step with a server");
    let command = out.path().join("vervain");
    for (server, client) in [(0, 0), (3, 0), (0, 4)] {
        let text = format!("#!/bin/sh\ncase \"$*\" in *localhost) exit {client};; esac\nexit {server}\n");
        fs::write(&command, text).expect("a command in Vervain's place");
        fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).expect("its permissions");
        let path = format!("{}:{}", out.path().display(), std::env::var("PATH").expect("PATH"));
        let mut runner = Command::new("bash");
        runner.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(&step).env("PATH", path);
        let end = Job::start(&mut runner).finish(LIMIT);
        let status = end.status.and_then(|status| status.code());
        assert_eq!(status, Some(server + client), "{}", end.describe());
    }
}

fn has_pyverbs() -> bool {
    let import = Command::new("/usr/bin/python3").args(["-c", "import pyverbs.qp"]).output();
    let has = import.is_ok_and(|end| end.status.success());
    if !has {
        skip("no pyverbs (package python3-pyverbs)");
    }
    has
}

#[test]
fn the_pods_of_the_manifest_measure() {
    // Kubernetes leaves seccomp to the engine, which has Docker's list where it has one.
    let limits = Limits { few_capabilities: true, refused: docker_refuses(), ..Limits::default() };
    if !have_c() || !have(&["ib_write_bw", "nsenter", "unshare", "setpriv", "mount"]) || !limits.can_be_had() {
        return;
    }
    let _turn = alone();
    let (Some(out), Some(network)) = (scripts(), Network::of_two(1500)) else { return };
    let script = |name: &str| {
        let text = fs::read_to_string(out.path().join(name).with_extension("sh")).expect("a pod's command");
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("apt-get ")).collect();
        assert_ne!(lines.len(), text.lines().count(), "nothing is installed in {text}");
        // What the volume, the init container and the cluster's DNS do.
        lines.join("\n").replace("/vervain/bin/vervain", VERVAIN).replace("rdma-server", network.second().v4)
    };
    let [client, server] = [network.first(), network.second()].map(|host| Container::start(host, &limits));
    let run = |name: &str, pod: &Container| Job::start(&mut pod.enter(unswayed("sh").args(["-ec", &script(name)])));
    let mut serving = run("rdma-server", &server);
    assert!(serving.listens(PORT, LIMIT), "{}", serving.finish(Duration::ZERO).describe());
    let end = run("rdma-client", &client).finish(LIMIT);
    let served = serving.finish(LIMIT);
    let complaints = complaint("ib_write_bw", &served, &end);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(network.first().datagrams_sent() > 0, "the pods do not talk in packets");
}

/// The programs of `examples/acp`, built by their Makefile; None, with a printed reason, where there is no compiler.
fn programs_of_acp() -> Option<tempfile::TempDir> {
    if !have_c() || !have(&["make", "pkg-config"]) {
        return None;
    }
    let out = tempfile::tempdir().expect("a directory");
    for file in ["heat.c", "words.c", "tasks.c", "Makefile"] {
        fs::copy(root().join("examples/acp").join(file), out.path().join(file)).expect("a file of the example");
    }
    let installed = acp::prefix().join("lib/pkgconfig");
    let mut make = unswayed("make");
    make.arg("-C").arg(out.path()).env("PKG_CONFIG_PATH", installed).env("CFLAGS", "-O2 -Wall -Wextra -Werror");
    must_succeed(&Job::start(&mut make).finish(LIMIT));
    Some(out)
}

/// What a program of the examples prints on 1, 3 and 4 ranks, of which everything behind `start` has to be the same.
fn same_on_any_number_of_ranks(program: &Path, arguments: &[&Path], start: impl Fn(u32) -> String) -> String {
    let mut results = [1, 3, 4].map(|ranks| {
        let end = Job::start(acp::launch(ranks, &[], program).args(arguments)).finish(LIMIT);
        must_succeed(&end);
        let said = end.output.split_once(&start(ranks)).map(|(_, result)| result.to_owned());
        said.unwrap_or_else(|| panic!("{}", end.describe()))
    });
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
    std::mem::take(&mut results[0])
}

#[test]
fn the_programs_of_acp_have_the_same_result_on_any_number_of_ranks() {
    let Some(out) = programs_of_acp() else { return };
    let heat = same_on_any_number_of_ranks(&out.path().join("heat"), &[], |ranks| format!("heat: {ranks} ranks, "));
    assert!(heat.starts_with("52 cells above 0.1, sum 24.7"), "{heat}");

    let text = out.path().join("text");
    let line = |i: usize| format!("The {} of line {}: the end.\n", "word ".repeat(i % 3), ["a", "b-c", "O"][i % 3]);
    fs::write(&text, (0..300).map(line).collect::<String>()).expect("a text");
    let words = same_on_any_number_of_ranks(&out.path().join("words"), &[&text, &text], |ranks| {
        format!("words: {ranks} ranks, ")
    });
    let expected = [(1200, "the"), (600, "end"), (600, "line"), (600, "of"), (600, "word"), (200, "a"), (200, "b")];
    let mut lines = words.lines().map(|line| line.split_once("] ").map_or(line, |(_, text)| text));
    assert_eq!(lines.next(), Some("4400 words, 9 different"), "{words}");
    for (times, word) in expected.into_iter().chain([(200, "c"), (200, "o")]) {
        assert_eq!(lines.next().map(str::trim), Some(format!("{times} {word}").as_str()), "{words}");
    }

    let tasks = same_on_any_number_of_ranks(&out.path().join("tasks"), &[], |_| "tasks: 1037 tasks".into());
    assert!(tasks.starts_with(", integral 3.141592652"), "{tasks}");
}

#[test]
fn the_dockerfile_installs_what_there_is() {
    if !have(&["apt-cache", "make"]) {
        return;
    }
    let text = fs::read_to_string(root().join("examples/Dockerfile")).expect("the Dockerfile").replace("\\\n", "");
    let installs = text.lines().find_map(|line| line.split_once("apt-get install ")?.1.split("&&").next());
    let packages: Vec<_> = installs.expect("packages").split_whitespace().filter(|w| !w.starts_with('-')).collect();
    assert!(packages.len() >= 2, "{packages:?}");
    for package in packages {
        let shown = Job::start(Command::new("apt-cache").args(["show", package])).finish(LIMIT);
        assert!(shown.success() && shown.output.contains("Package: "), "{}", shown.describe());
    }
    // The command that builds, and the places that it installs to and the image copies from.
    let make = text.lines().find_map(|line| line.strip_prefix("RUN make ")).expect("a build");
    let planned =
        Job::start(Command::new("make").arg("-n").args(make.split_whitespace()).current_dir(root())).finish(LIMIT);
    must_succeed(&planned);
    let prefix =
        text.lines().find_map(|line| line.strip_prefix("COPY --from=build ")?.split_once(' ')).expect("a copy").0;
    assert!(planned.output.contains(&format!("\"{prefix}/bin/vervain\"")), "{}", planned.describe());
    assert!(text.contains(&format!("ENV PATH={prefix}/bin:")), "{text}");
}
