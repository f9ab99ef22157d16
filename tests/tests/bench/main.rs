//! `vervain bench` as its users meet it: plans and their mistakes, runs that end well, that are cut off and taken up again,
//! whose workers or whose peer are killed, and numbers that are perftest's.

mod environments;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vervain_tests::netns::Network;
use vervain_tests::{Job, alone, free_port, have, tool, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(120);

/// Every operation, service and measure, one interfering stream of each kind: two rounds of short measurements.
const EVERYTHING: &str = r#"
title = "everything, shortly"
rounds = 2
[defaults]
iterations = 200
at_least = "1ms"
at_most = "50ms"
[[case]]
operation = ["send", "send+imm", "write", "write+imm", "read"]
measure = ["latency", "bandwidth"]
size = [1, 8, 5000, "1M"]
[[case]]
operation = ["faa", "cas"]
measure = ["latency", "bandwidth"]
interference = ["none", "8 B write", "64K read", "8 B faa", "8 B cas", "64K send", "8 B write+imm"]
at_least = "40ms"
at_most = "80ms"
[[case]]
operation = ["send", "send+imm"]
service = ["uc", "ud"]
measure = ["latency", "bandwidth"]
[[case]]
operation = "write"
service = "uc"
measure = ["latency", "bandwidth"]
[[case]]
operation = ["write", "send", "read"]
measure = "bandwidth"
qps = [2, 16]
depth = [1, 16]
"#;

/// Some seconds of measurements of a tenth of a second, so that a test can meet it in the middle.
const LONG: &str = r#"
title = "long"
rounds = 2
seed = 7
[[case]]
operation = ["write", "read"]
measure = "bandwidth"
size = "8..64K by 4"
at_least = "70ms"
"#;

/// `vervain bench` with these words.
fn bench(words: &[&str]) -> Command {
    let mut command = unswayed(vervain());
    command.arg("bench").args(words);
    command
}

/// `vervain bench run` of a plan into `dir`/out.
fn run(dir: &Path, plan: &str, more: &[&str]) -> Command {
    let file = dir.join("plan.toml");
    fs::create_dir_all(dir).and_then(|()| fs::write(&file, plan)).expect("a plan");
    let mut command = bench(&["run"]);
    command.arg(file).arg("-o").arg(dir.join("out")).args(more);
    command
}

fn resume(dir: &Path) -> Command {
    let mut command = bench(&["run", "--resume"]);
    command.arg(dir.join("out"));
    command
}

/// What a run left.
fn results(dir: &Path) -> Value {
    let text = fs::read(dir.join("out/results.json")).expect("results.json");
    serde_json::from_slice(&text).expect("JSON")
}

fn cases(results: &Value) -> &Vec<Value> {
    results["cases"].as_array().expect("cases")
}

/// Measurements in the results.
fn runs(results: &Value) -> usize {
    cases(results).iter().map(|c| c["runs"].as_array().map_or(0, Vec::len)).sum()
}

/// Measurements in the journal, which grows while the run goes on.
fn journalled(dir: &Path) -> usize {
    let text = fs::read_to_string(dir.join("out/journal.jsonl")).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(r#"{"run""#)).count()
}

/// Waits until `count` measurements are in the journal.
fn wait_for(dir: &Path, count: usize, job: &mut Job) {
    let since = Instant::now();
    while journalled(dir) < count {
        assert!(job.running() && since.elapsed() < LIMIT, "no {count} measurements: {}", job.output());
        thread::sleep(Duration::from_millis(10));
    }
}

/// The children of a process.
fn children(of: u32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: kill() touches no memory; a process that this test started.
    unsafe { libc::kill(pid, signal) };
}

/// Waits until none of the processes runs any more.
fn are_gone(pids: &[i32]) {
    let alive = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie is gone as far as it goes; whoever is to reap it may be slow.
        !stat.is_empty() && !stat.contains(") Z ")
    };
    let since = Instant::now();
    while pids.iter().any(alive) {
        assert!(since.elapsed() < Duration::from_secs(60), "workers outlive the run");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Everything measured, with values that can be, and interference that is proven to have run.
fn check_everything(dir: &Path) {
    let results = results(dir);
    assert_eq!((&results["complete"], &results["schema"]), (&Value::Bool(true), &Value::from(1)));
    for result in cases(&results) {
        let (case, summary) = (&result["case"], &result["summary"]);
        assert_eq!(result["runs"].as_array().map(Vec::len), Some(2), "{result}");
        assert_eq!(result["failures"], Value::Array(vec![]), "{case}");
        let value = summary["value"].as_f64().expect("a value");
        let (low, high) = (summary["interval"][0].as_f64(), summary["interval"][1].as_f64());
        assert!(value > 0.0 && low <= Some(value) && high >= Some(value), "{result}");
        assert_eq!(case["measure"] == "latency", summary["p99"].is_number(), "{result}");
        let runs = result["runs"].as_array().expect("runs");
        for run in runs {
            assert!(run["iterations"].as_u64() >= Some(16), "{case}: {run}");
            assert_eq!(case["interference"].is_null(), run["interference"].is_null(), "{case}");
        }
        // In one run of some 10 ms a busy machine may keep the stream waiting.
        let proven = |run: &Value| run["interference"]["operations"].as_u64() > Some(0);
        assert!(case["interference"].is_null() || runs.iter().any(proven), "{result}");
    }
    assert_eq!(cases(&results).len(), 40 + 28 + 8 + 2 + 12);
}

#[test]
fn everything_can_be_measured_by_memory() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let end = Job::start(&mut run(dir.path(), EVERYTHING, &[])).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    assert!(end.output.contains("90 cases measured"), "{}", end.describe());
    check_everything(dir.path());
    for file in ["report.html", "journal.jsonl"] {
        assert!(fs::metadata(dir.path().join("out").join(file)).is_ok_and(|m| m.len() > 1000), "{file}");
    }
}

/// The plan `acp` with three sizes and two rounds.
const ACP: &str = r#"
title = "ACP beside MPI, shortly"
rounds = 2
[defaults]
measure = "latency"
size = [1, "8K", "1M"]
iterations = 50
volume = "4M"
[[case]]
interface = "acp"
operation = ["put", "get", "copy"]
[[case]]
interface = ["openmpi", "openmpi-own", "mpich", "mpich-own"]
operation = "ping-pong"
"#;

/// The MPIs of [`ACP`] that are not installed: their launcher and their interfaces.
fn missing_mpis() -> Vec<(&'static str, [&'static str; 2])> {
    let all = [("mpirun.openmpi", ["openmpi", "openmpi-own"]), ("mpirun.mpich", ["mpich", "mpich-own"])];
    all.into_iter().filter(|(launcher, _)| tool(launcher).is_none()).collect()
}

#[test]
fn acp_and_each_mpi_that_is_installed_are_measured_in_one_run_and_no_rank_stays() {
    let _turn = alone();
    let missing = missing_mpis();
    let dir = tempfile::tempdir().expect("a directory");
    let mut job = Job::start(&mut run(dir.path(), ACP, &[]));
    // Workers and the launchers of jobs; their ranks, or what starts those.
    wait_for(dir.path(), 1, &mut job);
    let mut begun = children(job.pid());
    begun.extend(begun.clone().into_iter().flat_map(|pid| children(pid.cast_unsigned())));
    let end = job.finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    are_gone(&begun);
    let results = results(dir.path());
    assert_eq!(results["complete"], Value::Bool(true));
    assert_eq!(cases(&results).len(), 3 * (3 + 4 - 2 * missing.len()));
    for result in cases(&results) {
        let (case, runs) = (&result["case"], result["runs"].as_array().expect("runs"));
        let size = case["size"].as_u64().expect("a size");
        assert_eq!((runs.len(), &result["failures"]), (2, &Value::Array(vec![])), "{result}");
        // 4 MiB of 1 MiB are four, and IMB's batches are of 20.
        let (iterations, values) = if size == 1 << 20 { (4, 4) } else { (50, 3) };
        for run in runs {
            let counts = run["histogram"].as_array().expect("values").iter().map(|bucket| bucket[1].as_u64());
            assert_eq!((run["iterations"].as_u64(), counts.sum()), (Some(iterations), Some(values)), "{case}: {run}");
        }
        assert!(result["summary"]["value"].as_f64() > Some(0.0), "{result}");
    }
    // Each case that is missing has its MPI's name.
    let skipped = results["skipped"].as_array().expect("a list");
    assert_eq!(skipped.len(), 3 * 2 * missing.len());
    for skipped in skipped {
        let (of, why) = (skipped["case"]["interface"].as_str(), skipped["why"].as_str().unwrap_or_default());
        let (launcher, _) =
            missing.iter().find(|(_, both)| both.contains(&of.unwrap_or_default())).expect("one of them");
        assert!(why.contains(launcher) && why.contains("is not installed"), "{skipped}");
    }
    for name in ["acp-put-bandwidth", "acp-put-time", "acp-get-bandwidth", "acp-get-time", "acp-copy-bandwidth"] {
        let table = fs::read_to_string(dir.path().join(format!("out/figures/{name}.csv"))).expect("a table");
        assert!(table.lines().count() > 3 && dir.path().join(format!("out/figures/{name}.svg")).is_file(), "{table}");
    }
    let page = fs::read_to_string(dir.path().join("out/report.html")).expect("a page");
    let goal = "Goal: ACP put ahead of Open MPI over this device at every size. Ahead at ";
    assert_eq!(page.contains(goal), missing.iter().all(|(launcher, _)| *launcher != "mpirun.openmpi"));
    assert!(end.output.contains("Latency in µs: ACP's copies on starter memory"), "{}", end.describe());
}

/// The plan `pm` with few sizes and one round.
const PM: &str = r#"
title = "PM, shortly"
rounds = 1
[environment.less]
variables = { PM_INLINE = "0" }
[environment.wire]
variables = { VERVAIN_LINK = "roce", VERVAIN_INTERFACE = "lo" }
[defaults]
iterations = 50
environment = ["none", "less", "wire"]
[[case]]
interface = "pm"
operation = "ping-pong"
measure = "latency"
size = [8, "8K"]
[[case]]
interface = "pm"
operation = ["send", "write", "read"]
measure = "bandwidth"
size = [1, "8K"]
[[case]]
interface = "pm"
operation = ["write", "read"]
measure = "bandwidth"
size = "64M"
volume = "128M"
"#;

#[test]
fn pm_is_measured_by_two_ranks_in_each_environment_and_no_rank_stays() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let mut job = Job::start(&mut run(dir.path(), PM, &[]));
    wait_for(dir.path(), 1, &mut job);
    let mut begun = children(job.pid());
    begun.extend(begun.clone().into_iter().flat_map(|pid| children(pid.cast_unsigned())));
    let end = job.finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    are_gone(&begun);
    let results = results(dir.path());
    assert_eq!((&results["complete"], &results["skipped"]), (&Value::Bool(true), &Value::Array(vec![])));
    assert_eq!(cases(&results).len(), 3 * (2 + 3 * 2 + 2));
    for result in cases(&results) {
        let (case, run) = (&result["case"], &result["runs"][0]);
        let is_long = case["size"].as_u64() == Some(64 << 20);
        assert_eq!(run["iterations"].as_u64(), Some(if is_long { 2 } else { 50 }), "{result}");
        let parts = run["segments"].as_array().map(Vec::len);
        assert_eq!(parts == Some(1), case["measure"] == "bandwidth", "{result}");
        assert!(result["summary"]["value"].as_f64() > Some(0.0), "{result}");
    }
    for name in ["pm-latency", "pm-bandwidth", "pm-round-trip", "pm-messages", "pm-copies"] {
        assert!(dir.path().join(format!("out/figures/{name}.csv")).is_file(), "{name}");
    }
    let page = fs::read_to_string(dir.path().join("out/report.html")).expect("a page");
    assert!(page.contains("In the usual environment, data inside the work request "), "no finding");
    assert!(end.output.contains("PM beside Sumimoto et al. 2004"), "{}", end.describe());
}

#[test]
fn an_mpi_that_is_not_installed_is_left_out_with_a_sentence() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let plan = ACP.replace("rounds = 2", "rounds = 1").replace("[1, \"8K\", \"1M\"]", "8");
    // Nothing is found here: no mpirun.
    let end = Job::start(run(dir.path(), &plan, &[]).env("PATH", dir.path())).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    for launcher in ["mpirun.openmpi", "mpirun.mpich"] {
        assert_eq!(end.output.matches(&format!("there is no {launcher}")).count(), 1, "{}", end.describe());
    }
    let results = results(dir.path());
    assert_eq!((cases(&results).len(), results["skipped"].as_array().map(Vec::len)), (3, Some(4)));
}

/// The plan with nothing left out and nothing measured for long: one round, as few operations as there must be.
fn shortened(plan: &str) -> String {
    let short = |line: &str| match line.split_once(" = ") {
        Some(("rounds", _)) => "rounds = 1\nseed = 1".to_owned(),
        Some(("at_least", _)) => "at_least = \"1ms\"\niterations = 32\nwarm_up = 16".to_owned(),
        Some(("at_most", _)) => "at_most = \"5ms\"".to_owned(),
        _ => line.to_owned(),
    };
    plan.lines().map(short).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_plan_of_the_paper_runs_to_its_end_and_its_report_has_every_figure_and_finding() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let plan = Job::start(&mut bench(&["plans", "paper"])).finish(LIMIT);
    let short = shortened(&plan.output);
    assert_eq!(["rounds = 1\n", "\"1ms\"", "\"5ms\""].map(|part| short.matches(part).count()), [1; 3], "{short}");
    let end = Job::start(&mut run(dir.path(), &short, &["--local"])).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    let results = results(dir.path());
    assert_eq!((&results["complete"], &results["skipped"]), (&Value::Bool(true), &Value::Array(vec![])));
    assert_eq!((cases(&results).len(), runs(&results)), (360, 360));
    let value = |case: &Value| case["summary"]["value"].as_f64().unwrap_or(0.0);
    let lacking: Vec<_> = cases(&results).iter().filter(|c| value(c) <= 0.0).map(|c| &c["case"]).collect();
    assert!(lacking.is_empty(), "{lacking:?}");

    let out = dir.path().join("out");
    let page = fs::read_to_string(out.join("report.html")).expect("report.html");
    // How many lines of values each figure has, below that of the headings.
    let sizes = 21;
    let figures = [
        ("fig1-loopback", 3 * sizes),
        ("fig2a", 2 * 5),
        ("fig2b", 2 * 5),
        ("fig3-loopback", 5 * sizes),
        ("fig3-share-loopback", 4 * sizes),
        ("fig3b-loopback", sizes + 4 * 11),
        ("fig3b-share-loopback", 4 * 11),
        ("fig4-loopback", 5 * sizes),
        ("fig4-share-loopback", 4 * sizes),
        ("fig4b-loopback", sizes + 4 * 11),
        ("fig4b-share-loopback", 4 * 11),
        // One for each of both placements, where the second has what ran alone, and of the paper's devices.
        ("table2", 2 + 2),
        ("table2b", 2),
        ("table2b-cas", 2),
        ("table3", 2 + 2),
        ("table3b", 2),
        ("table3b-cas", 2),
    ];
    for (name, lines) in figures {
        assert!(page.contains(&format!(" id=\"{name}\">")), "{name}");
        let values = fs::read_to_string(out.join(format!("figures/{name}.csv"))).expect(name);
        assert_eq!(values.lines().count() - 1, lines, "{name}: {values}");
        assert!(out.join(format!("figures/{name}.svg")).is_file(), "{name}");
    }
    for finding in [
        "a long Write beside Write halves it, a long Read costs it about 10 % at most.",
        "a long Read beside Read halves it; of a long Write beside Read it gives no number.",
        "Paper: Read's rises somewhat later; ",
        "3,060 MB/s (ConnectX-2 QDR)",
        "What 8 B streams cost Write over all sizes: ",
        "What 8 B streams cost Read over all sizes: ",
        "Paper: Read &lt; atomics &lt; Write; ",
        "Paper: Write more than Read; ",
        "FAA costs Write ",
        "FAA costs Read ",
        "8 MiB Read costs Write ",
        "What 8 B streams cost FAA, loopback (intra-node): ",
        "Paper: Read &lt; Write &lt; atomics (X1 DDR, X1 QDR), ",
        "; Write &lt; Read &lt; atomics (X1 QDR), ",
        "it says that long streams have the same tendency",
    ] {
        assert!(page.contains(finding), "no {finding:?} in the report");
    }
    let text = page.split("<script>").next().expect("text");
    assert!(!text.contains("NaN") && !text.contains(">inf"), "a value that is none");
}

#[test]
fn everything_can_be_measured_between_two_hosts() {
    let Some(network) = Network::of_two(1500) else { return };
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let mut far = Job::start(&mut network.second().enter(&bench(&["serve"])));
    assert!(far.wait_output("serving at", LIMIT), "{}", far.output());
    let command = run(dir.path(), EVERYTHING, &["--peer", network.second().v4]);
    let end = Job::start(&mut network.first().enter(&command)).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    check_everything(dir.path());
    let results = results(dir.path());
    assert!(cases(&results).iter().all(|c| c["case"]["placement"] == "peer"));
    assert!(results["header"]["peer"]["device"]["name"].is_string(), "{}", results["header"]);
    far.signal_group(libc::SIGINT);
    let end = far.finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
}

/// Two cases of each measure, with words that take room.
const WORDY: &str = r#"
title = "wordy"
rounds = 2
[defaults]
iterations = 200
at_least = "40ms"
at_most = "80ms"
[[case]]
operation = "write+imm"
measure = ["latency", "bandwidth"]
interference = ["none", "64K write+imm"]
"#;

#[test]
fn on_a_terminal_of_80_columns_the_table_fits_and_no_word_is_broken() {
    if !have(&["script"]) {
        return;
    }
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let command = run(dir.path(), WORDY, &["--device", "vervain0"]);
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let words: Vec<_> = words.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let said = dir.path().join("said");
    // Only standard output is the terminal: nothing is drawn while the run goes on.
    let line = format!("stty cols 80 rows 24; exec {} 2>'{}'", words.join(" "), said.display());
    let mut script = unswayed("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let end = Job::start(&mut script).finish(LIMIT);
    let said = fs::read_to_string(said).expect("standard error");
    assert_eq!(end.code(), Some(0), "{}\n{said}", end.describe());
    let table = end.output.replace('\r', "");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    for line in ["Latency, loopback", "Bandwidth, loopback"] {
        assert!(table.lines().any(|l| l == line), "{line}: {table}");
    }
    let all: std::collections::BTreeSet<&str> = table.split_whitespace().collect();
    for word in ["operation", "write+imm", "RC,", "beside", "median", "messages", "MB/s", "note"] {
        assert!(all.contains(word), "{word}: {table}");
    }
    // Two rounds tell no interval, and all values are doubtful for it.
    assert_eq!(table.matches("too few rounds").count(), 4, "{table}");
    assert!(said.contains("vervain: All 4 values are doubtful: 4 with too few rounds"), "{said}");
    assert!(said.contains("vervain: Measure in more rounds: --rounds 5.\n"), "{said}");
}

#[test]
fn a_plan_with_a_mistake_gets_the_line_the_key_and_what_was_expected() {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = "title = \"x\"\n[[case]]\noperation = \"wirte\"\nmeasure = \"latency\"\niterations = \"many\"\n";
    let end = Job::start(&mut run(dir.path(), plan, &[])).finish(LIMIT);
    assert_eq!(end.code(), Some(1), "{}", end.describe());
    for wanted in [
        "plan.toml:3:13: case[1].operation: expected send, send+imm, write, write+imm, read, faa, cas, put, get, copy, ping-pong, raw-put, jacobi, jacobi-calculation, jacobi-exchange or jacobi-allreduce, found \"wirte\"",
        "did you mean \"write\"?",
        "plan.toml:5:14: case[1].iterations: expected",
    ] {
        assert!(end.output.contains(wanted), "{wanted}\n{}", end.describe());
    }
    assert!(!dir.path().join("out").exists(), "nothing is made for a run that cannot be");
}

#[test]
fn an_interrupted_run_keeps_what_it_measured_and_goes_on() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let mut job = Job::start(&mut run(dir.path(), LONG, &[]));
    wait_for(dir.path(), 5, &mut job);
    let workers = children(job.pid());
    job.signal_group(libc::SIGINT);
    let end = job.finish(LIMIT);
    assert_eq!(end.code(), Some(130), "{}", end.describe());
    assert!(end.output.contains("--resume"), "{}", end.describe());
    are_gone(&workers);
    let first = results(dir.path());
    assert_eq!((&first["complete"], &first["interrupted"]), (&Value::Bool(false), &"interrupted".into()));
    assert!((5..28).contains(&runs(&first)), "{}", runs(&first));

    let again = Job::start(&mut run(dir.path(), LONG, &[])).finish(LIMIT);
    assert_eq!(again.code(), Some(1), "{}", again.describe());
    assert!(again.output.contains("has a run already"), "{}", again.describe());

    let end = Job::start(&mut resume(dir.path())).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    let whole = results(dir.path());
    assert_eq!((runs(&whole), &whole["complete"]), (28, &Value::Bool(true)));
    assert_eq!(whole["header"], first["header"]);
    // What was measured before is still there, and was not measured again.
    for result in cases(&first) {
        let now = cases(&whole).iter().find(|c| c["case"] == result["case"]).expect("the case");
        let kept = result["runs"].as_array().expect("runs");
        assert!(kept.iter().all(|r| now["runs"].as_array().is_some_and(|all| all.contains(r))), "{now}");
    }
}

#[test]
fn a_run_that_is_killed_leaves_no_worker_and_can_be_resumed() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let mut job = Job::start(&mut run(dir.path(), LONG, &[]));
    wait_for(dir.path(), 3, &mut job);
    let workers = children(job.pid());
    assert!(workers.len() >= 2, "{workers:?}");
    kill(job.pid().cast_signed(), libc::SIGKILL);
    job.finish(LIMIT);
    are_gone(&workers);
    // As if it had been killed while it wrote a line.
    let journal = dir.path().join("out/journal.jsonl");
    let mut text = fs::read(&journal).expect("the journal");
    text.extend_from_slice(br#"{"run":{"case":{"measure":"band"#);
    fs::write(&journal, text).expect("written");

    let end = Job::start(bench(&["report"]).arg(dir.path().join("out"))).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    assert!(runs(&results(dir.path())) >= 3);
    let end = Job::start(&mut resume(dir.path())).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    assert_eq!(runs(&results(dir.path())), 28);
}

#[test]
fn a_worker_that_dies_costs_one_measurement() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let mut job = Job::start(&mut run(dir.path(), LONG, &[]));
    wait_for(dir.path(), 3, &mut job);
    let workers = children(job.pid());
    kill(workers[1], libc::SIGKILL);
    let end = job.finish(LIMIT);
    assert_eq!(end.code(), Some(1), "{}", end.describe());
    let results = results(dir.path());
    assert_eq!((runs(&results), &results["complete"]), (27, &Value::Bool(true)), "{}", end.describe());
    let failures: Vec<_> = cases(&results).iter().filter_map(|c| c["failures"][0]["why"].as_str()).collect();
    assert_eq!(failures, ["the process of the responder was killed by signal 9"]);
}

#[test]
fn a_peer_that_is_lost_ends_the_run_with_what_there_is() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let address = format!("127.0.0.1:{}", free_port());
    let serve = || {
        let mut far = Job::start(&mut bench(&["serve", "--bind", &address]));
        assert!(far.wait_output("serving at", LIMIT), "{}", far.output());
        far
    };
    let far = serve();
    let mut job = Job::start(&mut run(dir.path(), LONG, &["--peer", &address]));
    wait_for(dir.path(), 3, &mut job);
    kill(far.pid().cast_signed(), libc::SIGKILL);
    let end = job.finish(LIMIT);
    assert_eq!(end.code(), Some(1), "{}", end.describe());
    for wanted in [format!("lost {address}, where the responder was"), "(during ".into(), "--resume".into()] {
        assert!(end.output.contains(&wanted), "{wanted}\n{}", end.describe());
    }
    let partial = results(dir.path());
    assert!((3..28).contains(&runs(&partial)));
    assert!(partial["interrupted"].as_str().is_some_and(|why| why.contains(&address)), "{}", partial["interrupted"]);
    drop(far);

    let none = Job::start(&mut run(&dir.path().join("none"), LONG, &["--peer", &address])).finish(LIMIT);
    assert_eq!(none.code(), Some(1), "{}", none.describe());
    assert!(!dir.path().join("none/out").exists(), "nothing is left of a run that could not begin");
    let unreachable = Job::start(&mut resume(dir.path())).finish(LIMIT);
    assert_eq!(unreachable.code(), Some(1), "{}", unreachable.describe());
    let said = format!("cannot reach `vervain bench serve` at {address}");
    assert!(unreachable.output.contains(&said), "{}", unreachable.describe());

    let _far = serve();
    let end = Job::start(&mut resume(dir.path())).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    assert_eq!(runs(&results(dir.path())), 28);
}

#[test]
fn a_run_is_like_itself() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let end = Job::start(&mut run(dir.path(), LONG, &[])).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    let (out, page) = (dir.path().join("out"), dir.path().join("difference.html"));
    let end = Job::start(bench(&["compare"]).args([&out, &out]).arg("-o").arg(&page)).finish(LIMIT);
    assert_eq!(end.code(), Some(0), "{}", end.describe());
    assert!(!end.output.contains("better") || end.output.contains("0 better"), "{}", end.describe());
    assert!(fs::metadata(&page).is_ok_and(|m| m.len() > 1000));
}

#[test]
fn the_plans_that_are_built_in_can_be_printed_and_are_plans() {
    let list = Job::start(&mut bench(&["plans"])).finish(LIMIT);
    for name in ["quick", "paper", "interference", "atomics", "scaling", "acp", "tca", "pm"] {
        assert!(list.output.lines().any(|line| line.starts_with(name)), "{}", list.describe());
        let plan = Job::start(&mut bench(&["plans", name])).finish(LIMIT);
        assert!(plan.success() && plan.output.contains("[[case]]"), "{}", plan.describe());
    }
    let none = Job::start(&mut bench(&["plans", "papre"])).finish(LIMIT);
    assert!(none.code() == Some(1) && none.output.contains("quick, paper"), "{}", none.describe());
}

#[test]
fn a_device_that_is_not_there_is_said_with_those_that_are() {
    let end = Job::start(&mut bench(&["run", "--device", "mlx5_7"])).finish(LIMIT);
    assert_eq!(end.code(), Some(1), "{}", end.describe());
    assert!(end.output.contains("no device called mlx5_7") && end.output.contains("vervain0"), "{}", end.describe());
}
