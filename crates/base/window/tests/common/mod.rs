//! Agents: processes that carry out a test's commands on a window, line by line. An agent is the test program itself,
//! which runs only its test `agent`.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use vervain_window::{
    Claim, FileDevice, HeapOwner, Options, Origin, Process, Put, PutDevice, UseGuard, WriteOnlyDevice, in_forked_child,
};

/// A place for a window: the folder, and the path in it.
pub fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("window");
    (folder, path)
}

/// A process of its own, killed when dropped.
pub struct Agent {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// An agent's answer: numbers, or an errno and a sentence.
pub type Answer = Result<Vec<u64>, (i32, String)>;

/// Prefix of an agent's lines, which distinguishes them from the test harness's.
const MARK: &str = "agent: ";

impl Agent {
    pub fn new() -> Agent {
        let mut this = Command::new(std::env::current_exe().unwrap());
        this.args(["--ignored", "--exact", "agent", "--nocapture", "--test-threads", "1"]);
        // SAFETY: prctl is a system call.
        unsafe { this.pre_exec(|| std::io::Error::result(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))) };
        let mut child = this.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Agent { child, to, from }
    }

    /// An agent with a window of two nodes and 4 MiB open, as this node.
    pub fn on(kind: &str, path: &Path, node: u32) -> Agent {
        let mut agent = Agent::new();
        agent.get(&format!("open {kind} {} size=4194304 nodes=2 node={node}", path.display()));
        agent
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    pub fn hear(&mut self) -> Answer {
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the agent has ended");
            // The harness writes the name of the test without an end of line.
            let Some((_, said)) = line.trim_end().split_once(MARK) else { continue };
            let (first, rest) = said.split_once(' ').unwrap_or((said, ""));
            return match first {
                "ok" => Ok(rest.split_whitespace().map(|n| n.parse().unwrap()).collect()),
                errno => Err((errno.parse().unwrap(), rest.to_owned())),
            };
        }
    }

    pub fn ask(&mut self, line: &str) -> Answer {
        self.tell(line);
        self.hear()
    }

    /// Sends a command that must succeed, and returns its answer.
    pub fn get(&mut self, line: &str) -> Vec<u64> {
        self.ask(line).unwrap_or_else(|e| panic!("{line}: {e:?}"))
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// Kills the agent; the kernel has released everything when this returns.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: kill(2) of a process that this test has made.
    unsafe { libc::kill(pid, signal) };
}

trait ResultOf {
    fn result(rc: i32) -> std::io::Result<()>;
}

impl ResultOf for std::io::Error {
    fn result(rc: i32) -> std::io::Result<()> {
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

/// State of an agent.
#[derive(Default)]
struct Hand {
    device: Option<Box<dyn PutDevice>>,
    process: Option<Process>,
    heap: Option<HeapOwner>,
    claims: Vec<Claim>,
    uses: Vec<UseGuard>,
}

/// The agent's side: carries out the commands of standard input.
pub fn serve() {
    let mut hand = Hand::default();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let text = match hand.act(&words) {
            Ok(numbers) => numbers.iter().fold("ok".to_owned(), |text, n| text + " " + &n.to_string()),
            Err((errno, sentence)) => format!("{errno} {sentence}"),
        };
        println!("{MARK}{text}");
    }
}

fn error(e: vervain_window::Error) -> (i32, String) {
    (e.errno(), e.to_string())
}

fn number(text: &str) -> u64 {
    text.parse().unwrap()
}

pub fn options(words: &[&str]) -> Options {
    let mut options = Options::default();
    for (key, value) in words.iter().map(|word| word.split_once('=').unwrap()) {
        match key {
            "size" => options.size = Some(number(value)),
            "nodes" => options.nodes = Some(number(value) as u32),
            "node" => options.node = Some(number(value) as u32),
            _ => panic!("{key}"),
        }
    }
    options
}

/// The two halves of a uuid, and the number of the node.
fn facts(device: &dyn PutDevice) -> Vec<u64> {
    let uuid = u128::from_ne_bytes(device.facts().uuid);
    vec![device.facts().node.into(), (uuid >> 64) as u64, uuid as u64]
}

impl Hand {
    fn device(&self) -> &dyn PutDevice {
        &**self.device.as_ref().expect("a window")
    }

    fn act(&mut self, words: &[&str]) -> Answer {
        match words {
            ["open", kind, path, rest @ ..] => {
                let (path, options) = (Path::new(path), options(rest));
                let device: Box<dyn PutDevice> = match *kind {
                    "file" => Box::new(FileDevice::open(path, &options).map_err(error)?),
                    _ => Box::new(WriteOnlyDevice::open(path, &options).map_err(error)?),
                };
                let answer = facts(&*device);
                self.device = Some(device);
                Ok(answer)
            }
            ["close"] => {
                *self = Hand::default();
                Ok(vec![])
            }
            ["process"] => {
                let process = self.device().claims().process().map_err(error)?;
                let answer = vec![process.number().into(), process.incarnation()];
                self.process = Some(process);
                Ok(answer)
            }
            ["claim", count] => {
                let claim = self.process.as_ref().unwrap().claim(number(count) as u32).map_err(error)?;
                let granules = claim.granules();
                self.claims.push(claim);
                Ok(vec![granules.start.into(), granules.end.into()])
            }
            ["heap"] => {
                let heap = self.device().claims().heap().map_err(error)?;
                let granules = heap.granules();
                let answer = vec![heap.incarnation(), granules.start.into(), granules.end.into()];
                self.heap = Some(heap);
                Ok(answer)
            }
            ["claim_heap", count, align] => {
                let (count, align) = (number(count) as u32, number(align) as u32);
                let claim = self.heap.as_ref().unwrap().claim(count, align).map_err(error)?;
                let granules = claim.granules();
                self.claims.push(claim);
                Ok(vec![granules.start.into(), granules.end.into()])
            }
            ["give_back", n] => {
                self.claims.remove(number(n) as usize);
                Ok(vec![])
            }
            ["use", node, first, end, incarnation] => {
                let granules = number(first) as u32..number(end) as u32;
                let guard = self.device().claims().use_of(number(node) as u32, granules, number(incarnation));
                self.uses.push(guard.map_err(error)?);
                Ok(vec![])
            }
            ["unuse", n] => {
                self.uses.remove(number(n) as usize);
                Ok(vec![])
            }
            ["put", node, to, rest @ ..] => {
                let words: Vec<u64> = rest.iter().map(|word| number(word)).collect();
                let mut channel = self.device().channel(number(node) as u32).map_err(error)?;
                channel.put(&[Put { to: number(to), from: Origin::Words(&words) }]).map_err(debug)?;
                Ok(vec![])
            }
            ["read", at] => {
                let word = self.device().own().word(number(at));
                Ok(vec![word.load(std::sync::atomic::Ordering::Acquire)])
            }
            ["beat"] => {
                self.process.as_ref().unwrap().beat();
                Ok(vec![])
            }
            // A child by fork, which inherits everything, and sleeps until the test kills it.
            ["fork"] => {
                // SAFETY: the child only makes system calls.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: system calls.
                    unsafe {
                        libc::close(0);
                        libc::close(1);
                        libc::raise(libc::SIGSTOP);
                        libc::sleep(60);
                        libc::_exit(0);
                    }
                }
                // Until fork(2) has returned there.
                // SAFETY: waits for the child just made.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED) };
                Ok(vec![child as u64])
            }
            // In a child by fork: everything here fails, and its drops leave the parent's claims.
            ["fork_and_drop"] => {
                // SAFETY: this agent has one thread beside the harness's, which waits.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let refused = self.device().claims().process().is_err_and(|e| e.errno() == libc::ESRCH)
                        && self.process.as_ref().unwrap().claim(1).is_err_and(|e| e.errno() == libc::ESRCH);
                    *self = Hand::default();
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(if refused { 0 } else { 1 }) };
                }
                let mut status = -1;
                // SAFETY: waits for the child just made.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                Ok(vec![status as u64])
            }
            // A child of which the C library does not know; with `gives_up` it gives up the parent's locks.
            ["clone", gives_up] => {
                let no = 0_usize;
                // SAFETY: as fork, without its handlers; the child only makes system calls.
                let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, no, no, no, no) } as i32;
                if child == 0 {
                    if *gives_up == "gives_up" {
                        in_forked_child();
                    }
                    // SAFETY: system calls.
                    unsafe {
                        libc::close(0);
                        libc::close(1);
                        libc::kill(libc::syscall(libc::SYS_getpid) as i32, libc::SIGSTOP);
                        libc::sleep(60);
                        libc::_exit(0);
                    }
                }
                // SAFETY: waits for the child just made.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED) };
                Ok(vec![child as u64])
            }
            ["unshare"] => {
                // SAFETY: this thread's network namespace only.
                if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                    return Err((libc::EPERM, "no new network namespace".to_owned()));
                }
                Ok(vec![])
            }
            _ => panic!("{words:?}"),
        }
    }
}

fn debug(e: impl Debug) -> (i32, String) {
    (libc::EINVAL, format!("{e:?}"))
}
