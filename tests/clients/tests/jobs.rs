//! Jobs under `vervain job run`: saved while they work, killed with their supervisor, brought back by another one, again and again; they end
//! as if nothing had been. And what is said where that cannot be.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use vervain_tests::supervised::{LIMIT, Site, children, listed, send};
use vervain_tests::{
    Failures, Finished, Job, MPICH, Mpi, OPEN_MPI, acp, acp_program, alone, app_program, have, pm_program, way,
};

/// Both ways to a peer of the same job.
const LINKS: [&str; 2] = ["auto", "roce"];

/// A job that is running, whoever supervises it.
struct Running<'a> {
    site: &'a Site,
    name: &'a str,
    supervisor: Job,
    /// It has answered once.
    is_known: bool,
}

impl<'a> Running<'a> {
    /// With its standard output in a file, if there is one.
    fn start(site: &'a Site, name: &'a str, by: &[&str], command: &Command, output: Option<&Path>) -> Running<'a> {
        let mut shell = Command::new("sh");
        match output {
            // CRIU notes no size of a file that is only appended to, so both ways are tried.
            Some(path) if name.ends_with("roce") => shell.args(["-c", r#"exec >>"$0"; exec "$@""#]).arg(path),
            Some(path) => shell.args(["-c", r#"exec >"$0"; exec "$@""#]).arg(path),
            None => shell.args(["-c", r#"exec "$@""#, "sh"]),
        };
        shell.args(by).arg(command.get_program()).args(command.get_args());
        for (variable, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(variable, value),
                None => shell.env_remove(variable),
            };
        }
        Running { site, name, supervisor: Job::start(&mut shell), is_known: false }
    }

    /// Until its supervisor answers that it has processes.
    fn runs(&mut self) -> Result<(), String> {
        let until = Instant::now() + LIMIT;
        while self.supervisor.running() && Instant::now() < until {
            let processes = self.site.status(self.name).and_then(|status| status["processes"].as_u64());
            if processes.is_some_and(|count| count > 0) {
                self.is_known = true;
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        Err(format!("{} does not run: {}", self.name, self.supervisor.output()))
    }

    /// Until a file is there that the job makes.
    fn makes(&mut self, file: &Path) -> Result<(), String> {
        let until = Instant::now() + LIMIT;
        while self.supervisor.running() && Instant::now() < until {
            if file.exists() {
                return Ok(());
            }
            sleep(Duration::from_millis(5));
        }
        Err(format!("{} does not make {}: {}", self.name, file.display(), self.supervisor.output()))
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        if !self.is_known {
            self.runs()?;
        }
        let end = self.site.checkpoint(self.name);
        let folder = self.site.checkpoints(self.name);
        if end.success() && end.output.contains(&format!("{folder}/checkpoint-")) {
            return Ok(());
        }
        let there = if self.supervisor.running() { "runs" } else { "has ended" };
        Err(format!("{}\nthe supervisor {there}: {}", end.describe(), self.supervisor.output()))
    }

    /// Kills all, by `vervain job kill` or, `at_once`, the supervisor; and has another one bring it back.
    fn again(mut self, at_once: bool) -> Result<Running<'a>, String> {
        if at_once {
            self.site.kill(self.supervisor)?;
        } else {
            let killed = self.site.say(&["job", "kill", self.name]);
            let end = self.supervisor.finish(LIMIT);
            if !killed.success() || end.code() != Some(137) {
                return Err(format!("{}\n{}", killed.describe(), end.describe()));
            }
        }
        self.supervisor = self.site.restart(self.name, &[]);
        self.runs()?;
        Ok(self)
    }

    /// The end, which has to be a good one.
    fn ends(self) -> Result<Finished, String> {
        let end = self.supervisor.finish(LIMIT);
        if end.success() { Ok(end) } else { Err(end.describe()) }
    }
}

/// A command of the shell's that waits until the server behind it in the background listens, or has ended: its client does not try twice. All of
/// them listen on TCP port 18515, and each job has a network where nobody else does.
const UNTIL_IT_LISTENS: &str =
    "until grep -qs ':4853 [0-9A-F]*:0000 0A ' /proc/net/tcp /proc/net/tcp6 || ! kill -0 $!; do sleep 0.05; done";

/// A job in which pairs of a program talk, one pair behind the other, until it is told to stop.
struct Pairs<'a> {
    running: Running<'a>,
    stop: PathBuf,
    log: PathBuf,
}

impl<'a> Pairs<'a> {
    fn start(site: &'a Site, name: &'a str, options: &[&str], end: &str) -> Pairs<'a> {
        Pairs::start_by(&[], site, name, options, end)
    }

    /// The supervisor is started by the words before.
    fn start_by(by: &[&str], site: &'a Site, name: &'a str, options: &[&str], end: &str) -> Pairs<'a> {
        let (stop, log) = (site.path(&format!("{name}-stop")), site.path(&format!("{name}-log")));
        let script = format!(
            "exec >{log} 2>&1; until [ -e {stop} ]; do {end} & {UNTIL_IT_LISTENS}; {end} 127.0.0.1; r=$?; \
             wait $! && [ $r = 0 ] || exit 1; done",
            log = log.display(),
            stop = stop.display()
        );
        let mut command = site.run(name, options);
        command.args(["sh", "-c", &script]);
        Pairs { running: Running::start(site, name, by, &command, None), stop, log }
    }

    fn again(self, at_once: bool) -> Result<Pairs<'a>, String> {
        Ok(Pairs { running: self.running.again(at_once)?, ..self })
    }

    /// The last pair ends well, and so does the job.
    fn ends(self) -> Result<(), String> {
        fs::write(&self.stop, "").map_err(|e| e.to_string())?;
        let log = || fs::read_to_string(&self.log).unwrap_or_default();
        self.running.ends().map(drop).map_err(|why| format!("{why}\n{}", log()))
    }
}

/// A program, how long it talks by memory and in packets, and how often it is brought back: one of them often, and the others for what they use
/// besides, such as events.
const PAIRS: [(&str, &str, [&str; 2], usize); 3] = [
    ("write-bw", "ib_write_bw -F -x 0", ["-D 2"; 2], 5),
    ("send-lat", "ib_send_lat -F -x 0 -e", ["-n 100000", "-n 10000"], 1),
    ("pingpong", "ibv_rc_pingpong -g 0", ["-n 100000", "-n 10000"], 1),
];

#[test]
fn pairs_end_as_if_nothing_had_been() {
    if !have(&["ibv_rc_pingpong", "ib_write_bw", "ib_send_lat"]) {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let mut failures = Failures::default();
    for (link, number) in LINKS.into_iter().zip(0..) {
        for (program, end, long, cycles) in PAIRS {
            let end = format!("{end} {}", long[number]);
            let name = format!("{program}-{link}");
            let options: &[&str] = if link == "roce" { &["--link", "roce", "--interface", "lo"] } else { &[] };
            let began = Instant::now();
            let tried = || -> Result<(), String> {
                let mut pairs = Pairs::start(&site, &name, options, &end);
                for cycle in 0..cycles {
                    // Both ends have to be there first.
                    sleep(Duration::from_millis(if cycle == 0 { 600 } else { 300 }));
                    pairs.running.checkpoint()?;
                    pairs = pairs.again(cycle % 2 == 1)?;
                }
                pairs.ends()
            };
            if let Err(why) = tried() {
                failures.add(&name, why);
            }
            println!("{name}: {cycles} cycles, {:.1} s", began.elapsed().as_secs_f64());
        }
    }
    failures.assert_none();
}

/// `tests/apps/wavefront.c` on two ranks, its standard output in a file.
struct Sweeps<'a> {
    running: Running<'a>,
    output: PathBuf,
    /// While it is there, the program does not end.
    stay: PathBuf,
    expected: Vec<String>,
}

/// What a kernel says of how far it is: a line that begins with the number of the iteration.
fn steps(text: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned).collect()
}

/// What a kernel says that nobody disturbs: it says that each time.
fn undisturbed(mpi: &Mpi, program: &Path, arguments: &[String]) -> Vec<String> {
    static KNOWN: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let run = || {
        let end = Job::start(mpi.launch("auto", 2, program).args(arguments)).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        steps(&end.output)
    };
    known.entry(format!("{} {}", mpi.launcher, arguments.join(" "))).or_insert_with(run).clone()
}

impl<'a> Sweeps<'a> {
    /// Prints a line after each `every` iterations.
    fn start(
        site: &'a Site,
        name: &'a str,
        by: (&Mpi, &str),
        iterations: u32,
        every: u32,
        options: &[&str],
    ) -> Sweeps<'a> {
        let (mpi, link) = by;
        let program = app_program(mpi.compiler, "wavefront");
        let arguments = ["W".to_owned(), iterations.to_string(), "unchecked".to_owned(), format!("every={every}")];
        let expected = undisturbed(mpi, &program, &arguments);
        assert_eq!(expected.len() as u32, iterations / every);
        let [output, stay] = ["output", "stays"].map(|what| site.path(&format!("{name}-{what}")));
        fs::write(&stay, "").expect("the file for which the program stays");
        let mut command = site.run(name, options);
        command.args([mpi.launcher, "-n", "2"]).args(mpi.arguments).arg(&program).args(&arguments);
        command.arg(format!("stay={}", stay.display()));
        vervain_tests::mpi::verbs_only(&mut command).envs(way(link));
        // Two ranks that are bound to the only two processors and look for packets leave other sessions none for seconds (Linux 6.18).
        command.env("OMPI_MCA_hwloc_base_binding_policy", "none");
        Sweeps { running: Running::start(site, name, &[], &command, Some(&output)), output, stay, expected }
    }

    fn lines(&self) -> Vec<String> {
        steps(&fs::read_to_string(&self.output).unwrap_or_default())
    }

    /// Until so many lines are there.
    fn reaches(&mut self, lines: usize) -> Result<(), String> {
        let until = Instant::now() + LIMIT;
        while self.lines().len() < lines {
            if Instant::now() > until || !self.running.supervisor.running() {
                return Err(format!("{:?}, and no line {lines}: {}", self.lines(), self.running.supervisor.output()));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends well, with each line once, as the other run has it.
    fn ends(self) -> Result<Finished, String> {
        fs::remove_file(self.stay).map_err(|e| e.to_string())?;
        let (output, expected) = (self.output, self.expected);
        let end = self.running.ends()?;
        let text = fs::read_to_string(&output).unwrap_or_default();
        if steps(&text) != expected || text.matches("wavefront W 2 ranks").count() != 1 {
            return Err(format!("{text}\nis not, but for the last line, {expected:#?}\n{}", end.describe()));
        }
        Ok(end)
    }
}

/// Enough for all checkpoints to be made in the midst of them.
const ITERATIONS: u32 = 600;

fn sweeps_again_and_again(mpi: &Mpi, links: &[&str], cycles: usize) {
    if !mpi.is_there() {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let mut failures = Failures::default();
    for link in links {
        let name = format!("{}-{link}", mpi.launcher);
        let began = Instant::now();
        let tried = || -> Result<(), String> {
            let mut sweeps = Sweeps::start(&site, &name, (mpi, link), ITERATIONS, 20, &[]);
            for cycle in 0..cycles {
                sweeps.reaches(3 + 4 * cycle)?;
                sweeps.running.checkpoint()?;
                // The file has more by then than a restart leaves of it.
                sweeps.reaches(5 + 4 * cycle)?;
                sweeps = Sweeps { running: sweeps.running.again(true)?, ..sweeps };
            }
            sweeps.ends().map(drop)
        };
        if let Err(why) = tried() {
            failures.add(&name, why);
        }
        println!("{name}: {cycles} cycles, {:.1} s", began.elapsed().as_secs_f64());
    }
    failures.assert_none();
}

#[test]
fn ranks_of_open_mpi_go_on_with_each_line_once() {
    sweeps_again_and_again(&OPEN_MPI, &LINKS, 5);
}

#[test]
fn ranks_of_mpich_go_on_with_each_line_once() {
    sweeps_again_and_again(&MPICH, &["auto"], 1);
}

/// As the paper has it, with fewer processes: 250 steps, saved at 50, all killed after 80, resumed unaided.
#[test]
fn a_job_that_is_killed_is_resumed_unaided() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let tried = || -> Result<Finished, String> {
        let folder = site.checkpoints("lu");
        let options = ["--restart=1s", "--dir", &folder];
        let mut sweeps = Sweeps::start(&site, "lu", (&OPEN_MPI, "auto"), 250, 10, &options);
        sweeps.reaches(5)?;
        sweeps.running.checkpoint()?;
        for at_once in [true, false] {
            sweeps.reaches(8)?;
            // The supervisor has a program of its own in the job too, which has no children.
            let inits = children(sweeps.running.supervisor.pid()).into_iter().filter(|pid| !children(*pid).is_empty());
            let [init] = inits.collect::<Vec<_>>()[..] else { return Err("no init".to_owned()) };
            let [mpirun] = children(init)[..] else { return Err("no mpirun".to_owned()) };
            send(if at_once { init } else { mpirun }, libc::SIGKILL);
            let told = format!("it is resumed from {folder}/checkpoint-000001 in 1s");
            let until = Instant::now() + LIMIT;
            while sweeps.running.supervisor.output().matches(&told).count() < if at_once { 1 } else { 2 } {
                if Instant::now() > until || !sweeps.running.supervisor.running() {
                    return Err(sweeps.running.supervisor.output());
                }
                sleep(Duration::from_millis(10));
            }
            sweeps.running.runs()?;
        }
        sweeps.ends()
    };
    let end = tried().unwrap_or_else(|why| panic!("{why}"));
    println!("{:.1} s\n{}", end.took.as_secs_f64(), end.output);
}

fn seed() -> u64 {
    let given = std::env::var("VERVAIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("VERVAIN_SEED={seed}");
    seed
}

/// How often who asks is killed in the midst of a checkpoint.
const ASKERS: usize = 50;
/// How often the supervisor is.
const SUPERVISORS: usize = 10;

#[test]
fn a_checkpoint_that_is_killed_is_none_and_the_job_goes_on() {
    if !have(&["ibv_rc_pingpong"]) {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let mut random = fastrand::Rng::with_seed(seed());
    let mut tried = || -> Result<(), String> {
        let mut pairs = Pairs::start(&site, "killed", &[], "ibv_rc_pingpong -g 0 -n 30000");
        let began = Instant::now();
        pairs.running.checkpoint()?;
        let most = began.elapsed().as_millis() as u64 * 5 / 4;
        let folder = site.checkpoints("killed");
        let asks = |random: &mut fastrand::Rng| {
            let asker = Job::start(&mut site.vervain(&["checkpoint", "killed", &folder, "--keep", "3"]));
            sleep(Duration::from_millis(random.u64(..most)));
            asker
        };
        for _ in 0..ASKERS {
            let asker = asks(&mut random);
            send(asker.pid(), libc::SIGKILL);
            drop(asker);
        }
        pairs.running.runs()?;
        let mut newest = 0;
        for round in 0..SUPERVISORS {
            let asker = asks(&mut random);
            site.kill(pairs.running.supervisor)?;
            drop(asker);
            let (whole, others) = site.listed("killed");
            if whole.last() < Some(&newest) || others.iter().any(|name| !name.starts_with(".new-")) {
                return Err(format!("round {round}: {whole:?}, {others:?} after {newest}"));
            }
            newest = *whole.last().unwrap_or(&0);
            pairs.running.supervisor = site.restart("killed", &[]);
            pairs.running.runs()?;
            let said = pairs.running.supervisor.output();
            if said.contains("passed over") {
                return Err(format!("round {round}: {said}"));
            }
        }
        pairs.running.checkpoint()?;
        let (whole, others) = site.listed("killed");
        if !others.is_empty() || whole.last() <= Some(&newest) {
            return Err(format!("{whole:?} and {others:?} are left"));
        }
        println!("{ASKERS} askers and {SUPERVISORS} supervisors killed; checkpoint {newest} was the last before");
        pairs.ends()
    };
    tried().unwrap_or_else(|why| panic!("{why}"));
}

/// A disk of 300 KiB is mounted where the supervisor sees it, and goes with it.
const SMALL_DISK: &str = r#"mount -t tmpfs -o size=300k,mode=0700 none "$0" && exec "$@""#;

#[test]
fn on_a_full_disk_there_is_no_checkpoint_and_the_job_goes_on() {
    if !have(&["ibv_rc_pingpong", "unshare", "mount"]) {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let tried = || -> Result<(), String> {
        let small = site.path("small");
        fs::create_dir(&small).map_err(|e| e.to_string())?;
        let small = small.display().to_string();
        let by = ["unshare", "-m", "sh", "-c", SMALL_DISK, &small];
        let mut pairs = Pairs::start_by(&by, &site, "full", &[], "ibv_rc_pingpong -g 0 -n 30000");
        pairs.running.runs()?;
        let end = site.say(&["checkpoint", "full", &small]);
        told(&end, 1, &["disk is full"])?;
        let seen = PathBuf::from(format!("/proc/{}/root{small}", pairs.running.supervisor.pid()));
        let left = listed(&seen);
        if left != (Vec::new(), Vec::new()) {
            return Err(format!("{left:?} is left"));
        }
        pairs.running.checkpoint()?;
        pairs.ends()
    };
    tried().unwrap_or_else(|why| panic!("{why}"));
}

/// Makes a TCP connection to itself, and accepts it when it is told to: arguments are the files that say so, that it is made, that it is
/// accepted, and that the program is to end.
const LATE: &str = "
import os, socket, sys, time
accept, made, accepted, stop = sys.argv[1:]
def until(path):
    while not os.path.exists(path):
        time.sleep(0.01)
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
open(made, 'w').close()
until(accept)
server, _ = listener.accept()
open(accepted, 'w').close()
until(stop)
client.sendall(b'x')
assert server.recv(1) == b'x'
";

#[test]
fn a_connection_that_is_not_accepted_is_waited_for_and_told() {
    if !have(&["python3"]) {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let tried = || -> Result<(), String> {
        let files = ["accept", "made", "accepted", "stop"].map(|name| site.path(name));
        let [accept, made, accepted, stop] = &files;
        let mut command = site.run("late", &[]);
        command.args(["python3", "-c", LATE]).args(&files);
        let mut running = Running::start(&site, "late", &[], &command, None);
        running.runs()?;
        running.makes(made)?;
        let folder = site.checkpoints("late");
        told(&site.say(&["checkpoint", "late", &folder]), 1, &["has not accepted a TCP connection yet"])?;
        fs::write(accept, "").map_err(|e| e.to_string())?;
        running.makes(accepted)?;
        running.checkpoint()?;
        let running = running.again(true)?;
        fs::write(stop, "").map_err(|e| e.to_string())?;
        running.ends().map(drop)
    };
    tried().unwrap_or_else(|why| panic!("{why}"));
}

/// It has ended with this status and one sentence, which has all these words.
fn told(end: &Finished, status: i32, words: &[&str]) -> Result<(), String> {
    // What is being done is said before what came of it.
    let sentences: Vec<&str> = end.output.lines().filter(|line| !line.contains(" is being saved")).collect();
    let is_told = sentences.len() == 1 && words.iter().all(|word| sentences[0].contains(word));
    let is_status = end.code() == Some(status);
    if is_told && is_status { Ok(()) } else { Err(format!("not {words:?} and status {status}: {}", end.describe())) }
}

/// The status of `vervain job run` and of `vervain restart` where they start nothing, and where an option is wrong.
const FAILED: i32 = 125;
const WRONG: i32 = 2;

#[test]
fn what_cannot_be_is_one_sentence_and_the_job_goes_on() {
    if !have(&["ibv_rc_pingpong"]) {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let mut failures = Failures::default();
    let mut tell = |what: &str, end: &Finished, status: i32, words: &[&str]| {
        if let Err(why) = told(end, status, words) {
            failures.add(what, why);
        }
    };
    let run = |options: &[&str]| {
        let mut command = site.vervain(&["job", "run", "--name", "none"]);
        Job::start(command.args(options).args(["--", "true"])).finish(LIMIT)
    };
    let old = site.path("old-criu");
    fs::write(&old, "#!/bin/sh\necho Version: 3.17.1\n").expect("a script");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).expect("its mode");
    let old = old.display().to_string();
    tell("no CRIU", &run(&["--criu", "/nowhere/criu"]), FAILED, &["/nowhere/criu", "remedy"]);
    tell("an old CRIU", &run(&["--criu", &old]), FAILED, &["is CRIU 3.17, and 4.2 is needed", "remedy"]);
    tell("--every without --dir", &run(&["--every", "1s"]), WRONG, &["--every needs --dir"]);
    tell("--restart without --dir", &run(&["--restart"]), WRONG, &["--restart needs --dir"]);
    tell("no job", &site.checkpoint("nobody"), 1, &["no job nobody runs here", "vervain job list"]);
    tell("no job to kill", &site.say(&["job", "kill", "nobody"]), 1, &["no job nobody runs here"]);
    tell("no folder", &site.restart("nobody", &[]).finish(LIMIT), FAILED, &["no folder with checkpoints"]);

    let mut pairs = Pairs::start(&site, "bad", &[], "ibv_rc_pingpong -g 0 -n 30000");
    pairs.running.checkpoint().expect("a checkpoint");
    let folder = site.checkpoints("bad");
    tell(
        "a job of that name",
        &site.restart("bad", &[]).finish(LIMIT),
        FAILED,
        &["a job bad runs already", "another name"],
    );
    let open = site.path("open");
    fs::create_dir(&open).expect("a folder");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("its mode");
    let end = site.say(&["checkpoint", "bad", &open.display().to_string()]);
    tell("a folder of everybody's", &end, 1, &["others may write to", "chmod go-w"]);
    let file = site.path("file");
    fs::write(&file, "").expect("a file");
    let end = site.say(&["checkpoint", "bad", &file.display().to_string()]);
    tell("no folder", &end, 1, &[&file.display().to_string()]);
    if let Err(why) = pairs.running.checkpoint().and_then(|()| pairs.ends()) {
        failures.add("the job goes on", why);
    }

    let mut tell = |what: &str, end: &Finished, status: i32, words: &[&str]| {
        if let Err(why) = told(end, status, words) {
            failures.add(what, why);
        }
    };
    let restart = |dir: &Path| {
        let mut command = site.vervain(&["restart"]);
        let criu = ["--criu".as_ref(), site.criu().as_os_str()];
        Job::start(command.arg(dir).args(criu)).finish(LIMIT)
    };
    let [first, second] = [1, 2].map(|number| Path::new(&folder).join(format!("checkpoint-{number:06}")));
    // Another build of the library, by what the checkpoint says of it.
    let manifest = first.join("manifest.json");
    let text = fs::read_to_string(&manifest).expect("the manifest");
    let mut changed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for digest in changed["vervain"]["libraries"].as_object_mut().expect("libraries").values_mut() {
        *digest = "0".into();
    }
    fs::write(&manifest, changed.to_string()).expect("the manifest");
    tell("another build", &restart(&first), FAILED, &["another build of Vervain", "remedy"]);
    fs::write(&manifest, text).expect("the manifest");
    // A byte of an image.
    let pages = fs::read_dir(first.join("images")).expect("images").flatten().map(|entry| entry.path());
    let pages = pages.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pages-")));
    let pages = pages.max_by_key(|path| fs::metadata(path).map_or(0, |meta| meta.len())).expect("pages");
    let file = fs::File::options().read(true).write(true).open(&pages).expect("pages");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 4096).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], 4096).expect("a byte");
    tell("a byte that is another", &restart(&first), FAILED, &["is not as it was written"]);
    fs::set_permissions(&second, fs::Permissions::from_mode(0o777)).expect("its mode");
    tell("a checkpoint that others may write to", &restart(&second), FAILED, &["others may write to", "chmod go-w"]);
    failures.assert_none();
}

#[test]
fn ranks_of_acp_and_pm_go_on() {
    if !have(&["cc"]) {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let mut failures = Failures::default();
    let programs =
        [("sums", acp_program("cc", &[], "sums"), "30000"), ("exchange", pm_program("cc", &[], "exchange"), "150000")];
    for (name, program, count) in programs {
        let (ranks, output) = (2, site.path(&format!("{name}-output")));
        let tried = || -> Result<Finished, String> {
            let launch = acp::launch(ranks, &[], &program);
            let stay = site.path(&format!("{name}-stays"));
            fs::write(&stay, "").map_err(|e| e.to_string())?;
            let mut command = site.run(name, &[]);
            command.arg(launch.get_program()).args(launch.get_args()).arg(count);
            command.arg(format!("stay={}", stay.display()));
            let mut running = Running::start(&site, name, &[], &command, Some(&output));
            running.runs()?;
            sleep(Duration::from_millis(300));
            running.checkpoint()?;
            let running = running.again(true)?;
            fs::remove_file(&stay).map_err(|e| e.to_string())?;
            running.ends()
        };
        match tried() {
            Ok(end) => {
                let written = fs::read_to_string(&output).unwrap_or_default();
                let end = Finished { output: written + &end.output, ..end };
                acp::judge(name, ranks, &end, &mut failures);
            }
            Err(why) => failures.add(name, why),
        }
    }
    failures.assert_none();
}

#[test]
fn as_many_checkpoints_are_kept_as_are_wanted() {
    if !have(&["ibv_rc_pingpong"]) {
        return;
    }
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let folder = site.checkpoints("kept");
    let options = ["--every", "1s", "--keep", "2", "--dir", &folder];
    let mut pairs = Pairs::start(&site, "kept", &options, "ibv_rc_pingpong -g 0 -n 30000");
    let until = Instant::now() + LIMIT;
    while site.listed("kept").0.last() < Some(&4) && Instant::now() < until && pairs.running.supervisor.running() {
        sleep(Duration::from_millis(50));
    }
    pairs.ends().unwrap_or_else(|why| panic!("{why}"));
    let (whole, others) = site.listed("kept");
    assert!(
        whole.len() == 2 && whole[1] == whole[0] + 1 && whole[1] >= 4 && others.is_empty(),
        "{whole:?}, {others:?}"
    );
}
