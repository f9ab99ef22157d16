//! Holding a job: its devices stand still, and then all its processes are stopped. Nothing of it moves, and its
//! connections have no timers then, so it may be held for any time. Since no image is made, processes keep all that
//! images cannot contain.
//!
//! The gang does that itself ([`Hand`]), since each program that had to run in between would cost some tens of
//! microseconds. The program inside ([`Inside`]) looks up the processes to be asked before, and lets the job go on if
//! the gang is killed.
//!
//! Processes are stopped by the freezer where there is one ([`crate::freezer`]), else by a signal to -1 from the
//! program inside. That reaches all processes of its process namespace but the init and itself, in one system call, and
//! no fork gets past it: a process that is being forked begins with the signal, or its parent forks when it goes on.
//! All of the job is stopped, so none of its processes waits for a stopped one.
//!
//! A process that opens its first device after the look is stopped without having been parked, until the next turn:
//! that is harmless for the length of a slice, since timeouts of connections are longer, and it has just begun.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vervain_names::parking::{Asked, Step};
use vervain_names::process::state;

use crate::control::Reach;
use crate::freezer::{Freeze, Freezer};
use crate::gang::ready;
use crate::park::{Known, Processes, begin, why};

/// Time that a process may take for a step. A stop has a limit of its own below.
const PATIENCE: Duration = Duration::from_secs(5);

/// The gang's means to hold a job.
#[derive(Debug)]
pub(crate) struct Hand {
    /// Slots have their names in this network namespace.
    net: File,
    freeze: Option<Freeze>,
    life: u32,
}

impl Hand {
    /// Makes it from the supervisor's facts. Numbers of processes in them must mean the same here; `peer` is the
    /// process at the other end of the connection to the supervisor.
    pub(crate) fn new(reach: &Reach, peer: Option<i32>) -> Result<Hand> {
        ensure!(
            peer == Some(reach.supervisor.cast_signed()),
            "its supervisor is in another process namespace; remedy: run this beside the supervisor"
        );
        let net = format!("/proc/{}/ns/net", reach.init);
        let net = File::open(&net).with_context(|| format!("cannot open {net}"))?;
        let freeze = reach.group.as_deref().map(|group| {
            Freeze::of(group).with_context(|| format!("cannot freeze the control group {}", group.display()))
        });
        Ok(Hand { net, freeze: freeze.transpose()?, life: reach.life })
    }

    /// The job's life that this is for.
    pub(crate) fn life(&self) -> u32 {
        self.life
    }

    /// The freezer; None if all are to be stopped by a signal.
    pub(crate) fn freeze(&self) -> Option<&Freeze> {
        self.freeze.as_ref()
    }

    /// Asks processes of the job for a step. This thread is in the job's network namespace from then on.
    pub(crate) fn ask(&self, processes: &Processes, step: Step) -> Result<Answers> {
        let (there, here) = (self.net.metadata()?, fs::metadata("/proc/thread-self/ns/net")?);
        if (there.dev(), there.ino()) != (here.dev(), here.ino()) {
            setns(&self.net, CloneFlags::CLONE_NEWNET).context("cannot enter the job's network namespace")?;
        }
        Ok(Answers::of(processes, step))
    }
}

/// Answers that are to come from processes that were asked for a step.
#[derive(Debug)]
pub(crate) struct Answers {
    step: Step,
    asked: Vec<(i32, Asked)>,
    failed: Option<anyhow::Error>,
}

impl Answers {
    /// Asks all at once. If one cannot be asked, the others are all the same.
    fn of(processes: &Processes, step: Step) -> Answers {
        let mut answers = Answers { step, asked: Vec::new(), failed: None };
        for (pid, slots) in processes {
            match begin(slots, step) {
                Ok(asked) => answers.asked.extend(asked.map(|asked| (*pid, asked))),
                Err(e) => answers.fail(*pid, &e),
            }
        }
        answers
    }

    fn fail(&mut self, pid: i32, error: &io::Error) {
        self.failed.get_or_insert_with(|| anyhow!("process {pid} of the job {}", why(self.step, error)));
    }

    /// Waits for all, even if one fails, so that none is left in the midst of a step; `wait` waits for a descriptor or
    /// a time, and may end all of it. A process that has ended needs nothing.
    pub(crate) fn all(mut self, wait: &mut dyn FnMut(BorrowedFd<'_>, Instant) -> Result<()>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        for (pid, asked) in std::mem::take(&mut self.asked) {
            wait(asked.as_fd(), until)?;
            // Zero would be no limit.
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            if let Err(e) = asked.answer(left) {
                self.fail(pid, &e);
            }
        }
        self.failed.map_or(Ok(()), Err)
    }
}

/// The state of a held job in the program inside of it.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    known: Known,
    /// None inside: a freezer is impossible here.
    freezer: Option<Option<Freezer>>,
    /// Processes that were stopped when all were sent the signal, and stay so.
    stopped: Vec<i32>,
}

impl Inside {
    /// Puts all processes into a group that can be frozen; returns its folder. None if that is impossible.
    pub(crate) fn group(&mut self) -> Option<PathBuf> {
        let freezer = self.freezer.get_or_insert_with(|| Freezer::new(processes)).as_ref();
        freezer.map(|freezer| freezer.path().to_owned())
    }

    /// The processes that are to be asked. A stopped process is not: it would answer when it goes on, and stand still
    /// from then on.
    pub(crate) fn prepare(&mut self) -> Result<Processes> {
        let mut processes = self.known.processes()?;
        processes.retain(|pid, _| !is_stopped(*pid));
        Ok(processes)
    }

    /// Stops all by a signal.
    pub(crate) fn stop(&mut self) {
        self.stopped = processes().into_iter().filter(|pid| is_stopped(*pid)).collect();
        to_all(Signal::SIGSTOP);
    }

    /// All go on that were stopped so.
    pub(crate) fn go_on(&mut self) {
        go_on(&std::mem::take(&mut self.stopped));
    }

    /// Freezes all processes; their group. A signal would be in the images.
    pub(crate) fn freeze(&mut self) -> Result<PathBuf> {
        const NEEDED: &str = "the processes of a job on several hosts have to stand still everywhere before any is saved, and here is no freezer \
                              of control groups (version 2) that this user may use";
        let group = self.group().context(NEEDED)?;
        Freeze::of(&group).and_then(|freeze| freeze.freeze()).context(NEEDED)?;
        Ok(group)
    }

    /// Has frozen processes go on, also those that another program has frozen.
    pub(crate) fn thaw(&mut self) -> Result<()> {
        if let Some(freezer) = self.freezer.get_or_insert_with(Freezer::left_behind) {
            freezer.thaw();
        }
        Ok(())
    }

    /// Lets all go on, whether the job was held or not, also if another program has made its group.
    pub(crate) fn release(&mut self) -> Result<Processes> {
        match self.freezer.get_or_insert_with(Freezer::left_behind) {
            Some(freezer) => freezer.thaw(),
            None => self.go_on(),
        }
        let processes = self.prepare()?;
        Answers::of(&processes, Step::Go).all(&mut |fd, until| ready(&[fd], Some(until)).map(drop))?;
        Ok(processes)
    }
}

/// All go on but those.
fn go_on(stopped: &[i32]) {
    if stopped.is_empty() {
        to_all(Signal::SIGCONT);
        return;
    }
    let others = processes().into_iter().filter(|pid| !stopped.contains(pid));
    // One that has been killed meanwhile needs nothing.
    others.for_each(|pid| _ = kill(Pid::from_raw(pid), Signal::SIGCONT));
}

/// All processes of the job's. It is no error that there is none.
fn to_all(signal: Signal) {
    let _ = kill(Pid::from_raw(-1), signal);
}

/// The job's processes, but for the init and this one.
pub(crate) fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = std::process::id().cast_signed();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| *pid != 1 && *pid != own).collect()
}

/// Returns true if a process is stopped by a signal.
fn is_stopped(pid: i32) -> bool {
    state(pid) == Some('T')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_that_a_signal_has_stopped_is_told_from_others() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(processes().contains(&pid) && !is_stopped(pid));
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while !is_stopped(pid) && Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(is_stopped(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(pid));
    }

    #[test]
    fn a_process_that_has_ended_keeps_no_step_waiting() {
        // A slot that nobody has.
        let gone = Processes::from([(1, vec![u32::MAX]), (2, Vec::new())]);
        Answers::of(&gone, Step::Stop).all(&mut |_, _| panic!("nobody was asked")).unwrap();
    }

    #[test]
    fn a_job_is_held_from_where_its_supervisor_is_seen_as_it_sees_itself() {
        let own = std::process::id();
        let reach = Reach { life: 1, supervisor: own, init: own, group: None };
        let hand = Hand::new(&reach, Some(own.cast_signed())).unwrap();
        assert!(hand.freeze().is_none());
        // It is in that network namespace already, which needs no rights.
        hand.ask(&Processes::new(), Step::Stop).unwrap().all(&mut |_, _| Ok(())).unwrap();
        for peer in [None, Some(0)] {
            let error = Hand::new(&reach, peer).unwrap_err().to_string();
            assert!(error.contains("another process namespace"), "{error}");
        }
        let nowhere = Reach { group: Some("/nowhere".into()), ..reach };
        assert!(Hand::new(&nowhere, Some(own.cast_signed())).unwrap_err().to_string().contains("/nowhere"));
    }
}
