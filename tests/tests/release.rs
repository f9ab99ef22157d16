//! `scripts/release.sh`, in a repository of its own with stand-ins for make and cargo: what it refuses before it makes anything, and what
//! it hands out. Other tests try the packages themselves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use vervain_tests::{Finished, Job, have};

const LIMIT: Duration = Duration::from_secs(60);
/// What make makes for a processor: the package, the tarball and the wheel.
const OF_X86_64: [&str; 3] = [
    "vervain_1.2.3_amd64.deb",
    "vervain-1.2.3-x86_64-linux.tar.gz",
    "vervain-1.2.3-py3-none-manylinux_2_35_x86_64.whl",
];
const OF_AARCH64: [&str; 3] = [
    "vervain_1.2.3_arm64.deb",
    "vervain-1.2.3-aarch64-linux.tar.gz",
    "vervain-1.2.3-py3-none-manylinux_2_35_aarch64.whl",
];

/// A crate that ships, one that it is linked with, and three that have no place in the bill: of tests, of build scripts, and a macro.
const METADATA: &str = r#"{ "workspace_root": "ROOT", "workspace_members": ["own", "tests"],
    "packages": [
        { "id": "own", "name": "own", "version": "1.2.3", "license": "MIT", "source": null, "repository": null,
          "manifest_path": "ROOT/crates/own/Cargo.toml", "targets": [{ "kind": ["lib"] }] },
        { "id": "tests", "name": "tests", "version": "1.2.3", "license": "MIT", "source": null, "repository": null,
          "manifest_path": "ROOT/tests/Cargo.toml", "targets": [{ "kind": ["lib"] }] },
        PACKAGES ],
    "resolve": { "nodes": [
        { "id": "own", "deps": [
            { "pkg": "linked", "dep_kinds": [{ "kind": null }] }, { "pkg": "built", "dep_kinds": [{ "kind": "build" }] },
            { "pkg": "macro", "dep_kinds": [{ "kind": null }] }] },
        { "id": "tests", "deps": [{ "pkg": "tested", "dep_kinds": [{ "kind": null }] }] },
        { "id": "linked", "deps": [] }, { "id": "built", "deps": [] }, { "id": "macro", "deps": [] },
        { "id": "tested", "deps": [] } ] } }"#;

/// A repository whose last commit is ready for release 1.2.3.
struct Tree(TempDir);

impl Tree {
    fn new() -> Option<Tree> {
        if !have(&["bash", "git", "python3", "sha256sum"]) {
            return None;
        }
        let tree = Tree(tempfile::tempdir().expect("a directory"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        fs::create_dir_all(tree.at("scripts")).expect("a directory");
        for script in ["release.sh", "sbom.py"] {
            fs::copy(source.join("scripts").join(script), tree.at("scripts").join(script)).expect("a script");
        }
        let external = |name: &str, kind: &str| {
            format!(
                r#"{{ "id": "{name}", "name": "{name}", "version": "4.5.6", "license": "MIT/Apache-2.0", "source": "a registry",
                "repository": "https://example.org", "manifest_path": "/elsewhere", "targets": [{{ "kind": ["{kind}"] }}] }}"#
            )
        };
        let packages = [("linked", "lib"), ("built", "lib"), ("macro", "proc-macro"), ("tested", "lib")];
        let metadata = METADATA
            .replace("PACKAGES", &packages.map(|(name, kind)| external(name, kind)).join(","))
            .replace("ROOT", tree.0.path().to_str().expect("UTF-8"));
        tree.write("Cargo.toml", "version = \"1.2.3\"\n");
        let lock = "[[package]]\nname = \"linked\"\nversion = \"4.5.6\"\nchecksum = \"SUM\"\n";
        tree.write("Cargo.lock", &lock.replace("SUM", &"5".repeat(64)));
        tree.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-29\n");
        tree.write(".gitignore", "/target\n/bin\n");
        let makes = |files: [&str; 3]| files.map(|file| format!("echo {file} > target/package/{file}\n")).concat();
        tree.program("bin/make", &format!("echo \"make $*\"\n{}", makes(OF_X86_64)));
        fs::write(tree.at("scripts/cross.sh"), "#!/bin/sh\nexec sh bin/cross \"$@\"\n").expect("a script");
        fs::set_permissions(tree.at("scripts/cross.sh"), fs::Permissions::from_mode(0o755)).expect("its permissions");
        tree.program("bin/cross", &format!("echo \"cross $*\"\n{}", makes(OF_AARCH64)));
        // A release is made of both on x86-64 alone, which has the cross build.
        tree.program("bin/uname", "echo x86_64");
        tree.program("bin/cargo", &format!("echo \"cargo $*\" >&2\ncat <<'END'\n{metadata}\nEND"));
        tree.program("bin/try", "echo \"tried: $(cat \"$@\")\"");
        tree.git(&["init", "-q"]);
        tree.commit();
        tree.git(&["tag", "v1.2.3"]);
        Some(tree)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.at(file), text).expect("a file of the tree");
    }

    fn program(&self, file: &str, text: &str) {
        fs::create_dir_all(self.at("bin")).expect("the folder of stand-ins");
        self.write(file, &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(self.at(file), fs::Permissions::from_mode(0o755)).expect("its permissions");
    }

    fn git(&self, words: &[&str]) {
        let mut git = Command::new("git");
        git.args([
            "-c",
            "user.name=Somebody",
            "-c",
            "user.email=somebody@example.org",
            "-c",
            "init.defaultBranch=main",
        ]);
        let end = Job::start(git.arg("-C").arg(self.0.path()).args(words)).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
    }

    fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "all"]);
    }

    fn release(&self, options: &[&str]) -> Finished {
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").expect("PATH"));
        let mut command = Command::new(self.at("scripts/release.sh"));
        command.args(options).env("PATH", path).env("CARGO", self.at("bin/cargo"));
        Job::start(command.env("TRY_PACKAGES", self.at("bin/try"))).finish(LIMIT)
    }
}

#[test]
fn a_release_has_sums_of_all_its_files_and_a_bill_of_what_is_linked() {
    let Some(tree) = Tree::new() else { return };
    fs::create_dir_all(tree.at("target/package")).expect("the folder of packages");
    tree.write("target/package/vervain_1.2.2_amd64.deb", "of an earlier version");
    let end = tree.release(&[]);
    let made = ["make deb tarball packages-debug wheel\n", "cross make deb tarball packages-debug wheel\n"];
    assert!(end.success() && made.iter().all(|line| end.output.contains(line)), "{}", end.describe());
    for files in [OF_X86_64, OF_AARCH64] {
        assert!(end.output.contains(&format!("tried: {}\n", files.join("\n"))), "{}", end.describe());
    }
    let package = tree.at("target/package");
    let sums = fs::read_to_string(package.join("SHA256SUMS")).expect("the sums");
    let names: Vec<_> = sums.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
    let bills = ["x86_64", "aarch64"].map(|machine| format!("vervain-1.2.3-{machine}-linux.cdx.json"));
    let mut expected = [&OF_X86_64[..], &OF_AARCH64[..], &bills.each_ref().map(String::as_str)[..]].concat();
    expected.sort_unstable();
    assert_eq!(names, expected);
    for machine in ["x86_64", "aarch64"] {
        let platform = format!("--filter-platform {machine}-unknown-linux-gnu\n");
        assert!(end.output.contains(&platform), "{}", end.describe());
    }
    let mut check = Command::new("sha256sum");
    let end = Job::start(check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(&package)).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());

    let bill = fs::read_to_string(package.join(&bills[0])).expect("the bill");
    let bill: serde_json::Value = serde_json::from_str(&bill).expect("JSON");
    let [linked] = &bill["components"].as_array().expect("components")[..] else { panic!("{bill:#}") };
    assert_eq!(linked["purl"], "pkg:cargo/linked@4.5.6");
    assert_eq!(linked["licenses"][0]["expression"], "MIT OR Apache-2.0");
    assert_eq!(linked["hashes"][0]["content"], "5".repeat(64));
    let [of_linked, of_project] = &bill["dependencies"].as_array().expect("dependencies")[..] else {
        panic!("{bill:#}")
    };
    assert_eq!(of_linked["dependsOn"].as_array().map(Vec::len), Some(0));
    assert_eq!(of_project["ref"], "pkg:generic/vervain@1.2.3");
    assert_eq!(of_project["dependsOn"][0], "pkg:cargo/linked@4.5.6");
}

#[test]
fn a_tree_that_is_not_ready_makes_no_release() {
    let refused = |change: &dyn Fn(&Tree), options: &[&str], said: &str| {
        let Some(tree) = Tree::new() else { return };
        change(&tree);
        let end = tree.release(options);
        assert_eq!(end.code(), Some(1), "{said}: {}", end.describe());
        assert!(end.output.contains(said), "{said}: {}", end.describe());
        assert!(!tree.at("target").exists(), "{said}: something was made");
    };
    refused(&|tree| tree.write("left", "over"), &[], "the tree has changes that are not committed");
    // Neither text before the heading, nor another version's, nor a section without a date.
    for section in ["## [Unreleased]", "## [1x2.3] - 2026-11-29", "## [1.2.3]", "See ## [1.2.3] - 2026-11-29"] {
        let change = |tree: &Tree| {
            tree.write("CHANGELOG.md", section);
            tree.commit();
            tree.git(&["tag", "-f", "v1.2.3"]);
        };
        refused(&change, &[], "CHANGELOG.md has no line '## [1.2.3] - YYYY-MM-DD'");
    }
    refused(&|tree| tree.git(&["tag", "-d", "v1.2.3"]), &[], "the last commit has no tag v1.2.3");
    refused(&|tree| tree.git(&["tag", "-d", "v1.2.3"]), &["--untried"], "the last commit has no tag v1.2.3");
    refused(&|tree| fs::remove_file(tree.at("bin/try")).expect("the stand-in"), &[], "to try packages with");
    refused(&|_| (), &["--untagged"], "there is no option --untagged");
}

#[test]
fn what_is_missing_or_fails_ends_a_release_without_sums() {
    let ends = |name: &str, program: &str, said: &str| {
        let Some(tree) = Tree::new() else { return };
        tree.program(name, program);
        let end = tree.release(&[]);
        assert!(!end.success() && end.output.contains(said), "{}", end.describe());
        assert!(!end.output.contains("Traceback"), "{}", end.describe());
        assert!(!tree.at("target/package/SHA256SUMS").exists(), "{}", end.describe());
    };
    ends("bin/make", "echo no compiler; exit 2", "no compiler\n");
    ends("bin/make", "touch target/package/vervain_1.2.2_amd64.deb", "one package for Debian, and 0 files match");
    ends("bin/cargo", "echo no registry >&2; exit 101", "no registry\n");
    ends("bin/cross", "echo no cross compiler; exit 1", "no cross compiler\n");
    ends("bin/try", "echo it does not start; exit 1", "it does not start\n");
}

#[test]
fn what_no_emulator_can_try_is_handed_out_with_a_sentence() {
    // 125: no emulator; 75: no root could be made.
    for status in [125, 75] {
        let Some(tree) = Tree::new() else { return };
        tree.program("bin/try", &format!("case $1 in *_arm64.deb) exit {status} ;; esac"));
        let end = tree.release(&[]);
        assert!(end.success() && end.output.contains("nothing for aarch64 was tried"), "{}", end.describe());
        assert!(tree.at("target/package/SHA256SUMS").exists(), "{}", end.describe());
        // This machine's own need no emulator.
        tree.program("bin/try", &format!("exit {status}"));
        let end = tree.release(&[]);
        let said = "what is for x86_64 failed in a fresh root";
        assert!(end.code() == Some(1) && end.output.contains(said), "{}", end.describe());
    }
    let Some(tree) = Tree::new() else { return };
    tree.program("bin/try", "case $1 in *_arm64.deb) exit 1 ;; esac");
    let end = tree.release(&[]);
    assert!(end.code() == Some(1), "{}", end.describe());
    assert!(end.output.contains("what is for aarch64 failed in a fresh root"), "{}", end.describe());
}

#[test]
fn a_release_of_one_machine_has_nothing_of_another() {
    let only = |machine: &str, options: &[&str], files: [&str; 3]| {
        let Some(tree) = Tree::new() else { return };
        tree.program("bin/uname", &format!("echo {machine}"));
        tree.program("bin/make", &files.map(|file| format!("echo > target/package/{file}\n")).concat());
        let end = tree.release(options);
        assert!(end.success() && !end.output.contains("cross"), "{}", end.describe());
        let sums = fs::read_to_string(tree.at("target/package/SHA256SUMS")).expect("the sums");
        assert_eq!(sums.lines().count(), 4, "{sums}");
    };
    only("x86_64", &["--native"], OF_X86_64);
    only("aarch64", &[], OF_AARCH64);
}

#[test]
fn an_untagged_commit_is_packed_on_demand() {
    let Some(tree) = Tree::new() else { return };
    tree.git(&["tag", "-d", "v1.2.3"]);
    let end = tree.release(&["--allow-untagged", "--untried"]);
    assert!(end.success() && end.output.contains("these files are no release"), "{}", end.describe());
    assert!(end.output.contains("nothing for aarch64 was tried in a fresh root"), "{}", end.describe());
}
