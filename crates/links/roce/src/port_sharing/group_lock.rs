//! The lock of the group of an address, which one process at a time changes. It is a listening socket with a name in
//! the abstract namespace: the kernel lets one process have it, and takes it back when that process ends. Waiting is a
//! connection that nobody accepts; it ends when the lock is free.

use super::Names;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketType;
use std::time::{Duration, Instant};
use vervain_hca::host::cancel::nap;
use vervain_hca::{Error, Result};
use vervain_names::Other;
use vervain_sockets::socket::Socket;

/// The lock is held for milliseconds, and some seconds when members do not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that the lock is waited for if its holder is unknown, as it cannot be connected to.
const PATIENCE_WITH_STRANGERS: Duration = Duration::from_secs(2);
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
        let name = names.turn();
        let begin = Instant::now();
        // Since when nobody listens under the name, and whether it was looked who has it.
        let mut silent: Option<(Instant, bool)> = None;
        loop {
            match Socket::listen(&name) {
                Ok(listener) => return Ok(GroupLock { _listener: listener }),
                Err(Errno::ADDRINUSE) => {}
                Err(e) => return Err(names.error(e.raw_os_error(), &format!("{}", std::io::Error::from(e)))),
            }
            match Socket::connect(&name) {
                Ok(waiting) => {
                    silent = None;
                    let holder = waiting.peer();
                    if let Some(other) = holder.filter(|h| h.1 != uid) {
                        return Err(names.other_user(&Other::of_peer(other)));
                    }
                    let left = PATIENCE.saturating_sub(begin.elapsed());
                    if left.is_zero() {
                        return Err(stuck(names, holder.map_or(0, |h| h.0)));
                    }
                    wait_for_end(&waiting, left);
                }
                // It has just ended, has not begun to listen yet, or too many wait; or it is another user who keeps
                // silent.
                Err(_) => {
                    let (since, looked) = silent.get_or_insert((Instant::now(), false));
                    if since.elapsed() > LISTENS_AFTER && !std::mem::replace(looked, true) {
                        names.taken_by_another(SocketType::SEQPACKET, &name, uid).map_or(Ok(()), Err)?;
                    }
                    if since.elapsed() > PATIENCE_WITH_STRANGERS {
                        return Err(stuck(names, 0));
                    }
                    nap(NAP);
                }
            }
        }
    }
}

fn wait_for_end(waiting: &Socket, at_most: Duration) {
    let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
    // A signal or an error only means another try.
    let _ = poll(&mut [PollFd::new(waiting, PollFlags::IN)], Some(&timeout));
}

fn stuck(names: &Names, pid: i32) -> Error {
    let why = if pid == 0 {
        format!("another process, perhaps of another user, has the name @{} and does not listen", names.turn())
    } else {
        format!("process {pid} has been joining for {} s (is it stopped?)", PATIENCE.as_secs())
    };
    names.error(libc::EBUSY, &why)
}
