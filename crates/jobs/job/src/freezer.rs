//! The freezer of control groups, version 2, where this user can make a group below the own one: it stops processes
//! without their noticing. Signals are noticed: Open MPI's mpirun passes each SIGCONT on to its ranks and prints a line
//! about it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use vervain_names::process::state;

/// How often processes that have come meanwhile are looked for.
const ROUNDS: usize = 100;
const PREFIX: &str = "vervain-job-";
const FREEZE: &str = "cgroup.freeze";

/// A group with all processes of a job.
#[derive(Debug)]
pub(crate) struct Freezer(PathBuf);

impl Freezer {
    /// Takes the processes into a group of the job's; those that they start are born there. None if that is impossible.
    pub(crate) fn new(processes: impl Fn() -> Vec<i32>) -> Option<Freezer> {
        let dir = place()?;
        clear(dir.parent()?);
        let freezer = Freezer(dir);
        for _ in 0..ROUNDS {
            let dir = &freezer.0;
            fs::create_dir(dir).or_else(|e| if dir.is_dir() { Ok(()) } else { Err(e) }).ok()?;
            if freezer.take_in(&processes).is_some() {
                return Some(freezer);
            }
            // Another job may have cleared it away, which makes its own at this moment, before a process was in it.
            if dir.is_dir() {
                // Those that are there already stay: a group is no harm.
                let _ = fs::remove_dir(dir);
                return None;
            }
        }
        None
    }

    fn take_in(&self, processes: &impl Fn() -> Vec<i32>) -> Option<()> {
        let mut before: Vec<i32> = Vec::new();
        for _ in 0..ROUNDS {
            let now = processes();
            if now == before {
                return Some(());
            }
            for pid in now.iter().filter(|pid| !before.contains(pid)) {
                let taken = fs::write(self.0.join("cgroup.procs"), pid.to_string());
                // One that has ended needs nothing, whether it was waited for or not.
                if taken.is_err() && !has_ended(*pid) {
                    return None;
                }
            }
            before = now;
        }
        None
    }

    /// The freezer of the job, if it was made by an earlier program of Vervain's, which was killed.
    pub(crate) fn left_behind() -> Option<Freezer> {
        place().filter(|dir| dir.is_dir()).map(Freezer)
    }

    /// The group's folder.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// All go on.
    pub(crate) fn thaw(&self) {
        let _ = fs::write(self.0.join(FREEZE), "0");
    }
}

/// The file of a group by which its processes are stopped and go on.
#[derive(Debug)]
pub(crate) struct Freeze(File);

impl Freeze {
    /// The freezer of the group with this folder.
    pub(crate) fn of(group: &Path) -> io::Result<Freeze> {
        File::options().write(true).open(group.join(FREEZE)).map(Freeze)
    }

    /// Stops all. The last of them stand still some microseconds later, which nobody needs to wait for.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        self.0.write_all_at(b"1", 0)
    }

    /// All go on.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.0.write_all_at(b"0", 0)
    }
}

fn has_ended(pid: i32) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

/// Removes groups of jobs that have ended with their supervisors. One that has processes stays.
fn clear(own: &Path) {
    let groups = fs::read_dir(own).into_iter().flatten().flatten();
    let of_jobs = groups.filter(|group| group.file_name().to_string_lossy().starts_with(PREFIX));
    of_jobs.for_each(|group| _ = fs::remove_dir(group.path()));
}

/// The folder of control groups, as this process sees it; None if it does not. A job may see them where its supervisor
/// does not.
pub(crate) fn groups() -> Option<&'static Path> {
    let mounted = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    mounted.into_iter().find(|dir| statfs(*dir).is_ok_and(|fs| fs.filesystem_type() == CGROUP2_SUPER_MAGIC))
}

/// Below the group of this process, by the number of the job's process namespace, which is no other job's while this
/// one is there.
fn place() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let root = groups()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let number: String = namespace.to_str()?.chars().filter(char::is_ascii_digit).collect();
    Some(root.join(own).join(format!("{PREFIX}{number}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    /// Groups of one process namespace have the same name, whichever test makes them.
    static NAME: Mutex<()> = Mutex::new(());

    #[test]
    fn a_group_that_another_job_clears_away_before_it_is_used_is_made_again() {
        let _name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(parent) = place().and_then(|dir| Some(dir.parent()?.to_owned())) else { return };
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let cleared = std::cell::Cell::new(false);
        let freezer = Freezer::new(|| {
            if !cleared.replace(true) {
                clear(&parent);
            }
            vec![pid]
        });
        // On a machine without such groups none can be made.
        let has_it = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap().contains(PREFIX);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(freezer.is_some(), has_it);
        assert!(freezer.is_some() || !cleared.get(), "it was there for a moment");
    }

    #[test]
    fn a_group_is_stopped_and_goes_on() {
        let _name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = child.id().cast_signed();
        let ticks = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(11).unwrap().parse::<u64>().unwrap()
        };
        let more_than = |ticks_before: u64, limit: Duration| {
            let until = Instant::now() + limit;
            while ticks() <= ticks_before && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            ticks() > ticks_before
        };
        let freezer = Freezer::new(|| vec![pid]);
        let result = freezer.as_ref().map(|freezer| {
            let freeze = Freeze::of(freezer.path()).unwrap();
            let frozen = freeze.freeze().is_ok();
            std::thread::sleep(Duration::from_millis(200));
            let before = ticks();
            let moved = more_than(before, Duration::from_millis(100));
            freeze.thaw().unwrap();
            (frozen, moved, more_than(before, Duration::from_secs(20)))
        });
        child.kill().unwrap();
        child.wait().unwrap();
        if let (Some(freezer), Some(result)) = (freezer, result) {
            // The kernel takes the last process out a moment after it was waited for.
            let until = Instant::now() + Duration::from_secs(10);
            while fs::remove_dir(freezer.path()).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(result, (true, false, true));
        }
    }
}
