//! The eventfd that wakes a process's progress thread; its peers hold it as well. A call costs less than one on a
//! socket. It needs no reader, so a write for a process that has ended does no harm.

use crate::error::{Error, Result};
use crate::host::cancel;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A new one.
pub(crate) fn create() -> Result<OwnedFd> {
    // SAFETY: makes a descriptor, which is owned at once.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            -1 => Err(Error::last_os("cannot make the descriptor that wakes the progress thread")),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Returns true if a descriptor that came from a peer may be written to: never one that could block, or whose write
/// could end in a signal, as that of a pipe.
pub fn is_harmless(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: fills a struct on this stack, all of whose bytes may be zero; reads the flags of an open descriptor.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let kind = match libc::fstat(fd.as_raw_fd(), &raw mut stat) {
            0 => stat.st_mode & libc::S_IFMT,
            _ => libc::S_IFIFO,
        };
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        !matches!(kind, libc::S_IFIFO | libc::S_IFSOCK) && flags >= 0 && flags & libc::O_NONBLOCK != 0
    }
}

/// Wakes the thread that sleeps on `fd`, without waiting; what is not taken in yet counts on.
pub(crate) fn wake(fd: &OwnedFd) {
    cancel::write(fd.as_raw_fd(), 1u64);
}

/// Takes in what has come.
pub(crate) fn take(fd: i32) {
    cancel::take::<u64>(fd);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn only_descriptors_that_cannot_block_or_signal_are_harmless() {
        assert!(is_harmless(create().unwrap().as_fd()));
        let (_read, write) = std::os::unix::net::UnixStream::pair().unwrap();
        write.set_nonblocking(true).unwrap();
        assert!(!is_harmless(write.as_fd()), "a socket");
        let (_read, write) = std::io::pipe().unwrap();
        assert!(!is_harmless(write.as_fd()), "a pipe");
        // SAFETY: a new eventfd, owned at once, that would block when its count is full.
        let blocking = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        assert!(!is_harmless(blocking.as_fd()), "a blocking eventfd");
    }
}
