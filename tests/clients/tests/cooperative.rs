//! Jobs of `vervain job run --cooperative`, which save themselves: a program of PM is asked in the midst of its work, killed with its
//! supervisor, and goes on when it is started again, with the result of a run that nobody has disturbed. No CRIU, and where that can be
//! no root.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use vervain_tests::supervised::{LIMIT, Site, children, send};
use vervain_tests::{Failures, Finished, Job, OPEN_MPI, acp, alone, have, pm_example, pm_program, tool, unswayed, way};

/// Of the job.
const NODES: u32 = 4;
/// Iterations of the solver, by memory and in packets: more than it takes until it is killed for the last time.
const ITERATIONS: [(&str, u32); 2] = [("auto", 400), ("roce", 250)];

/// Milliseconds of a pause after each five iterations, so that a job is not at its end before it is asked, however fast the machine is.
const PAUSE: u32 = 30;

/// The options of the solver, and where it writes its result.
fn solver(iterations: u32, pause: u32, output: &Path) -> Vec<String> {
    let options = format!("-n 16 -i {iterations} -e 5 -p {pause} -o {}", output.display());
    options.split(' ').map(str::to_owned).collect()
}

/// The words before a command by which it has no rights, though the files are its own: those of root, by another number. None where this
/// user has none anyway, or such a namespace cannot be had.
fn without_rights() -> Option<[&'static str; 4]> {
    let words = ["unshare", "--user", "--map-user=1000", "--"];
    let is_root = rustix::process::geteuid().is_root();
    let can = || Command::new(words[0]).args(&words[1..]).arg("true").output().is_ok_and(|end| end.status.success());
    (is_root && tool("unshare").is_some() && can()).then_some(words)
}

/// Supervisors of jobs that save themselves.
struct Jobs {
    site: Site,
    by: Vec<&'static str>,
}

impl Jobs {
    fn new() -> Jobs {
        let by = without_rights();
        if by.is_none() && rustix::process::geteuid().is_root() {
            println!("as root, since no user namespace can be had");
        }
        Jobs { site: Site::without_criu(), by: by.map_or(Vec::new(), Vec::from) }
    }

    /// By a way to other nodes. With packets as who runs the test: the port that they come to may be root's meanwhile, of another test.
    fn over(way: &str) -> Jobs {
        let jobs = Jobs::new();
        if way == "roce" { Jobs { by: Vec::new(), ..jobs } } else { jobs }
    }

    /// The command, without rights.
    fn vervain(&self, words: &[&str]) -> Command {
        let own = self.site.vervain(words);
        let Some((first, rest)) = self.by.split_first() else { return own };
        let mut command = unswayed(Path::new(first));
        command.args(rest).arg(own.get_program()).args(own.get_args());
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn say(&self, words: &[&str]) -> Finished {
        Job::start(&mut self.vervain(words)).finish(LIMIT)
    }

    fn folder(&self, name: &str) -> String {
        self.site.checkpoints(name)
    }

    /// A job that runs what `program` would, with its variables.
    fn start(&self, name: &str, options: &[&str], program: &Command) -> Job {
        let folder = self.folder(name);
        let mut command = self.vervain(&["job", "run", "--cooperative", "--name", name, "--dir", &folder]);
        command.args(options).arg("--").arg(program.get_program()).args(program.get_args());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Job::start(&mut command)
    }

    /// A checkpoint of a job that goes on.
    fn checkpoint(&self, name: &str) -> Result<(), String> {
        let folder = self.folder(name);
        let end = self.say(&["checkpoint", name, &folder]);
        let is_made = end.success() && end.output.contains(&format!("{folder}/checkpoint-"));
        if is_made { Ok(()) } else { Err(end.describe()) }
    }
}

/// Kills a supervisor; all of its job goes with it.
fn kill(mut supervisor: Job) -> Result<(), String> {
    if !supervisor.running() {
        return Err(format!("the job ended too early: {}", supervisor.finish(LIMIT).describe()));
    }
    let mut all = vec![supervisor.pid()];
    let mut at = 0;
    while let Some(pid) = all.get(at) {
        all.extend(children(*pid));
        at += 1;
    }
    send(supervisor.pid(), libc::SIGKILL);
    supervisor.finish(LIMIT);
    let until = Instant::now() + LIMIT;
    while all.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
        if Instant::now() > until {
            return Err("the job outlives its supervisor".to_owned());
        }
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn prints(job: &mut Job, what: &str) -> Result<(), String> {
    if job.wait_output(what, LIMIT) { Ok(()) } else { Err(format!("no {what:?}: {}", job.output())) }
}

/// The bytes that the solver writes when nobody disturbs it.
fn undisturbed(site: &Site, iterations: u32, launch: &mut Command) -> Vec<u8> {
    let output = site.path("undisturbed");
    let end = Job::start(launch.args(solver(iterations, 0, &output))).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    fs::read(output).expect("the result")
}

fn check_result(output: &Path, expected: &[u8], end: &Finished) -> Result<(), String> {
    let is_same = fs::read(output).is_ok_and(|result| result == expected);
    if end.success() && is_same { Ok(()) } else { Err(format!("another result: {}", end.describe())) }
}

#[test]
fn a_solver_that_is_killed_goes_on_with_each_bit_as_it_was() {
    if !have(&["cc"]) {
        return;
    }
    // A port that packets come to cannot be root's and another user's at once.
    let _turn = alone();
    let program = pm_example("lu");
    let launch = || acp::launch(NODES, &[], &program);
    let mut failures = Failures::default();
    for (by, iterations) in ITERATIONS {
        let jobs = Jobs::over(by);
        let expected = undisturbed(&jobs.site, iterations, &mut launch());
        let tried = || -> Result<(), String> {
            let name = format!("lu-{by}");
            let (folder, output) = (jobs.folder(&name), jobs.site.path(&format!("{name}-result")));
            let mut job = jobs.start(&name, &[], launch().args(solver(iterations, PAUSE, &output)).envs(way(by)));
            prints(&mut job, "iteration 10:")?;
            jobs.checkpoint(&name)?;
            prints(&mut job, "iteration 20:")?;
            kill(job)?;
            // The variables of the first start are those of the second.
            let mut job = Job::start(&mut jobs.vervain(&["restart", &folder]));
            prints(&mut job, "goes on after iteration ")?;
            prints(&mut job, "iteration 30:")?;
            jobs.checkpoint(&name)?;
            // Nothing is done after this one that would be done again.
            let stop = jobs.say(&["checkpoint", &name, &folder, "--stop", "--keep", "2"]);
            let end = job.finish(LIMIT);
            if !stop.success() || end.code() != Some(137) {
                return Err(format!("{}\n{}", stop.describe(), end.describe()));
            }
            let (whole, others) = jobs.site.listed(&name);
            if whole != [2, 3] || !others.is_empty() {
                return Err(format!("{whole:?} and {others:?} are left"));
            }
            let end = Job::start(&mut jobs.vervain(&["restart", &folder])).finish(LIMIT);
            check_result(&output, &expected, &end)
        };
        if let Err(why) = tried() {
            failures.add(by, why);
        }
    }
    failures.assert_none();
}

#[test]
fn a_job_that_is_killed_is_resumed_unaided() {
    if !have(&["cc"]) {
        return;
    }
    // A port that packets come to cannot be root's and another user's at once.
    let _turn = alone();
    let jobs = Jobs::new();
    let program = pm_example("lu");
    let (_, iterations) = ITERATIONS[0];
    let expected = undisturbed(&jobs.site, iterations, &mut acp::launch(NODES, &[], &program));
    let output = jobs.site.path("unaided-result");
    let tried = || -> Result<(), String> {
        let options = ["--restart=200ms", "--every", "100ms", "--keep", "2"];
        let launch = &mut acp::launch(NODES, &[], &program);
        let mut job = jobs.start("unaided", &options, launch.args(solver(iterations, PAUSE, &output)));
        for (life, iteration) in [(1, "iteration 40:"), (2, "iteration 80:")] {
            prints(&mut job, iteration)?;
            let until = Instant::now() + LIMIT;
            while jobs.site.listed("unaided").0.is_empty() && Instant::now() < until {
                sleep(Duration::from_millis(5));
            }
            let [first] = children(job.pid())[..] else { return Err("not one first process".to_owned()) };
            // One of the nodes the first time, and the launcher the second.
            let nodes = children(first);
            send(if life == 1 { *nodes.last().ok_or("no nodes")? } else { first }, libc::SIGKILL);
            let until = Instant::now() + LIMIT;
            while job.output().matches("goes on after iteration ").count() < life {
                if Instant::now() > until || !job.running() {
                    return Err(job.output());
                }
                sleep(Duration::from_millis(5));
            }
        }
        let end = job.finish(LIMIT);
        let (whole, others) = jobs.site.listed("unaided");
        if whole.is_empty() || whole.len() > 2 || !others.is_empty() {
            return Err(format!("{whole:?} and {others:?} are left"));
        }
        check_result(&output, &expected, &end)
    };
    tried().unwrap_or_else(|why| panic!("{why}"));
}

/// Nodes that are up to five steps apart, with messages under way; one that cannot save the first time; a launcher with PMIx.
#[test]
fn nodes_at_different_steps_save_the_same_one() {
    if !have(&["cc"]) {
        return;
    }
    // A port that packets come to cannot be root's and another user's at once.
    let _turn = alone();
    let program = pm_program("cc", &[], "checkpoint");
    let mut mpirun = unswayed(Path::new(OPEN_MPI.launcher));
    mpirun.args(["-n", &NODES.to_string()]).args(OPEN_MPI.arguments).arg(&program);
    mpirun.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    let mut ways: Vec<_> = ["auto", "roce"].map(|by| (by.to_owned(), by, acp::launch(NODES, &[], &program))).into();
    if OPEN_MPI.is_there() {
        ways.push(("mpirun".to_owned(), "auto", mpirun));
    }
    let mut failures = Failures::default();
    for (name, by, mut launch) in ways {
        let jobs = Jobs::over(by);
        let mut tried = || -> Result<(), String> {
            let folder = jobs.folder(&name);
            let mut job = jobs.start(&name, &[], launch.args(["1500", "asked", "4000"]).envs(way(by)));
            prints(&mut job, "begins with step 0\n")?;
            let end = jobs.say(&["checkpoint", &name, &folder]);
            // Who has no directory says so, as EINVAL.
            told(&end, &["could not save itself, and goes on: Invalid argument"])?;
            for _ in 0..5 {
                jobs.checkpoint(&name)?;
            }
            // Each of the nodes at one step; of the last one not all may have said so.
            let output = job.output();
            let steps = Vec::from_iter(output.lines().filter_map(|line| Some(line.split_once("has saved step ")?.1)));
            let steps_of_all =
                steps.iter().filter(|step| steps.iter().filter(|other| other == step).count() == 4).count();
            kill(job)?;
            let end = Job::start(&mut jobs.vervain(&["restart", &folder])).finish(LIMIT);
            let begun = Vec::from_iter(end.output.lines().filter_map(|line| line.split_once("begins with step ")));
            let is_one =
                begun.len() == NODES as usize && begun.iter().all(|(_, step)| *step == begun[0].1 && *step != "0");
            println!("{name}: {:.1} s after the restart", end.took.as_secs_f64());
            let is_well = end.success() && end.output.matches("OK rank").count() == NODES as usize;
            if is_one && is_well && steps_of_all >= 4 * 4 { Ok(()) } else { Err(end.describe()) }
        };
        if let Err(why) = tried() {
            failures.add(&name, why);
        }
    }
    failures.assert_none();
}

/// It has ended with status 1 and a last sentence that has all these words.
fn told(end: &Finished, words: &[&str]) -> Result<(), String> {
    let said = end.output.lines().last().unwrap_or_default();
    let is_told = words.iter().all(|word| said.contains(word)) && end.code() == Some(1);
    if is_told { Ok(()) } else { Err(format!("not {words:?}: {}", end.describe())) }
}

#[test]
fn what_cannot_be_is_one_sentence_and_the_job_goes_on() {
    if !have(&["cc"]) {
        return;
    }
    // A port that packets come to cannot be root's and another user's at once.
    let _turn = alone();
    let jobs = Jobs::new();
    let mut failures = Failures::default();
    let mut tell = |what: &str, end: &Finished, words: &[&str]| {
        if let Err(why) = told(end, words) {
            failures.add(what, why);
        }
    };
    let folder = jobs.folder("deaf");
    let mut job = jobs.start("deaf", &[], Command::new("sleep").arg("60"));
    let until = Instant::now() + LIMIT;
    while !jobs.say(&["job", "list"]).output.contains("sleep 60") && Instant::now() < until {
        sleep(Duration::from_millis(10));
    }
    let end = jobs.say(&["checkpoint", "deaf", &folder, "--wait", "200ms"]);
    tell("one that never asks", &end, &["has not called pmCheckpointIfAsked within 200ms", "ETIMEDOUT", "remedy"]);
    tell("a gang", &jobs.say(&["gang", "deaf", "other"]), &["takes no turns"]);
    let left = jobs.site.listed("deaf");
    assert!(left.0.is_empty(), "{left:?}");
    assert!(job.running(), "{}", job.output());
    assert!(jobs.say(&["job", "kill", "deaf"]).success());
    let end = job.finish(LIMIT);
    assert_eq!(end.code(), Some(137), "{}", end.describe());
    // All that it had made in the folder is gone with it.
    assert_eq!(fs::read_dir(&folder).map_or(0, Iterator::count), 0);

    // Where CRIU may not be used, the other way is named.
    let end = jobs.say(&["job", "run", "--name", "none", "--criu", "/nowhere/criu", "--", "true"]);
    let said = end.output.lines().collect::<Vec<_>>();
    let is_told = said.len() == 1 && said[0].contains("remedy") && said[0].contains("--cooperative");
    assert!(is_told && end.code() == Some(125), "{}", end.describe());
    let end = jobs.say(&["job", "run", "--name", "none", "--cooperative", "--", "true"]);
    assert!(end.output.contains("--dir"), "{}", end.describe());
    // What ends by itself has its own status, and what it has left behind is gone.
    let end =
        jobs.start("ends", &[], Command::new("sh").args(["-c", "sleep 60 & echo left: $!; exit 3"])).finish(LIMIT);
    assert_eq!(end.code(), Some(3), "{}", end.describe());
    let left = end.output.trim().strip_prefix("left: ").expect("a number");
    assert!(!Path::new("/proc").join(left).exists(), "{}", end.describe());
    failures.assert_none();
}
