//! A process with a connection manager that prints received MADs and sends those that it is told to. It is this test
//! binary again, started with a variable of the environment; and the parent's handle on it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use vervain_gsi::{ANY, Mad, Path};
use vervain_hca::Gid;
use vervain_link::gsi;

/// Asks for the process, and names the address that it sends from; [`FIRST`]: the first one that its device has.
pub const VARIABLE: &str = "VERVAIN_TEST_GSI_MEMBER";
pub const FIRST: &str = "first";

/// After this a machine is not slow, something is lost.
const LIMIT_MS: i32 = 20_000;

/// Attribute IDs.
pub const REQ: u16 = 0x10;
pub const REP: u16 = 0x13;

/// Offset of the sequence number in a MAD of these tests.
const SEQUENCE_AT: usize = 200;

/// A MAD with sequence number `sequence` that process `from` sends to what `whom` says: a slot, or a service for a REQ.
pub fn mad(attribute: u16, from: u32, whom: u64, sequence: u32) -> Mad {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[24..28].copy_from_slice(&(from << 22 | sequence & 0x3f_ffff).to_be_bytes());
    match attribute {
        REQ => mad[32..40].copy_from_slice(&whom.to_be_bytes()),
        _ => mad[28..32].copy_from_slice(&((whom as u32) << 22).to_be_bytes()),
    }
    mad[SEQUENCE_AT..SEQUENCE_AT + 4].copy_from_slice(&sequence.to_be_bytes());
    mad
}

pub fn gid(text: &str) -> Gid {
    match text {
        "*" => ANY,
        text => match text.parse().unwrap() {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(ip) => ip.octets(),
        },
    }
}

/// The harness writes to standard output too; what is meant for the parent has a mark.
fn say(text: &str) {
    // One write, so that a kill leaves no half of it.
    let _ = std::io::stdout().write_all(format!("\n#{text}\n").as_bytes());
    let _ = std::io::stdout().flush();
}

struct Client;

impl gsi::Client for Client {
    fn receive(&self, path: &Path, mad: &Mad) {
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| mad[at + i]));
        let ip = |gid: Gid| std::net::Ipv6Addr::from(gid).to_canonical();
        let (attribute, sequence) = (word(16) >> 16, word(SEQUENCE_AT));
        let (here, there, hops) = (ip(path.sgid), ip(path.dgid), path.hop_limit);
        say(&format!("mad {attribute:#x} {sequence} from {} {there} at {here} hops {hops}", word(24) >> 22));
    }

    fn tick(&self, _now: u64) -> u64 {
        say("tick");
        u64::MAX
    }

    fn gone(&self, slot: u32) {
        say(&format!("gone {slot}"));
    }
}

/// The process, if this is one.
#[test]
fn member_process() {
    let Ok(address) = std::env::var(VARIABLE) else { return };
    gsi::attach(Arc::new(Client)).unwrap();
    assert_eq!(gsi::attach(Arc::new(Client)).unwrap_err().errno(), libc::EBUSY);
    let devices = vervain_link::devices().unwrap();
    let gids = devices[0].gids(1);
    let entry = gids.iter().find(|entry| address == FIRST || entry.gid == gid(&address)).unwrap();
    say(&format!("slot {} {}", gsi::slot(), std::net::Ipv6Addr::from(entry.gid).to_canonical()));
    let index = entry.index as u8;
    let errno = |done: vervain_hca::Result<()>| done.map_or_else(|e| e.errno(), |()| 0);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |n: usize| words[n].parse::<u64>().unwrap();
        let path = |to: &str| Path { port: 1, sgid_index: index, hop_limit: 64, dgid: gid(to), ..Path::default() };
        match words[0] {
            "claim" => say(&format!("did {}", errno(gsi::claim(number(1), &gid(words[2]))))),
            "release" => say(&format!("did {}", errno(gsi::release(number(1), &gid(words[2]))))),
            "resolve" => say(&format!("did {}", errno(gsi::resolve(&path(words[1]), Duration::ZERO)))),
            // send ATTRIBUTE WHOM ADDRESS FIRST COUNT
            "send" => {
                let mut failed = 0;
                for sequence in number(4)..number(4) + number(5) {
                    let mad = mad(number(1) as u16, gsi::slot(), number(2), sequence as u32);
                    failed = errno(gsi::send(&path(words[3]), &mad)).max(failed);
                }
                say(&format!("did {failed}"));
            }
            "wake" => gsi::wake(),
            // SAFETY: the child does what any may that begins with a device of its own, and ends by a signal.
            "fork" => match unsafe { libc::fork() } {
                0 => be_a_child(),
                child => say(&format!("child {child}")),
            },
            other => panic!("{other}"),
        }
    }
}

/// A forked child, which begins anew: it has a connection manager of its own, or none.
fn be_a_child() -> ! {
    // SAFETY: sets a timer, so that the child ends whatever becomes of the test.
    unsafe { libc::alarm(60) };
    assert_eq!(gsi::slot(), 0);
    assert_eq!(gsi::claim(1, &ANY).unwrap_err().errno(), libc::EINVAL);
    gsi::attach(Arc::new(Client)).unwrap();
    say(&format!("slot of child {}", gsi::slot()));
    loop {
        std::thread::park();
    }
}

/// The parent's hold on such a process.
pub struct Member {
    child: Child,
    lines: BufReader<ChildStdout>,
    heard: VecDeque<String>,
    pub slot: u32,
    pub address: String,
}

impl Member {
    pub fn start(address: &str, variables: &[(&str, &str)]) -> Member {
        Member::start_as(Command::new(std::env::current_exe().unwrap()), address, variables)
    }

    /// Starts one by a command that starts this binary with the arguments that it gets.
    pub fn start_as(mut command: Command, address: &str, variables: &[(&str, &str)]) -> Member {
        let mut child = command
            .args(["--exact", "member::member_process", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, address)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut member = Member { child, lines, heard: VecDeque::new(), slot: 0, address: String::new() };
        let heard = member.hear("slot ");
        let (slot, address) = heard.split_once(' ').unwrap();
        (member.slot, member.address) = (slot.parse().unwrap(), address.to_owned());
        member
    }

    /// The rest of the next line that begins like this; others stay for later. Empty when the process has ended.
    pub fn hear(&mut self, beginning: &str) -> String {
        if let Some(n) = self.heard.iter().position(|line| line.starts_with(beginning)) {
            return self.heard.remove(n).unwrap()[beginning.len()..].to_owned();
        }
        loop {
            self.wait(beginning);
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return String::new();
            }
            let Some(said) = line.trim_end().strip_prefix('#') else { continue };
            match said.strip_prefix(beginning) {
                Some(rest) => return rest.to_owned(),
                None => self.heard.push_back(said.to_owned()),
            }
        }
    }

    /// Waits until it says something.
    fn wait(&self, beginning: &str) {
        if self.lines.buffer().is_empty() {
            let fd = self.lines.get_ref().as_raw_fd();
            let mut fds = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: the struct lives on this stack.
            let ready = unsafe { libc::poll(&raw mut fds, 1, LIMIT_MS) };
            assert_eq!(ready, 1, "it does not say {beginning:?}, but {:?}", self.heard);
        }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Makes it do something. Returns the errno.
    pub fn does(&mut self, line: &str) -> i32 {
        self.tell(line);
        self.hear("did ").parse().unwrap()
    }

    /// Makes it send `count` MADs, numbered from `first`, to `whom` at `address`. Returns the errno.
    pub fn sends(&mut self, attribute: u16, whom: u64, address: &str, first: u32, count: u32) -> i32 {
        self.does(&format!("send {attribute} {whom} {address} {first} {count}"))
    }

    /// Its report of MAD `sequence` from `sender`.
    pub fn line(&self, attribute: u16, sequence: u32, sender: &Member, hops: u8) -> String {
        let (slot, from, at) = (sender.slot, &sender.address, &self.address);
        format!("{attribute:#x} {sequence} from {slot} {from} at {at} hops {hops}")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal. One that is to stop has then stopped, one that is to end has ended.
    pub fn signal(&mut self, signal: i32) {
        // SAFETY: a signal to a child that has not been waited for; its status goes to a struct on this stack, for
        // which zeros are valid.
        unsafe {
            libc::kill(self.pid() as i32, signal);
            if signal == libc::SIGSTOP {
                libc::waitid(libc::P_PID, self.pid(), &mut std::mem::zeroed(), libc::WSTOPPED);
            }
        }
        if signal == libc::SIGKILL {
            self.child.wait().unwrap();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
