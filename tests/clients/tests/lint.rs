//! Linters on the files that other machines read: the action, the examples of workflow, pipeline, pods and images, and the scripts of
//! action and release. Each linter has to object to a mistake in the same file, so that one which looks at nothing is found out.
//! `scripts/fetch.sh` gets them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vervain_tests::{Finished, Job, fetched, have};

const LIMIT: Duration = Duration::from_secs(60);

/// Prose as wide as the rest of the tree, and no marks that only some of these files have.
const YAML: &str = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, truthy: {check-keys: false}, \
                    comments: {min-spaces-from-content: 1}}}";

/// A linter with its options, a file, and a mistake in it: what stands there, and instead of it.
struct Check {
    command: &'static [&'static str],
    file: &'static str,
    mistake: (&'static str, &'static str),
}

const fn check(command: &'static [&'static str], file: &'static str, mistake: (&'static str, &'static str)) -> Check {
    Check { command, file, mistake }
}

const CHECKS: &[Check] = &[
    check(&["yamllint", "--strict", "-d", YAML], "action.yml", ("inputs:", "inputs: ")),
    check(
        &["yamllint", "--strict", "-d", YAML],
        "examples/github-actions.yml",
        ("name: rdma", "name: rdma\nname: rdma"),
    ),
    check(&["yamllint", "--strict", "-d", YAML], "examples/gitlab-ci.yml", ("  stage: build", "   stage: build")),
    check(&["yamllint", "--strict", "-d", YAML], "examples/kubernetes.yaml", ("kind: Pod", "kind:  Pod")),
    check(&["check-jsonschema", "--builtin-schema", "vendor.github-actions"], "action.yml", ("composite", "composed")),
    check(
        &["check-jsonschema", "--builtin-schema", "vendor.github-workflows"],
        "examples/github-actions.yml",
        ("runs-on:", "run-on:"),
    ),
    check(
        &["check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"],
        "examples/gitlab-ci.yml",
        ("needs: [package]", "needs: 5"),
    ),
    check(&["kubernetes-validate", "--strict"], "examples/kubernetes.yaml", ("drop:", "dropped:")),
    // Debian keeps one version of each package, so none can be named.
    check(&["hadolint", "--ignore", "DL3008"], "examples/Dockerfile", ("FROM debian:12-slim", "FROM debian")),
    check(&["shellcheck"], "scripts/action.sh", ("-xzf \"$package\"", "-xzf $package")),
    check(&["shellcheck"], "scripts/release.sh", ("mkdir -p \"$to\"", "mkdir -p $to")),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the source tree")
}

/// A script names the Python of the folder in which it was installed, which has moved since.
fn linter(bin: &Path, name: &str) -> Command {
    let program = bin.join(name);
    let is_script = fs::read(&program).is_ok_and(|file| file.starts_with(b"#!"));
    let mut command = Command::new(if is_script { bin.join("python") } else { program.clone() });
    command.args(is_script.then_some(program));
    command
}

/// The file's text, right and with the mistake.
fn texts(file: &str, (right, wrong): (&str, &str)) -> [String; 2] {
    let text = fs::read_to_string(root().join(file)).expect("a file of the tree");
    assert!(text.contains(right), "{file} has no {right:?}");
    [text.clone(), text.replacen(right, wrong, 1)]
}

fn judge(what: &str, [right, wrong]: [Finished; 2]) {
    assert!(right.success(), "{what}: {}", right.describe());
    let status = wrong.code();
    assert_eq!(status, Some(1), "{what}, with a mistake: {}", wrong.describe());
}

#[test]
fn linters_object_to_mistakes_only() {
    let Some(linters) = fetched("linters") else { return };
    let place = tempfile::tempdir().expect("a directory");
    for Check { command, file, mistake } in CHECKS {
        let copy = place.path().join(Path::new(file).file_name().expect("its name"));
        let ends = texts(file, *mistake).map(|text| {
            fs::write(&copy, text).expect("a copy");
            let mut linter = linter(&linters.join("bin"), command[0]);
            Job::start(linter.args(&command[1..]).arg(&copy)).finish(LIMIT)
        });
        judge(&format!("{} of {file}", command[0]), ends);
    }
}

#[test]
fn the_bill_of_materials_is_one_of_cyclonedx() {
    let Some(linters) = fetched("linters") else { return };
    if !have(&["python3"]) {
        return;
    }
    let libraries =
        fs::read_dir(linters.join("lib")).expect("a Python's libraries").flatten().next().expect("one Python");
    let schema = libraries.path().join("site-packages/cyclonedx/schema/_res/bom-1.6.SNAPSHOT.schema.json");
    let place = tempfile::tempdir().expect("a directory");
    let bill = place.path().join("bill.json");
    let mut make = Command::new("bash");
    make.args(["-o", "pipefail", "-c"]).current_dir(root()).env("CARGO", env!("CARGO")).env("BILL", &bill);
    make.arg(
        "\"$CARGO\" metadata --locked --offline --format-version 1 --filter-platform $(uname -m)-unknown-linux-gnu |
         scripts/sbom.py 1.2.3 0 > \"$BILL\"",
    );
    let made = Job::start(&mut make).finish(LIMIT);
    assert!(made.success(), "{}", made.describe());
    let text = fs::read_to_string(&bill).expect("the bill");
    assert!(text.contains("pkg:cargo/rustix@") && !text.contains("pkg:cargo/syn@"), "{text}");
    let ends = [text.clone(), text.replace("\"library\"", "\"box\"")].map(|text| {
        fs::write(&bill, text).expect("a copy");
        let mut check = linter(&linters.join("bin"), "check-jsonschema");
        Job::start(check.arg("--schemafile").arg(&schema).arg(&bill)).finish(LIMIT)
    });
    judge("check-jsonschema of the bill", ends);
}

/// It follows the workflow's expressions, and looks into the action that the workflow uses.
#[test]
fn actionlint_objects_to_mistakes_only() {
    let (Some(actionlint), Some(linters)) = (fetched("actionlint"), fetched("linters")) else { return };
    if !have(&["git"]) {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let project = place.path();
    for folder in [".github/workflows", "vervain"] {
        fs::create_dir_all(project.join(folder)).expect("a folder of the project");
    }
    let made = Job::start(Command::new("git").args(["init", "-q"]).arg(project)).finish(LIMIT);
    assert!(made.success(), "{}", made.describe());
    fs::copy(root().join("action.yml"), project.join("vervain/action.yml")).expect("the action");
    for mistake in [("steps.package.outputs", "steps.pakage.outputs"), ("          package: ", "          pakage: ")] {
        let ends = texts("examples/github-actions.yml", mistake).map(|text| {
            fs::write(project.join(".github/workflows/rdma.yml"), text).expect("the workflow");
            let mut lint = Command::new(actionlint.join("actionlint"));
            lint.arg("-shellcheck").arg(linters.join("bin/shellcheck")).arg("-pyflakes=").current_dir(project);
            Job::start(&mut lint).finish(LIMIT)
        });
        judge("actionlint", ends);
    }
}
