//! Parking of the processes that have a device of Vervain's. They are parked before CRIU begins, since CRIU restores
//! some of their state only in part, such as sockets; and unparked after the dump, or after a restart, in two phases:
//! all have everything again before any goes on.
//!
//! They are asked by a program inside of the job ([`crate::agent`]), since the names by which they are found are those
//! of its network namespace.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use rustix::io::Errno;
use rustix::net::SocketType;
use vervain_names::AddressMap;
use vervain_names::parking::{self, Asked, Step};

use crate::threads;

/// Time that a process may take for a step, without the time in which one of Vervain's threads in it runs, or waits for
/// a CPU or a disk. A stop has a limit of its own below, for the time in which others keep the process from it.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often those that have come meanwhile are looked for.
const ROUNDS: usize = 100;

const RESTLESS: &str = "programs of the job open and close devices all the time";

/// The processes that have slots, by their numbers inside of the job, and the slots of each.
pub type Processes = BTreeMap<i32, Vec<u32>>;

/// A process has opened a device while the job was parked, so that its image would not be whole.
#[derive(Debug, thiserror::Error)]
#[error("process {0} of the job has just opened a device")]
pub struct Newcomer(i32);

/// Checks that the processes that were parked are all that have slots now.
///
/// # Errors
/// [`Newcomer`], if they are not.
pub(crate) fn check(parked: &Processes, now: &Processes) -> Result<()> {
    match now.iter().find(|(pid, slots)| parked.get(pid) != Some(slots)) {
        Some((pid, _)) => Err(anyhow!(Newcomer(*pid))),
        None => Ok(()),
    }
}

/// Parks all, or none if one of them cannot be: the program inside.
pub(crate) fn park_here() -> Result<Processes> {
    let parked = park_all();
    if parked.is_err() {
        // Each by itself: one that cannot keeps no other from going on.
        for step in [Step::Rejoin, Step::Go] {
            for (pid, slots) in processes()? {
                let _ = take(pid, &slots, step, &AddressMap::default());
            }
        }
    }
    parked
}

/// Those that come meanwhile too.
fn park_all() -> Result<Processes> {
    for _ in 0..ROUNDS {
        let none = AddressMap::default();
        let stopped = all(Step::Stop, &none)?;
        stopped.iter().try_for_each(|(pid, slots)| take(*pid, slots, Step::Leave, &none))?;
        if processes()? == stopped {
            return Ok(stopped);
        }
    }
    bail!(RESTLESS)
}

/// Has all take a step, and those that have come meanwhile; where they rejoin, addresses have become others.
pub(crate) fn all(step: Step, map: &AddressMap) -> Result<Processes> {
    let mut taken = Processes::new();
    for _ in 0..ROUNDS {
        let now = processes()?;
        if now == taken {
            return Ok(taken);
        }
        for (pid, slots) in now.iter().filter(|(pid, slots)| taken.get(pid) != Some(slots)) {
            take(*pid, slots, step, map)?;
        }
        taken = now;
    }
    bail!(RESTLESS)
}

/// One slot is as good as any: the process takes the step as a whole.
fn take(pid: i32, slots: &[u32], step: Step, map: &AddressMap) -> Result<()> {
    // One that has ended needs nothing.
    begin_with(slots, step, map)
        .and_then(|asked| {
            asked.map_or(Ok(false), |asked| asked.answer_unless_busy(PATIENCE, || threads::are_busy(pid)))
        })
        .map(drop)
        .or_else(|e| if needs_nothing(step, &e) { Ok(()) } else { Err(cannot(pid, step, &e)) })
}

/// Asks a process for a step; None if it has ended.
pub(crate) fn begin(slots: &[u32], step: Step) -> io::Result<Option<Asked>> {
    let uid = rustix::process::geteuid().as_raw();
    slots.first().map_or(Ok(None), |slot| parking::begin(uid, *slot, step))
}

/// Asks a process for a step; if it rejoins, with the addresses that have changed.
fn begin_with(slots: &[u32], step: Step, map: &AddressMap) -> io::Result<Option<Asked>> {
    if step != Step::Rejoin || map.is_empty() {
        return begin(slots, step);
    }
    let uid = rustix::process::geteuid().as_raw();
    slots.first().map_or(Ok(None), |slot| parking::begin_rejoin(uid, *slot, map))
}

/// The sentence about a process that cannot take a step.
fn cannot(pid: i32, step: Step, error: &io::Error) -> anyhow::Error {
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let is_late = Errno::from_io_error(error) == Some(Errno::TIMEDOUT);
    let threads = if is_late { threads::describe(pid) } else { String::new() };
    anyhow!("process {pid} of the job ({}) {}{threads}", program.trim_end(), why(step, error))
}

/// One that has come while the others were parked was not, so it has all that it ever had. If it lacks something, it
/// cannot go on either, and says so then.
fn needs_nothing(step: Step, error: &io::Error) -> bool {
    step == Step::Rejoin && Errno::from_io_error(error) == Some(Errno::INVAL)
}

/// The predicate of the sentence about a process that cannot take a step. The name of its program is known inside of
/// the job only.
pub(crate) fn why(step: Step, error: &io::Error) -> String {
    let known = match (step, Errno::from_io_error(error)) {
        (Step::Stop, Some(Errno::TIMEDOUT)) => {
            "does not stand still: a signal or a debugger may have stopped it, or a process that it is connected to"
        }
        (Step::Leave, Some(Errno::OPNOTSUPP)) => {
            "has what no image can have: memory that was adopted (VERVAIN_ADOPT), or a device that puts into a window"
        }
        (Step::Rejoin, Some(Errno::ADDRINUSE)) => "cannot have its UDP port again: another program has it",
        (Step::Rejoin, Some(Errno::ADDRNOTAVAIL)) => "cannot have its UDP ports again: an address is not there",
        _ => "",
    };
    let what = match step {
        Step::Stop => "be stopped",
        Step::Leave => "be parked",
        Step::Rejoin => "have its devices again",
        Step::Go => "go on",
    };
    if known.is_empty() { format!("cannot {what}: {error}") } else { known.to_owned() }
}

pub(crate) fn processes() -> Result<Processes> {
    Known::default().processes()
}

/// The owners of sockets, found once, since the search is slow. A socket keeps its number as long as it lives.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<(String, u32), Option<i32>>);

impl Known {
    /// The processes that have slots.
    pub(crate) fn processes(&mut self) -> Result<Processes> {
        let prefix = vervain_names::slots(rustix::process::geteuid().as_raw());
        let mut found = Processes::new();
        let mut known = BTreeMap::new();
        for holder in vervain_names::holders(SocketType::SEQPACKET, &prefix)? {
            let Some(slot) = holder.name.strip_prefix(&prefix).and_then(|slot| slot.parse().ok()) else { continue };
            let key = (holder.name, holder.inode);
            // Others of this user's that are in the same network namespace are none of the job's, and not seen in its
            // /proc. A connection that its listener has not accepted yet has no number.
            let look = || (key.1 != 0).then(|| vervain_names::process_with(key.1)).flatten().map(|(pid, _)| pid);
            let pid = self.0.get(&key).copied().unwrap_or_else(look);
            known.insert(key, pid);
            let Some(pid) = pid else { continue };
            let slots: &mut Vec<u32> = found.entry(pid).or_default();
            if !slots.contains(&slot) {
                slots.push(slot);
                slots.sort_unstable();
            }
        }
        self.0 = known;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_not_parked_has_nothing_to_take_back() {
        let error = |errno: Errno| io::Error::from(errno);
        assert!(needs_nothing(Step::Rejoin, &error(Errno::INVAL)));
        assert!(
            !needs_nothing(Step::Rejoin, &error(Errno::ADDRINUSE)) && !needs_nothing(Step::Go, &error(Errno::INVAL))
        );
    }
}
