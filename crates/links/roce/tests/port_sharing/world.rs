//! The parent of the members: starts and ends them, sends them packets all the time, and keeps the books. A packet is
//! sent when few of its slot are under way, so that none is lost for want of room, and whatever is lost counts.

use super::member::{self, DIRECT, PACKET, VARIABLE};
use std::collections::HashMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Packets of one slot under way at most, and of all open slots.
const WINDOW: u64 = 16;
const ALL: u64 = 128;
/// After this the machine is not slow, something is lost.
const LOST: Duration = Duration::from_secs(20);

/// A loopback address for one test of one run of this binary.
pub fn address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let pid = std::process::id();
    let host = NEXT.fetch_add(1, Ordering::Relaxed) as u8;
    (Ipv4Addr::new(127, (pid >> 8) as u8 | 1, pid as u8, host), 4791).into()
}

/// A process that is a member, or wants to be.
pub struct Member {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// The socket that it got.
    pub socket: String,
    /// Folder of its program if another user starts it; removed with it.
    _copy: Option<TempDir>,
}

/// This binary where any user may start it: the tree may lie in a directory of one user's own.
fn for_anybody() -> (TempDir, PathBuf) {
    let open = Permissions::from_mode(0o755);
    let dir = tempfile::Builder::new().permissions(open).tempdir().unwrap();
    let copy = dir.path().join("member");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    (dir, copy)
}

impl Member {
    /// Starts a process, and does not wait until it has joined.
    pub fn start(at: SocketAddr, slots: &[u32], uid: Option<u32>) -> Member {
        let Some(uid) = uid else {
            return Member::start_as(Command::new(std::env::current_exe().unwrap()), at, slots);
        };
        let (dir, program) = for_anybody();
        let mut command = Command::new(program);
        command.uid(uid);
        let mut member = Member::start_as(command, at, slots);
        member._copy = Some(dir);
        member
    }

    /// Starts a member by a command that starts this binary with the arguments that it gets.
    pub fn start_as(mut command: Command, at: SocketAddr, slots: &[u32]) -> Member {
        let slots: Vec<String> = slots.iter().map(u32::to_string).collect();
        let mut child = command
            .args(["--exact", "member::member_process", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, format!("{at} {}", slots.join(",")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Member { child, lines, socket: String::new(), _copy: None }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that the process says; empty when it has ended.
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return String::new();
            }
            if let Some(said) = line.trim_end().strip_prefix('#') {
                return said.to_owned();
            }
        }
    }

    /// Waits until the process has joined; the reason if it cannot.
    pub fn joined(&mut self) -> Result<(), String> {
        let said = self.hear();
        match said.strip_prefix("joined ") {
            Some(socket) => {
                self.socket = socket.to_owned();
                Ok(())
            }
            None => Err(said),
        }
    }

    /// Makes the process do something, and returns its answer.
    pub fn tell(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.hear()
    }

    /// Fates of misrouted packets: handed over, not taken, unowned, adopted; and unclaimed packets at the address.
    pub fn counts(&mut self) -> [u64; 5] {
        let said = self.tell("counts");
        let numbers: Vec<u64> = said.split(' ').map(|n| n.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    }

    /// Sends a signal. One that is to stop has then stopped.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child that has not been waited for; what is told of it goes to a struct on this stack,
        // for which zeros are valid.
        unsafe {
            libc::kill(self.pid() as i32, signal);
            if signal == libc::SIGSTOP {
                libc::waitid(libc::P_PID, self.pid(), &mut std::mem::zeroed(), libc::WSTOPPED);
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The books of a slot.
#[derive(Default)]
struct Book {
    owner: u32,
    sent: u64,
    /// Sequence numbers that were answered.
    done: Vec<bool>,
    answered: u64,
    adopted: u64,
    /// It may still answer, but is sent nothing.
    closed: bool,
}

#[derive(Default)]
struct Books {
    slots: HashMap<u32, Book>,
    wrong: Vec<String>,
}

/// Packets for all slots that are open, all the time.
pub struct Traffic {
    books: Arc<Mutex<Books>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    /// Begins to send to `at`.
    pub fn start(at: SocketAddr) -> Traffic {
        let (books, stop) = (Arc::new(Mutex::new(Books::default())), Arc::new(AtomicBool::new(false)));
        let (b, s) = (Arc::clone(&books), Arc::clone(&stop));
        let thread = Some(std::thread::spawn(move || run(at, &b, &s)));
        Traffic { books, stop, thread }
    }

    /// Packets for `slot` are sent from now on, and only `owner` may process them.
    pub fn open(&self, slot: u32, owner: u32) {
        let book = Book { owner, ..Book::default() };
        assert!(self.books.lock().unwrap().slots.insert(slot, book).is_none(), "slot {slot} is open");
    }

    /// Nothing more is sent to `slot`, and it need not answer: call it before its process is stopped or ended.
    pub fn close(&self, slot: u32) {
        self.books.lock().unwrap().slots.get_mut(&slot).unwrap().closed = true;
    }

    /// Goes on sending to `slot`.
    pub fn reopen(&self, slot: u32) {
        self.books.lock().unwrap().slots.get_mut(&slot).unwrap().closed = false;
    }

    /// Waits until every open slot has had `more` packets processed from now on: the members work.
    pub fn flows(&self, more: u64) {
        let goals: HashMap<u32, u64> = {
            let books = self.books.lock().unwrap();
            books.slots.iter().filter(|(_, b)| !b.closed).map(|(slot, b)| (*slot, b.answered + more)).collect()
        };
        self.wait(|slot, book| book.closed || goals.get(&slot).is_none_or(|goal| book.answered >= *goal));
    }

    /// Stops sending and waits for the last answers: nothing sent to an open slot may be lost, and nothing have been
    /// processed by somebody else. Returns how many packets were processed, and how many of them after a hand-over.
    pub fn finish(mut self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.wait(|_, book| book.closed || book.answered == book.sent);
        self.thread.take().unwrap().join().unwrap();
        let books = self.books.lock().unwrap();
        assert_eq!(books.wrong, Vec::<String>::new());
        books.slots.values().fold((0, 0), |sum, book| (sum.0 + book.answered, sum.1 + book.adopted))
    }

    fn wait(&self, done: impl Fn(u32, &Book) -> bool) {
        let end = Instant::now() + LOST;
        loop {
            let late: Vec<String> = {
                let books = self.books.lock().unwrap();
                assert_eq!(books.wrong, Vec::<String>::new());
                let late = books.slots.iter().filter(|(slot, book)| !done(**slot, book));
                late.map(|(slot, b)| format!("slot {slot}: {} of {} packets processed", b.answered, b.sent)).collect()
            };
            if late.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "packets are lost: {late:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket whose packets members accept: not to be fragmented.
pub fn sender() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
    socket
}

/// Sets a socket option that is an int.
pub fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads the int.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn run(at: SocketAddr, books: &Mutex<Books>, stop: &AtomicBool) {
    let socket = sender();
    socket.set_nonblocking(true).unwrap();
    let mut stopped_at = None;
    loop {
        if stop.load(Ordering::Relaxed) {
            // Answers still come.
            let since: &mut Instant = stopped_at.get_or_insert_with(Instant::now);
            let books = books.lock().unwrap();
            if books.slots.values().all(|b| b.closed || b.answered == b.sent) || since.elapsed() > LOST {
                return;
            }
        }
        {
            let mut books = books.lock().unwrap();
            let mut bytes = [0; PACKET];
            while socket.recv(&mut bytes).is_ok_and(|n| n == PACKET) {
                enter(&mut books, &bytes);
            }
            let under_way = |b: &Book| if b.closed { 0 } else { b.sent - b.answered };
            let mut all: u64 = books.slots.values().map(under_way).sum();
            let open = books.slots.iter_mut().filter(|(_, b)| stopped_at.is_none() && !b.closed);
            for (slot, book) in open {
                let room = all < ALL && under_way(book) < WINDOW;
                if room && socket.send_to(&member::packet(*slot, book.sent), at).is_ok() {
                    all += 1;
                    book.sent += 1;
                    book.done.push(false);
                }
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Enters an answer.
fn enter(books: &mut Books, bytes: &[u8; PACKET]) {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let (slot, pid, way) = (word(0), word(12), word(16));
    let sequence = u64::from_ne_bytes(bytes[4..12].try_into().unwrap());
    let Some(book) = books.slots.get_mut(&slot) else {
        books.wrong.push(format!("process {pid} has processed a packet for slot {slot}, which nobody has"));
        return;
    };
    if pid != book.owner {
        books.wrong.push(format!("process {pid} has processed a packet for slot {slot} of {}", book.owner));
    }
    match book.done.get_mut(sequence as usize) {
        Some(done) if !*done => *done = true,
        _ => books.wrong.push(format!("packet {sequence} for slot {slot} was processed twice, or never sent")),
    }
    book.answered += 1;
    book.adopted += u64::from(way != DIRECT);
}
