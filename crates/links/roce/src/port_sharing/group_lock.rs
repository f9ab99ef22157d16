//! The lock of the group of an address, which one process at a time changes. It is a listening socket with a name in
//! the abstract namespace: the kernel lets one process have it, and takes it back when that process ends. Waiting is a
//! connection that nobody accepts; it ends when the lock is free.

use super::Names;
use super::deadline::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketType;
use std::time::{Duration, Instant};
use vervain_hca::host::cancel::nap;
use vervain_hca::{Error, Result};
use vervain_names::Other;
use vervain_names::process::can_run;
use vervain_sockets::socket::Socket;

/// The lock is held for milliseconds, and some seconds when members do not answer. A holder that only lacks a CPU is
/// waited for longer ([`Deadline`]).
const HELD_AT_MOST: Duration = Duration::from_secs(10);
/// Time that the lock is waited for if its holder is unknown, as it cannot be connected to.
const SILENT_AT_MOST: Duration = Duration::from_secs(2);
/// A process of this user that has the lock listens at once.
const LISTENS_AFTER: Duration = Duration::from_millis(20);
/// Interval of tries while nothing shows when the next may succeed.
const NAP: Duration = Duration::from_millis(1);

/// The right to change the group, until dropped.
pub struct GroupLock {
    _listener: Socket,
}

impl GroupLock {
    /// Waits for the lock; EBUSY when somebody has it for ever.
    pub fn take(names: &Names, uid: u32) -> Result<GroupLock> {
        GroupLock::take_by(names, uid, &Instant::now)
    }

    /// [`GroupLock::take`] by another clock.
    fn take_by(names: &Names, uid: u32, clock: &dyn Fn() -> Instant) -> Result<GroupLock> {
        let name = names.turn();
        let mut deadline = Deadline::new(names.at, clock(), HELD_AT_MOST);
        let mut silent = None;
        // Returned if the next try fails too: this process itself may have had no CPU.
        let mut given_up = None;
        loop {
            match Socket::listen(&name) {
                Ok(listener) => return Ok(GroupLock { _listener: listener }),
                Err(Errno::ADDRINUSE) => given_up.take().map_or(Ok(()), Err)?,
                Err(e) => return Err(names.error(e.raw_os_error(), &format!("{}", std::io::Error::from(e)))),
            }
            match Socket::connect(&name) {
                Ok(waiting) => {
                    silent = None;
                    let holder = waiting.peer();
                    if let Some(other) = holder.filter(|h| h.1 != uid) {
                        return Err(names.other_user(&Other::of_peer(other)));
                    }
                    wait_for_end(names, &waiting, holder.map_or(0, |h| h.0), &mut deadline, clock)?;
                }
                // It has just ended, has not begun to listen yet, or too many wait; or it is another user who keeps
                // silent.
                Err(_) => {
                    let silence = silent.get_or_insert_with(|| Silence::new(names, clock()));
                    given_up = silence.wait(names, uid, clock()).err();
                }
            }
        }
    }
}

/// Waits until process `pid`, which has the lock, has given it back. It stays one connection, for the holder accepts
/// none.
fn wait_for_end(
    names: &Names,
    waiting: &Socket,
    pid: i32,
    deadline: &mut Deadline,
    clock: &dyn Fn() -> Instant,
) -> Result<()> {
    loop {
        let now = clock();
        let left = deadline.left(now, || can_run(pid).then_some(pid));
        // It may be free by now, though: this process itself may have had no CPU.
        let wait = left.unwrap_or_default();
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut [PollFd::new(waiting, PollFlags::IN)], Some(&timeout)) {
            Ok(1..) => return Ok(()),
            // A signal only means another look.
            Ok(0) | Err(_) => _ = left.ok_or_else(|| held(names, pid, deadline, now))?,
        }
    }
}

/// A time during which nobody listens under the name of the lock.
struct Silence {
    since: Instant,
    deadline: Deadline,
    /// Whether it was looked who has the name.
    looked: bool,
}

impl Silence {
    fn new(names: &Names, now: Instant) -> Silence {
        Silence { since: now, deadline: Deadline::new(names.at, now, SILENT_AT_MOST), looked: false }
    }

    /// Waits before the next try.
    fn wait(&mut self, names: &Names, uid: u32, now: Instant) -> Result<()> {
        let name = names.turn();
        if now > self.since + LISTENS_AFTER && !std::mem::replace(&mut self.looked, true) {
            names.taken_by_another(SocketType::SEQPACKET, &name, uid).map_or(Ok(()), Err)?;
        }
        let left = self.deadline.left(now, || process_with_name(&name, uid).filter(|pid| can_run(*pid)));
        let left = left.ok_or_else(|| held(names, 0, &self.deadline, now))?;
        nap(left.min(NAP.max((now - self.since) / 16)));
        Ok(())
    }
}

/// The process of this user that has the name, where /proc shows it.
fn process_with_name(name: &str, uid: u32) -> Option<i32> {
    let holders = vervain_names::holders(SocketType::SEQPACKET, name).ok()?;
    let own = holders.iter().find(|holder| holder.name == name && holder.uid == Some(uid))?;
    vervain_names::process_with(own.inode).map(|(pid, _)| pid)
}

/// The error of a lock that is not given back. `pid`: who has it; 0: unknown.
fn held(names: &Names, pid: i32, deadline: &Deadline, now: Instant) -> Error {
    let why = match (pid, deadline.unanswered(now)) {
        (0, _) => {
            format!("another process, perhaps of another user, has the name @{} and does not listen", names.turn())
        }
        (_, Some(after)) => format!("process {pid} has been joining for {} s, and is not stopped", after.as_secs()),
        (_, None) => format!("process {pid} has been joining for {} s (is it stopped?)", HELD_AT_MOST.as_secs()),
    };
    names.error(libc::EBUSY, &why)
}

#[cfg(test)]
mod tests {
    use super::super::listener_process::ListenerProcess;
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, bind, socket_with};
    use std::cell::{Cell, RefCell};
    use vervain_sockets::unix::abstract_name;

    /// Each of the tests has an address of its own.
    fn names(of: u8) -> Names {
        Names { at: ([127, 9, of, std::process::id() as u8], 4791).into() }
    }

    /// Takes the lock by a clock on which each look takes `step`. `meanwhile` gets the time that has passed. Returns
    /// the time at the end too.
    fn take_by_steps(names: &Names, step: Duration, meanwhile: &dyn Fn(Duration)) -> (Result<GroupLock>, Duration) {
        let (begin, passed) = (Instant::now(), Cell::new(Duration::ZERO));
        let clock = || {
            meanwhile(passed.get());
            begin + passed.replace(passed.get() + step)
        };
        (GroupLock::take_by(names, rustix::process::geteuid().as_raw(), &clock), passed.get())
    }

    /// Takes the lock, whose name `holder` has, which gives it back late.
    fn take_late<T>(names: &Names, holder: T) {
        let (late, holder) = (Duration::from_secs(40), RefCell::new(Some(holder)));
        let gives_back = |passed| _ = holder.borrow_mut().take_if(|_| passed >= late);
        let (lock, passed) = take_by_steps(names, Duration::from_secs(5), &gives_back);
        assert!(lock.is_ok() && passed >= late, "{passed:?}");
    }

    #[test]
    fn a_holder_that_can_run_is_waited_for_until_it_gives_the_lock_back() {
        let names = names(1);
        let uid = rustix::process::geteuid().as_raw();
        take_late(&names, GroupLock::take(&names, uid).unwrap());
    }

    #[test]
    fn a_holder_that_has_yet_to_listen_is_waited_for_too() {
        let names = names(2);
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&socket, &abstract_name(&names.turn()).unwrap()).unwrap();
        take_late(&names, socket);
    }

    #[test]
    fn a_holder_that_is_stopped_is_waited_for_a_short_time() {
        let names = names(3);
        let process = ListenerProcess::start(&names.turn()).unwrap();
        process.stop();
        let step = Duration::from_secs(2);
        let (lock, passed) = take_by_steps(&names, step, &|_| ());
        let error = lock.err().unwrap();
        assert!(error.errno() == libc::EBUSY && error.to_string().contains("for 10 s (is it stopped?)"), "{error}");
        assert!(passed <= HELD_AT_MOST + 2 * step, "{passed:?}");
        // It goes on, and does not give it back all the same.
        process.go_on();
        let (lock, _) = take_by_steps(&names, step, &|_| ());
        let error = lock.err().unwrap();
        assert!(error.errno() == libc::EBUSY && error.to_string().contains("for 60 s, and is not stopped"), "{error}");
    }
}
