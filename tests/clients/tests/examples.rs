//! The files under `examples/` and the action, as far as they can be tried without an engine: their parts must fit, the steps of the
//! workflow, of the action in it and of the pipeline and the commands of the pods are run on a tarball of the tests' own build, and
//! the packages that they install must exist. `lint.rs` has what linters say of them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_client_tests::{TARBALL_TOOLS, tarball};
use vervain_tests::container::{Container, Limits, VOLUME, docker_refuses};
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
    command.arg(root().join("tests/clients/python/examples.py")).arg(root()).arg(out.path());
    let end = Job::start(&mut command).finish(LIMIT);
    if end.code() == Some(77) {
        skip("this Python has no yaml (package python3-yaml)");
        return None;
    }
    must_succeed(&end);
    Some(out)
}

fn must_succeed(end: &Finished) {
    assert!(end.success(), "{}", end.describe());
}

/// A checkout of Vervain with a tarball in it, as `make tarball` would put it there.
fn checkout(place: &Path) {
    fs::create_dir_all(place.join("target/package")).expect("the folder of packages");
    for entry in fs::read_dir(root()).expect("the source tree").flatten() {
        if entry.file_name() != "target" {
            symlink(entry.path(), place.join(entry.file_name())).expect("a part of the source tree");
        }
    }
    tarball(&place.join("target/package"));
}

/// What a runner of GitHub's is: files that steps write to, and variables that it makes of them for later steps.
struct Runner<'a>(&'a Path);

impl Runner<'_> {
    fn lines(&self, file: &str) -> Vec<String> {
        fs::read_to_string(self.0.join(file)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn step(&self, script: &Path) -> Command {
        let mut command = unswayed("bash");
        command.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(script).current_dir(self.0);
        let mut path = self.lines("path");
        path.reverse();
        path.push(std::env::var("PATH").expect("PATH"));
        command.env("PATH", path.join(":"));
        command.envs(self.lines("environment").iter().filter_map(|line| line.split_once('=')));
        for (variable, file) in [("GITHUB_ENV", "environment"), ("GITHUB_PATH", "path"), ("GITHUB_OUTPUT", "output")] {
            command.env(variable, self.0.join(file));
        }
        command.env("RUNNER_TEMP", self.0).env("RUNNER_OS", "Linux").env("RUNNER_ARCH", "X64");
        command
    }
}

#[test]
fn the_steps_of_the_workflow_run() {
    if !have(&TARBALL_TOOLS) || !have(&["ib_write_bw", "ibv_devinfo"]) {
        return;
    }
    let _turn = alone();
    let Some(out) = scripts() else { return };
    checkout(&out.path().join("vervain"));
    let mut steps: Vec<_> = fs::read_dir(out.path()).expect("steps").flatten().map(|entry| entry.path()).collect();
    steps.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")));
    steps.sort();
    let (mut ran, pyverbs) = (0, has_pyverbs());
    let runner = Runner(out.path());
    for step in steps {
        let script = fs::read_to_string(&step).expect("a step");
        let name = script.lines().next().expect("its name").to_owned();
        if ["apt-get", "make "].iter().any(|word| script.contains(word)) || (script.contains("unittest") && !pyverbs) {
            println!("{name}: not run");
            continue;
        }
        let end = Job::start(&mut runner.step(&step)).finish(LIMIT);
        println!("{name}: {:.2} s", end.took.as_secs_f64());
        must_succeed(&end);
        ran += 1;
    }
    assert!(ran >= if pyverbs { 7 } else { 5 }, "{ran} steps ran");
    // What the action has left for later steps.
    let variables = runner.lines("environment");
    assert!(variables.iter().any(|line| line.starts_with("LD_LIBRARY_PATH=")), "{variables:?}");
    assert!(!variables.iter().any(|line| line.starts_with("LD_PRELOAD=")), "{variables:?}");
    assert_eq!(runner.lines("output")[0], concat!("version=", env!("CARGO_PKG_VERSION")));
}

/// A server that fails after its client has ended well: bash's `wait` without a process id would say that all is well.
#[test]
fn the_workflow_fails_with_its_server() {
    let Some(out) = scripts() else { return };
    let steps = fs::read_dir(out.path()).expect("steps").flatten().map(|entry| entry.path());
    let serving =
        |path: &PathBuf| fs::read_to_string(path).is_ok_and(|script| script.contains("ib_write_bw -F -n 1000 &"));
    let step = steps.into_iter().find(serving).expect("the step with a server");
    let command = out.path().join("ib_write_bw");
    for (server, client) in [(0, 0), (3, 0), (0, 4)] {
        let text = format!("#!/bin/sh\ncase \"$*\" in *localhost) exit {client};; esac\nexit {server}\n");
        fs::write(&command, text).expect("a command in perftest's place");
        fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).expect("its permissions");
        let path = format!("{}:{}", out.path().display(), std::env::var("PATH").expect("PATH"));
        let mut runner = Command::new("bash");
        runner.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(&step).env("PATH", path);
        let end = Job::start(&mut runner).finish(LIMIT);
        let status = end.code();
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

/// As a runner of GitLab's has it: one shell for what comes before the script and the script.
#[test]
fn the_script_of_the_pipeline_runs() {
    if !have(&TARBALL_TOOLS) || !have(&["ibv_devinfo"]) || !has_pyverbs() {
        return;
    }
    let _turn = alone();
    let Some(out) = scripts() else { return };
    checkout(&out.path().join("vervain"));
    let prefix = out.path().join("opt");
    let text = fs::read_to_string(out.path().join("gitlab.sh")).expect("the script");
    let (installs, lines): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("apt-get "));
    assert_eq!(installs.len(), 2, "{text}");
    // Debian's Python has Debian's packages.
    let script = lines.join("\n").replace("/opt/vervain", &prefix.display().to_string());
    let script = script.replace("python3 -m", "/usr/bin/python3 -m");
    let end =
        Job::start(unswayed("bash").args(["-eo", "pipefail", "-c", &script]).current_dir(out.path())).finish(LIMIT);
    must_succeed(&end);
    assert_eq!(end.output.matches("\nOK").count(), 2, "{}", end.describe());
}

#[test]
fn the_pods_of_the_manifest_measure_without_privileges() {
    // Kubernetes leaves seccomp to the engine, which has Docker's list where it has one.
    let limits = Limits {
        uid: Some(1000),
        few_capabilities: true,
        read_only_root: true,
        refused: docker_refuses(),
        ..Limits::default()
    };
    if !have_c()
        || !have(&TARBALL_TOOLS)
        || !have(&["ib_write_bw", "nsenter", "unshare", "setpriv", "mount"])
        || !limits.can_be_had()
    {
        return;
    }
    let _turn = alone();
    let (Some(out), Some(network)) = (scripts(), Network::of_two(1500)) else { return };
    let prefix = tarball(out.path());
    fs::set_permissions(out.path(), fs::Permissions::from_mode(0o755)).expect("what an image shows to all");
    // As the kubelet makes a volume of the kind emptyDir.
    let volumes = ["server-volume", "client-volume"].map(|name| out.path().join(name));
    let pods = [(network.second(), &volumes[0]), (network.first(), &volumes[1])].map(|(host, volume)| {
        fs::create_dir(volume).expect("a volume");
        fs::set_permissions(volume, fs::Permissions::from_mode(0o777)).expect("its permissions");
        Container::with_volume(host, &limits, volume)
    });
    let address = network.second().v4;
    let script = |name: &str| {
        let text = fs::read_to_string(out.path().join(name).with_extension("sh")).expect("a pod's command");
        // The places in image and pod, and what the cluster's DNS does.
        let text =
            text.replace("/opt/vervain", &prefix.display().to_string()).replace(" /vervain", &format!(" {VOLUME}"));
        let text = text.strip_prefix("/vervain/").map_or(text.clone(), |rest| format!("{VOLUME}/{rest}"));
        text.replace(" rdma-server", &format!(" {address}"))
    };
    let run = |name: &str, pod: &Container| Job::start(&mut pod.enter(unswayed("sh").args(["-ec", &script(name)])));
    let [server, client] = &pods;
    must_succeed(&run("rdma-server-init", server).finish(LIMIT));
    must_succeed(&run("rdma-client-init", client).finish(LIMIT));
    let mut serving = run("rdma-server-own", server);
    assert!(serving.listens(PORT, LIMIT), "{}", serving.finish(Duration::ZERO).describe());
    let end = run("rdma-client-own", client).finish(LIMIT);
    let served = serving.finish(LIMIT);
    let complaints = complaint("ib_write_bw", &served, &end);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(network.first().datagrams_sent() > 0, "the pods do not talk in packets");
}

#[test]
fn the_container_for_development_has_the_variables_of_the_image() {
    if !have(&["apt-cache"]) {
        return;
    }
    let Some(out) = scripts() else { return };
    let end = Job::start(unswayed(vervain()).args(["env", "--format", "docker"])).finish(LIMIT);
    must_succeed(&end);
    let line = end.output.lines().find_map(|line| line.strip_prefix("ENV LD_LIBRARY_PATH=\"")).expect("the variable");
    let places = line.split("${").next().expect("what is before the image's own");
    let variables = fs::read_to_string(out.path().join("variables")).expect("the variables");
    assert_eq!(variables, format!("LD_LIBRARY_PATH={places}\n"));
    for package in fs::read_to_string(out.path().join("packages")).expect("the packages").lines() {
        must_exist(package);
    }
}

fn must_exist(package: &str) {
    let shown = Job::start(Command::new("apt-cache").args(["show", package])).finish(LIMIT);
    assert!(shown.success() && shown.output.contains("Package: "), "{}", shown.describe());
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
    if !have(&TARBALL_TOOLS) || !have(&["apt-cache"]) {
        return;
    }
    let text = fs::read_to_string(root().join("examples/Dockerfile")).expect("the Dockerfile").replace("\\\n", "");
    let installs = text.lines().find_map(|line| line.split_once("apt-get install ")?.1.split("&&").next());
    let packages: Vec<_> = installs.expect("packages").split_whitespace().filter(|w| !w.starts_with('-')).collect();
    assert!(packages.len() >= 2, "{packages:?}");
    packages.into_iter().for_each(must_exist);
    let prefix =
        text.lines().find_map(|line| line.strip_prefix("COPY --from=vervain ")?.split_once(' ')).expect("a copy").0;
    assert!(text.contains(&format!("ENV PATH={prefix}/bin:")), "{text}");
    // Of the source: the command that builds, and the place that it installs to.
    let make = text.lines().find_map(|line| line.strip_prefix("RUN make ")).expect("a build");
    let planned =
        Job::start(Command::new("make").arg("-n").args(make.split_whitespace()).current_dir(root())).finish(LIMIT);
    must_succeed(&planned);
    assert!(planned.output.contains(&format!("\"{prefix}\"")), "{}", planned.describe());
    // Of the package: what is copied into the image is unpacked there, and not among what Docker is to leave out.
    let place = tempfile::tempdir().expect("a directory");
    tarball(place.path());
    let copied =
        text.lines().find_map(|line| line.strip_prefix("COPY target/package/")).expect("a copy of the package");
    let (from, to) = copied.split_once(' ').expect("from and to");
    let unpack = text.lines().find_map(|line| line.strip_prefix("RUN mkdir ")).expect("the unpacking");
    let (in_image, here) = (format!("{to}{from}"), format!("{}/{from}", place.path().display()));
    assert!(unpack.contains(&in_image), "{unpack}");
    let target = place.path().join("image").display().to_string();
    let script = format!("mkdir {}", unpack.replace(prefix, &target).replace(&in_image, &here));
    must_succeed(&Job::start(Command::new("sh").args(["-ec", &script])).finish(LIMIT));
    must_succeed(&Job::start(unswayed(format!("{target}/bin/vervain")).arg("devices")).finish(LIMIT));
    let ignored = fs::read_to_string(root().join("examples/Dockerfile.dockerignore")).expect("what Docker leaves out");
    assert!(ignored.lines().last() == Some("!target/package"), "{ignored}");
}
