//! Child processes with a deadline: each in its own process group, output captured as it comes, the group killed by its
//! id when the time is over or the test ends early.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A started program.
pub struct Job {
    child: Child,
    text: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    command: String,
    started: Instant,
    done: bool,
}

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub command: String,
    /// Exit status; `None` when the deadline passed and the group was killed.
    pub status: Option<ExitStatus>,
    /// Standard output and standard error, in the order of reading.
    pub output: String,
    /// From start to end.
    pub took: Duration,
}

impl Finished {
    /// Whether it ended by itself with status 0.
    pub fn success(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// Its exit status, where it has ended by itself.
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// One paragraph that says what happened, with the end of the output.
    pub fn describe(&self) -> String {
        let how = match self.status {
            None => format!("did not end within {:.0} s", self.took.as_secs_f64()),
            Some(s) => match (s.code(), s.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (None, Some(signal)) => format!("killed by signal {signal}"),
                _ => s.to_string(),
            },
        };
        let tail: Vec<_> = self.output.lines().rev().take(40).collect();
        let tail: Vec<_> = tail.into_iter().rev().collect();
        format!("$ {}\n{how}\n{}", self.command, tail.join("\n"))
    }
}

impl Job {
    /// Starts the command with no input.
    ///
    /// # Panics
    /// When it cannot be started at all.
    pub fn start(command: &mut Command) -> Self {
        let line = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|a| a.to_string_lossy().into_owned())
            .collect::<Vec<_>>();
        let vars = command
            .get_envs()
            .filter_map(|(k, v)| Some(format!("{}={}", k.to_string_lossy(), v?.to_string_lossy())))
            .collect::<Vec<_>>();
        let command_line = [vars, line].concat().join(" ");
        let usual = || {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                // SAFETY: the call may be made between fork and exec, and names no handler.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // What a shell starts in the background, or nohup, has them ignored, and all its children too.
        // SAFETY: it makes a system call, and touches no memory.
        unsafe { command.pre_exec(usual) };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("{command_line}: {e}"));
        let text = Arc::new(Mutex::new(String::new()));
        let pipes: [Option<Box<dyn Read + Send>>; 2] =
            [child.stdout.take().map(|p| Box::new(p) as _), child.stderr.take().map(|p| Box::new(p) as _)];
        let readers = pipes.into_iter().flatten().map(|pipe| reader(pipe, Arc::clone(&text))).collect();
        Self { child, text, readers, command: command_line, started: Instant::now(), done: false }
    }

    /// The process id, which is also that of its group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed until now.
    pub fn output(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the output contains `what`; false when the program ends or the time is over before that.
    pub fn wait_output(&mut self, what: &str, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            if self.output().contains(what) {
                return true;
            }
            if Instant::now() > until || !matches!(self.child.try_wait(), Ok(None)) {
                return self.output().contains(what);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it still runs.
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until a process of the group listens on the TCP port, or by librdmacm on that one: clients of this server do not try twice. False when this
    /// program ends or the time is over before that.
    pub fn listens(&mut self, port: u16, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            if self.has_listener(port) {
                return true;
            }
            if Instant::now() > until || !self.running() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Whether a process of the group has a socket that listens on the port, or the name of a service there. The table of sockets alone does not say it: a
    /// program that is on its way to another network namespace is in this one yet, where any other may listen.
    fn has_listener(&self, port: u16) -> bool {
        let tables = ["tcp", "tcp6"].map(|t| format!("/proc/{}/net/{t}", self.pid()));
        let services = services(&format!("/proc/{}/net/unix", self.pid()), port);
        let sockets: BTreeSet<_> = tables.iter().flat_map(|table| listeners(table, port)).chain(services).collect();
        !sockets.is_empty() && group(self.pid()).iter().any(|pid| has_one_of(*pid, &sockets))
    }

    /// Sends a signal to every process of the group.
    pub fn signal_group(&self, signal: i32) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // SAFETY: kill has no memory effects; the group id is that of a child that has not been reaped, or whose
            // group may still have members, and belongs to nobody else.
            unsafe { libc::kill(-pid, signal) };
        }
    }

    /// Waits for the end. The whole group is killed when it has printed nothing for `limit`, or runs for five times that from now:
    /// a program that goes on is not late only because the machine is slow.
    pub fn finish(mut self, limit: Duration) -> Finished {
        let begin = Instant::now();
        let (mut printed, mut progress) = (self.output().len(), begin);
        let mut status = self.child.try_wait().ok().flatten();
        while status.is_none() && progress.elapsed() < limit && begin.elapsed() < limit * 5 {
            std::thread::sleep(Duration::from_millis(2));
            status = self.child.try_wait().ok().flatten();
            let now = self.text.lock().unwrap_or_else(PoisonError::into_inner).len();
            if now != printed {
                (printed, progress) = (now, Instant::now());
            }
        }
        let took = self.started.elapsed();
        self.end();
        Finished { command: self.command.clone(), status, output: self.output(), took }
    }

    /// Kills what is left of the group and lets the readers end.
    fn end(&mut self) {
        if self.done {
            return;
        }
        self.done = true;
        self.signal_group(libc::SIGKILL);
        let _ = self.child.wait();
        for r in self.readers.drain(..) {
            let _ = r.join();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

fn reader(mut pipe: Box<dyn Read + Send>, text: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut buffer) {
            let piece = String::from_utf8_lossy(&buffer[..n]);
            text.lock().unwrap_or_else(PoisonError::into_inner).push_str(&piece);
        }
    })
}

/// A TCP port that nobody listens on at this moment, and that this function has not named before in this process.
///
/// # Panics
/// When the machine has no loopback.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let port = listener.and_then(|l| l.local_addr()).expect("a free port on 127.0.0.1").port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return port;
        }
    }
}

/// The sockets that listen on a port, as descriptors name them, in a table such as /proc/net/tcp, whose lines are: number, local
/// address:port in hex, remote, state (0A is listening), five more, inode.
pub fn listeners(table: &str, port: u16) -> Vec<PathBuf> {
    let port = format!(":{port:04X}");
    let table = std::fs::read_to_string(table).unwrap_or_default();
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening = fields.filter(|f| f.len() > 9 && f[1].ends_with(&port) && f[3] == "0A");
    listening.map(|f| format!("socket:[{}]", f[9]).into()).collect()
}

/// The sockets of services of librdmacm at a port, in a table such as /proc/net/unix, whose lines end with inode and name. That of a service
/// ends with its number, which ends with the port, and an address.
fn services(table: &str, port: u16) -> Vec<PathBuf> {
    let port = format!("{port:04x}");
    let table = std::fs::read_to_string(table).unwrap_or_default();
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_there = |name: &str| {
        let number = name.rsplit_once('/').and_then(|(number, _)| number.rsplit_once("/cm/"));
        number.is_some_and(|(_, number)| number.ends_with(&port))
    };
    let serving = fields.filter(|f| f.len() > 7 && is_there(f[7]));
    serving.map(|f| format!("socket:[{}]", f[6]).into()).collect()
}

/// The processes of a group.
fn group(id: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_member = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Behind the name, which may have spaces: state, parent, group.
        let group = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(2));
        group.is_some_and(|group| group.parse() == Ok(id))
    };
    processes.filter(is_member).collect()
}

fn has_one_of(pid: u32, sockets: &BTreeSet<PathBuf>) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|target| sockets.contains(&target))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_program_that_prints_is_waited_for_and_a_silent_one_is_ended() {
        let limit = Duration::from_secs(4);
        let mut prints = Command::new("sh");
        let prints = Job::start(prints.args(["-c", "for n in 1 2 3 4 5; do echo $n; sleep 1; done"])).finish(limit);
        assert!(prints.success() && prints.took > limit, "{}", prints.describe());
        let silent = Job::start(Command::new("sleep").arg("60")).finish(Duration::from_millis(100));
        assert_eq!(silent.status, None);
        let endless = Job::start(Command::new("sh").args(["-c", "while echo; do sleep 0.01; done"]));
        assert_eq!(endless.finish(Duration::from_millis(100)).status, None);
    }

    #[test]
    fn who_listens_is_a_process_of_the_group_and_no_other_of_the_namespace() {
        if !crate::have(&["python3"]) {
            return;
        }
        let foreign = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = foreign.local_addr().expect("its port").port();
        let mut idle = Job::start(Command::new("sleep").arg("60"));
        assert!(!idle.listens(port, Duration::from_millis(50)));
        let port = free_port().to_string();
        let server = format!("python3 -m http.server -b 127.0.0.1 {port}; true");
        let mut server = Job::start(Command::new("sh").args(["-c", &server]));
        assert!(server.listens(port.parse().expect("a number"), LIMIT), "{}", server.output());
    }
}
