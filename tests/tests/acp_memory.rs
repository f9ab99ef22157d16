//! What a rank of ACP holds: `vervain acp memory`, by its types and constants, and measured.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use vervain_tests::{skip, unswayed, vervain};

fn memory(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = unswayed(vervain());
    command.args(["acp", "memory"]).args(arguments).envs(variables.iter().copied());
    command.output().expect("the command")
}

fn table(arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let output = memory(&[arguments, &["--json"]].concat(), variables);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn bytes(table: &Value, what: &str) -> u64 {
    let rows = table["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no row '{what}' in {table}"));
    row["bytes"].as_u64().expect("a number")
}

#[test]
fn the_table_follows_ranks_and_settings() {
    const QPS: &str = "QPs, of Vervain's device";
    const FETCHED: &str = "values in the launcher's library, of leaders only";
    let (few, many) = (table(&["--ranks", "1024"], &[]), table(&[], &[]));
    // Of 977 leaders, those of a group and a share of the others.
    assert_eq!(bytes(&many, FETCHED), 68 * bytes(&few, FETCHED));
    assert!(bytes(&many, QPS) > 256 * 4096, "a QP has queues: {many}");
    assert!(many["bytes"].as_u64() < Some(16_000_000) && many["paper_bytes"].as_u64() > Some(187_000_000), "{many}");
    let less = table(&["--starter", "64k"], &[("ACP_CONNECTIONS", "64")]);
    assert_eq!(bytes(&less, "connections"), bytes(&many, "connections") / 4);
    assert!(bytes(&less, QPS).abs_diff(bytes(&many, QPS) / 4) < bytes(&many, QPS) / 40, "{less} {many}");
    assert_eq!(bytes(&less, "starter memory"), (64 << 10) + 8192);
}

#[test]
fn wrong_settings_are_a_sentence() {
    let output = memory(&[], &[("ACP_CONNECTIONS", "1")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("ACP_CONNECTIONS=1 is no number of connections"), "{said}");
}

/// `vervain acp memory --measure` in a process group of its own, with its temporary files in `files`.
fn measuring(arguments: &[&str], files: &Path) -> Command {
    let mut command = unswayed(vervain());
    command.args(["acp", "memory", "--measure"]).args(arguments).env("TMPDIR", files).process_group(0);
    command
}

/// Whether the command could not measure for want of a PMIx server; says so.
fn lacks_pmix(said: &str) -> bool {
    let sentence = said.lines().find(|l| l.contains("libpmix cannot be loaded") || l.contains("libpmix has no server"));
    sentence.inspect(|sentence| skip(format_args!("{sentence}"))).is_some()
}

/// Waits until no process of the group is left, and says whether that came about.
fn has_gone(group: u32) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        // SAFETY: signal 0 only asks whether there is somebody.
        if unsafe { libc::kill(-group.cast_signed(), 0) } != 0 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("a directory").next().is_none()
}

/// What a measurement of 3,000 ranks prints, checked; None without a PMIx server. It has to have left nothing.
fn measured(arguments: &[&str]) -> Option<Value> {
    let files = tempfile::tempdir().expect("a directory");
    let mut command = measuring(&[&["--ranks", "3000", "--json"], arguments].concat(), files.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command");
    let group = child.id();
    let output = child.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if lacks_pmix(&said) {
        return None;
    }
    assert!(output.status.success(), "{said}");
    let measured: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&measured["reached"], &measured["visits"]), (&2999.into(), &2999.into()), "{measured}");
    let lines = measured["lines"].as_array().expect("lines");
    for direction in ["visits others", "is visited"] {
        let of = lines.iter().filter(|line| line["direction"] == direction && line["contacts"] != 0);
        let contacts: Vec<_> = of.map(|line| line["contacts"].as_u64().expect("a number")).collect();
        assert_eq!(contacts, [1, 1000, 2999], "{measured}");
    }
    let last = &lines[lines.len() - 1];
    assert!(number(last, "connections") <= 256 && number(last, "connections") > 200, "{measured}");
    assert!(number(last, "bytes") > number(&lines[0], "bytes") + 3_000_000, "the pool's QPs are in it: {measured}");
    assert!(number(last, "bytes") < 16_000_000, "{measured}");
    assert!(has_gone(group) && is_empty(files.path()), "something is left of the measurement");
    Some(measured)
}

fn number(line: &Value, what: &str) -> u64 {
    line[what].as_u64().expect("a number")
}

#[test]
fn a_rank_that_has_met_all_others_holds_no_more_than_its_pool() {
    let Some(measured) = measured(&["--farms", "3"]) else { return };
    assert_eq!((&measured["rank"], &measured["leader"]), (&1501.into(), &false.into()), "{measured}");
    assert!(number(&measured, "farms_connections") < 2999, "QPs are used again: {measured}");
}

#[test]
fn a_leader_that_has_met_all_others_holds_no_more_than_its_pool() {
    let Some(measured) = measured(&["--farms", "1", "--leader"]) else { return };
    assert_eq!((&measured["rank"], &measured["leader"]), (&1024.into(), &true.into()), "{measured}");
}

#[test]
fn a_measurement_that_is_interrupted_leaves_nothing() {
    let files = tempfile::tempdir().expect("a directory");
    let mut command = measuring(&["--ranks", "60000", "--farms", "3"], files.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the command");
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok) {
        said = said + &line + "\n";
        if line.contains("1 contacts") {
            // SAFETY: the child of this test, which has not been waited for.
            unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
        }
    }
    let status = child.wait().expect("its end");
    if lacks_pmix(&said) {
        return;
    }
    assert_eq!((status.code(), status.signal()), (Some(130), None), "{said}");
    assert!(has_gone(child.id()) && is_empty(files.path()), "something is left of the measurement: {said}");
}
