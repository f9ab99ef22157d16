//! The processes of a measurement, as the one that measures has them: orders to them, their answers, and their end,
//! which a signal brings too.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{SigSet, Signal};
use serde::de::DeserializeOwned;

use crate::processes::Order;

/// A process that takes orders. It ends with this one.
pub struct Part {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Part {
    /// Starts it, with `variables` beside those of the command.
    pub fn start(name: &str, mut command: Command, variables: &[(String, String)]) -> Result<Part> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).envs(variables.iter().map(|(name, value)| (name, value)));
        let parent = nix::unistd::getpid();
        // SAFETY: both calls are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                // The parent may have ended before.
                if nix::unistd::getppid() == parent { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
            });
        }
        let mut parts = parts();
        ensure!(signal().is_none(), "ended by a signal");
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        parts.insert(child.id().cast_signed());
        drop(parts);
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name} has no pipes")
        };
        Ok(Part { name: name.to_owned(), child, orders: Some(orders), answers: BufReader::new(answers) })
    }

    /// Gives it an order.
    pub fn order(&mut self, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        let told = self.orders.as_mut().map(|orders| orders.write_all(line.as_bytes()));
        told.unwrap_or(Ok(())).with_context(|| format!("{} takes no orders", self.name))
    }

    /// Waits for its next answer.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).with_context(|| format!("cannot hear {}", self.name))?;
        ensure!(read > 0, "{} has ended", self.name);
        serde_json::from_str(&line).with_context(|| format!("{} says '{}'", self.name, line.trim()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It has nothing of its own to put in order. Nobody else ends what has this number later.
        let mut parts = parts();
        let _ = self.child.kill();
        let _ = self.child.wait();
        parts.remove(&self.child.id().cast_signed());
    }
}

/// The processes that there are, for who ends them all.
static PARTS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// The signal that has come; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The signal that has come and ends the measurement.
pub fn signal() -> Option<i32> {
    Some(SIGNAL.load(Ordering::Acquire)).filter(|signal| *signal != 0)
}

fn parts() -> MutexGuard<'static, BTreeSet<i32>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all parts on a signal, so that the measurement ends too, and in order.
pub fn end_on_signals() -> Result<()> {
    let mut set = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| set.add(signal));
    set.thread_block()?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while let Ok(signal) = set.wait() {
            SIGNAL.store(signal as i32, Ordering::Release);
            for part in parts().iter() {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*part), Signal::SIGKILL);
            }
        }
    })?;
    Ok(())
}
