//! The supervisor of a job, in the foreground: starts it or brings it back, copies its streams, passes signals on, has
//! checkpoints made when it is asked or when it is time, and resumes a job that was killed.
//!
//! One thread does all of that, and it is the one that starts processes, since the kernel sends their PR_SET_PDEATHSIG
//! at the end of the *thread* that has started them. Other threads only copy streams and take in requests.

mod checkpoints;
mod turns;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::Signal;

use crate::agent::{Done, Task};
use crate::checkpoint;
use crate::control::{Asker, Reply, Request, Status, listen_inside};
use crate::criu::Criu;
use crate::desk::{Desk, Group};
use crate::gang::Member;
use crate::hosts::{Host, Moves, RemoteStart};
use crate::life::Life;
use crate::lives::{Lives, Next};
use crate::manifest::{Manifest, Network, Vervain};
use crate::part::{Home, Order, Part, Report};
use crate::place::{Name, Places};
use crate::remote::Remote;
use crate::space::{End, Plan, RSH, Space, What};
use crate::starter::RemoteCommand;
use crate::streams::{self, Streams};
use crate::word::Word;

/// Further duties of a supervisor.
#[derive(Debug, Clone)]
pub struct Upkeep {
    /// The folder of checkpoints that are due by the clock, from which the job is also resumed.
    pub dir: Option<PathBuf>,
    /// How often.
    pub every: Option<Duration>,
    /// The number of them that are kept.
    pub keep: Option<usize>,
    /// After what time a job is resumed that was killed.
    pub restart: Option<Duration>,
}

/// The parameters of all supervisors.
pub struct Setting {
    /// Vervain's folder that only this user can enter.
    pub private: PathBuf,
    /// CRIU, where it is not in PATH.
    pub criu: Option<PathBuf>,
    /// How agents are started on other hosts, if there may be any.
    pub remote_start: Option<RemoteStart>,
    /// Hosts and addresses that have become others since the job was started.
    pub moves: Moves,
    /// Vervain's libraries that programs load.
    pub libraries: Vec<PathBuf>,
    /// Further duties.
    pub upkeep: Upkeep,
    /// Receives sentences for the user.
    pub note: fn(&str),
}

/// A job that is to be started.
pub struct Start {
    /// Its name.
    pub name: Name,
    /// The program's file and its words.
    pub program: (PathBuf, Vec<Word>),
    /// Additions to its environment.
    pub environment: Command,
    /// The view of devices, which is copied into the job's own folder.
    pub tree: Option<PathBuf>,
    /// The network.
    pub network: Network,
}

/// Starts a job and stays with it. Returns its exit status.
///
/// # Errors
/// It cannot be started.
pub fn run(setting: Setting, start: Start) -> Result<u8> {
    let shown = shown(&start.program.1);
    let other_way = |e: anyhow::Error| anyhow!("{e:#}{OTHER_WAY}");
    let criu = usable(setting.criu.as_deref()).map_err(other_way)?;
    let streams = Streams::of_this_process(&setting.private);
    let mut supervisor = Supervisor::new(setting, criu, start.name, shown, start.network, streams)?;
    let ends = supervisor.streams.connect(Vec::new())?;
    let plan = Plan {
        network: start.network,
        private: supervisor.setting.private.clone(),
        place: supervisor.home.place.path().to_owned(),
        tree: start.tree,
        what: What::Program(start.program.0, start.program.1),
    };
    let mut environment = start.environment;
    if supervisor.setting.remote_start.is_some() {
        ensure!(
            start.network == Network::Host,
            "a job on several hosts needs the network of the hosts: leave --network private out"
        );
        launchers(&supervisor.setting.private, &mut environment)?;
    }
    let space = Space::new(&plan, ends.stdio()?, &environment).map_err(other_way)?;
    let part = Part::new(Rc::clone(&supervisor.home), space);
    supervisor.live(part, Vec::new(), ends.numbers())?;
    drop(ends);
    let status = supervisor.stay();
    streams::go_behind();
    status
}

/// Brings a job back from the images of a checkpoint, which [`find`](crate::store::find) has found, and stays with it.
/// Returns its exit status.
///
/// # Errors
/// It cannot be brought back.
pub fn restart(mut setting: Setting, found: (PathBuf, Manifest, PathBuf), name: Option<Name>) -> Result<u8> {
    let (path, manifest, folder) = found;
    setting.upkeep.dir.get_or_insert(folder);
    let name = match name {
        Some(name) => name,
        None => {
            manifest.name.parse().map_err(|e| anyhow::anyhow!("{} names a job that cannot be: {e}", path.display()))?
        }
    };
    let images = manifest.images()?;
    let copied = images.streams.map(|stream| stream.is_some());
    let criu = usable(setting.criu.as_deref())?;
    let mut supervisor =
        Supervisor::new(setting, criu, name, manifest.command.clone(), images.network, Streams::new(copied))?;
    supervisor.bring_back(&path, &manifest)?;
    supervisor.stay()
}

/// Has launchers of MPI start what they start on other hosts as parts of the job.
fn launchers(private: &Path, environment: &mut Command) -> Result<()> {
    let exe = std::env::current_exe()?;
    let rsh = format!("{} job rsh", exe.display());
    // Open MPI 4, PRRTE (Open MPI 5) and Hydra (MPICH), which takes the path of a program alone, and has options of its
    // own for ssh.
    for name in ["OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"] {
        environment.env(name, &rsh);
    }
    for name in ["OMPI_MCA_plm_rsh_no_tree_spawn", "PRTE_MCA_plm_ssh_no_tree_spawn"] {
        environment.env(name, "1");
    }
    environment.env("HYDRA_LAUNCHER", "rsh").env("HYDRA_LAUNCHER_EXEC", private.join(RSH));
    Ok(())
}

struct Supervisor {
    setting: Setting,
    home: Rc<Home>,
    name: Name,
    command: String,
    network: Network,
    since: u64,
    vervain: Vervain,
    streams: Streams,
    desk: Desk,
    last_checkpoint: Option<(PathBuf, u64)>,
    life: Option<Life>,
    /// The number of lives that it has had.
    lives: u32,
    /// It was brought back.
    has_moved: bool,
    gang: Option<Member>,
    /// Checkpoints that were asked for while the job was held: an image is made of a job that goes on, in its next
    /// turn.
    put_off: VecDeque<(Checkpoint, Asker)>,
}

/// A checkpoint that somebody wants.
struct Checkpoint {
    dir: PathBuf,
    stop: bool,
    keep: Option<usize>,
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The kernel's release.
pub(crate) fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Beside why CRIU cannot be used: what can.
const OTHER_WAY: &str = "; a program that saves itself is run with --cooperative, without root and CRIU";

/// A command line, for people.
pub(crate) fn shown(words: &[Word]) -> String {
    let shown = |word: &Word| String::from_utf8_lossy(&word.0).replace(char::is_control, " ");
    words.iter().map(shown).collect::<Vec<_>>().join(" ")
}

/// A CRIU that this user can have save and bring back processes.
fn usable(given: Option<&Path>) -> Result<Criu> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a job needs the rights of root: CRIU cannot bring processes back with CAP_CHECKPOINT_RESTORE alone, since it sets \
         their credentials; remedy: run this as root"
    );
    Criu::find(given, std::env::var_os("PATH").as_deref())
}

impl Supervisor {
    fn new(
        setting: Setting,
        criu: Criu,
        name: Name,
        command: String,
        network: Network,
        streams: Streams,
    ) -> Result<Supervisor> {
        // Those that the job is going to load.
        let vervain = Vervain::of(&setting.libraries)?;
        let place = Places::new(&setting.private).take(&name)?;
        let desk = Desk::new(&place)?;
        let home = Rc::new(Home { criu, private: setting.private.clone(), place });
        Ok(Supervisor {
            setting,
            home,
            name,
            command,
            network,
            since: now(),
            vervain,
            streams,
            desk,
            last_checkpoint: None,
            life: None,
            lives: 0,
            has_moved: false,
            gang: None,
            put_off: VecDeque::new(),
        })
    }

    fn note(&self, text: &str) {
        (self.setting.note)(text);
    }

    fn live(&mut self, part: Part, remotes: Vec<Remote>, streams: [Option<u64>; 3]) -> Result<()> {
        let inside = listen_inside(&part.space.path(&self.setting.private))?;
        self.desk.take_in(inside.try_clone()?, |request| matches!(request, Request::Start { .. }))?;
        self.life = Some(Life { part, remotes, streams, ended: None, inside });
        self.lives += 1;
        Ok(())
    }

    /// Until the job has ended and is not to be resumed.
    fn stay(&mut self) -> Result<u8> {
        let mut lives = Lives::default();
        loop {
            let end = self.one_life()?;
            let (wait, path, manifest) = match lives.next(&self.name, end, &self.setting, self.desk.asked.end)? {
                Next::Over(status) => {
                    // Others in its gang are told by the end of the connection.
                    self.gang = None;
                    self.streams.finish();
                    return Ok(status);
                }
                Next::Resume(wait, path, manifest) => (wait, path, manifest),
            };
            self.leave_gang_for_a_while();
            self.pause(wait)?;
            if self.desk.asked.end {
                return Ok(128 + Signal::SIGTERM as u8);
            }
            self.bring_back(&path, &manifest)?;
            self.rejoin_gang();
        }
    }

    /// Takes signals and requests only, for this time.
    fn pause(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.desk.asked.end {
            self.attend(Some(until))?;
            self.answer()?;
        }
        Ok(())
    }

    /// Until the job has ended.
    fn one_life(&mut self) -> Result<End> {
        let every = self.setting.upkeep.every;
        let mut next = every.map(|every| Instant::now() + every);
        loop {
            if let Some(end) = self.ended() {
                self.life = None;
                return Ok(end);
            }
            self.attend(next.filter(|_| !self.is_held()))?;
            self.answer()?;
            if let (Some(every), Some(at)) = (every, next)
                && Instant::now() >= at
                && self.ended().is_none()
                && !self.is_held()
            {
                let dir = self.setting.upkeep.dir.clone().context("no folder for checkpoints")?;
                match self.checkpoint(&dir, false, self.setting.upkeep.keep) {
                    Ok(_) => {}
                    Err(e) => self.note(&format!("no checkpoint was made: {e:#}")),
                }
                next = Some(Instant::now() + every);
            }
        }
    }

    fn ended(&self) -> Option<End> {
        self.life.as_ref().map_or(Some(End::Killed), |life| life.ended)
    }

    /// Waits for a signal, a request or the job's end, and sees to signals and the end.
    fn attend(&mut self, until: Option<Instant>) -> Result<()> {
        let living = self.life.as_ref().filter(|life| life.ended.is_none());
        let mut fds = Vec::from_iter(living.map(|life| life.part.space.line()));
        fds.extend(living.iter().flat_map(|life| life.remotes.iter().map(Remote::line)));
        fds.extend(self.gang.as_ref().map(|member| member.asker.line()));
        self.desk.wait(living.map(|life| &life.part.space as &dyn Group), &fds, until)?;
        if let Some(life) = &mut self.life
            && life.ended.is_none()
            && life.has_ended()
        {
            // Without one of its parts it is lost as a whole.
            if let Some(lost) = life.remotes.iter().find(|remote| remote.has_ended()) {
                (self.setting.note)(&format!("the part of job {} on {} is lost", self.name, lost.host()));
                life.kill();
            }
            life.ended = Some(life.part.space.end());
            life.remotes.clear();
        }
        Ok(())
    }

    /// Sees to what was asked.
    fn answer(&mut self) -> Result<()> {
        loop {
            self.turns();
            while !self.is_held()
                && let Some((checkpoint, asker)) = self.put_off.pop_front()
            {
                self.make(&checkpoint, asker);
            }
            match self.desk.next()? {
                Some((Request::Status, mut asker)) => asker.tell(&Reply::Status(self.status())),
                Some((Request::Kill, mut asker)) => {
                    self.desk.asked.end = true;
                    if let Some(life) = &mut self.life {
                        life.kill();
                    }
                    asker.tell(&Reply::Killed);
                }
                Some((Request::Start { host, program }, asker)) => {
                    asker.dismiss(&match self.start_on(&host, program) {
                        Ok(()) => Reply::Started,
                        Err(e) => Reply::Failed(format!("{e:#}")),
                    });
                }
                Some((Request::Checkpoint { dir, stop, keep, .. }, mut asker)) => {
                    if self.is_held() {
                        asker.tell(&Reply::Doing(format!("job {} is held; it is saved in its next turn", self.name)));
                    }
                    self.put_off.push_back((Checkpoint { dir, stop, keep }, asker));
                }
                Some((Request::Gang, asker)) => self.join(asker),
                None => return Ok(()),
            }
        }
    }

    /// Starts a program on another host, as a part of the job.
    fn start_on(&mut self, host: &Host, program: RemoteCommand) -> Result<()> {
        // The job knows the hosts that it was started on.
        let host = &if self.has_moved { self.setting.moves.of(host) } else { host.clone() };
        let start = self.setting.remote_start.as_ref().context(
            "a program of a job that is to run on another host has to be started there by the supervisor, which was not told how: \
             `vervain job run --remote-start CMD`",
        )?;
        let Some(life) = self.life.as_mut().filter(|life| life.ended.is_none()) else { bail!("the job has ended") };
        let target = life.part.space.target();
        let (signals, asked) = (&self.desk.signals, &mut self.desk.asked);
        let mut wait = |fds: &[BorrowedFd<'_>], until| asked.wait(signals, Some(&target), fds, until);
        let there = life.remotes.iter().position(|remote| remote.host() == host);
        let remote = match there {
            Some(index) => &mut life.remotes[index],
            None => {
                let agent = Remote::start(start, host, &self.name, self.setting.criu.as_deref(), &mut wait)?;
                life.remotes.push(agent);
                life.remotes.last_mut().context("a part")?
            }
        };
        remote.send(&Order::Start(program))?;
        remote.receive(&mut wait)?;
        if there.is_none() && self.gang.is_some() {
            // It is held in another way from now on.
            self.leave_gang_for_a_while();
            self.lives += 1;
            self.rejoin_gang();
        }
        Ok(())
    }

    /// Has the program inside of the job do what may be done twice, by another one if it was killed.
    fn inside(&mut self, task: Task) -> Result<Done> {
        let done = self.inside_once(task.clone());
        let was_killed = |life: &Life| !life.part.space.has_agent() && !life.part.space.has_ended();
        if done.is_err() && self.life.as_ref().is_some_and(was_killed) { self.inside_once(task) } else { done }
    }

    fn inside_once(&mut self, task: Task) -> Result<Done> {
        let life = self.life.as_ref().context("the job does not run just now")?;
        let (signals, asked) = (&self.desk.signals, &mut self.desk.asked);
        let mut wait = |fds: &[BorrowedFd<'_>], until| asked.wait(signals, Some(&life.part.space), fds, until);
        life.part.space.ask(&task, &mut wait)
    }

    fn status(&mut self) -> Status {
        let (mut processes, mut memory) = (0, 0);
        if let Some(life) = self.life.as_mut().filter(|life| life.ended.is_none()) {
            // A host that does not answer is reported once it is known to be lost.
            for report in life.each(|_| Order::Status, &mut checkpoint::wait).unwrap_or_default() {
                if let Report::Status { processes: more, memory: much } = report {
                    (processes, memory) = (processes + more, memory + much);
                }
            }
        }
        Status {
            pid: std::process::id(),
            command: self.command.clone(),
            since: self.since,
            processes,
            memory,
            gang: self.gang.is_some(),
            checkpoint: self.last_checkpoint.clone(),
        }
    }
}
