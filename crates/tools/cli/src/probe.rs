//! The trial of process_vm_readv and process_vm_writev between two processes of one user, as doctor makes it: a child
//! reads and writes its parent. That direction is the one that Yama restricts; a parent may always reach its child.

use std::io::{IoSlice, IoSliceMut};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use rustix::process::{PTracer, set_ptracer};

use crate::cli::ProbeArgs;
use crate::output;

/// The bytes that the child must find, and those that it must leave.
const BEFORE: u64 = 0x7665_7276_6169_6e21;
const AFTER: u64 = 0x6d65_6d6f_7279_2121;

static TARGET: AtomicU64 = AtomicU64::new(BEFORE);

/// The errno of the two calls in a child that reaches for this process; None if the bytes arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub read: Option<Errno>,
    pub write: Option<Errno>,
}

impl Outcome {
    pub fn works(self) -> bool {
        self.read.is_none() && self.write.is_none()
    }
}

/// Tries without and then with leave for every process of this user (PR_SET_PTRACER), which Vervain's library gives.
pub fn between_processes() -> Result<(Outcome, Outcome)> {
    let without = attempt()?;
    // EINVAL without Yama, where the call is not needed.
    let _ = set_ptracer(PTracer::Any);
    let with = attempt();
    let _ = set_ptracer(PTracer::None);
    Ok((without, with?))
}

fn attempt() -> Result<Outcome> {
    TARGET.store(BEFORE, Ordering::SeqCst);
    let output = Command::new(std::env::current_exe()?)
        .arg("probe")
        .arg(std::process::id().to_string())
        .arg((&raw const TARGET).addr().to_string())
        .stdin(Stdio::null())
        .output()
        .context("cannot start a second process")?;
    ensure!(output.status.success(), "the second process failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let mut outcome = parse(&String::from_utf8_lossy(&output.stdout))?;
    if outcome.write.is_none() && TARGET.load(Ordering::SeqCst) != AFTER {
        // A sandbox that answers success without doing the work.
        outcome.write = Some(Errno::ENOSYS);
    }
    Ok(outcome)
}

/// The child's side: prints the two errno numbers, 0 for success.
pub fn peer(args: &ProbeArgs) -> Result<ExitCode> {
    let pid = Pid::from_raw(args.pid);
    let remote = [RemoteIoVec { base: args.address, len: 8 }];
    let mut found = [0; 8];
    let read = match process_vm_readv(pid, &mut [IoSliceMut::new(&mut found)], &remote) {
        Ok(8) if u64::from_ne_bytes(found) == BEFORE => 0,
        Ok(_) => libc::ENOSYS,
        Err(e) => e as i32,
    };
    let write = match process_vm_writev(pid, &[IoSlice::new(&AFTER.to_ne_bytes())], &remote) {
        Ok(8) => 0,
        Ok(_) => libc::ENOSYS,
        Err(e) => e as i32,
    };
    output::print(&format!("{read} {write}\n"))
}

fn parse(answer: &str) -> Result<Outcome> {
    let numbers: Vec<i32> = answer.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [read, write] = numbers[..] else { anyhow::bail!("the second process answered '{}'", answer.trim()) };
    let errno = |n| (n != 0).then(|| Errno::from_raw(n));
    Ok(Outcome { read: errno(read), write: errno(write) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_childs_answer_is_two_errno_numbers() {
        assert!(parse("0 0\n").unwrap().works());
        assert_eq!(parse("0 1").unwrap(), Outcome { read: None, write: Some(Errno::EPERM) });
        assert!(parse("").is_err());
    }
}
