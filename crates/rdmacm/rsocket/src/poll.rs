//! rpoll and rselect: sockets of both kinds and any other descriptors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fabric::{Errno, Result};
use crate::table::{self, Entry, Socket};
use crate::waiting::{self, Waitable, wait};

/// poll(2): how many have something to say.
///
/// # Errors
/// EINTR, or as of poll(2).
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize> {
    let entries: Vec<Option<Arc<Entry>>> = fds.iter().map(|fd| table::find(fd.fd).ok()).collect();
    let mut sockets: Vec<&dyn Waitable> = Vec::new();
    let mut others = Vec::new();
    for (fd, entry) in fds.iter().zip(&entries) {
        match entry {
            // A call without waiting may be all that a program does.
            Some(entry) => {
                if let Socket::Stream(stream) = &entry.socket {
                    stream.refresh();
                }
                sockets.push(entry.socket.waitable());
            }
            None => others.push(libc::pollfd { revents: 0, ..*fd }),
        }
    }
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut found = |others: &mut [libc::pollfd]| -> Option<Result<usize>> {
        if !others.is_empty()
            && let Err(error) = waiting::poll(others, Duration::ZERO)
        {
            return Some(Err(error));
        }
        let (mut other, mut count) = (others.iter(), 0);
        for (fd, entry) in fds.iter_mut().zip(&entries) {
            fd.revents = match entry {
                Some(entry) => entry.socket.events(fd.events),
                None => other.next().map_or(0, |other| other.revents),
            };
            count += usize::from(fd.revents != 0);
        }
        (count > 0).then_some(Ok(count))
    };
    wait(&sockets, &mut others, deadline, &mut found)?.unwrap_or(Ok(0))
}

/// Sets of select(2), of descriptors below FD_SETSIZE.
pub struct Sets<'a> {
    /// To be readable.
    pub read: Option<&'a mut libc::fd_set>,
    /// To be writable.
    pub write: Option<&'a mut libc::fd_set>,
    /// To have something exceptional.
    pub except: Option<&'a mut libc::fd_set>,
}

fn has(set: Option<&libc::fd_set>, fd: i32) -> bool {
    // SAFETY: a set, and a descriptor below FD_SETSIZE.
    set.is_some_and(|set| unsafe { libc::FD_ISSET(fd, set) })
}

/// select(2): how many bits are set.
///
/// # Errors
/// EINVAL, EBADF, EINTR.
pub fn select(count: i32, sets: &mut Sets<'_>, timeout: Option<Duration>) -> Result<usize> {
    if !(0..=libc::FD_SETSIZE as i32).contains(&count) {
        return Err(Errno(libc::EINVAL));
    }
    let mut fds = Vec::new();
    for fd in 0..count {
        let wanted = |set: bool, events| if set { events } else { 0 };
        let events = wanted(has(sets.read.as_deref(), fd), libc::POLLIN)
            | wanted(has(sets.write.as_deref(), fd), libc::POLLOUT)
            | wanted(has(sets.except.as_deref(), fd), libc::POLLPRI);
        if events != 0 {
            fds.push(libc::pollfd { fd, events, revents: 0 });
        }
    }
    poll(&mut fds, timeout)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    let mut bits = 0;
    let pairs = [
        (&mut sets.read, libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
        (&mut sets.write, libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
        (&mut sets.except, libc::POLLPRI, libc::POLLPRI),
    ];
    for (set, wanted, counts) in pairs {
        let Some(set) = set else { continue };
        // SAFETY: a set.
        unsafe { libc::FD_ZERO(*set) };
        for fd in fds.iter().filter(|fd| fd.events & wanted != 0 && fd.revents & counts != 0) {
            // SAFETY: a set, and a descriptor below FD_SETSIZE.
            unsafe { libc::FD_SET(fd.fd, *set) };
            bits += 1;
        }
    }
    Ok(bits)
}
