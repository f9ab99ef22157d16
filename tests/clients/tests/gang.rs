//! Jobs that take turns on the CPUs: they get the right results, and all go on however the gang ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use vervain_tests::mpi::verbs_only;
use vervain_tests::supervised::{children, criu, send};
use vervain_tests::{Finished, Job, OPEN_MPI, alone, app_program, have, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(60);
/// Iterations of the kernel: more than what the CPUs do in 100 turns of 10 ms.
const LONGEST: u32 = 200;

/// What a test needs; a folder of its own for jobs and what they write.
struct Jobs {
    home: tempfile::TempDir,
    criu: PathBuf,
    wavefront: PathBuf,
}

impl Jobs {
    /// None, and the test is skipped, where there can be no jobs.
    fn new() -> Option<Jobs> {
        let criu = criu()?;
        if !OPEN_MPI.is_there() {
            return None;
        }
        let home = tempfile::tempdir().expect("a folder");
        // Else it is not taken for a place of Vervain's, and jobs of the same names are where all others are.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).expect("its mode");
        Some(Jobs { home, criu, wavefront: app_program(OPEN_MPI.compiler, "wavefront") })
    }

    fn vervain(&self, words: &[&str]) -> Command {
        let mut command = unswayed(vervain());
        command.env("XDG_RUNTIME_DIR", self.home.path()).args(words);
        command
    }

    /// While it is there, a job of this name does not end.
    fn stay(&self, name: &str) -> PathBuf {
        self.home.path().join(format!("{name}-stays"))
    }

    /// These jobs may end.
    fn let_end(&self, names: &[&str]) {
        names.iter().for_each(|name| fs::remove_file(self.stay(name)).expect("the file for which a job stays"));
    }

    /// A job of two ranks: `vervain job run`, in the foreground.
    fn start(&self, name: &str, options: &[&str], iterations: u32) -> Job {
        let mut command = self.vervain(&[]);
        Job::start(self.run(&mut command, name, options, iterations))
    }

    /// What is to be added to a command that runs `vervain`.
    fn run<'a>(&self, command: &'a mut Command, name: &str, options: &[&str], iterations: u32) -> &'a mut Command {
        command.args(["job", "run", "--name", name, "--network", "private", "--criu"]);
        command.arg(&self.criu).args(options).args(["--", OPEN_MPI.launcher, "-n", "2"]).args(OPEN_MPI.arguments);
        fs::write(self.stay(name), "").expect("the file for which a job stays");
        let stay = format!("stay={}", self.stay(name).display());
        command.arg(&self.wavefront).args(["A", &iterations.to_string(), "unchecked", "every=20", &stay]);
        // Bound ranks, and the threads of their devices with them, have to wait for the one processor if others compute there.
        verbs_only(command).env("OMPI_MCA_hwloc_base_binding_policy", "none")
    }

    /// Two of them, which have just been started: two jobs that do not take turns keep each other from beginning.
    fn two(&self, link: &[&str], iterations: [u32; 2]) -> [Job; 2] {
        let jobs = [("a", iterations[0]), ("b", iterations[1])].map(|(name, n)| self.start(name, link, n));
        self.wait_for(&["a", "b"]);
        jobs
    }

    /// Until the supervisors of these jobs answer.
    fn wait_for(&self, names: &[&str]) {
        let until = Instant::now() + LIMIT;
        let all_are_there = || {
            let listed = self.vervain(&["job", "list"]).output().expect("the list of jobs");
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            let rows: Vec<&str> = listed.lines().filter_map(|row| row.split_whitespace().next()).collect();
            names.iter().all(|name| rows.contains(name))
        };
        while !all_are_there() {
            assert!(Instant::now() < until, "the jobs do not start");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Until these jobs are in a gang, or in none.
    fn wait_for_gang(&self, names: &[&str], in_one: bool) {
        let until = Instant::now() + LIMIT;
        let are_so = || {
            let listed = self.vervain(&["job", "list", "--json"]).output().expect("the list of jobs");
            let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
            names.iter().all(|name| listed[name]["gang"] == in_one)
        };
        while !are_so() {
            assert!(Instant::now() < until, "not all jobs are {} a gang", if in_one { "in" } else { "out of" });
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn gang(&self, words: &[&str]) -> Job {
        let mut command = self.vervain(&["gang"]);
        Job::start(command.args(words))
    }

    /// The lines of the longest run, undisturbed; others begin with the same.
    fn expected(&self) -> &'static [String] {
        static LINES: OnceLock<Vec<String>> = OnceLock::new();
        LINES.get_or_init(|| {
            let alone = self.start("alone", &[], LONGEST);
            self.let_end(&["alone"]);
            let end = alone.finish(LIMIT);
            assert!(end.success(), "{}", end.describe());
            steps(&end)
        })
    }
}

/// Lines such as `20 8.4e-05`.
fn steps(end: &Finished) -> Vec<String> {
    let is_step = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    end.output.lines().filter(is_step).map(str::to_owned).collect()
}

/// Both, which may end now, end well, and say what they say alone.
fn judge(all: &Jobs, jobs: [Job; 2], iterations: [u32; 2], expected: &[String]) {
    for name in ["a", "b"] {
        // Some test may have let them end.
        let _ = fs::remove_file(all.stay(name));
    }
    for (job, iterations) in jobs.into_iter().zip(iterations) {
        let end = job.finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        assert_eq!(steps(&end), expected[..iterations as usize / 20], "{}", end.describe());
        // What mpirun says of signals is seen where there is no freezer.
        assert!(end.output.contains("wavefront A 2 ranks: "), "{}", end.describe());
    }
}

const PACKETS: &[&str] = &["--link", "roce", "--interface", "lo"];

fn takes_turns(link: &[&str]) {
    let _turn = alone();
    let Some(all) = Jobs::new() else { return };
    let expected = all.expected();
    let jobs = all.two(link, [LONGEST; 2]);
    let end = all.gang(&["a", "b", "--slice", "10ms", "--switches", "200"]).finish(LIMIT);
    println!("{}", end.output);
    assert!(end.success() && end.output.contains("200 switches in "), "{}", end.describe());
    judge(&all, jobs, [LONGEST; 2], expected);
    // No control group is left behind.
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        let names = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("vervain-job-")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn two_jobs_by_memory_take_200_turns_and_get_the_right_results() {
    takes_turns(&[]);
}

#[test]
fn two_jobs_in_packets_take_turns_and_get_the_right_results() {
    takes_turns(PACKETS);
}

/// The program of the supervisor's that stays in its job: it has no children, and the init has.
fn agent(supervisor: u32) -> Option<u32> {
    children(supervisor).into_iter().find(|pid| children(*pid).is_empty())
}

#[test]
fn jobs_go_on_when_the_gang_is_killed_and_when_one_of_them_ends() {
    let _turn = alone();
    let Some(all) = Jobs::new() else { return };
    let expected = all.expected();
    let jobs = all.two(&[], [140, 200]);
    let lines = || jobs.each_ref().map(|job| job.output().matches('\n').count());
    for moment in [300, 25, 47, 110] {
        let mut gang = all.gang(&["a", "b", "--slice", "20ms"]);
        thread::sleep(Duration::from_millis(moment));
        assert!(gang.running(), "{}", gang.output());
        // The program inside that is to have them go on may have been killed too.
        if moment == 300 {
            jobs.iter().filter_map(|job| agent(job.pid())).for_each(|pid| send(pid, libc::SIGKILL));
        }
        gang.signal_group(libc::SIGKILL);
        assert!(gang.finish(LIMIT).status.is_some());
        if moment == 300 {
            // By themselves: another gang would have them go on too.
            let (before, until) = (lines(), Instant::now() + LIMIT);
            while lines().into_iter().zip(before).any(|(now, before)| now == before) {
                assert!(Instant::now() < until, "one of the jobs stands still");
                thread::sleep(Duration::from_millis(5));
            }
        }
        // Another gang may have them at once, or nearly: their supervisors may be in the midst of a turn.
        thread::sleep(Duration::from_millis(200));
        all.wait_for_gang(&["a", "b"], false);
    }
    let mut gang = all.gang(&["a", "b", "--slice", "20ms"]);
    all.wait_for_gang(&["a", "b"], true);
    thread::sleep(Duration::from_millis(100));
    // Turns are taken with another one.
    let killed: Vec<u32> = jobs.iter().filter_map(|job| agent(job.pid())).collect();
    assert_eq!(killed.len(), 2);
    killed.into_iter().for_each(|pid| send(pid, libc::SIGKILL));
    all.let_end(&["a"]);
    assert!(gang.wait_output("job a has ended", LIMIT), "{}", gang.output());
    // The other is there still, alone, and may not end before this.
    assert!(gang.running() && !gang.output().contains("job b has ended"), "{}", gang.output());
    all.let_end(&["b"]);
    let end = gang.finish(LIMIT);
    assert!(end.success() && end.output.contains("job b has ended"), "{}", end.describe());
    judge(&all, jobs, [140, 200], expected);
}

#[test]
fn a_job_that_was_killed_and_is_resumed_takes_turns_again() {
    let _turn = alone();
    let Some(all) = Jobs::new() else { return };
    let expected = all.expected();
    let checkpoints = all.home.path().join("checkpoints").display().to_string();
    let mut a = all.start("a", &["--restart=100ms", "--dir", &checkpoints], LONGEST);
    let b = all.start("b", &[], LONGEST);
    all.wait_for(&["a", "b"]);
    let mut gang = all.gang(&["a", "b", "--slice", "20ms"]);
    assert!(a.wait_output("20 ", LIMIT), "no step: {}", a.output());
    let made = Job::start(&mut all.vervain(&["checkpoint", "a", &checkpoints])).finish(LIMIT);
    assert!(made.success(), "{}", made.describe());
    let init = children(a.pid()).into_iter().find(|pid| !children(*pid).is_empty()).expect("the job's init");
    send(init, libc::SIGKILL);
    for (word, may_end) in [
        ("job a is to be resumed", false),
        ("job a takes turns again", true),
        ("job a has ended", false),
        ("job b has ended", false),
    ] {
        assert!(gang.wait_output(word, LIMIT), "not {word:?}: {}", gang.output());
        if may_end {
            all.let_end(&["a", "b"]);
        }
    }
    let end = gang.finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    // Lines from after the checkpoint may have come twice.
    let [a, b] = [a, b].map(|job| job.finish(LIMIT));
    let mut once = steps(&a);
    once.sort_by_key(|line| line.split(' ').next().and_then(|number| number.parse::<u32>().ok()));
    once.dedup();
    assert!(a.success() && once == expected, "{}", a.describe());
    assert!(b.success() && steps(&b) == expected, "{}", b.describe());
}

/// The control groups are not seen by the supervisor and its job.
const NO_GROUPS: &str = r#"mount -t tmpfs none /sys/fs/cgroup && exec "$0" "$@""#;

#[test]
fn where_there_is_no_freezer_jobs_are_stopped_by_a_signal() {
    let _turn = alone();
    let Some(all) = Jobs::new() else { return };
    if !have(&["unshare", "mount"]) {
        return;
    }
    let expected = all.expected();
    let jobs = ["a", "b"].map(|name| {
        let vervain = all.vervain(&[]);
        let mut command = unswayed("unshare");
        command.env("XDG_RUNTIME_DIR", all.home.path()).args(["-m", "sh", "-c", NO_GROUPS]).arg(vervain.get_program());
        Job::start(all.run(&mut command, name, &[], 60))
    });
    all.wait_for(&["a", "b"]);
    let gang = all.gang(&["a", "b", "--slice", "20ms"]);
    let until = Instant::now() + LIMIT;
    // All processes of a job are stopped at once, and another time none is.
    let states = || jobs.each_ref().map(|job| job_states(job.pid()));
    let is_held = |states: &[char]| states.len() > 2 && states.iter().all(|state| *state == 'T');
    let mut seen = [false; 2];
    while seen != [true; 2] && Instant::now() < until {
        for (seen, states) in seen.iter_mut().zip(states()) {
            *seen |= is_held(&states);
        }
    }
    assert_eq!(seen, [true; 2]);
    gang.signal_group(libc::SIGKILL);
    assert!(gang.finish(LIMIT).status.is_some());
    all.let_end(&["a", "b"]);
    for (job, name) in jobs.into_iter().zip(["a", "b"]) {
        let end = job.finish(LIMIT);
        assert!(end.success() && steps(&end) == expected[..3], "{name}: {}", end.describe());
    }
}

/// How the processes of a job are that the init has started, and theirs.
fn job_states(supervisor: u32) -> Vec<char> {
    fn below(pid: u32) -> Vec<u32> {
        children(pid).into_iter().flat_map(|pid| [vec![pid], below(pid)].concat()).collect()
    }
    let inits = children(supervisor).into_iter().filter(|pid| !children(*pid).is_empty());
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    };
    inits.flat_map(below).filter_map(state).collect()
}

#[test]
fn a_job_in_packets_is_held_for_longer_than_its_retries_take() {
    let _turn = alone();
    let Some(all) = Jobs::new() else { return };
    let expected = all.expected();
    let mut idle = all.vervain(&["job", "run", "--name", "idle", "--criu"]);
    let idle = Job::start(idle.arg(&all.criu).args(["--", "sleep", "1000"]));
    all.wait_for(&["idle"]);
    let mut jobs = all.two(PACKETS, [140; 2]);
    // It is held in the midst of its packets.
    assert!(jobs[0].wait_output("20 ", LIMIT), "no step: {}", jobs[0].output());
    let held = Instant::now();
    let end = all.gang(&["idle", "a", "--slice", "5s", "--switches", "1"]).finish(LIMIT);
    assert!(end.success() && held.elapsed() >= Duration::from_secs(5), "{}", end.describe());
    assert!(end.output.contains("1 switches in") && !end.output.contains("has ended"), "{}", end.describe());
    judge(&all, jobs, [140; 2], expected);
    drop(idle);
}

#[test]
fn what_cannot_be_a_gang_is_told_in_a_sentence() {
    let _turn = alone();
    let Some(all) = Jobs::new() else { return };
    let refused = |words: &[&str], why: &str| {
        let end = all.gang(words).finish(LIMIT);
        let failed = end.status.is_some_and(|status| status.code() == Some(1));
        assert!(failed && end.output.contains(why) && end.output.lines().count() == 1, "{}", end.describe());
    };
    refused(&["a"], "a gang needs two jobs or more");
    refused(&["a", "b"], "no job a runs here");
    let expected = all.expected();
    let jobs = all.two(&[], [60; 2]);
    refused(&["a", "nobody"], "no job nobody runs here");
    refused(&["a", "a"], "job a is named twice");
    let gang = all.gang(&["a", "b", "--slice", "50ms"]);
    all.wait_for_gang(&["a", "b"], true);
    refused(&["b", "a"], "takes turns in another gang already");
    gang.signal_group(libc::SIGTERM);
    let end = gang.finish(LIMIT);
    assert!(end.success() && end.output.contains("had the CPUs for"), "{}", end.describe());
    judge(&all, jobs, [60; 2], expected);
}
