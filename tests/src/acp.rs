//! Programs that use ACP: where libacp is, and the programs of `tests/acp` as ranks of a job.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Failures, Finished, Job, acp_program, have, unswayed, vervain};

/// The directory that libacp, its header and its wrapper are installed below: that of the command under test.
///
/// # Panics
/// When they are not there.
pub fn prefix() -> PathBuf {
    let command = vervain();
    let dir = command.parent().expect("the command lies somewhere");
    let found = [dir.to_path_buf(), dir.join("..")].into_iter().find(|dir| dir.join("lib/libacp.so.3").is_file());
    found.expect("libacp is not built: run make build-checked")
}

/// `vervain launch -n RANKS OPTIONS -- PROGRAM`, to which arguments may be added.
pub fn launch(ranks: u32, options: &[&str], program: &Path) -> Command {
    let mut command = unswayed(vervain());
    command.args(["launch", "-n", &ranks.to_string()]).args(options).arg("--").arg(program);
    command
}

/// Prints how long a run of a program of `tests/acp` took, and notes it where not all ranks said that all held.
pub fn judge(what: &str, ranks: u32, end: &Finished, failures: &mut Failures) {
    println!("{what}, {ranks} ranks: {:.2} s", end.took.as_secs_f64());
    let held = (0..ranks).all(|rank| end.output.lines().any(|line| line.ends_with(&format!("OK rank {rank}"))));
    if !end.success() || !held || end.output.contains("FAIL") {
        let failed: Vec<_> = end.output.lines().filter(|line| line.contains("FAIL")).take(20).collect();
        failures.add(&format!("{what}, {ranks} ranks"), format!("{}\n{}", failed.join("\n"), end.describe()));
    }
}

/// Kills the second of three ranks, each of which says `said` and its process when it begins, and returns the end of the
/// job, in which one sentence says so.
///
/// # Panics
/// When not all begin, or the job's end is another.
pub fn end_by_a_death(mut job: Job, said: &str) -> Finished {
    let until = Instant::now() + LIMIT;
    let pids = loop {
        let pids: Vec<i32> = job.output().lines().filter_map(|line| line.strip_prefix(said)?.parse().ok()).collect();
        if pids.len() == 3 {
            break pids;
        }
        assert!(Instant::now() < until && job.running(), "{}", job.output());
        std::thread::sleep(Duration::from_millis(5));
    };
    // SAFETY: a process that this test has started, and whose parent has not waited for it yet.
    unsafe { libc::kill(pids[1], libc::SIGKILL) };
    let end = job.finish(LIMIT);
    assert!(end.status.is_some() && !end.success(), "{}", end.describe());
    let sentences = end.output.lines().filter(|line| line.contains("was killed by SIGKILL")).count();
    assert_eq!(sentences, 1, "{}", end.describe());
    end
}

/// Far more than any job of ACP's tests takes: a hang is what it finds.
pub const LIMIT: Duration = Duration::from_secs(100);

/// A program of this package's that is each rank of a job.
pub struct Ranks(pub &'static str);

impl Ranks {
    /// The job, to which variables may be added: `what` are the program's arguments.
    pub fn launch(&self, ranks: u32, options: &[&str], what: &[&str]) -> Command {
        let mut command = launch(ranks, options, Path::new(self.0));
        command.args(what);
        command
    }

    /// Runs the job, which has to succeed.
    ///
    /// # Panics
    /// It does not.
    pub fn run(&self, ranks: u32, options: &[&str], what: &[&str]) -> Finished {
        let end = Job::start(&mut self.launch(ranks, options, what)).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        end
    }
}

/// What such a program does with its arguments: the first says what, the second how much of it, the third is a seed. Status 0, or 3
/// with the sentence of the error.
pub fn rank_main<E: Display>(
    name: &str,
    count: u64,
    run: impl FnOnce(&str, u64, u64) -> Result<(), E>,
) -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(or);
    let what = arguments.first().map(String::as_str).unwrap_or_default();
    match run(what, number(1, count), number(2, 1)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            std::process::ExitCode::from(3)
        }
    }
}

/// The C program of `tests/acp` with this name, built by `cc` if there is one, holds on each of these numbers of ranks.
///
/// # Panics
/// It does not.
pub fn holds(name: &str, options: &[&str], ranks: &[u32], arguments: &[&str]) {
    if !have(&["cc"]) {
        return;
    }
    let program = acp_program("cc", &[], name);
    let mut failures = Failures::default();
    for &ranks in ranks {
        let end = Job::start(launch(ranks, options, &program).args(arguments)).finish(LIMIT);
        judge(&format!("{name} {} {}", arguments.join(" "), options.join(" ")), ranks, &end, &mut failures);
    }
    failures.assert_none();
}
