//! The signals that the launcher receives: those that it passes on, and SIGCHLD.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Those that are passed on to the ranks.
const PASSED_ON: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// The signals, as a descriptor that is ready when one has come. They are blocked meanwhile.
pub struct Signals {
    descriptor: SignalFd,
    before: SigSet,
}

impl Signals {
    pub fn take() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGCHLD);
        // nohup(1), or a shell that starts this in the background, has had some ignored, and that stays so.
        PASSED_ON.into_iter().filter(|signal| !is_ignored(*signal)).for_each(|signal| set.add(signal));
        // If the parent has had SIGCHLD ignored, a child's status would be lost.
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action runs no code of this process.
        unsafe { sigaction(Signal::SIGCHLD, &default) }?;
        let before = set.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Signals { descriptor, before })
    }

    /// The next signal that has come, if it is one that has a name.
    pub fn next(&mut self) -> io::Result<Option<Signal>> {
        let Some(info) = self.descriptor.read_signal()? else { return Ok(None) };
        let number = i32::try_from(info.ssi_signo).map_err(io::Error::other)?;
        Ok(Some(Signal::try_from(number)?))
    }

    /// The mask of this thread before.
    pub fn mask_before(&self) -> SigSet {
        self.before
    }

    /// Has signals act on this process again.
    pub fn give_back(&mut self) {
        let _ = self.before.thread_set_mask();
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn is_ignored(signal: Signal) -> bool {
    // SAFETY: a null action changes nothing; the old one is written to a value of its type.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as i32, std::ptr::null(), &raw mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

/// A signal's name, or its number for one that has none.
pub fn name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}
