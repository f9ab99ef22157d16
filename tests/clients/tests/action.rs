//! The action (`action.yml`): what its script does with each of its inputs, as a runner starts it, and the one sentence that each
//! mistake gets. Releases are files here. `examples.rs` runs the action as the workflow uses it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use vervain_client_tests::{TARBALL_TOOLS, tarball};
use vervain_tests::{Finished, Job, have, unswayed};

const LIMIT: Duration = Duration::from_secs(60);
const VERSION: &str = env!("CARGO_PKG_VERSION");
const TARBALL: &str = concat!("vervain-", env!("CARGO_PKG_VERSION"), "-x86_64-linux.tar.gz");

/// A runner in a folder of its own, with a tarball in it; None with a printed reason.
fn runner() -> Option<TempDir> {
    if !have(&TARBALL_TOOLS) || !have(&["bash", "awk", "sha256sum", "curl"]) {
        return None;
    }
    let place = tempfile::tempdir().expect("a directory");
    tarball(place.path());
    Some(place)
}

/// The action with these inputs, and what stands in the runner's files after it.
fn act(place: &Path, inputs: &[(&str, &str)]) -> (Finished, [String; 3]) {
    let mut command = unswayed("bash");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/action.sh")).current_dir(place);
    for name in ["VERSION", "PACKAGE", "SHA256"] {
        command.env(format!("INPUT_{name}"), "");
    }
    command.env("INPUT_ENVIRONMENT", "libraries").env("ACTION_REPOSITORY", "somebody/vervain");
    command.env("GITHUB_SERVER_URL", format!("file://{}/releases", place.display()));
    command.env("RUNNER_OS", "Linux").env("RUNNER_ARCH", "X64").env("RUNNER_TEMP", place);
    let files = ["ENV", "PATH", "OUTPUT"].map(|name| (format!("GITHUB_{name}"), place.join(name)));
    for (name, file) in &files {
        fs::write(file, "").expect("a file of the runner's");
        command.env(name, file);
    }
    command.envs(inputs.iter().map(|(name, value)| (*name, *value)));
    let end = Job::start(&mut command).finish(LIMIT);
    (end, files.map(|(_, file)| fs::read_to_string(file).expect("a file of the runner's")))
}

fn sum(file: &Path) -> String {
    let end = Job::start(Command::new("sha256sum").arg(file)).finish(LIMIT);
    end.output[..64].to_owned()
}

fn names(variables: &str) -> Vec<&str> {
    variables.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect()
}

#[test]
fn the_words_of_environment_decide_what_later_steps_get() {
    let Some(place) = runner() else { return };
    for (word, library_path, preload) in [("none", false, false), ("libraries", true, false), ("all", true, true)] {
        let inputs = [("INPUT_PACKAGE", "vervain-*.tar.gz"), ("INPUT_ENVIRONMENT", word)];
        let (end, [variables, path, outputs]) = act(place.path(), &inputs);
        assert!(end.success(), "{}", end.describe());
        let found = ["LD_LIBRARY_PATH", "LD_PRELOAD"].map(|name| names(&variables).contains(&name));
        assert_eq!(found, [library_path, preload], "{word}: {variables}");
        let command = PathBuf::from(path.trim_end()).join("vervain");
        assert_eq!(outputs, format!("version={VERSION}\ncommand={}\n", command.display()));
        let said = Job::start(unswayed(&command).arg("devices")).finish(LIMIT);
        assert!(said.success() && said.output.starts_with("vervain0 "), "{}", said.describe());
    }
}

#[test]
fn a_release_is_downloaded_with_its_sums() {
    let Some(place) = runner() else { return };
    let release = place.path().join(format!("releases/somebody/vervain/releases/download/v{VERSION}"));
    fs::create_dir_all(&release).expect("the folder of a release");
    fs::copy(place.path().join(TARBALL), release.join(TARBALL)).expect("its tarball");
    let right = sum(&release.join(TARBALL));
    let install = |sums: &str, version: &str| {
        fs::write(release.join("SHA256SUMS"), sums).expect("its sums");
        act(place.path(), &[("INPUT_VERSION", version)])
    };
    for version in [VERSION.to_owned(), format!("v{VERSION}")] {
        let (end, [.., outputs]) = install(&format!("{right}  {TARBALL}\n"), &version);
        assert!(end.success() && outputs.starts_with("version="), "{}", end.describe());
    }
    let wrong = "0".repeat(64);
    for (sums, said) in [
        (format!("{wrong}  {TARBALL}\n"), format!("is {right}, and not {wrong}, as ")),
        (format!("{right}  another.tar.gz\n"), format!("SHA256SUMS does not list {TARBALL}.")),
    ] {
        let (end, [variables, path, outputs]) = install(&sums, VERSION);
        assert!(!end.success() && end.output.contains(&said), "{}", end.describe());
        assert!([variables, path, outputs].concat().is_empty(), "something of it was installed");
    }
    // The release has no tarball for the second runner.
    for (version, runner, machine) in [("9.9.9", "X64", "x86_64"), (VERSION, "ARM64", "aarch64")] {
        let (end, _) = act(place.path(), &[("INPUT_VERSION", version), ("RUNNER_ARCH", runner)]);
        let said = format!("/v{version}/vervain-{version}-{machine}-linux.tar.gz cannot be downloaded: curl: ");
        assert!(!end.success() && end.output.contains(&said), "{}", end.describe());
    }
}

/// apt-get and dpkg-query are stand-ins: what they would do to this machine, the tests of the package try in a root of its own.
#[test]
fn a_deb_is_installed_by_apt() {
    let Some(place) = runner() else { return };
    let folder = place.path().join(TARBALL.trim_end_matches(".tar.gz"));
    let deb = place.path().join("vervain_amd64.deb");
    fs::write(&deb, "").expect("a package");
    for (name, text) in [
        ("apt-get", format!("echo \"$@\" > {}", place.path().join("words").display())),
        ("dpkg-query", format!("echo /.; echo {}/bin/vervain", folder.display())),
        ("sudo", "exec \"$@\"".to_owned()),
    ] {
        let program = place.path().join("bin").join(name);
        fs::create_dir_all(program.parent().expect("a folder")).expect("the folder of stand-ins");
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("a stand-in");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its permissions");
    }
    let path = format!("{}:{}", place.path().join("bin").display(), std::env::var("PATH").expect("PATH"));
    let (end, [variables, added, outputs]) =
        act(place.path(), &[("INPUT_PACKAGE", "vervain_amd64.deb"), ("PATH", &path)]);
    assert!(end.success() && added.is_empty(), "{}", end.describe());
    assert!(
        names(&variables).contains(&"LD_LIBRARY_PATH") && outputs.contains("/bin/vervain\n"),
        "{variables}{outputs}"
    );
    let words = fs::read_to_string(place.path().join("words")).expect("what apt-get was told");
    let deb = deb.canonicalize().expect("its path");
    assert!(words.starts_with("install -y ") && words.trim_end().ends_with(deb.to_str().expect("UTF-8")), "{words}");
}

#[test]
fn each_mistake_is_one_sentence_before_anything_is_installed() {
    let Some(place) = runner() else { return };
    fs::copy(place.path().join(TARBALL), place.path().join("other.zip")).expect("a file of another kind");
    let package = ("INPUT_PACKAGE", TARBALL);
    for (inputs, said) in [
        (vec![], "One of the inputs version and package is needed."),
        (vec![package, ("INPUT_VERSION", "0.1.0")], "The inputs package and version exclude each other."),
        (vec![("INPUT_PACKAGE", "nothing-*")], "The input package has to name one file; 0 match 'nothing-*'."),
        (vec![("INPUT_PACKAGE", "[EP]*")], "The input package has to name one file; 2 match '[EP]*'."),
        (vec![("INPUT_PACKAGE", "other.zip")], "A package is a .deb or a .tar.gz: "),
        (vec![("INPUT_VERSION", "../../evil")], "The input version is not like 0.1.0: '../../evil'."),
        (
            vec![("INPUT_VERSION", "0.1.0"), ("ACTION_REPOSITORY", "")],
            "An action in the workspace has no releases: name a file by the input package.",
        ),
        (vec![package, ("INPUT_SHA256", "100%")], "The input sha256 has to have 64 hex digits: '100%25'."),
        (
            vec![package, ("INPUT_SHA256", &"A".repeat(64))],
            &format!("not {}, as the input sha256 says.", "a".repeat(64)),
        ),
        (vec![package, ("INPUT_ENVIRONMENT", "some")], "The input environment is none, libraries or all, not 'some'."),
        (
            vec![package, ("RUNNER_ARCH", "ARM")],
            "There are packages for Linux on x86-64 and AArch64 only, and this runner is Linux on ARM.",
        ),
    ] {
        let (end, files) = act(place.path(), &inputs);
        assert_eq!(end.code(), Some(1), "{inputs:?}: {}", end.describe());
        let line = end.output.lines().last().unwrap_or_default();
        assert!(line.starts_with("::error title=Vervain::") && line.contains(said), "{inputs:?}: {}", end.describe());
        assert!(files.concat().is_empty(), "{inputs:?}: something of it was installed");
    }
}

/// As where the C library is older than what the package was built with.
#[test]
fn a_command_that_does_not_start_is_told() {
    let Some(place) = runner() else { return };
    let root = place.path().join("broken/bin");
    fs::create_dir_all(&root).expect("the folder of a package");
    fs::write(root.join("vervain"), "#!/bin/sh\necho 'version GLIBC_2.99 not found' >&2\nexit 1\n").expect("a command");
    fs::set_permissions(root.join("vervain"), fs::Permissions::from_mode(0o755)).expect("its permissions");
    let mut tar = Command::new("tar");
    tar.args(["-czf", "broken.tar.gz", "broken"]).current_dir(place.path());
    assert!(Job::start(&mut tar).finish(LIMIT).success());
    let (end, [variables, _, outputs]) = act(place.path(), &[("INPUT_PACKAGE", "broken.tar.gz")]);
    let said = "does not start on this system: version GLIBC_2.99 not found";
    assert!(!end.success() && end.output.contains(said), "{}", end.describe());
    assert!(variables.is_empty() && outputs.is_empty(), "{variables}{outputs}");
}
