//! Parts of a job on other hosts. An agent is started there by a command of the user's (`--remote-start`), and told
//! what to do by lines on its standard input; it answers each by one on its standard output. It and its part end when
//! the input does.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, Wait};
use crate::criu::Criu;
use crate::hosts::{Host, RemoteStart};
use crate::manifest::Network;
use crate::part::{Home, Order, Part, Report, Trouble};
use crate::place::{Name, Places};
use crate::space::{Plan, Space, What};
use crate::word::Word;

/// Time for an agent to end its part.
const END: Duration = Duration::from_secs(10);
/// Time for an agent to start.
const START: Duration = Duration::from_secs(60);

/// The first message to an agent.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    version: String,
    name: String,
    host: Host,
    /// CRIU, where it is not in PATH.
    criu: Option<PathBuf>,
}

/// A part on another host, as the supervisor has it.
#[derive(Debug)]
pub(crate) struct Remote {
    host: Host,
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
    /// The part is gone.
    ended: bool,
}

impl Remote {
    /// Starts an agent, whose part has no processes yet.
    pub(crate) fn start(
        start: &RemoteStart,
        host: &Host,
        name: &Name,
        criu: Option<&Path>,
        wait: Wait<'_>,
    ) -> Result<Remote> {
        let exe = std::env::current_exe()?;
        let exe =
            exe.to_str().filter(|path| !path.contains(|c: char| c.is_whitespace() || "'\"\\$`;&|<>()".contains(c)));
        let exe = exe.context("the path of this command has characters that a shell would take for its own")?;
        let command = start.command(host, &format!("{exe} inside part"));
        let mut child = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a shell")?;
        let (to, Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a program without its streams")
        };
        rustix::io::ioctl_fionbio(&from, true)?;
        let mut remote = Remote { host: host.clone(), child, to, from, ended: false };
        let greeting = Greeting {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: name.to_string(),
            host: host.clone(),
            criu: criu.map(Path::to_owned),
        };
        let no_agent = || format!("no agent on {host}");
        // The shell may have ended before it reads anything.
        remote.say(&greeting).with_context(no_agent)?;
        let until = Instant::now() + START;
        remote.hear(Some(until), wait).with_context(no_agent)?;
        Ok(remote)
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Tells it; [`Remote::receive`] has to follow.
    pub(crate) fn send(&mut self, order: &Order) -> Result<()> {
        self.say(order)
    }

    /// The result of its order.
    pub(crate) fn receive(&mut self, wait: Wait<'_>) -> Result<Report, Trouble> {
        self.hear(None, wait).map_err(|mut trouble| {
            trouble.sentence = format!("on {}: {}", self.host, trouble.sentence);
            trouble
        })
    }

    fn say(&mut self, what: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(what)?;
        text.push(b'\n');
        let Some(to) = &mut self.to else { bail!("the job's part on {} is lost", self.host) };
        to.write_all(&text).map_err(|_| {
            self.ended = true;
            anyhow::anyhow!("the job's part on {} is lost", self.host)
        })
    }

    fn hear(&mut self, until: Option<Instant>, wait: Wait<'_>) -> Result<Report, Trouble> {
        let mut line = Vec::new();
        let mut bytes = [0; 4096];
        while line.last() != Some(&b'\n') {
            match self.from.read(&mut bytes) {
                Ok(read @ 1..) => line.extend(&bytes[..read]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if until.is_some_and(|until| Instant::now() >= until) {
                        return Err(anyhow::anyhow!("the agent says nothing").into());
                    }
                    wait(&[self.from.as_fd()], until)?;
                }
                Ok(0) | Err(_) => {
                    self.ended = true;
                    return Err(anyhow::anyhow!("the job's part is lost").into());
                }
            }
        }
        serde_json::from_slice(&line).context("the agent cannot be understood").map_err(Trouble::from)?
    }

    /// Becomes ready when the part is lost: it says nothing that it is not asked.
    pub(crate) fn line(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    /// Returns true if the part is lost.
    pub(crate) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(self.line(), PollFlags::POLLIN)];
        self.ended || poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.to = None;
        let until = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The agent.
///
/// # Errors
/// It cannot hear or say anything.
pub fn serve(private: &Path) -> Result<()> {
    let input = io::stdin();
    let mut input = BufReader::new(input.lock());
    let Some(greeting) = next(&mut input)? else { return Ok(()) };
    let mut agent = match Agent::new(private, greeting) {
        Ok(agent) => agent,
        Err(e) => return say(&Err(e.into())),
    };
    say(&Ok(Report::Nothing))?;
    loop {
        // The buffer is empty: an order follows the answer to the one before.
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        fds.extend(agent.part.as_ref().map(|part| PollFd::new(part.space.line(), PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            result => result?,
        };
        if agent.part.as_ref().is_some_and(|part| part.space.has_ended()) {
            // The end of the agent says so.
            return Ok(());
        }
        let Some(order) = next(&mut input)? else { return Ok(()) };
        say(&agent.carry_out(&order))?;
    }
}

fn next<T: for<'a> Deserialize<'a>>(input: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line)
        .map(Some)
        .context("the supervisor cannot be understood: it may be of another build of Vervain")
}

fn say(what: &Result<Report, Trouble>) -> Result<()> {
    let mut text = serde_json::to_vec(what)?;
    text.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    Ok(out.flush()?)
}

struct Agent {
    home: Rc<Home>,
    host: Host,
    part: Option<Part>,
}

impl Agent {
    fn new(private: &Path, greeting: Greeting) -> Result<Agent> {
        ensure!(rustix::process::geteuid().is_root(), "a job needs the rights of root on each host");
        let own = env!("CARGO_PKG_VERSION");
        ensure!(greeting.version == own, "Vervain is {own} there, and {} here", greeting.version);
        let criu = Criu::find(greeting.criu.as_deref(), std::env::var_os("PATH").as_deref())?;
        // Not where supervisors are: this may be the host of one, or share its file system.
        let places = Places::new(&private.join("parts"));
        let name = format!("{}.{}", greeting.name, greeting.host.file_name());
        let name = name.parse().map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
        // An agent of a supervisor that was killed just now may be about to end.
        let until = Instant::now() + END;
        let place = loop {
            match places.take(&name) {
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                taken => break taken?,
            }
        };
        let home = Home { criu, private: private.to_owned(), place };
        Ok(Agent { home: Rc::new(home), host: greeting.host, part: None })
    }

    fn carry_out(&mut self, order: &Order) -> Result<Report, Trouble> {
        let wait = &mut checkpoint::wait;
        match (order, &mut self.part) {
            (Order::Restore(what), None) => {
                self.part = Some(Part::restored(Rc::clone(&self.home), what, Vec::new(), wait)?);
                Ok(Report::Nothing)
            }
            (Order::Start(_), None) => {
                self.part = Some(self.begin()?);
                self.carry_out(order)
            }
            (Order::Status, None) => Ok(Report::Status { processes: 0, memory: 0 }),
            (_, None) => Err(anyhow::anyhow!("nothing runs on {}", self.host).into()),
            (order, Some(part)) => part.carry_out(order, wait),
        }
    }

    /// A part with a starter.
    fn begin(&self) -> Result<Part> {
        let exe = std::env::current_exe()?;
        let words = [exe.as_os_str().as_encoded_bytes(), b"inside", b"starter"].map(|word| Word(word.to_vec()));
        let plan = Plan {
            network: Network::Host,
            private: self.home.private.clone(),
            place: self.home.place.path().to_owned(),
            tree: None,
            what: What::Program(exe, words.into()),
        };
        let streams = [Stdio::null(), Stdio::null(), Stdio::null()];
        let space = Space::new(&plan, streams, &Command::new("/"))?;
        Ok(Part::new(Rc::clone(&self.home), space))
    }
}
