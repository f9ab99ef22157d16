//! Jobs that save themselves: no CRIU, no root, no namespaces. The program calls `pmCheckpointIfAsked` of libpm, and
//! its supervisor asks by the word of `vervain-request`.
//!
//! The program saves into a folder that it knows by PM_CHECKPOINT. When all its nodes have, they wait for a moment, in
//! which that folder becomes a checkpoint and an empty one takes its place. So nothing is copied, and what stands in a
//! checkpoint is what was saved since the one before. At a restart the folder has a copy of what the checkpoint has.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::getpid;
use rustix::fs::{FlockOperation, flock};
use vervain_request::{Callers, Progress, Requests, VARIABLE};

use crate::control::{Asker, Made, Reply, Request, Status};
use crate::desk::{Desk, Group};
use crate::lives::{Lives, Next};
use crate::manifest::{FORMAT, Manifest, Program, Saved, Vervain};
use crate::place::{Name, Place, Places};
use crate::scratch;
use crate::space::{End, SELF};
use crate::store::{Begun, FILES, Store};
use crate::streams::Streams;
use crate::supervisor::{Setting, kernel, now, shown};
use crate::tree::Tree;

/// The variable by which a program knows where it saves.
const DIRECTORY: &str = "PM_CHECKPOINT";
/// The file of requests in the supervisor's folder.
const REQUEST: &str = "request";
/// How often it is looked how far a checkpoint is that was asked for.
const LOOK: Duration = Duration::from_millis(2);
/// Time for which a program may take to come to a checkpoint that is due by the clock only.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A job that is to be started.
pub struct Start {
    /// Its name.
    pub name: Name,
    /// How it is started again.
    pub program: Program,
    /// The program's file.
    pub file: PathBuf,
    /// Additions to its environment.
    pub environment: Command,
    /// The checkpoint from which it goes on.
    pub from: Option<PathBuf>,
}

/// Starts a job, or has it go on from a checkpoint, and stays with it. Returns its exit status.
///
/// # Errors
/// It cannot be started.
pub fn run(setting: Setting, start: Start) -> Result<u8> {
    let dir = setting.upkeep.dir.clone().context("no folder for checkpoints")?;
    if let Some(from) = &start.from {
        program(from, &Manifest::read(from)?)?;
    }
    let place = Places::new(&setting.private).take(&start.name)?;
    let desk = Desk::new(&place)?;
    let mut supervisor = Supervisor {
        folder: Folder::take(&Store::make(&dir)?, &start.name)?,
        streams: Streams::of_this_process(&setting.private),
        command: shown(&start.program.words),
        since: now(),
        setting,
        place,
        desk,
        last_checkpoint: None,
        waiting: VecDeque::new(),
        current: None,
        life: None,
        start,
    };
    supervisor.begin(supervisor.start.from.clone().as_deref())?;
    supervisor.stay()
}

/// How the program of a checkpoint is started.
///
/// # Errors
/// CRIU has made it.
pub fn program<'a>(path: &Path, manifest: &'a Manifest) -> Result<&'a Program> {
    match &manifest.saved {
        Saved::Program(program) => Ok(program),
        Saved::Images(_) => {
            bail!("{} is the checkpoint of a job that was run without --cooperative", path.display())
        }
    }
}

/// The folder that the program saves to. It lies beside the checkpoints, so that a rename makes it one.
struct Folder {
    /// Made anew for each checkpoint.
    data: PathBuf,
    /// The one that has it, and is locked as long as this is there.
    above: PathBuf,
    _lock: File,
}

impl Folder {
    fn take(store: &Store, name: &Name) -> Result<Folder> {
        let above = store.path().join(format!(".job-{name}"));
        let making = || format!("cannot make {}", above.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&above).with_context(making)?;
        let lock = File::open(&above).with_context(making)?;
        ensure!(
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
            "another job {name} has its checkpoints in {}; give this one another name or folder",
            store.path().display()
        );
        Ok(Folder { data: above.join("data"), above, _lock: lock })
    }

    /// Empty, or as a checkpoint has it.
    fn fill(&self, from: Option<&Path>) -> Result<()> {
        let filling = || format!("cannot fill {}", self.data.display());
        remove(&self.data).with_context(filling)?;
        DirBuilder::new().mode(0o700).create(&self.data).with_context(filling)?;
        match from {
            Some(path) => scratch::copy(&path.join(FILES), &self.data).with_context(filling),
            None => Ok(()),
        }
    }

    /// Moves the contents into a checkpoint, and makes an empty folder in their place.
    fn put_away(&self, begun: &Begun) -> Result<()> {
        let files = begun.path().join(FILES);
        let moving = || format!("cannot move {} to {}", self.data.display(), files.display());
        match fs::rename(&self.data, &files) {
            Err(e) if e.kind() == ErrorKind::CrossesDevices => {
                scratch::copy(&self.data, &files).with_context(moving)?;
                remove(&self.data).with_context(moving)?;
            }
            moved => moved.with_context(moving)?,
        }
        let made = DirBuilder::new().mode(0o700).create(&self.data);
        made.with_context(|| format!("cannot make {}", self.data.display()))?;
        // No other user can enter the folder, so nobody loses a right by this; a restart would refuse files that others
        // may write to.
        own(&files).with_context(|| format!("cannot keep {}", files.display()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.above);
    }
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Takes the rights of others to write from a folder and what is in it.
fn own(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            own(&entry.path())?;
        }
        if kind.is_dir() || kind.is_file() {
            let mode = entry.metadata()?.permissions().mode();
            if mode & 0o022 != 0 {
                fs::set_permissions(entry.path(), Permissions::from_mode(mode & 0o7755))?;
            }
        }
    }
    Ok(())
}

struct Supervisor {
    setting: Setting,
    start: Start,
    command: String,
    since: u64,
    place: Place,
    folder: Folder,
    streams: Streams,
    desk: Desk,
    last_checkpoint: Option<(PathBuf, u64)>,
    /// Checkpoints that were asked for while there was another one.
    waiting: VecDeque<Wanted>,
    /// The one that the program was asked for.
    current: Option<Current>,
    life: Option<Life>,
}

/// A job from its start, or its restart, to its end.
struct Life {
    tree: Tree,
    requests: Requests,
}

/// A checkpoint that somebody wants, or the clock.
struct Wanted {
    dir: PathBuf,
    stop: bool,
    keep: Option<usize>,
    within: Duration,
    asker: Option<Asker>,
}

struct Current {
    wanted: Wanted,
    store: Store,
    asked: Instant,
    begun: Option<Instant>,
}

impl Supervisor {
    fn note(&self, text: &str) {
        (self.setting.note)(text);
    }

    fn answer_to(&self, asker: Option<Asker>, answer: Result<Made>) {
        match (asker, answer) {
            (Some(mut asker), Ok(made)) => asker.tell(&Reply::Made(made)),
            (Some(mut asker), Err(e)) => asker.tell(&Reply::Failed(format!("{e:#}"))),
            (None, Ok(_)) => {}
            (None, Err(e)) => self.note(&format!("no checkpoint was made: {e:#}")),
        }
    }

    /// Starts the program, as it begins or as it goes on.
    fn begin(&mut self, from: Option<&Path>) -> Result<()> {
        self.folder.fill(from)?;
        let request = self.place.path().join(REQUEST);
        let requests = Requests::create(&request).with_context(|| format!("cannot make {}", request.display()))?;
        let ends = self.streams.connect(Vec::new())?;
        let mut command = Command::new(SELF);
        let [stdin, stdout, stderr] = ends.stdio()?;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        for (name, value) in self.start.environment.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env(DIRECTORY, &self.folder.data).env(VARIABLE, &request);
        command.arg0("vervain").args(["inside", "alone", &getpid().to_string(), "--"]).arg(&self.start.file);
        command.args(self.start.program.words.iter().map(|word| std::ffi::OsStr::from_bytes(&word.0)));
        self.life = Some(Life { tree: Tree::start(&mut command)?, requests });
        Ok(())
    }

    /// Until the job has ended and is not to be resumed.
    fn stay(&mut self) -> Result<u8> {
        let mut lives = Lives::default();
        loop {
            let end = self.one_life()?;
            let (wait, path) = match lives.next(&self.start.name, end, &self.setting, self.desk.asked.end)? {
                Next::Over(status) => {
                    self.streams.finish();
                    return Ok(status);
                }
                Next::Resume(wait, path, manifest) => {
                    program(&path, &manifest)?;
                    (wait, path)
                }
            };
            let until = Instant::now() + wait;
            while Instant::now() < until && !self.desk.asked.end {
                self.desk.wait(None, &[], Some(until))?;
                self.answer()?;
            }
            if self.desk.asked.end {
                return Ok(128 + Signal::SIGTERM as u8);
            }
            self.begin(Some(&path))?;
        }
    }

    /// Until the job has ended.
    fn one_life(&mut self) -> Result<End> {
        let every = self.setting.upkeep.every;
        let mut next = every.map(|every| Instant::now() + every);
        loop {
            if let Some(life) = self.life.take_if(|life| life.tree.has_ended()) {
                let end = life.tree.end();
                let gone = || format!("job {} has ended before it had saved itself", self.start.name);
                let left = self.current.take().map(|current| current.wanted).into_iter().chain(self.waiting.drain(..));
                for wanted in Vec::from_iter(left) {
                    // The clock is asked for no answer.
                    if let Some(asker) = wanted.asker {
                        self.answer_to(Some(asker), Err(anyhow::anyhow!(gone())));
                    }
                }
                return Ok(end);
            }
            let looks = self.current.as_ref().map(|_| Instant::now() + LOOK);
            let until = next.into_iter().chain(looks).min();
            let Some(life) = &self.life else { bail!("the job is lost") };
            let fds: [BorrowedFd<'_>; 1] = [life.tree.line()];
            self.desk.wait(Some(&life.tree), &fds, until)?;
            self.answer()?;
            if let (Some(every), Some(at)) = (every, next)
                && Instant::now() >= at
            {
                let dir = self.setting.upkeep.dir.clone().context("no folder for checkpoints")?;
                let keep = self.setting.upkeep.keep;
                let current = self.current.as_ref().map(|current| &current.wanted);
                // A program that takes longer than that is not asked twice.
                if current.into_iter().chain(&self.waiting).all(|wanted| wanted.asker.is_some()) {
                    self.waiting.push_back(Wanted { dir, stop: false, keep, within: PATIENCE, asker: None });
                }
                next = Some(Instant::now() + every);
            }
            self.look();
        }
    }

    /// Sees to what was asked.
    fn answer(&mut self) -> Result<()> {
        while let Some((request, mut asker)) = self.desk.next()? {
            match request {
                Request::Status => asker.tell(&Reply::Status(self.status())),
                Request::Kill => {
                    self.desk.asked.end = true;
                    if let Some(life) = &self.life {
                        life.tree.kill();
                    }
                    asker.tell(&Reply::Killed);
                }
                Request::Checkpoint { dir, stop, keep, within } if self.life.is_some() => {
                    self.waiting.push_back(Wanted { dir, stop, keep, within, asker: Some(asker) });
                }
                Request::Checkpoint { .. } => asker.tell(&Reply::Failed("the job does not run just now".to_owned())),
                // It has no folder of its own in which somebody could ask.
                Request::Start { .. } => {
                    asker.tell(&Reply::Failed("a job with --cooperative is on one host".to_owned()))
                }
                Request::Gang => asker.tell(&Reply::Failed(format!(
                    "job {} takes no turns: it is run with --cooperative, and no process of it can be held",
                    self.start.name
                ))),
            }
        }
        Ok(())
    }

    fn status(&self) -> Status {
        Status {
            pid: std::process::id(),
            command: self.command.clone(),
            since: self.since,
            processes: self.life.as_ref().map_or(0, |life| life.tree.processes().len()),
            memory: self.life.as_ref().map_or(0, |life| life.tree.memory()),
            gang: false,
            checkpoint: self.last_checkpoint.clone(),
        }
    }

    /// Carries on with the checkpoint that was asked for, or asks for the next one.
    fn look(&mut self) {
        let Some(life) = &self.life else { return };
        let progress = life.requests.progress();
        let Some(mut current) = self.current.take() else {
            // One that nobody wants is nobody's to wait for.
            if matches!(progress, Progress::Saved | Progress::Failed(_)) {
                life.requests.go_on();
            }
            if let Some(wanted) = self.waiting.pop_front() {
                self.ask(wanted);
            }
            return;
        };
        let name = &self.start.name;
        match progress {
            Progress::Asked if current.asked.elapsed() >= current.wanted.within && life.requests.take_back() => {
                let why = too_late(name, current.wanted.within, life.requests.callers());
                self.answer_to(current.wanted.asker, Err(anyhow::anyhow!(why)));
                return;
            }
            Progress::Begun if current.begun.is_none() => {
                current.begun = Some(Instant::now());
                if let Some(asker) = &mut current.wanted.asker {
                    asker.tell(&Reply::Doing(format!("job {name} is saving itself")));
                }
            }
            Progress::Saved => return self.put_away(current),
            Progress::Failed(errno) => {
                life.requests.go_on();
                let why = match errno {
                    0 => "it has said why".to_owned(),
                    errno => io::Error::from_raw_os_error(errno).to_string(),
                };
                let why = format!("job {name} could not save itself, and goes on: {why}");
                self.answer_to(current.wanted.asker, Err(anyhow::anyhow!(why)));
                return;
            }
            // A state in which nothing can have left it.
            Progress::Idle => {
                let why = format!("job {name} has forgotten what it was asked");
                self.answer_to(current.wanted.asker, Err(anyhow::anyhow!(why)));
                return;
            }
            Progress::Asked | Progress::Begun => {}
        }
        self.current = Some(current);
    }

    /// Asks the program for a checkpoint, if there is room for it.
    fn ask(&mut self, mut wanted: Wanted) {
        let Some(life) = &self.life else { return };
        let store = Store::make(&wanted.dir);
        match store {
            Ok(store) if life.requests.ask() => {
                if let Some(asker) = &mut wanted.asker {
                    asker.tell(&Reply::Doing(format!("job {} is asked to save itself", self.start.name)));
                }
                self.current = Some(Current { wanted, store, asked: Instant::now(), begun: None });
            }
            Ok(_) => self.waiting.push_front(wanted),
            Err(e) => self.answer_to(wanted.asker, Err(e)),
        }
    }

    /// All nodes have saved, and wait.
    fn put_away(&mut self, current: Current) {
        let Current { wanted, store, asked, begun } = current;
        let stood_since = begun.unwrap_or_else(Instant::now);
        let made = self.made(&store, &wanted, asked, stood_since);
        if wanted.stop && made.is_ok() {
            self.desk.asked.end = true;
            self.note(&format!(
                "job {} has ended with its checkpoint; `vervain restart {}` goes on from there",
                self.start.name,
                wanted.dir.display()
            ));
        }
        self.answer_to(wanted.asker, made);
    }

    fn made(&mut self, store: &Store, wanted: &Wanted, asked: Instant, stood_since: Instant) -> Result<Made> {
        let Some(life) = &self.life else { bail!("the job does not run just now") };
        let moved = store.begin().and_then(|begun| self.folder.put_away(&begun).map(|()| begun));
        let processes = life.tree.processes().len();
        // With the checkpoint it ends where it stands, so nothing is done twice.
        if !wanted.stop || moved.is_err() {
            life.requests.go_on();
        }
        let frozen = stood_since.elapsed();
        let sealed = moved?.finish(Manifest {
            format: FORMAT,
            name: self.start.name.to_string(),
            command: self.command.clone(),
            made: now(),
            vervain: Vervain { version: env!("CARGO_PKG_VERSION").to_owned(), libraries: BTreeMap::new() },
            kernel: kernel(),
            processes,
            saved: Saved::Program(self.start.program.clone()),
            frozen: frozen.as_micros() as u64,
            files: BTreeMap::new(),
        });
        if wanted.stop {
            match &sealed {
                Ok(_) => life.tree.kill(),
                Err(_) => life.requests.go_on(),
            }
        }
        let (path, manifest) = sealed?;
        if let Some(keep) = wanted.keep {
            store.keep(keep);
        }
        self.last_checkpoint = Some((path.clone(), manifest.made));
        Ok(Made { path, bytes: manifest.bytes(), processes, frozen, took: asked.elapsed() })
    }
}

/// The reason why nothing came of a request.
fn too_late(name: &Name, within: Duration, callers: Callers) -> String {
    let within = humantime::format_duration(within);
    match callers {
        Callers::None => format!(
            "job {name} has not called pmCheckpointIfAsked within {within} and goes on (ETIMEDOUT); remedy: a program that calls it in \
             each step, or --wait TIME"
        ),
        Callers::Together => format!(
            "job {name} has not come to its next pmCheckpointIfAsked within {within} and goes on (ETIMEDOUT); remedy: --wait TIME, or a \
             program that calls it more often"
        ),
        Callers::Apart => format!(
            "job {name} has nodes that do not see what is asked, such as those of other hosts, and goes on (ETIMEDOUT); remedy: all nodes \
             on this host"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_has_saved_becomes_a_checkpoint_and_comes_back() {
        let tmp = tempfile::tempdir().unwrap();
        let store = Store::make(&tmp.path().join("store")).unwrap();
        let name: Name = "lu".parse().unwrap();
        let folder = Folder::take(&store, &name).unwrap();
        let taken = Folder::take(&store, &name).err().unwrap().to_string();
        assert!(taken.contains("another job lu has its checkpoints in"), "{taken}");
        folder.fill(None).unwrap();
        fs::write(folder.data.join("u.0.1"), "arrays").unwrap();
        fs::set_permissions(folder.data.join("u.0.1"), Permissions::from_mode(0o666)).unwrap();
        fs::create_dir(folder.data.join("more")).unwrap();
        fs::write(folder.data.join("more/u.1.1"), "others").unwrap();
        let begun = store.begin().unwrap();
        folder.put_away(&begun).unwrap();
        assert_eq!(fs::read_dir(&folder.data).unwrap().count(), 0);
        let (path, manifest) = begun.finish(crate::manifest::tests::manifest()).unwrap();
        assert_eq!(manifest.files.keys().collect::<Vec<_>>(), ["files/more/u.1.1", "files/u.0.1"]);
        // Others may not write to it any more, or this would refuse it.
        Manifest::read(&path).unwrap();
        fs::write(folder.data.join("left"), "since").unwrap();
        folder.fill(Some(&path)).unwrap();
        assert_eq!(fs::read(folder.data.join("more/u.1.1")).unwrap(), b"others");
        assert!(!folder.data.join("left").exists());
        // Later changes by the program do not reach the checkpoint.
        fs::write(folder.data.join("u.0.1"), "arrayS").unwrap();
        Manifest::read(&path).unwrap();
        let above = folder.above.clone();
        drop(folder);
        assert!(!above.exists());
    }

    #[test]
    fn a_sentence_says_why_nothing_was_saved_and_what_to_do() {
        let name: Name = "lu".parse().unwrap();
        for callers in [Callers::None, Callers::Together, Callers::Apart] {
            let why = too_late(&name, Duration::from_secs(60), callers);
            assert!(why.contains("ETIMEDOUT") && why.contains("remedy: "), "{why}");
        }
    }
}
