//! A job's namespaces, and the three programs inside: the init, which is their first process; the one that becomes the
//! job's first program; and any other that the supervisor wants to run there, such as CRIU. Each is this same
//! executable, started anew, so that nothing happens between fork and exec, and no unsafe code is needed.
//!
//! A job sees the host's file systems, but for `/proc`, `/dev/pts`, `/dev/shm` and Vervain's folder, which are its own.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

use crate::agent::{Agent, Done, Task};
use crate::checkpoint::Wait;
use crate::manifest::Network;
use crate::word::Word;
use crate::{scratch, streams};

/// Numbers below are left to the programs that bring a job back: the kernel gives none of them out again when it begins
/// anew.
const FIRST_PID: u32 = 300;
/// Time for the init to set up.
const SETUP: Duration = Duration::from_secs(20);

/// Time for the job's control group to become empty.
const EMPTY: Duration = Duration::from_secs(1);

/// The plan that the init carries out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The network.
    pub network: Network,
    /// Vervain's private folder, in whose place the job has one of its own.
    pub private: PathBuf,
    /// The supervisor's folder, which the init holds open: what CRIU runs is found there, by [`Space::held`].
    pub place: PathBuf,
    /// A folder below it that is copied into that.
    pub tree: Option<PathBuf>,
    /// The first process.
    pub what: What,
}

/// The kind of a job's first process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum What {
    /// A program: its file and its words.
    Program(PathBuf, Vec<Word>),
    /// One that CRIU brings back.
    Restored {
        /// Its number.
        root: i32,
        /// The highest number of the job's.
        last: u32,
        /// The contents of the job's own folders.
        scratch: PathBuf,
    },
}

/// A message of the init.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    /// All is set up; the number of the job's first process, and the descriptor of the supervisor's folder.
    Ready { root: i32, held: RawFd },
    /// It cannot be.
    Failed(String),
    /// The first process has ended: its status, or the signal that has killed it.
    Ended { code: Option<i32>, signal: Option<i32> },
}

/// How a job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its first process, with this status.
    Status(i32),
    /// Its first process, by this signal.
    Signal(i32),
    /// All of it at once: the init was killed.
    Killed,
}

/// A namespace's folders that belong to the job: what they are called in a checkpoint, and where they are in it.
pub fn own_folders(private: &Path) -> [(&'static str, PathBuf); 2] {
    [("shm", "/dev/shm".into()), ("run", private.to_owned())]
}

/// A running init with its namespaces.
#[derive(Debug)]
pub struct Space {
    init: Child,
    line: UnixStream,
    pid: OwnedFd,
    mnt: OwnedFd,
    net: OwnedFd,
    root: i32,
    held: RawFd,
    agent: RefCell<Option<Agent>>,
    /// The control group that was made for the job.
    group: RefCell<Option<PathBuf>>,
}

/// The executable that is started anew.
pub(crate) const SELF: &str = "/proc/self/exe";

impl Space {
    /// Makes the namespaces and starts what the plan says in them, with these streams and what `environment` sets.
    ///
    /// # Errors
    /// A sentence that says what this user may not, or what the init could not do.
    pub fn new(plan: &Plan, streams: [Stdio; 3], environment: &Command) -> Result<Space> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new(SELF);
        let [stdin, stdout, stderr] = streams;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        for (name, value) in environment.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["inside", "init", &theirs.as_raw_fd().to_string(), &serde_json::to_string(plan)?]);
        let fd = theirs.as_fd();
        let open = Inherited::new(&fd)?;
        let own = File::open("/proc/self/ns/pid")?;
        unshare(CloneFlags::CLONE_NEWPID).context(
            "cannot make a process namespace, which a job needs (as root; in a container, with CAP_SYS_ADMIN)",
        )?;
        let started = command.spawn();
        // Else each later child of this thread would be one of the job's.
        setns(&own, CloneFlags::CLONE_NEWPID).context("cannot leave the job's process namespace")?;
        let mut init = started.context("cannot start the job's init")?;
        drop(open);
        drop(theirs);
        match Space::set_up(&init, line) {
            Ok((line, [pid, mnt, net], (root, held))) => Ok(Space {
                init,
                line,
                pid,
                mnt,
                net,
                root,
                held,
                agent: RefCell::default(),
                group: RefCell::default(),
            }),
            Err(e) => {
                let _ = init.kill();
                let _ = init.wait();
                Err(e)
            }
        }
    }

    fn set_up(init: &Child, mut line: UnixStream) -> Result<(UnixStream, [OwnedFd; 3], (i32, RawFd))> {
        line.set_read_timeout(Some(SETUP))?;
        let root = match hear(&mut line)? {
            Some(Told::Ready { root, held }) => (root, held),
            Some(Told::Failed(why)) => bail!("{why}"),
            _ => bail!("the job's init has ended before it was ready"),
        };
        let open = |kind: &str| -> Result<OwnedFd> {
            let path = format!("/proc/{}/ns/{kind}", init.id());
            Ok(File::open(&path).with_context(|| format!("cannot open {path}"))?.into())
        };
        Ok((line, [open("pid")?, open("mnt")?, open("net")?], root))
    }

    /// A file of the supervisor's folder, as it is reached by programs inside, which may not see the folder itself.
    pub fn held(&self, name: &str) -> String {
        format!("/proc/1/fd/{}/{name}", self.held)
    }

    /// The init's number, as seen from here.
    pub fn init(&self) -> u32 {
        self.init.id()
    }

    /// The number of the job's first process, as the job sees it.
    pub fn root(&self) -> i32 {
        self.root
    }

    /// The processes that signals go to.
    pub(crate) fn target(&self) -> Target {
        Target { init: Pid::from_raw(self.init.id().cast_signed()), root: self.root }
    }

    /// A path of the job's, as it is reached from here.
    pub fn path(&self, inside: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.init.id())).join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// The job's processes, by their numbers inside, without the init.
    pub fn processes(&self) -> Vec<i32> {
        let entries = fs::read_dir(self.path(Path::new("/proc"))).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| *pid != 1).collect()
    }

    /// Bytes of memory that are the job's alone, or its part of what is shared.
    pub fn memory(&self) -> u64 {
        let of = |pid: i32| memory(&self.path(Path::new(&format!("/proc/{pid}"))));
        self.processes().into_iter().filter_map(of).sum()
    }

    /// Becomes ready when the job has ended.
    pub fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// Returns true if [`Space::line`] is ready.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(self.line(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// How it has ended, asked when [`Space::line`] is ready. All that is left of it is gone when this returns.
    pub fn end(&mut self) -> End {
        let told = hear(&mut self.line).ok().flatten();
        self.wait();
        match told {
            Some(Told::Ended { code: Some(code), .. }) => End::Status(code),
            Some(Told::Ended { signal: Some(signal), .. }) => End::Signal(signal),
            _ => End::Killed,
        }
    }

    /// Kills all of it, and waits until it is gone.
    fn wait(&mut self) {
        let _ = self.init.kill();
        // The init does not end before all of its namespace have, and this one is waited for here.
        *self.agent.borrow_mut() = None;
        let _ = self.init.wait();
        if let Some(group) = self.group.take() {
            // The kernel takes the last process out a moment after it was waited for.
            let until = Instant::now() + EMPTY;
            while fs::remove_dir(&group).is_err_and(|e| e.kind() == ErrorKind::ResourceBusy) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Kills all of it.
    pub fn kill(&self) {
        self.target().kill();
    }

    /// Has the program that stays inside do something. It is started when there is something to do, and again if it was
    /// killed.
    ///
    /// # Errors
    /// It cannot be done: a sentence.
    pub(crate) fn ask(&self, task: &Task, wait: Wait<'_>) -> Result<Done> {
        let mut agent = self.agent.borrow_mut();
        let inside = match agent.take() {
            Some(inside) => inside,
            None => Agent::start(self)?,
        };
        let said = agent.insert(inside).ask(task, wait);
        if said.is_err() {
            *agent = None;
        }
        let done = said?.map_err(|sentence| anyhow!(sentence))?;
        if let Some(group) = &done.group {
            self.group.replace(Some(group.clone()));
        }
        Ok(done)
    }

    /// Returns true if that program is there.
    pub(crate) fn has_agent(&self) -> bool {
        self.agent.borrow().is_some()
    }

    /// Starts a program in the job's namespaces, with these descriptors beside its streams. It is killed if this thread
    /// ends.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        &self,
        words: &[std::ffi::OsString],
        passed: &[BorrowedFd<'_>],
        set: impl FnOnce(&mut Command),
    ) -> Result<Child> {
        let [mnt, net] = [&self.mnt, &self.net].map(|fd| fd.as_raw_fd().to_string());
        let mut command = Command::new(SELF);
        command.args(["inside", "enter", &mnt, &net, "--"]).args(words);
        set(&mut command);
        let mut open = [self.mnt.as_fd(), self.net.as_fd()].iter().map(Inherited::new).collect::<Result<Vec<_>>>()?;
        open.extend(passed.iter().map(Inherited::new).collect::<Result<Vec<_>>>()?);
        let own = File::open("/proc/self/ns/pid")?;
        setns(&self.pid, CloneFlags::CLONE_NEWPID).context("cannot enter the job's process namespace")?;
        let started = command.spawn();
        setns(&own, CloneFlags::CLONE_NEWPID).context("cannot leave the job's process namespace")?;
        started.context("cannot start a program in the job's namespaces")
    }
}

/// The processes of a [`Space`] that lives, as signals are sent to them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    init: Pid,
    root: i32,
}

impl Target {
    /// The job's first process as seen from here; None when it has ended.
    pub(crate) fn root(self) -> Option<Pid> {
        let init = self.init;
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).ok()?;
        let is_root = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let inside =
                status.lines().find_map(|line| line.strip_prefix("NSpid:")?.split_whitespace().last()?.parse().ok());
            inside == Some(self.root)
        };
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_root).map(Pid::from_raw)
    }

    /// Kills all.
    pub(crate) fn kill(self) {
        // Its number stays its own until it is waited for, which is when the space ends.
        let _ = nix::sys::signal::kill(self.init, Signal::SIGKILL);
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Bytes of memory of the process whose folder in /proc that is: its own, and its part of what it shares.
pub(crate) fn memory(process: &Path) -> Option<u64> {
    let rollup = fs::read_to_string(process.join("smaps_rollup")).ok()?;
    let kib = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(kib.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

/// A descriptor that the next program inherits, for as long as this lives.
struct Inherited<'a>(BorrowedFd<'a>);

impl<'a> Inherited<'a> {
    fn new(fd: &BorrowedFd<'a>) -> Result<Inherited<'a>> {
        fcntl_setfd(fd, FdFlags::empty())?;
        Ok(Inherited(*fd))
    }
}

impl Drop for Inherited<'_> {
    fn drop(&mut self) {
        let _ = fcntl_setfd(self.0, FdFlags::CLOEXEC);
    }
}

fn tell(line: &mut UnixStream, told: &Told) -> Result<()> {
    let mut text = serde_json::to_vec(told)?;
    text.push(b'\n');
    Ok(line.write_all(&text)?)
}

/// The next message; None at the end.
fn hear(line: &mut UnixStream) -> Result<Option<Told>> {
    let mut text = Vec::new();
    let mut byte = [0];
    while line.read(&mut byte)? == 1 && byte != *b"\n" {
        ensure!(text.len() < 64 << 10, "the job's init says too much");
        text.push(byte[0]);
    }
    if text.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(&text)?)) }
}

/// The first process of a job's namespaces: sets them up, starts the job's first process, takes in orphans, reports the
/// end of the first. It ends when the supervisor does, and the kernel ends all others with it. `line` is the connection
/// to the supervisor.
pub fn init(line: RawFd, plan: &str, take: impl FnOnce(RawFd) -> OwnedFd) -> Result<i32> {
    set_pdeathsig(Signal::SIGKILL)?;
    let mut line = UnixStream::from(take(line));
    fcntl_setfd(&line, FdFlags::CLOEXEC)?;
    // Blocked before there is a child, so that no end of one is missed.
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    set.thread_block()?;
    let ends = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let (root, held) = match serde_json::from_str(plan).map_err(Into::into).and_then(|plan| begin(&plan)) {
        Ok(ready) => ready,
        Err(e) => {
            tell(&mut line, &Told::Failed(format!("{e:#}")))?;
            return Ok(1);
        }
    };
    tell(&mut line, &Told::Ready { root, held: held.as_raw_fd() })?;
    // The job has them; what is read from a pipe ends when the job closes it.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    loop {
        let mut polled = [PollFd::new(ends.as_fd(), PollFlags::POLLIN), PollFd::new(line.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            result => result?,
        };
        if polled[1].any().unwrap_or(true) {
            // The supervisor says nothing, so it is gone.
            return Ok(0);
        }
        let _ = ends.read_signal();
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            let told = match status {
                WaitStatus::StillAlive => break,
                WaitStatus::Exited(pid, code) if pid.as_raw() == root => Told::Ended { code: Some(code), signal: None },
                WaitStatus::Signaled(pid, signal, _) if pid.as_raw() == root => {
                    Told::Ended { code: None, signal: Some(signal as i32) }
                }
                _ => continue,
            };
            tell(&mut line, &told)?;
            return Ok(0);
        }
    }
}

/// Sets up and starts; returns the number of the job's first process, and the supervisor's folder.
fn begin(plan: &Plan) -> Result<(i32, File)> {
    let mut kinds = CloneFlags::CLONE_NEWNS;
    if plan.network == Network::Private {
        kinds |= CloneFlags::CLONE_NEWNET;
    }
    unshare(kinds).context("cannot make the job's namespaces (as root; in a container, with CAP_SYS_ADMIN)")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("cannot have mounts of the job's own")?;
    if plan.network == Network::Private {
        lo_up().context("cannot start the job's lo")?;
    }
    // Opened before what they lie in is covered.
    let place = File::open(&plan.place).context("cannot open the supervisor's folder")?;
    let scratch = match &plan.what {
        What::Program(..) => None,
        What::Restored { scratch, .. } => {
            Some(File::open(scratch).with_context(|| format!("cannot open {}", scratch.display()))?)
        }
    };
    let tree = plan.tree.as_ref().map(File::open).transpose().context("cannot open the job's view of devices")?;
    own_file_systems(plan)?;
    let last = match &plan.what {
        What::Program(..) => FIRST_PID - 1,
        What::Restored { last, .. } => {
            for (name, at) in own_folders(&plan.private) {
                let fd = scratch.as_ref().map_or(-1, AsRawFd::as_raw_fd);
                let from = PathBuf::from(format!("/proc/self/fd/{fd}")).join(name);
                scratch::copy(&from, &at).with_context(|| format!("cannot bring back what lay in {}", at.display()))?;
            }
            // If the numbers end, CRIU gets those that a job never has.
            let end = fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|end| end.trim().parse().ok());
            if last + 1000 < end.unwrap_or(32768) { *last } else { 1 }
        }
    };
    fs::write("/proc/sys/kernel/ns_last_pid", last.to_string()).context("cannot choose the job's process numbers")?;
    match &plan.what {
        What::Program(file, words) => {
            if let (Some(from), Some(tree)) = (&tree, &plan.tree) {
                let from = PathBuf::from(format!("/proc/self/fd/{}", from.as_raw_fd()));
                scratch::copy(&from, tree).context("cannot copy the job's view of devices")?;
            }
            fs::DirBuilder::new().recursive(true).mode(0o700).create(plan.private.join(TMP))?;
            write_rsh(&plan.private.join(RSH)).context("cannot write the job's rsh")?;
            let mut command = Command::new(SELF);
            if std::env::var_os("TMPDIR").is_none() {
                command.env("TMPDIR", plan.private.join(TMP));
            }
            let [stdin, stdout, stderr] = streams::opened_here()?;
            command.stdin(stdin).stdout(stdout).stderr(stderr);
            command.args(["inside", "root", "--"]).arg(file);
            command.args(words.iter().map(|word| std::ffi::OsStr::from_bytes(&word.0)));
            let root = command.spawn().context("cannot start the job's first process")?;
            Ok((root.id().cast_signed(), place))
        }
        What::Restored { root, .. } => Ok((*root, place)),
    }
}

/// The folder of temporary files of the job's programs, such as Open MPI's session.
const TMP: &str = "tmp";

/// A program that stands for ssh with launchers that take the path of one: `vervain job rsh`.
pub(crate) const RSH: &str = "rsh";

fn write_rsh(path: &Path) -> Result<()> {
    let exe = std::env::current_exe()?;
    let quoted = exe.to_str().context("the path of this command is no text")?.replace('\'', r"'\''");
    let mut file = File::options().write(true).create_new(true).mode(0o700).open(path)?;
    Ok(file.write_all(format!("#!/bin/sh\nexec '{quoted}' job rsh \"$@\"\n").as_bytes())?)
}

fn own_file_systems(plan: &Plan) -> Result<()> {
    let none: Option<&str> = None;
    let fs = |kind: &str, at: &Path, flags, options: Option<&str>| {
        mount(Some(kind), at, Some(kind), flags, options)
            .with_context(|| format!("cannot mount {kind} on {}", at.display()))
    };
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    fs("proc", Path::new("/proc"), safe | MsFlags::MS_NOEXEC, None)?;
    if fs::metadata("/dev/pts").is_ok_and(|meta| meta.is_dir()) {
        let options = "newinstance,ptmxmode=0666,mode=0620,gid=5";
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        fs("devpts", Path::new("/dev/pts"), flags, Some(options))
            .or_else(|_| fs("devpts", Path::new("/dev/pts"), flags, Some("newinstance,ptmxmode=0666")))?;
        // A link leads to the new one by itself.
        if fs::symlink_metadata("/dev/ptmx").is_ok_and(|meta| meta.file_type().is_char_device()) {
            mount(Some("/dev/pts/ptmx"), "/dev/ptmx", none, MsFlags::MS_BIND, none)
                .context("cannot have terminals of the job's own")?;
        }
    }
    if fs::metadata("/dev/shm").is_ok_and(|meta| meta.is_dir()) {
        fs("tmpfs", Path::new("/dev/shm"), safe, Some("mode=1777"))?;
    }
    // `ip netns exec` shows a /sys without control groups, and a job is frozen by one. It can do without where that
    // cannot be.
    let groups = Path::new("/sys/fs/cgroup");
    if fs::read_dir(groups).is_ok_and(|mut entries| entries.next().is_none()) {
        let _ = fs("cgroup2", groups, safe | MsFlags::MS_NOEXEC, None);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&plan.private)?;
    fs("tmpfs", &plan.private, safe, Some("mode=0700"))
}

/// Sets up `lo`: what `ip link set lo up` does, by rtnetlink(7).
fn lo_up() -> Result<()> {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
    /// NETLINK_ROUTE is protocol 0. RTM_NEWLINK of linux/rtnetlink.h, NLM_F_REQUEST | NLM_F_ACK of linux/netlink.h,
    /// IFF_UP of linux/if.h. A network namespace begins with lo, which has the first index.
    const NEWLINK: u16 = 16;
    const REQUEST_ACK: u16 = 5;
    const UP: u32 = 1;
    const LO: u32 = 1;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut request = Vec::new();
    // Length, type and flags, sequence number, port; family and type, index, flags, which of them to change.
    request.extend(32u32.to_ne_bytes());
    request.extend([NEWLINK, REQUEST_ACK].map(u16::to_ne_bytes).concat());
    request.extend([1u32, 0, 0, LO, UP, UP].map(u32::to_ne_bytes).concat());
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    let code = answer[..length].get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code.context("the kernel gives no answer")? {
        0 => Ok(()),
        code => Err(std::io::Error::from_raw_os_error(-code).into()),
    }
}

/// The program that becomes the job's first: a session of its own, with the signals as they were.
pub fn root(words: &[std::ffi::OsString]) -> Result<std::convert::Infallible> {
    let (Some(file), Some(name)) = (words.first(), words.get(1)) else { bail!("no program") };
    setsid().context("cannot have a session of the job's own")?;
    // CRIU saves the first process with its children: who loses a parent, as daemons do, is to be its child.
    set_child_subreaper(true).context("cannot be the parent of the job's orphans")?;
    SigSet::empty().thread_set_mask()?;
    let error = Command::new(file).arg0(name).args(&words[2..]).exec();
    Err(anyhow::Error::from(error).context(format!("cannot execute {}", Path::new(file).display())))
}

/// A program that runs in the job's namespaces besides, and ends with the supervisor.
pub fn enter(mnt: OwnedFd, net: OwnedFd, words: &[std::ffi::OsString]) -> Result<std::convert::Infallible> {
    set_pdeathsig(Signal::SIGKILL)?;
    setns(net, CloneFlags::CLONE_NEWNET).context("cannot enter the job's network namespace")?;
    setns(mnt, CloneFlags::CLONE_NEWNS).context("cannot enter the job's mount namespace")?;
    let Some((file, words)) = words.split_first() else { bail!("no program") };
    SigSet::empty().thread_set_mask()?;
    let error = Command::new(file).args(words).exec();
    Err(anyhow::Error::from(error).context(format!("cannot execute {}", Path::new(file).display())))
}
