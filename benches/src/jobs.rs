//! Checkpoint and restart of running jobs (`vervain job`): how long a job stands still for it, and how long it takes to come back. And what
//! it costs to have two of them take turns (`vervain gang`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::messages::AS_ROOT;
use crate::process;
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Measure, Measured};
use crate::setup::{Setup, package_directory};

const HOW: &str = "A job in a network namespace of its own is checkpointed while it runs, killed, and restarted. It stands still from CRIU's\n\
     first look at it until it goes on; it is back when it prints its next line. A gang is of two jobs of 2 ranks: medians of 200 switches.";
/// How long any of it may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Beside the memory.
const STILL_MS: f64 = 300.0;
/// Beside the signals or the freezer.
const SWITCH_MS: f64 = 0.5;

/// What is measured of a job.
enum Number {
    Still,
    Megabytes,
    Checkpoint,
    Restart,
}

/// What is measured of a gang.
enum OfSwitch {
    All,
    BeyondSignals,
}

/// The table.
pub fn section(setup: &Setup) -> Section {
    let ranks = || round_trip(setup, &[], &two_ranks(setup)?);
    let gang = |options: &'static [&'static str]| -> Measure<'_> { Box::new(move || switches(setup, options)) };
    let qps = |options: &'static [&'static str]| -> Measure<'_> {
        Box::new(move || {
            let program = [setup.program("connected")?.display().to_string(), "10000".into()];
            round_trip(setup, options, &program)
        })
    };
    let named: Vec<(&'static str, Measure<'_>)> = vec![
        ("ranks", Box::new(ranks)),
        ("QPs", qps(&[])),
        ("QPs in packets", qps(PACKETS)),
        ("gang", gang(&[])),
        ("gang in packets", gang(PACKETS)),
    ];
    Measured::of(setup.fewer_rounds(), named).section("Jobs: checkpoint and restart", HOW, rows)
}

fn rows(measured: &Measured) -> Rows {
    let row =
        |what, name, index, most: Option<f64>| measured.row(what, Unit::Ms, (name, index), most.map(Target::AtMost));
    let number = |what, name, number: Number, most| row(what, name, number as usize, most);
    let turns = |what, name, part: OfSwitch, most| row(what, name, part as usize, most);
    let of_two = |what, name, one: Number, other: Number, combine: fn(f64, f64) -> f64, most| {
        let values = measured.combined((name, one as usize), (name, other as usize), combine)?;
        Row::new(what, Unit::Ms, &values, Target::AtMost(most))
    };
    let less = |what, name, most| of_two(what, name, Number::Still, Number::Megabytes, |still, mb| still - mb, most);
    let both = |what, name| of_two(what, name, Number::Checkpoint, Number::Restart, |one, other| one + other, 3000.0);
    vec![
        number("2 ranks of Open MPI stand still", "ranks", Number::Still, None),
        less("2 ranks of Open MPI stand still, less 1 ms for each MB of memory", "ranks", STILL_MS),
        number("2 ranks: checkpoint on disk", "ranks", Number::Checkpoint, None),
        number("2 ranks: restart", "ranks", Number::Restart, Some(1500.0)),
        both("10,000 QPs: checkpoint and restart", "QPs"),
        both("10,000 QPs in packets: checkpoint and restart", "QPs in packets"),
        turns("a switch of a gang", "gang", OfSwitch::All, None),
        turns("a switch of a gang, less the freezer", "gang", OfSwitch::BeyondSignals, Some(SWITCH_MS)),
        turns("a switch of a gang in packets", "gang in packets", OfSwitch::All, None),
        turns(
            "a switch of a gang in packets, less the freezer",
            "gang in packets",
            OfSwitch::BeyondSignals,
            Some(SWITCH_MS),
        ),
    ]
}

/// What is wanted here of a checkpoint's manifest.
#[derive(Deserialize)]
struct Manifest {
    /// Microseconds.
    frozen: u64,
    saved: Saved,
    files: BTreeMap<String, Part>,
}

#[derive(Deserialize)]
struct Saved {
    images: Images,
}

#[derive(Deserialize)]
struct Images {
    hosts: Vec<Image>,
}

/// What was written on one host.
#[derive(Deserialize)]
struct Image {
    written: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    size: u64,
}

const PACKETS: &[&str] = &["--link", "roce", "--interface", "lo"];

/// A kernel on two ranks of Open MPI that does not end.
fn two_ranks(setup: &Setup) -> Result<Vec<String>> {
    let mut program = vec!["mpirun.openmpi".to_owned(), "-n".into(), "2".into(), "--oversubscribe".into()];
    program.extend(["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "self"].map(String::from));
    program.push(setup.program("wavefront")?.display().to_string());
    program.extend(["A", "1000000", "unchecked", "every=1"].map(String::from));
    Ok(program)
}

/// The command, with these words.
fn vervain(setup: &Setup, words: &[&str]) -> Command {
    let mut command = Command::new(&setup.vervain);
    command.args(words);
    command
}

/// Runs a program as a job of this name, with options of `vervain job run`.
fn run(setup: &Setup, name: &str, criu: &str, options: &[&str], program: &[String]) -> Command {
    let mut run = vervain(setup, &["job", "run", "--name", name, "--network", "private", "--criu", criu]);
    run.args(options).arg("--").args(program).env("UCX_TLS", "rc_v,self").envs(AS_ROOT);
    run
}

/// The numbers of [`OfSwitch`] of two jobs that take turns.
fn switches(setup: &Setup, options: &[&str]) -> Result<Vec<f64>> {
    let (criu, program) = (criu()?, two_ranks(setup)?);
    let directory = tempfile::tempdir()?;
    let names = ["one", "two"].map(|which| format!("bench-{}-{which}", std::process::id()));
    let mut jobs = Vec::new();
    for name in &names {
        let output = directory.path().join(name);
        let mut job = Job::start(&mut run(setup, name, &criu, options, &program), &output)?;
        job.await_more(&output, 0)?;
        jobs.push(job);
    }
    let mut gang = vervain(setup, &["gang", &names[0], &names[1], "--slice", "20ms", "--switches", "200"]);
    let told = process::output(&mut gang, None, LIMIT)?;
    let median = |part: &str| median_ms(&told, part).with_context(|| format!("no {part:?}: {told}"));
    let all = median("a switch:")?;
    Ok(vec![all, all - median("signals:")?])
}

/// Milliseconds, from a line such as `  stop:    median 453 µs, 95th percentile …`.
fn median_ms(told: &str, part: &str) -> Option<f64> {
    let line = told.lines().find_map(|line| line.trim_start().strip_prefix(part))?;
    let (number, unit) = line.trim_start().strip_prefix("median ")?.split_once(',')?.0.split_once(' ')?;
    let in_ms = match unit {
        "µs" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * in_ms)
}

/// The numbers of [`Number`] of a job that runs a program, with options of `vervain job run`.
fn round_trip(setup: &Setup, options: &[&str], program: &[String]) -> Result<Vec<f64>> {
    let criu = criu()?;
    let directory = tempfile::tempdir()?;
    let (output, checkpoints) = (directory.path().join("output"), directory.path().join("checkpoints"));
    let name = format!("bench-{}", std::process::id());
    let vervain = |words: &[&str]| vervain(setup, words);
    let mut job = Job::start(&mut run(setup, &name, &criu, options, program), &output)?;
    job.await_more(&output, 0)?;

    let begin = Instant::now();
    process::output(vervain(&["checkpoint", &name]).arg(&checkpoints), None, LIMIT)?;
    let checkpoint = begin.elapsed();
    process::output(&mut vervain(&["job", "kill", &name]), None, LIMIT)?;
    drop(job);

    let made = fs::read_dir(&checkpoints)?.next().context("no checkpoint was made")??.path();
    let manifest: Manifest = serde_json::from_slice(&fs::read(made.join("manifest.json"))?)?;
    // As the restart does, so that more is what the job prints then.
    let written = manifest
        .saved
        .images
        .hosts
        .first()
        .and_then(|image| image.written.first())
        .context("the job had no file open")?
        .size;
    File::options().write(true).open(&output)?.set_len(written)?;
    let begin = Instant::now();
    let mut job = Job::start(vervain(&["restart", "--criu", &criu]).arg(&checkpoints), &output)?;
    job.await_more(&output, written)?;
    let restart = begin.elapsed();
    let megabytes = manifest.files.values().map(|part| part.size).sum::<u64>() as f64 / 1e6;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(vec![manifest.frozen as f64 / 1e3, megabytes, ms(checkpoint), ms(restart)])
}

/// The CRIU that the tests use too.
fn criu() -> Result<String> {
    let package = package_directory()?;
    let mut command = Command::new(package.join("../scripts/criu.sh"));
    let found = process::output(command.arg(package.join("../target/criu")), None, LIMIT)?;
    Ok(found.trim().to_owned())
}

/// A supervisor, which ends with this value, and its job with it.
struct Job(Child);

impl Job {
    fn start(command: &mut Command, output: &Path) -> Result<Job> {
        let output = File::options().create(true).append(true).open(output)?;
        let command = command.stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        Ok(Job(command.spawn().context("starting a job")?))
    }

    /// Until it has written more than so many bytes.
    fn await_more(&mut self, output: &Path, written: u64) -> Result<()> {
        let until = Instant::now() + LIMIT;
        while fs::metadata(output)?.len() <= written {
            ensure!(matches!(self.0.try_wait(), Ok(None)), "the job has ended; as root, `vervain job run` says why");
            ensure!(Instant::now() < until, "the job prints nothing");
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_found_in_what_a_gang_says() {
        let told = "9 switches in 1 s\na switch:  median 1.09 ms, most 2 ms\n  signals: median 453 µs, most 1 ms\n";
        assert_eq!(median_ms(told, "a switch:"), Some(1.09));
        assert!(median_ms(told, "signals:").is_some_and(|ms| (ms - 0.453).abs() < 1e-9));
        assert_eq!(median_ms(told, "go:"), None);
    }
}
