//! Vervain's threads in a process of the job, which take the steps of parking ([`crate::park`]), as /proc shows them. A
//! process with one that waits for a CPU or a disk is slow, not stuck; if it is stuck, their states show where.

use std::fs;
use std::path::PathBuf;

use vervain_names::process::state_in;

/// The prefix of their names.
const OWN: &str = "vervain";

/// A thread of Vervain's own.
struct Thread {
    name: String,
    /// The state, as in `man 5 proc_pid_stat`.
    state: char,
    folder: PathBuf,
}

/// Those of a process; none if it has ended. Its first thread is the program's, whatever the program is called.
fn own(pid: i32) -> impl Iterator<Item = Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let first = pid.to_string();
    tasks.filter(move |task| task.file_name() != *first).filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        Some(Thread { name: name(&stat)?.to_owned(), state: state_in(&stat)?, folder: task.path() })
    })
}

/// The name of a thread of Vervain's.
fn name(stat: &str) -> Option<&str> {
    let (_, name) = stat.rsplit_once(')')?.0.split_once('(')?;
    name.starts_with(OWN).then_some(name)
}

/// Returns true if one of them has a CPU, or waits for one or for a disk.
pub(crate) fn are_busy(pid: i32) -> bool {
    own(pid).any(|thread| matches!(thread.state, 'R' | 'D'))
}

/// The end of a sentence: the name and state of each, and the function of the kernel that it waits in, if that is
/// shown. Empty if there are none.
pub(crate) fn describe(pid: i32) -> String {
    let each = own(pid).map(|Thread { name, state, folder }| {
        let waits_in = fs::read_to_string(folder.join("wchan")).unwrap_or_default();
        let waits_in = if matches!(&*waits_in, "" | "0") { "" } else { &format!(" {waits_in}") };
        format!("{} {state}{waits_in}", name.replace(char::is_control, " "))
    });
    let all = each.collect::<Vec<_>>().join(", ");
    if all.is_empty() { all } else { format!(" (its threads: {all})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn a_thread_of_vervains_is_told_from_others() {
        assert_eq!(name("7 (vervain-park) R 1 7"), Some("vervain-park"));
        assert_eq!(name("7 (vervain) (a) S 1 7"), Some("vervain) (a"));
        assert_eq!((name("7 (sh) R 1 7"), name("")), (None, None));
    }

    #[test]
    fn a_process_is_busy_while_one_of_them_wants_a_cpu() {
        let own = std::process::id().cast_signed();
        let becomes = |busy: bool| {
            let until = Instant::now() + Duration::from_secs(10);
            while are_busy(own) != busy && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            are_busy(own) == busy
        };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let spins = || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                thread::park();
            };
            let spinner = thread::Builder::new().name("vervain-spins".into()).spawn_scoped(scope, spins).unwrap();
            let was_busy = becomes(true);
            stop.store(true, Ordering::Relaxed);
            let rests = becomes(false);
            let described = describe(own);
            spinner.thread().unpark();
            assert!(was_busy && rests);
            assert!(described.contains("vervain-spins S"), "{described}");
        });
        assert_eq!(describe(i32::MAX), "");
    }
}
