//! The process that ends the ranks if the launcher is killed by SIGKILL, and can do nothing itself any more.
//!
//! The kernel kills the processes that the launcher started (PR_SET_PDEATHSIG in `mod.rs`), but not those that they
//! started in turn, such as the program behind a shell script. A second process does: it holds the reading end of a
//! pipe whose other end only the launcher has, and learns from it which process groups there are. When the pipe ends,
//! it kills those that are left.

use std::collections::BTreeSet;
use std::env;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

/// The launcher's side.
pub struct Guard(Child);

impl Guard {
    pub fn start() -> Result<Guard> {
        let mut command = Command::new(env::current_exe().context("cannot find this command")?);
        // Without the launcher's output, whose readers wait for its end, and without the terminal's signals.
        command.arg("guard").process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A view of devices that an outer `vervain run` gives is not needed here.
        command.env_remove("LD_PRELOAD").spawn().map(Guard).context("cannot start a second process")
    }

    /// From now on the process group `pid` is to be killed.
    pub fn add(&mut self, pid: Pid) {
        self.tell('+', pid);
    }

    /// The process group has ended, and its number may become that of another.
    pub fn remove(&mut self, pid: Pid) {
        self.tell('-', pid);
    }

    fn tell(&mut self, sign: char, pid: Pid) {
        if let Some(pipe) = &mut self.0.stdin {
            // If the guard was killed, the job goes on without it.
            let _ = pipe.write_all(format!("{sign}{pid}\n").as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The second process.
pub fn guard() -> Result<ExitCode> {
    // A signal that ends the whole session ends the launcher too, and its ranks are to end after it.
    SigSet::all().thread_block()?;
    for group in left(io::stdin().lock()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    Ok(ExitCode::SUCCESS)
}

/// The groups that were added and not removed when the pipe ends.
fn left(pipe: impl BufRead) -> BTreeSet<i32> {
    let mut groups = BTreeSet::new();
    for line in pipe.lines().map_while(Result::ok) {
        // 0 and 1 would mean the own group and all processes.
        let number = line.get(1..).and_then(|digits| digits.parse().ok()).filter(|pid: &i32| *pid > 1);
        match (line.as_bytes().first(), number) {
            (Some(b'+'), Some(group)) => _ = groups.insert(group),
            (Some(b'-'), Some(group)) => _ = groups.remove(&group),
            _ => {}
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_is_who_was_added_and_not_removed() {
        assert_eq!(left(&b"+12\n+13\n-12\n+14\n"[..]), BTreeSet::from([13, 14]));
        assert_eq!(left(&b"+0\n+1\n+-5\nx7\n\n+\n+x\n"[..]), BTreeSet::new());
    }
}
