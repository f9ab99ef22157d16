//! Environments of a plan.

use super::*;

/// Two environments of one device, and one that no device has.
const ENVIRONMENTS: &str = r#"
title = "Environments"
rounds = 2
[environment.board]
note = "a model of a board"
paper = "tca-cpu"
variables = { VERVAIN_LINK = "window", VERVAIN_WINDOW = "peach2:{file},heap=on" }
[environment.local]
variables = { VERVAIN_LINK = "local" }
[environment.wrong]
variables = { VERVAIN_LINK = "lcoal" }
[defaults]
measure = "latency"
iterations = 200
at_least = "0s"
[[case]]
environment = ["board", "local", "wrong"]
operation = ["send", "read"]
[[case]]
environment = ["board", "local"]
interface = "window"
operation = "raw-put"
size = [8, "64K"]
"#;

#[test]
fn environments_are_measured_beside_each_other_and_what_one_does_not_have_is_left_out() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let end = Job::start(&mut run(dir.path(), ENVIRONMENTS, &[])).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    let results = results(dir.path());
    let mut measured: Vec<_> = cases(&results)
        .iter()
        .map(|result| {
            assert_eq!((&result["failures"], runs_of(result)), (&Value::Array(vec![]), 2), "{result}");
            ["operation", "environment"].map(|field| result["case"][field].as_str().expect("a word").to_owned())
        })
        .collect();
    measured.dedup();
    let expected = [["send", "board"], ["send", "local"], ["read", "board"], ["read", "local"], ["raw-put", "board"]];
    assert_eq!(measured, expected);
    // Neither environment "wrong", nor a window of the environment "local".
    let skipped = results["skipped"].as_array().expect("a list").iter();
    let why: Vec<_> = skipped.map(|skipped| skipped["why"].as_str().unwrap_or_default()).collect();
    assert_eq!(why.iter().filter(|why| why.starts_with("VERVAIN_LINK")).count(), 2, "{why:?}");
    assert_eq!(why.iter().filter(|why| why.contains("VERVAIN_WINDOW is not set")).count(), 2, "{why:?}");
    let variables = &results["header"]["environments"]["board"]["variables"];
    assert_eq!(variables["VERVAIN_WINDOW"], "peach2:{file},heap=on");
    let page = fs::read_to_string(dir.path().join("out/report.html")).expect("a page");
    assert!(page.contains("values of a model of PEACH2 in software, not of the board"), "{page}");
    assert!(end.output.contains("A model of PEACH2, not the board, beside TCA Verbs (2015)"), "{}", end.describe());
}

/// Runs of a case.
fn runs_of(result: &Value) -> usize {
    result["runs"].as_array().map_or(0, Vec::len)
}
