//! `vervain launch`: starts the ranks, serves their store, prints their output, passes signals on, and ends all where
//! one fails.
//!
//! Each rank is the leader of a process group of its own, and what it leaves behind there ends with it. One thread
//! polls for everything; it is also the one that starts the ranks, since the kernel sends a child's PR_SET_PDEATHSIG at
//! the end of the *thread* that has started it.

pub mod guard;
mod lines;
mod signals;
mod terminal;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getppid};
use rustix::fs::OFlags;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use vervain_bootstrap::environment::is_of_a_launcher;
use vervain_bootstrap::server::{Demand, Seat, Server};

use self::guard::Guard;
use self::lines::{Lines, Writer};
use self::signals::Signals;
use self::terminal::Terminal;
use crate::cli::{LaunchArgs, RanksVerbs};
use crate::output;
use crate::run::{FAILED, Ready, WRONG_SETTING};

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Time to wait for output after the end of all ranks, while a process outside of their groups has it open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// How soon a full queue of output is looked at again.
const FULL: Duration = Duration::from_millis(20);

pub fn launch(args: &LaunchArgs) -> ExitCode {
    match ready(args).and_then(|ready| Job::start(args, &ready)).and_then(|mut job| job.run()) {
        Ok(status) => ExitCode::from(status),
        Err((status, error)) => {
            output::complain(&error);
            ExitCode::from(status)
        }
    }
}

fn ready(args: &LaunchArgs) -> Result<Ready, (u8, anyhow::Error)> {
    let mut ready = program(args)?;
    ready.add(args.starter.variables(), args.verbose);
    Ok(ready)
}

fn program(args: &LaunchArgs) -> Result<Ready, (u8, anyhow::Error)> {
    if args.verbs == RanksVerbs::Vervain {
        return Ready::new(&args.command, &args.device, !args.no_preload, args.verbose);
    }
    let option = if args.no_preload {
        Some("--no-preload".to_owned())
    } else if args.device.lib_dir.is_some() {
        Some("--lib-dir".to_owned())
    } else {
        args.device.settings.first_option().map(|long| format!("--{long}"))
    };
    match option {
        None => Ready::as_it_is(&args.command),
        Some(option) => Err((WRONG_SETTING, anyhow!("{option} cannot be used with --verbs system"))),
    }
}

/// The reason why a job has failed.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    Ended(ExitStatus),
    /// With status 0, and without leaving the job that it had joined.
    Left,
    Aborted {
        status: i32,
        sentence: String,
    },
    Broken(String),
}

impl Failure {
    fn exit_status(&self) -> u8 {
        let status = match self {
            Failure::Ended(status) => status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1),
            Failure::Aborted { status, .. } => *status,
            Failure::Left | Failure::Broken(_) => 1,
        };
        // exit(3) takes the low bits; a failure is never 0.
        (status & 0xff) as u8 | u8::from(status & 0xff == 0)
    }
}

/// The rest of a sentence that begins with the rank.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Ended(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "ended with status {code}"),
                (None, Some(signal)) => write!(f, "was killed by {}", signals::name(signal)),
                (None, None) => write!(f, "ended with {status}"),
            },
            Failure::Left => {
                f.write_str("ended with status 0 and without leaving its job (acp_finalize, pmCloseDevice)")
            }
            Failure::Aborted { status, sentence } => {
                // The sentence of a program is for people, and must not steer their terminal.
                let printable = sentence.trim().replace(char::is_control, " ");
                write!(f, "aborted the job with status {status}: {printable}")
            }
            Failure::Broken(why) => write!(f, "has spoilt its connection to the launcher: {why}"),
        }
    }
}

/// A rank's process.
struct Rank {
    child: Child,
    pid: Pid,
    ended: bool,
}

/// One of the two streams that a rank writes to.
struct Stream {
    rank: u32,
    /// None after the end of the output.
    pipe: Option<OwnedFd>,
    is_error: bool,
    lines: Lines,
}

struct Job {
    signals: Signals,
    server: Server,
    ranks: Vec<Rank>,
    streams: Vec<Stream>,
    terminal: Option<Terminal>,
    guard: Guard,
    failure: Option<Failure>,
    /// When those who are left are killed.
    deadline: Option<Instant>,
    /// Signals that ask the launcher to end. The second one ends ranks that have ignored the first.
    asked: u32,
    out: Writer,
    err: Writer,
}

/// The purpose for which a descriptor was polled.
enum Of {
    Signals,
    Store(u32),
    Stream(usize),
    Input,
}

impl Job {
    /// Starts all ranks.
    fn start(args: &LaunchArgs, ready: &Ready) -> Result<Job, (u8, anyhow::Error)> {
        let failed = |what: &'static str| move |e: anyhow::Error| (FAILED, e.context(what));
        let files = room_for_files(args.ranks);
        let guard = Guard::start().map_err(|e| (FAILED, e))?;
        let signals = Signals::take().map_err(|e| failed("cannot receive signals")(e.into()))?;
        let (server, seats) =
            Server::new(args.ranks).map_err(|e| failed("cannot make the ranks' connections")(e.into()))?;
        let writer = |stream: Box<dyn io::Write + Send>| {
            Writer::start(stream).map_err(|e| failed("cannot start a thread for output")(e.into()))
        };
        let mut job = Job {
            signals,
            server,
            ranks: Vec::new(),
            streams: Vec::new(),
            terminal: None,
            guard,
            failure: None,
            deadline: None,
            asked: 0,
            out: writer(Box::new(io::stdout()))?,
            err: writer(Box::new(io::stderr()))?,
        };
        for (rank, seat) in (0..).zip(seats) {
            // Ranks that have been started by then are killed as `job` is dropped.
            job.add(rank, seat, args.no_prefix, ready, files)?;
        }
        Ok(job)
    }

    fn add(
        &mut self,
        rank: u32,
        seat: Seat,
        plain: bool,
        ready: &Ready,
        files: Option<(u64, u64)>,
    ) -> Result<(), (u8, anyhow::Error)> {
        let mut command = ready.command();
        let others =
            std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_str().is_some_and(is_of_a_launcher));
        others.for_each(|name| _ = command.env_remove(name));
        command.envs(seat.variables);
        let by_terminal = rank == 0 && Terminal::is_input();
        command.stdin(match rank {
            0 if by_terminal => Stdio::piped(),
            0 => Stdio::inherit(),
            _ => Stdio::null(),
        });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        confine(&mut command, seat.socket.as_raw_fd(), self.signals.mask_before(), files);
        let mut child = command.spawn().map_err(|e| match e.kind() {
            // The system has no room for one more process.
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
                (FAILED, anyhow::Error::from(e).context(format!("cannot start rank {rank}")))
            }
            _ => ready.failed(&e),
        })?;
        let pid = Pid::from_raw(child.id().cast_signed());
        self.guard.add(pid);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.ranks.push(Rank { child, pid, ended: false });
        let (input, out, err) = pipes;
        let mut take = |pipe: Option<OwnedFd>, is_error| {
            let pipe = pipe.context("a rank without its output")?;
            rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
            self.streams.push(Stream { rank, pipe: Some(pipe), is_error, lines: Lines::new(rank, plain) });
            anyhow::Ok(())
        };
        take(out.map(ChildStdout::into), false).map_err(|e| (FAILED, e))?;
        take(err.map(ChildStderr::into), true).map_err(|e| (FAILED, e))?;
        if let Some(input) = input.filter(|_| by_terminal) {
            self.terminal = Some(Terminal::new(input).map_err(|e| (FAILED, e.into()))?);
        }
        Ok(())
    }

    /// Until all ranks have ended. Returns the exit status.
    fn run(&mut self) -> Result<u8, (u8, anyhow::Error)> {
        while self.ranks.iter().any(|rank| !rank.ended) {
            self.wait(self.deadline.filter(|_| !self.all_were_killed())).map_err(|e| (FAILED, e))?;
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.signal_all(Signal::SIGKILL);
            }
        }
        let until = Instant::now() + LAST_OUTPUT;
        while !self.streams.is_empty() && Instant::now() < until {
            self.wait(Some(until)).map_err(|e| (FAILED, e))?;
        }
        for stream in &mut self.streams {
            let rest = stream.lines.end();
            let writer = if stream.is_error { &self.err } else { &self.out };
            writer.write(rest);
        }
        // From here on there is only output to be written, which Ctrl-C may end.
        self.signals.give_back();
        Ok(self.failure.as_ref().map_or(0, Failure::exit_status))
    }

    fn all_were_killed(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Waits for something to happen, at most `until`, and sees to it.
    fn wait(&mut self, until: Option<Instant>) -> anyhow::Result<()> {
        for index in self.ready_ones(until)? {
            match index {
                Of::Signals => self.signals_came()?,
                Of::Store(rank) => self.serve(rank),
                Of::Stream(index) => _ = self.read(index),
                Of::Input => {
                    if self.terminal.as_mut().is_some_and(|terminal| !terminal.pass_on()) {
                        self.terminal = None;
                    }
                }
            }
        }
        self.streams.retain(|stream| stream.pipe.is_some());
        Ok(())
    }

    /// The descriptors that are ready.
    fn ready_ones(&self, until: Option<Instant>) -> anyhow::Result<Vec<Of>> {
        let mut polled = vec![(Of::Signals, PollFd::new(self.signals.as_fd(), PollFlags::POLLIN))];
        for rank in 0..u32::try_from(self.ranks.len())? {
            if let Some((socket, for_room)) = self.server.interest(rank) {
                let flags = if for_room { PollFlags::POLLOUT } else { PollFlags::POLLIN };
                polled.push((Of::Store(rank), PollFd::new(socket, flags)));
            }
        }
        let full = [self.out.is_full(), self.err.is_full()];
        for (index, stream) in self.streams.iter().enumerate() {
            if let Some(pipe) = stream.pipe.as_ref().filter(|_| !full[usize::from(stream.is_error)]) {
                polled.push((Of::Stream(index), PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
            }
        }
        if let Some((descriptor, flags)) = self.terminal.as_ref().and_then(Terminal::interest) {
            polled.push((Of::Input, PollFd::new(descriptor, flags)));
        }
        let again = full.contains(&true).then(|| Instant::now() + FULL);
        let timeout = match until.into_iter().chain(again).min() {
            // Rounded up, so that the time is over when it is over.
            Some(until) => {
                PollTimeout::try_from(until.saturating_duration_since(Instant::now()) + Duration::from_millis(1))?
            }
            None => PollTimeout::NONE,
        };
        let (of, mut descriptors): (Vec<_>, Vec<_>) = polled.into_iter().unzip();
        match poll(&mut descriptors, timeout) {
            Err(Errno::EINTR) => return Ok(Vec::new()),
            result => result.context("cannot wait for the ranks")?,
        };
        let ready = of.into_iter().zip(descriptors).filter(|(_, polled)| polled.any().unwrap_or(true));
        Ok(ready.map(|(of, _)| of).collect())
    }

    /// Reads a piece of a stream. False when there is none left for now.
    fn read(&mut self, index: usize) -> bool {
        let stream = &mut self.streams[index];
        let Some(pipe) = &stream.pipe else { return false };
        let writer = if stream.is_error { &self.err } else { &self.out };
        let mut piece = [0; 64 << 10];
        // A writer to a stream without a reader gets SIGPIPE, as in a pipeline of the shell's.
        let read = if writer.is_gone() { Ok(0) } else { rustix::io::read(pipe, &mut piece) };
        match read {
            Ok(length @ 1..) => {
                writer.write(stream.lines.push(&piece[..length]));
                true
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            Ok(0) | Err(_) => {
                writer.write(stream.lines.end());
                stream.pipe = None;
                false
            }
        }
    }

    fn serve(&mut self, rank: u32) {
        match self.server.serve(rank) {
            None => {}
            Some(Demand::Abort { status, sentence }) => self.fail(rank, Failure::Aborted { status, sentence }),
            Some(Demand::Broken(why)) => self.fail(rank, Failure::Broken(why)),
        }
    }

    fn signals_came(&mut self) -> anyhow::Result<()> {
        while let Some(signal) = self.signals.next()? {
            match signal {
                Signal::SIGCHLD => self.reap()?,
                Signal::SIGTSTP => {
                    self.signal_all(Signal::SIGTSTP);
                    // Continued by SIGCONT, which is received like the others.
                    nix::sys::signal::raise(Signal::SIGSTOP)?;
                }
                Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                    self.asked += 1;
                    self.signal_all(signal);
                    if self.asked > 1 {
                        self.end();
                    }
                }
                other => self.signal_all(other),
            }
        }
        Ok(())
    }

    /// Looks for ranks that have ended.
    fn reap(&mut self) -> anyhow::Result<()> {
        for rank in 0..self.ranks.len() {
            let number = u32::try_from(rank)?;
            let process = &self.ranks[rank];
            let id = rustix::process::Pid::from_raw(process.pid.as_raw()).context("a rank without a process")?;
            if process.ended {
                continue;
            }
            // Left as a zombie, so that the number of its group remains its own.
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if waitid(WaitId::Pid(id), look)?.is_none() {
                continue;
            }
            // Its own words come before the message about it.
            self.serve(number);
            for index in 0..self.streams.len() {
                // As many pieces as a pipe holds; a process that it has left behind may write on.
                let mut pieces = 16;
                while self.streams[index].rank == number && pieces > 0 && self.read(index) {
                    pieces -= 1;
                }
            }
            let pid = self.ranks[rank].pid;
            let _ = killpg(pid, Signal::SIGKILL);
            let status = self.ranks[rank].child.wait()?;
            self.ranks[rank].ended = true;
            self.guard.remove(pid);
            if rank == 0 {
                self.terminal = None;
            }
            if !status.success() {
                self.fail(number, Failure::Ended(status));
            } else if self.server.is_member(number) {
                // The others would wait for it for ever, in the end of theirs if not before.
                self.fail(number, Failure::Left);
            }
            self.server.ended(number);
        }
        Ok(())
    }

    /// A rank has failed: reports the first failure, and ends the other ranks.
    fn fail(&mut self, rank: u32, failure: Failure) {
        if self.failure.is_none() {
            let pid =
                usize::try_from(rank).ok().and_then(|rank| self.ranks.get(rank)).map_or(0, |rank| rank.pid.as_raw());
            let others = if self.ranks.len() > 1 { "; the other ranks are ended" } else { "" };
            self.err.write(format!("vervain: rank {rank} (process {pid}) {failure}{others}\n").into_bytes());
            self.failure = Some(failure);
            self.end();
        }
    }

    /// Ends all ranks: SIGTERM, and SIGKILL after a grace.
    fn end(&mut self) {
        if self.deadline.is_none() {
            self.deadline = Some(Instant::now() + GRACE);
            self.signal_all(Signal::SIGTERM);
            // One that is stopped would not see it.
            self.signal_all(Signal::SIGCONT);
        }
    }

    /// Sends a signal to all ranks that have not ended, and to the processes that they have started.
    fn signal_all(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| !rank.ended) {
            let _ = killpg(rank.pid, signal);
        }
    }
}

/// If the launcher itself fails, no rank goes on without it.
impl Drop for Job {
    fn drop(&mut self) {
        self.signal_all(Signal::SIGKILL);
        for rank in self.ranks.iter_mut().filter(|rank| !rank.ended) {
            let _ = rank.child.wait();
            self.guard.remove(rank.pid);
        }
    }
}

/// Raises the limit of open files to what the user may have, if the ranks need it: three for each, and some. Returns
/// the limits as they were, for the ranks.
fn room_for_files(ranks: u32) -> Option<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft >= u64::from(ranks) * 4 + 64 {
        return None;
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok()?;
    Some((soft, hard))
}

/// Sets up the child between fork and exec: it ends with the launcher, keeps its connection, and has the signals and
/// limits that the launcher was started with.
fn confine(command: &mut Command, socket: RawFd, mask: SigSet, files: Option<(u64, u64)>) {
    let launcher = nix::unistd::getpid();
    let prepare = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != launcher {
            // It ended before that call.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // SAFETY: the descriptor is the parent's, which is open until this child has been started.
        rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(socket) }, rustix::io::FdFlags::empty())?;
        if let Some((soft, hard)) = files {
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
        }
        mask.thread_set_mask()?;
        Ok(())
    };
    // SAFETY: each of the five is a system call of its own, and none allocates or takes a lock.
    unsafe { command.pre_exec(prepare) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_a_sentence_and_a_status_that_is_not_0() {
        for (failure, status, sentence) in [
            (Failure::Ended(ExitStatus::from_raw(7 << 8)), 7, "ended with status 7"),
            (Failure::Ended(ExitStatus::from_raw(libc::SIGKILL)), 137, "was killed by SIGKILL"),
            (Failure::Ended(ExitStatus::from_raw(libc::SIGSEGV | 0x80)), 139, "was killed by SIGSEGV"),
            (Failure::Ended(ExitStatus::from_raw(40)), 168, "was killed by signal 40"),
            (
                Failure::Aborted { status: 3, sentence: "two\nlines\x1b[2J ".into() },
                3,
                "aborted the job with status 3: two lines [2J",
            ),
            (Failure::Aborted { status: 512, sentence: "x".into() }, 1, "aborted the job with status 512: x"),
            (Failure::Left, 1, "ended with status 0 and without leaving its job (acp_finalize, pmCloseDevice)"),
            (Failure::Broken("x".into()), 1, "has spoilt its connection to the launcher: x"),
        ] {
            assert_eq!((failure.exit_status(), failure.to_string().as_str()), (status, sentence));
        }
    }
}
