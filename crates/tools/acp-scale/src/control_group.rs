//! A memory control group.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

/// Memory of a control group: all of it, and the kernel's.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Group {
    pub bytes: u64,
    pub kernel: Option<u64>,
}

/// A memory control group for the rank that is measured, where one can be made.
pub struct ControlGroup {
    path: PathBuf,
}

impl ControlGroup {
    pub fn make() -> Option<ControlGroup> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let of = |line: &str| -> Option<PathBuf> {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
            let root = match controllers {
                "" => "/sys/fs/cgroup",
                controllers if controllers.split(',').any(|name| name == "memory") => "/sys/fs/cgroup/memory",
                _ => return None,
            };
            let path = Path::new(root).join(path).join(format!("vervain-memory-{}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            let group = ControlGroup { path };
            // One without the memory controller is of no use.
            let is_of_use = group.bytes().is_some();
            is_of_use.then(|| group.path.clone())
        };
        let path = groups.lines().find_map(of)?;
        Some(ControlGroup { path })
    }

    /// Puts the process of the command in, before its program starts.
    pub fn put_in(&self, command: &mut Command) {
        let procs = self.path.join("cgroup.procs");
        // SAFETY: what it calls allocates nothing: open(2), write(2) and close(2) with a path that is there.
        unsafe {
            let procs = std::ffi::CString::new(procs.as_os_str().as_encoded_bytes()).unwrap_or_default();
            command.pre_exec(move || {
                let fd = libc::open(procs.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                let _ = libc::write(fd, c"0".as_ptr().cast(), 1);
                let _ = libc::close(fd);
                Ok(())
            });
        }
    }

    fn number(&self, names: &[&str]) -> Option<u64> {
        let read = |name: &&str| std::fs::read_to_string(self.path.join(name)).ok()?.trim().parse().ok();
        names.iter().find_map(read)
    }

    fn bytes(&self) -> Option<u64> {
        self.number(&["memory.current", "memory.usage_in_bytes"])
    }

    /// What is in it at this moment.
    pub fn read(&self) -> Option<Group> {
        let stat = std::fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let stat = stat.lines().find_map(|line| line.strip_prefix("kernel ")?.trim().parse().ok());
        Some(Group { bytes: self.bytes()?, kernel: stat.or_else(|| self.number(&["memory.kmem.usage_in_bytes"])) })
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Once its process has ended; where it has not, the group stays, empty.
        let _ = std::fs::remove_dir(&self.path);
    }
}
