//! Standard input of rank 0 where it is a terminal. The rank is in a process group of its own, and the kernel stops a
//! process that reads the terminal in the background (SIGTTIN); so the launcher reads it, while it is in the foreground
//! itself.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ChildStdin;

use nix::poll::PollFlags;
use rustix::fs::OFlags;
use rustix::stdio::stdin;

/// The terminal, and the pipe to rank 0.
pub struct Terminal {
    pipe: ChildStdin,
    /// Bytes that were read and that the pipe has not taken yet.
    typed: Vec<u8>,
}

impl Terminal {
    /// Returns true if standard input is one.
    pub fn is_input() -> bool {
        io::stdin().is_terminal()
    }

    pub fn new(pipe: ChildStdin) -> io::Result<Terminal> {
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Terminal { pipe, typed: Vec::new() })
    }

    /// The descriptor to poll, and the events; None as long as the launcher is in the background.
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        if !self.typed.is_empty() {
            return Some((self.pipe.as_fd(), PollFlags::POLLOUT));
        }
        in_foreground().then(|| (stdin(), PollFlags::POLLIN))
    }

    /// Passes on what there is, without waiting. False when that is over: the terminal has ended, or rank 0 reads no
    /// more.
    pub fn pass_on(&mut self) -> bool {
        if self.typed.is_empty() {
            let mut piece = [0; 4096];
            match rustix::io::read(stdin(), &mut piece) {
                Ok(0) => return false,
                Ok(length) => self.typed.extend(&piece[..length]),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
        match self.pipe.write(&self.typed) {
            Ok(length) => _ = self.typed.drain(..length),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
        true
    }
}

fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}
