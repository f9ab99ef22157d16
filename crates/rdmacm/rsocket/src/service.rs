//! The one lasting thread of rsockets, which exists while it has work: it takes in the UDP datagrams of datagram
//! sockets, and has streams check that their peers are there. Work that may wait is done aside, by short-lived threads.

use std::fs;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::datagram::DatagramSocket;
use crate::fabric::{Errno, Result};
use crate::stream::StreamSocket;
use crate::waiting::{Waker, lock, poll};

/// Bytes of its stack: it calls into the verbs library.
const STACK: usize = 256 << 10;

/// For how long who takes a datagram socket away waits until the thread does not have it any more.
const HANDOVER: Duration = Duration::from_secs(5);

/// Threads at a time that wait for something.
const MOST_ASIDE: usize = 8;

/// After how long without traffic a stream is asked, unless it says so itself: as the kernel's TCP.
pub fn default_keep_idle() -> Duration {
    static READ: OnceLock<Duration> = OnceLock::new();
    *READ.get_or_init(|| {
        let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
        let seconds = text.ok().and_then(|text| text.trim().parse().ok()).filter(|seconds| *seconds > 0);
        Duration::from_secs(seconds.unwrap_or(7200))
    })
}

struct Tasks {
    /// The process that they belong to: a child of fork(2) has a copy of them, and no thread.
    process: u32,
    datagrams: Vec<Arc<DatagramSocket>>,
    streams: Vec<(Weak<StreamSocket>, Instant)>,
    waker: Option<Arc<Waker>>,
    /// The thread runs.
    running: bool,
    /// Threads that wait for something.
    aside: usize,
    /// How often the thread has begun anew, with nothing in its hands.
    rounds: u64,
}

static TASKS: Mutex<Tasks> = Mutex::new(Tasks {
    process: 0,
    datagrams: Vec::new(),
    streams: Vec::new(),
    waker: None,
    running: false,
    aside: 0,
    rounds: 0,
});
static ROUND: Condvar = Condvar::new();

/// The tasks of this process. Those of a parent are left as they are, not dropped: its sockets and descriptors are not
/// this one's to close.
fn tasks() -> MutexGuard<'static, Tasks> {
    let mut tasks = lock(&TASKS);
    let here = std::process::id();
    if tasks.process != here {
        mem::forget((mem::take(&mut tasks.datagrams), mem::take(&mut tasks.streams), tasks.waker.take()));
        (tasks.process, tasks.running, tasks.aside) = (here, false, 0);
    }
    tasks
}

/// Takes in what comes over the socket's UDP socket from now on.
///
/// # Errors
/// There is no thread to be had.
pub fn add_datagrams(socket: &Arc<DatagramSocket>) -> Result<()> {
    change(|tasks| tasks.datagrams.push(socket.clone()))
}

/// Does so no more, and has not the socket any more.
pub fn remove_datagrams(socket: &DatagramSocket) {
    let mut tasks = tasks();
    let before = tasks.datagrams.len();
    tasks.datagrams.retain(|other| !std::ptr::eq(&raw const **other, socket));
    if tasks.datagrams.len() == before || !tasks.running {
        return;
    }
    let round = tasks.rounds;
    tasks.waker.iter().for_each(|waker| waker.wake());
    let waited = ROUND.wait_timeout_while(tasks, HANDOVER, |tasks| tasks.rounds == round && tasks.running);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
}

/// Has the stream show whether its peer is there, as its options say now.
///
/// # Errors
/// There is no thread to be had.
pub fn keep_alive(socket: &Arc<StreamSocket>) -> Result<()> {
    let (on, idle) = socket.calls.with_options(|options| (options.keep_alive, options.keep_idle));
    change(|tasks| {
        tasks.streams.retain(|(other, _)| !std::ptr::eq(other.as_ptr(), &raw const **socket));
        if on {
            tasks.streams.push((Arc::downgrade(socket), Instant::now() + idle));
        }
    })
}

fn change(change: impl FnOnce(&mut Tasks)) -> Result<()> {
    let mut tasks = tasks();
    let waker = match &tasks.waker {
        Some(waker) => waker.clone(),
        None => tasks.waker.insert(Arc::new(Waker::new()?)).clone(),
    };
    change(&mut tasks);
    let nothing = tasks.datagrams.is_empty() && tasks.streams.is_empty();
    if !tasks.running && !nothing {
        let own = waker.clone();
        vervain_scheduler::spawn("rsocket", STACK, move || run(&own)).map_err(|_| Errno(libc::EAGAIN))?;
        tasks.running = true;
    }
    waker.wake();
    Ok(())
}

/// Runs work that may wait in a thread of its own, so that the service's thread need not. Returns false if too many
/// such threads run already.
pub fn aside(body: impl FnOnce() + Send + 'static) -> bool {
    struct Place;

    impl Drop for Place {
        fn drop(&mut self) {
            lock(&TASKS).aside -= 1;
        }
    }

    {
        let mut tasks = tasks();
        if tasks.aside >= MOST_ASIDE {
            return false;
        }
        tasks.aside += 1;
    }
    let place = Place;
    let body = move || {
        let _place = place;
        body();
    };
    vervain_scheduler::spawn("rsocket-aside", STACK, body).is_ok()
}

fn run(waker: &Waker) {
    loop {
        let mut tasks = lock(&TASKS);
        tasks.rounds += 1;
        tasks.streams.retain(|(stream, _)| stream.strong_count() > 0);
        let over = tasks.datagrams.is_empty() && tasks.streams.is_empty();
        if over {
            tasks.running = false;
        }
        ROUND.notify_all();
        if over {
            return;
        }
        let now = Instant::now();
        let mut due = Vec::new();
        for (stream, at) in &mut tasks.streams {
            if let Some(stream) = stream.upgrade().filter(|_| *at <= now) {
                *at = now + stream.calls.with_options(|options| options.keep_idle);
                due.push(stream);
            }
        }
        let next = tasks.streams.iter().map(|(_, at)| *at).min();
        let datagrams = tasks.datagrams.clone();
        drop(tasks);
        due.drain(..).for_each(|stream| stream.keep_alive());

        let polled = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = vec![polled(waker.as_raw_fd())];
        fds.extend(datagrams.iter().map(|socket| polled(socket.descriptor())));
        let sleep = next.map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now()));
        if poll(&mut fds, sleep).is_err() {
            continue;
        }
        if fds[0].revents != 0 {
            waker.drain();
        }
        for (socket, _) in datagrams.iter().zip(&fds[1..]).filter(|(_, polled)| polled.revents != 0) {
            socket.take_udp();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Fabric, Id, Kind};

    /// For one test at a time: a child would find the tasks locked for good by a thread of another.
    static ALONE: Mutex<()> = Mutex::new(());

    struct Nothing;

    impl Fabric for Nothing {
        fn identifier(&self, _: Kind) -> Result<Box<dyn Id>> {
            Err(Errno(libc::ENODEV))
        }
    }

    #[test]
    fn few_threads_wait_at_a_time() {
        let _alone = lock(&ALONE);
        let (go, gone) = (Arc::new(Mutex::new(())), Arc::new(()));
        let held = lock(&go);
        let rest = || {
            while tasks().aside > 0 {
                std::thread::yield_now();
            }
        };
        let wait = || {
            let (go, gone) = (go.clone(), gone.clone());
            aside(move || drop((lock(&go), gone)))
        };
        assert!((0..MOST_ASIDE).all(|_| wait()) && !wait());
        drop(held);
        rest();
        assert!(Arc::strong_count(&gone) == 1 && wait());
        rest();
    }

    #[test]
    fn a_forked_child_has_no_tasks_of_its_parent() {
        let _alone = lock(&ALONE);
        let socket = Arc::new(DatagramSocket::new(Arc::new(Nothing), false).unwrap());
        add_datagrams(&socket).unwrap();
        let kept = tasks().waker.clone().unwrap();
        // The thread is to sleep when the process is copied, not to have the lock.
        while tasks().rounds == 0 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        let seen = crate::waiting::in_a_child(|| {
            let known = Arc::strong_count(&socket);
            // Taking away what it never had is nothing to wait for.
            remove_datagrams(&socket);
            let mut seen = 0;
            change(|tasks| {
                let is_own = tasks.waker.as_ref().is_some_and(|waker| !Arc::ptr_eq(waker, &kept));
                seen = tasks.datagrams.len() as i32 + i32::from(!is_own) * 10;
            })
            .unwrap();
            seen + i32::from(Arc::strong_count(&socket) != known) * 20
        });
        assert_eq!(seen, 0);
        remove_datagrams(&socket);
        assert_eq!(Arc::strong_count(&socket), 1);
    }
}
