//! The program that stays inside of a job for tasks that need its namespaces: those about its processes that have
//! devices of Vervain's, and about all its processes at once. To start a program for each task would take milliseconds.
//!
//! It reads a task a line, and answers each with a line. It ends with the supervisor, or at the end of its input.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use vervain_names::AddressMap;
use vervain_names::parking::Step;
use vervain_scheduler::First;

use crate::checkpoint::Wait;
use crate::hold::{Inside, processes};
use crate::park::{self, Processes};
use crate::queues::{Queues, queues};
use crate::space::{SELF, Space};

/// A task for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Look who has slots.
    List,
    /// All devices stand still.
    Stop,
    /// Park all. If one cannot be, none is.
    Park,
    /// All have again what they had given up, where these addresses have become others.
    Rejoin(String),
    /// All go on.
    Go,
    /// A control group is made of the job, by which it can be frozen.
    Group,
    /// Look who is to be asked when the job is held.
    Prepare,
    /// All processes are stopped by a signal.
    Signal,
    /// They go on.
    Continue,
    /// All goes on, however it was held.
    Release,
    /// All processes are frozen, so that nothing is done any more.
    Freeze,
    /// They go on.
    Thaw,
    /// Look what stands in the queues of TCP connections.
    Queues,
}

/// The result of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// The processes that have devices.
    pub(crate) processes: Processes,
    /// The control group of the job's, if one was made.
    pub(crate) group: Option<PathBuf>,
    /// The contents of the queues of TCP connections, if the task asked for them.
    pub(crate) queues: Queues,
}

/// The supervisor's end of that program.
#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Agent {
    /// Starts it.
    pub(crate) fn start(space: &Space) -> Result<Agent> {
        let words = [SELF, "inside", "serve"].map(Into::into);
        let piped = |command: &mut Command| _ = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = space.start(&words, &[], piped)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a program without its streams");
        };
        rustix::io::ioctl_fionbio(&from, true)?;
        Ok(Agent { child, to, from })
    }

    /// Has it do something; the error inside is the sentence of why that cannot be done.
    pub(crate) fn ask(&mut self, task: &Task, wait: Wait<'_>) -> Result<Result<Done, String>> {
        const LOST: &str = "the job's devices cannot be asked: the program that does was killed, or the job has ended";
        let mut text = serde_json::to_vec(task)?;
        text.push(b'\n');
        self.to.write_all(&text).context(LOST)?;
        let mut line = Vec::new();
        let mut bytes = [0; 4096];
        while line.last() != Some(&b'\n') {
            match self.from.read(&mut bytes) {
                Ok(0) => bail!(LOST),
                Ok(read) => line.extend(&bytes[..read]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => wait(&[self.from.as_fd()], None)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context(LOST),
            }
        }
        serde_json::from_slice(&line).context(LOST)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program inside.
///
/// # Errors
/// It does not run inside of a job, or what it has to say cannot be written.
pub fn serve() -> Result<()> {
    ensure!(is_in_a_job(), "this program is for the inside of a job");
    // A turn of a gang lasts until it has looked, so it must not wait for those whose turn it is.
    let _first = First::of_this_thread();
    let mut inside = Inside::default();
    for line in io::stdin().lock().lines() {
        let task = serde_json::from_str(&line?).context("no task")?;
        let done = done(&task, &mut inside).map_err(|e| format!("{e:#}"));
        let mut text = serde_json::to_vec(&done)?;
        text.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&text)?;
        out.flush()?;
    }
    Ok(())
}

/// Elsewhere a signal to all processes would go to those of the whole machine.
fn is_in_a_job() -> bool {
    let words = std::fs::read("/proc/1/cmdline").unwrap_or_default();
    words.split(|byte| *byte == 0).skip(1).take(2).eq([&b"inside"[..], b"init"])
}

fn done(task: &Task, inside: &mut Inside) -> Result<Done> {
    let of = |processes| Done { processes, ..Done::default() };
    match task {
        Task::List => park::processes().map(of),
        Task::Stop => park::all(Step::Stop, &AddressMap::default()).map(of),
        Task::Park => park::park_here().map(of),
        Task::Rejoin(map) => park::all(Step::Rejoin, &map.parse()?).map(of),
        Task::Go => park::all(Step::Go, &AddressMap::default()).map(of),
        Task::Group => Ok(Done { group: inside.group(), ..Done::default() }),
        Task::Prepare => inside.prepare().map(of),
        Task::Signal => {
            inside.stop();
            Ok(Done::default())
        }
        Task::Continue => {
            inside.go_on();
            Ok(Done::default())
        }
        Task::Release => inside.release().map(of),
        Task::Freeze => Ok(Done { group: Some(inside.freeze()?), ..Done::default() }),
        Task::Thaw => inside.thaw().map(|()| Done::default()),
        Task::Queues => Ok(Done { queues: queues(&processes()), ..Done::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_a_line() {
        for task in [Task::List, Task::Rejoin("10.0.0.1=10.0.1.1".into())] {
            let text = serde_json::to_string(&task).unwrap();
            assert!(!text.contains('\n'));
            assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task);
        }
    }

    #[test]
    fn it_serves_no_machine() {
        assert!(serve().unwrap_err().to_string().contains("inside of a job"));
    }

    #[test]
    fn an_answer_is_a_line() {
        let done: Result<Done, String> = Ok(Done { processes: [(7, vec![1, 2])].into(), ..Done::default() });
        let text = serde_json::to_string(&done).unwrap();
        assert!(!text.contains('\n'));
        assert_eq!(serde_json::from_str::<Result<Done, String>>(&text).unwrap(), done);
    }
}
