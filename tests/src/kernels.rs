//! Programs that take this machine for another one: the boot id, by which windows tell kernels apart, is another for them. What the kernel
//! would tell them of processes that they hold for those of another kernel, its locks, they do not ask for.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::{Job, have, skip};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const LIMIT: Duration = Duration::from_secs(20);

/// Another machine, and a window that both have.
pub struct Elsewhere {
    place: TempDir,
    /// By which options of unshare(1) a program gets a mount namespace.
    unshare: &'static str,
}

impl Elsewhere {
    /// None, with a printed reason, where this user may not mount anything.
    ///
    /// # Panics
    /// Where /dev/shm has no room for a file.
    pub fn new() -> Option<Elsewhere> {
        if !have(&["unshare", "mount"]) {
            return None;
        }
        let mut place = tempfile::tempdir_in("/dev/shm").expect("a place in /dev/shm");
        std::fs::write(place.path().join("boot_id"), "47924792-4792-4792-4792-479247924792\n").expect("a file");
        for unshare in ["-m", "-Urm"] {
            let elsewhere = Elsewhere { place, unshare };
            if Job::start(&mut elsewhere.enter(&Command::new("true"))).finish(LIMIT).success() {
                return Some(elsewhere);
            }
            place = elsewhere.place;
        }
        skip("this user may not make mount namespaces (run as root, or allow user namespaces)");
        None
    }

    /// The window for a process of a node.
    pub fn window(&self, node: u32, more: &str) -> String {
        let path: PathBuf = self.place.path().join("window");
        format!("{},node={node}{more}", path.display())
    }

    /// The command, over there.
    pub fn enter(&self, command: &Command) -> Command {
        let mut there = Command::new("unshare");
        let script = format!("mount --bind \"$0\" {BOOT_ID} && exec \"$@\"");
        there.args([self.unshare, "sh", "-c", &script]).arg(self.place.path().join("boot_id"));
        there.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        there
    }
}
