//! Turns: who changes the group of an address does so alone. The turn is a listening socket with a name in the abstract
//! namespace: the kernel lets one process have it, and takes it back when that process ends. Waiting is a connection
//! that nobody accepts; its end is the end of the turn.

use super::Names;
use crate::local::socket::Socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::time::{Duration, Instant};
use vervain_hca::{Error, Result};

/// A turn takes milliseconds, and some seconds when members do not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries while nothing tells when the next may succeed.
const NAP: Duration = Duration::from_millis(1);

/// The right to change the group, until dropped.
pub struct Turn {
    _listener: Socket,
}

impl Turn {
    /// Waits for the turn; EBUSY when somebody has it for ever.
    pub fn take(names: &Names, uid: u32) -> Result<Turn> {
        let name = names.turn();
        let end = Instant::now() + PATIENCE;
        loop {
            match Socket::listen(&name) {
                Ok(listener) => return Ok(Turn { _listener: listener }),
                Err(Errno::ADDRINUSE) => {}
                Err(e) => return Err(names.error(e.raw_os_error(), &format!("{}", std::io::Error::from(e)))),
            }
            let left = end.saturating_duration_since(Instant::now());
            match Socket::connect(&name) {
                Ok(waiting) => {
                    let holder = waiting.peer();
                    if let Some((_, other)) = holder.filter(|h| h.1 != uid) {
                        return Err(names.other_user(other));
                    }
                    if left.is_zero() {
                        return Err(stuck(names, holder.map_or(0, |h| h.0)));
                    }
                    wait_for_end(&waiting, left);
                }
                // It has just ended, has not begun to listen yet, or too many wait.
                Err(_) if left.is_zero() => return Err(stuck(names, 0)),
                Err(_) => std::thread::sleep(NAP),
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
    let who = if pid == 0 { "another process".to_owned() } else { format!("process {pid}") };
    names.error(libc::EBUSY, &format!("{who} has been joining for {} s (is it stopped?)", PATIENCE.as_secs()))
}
