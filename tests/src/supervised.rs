//! Jobs under a supervisor (`vervain job run`), which are saved, killed and brought back: where they lie, CRIU, and what is said to them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Finished, Job, skip, unswayed, vervain};

/// More than any step takes, on a machine that is shared.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A folder of its own for Vervain and for what jobs write, and a CRIU.
pub struct Site {
    criu: PathBuf,
    root: tempfile::TempDir,
}

impl Site {
    /// None, with a printed reason, where this user or this machine cannot save processes.
    ///
    /// # Panics
    /// When no folder can be made.
    pub fn new() -> Option<Site> {
        Some(Site { criu: criu()?, ..Site::without_criu() })
    }

    /// For jobs that save themselves.
    ///
    /// # Panics
    /// When no folder can be made.
    pub fn without_criu() -> Site {
        let root = tempfile::tempdir().expect("a folder");
        for folder in ["run", "out"] {
            fs::create_dir(root.path().join(folder)).expect("a folder");
            fs::set_permissions(root.path().join(folder), fs::Permissions::from_mode(0o700)).expect("its mode");
        }
        Site { criu: PathBuf::new(), root }
    }

    /// The CRIU.
    pub fn criu(&self) -> &Path {
        &self.criu
    }

    /// A path that jobs see too.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("out").join(name)
    }

    /// The folder for a job's checkpoints, as an option has it.
    ///
    /// # Panics
    /// When it is not UTF-8.
    pub fn checkpoints(&self, name: &str) -> String {
        self.path(&format!("{name}-checkpoints")).into_os_string().into_string().expect("UTF-8")
    }

    /// The numbers of the checkpoints that are there, and the names of all that is not one.
    pub fn listed(&self, name: &str) -> (Vec<u64>, Vec<String>) {
        listed(Path::new(&self.checkpoints(name)))
    }

    /// The command, with Vervain's folder here.
    pub fn vervain<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = unswayed(vervain());
        command.args(words).env("XDG_RUNTIME_DIR", self.root.path().join("run"));
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        command
    }

    /// Starts a job in a network of its own, to which the program is added.
    pub fn run(&self, name: &str, options: &[&str]) -> Command {
        let mut command = self.vervain(&["job", "run", "--name", name, "--network", "private", "--criu"]);
        command.arg(&self.criu).args(options).arg("--");
        command
    }

    /// Runs to its end.
    pub fn say(&self, words: &[&str]) -> Finished {
        Job::start(&mut self.vervain(words)).finish(LIMIT)
    }

    /// A checkpoint of a job that goes on, in the folder that is its own.
    pub fn checkpoint(&self, name: &str) -> Finished {
        self.say(&["checkpoint", name, &self.checkpoints(name), "--leave-running"])
    }

    /// The job again, under a new supervisor.
    pub fn restart(&self, name: &str, options: &[&str]) -> Job {
        let mut command = self.vervain(&["restart", &self.checkpoints(name), "--criu"]);
        Job::start(command.arg(&self.criu).args(options))
    }

    /// What `job list` knows of a job.
    ///
    /// # Panics
    /// When it prints no JSON.
    pub fn status(&self, name: &str) -> Option<serde_json::Value> {
        let end = self.say(&["job", "list", "--json"]);
        let all: serde_json::Value =
            serde_json::from_str(&end.output).unwrap_or_else(|e| panic!("{e}: {}", end.describe()));
        all.get(name).cloned()
    }

    /// Kills the supervisor, with which all of the job has to go.
    ///
    /// # Errors
    /// It does not, or it had ended by itself.
    pub fn kill(&self, mut supervisor: Job) -> Result<(), String> {
        if !supervisor.running() {
            return Err(format!("the job ended too early: {}", supervisor.finish(LIMIT).describe()));
        }
        let inits = children(supervisor.pid());
        send(supervisor.pid(), libc::SIGKILL);
        supervisor.finish(LIMIT);
        let until = Instant::now() + Duration::from_secs(10);
        while inits.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            if Instant::now() > until {
                return Err("the job outlives its supervisor".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Whether processes can be frozen, which a job on several hosts needs to be saved; prints that the test is skipped where not.
pub fn can_freeze() -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mut words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mounted =
        words.find(|words| words.get(2) == Some(&"cgroup2")).and_then(|words| Some(PathBuf::from(words.get(1)?)));
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let tried = mounted.and_then(|root| tempfile::tempdir_in(root.join(own)).ok()).map(|group| {
        // Its files go with it, and are not removed one by one.
        let path = group.keep();
        let can = path.join("cgroup.freeze").exists();
        let _ = fs::remove_dir(path);
        can
    });
    let can = tried == Some(true);
    if !can {
        skip("there is no freezer of control groups (version 2)");
    }
    can
}

/// The numbers of the checkpoints in a folder, and the names of all that is not one.
pub fn listed(folder: &Path) -> (Vec<u64>, Vec<String>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let (mut numbers, mut others) = (Vec::new(), Vec::new());
    for name in names {
        match name.strip_prefix("checkpoint-").and_then(|number| number.parse().ok()) {
            Some(number) => numbers.push(number),
            None => others.push(name),
        }
    }
    numbers.sort_unstable();
    (numbers, others)
}

/// Sends a signal to one process.
pub fn send(pid: u32, signal: i32) {
    // SAFETY: it touches no memory; the process is a child, or one below it, that this test has started.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// The processes that a process has started, and that are there yet.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// A CRIU that is here already, and the rights to use it; None, with a printed reason, where there are none.
///
/// # Panics
/// When no program can be started.
pub fn criu() -> Option<PathBuf> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0);
    if !is_root {
        skip("a job that can be saved needs root");
        return None;
    }
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut script = Command::new(tree.join("scripts/criu.sh"));
    let end = script.arg("--offline").arg(tree.join("target/criu")).output().expect("scripts/criu.sh");
    if !end.status.success() {
        skip(String::from_utf8_lossy(&end.stderr).lines().last().unwrap_or("no CRIU").to_owned());
        return None;
    }
    let criu = PathBuf::from(String::from_utf8_lossy(&end.stdout).trim());
    // What it says on a kernel, or in a container, where it cannot work.
    let check = Command::new(&criu).arg("check").output().expect("criu");
    if !check.status.success() {
        let text = String::from_utf8_lossy(&check.stderr).into_owned();
        skip(format_args!("criu check: {}", text.lines().next().unwrap_or("fails")));
        return None;
    }
    Some(criu)
}
