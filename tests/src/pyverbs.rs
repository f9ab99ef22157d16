//! The tests of pyverbs against `tests/clients/data/pyverbs.txt`, which has what each of them does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{Failures, Job, skip, under_vervain, way};

/// Where the package rdma-core puts them.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
/// Debian's module is for Debian's Python, whichever other one comes first in `$PATH`.
const PYTHON: &str = "/usr/bin/python3";
/// The release whose tests the list is of; others have other tests.
const RELEASE: &str = "44.";
const LIMIT: Duration = Duration::from_secs(60);

/// What a test may do; the texts are how reasons for a skip begin.
enum Expected<'a> {
    Pass,
    Skip(&'a [&'a str]),
    MaySkip(&'a [&'a str]),
}

impl Expected<'_> {
    fn allows(&self, outcome: &str, reason: &str) -> bool {
        let known = |reasons: &[&str]| reasons.iter().any(|r| reason.starts_with(r));
        match (self, outcome) {
            (Expected::Pass | Expected::MaySkip(_), "pass") => true,
            (Expected::Skip(reasons) | Expected::MaySkip(reasons), "skip") => known(reasons),
            _ => false,
        }
    }

    fn describe(&self) -> String {
        match self {
            Expected::Pass => "pass".to_owned(),
            Expected::Skip(reasons) => format!("skip ({})", reasons.join("; or ")),
            Expected::MaySkip(reasons) => format!("pass, or skip ({})", reasons.join("; or ")),
        }
    }
}

/// The list: groups of reasons, and the lines of tests with their names.
struct List<'a> {
    reasons: BTreeMap<&'a str, Vec<&'a str>>,
    tests: BTreeMap<&'a str, &'a str>,
}

impl<'a> List<'a> {
    fn read(text: &'a str) -> Self {
        let mut list = List { reasons: BTreeMap::new(), tests: BTreeMap::new() };
        for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            if let Some((name, reason)) = line.strip_prefix("reason ").and_then(|l| l.split_once(" =")) {
                list.reasons.entry(name).or_default().push(reason.trim_start());
            } else {
                let (name, expected) = line.split_once(' ').unwrap_or_else(|| panic!("no outcome in the line {line}"));
                list.tests.insert(name, expected);
            }
        }
        list
    }

    /// What is said of a test, on ports with an interface or on a window's.
    fn expected(&self, test: &str, has_interface: bool) -> Option<Expected<'_>> {
        let family = |(name, _): &(&&str, _)| name.strip_suffix('*').is_some_and(|start| test.starts_with(start));
        let line = self.tests.get(test).or_else(|| self.tests.iter().find(family).map(|(_, line)| line))?;
        let reasons = |name| self.reasons.get(name).unwrap_or_else(|| panic!("no reason {name} in the list"));
        Some(match line.split_once(' ') {
            None if *line == "pass" => Expected::Pass,
            Some(("by-interface", _)) if has_interface => Expected::Pass,
            Some(("skip" | "by-interface", name)) => Expected::Skip(reasons(name)),
            Some(("may-skip", name)) => Expected::MaySkip(reasons(name)),
            _ => panic!("{test}: {line} is no outcome"),
        })
    }

    /// What differs between the list and the lines that `tests/python/run_pyverbs.py` wrote.
    fn compare(&self, results: &str, has_interface: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        let (mut started, mut ended) = (BTreeSet::new(), BTreeSet::new());
        for line in results.lines() {
            let words: Vec<_> = line.split('\t').collect();
            let (what, test) = (words[0], words.get(1).copied().unwrap_or_default());
            if what == "start" {
                started.insert(test);
                continue;
            }
            ended.insert(test);
            let (outcome, reason) =
                (words.get(2).copied().unwrap_or_default(), words.get(3).copied().unwrap_or_default());
            match self.expected(test, has_interface) {
                None => wrong.push(format!("{test}: {outcome} {reason}; the list does not have it")),
                Some(expected) if !expected.allows(outcome, reason) => {
                    wrong.push(format!("{test}: {outcome} {reason}; expected: {}", expected.describe()));
                }
                Some(_) => {}
            }
        }
        wrong.extend(started.difference(&ended).map(|test| format!("{test}: the program ended or hung in it")));
        let listed = self.tests.keys().filter(|name| !name.ends_with('*'));
        wrong.extend(listed.filter(|name| !started.contains(*name)).map(|name| format!("{name}: was not run")));
        wrong
    }
}

/// Whether this machine has the tests that the list is of; prints why not.
pub fn have_tests() -> bool {
    let version = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "rdma-core"]).output();
    let version = version.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let imports = |m| Command::new(PYTHON).args(["-c", m]).output().is_ok_and(|o| o.status.success());
    let missing = if !version.starts_with(RELEASE) {
        format!("rdma-core {RELEASE}* of Debian 12; it has '{version}'")
    } else if !Path::new(TESTS).join("run_tests.py").is_file() {
        format!("{TESTS} (docs are left out by dpkg's path-exclude?)")
    } else if !imports("import pyverbs") {
        "package python3-pyverbs".to_owned()
    } else {
        return true;
    };
    skip(format_args!("this machine has no {missing}"));
    false
}

/// Runs all tests on a link that [`way`] knows, and notes each that does something else than is listed.
pub fn as_listed(failures: &mut Failures, name: &str) {
    let (vars, has_interface) = (way(name), !matches!(name, "window" | "write_only"));
    let folder = tempfile::tempdir().expect("a directory");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/run_pyverbs.py");
    let mut command = under_vervain(PYTHON);
    command.args(["-W", "ignore"]).arg(script).arg(TESTS).arg(folder.path());
    command.args(["--dev", "vervain0", "--port", "1"]).envs(vars);
    let end = Job::start(&mut command).finish(LIMIT);
    let results = std::fs::read_to_string(folder.path().join("results")).unwrap_or_default();
    let mut wrong = List::read(include_str!("../clients/data/pyverbs.txt")).compare(&results, has_interface);
    if !end.success() {
        wrong.push("the run did not end well".to_owned());
    }
    if !wrong.is_empty() {
        failures.add(name, format!("{}\n{}", wrong.join("\n"), end.describe()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "reason far = It is far\nreason near = Nearby\na.pass pass\na.skip skip far\na.may may-skip far\na.on by-interface far\nb.* may-skip near";

    #[test]
    fn what_is_as_listed_is_not_reported() {
        let results = "start\ta.pass\nend\ta.pass\tpass\nstart\ta.skip\nend\ta.skip\tskip\tIt is far from here\nstart\ta.may\n\
            end\ta.may\tpass\nstart\tb.one\nend\tb.one\tskip\tNearby\nstart\ta.on\nend\ta.on\t";
        for (outcome, has_interface) in [("pass", true), ("skip\tIt is far", false)] {
            assert_eq!(List::read(LIST).compare(&format!("{results}{outcome}"), has_interface), Vec::<String>::new());
        }
    }

    #[test]
    fn what_differs_from_the_list_is_reported_for_better_and_worse() {
        let wrong = |results: &str| List::read(LIST).compare(results, true);
        let rest = |but: &str| -> String {
            ["a.pass\tpass", "a.skip\tskip\tIt is far", "a.may\tpass", "a.on\tpass"]
                .iter()
                .filter(|l| !l.starts_with(but))
                .map(|l| format!("start\t{}\nend\t{l}\n", l.split('\t').next().unwrap_or_default()))
                .collect()
        };
        for (but, lines, said) in [
            ("a.pass", "start\ta.pass\nend\ta.pass\tfail", "a.pass: fail ; expected: pass"),
            ("a.pass", "start\ta.pass\nend\ta.pass\tskip\tIt is far", "expected: pass"),
            ("a.pass", "start\ta.pass", "ended or hung"),
            ("a.pass", "", "was not run"),
            ("a.skip", "start\ta.skip\nend\ta.skip\tpass", "expected: skip (It is far)"),
            ("a.skip", "start\ta.skip\nend\ta.skip\tskip\tNearby", "expected: skip (It is far)"),
            ("a.may", "start\ta.may\nend\ta.may\terror", "expected: pass, or skip (It is far)"),
            ("a.on", "start\ta.on\nend\ta.on\tskip\tIt is far", "expected: pass"),
            ("c", "start\tc.new\nend\tc.new\tpass", "the list does not have it"),
        ] {
            let wrong = wrong(&(rest(but) + lines));
            assert!(wrong.len() == 1 && wrong[0].contains(said), "{but}: {wrong:?}");
        }
    }
}
