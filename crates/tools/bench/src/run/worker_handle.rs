//! A worker as the coordinator sees it: a connection, and the process at its end where that was started here.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::control::{Control, Silence};
use crate::protocol::{Answer, Opened, Order, VERSION};

/// Time for which a silent host is believed to be there.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Time for a connection to `vervain bench serve`.
const CONNECT: Duration = Duration::from_secs(5);
/// Time for any step that does not measure: opening a device, making QPs.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a user who wants to interrupt must wait.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);

/// This host, in sentences.
const HERE: &str = "this host";

/// The role of a process in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The measured requester.
    Client,
    /// Its responder.
    Server,
    /// The interfering requester.
    BackgroundClient,
    /// Its responder.
    BackgroundServer,
    /// The third rank of a job: where a copy goes between two others.
    Third,
    /// A further rank of a job.
    Further,
}

impl Role {
    /// The role of a rank, by its number.
    pub fn of_rank(rank: u32) -> Self {
        [Self::Client, Self::Server, Self::Third].get(rank as usize).copied().unwrap_or(Self::Further)
    }

    /// Its word in plans and results.
    pub fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::BackgroundClient => "background_client",
            Self::BackgroundServer => "background_server",
            Self::Third => "third",
            Self::Further => "further",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the requester",
            Self::Server => "the responder",
            Self::BackgroundClient => "the interfering requester",
            Self::BackgroundServer => "the responder of the interference",
            Self::Third => "the third rank",
            Self::Further => "a further rank",
        })
    }
}

/// The reason why a worker gave no measurement.
#[derive(Debug)]
pub enum WorkerError {
    /// The order could not be carried out; the worker is well.
    Failed(String),
    /// The worker is gone or does not answer. Where `remote`, so is the other host, as far as can be seen.
    Lost {
        /// A sentence.
        why: String,
        /// True if it was behind `vervain bench serve`.
        remote: bool,
    },
    /// The user wants an end.
    Interrupted,
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) | Self::Lost { why, .. } => f.write_str(why),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// The coordinator's hold on a worker, which is killed with it where it runs on this host.
pub struct WorkerHandle<'a> {
    role: Role,
    control: Control<Answer>,
    child: Option<Child>,
    /// The host's name, for sentences.
    place: String,
    /// True if it is behind `vervain bench serve`.
    remote: bool,
    interrupted: &'a AtomicBool,
    releases: u64,
}

impl Drop for WorkerHandle<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It has nothing to save, and may be spinning.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl<'a> WorkerHandle<'a> {
    /// Starts a worker on this host: `command` with a socket as its standard input, and standard error into `log`.
    pub fn start(
        mut command: Command,
        role: Role,
        log: &File,
        interrupted: &'a AtomicBool,
    ) -> Result<Self, WorkerError> {
        let mut begin = || -> io::Result<(Child, UnixStream)> {
            let (ours, theirs) = UnixStream::pair()?;
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(log.try_clone()?);
            // In a process group of its own, for Ctrl-C is meant for the coordinator, which then has the worker finish.
            Ok((command.process_group(0).spawn()?, ours))
        };
        let failed = |e| WorkerError::Lost { why: format!("cannot start a worker process: {e}"), remote: false };
        let (child, ours) = begin().map_err(failed)?;
        let control = Control::new(ours.into(), |_| false).map_err(failed)?;
        Ok(Self { role, control, child: Some(child), place: HERE.into(), remote: false, interrupted, releases: 0 })
    }

    /// The rank of a job that has connected, and says which one it is; the launcher of the job is its parent, so that
    /// it ends when this is dropped and it has left the job.
    pub fn of_rank(stream: UnixStream, ranks: u32, interrupted: &'a AtomicBool) -> Result<Self, WorkerError> {
        let failed = |e| WorkerError::Lost { why: format!("cannot speak to a rank: {e}"), remote: false };
        let control = Control::new(stream.into(), |_| false).map_err(failed)?;
        // Until it says who it is.
        let role = Role::Third;
        let mut rank = Self { role, control, child: None, place: HERE.into(), remote: false, interrupted, releases: 0 };
        let joined = match rank.answer(ANSWER_TIMEOUT)? {
            Answer::Joined(joined) => joined,
            other => return Err(rank.out_of_order(&other)),
        };
        if (joined.version, joined.ranks) != (VERSION, ranks) || joined.rank >= ranks {
            return Err(WorkerError::Failed(format!("a rank of another job than was started: {joined:?}")));
        }
        rank.role = Role::of_rank(joined.rank);
        Ok(rank)
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Has `vervain bench serve` at `address` (host:port) start one.
    pub fn connect(address: &str, role: Role, interrupted: &'a AtomicBool) -> Result<Self, WorkerError> {
        let reach = || -> io::Result<Control<Answer>> {
            let stream = connect(address)?;
            stream.set_nodelay(true)?;
            watch(&stream)?;
            Control::new(stream.into(), |_| false)
        };
        let control = reach().map_err(|e| WorkerError::Lost {
            why: format!("cannot reach `vervain bench serve` at {address}: {e}"),
            remote: true,
        })?;
        Ok(Self { role, control, child: None, place: address.to_owned(), remote: true, interrupted, releases: 0 })
    }

    /// Has it open its device.
    pub fn open(&mut self, device: Option<&str>, port: u8, gid_index: Option<u8>) -> Result<Opened, WorkerError> {
        // The far host has its own names.
        let device = self.child.as_ref().and(device).map(str::to_owned);
        let gid_index = self.child.as_ref().and(gid_index);
        match self.ask(&Order::Open { version: VERSION, device, port, gid_index }, ANSWER_TIMEOUT)? {
            Answer::Opened(opened) => Ok(*opened),
            other => Err(self.out_of_order(&other)),
        }
    }

    /// Gives an order that is answered by [`Answer::Done`], and waits for that.
    pub fn have_done(&mut self, order: &Order) -> Result<(), WorkerError> {
        match self.ask(order, ANSWER_TIMEOUT)? {
            Answer::Done => Ok(()),
            other => Err(self.out_of_order(&other)),
        }
    }

    /// Gives an order and waits for the answer.
    pub fn ask(&mut self, order: &Order, timeout: Duration) -> Result<Answer, WorkerError> {
        self.order(order)?;
        self.answer(timeout)
    }

    /// Gives an order.
    pub fn order(&mut self, order: &Order) -> Result<(), WorkerError> {
        self.control.send(order).map_err(|e| self.lost(&e))
    }

    /// The next answer.
    pub fn answer(&mut self, timeout: Duration) -> Result<Answer, WorkerError> {
        let since = Instant::now();
        let mut unwanted_since: Option<Instant> = None;
        loop {
            match self.control.receive(Duration::from_millis(100)) {
                Ok(Answer::Failed(why)) => {
                    return Err(WorkerError::Failed(format!("{} at {}: {why}", self.role, self.place)));
                }
                Ok(answer) => return Ok(answer),
                Err(Silence::Gone(e)) => return Err(self.lost(&e)),
                Err(Silence::Late) => {}
            }
            if self.interrupted.load(Ordering::Relaxed)
                && unwanted_since.get_or_insert_with(Instant::now).elapsed() > INTERRUPT_TIMEOUT
            {
                return Err(WorkerError::Interrupted);
            }
            if since.elapsed() > timeout {
                let why = format!("{} at {} did not answer for {timeout:.0?}", self.role, self.place);
                return Err(WorkerError::Lost { why, remote: self.remote });
            }
        }
    }

    /// Ends whatever it does and has it destroy its QPs, ignoring what it still says of earlier orders.
    pub fn release(&mut self) -> Result<(), WorkerError> {
        self.releases += 1;
        self.order(&Order::Stop)?;
        self.order(&Order::Release(self.releases))?;
        let until = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.answer(until.saturating_duration_since(Instant::now())) {
                Ok(Answer::Released(number)) if number == self.releases => return Ok(()),
                Ok(_) | Err(WorkerError::Failed(_)) => {}
                Err(other) => return Err(other),
            }
        }
    }

    /// An answer that does not go with the order.
    pub fn out_of_order(&self, answer: &Answer) -> WorkerError {
        let text = format!("{answer:?}");
        let name = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let why = format!("{} at {} gave an answer out of order: {name}", self.role, self.place);
        WorkerError::Lost { why, remote: self.remote }
    }

    fn lost(&mut self, error: &io::Error) -> WorkerError {
        let (role, place) = (self.role, &self.place);
        let Some(child) = &mut self.child else {
            let why = match self.remote {
                true => format!("lost {place}, where {role} was: {error}"),
                false => format!("the job of {role} has ended: {error}"),
            };
            return WorkerError::Lost { why, remote: self.remote };
        };
        let why = match end_of(child).map(|status| (status.signal(), status.code())) {
            Some((Some(signal), _)) => format!("the process of {role} was killed by signal {signal}"),
            Some((None, Some(code))) => format!("the process of {role} ended with status {code}"),
            _ => format!("the process of {role} is gone: {error}"),
        };
        WorkerError::Lost { why, remote: false }
    }
}

/// The exit status of a process that has closed its line, and so ends by itself; None if it does not end.
fn end_of(child: &mut Child) -> Option<ExitStatus> {
    for _ in 0..50 {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// The first address of `address` that takes a connection.
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for to in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&to, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Has the kernel notice when the host at the other end is gone without a word.
pub fn watch(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    // Also where something is under way, which keepalive leaves to TCP's own patience.
    sockopt::set_tcp_user_timeout(stream, (KEEPALIVE * (KEEPALIVE_PROBES + 1)).as_millis() as u32)?;
    Ok(())
}
