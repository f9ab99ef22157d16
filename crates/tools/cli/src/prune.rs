//! Removes sysfs trees that no run uses any more. Runs of one configuration share a tree and none owns it, so a tree
//! goes when nobody has asked for it for a week and no process of this user has it in its environment.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

/// A process that cannot be seen from here (another pid namespace with the same directory) is at least left alone this
/// long.
const UNUSED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Number of tries of a process that makes a tree, while another one removes trees.
const PATIENCE: u32 = 200;

/// Held while a tree is looked for or made: none is removed meanwhile. None if the directory cannot be locked; then
/// only its age protects a tree.
pub fn hold(dir: &Path) -> Option<File> {
    let file = File::open(dir).ok()?;
    for _ in 0..PATIENCE {
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            return Some(file);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Notes that `tree` is wanted now.
pub fn touch(tree: &Path) {
    let _ = File::open(tree).and_then(|f| f.set_modified(SystemTime::now()));
}

/// Removes what has not been used, unless another run is at a tree just now: then a later run does.
pub fn unused(dir: &Path) {
    let stale = stale_in(dir, SystemTime::now());
    if stale.is_empty() {
        return;
    }
    let Ok(lock) = File::open(dir) else { return };
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let environments = environments();
    // Looked at once more: one may have been asked for before the lock was ours.
    for tree in stale_in(dir, SystemTime::now()) {
        let name = tree.as_os_str().as_bytes();
        if !environments.iter().any(|e| e.windows(name.len()).any(|w| w == name)) {
            let _ = fs::remove_dir_all(&tree);
        }
    }
}

/// Trees, whole or half made, that nobody has asked for lately.
fn stale_in(dir: &Path, now: SystemTime) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|e| e.file_name().as_bytes().starts_with(b"sysfs-"))
        .filter(|e| {
            let meta = e.metadata().ok().filter(|m| m.is_dir());
            let age = meta.and_then(|m| m.modified().ok()).and_then(|at| now.duration_since(at).ok());
            age.is_some_and(|age| age > UNUSED_FOR)
        })
        .map(|e| e.path())
        .collect()
}

/// The environments of the processes that this user may look at.
fn environments() -> Vec<Vec<u8>> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|p| p.file_name().as_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|p| fs::read(p.path().join("environ")).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn tree(dir: &Path, name: &str, age: Duration) -> PathBuf {
        let tree = dir.join(name);
        fs::create_dir_all(tree.join("sys/class")).unwrap();
        File::open(&tree).unwrap().set_modified(SystemTime::now() - age).unwrap();
        tree
    }

    const OLD: Duration = Duration::from_secs(8 * 24 * 3600);

    #[test]
    fn only_trees_that_are_old_and_unused_go() {
        let tmp = tempfile::tempdir().unwrap();
        let (old, half) = (tree(tmp.path(), "sysfs-1", OLD), tree(tmp.path(), "sysfs-2.new-77", OLD));
        let (young, other) = (tree(tmp.path(), "sysfs-3", Duration::ZERO), tree(tmp.path(), "else", OLD));
        let used = tree(tmp.path(), "sysfs-4", OLD);
        let mut user = Command::new("sleep").arg("60").env("VERVAIN_SYSFS", &used).spawn().unwrap();
        // The kernel lets a new program's maker go on before it shows the environment.
        let environ = format!("/proc/{}/environ", user.id());
        while fs::read(&environ).unwrap().is_empty() {
            std::thread::yield_now();
        }
        unused(tmp.path());
        user.kill().unwrap();
        user.wait().unwrap();
        assert_eq!([&old, &half, &young, &other, &used].map(|t| t.exists()), [false, false, true, true, true]);
        unused(tmp.path());
        assert!(!used.exists(), "its user has ended");
    }

    #[test]
    fn a_tree_that_is_asked_for_again_stays() {
        let tmp = tempfile::tempdir().unwrap();
        let old = tree(tmp.path(), "sysfs-1", OLD);
        touch(&old);
        unused(tmp.path());
        assert!(old.exists());
    }

    #[test]
    fn nothing_goes_while_a_run_is_at_its_tree() {
        let tmp = tempfile::tempdir().unwrap();
        let old = tree(tmp.path(), "sysfs-1", OLD);
        let held = hold(tmp.path()).unwrap();
        unused(tmp.path());
        assert!(old.exists());
        drop(held);
        unused(tmp.path());
        assert!(!old.exists());
    }
}
