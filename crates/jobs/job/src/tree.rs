//! The processes of a job that has no namespaces: a first one, and all that it and those have started. Orphans among
//! them become children of this process, so all can be found and killed.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpid, getppid};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::desk::Group;
use crate::space::{self, End, memory};

/// A running job. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Pid,
    ended: OwnedFd,
}

impl Tree {
    /// Starts the job's first process. This process has no other children, before or as long as the job is there.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Tree> {
        set_child_subreaper(true).context("cannot take in the job's orphans")?;
        let child = command.spawn().context("cannot start the job's first process")?;
        let root = Pid::from_raw(child.id().cast_signed());
        let pid = rustix::process::Pid::from_raw(root.as_raw()).context("a process without a number")?;
        let ended = pidfd_open(pid, PidfdFlags::empty());
        let ended = ended.inspect_err(|_| clear()).context("cannot watch the job's first process")?;
        Ok(Tree { root, ended })
    }

    /// Becomes ready when the first process has ended.
    pub fn line(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Returns true if it has. Orphans that have ended are forgotten.
    pub fn has_ended(&self) -> bool {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Ok(Some(pid)) = waitid(Id::All, look).map(|status| status.pid())
            && pid != self.root
        {
            let _ = waitpid(pid, None);
        }
        let mut polled = [PollFd::new(self.line(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// How it has ended, or is killed now. All that is left of the job is gone when this returns.
    pub fn end(self) -> End {
        let _ = self.has_ended() || kill(self.root, Signal::SIGKILL).is_ok();
        match waitpid(self.root, None) {
            Ok(WaitStatus::Exited(_, code)) => End::Status(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => End::Signal(signal as i32),
            _ => End::Killed,
        }
    }

    /// The job's processes.
    pub fn processes(&self) -> Vec<Pid> {
        let all = parents();
        let mut found = vec![getpid()];
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        found.split_off(1)
    }

    /// Bytes of memory that are the job's alone, or its part of what is shared.
    pub fn memory(&self) -> u64 {
        self.processes().into_iter().filter_map(|pid| memory(Path::new(&format!("/proc/{pid}")))).sum()
    }
}

impl Group for Tree {
    fn leader(&self) -> Option<Pid> {
        (!self.has_ended()).then_some(self.root)
    }

    fn kill(&self) {
        // Not waited for yet, so that the number is its own.
        let _ = kill(self.root, Signal::SIGKILL);
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        clear();
    }
}

/// Kills all children of this process until there are none. Only this process waits for them, so each number is that of
/// a child; what they leave behind becomes a child too.
fn clear() {
    loop {
        let children = children(getpid());
        if children.is_empty() {
            return;
        }
        for child in &children {
            let _ = kill(*child, Signal::SIGKILL);
        }
        for child in children {
            let _ = waitpid(child, None);
        }
    }
}

fn children(of: Pid) -> Vec<Pid> {
    parents().into_iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| pid).collect()
}

/// All processes, each with its parent.
fn parents() -> Vec<(Pid, Pid)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parent = |pid: i32| parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    numbers.filter_map(|pid| Some((Pid::from_raw(pid), Pid::from_raw(parent(pid)?)))).collect()
}

/// The parent in the words of /proc/PID/stat: the second behind the name, which may have any signs.
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The program that becomes such a job's first: it is killed when its supervisor ends, which has this number.
///
/// # Errors
/// The supervisor has ended, or the program cannot be executed.
pub fn alone(supervisor: i32, words: &[std::ffi::OsString]) -> Result<std::convert::Infallible> {
    set_pdeathsig(Signal::SIGKILL)?;
    ensure!(getppid().as_raw() == supervisor, "the supervisor has ended");
    match space::root(words) {
        Ok(never) => match never {},
        Err(e) => bail!(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_found_whatever_the_name_is() {
        assert_eq!(parent("12 (a) b (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (a"), None);
        assert!(parents().contains(&(getpid(), getppid())));
    }
}
