//! What `vervain bench` measures is what perftest measures: on one device, on the same CPUs, in turn.
//!
//! Not a test of speed: two tools are compared with each other, so that a slow machine is as good as a fast one. One that
//! is too restless to tell is said to be so.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use vervain_tests::{Job, free_port, have, skip, under_vervain, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(60);
/// Rounds before the first verdict, and before the last.
const FEW: usize = 3;
const MANY: usize = 7;
/// What agreement is.
const SHARE: f64 = 0.10;
/// perftest prints latencies in hundredths of a µs: half of that is lost.
const ROUNDING_NS: f64 = 5.0;

/// As many iterations as below, one run of each.
const PLAN: &str = r#"
title = "beside perftest"
rounds = 1
[defaults]
iterations = 20000
at_most = "3s"
[[case]]
operation = "write"
measure = "latency"
size = 8
[[case]]
operation = "send"
measure = "latency"
size = 65536
[[case]]
operation = "read"
measure = "latency"
size = 65536
[[case]]
operation = "write"
measure = "bandwidth"
size = 65536
iterations = 200000
[[case]]
operation = "write"
measure = "bandwidth"
size = 8
iterations = 2000000
"#;

/// perftest's runs of it: operation, measure, size, tool, iterations. It posts by `ibv_wr_*` unless told otherwise, which
/// takes some ns more, and notes the time of each message of 8 bytes unless told otherwise (-N), which takes as long as
/// the message.
const TOOLS: [(&str, &str, u64, &str, u32); 5] = [
    ("write", "latency", 8, "ib_write_lat", 20_000),
    ("send", "latency", 65536, "ib_send_lat", 20_000),
    ("read", "latency", 65536, "ib_read_lat", 20_000),
    ("write", "bandwidth", 65536, "ib_write_bw", 200_000),
    ("write", "bandwidth", 8, "ib_write_bw", 2_000_000),
];

/// Whether the two must agree. The rate of short messages is only printed: each run, of either tool, has one of two rates a factor
/// of two apart for as long as it lasts.
fn is_held((_, measure, size, ..): &(&str, &str, u64, &str, u32)) -> bool {
    *measure != "bandwidth" || *size >= 65536
}

#[test]
fn its_numbers_are_perftests() {
    if !have(&["ib_write_lat", "ib_write_bw", "ib_send_lat", "ib_read_lat", "taskset"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut ratios: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
    for round in 0..MANY {
        let results = ours(dir.path(), round);
        let pinned = &results["header"]["host"]["pinned"];
        let cpus = [&pinned["client"], &pinned["server"]].map(|cpu| cpu.as_u64().expect("pinned").to_string());
        for (i, tool) in TOOLS.iter().enumerate() {
            ratios.entry(i).or_default().push((value(&results, tool), perftest(tool, &cpus)));
        }
        let apart = ratios.iter().filter(|(i, pairs)| is_held(&TOOLS[**i]) && !agree(TOOLS[**i].1, pairs)).count();
        if round + 1 >= FEW && apart == 0 {
            break;
        }
    }
    let mut apart = Vec::new();
    for (i, pairs) in &ratios {
        let (operation, measure, size, ..) = TOOLS[*i];
        let shares: Vec<_> = pairs.iter().map(|(a, b)| a / b).collect();
        let (low, middle, high) = quartiles(shares);
        let line = format!("{size} B {operation} {measure}: {middle:.3} of perftest's, {low:.3} to {high:.3}");
        println!("{line}");
        if agree(measure, pairs) || !is_held(&TOOLS[*i]) {
            continue;
        }
        // Other work makes the two differ, and each of them from itself.
        let own = [pairs.iter().map(|p| p.0).collect(), pairs.iter().map(|p| p.1).collect()].map(spread);
        if high - low > 2.0 * SHARE || own.iter().any(|own| *own > SHARE) {
            skip(format_args!(
                "this machine is too restless to compare them: {line}; by themselves they vary by {own:.2?}"
            ));
        } else {
            apart.push(format!("{line}: {pairs:.1?}"));
        }
    }
    assert!(apart.is_empty(), "they differ:\n{}", apart.join("\n"));
}

fn ours(dir: &Path, round: usize) -> Value {
    let (plan, out) = (dir.join("plan.toml"), dir.join(round.to_string()));
    fs::write(&plan, PLAN).expect("a plan");
    let end = Job::start(unswayed(vervain()).args(["bench", "run"]).arg(plan).arg("-o").arg(&out)).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    serde_json::from_slice(&fs::read(out.join("results.json")).expect("results")).expect("JSON")
}

/// ns, or bytes per second.
fn value(results: &Value, (operation, measure, size, ..): &(&str, &str, u64, &str, u32)) -> f64 {
    let of = |c: &&Value| {
        let case = &c["case"];
        (&case["operation"], &case["measure"], &case["size"])
            == (&(*operation).into(), &(*measure).into(), &(*size).into())
    };
    let found = results["cases"].as_array().and_then(|all| all.iter().find(of)).expect("the case");
    found["summary"]["value"].as_f64().expect("a value")
}

fn perftest((_, measure, size, tool, iterations): &(&str, &str, u64, &str, u32), cpus: &[String; 2]) -> f64 {
    let port = free_port();
    let side = |cpu: &str| -> Command {
        let mut command = under_vervain("taskset");
        command.args(["-c", cpu, tool, "-F", "--use_old_post_send", "-p", &port.to_string()]);
        command.args(["-s", &size.to_string(), "-n", &iterations.to_string()]);
        if *measure == "bandwidth" {
            command.args(["--report_gbits", "-N"]);
        }
        command
    };
    let mut server = Job::start(&mut side(&cpus[1]));
    assert!(server.listens(port, LIMIT), "{}", server.output());
    let end = Job::start(side(&cpus[0]).arg("127.0.0.1")).finish(LIMIT);
    server.finish(LIMIT);
    let numbers = |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    let row = end.output.lines().filter_map(numbers).find(|row| row.len() > 3);
    let row = row.unwrap_or_else(|| panic!("{}", end.describe()));
    // The typical time in µs; the average rate in Gbit/s.
    if *measure == "latency" { row[4] * 1e3 } else { row[3] * 1e9 / 8.0 }
}

/// Whether the middle of the pairs agrees.
fn agree(measure: &str, pairs: &[(f64, f64)]) -> bool {
    let rounding = if measure == "latency" { ROUNDING_NS } else { 0.0 };
    let excess = |(a, b): &(f64, f64)| (a - b).abs() - rounding;
    let (_, ratio, _) = quartiles(pairs.iter().map(|(a, b)| a / b).collect());
    let (_, apart, _) = quartiles(pairs.iter().map(|pair| excess(pair) / pair.1).collect());
    (ratio - 1.0).abs() <= SHARE || apart <= SHARE
}

/// How far the values are apart, as a share of the middle: the middle half, or a third of all where that is more. A machine
/// that changes between two speeds may be at one of them for most of the rounds of one tool only.
fn spread(values: Vec<f64>) -> f64 {
    let all = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick).unwrap_or(f64::NAN);
    let whole = all(f64::max) - all(f64::min);
    let (low, middle, high) = quartiles(values);
    (high - low).max(whole / 3.0) / middle
}

fn quartiles(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    (at(0.25), at(0.5), at(0.75))
}
