//! What Vervain could leave behind on a machine: names in the abstract socket space, files in /dev/shm and /tmp,
//! processes of the C programs. Compared before and after a test; what other users of Vervain on the machine have open
//! meanwhile is told apart by who holds it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::compile::out_dir;

/// The state before a test.
pub struct Leftovers {
    before: BTreeSet<String>,
}

impl Leftovers {
    /// Notes what exists now.
    pub fn watch() -> Self {
        Self { before: seen() }
    }

    /// What exists now and did not before. Things of processes that are just ending get two seconds to go.
    pub fn new_ones(&self) -> Vec<String> {
        let until = Instant::now() + Duration::from_secs(2);
        loop {
            let new: Vec<_> = seen().difference(&self.before).cloned().collect();
            if new.is_empty() || Instant::now() > until {
                return new;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn seen() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let ours = processes_of_ours();
    for line in std::fs::read_to_string("/proc/net/unix").unwrap_or_default().lines() {
        let field: Vec<_> = line.split_whitespace().collect();
        if let [.., inode, name] = field[..]
            && name.contains("vervain")
            && held_by(inode, &ours)
        {
            all.insert(format!("socket {name}"));
        }
    }
    for dir in ["/dev/shm", "/tmp", "/run", "/var/tmp"] {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.to_lowercase().contains("vervain") {
                all.insert(format!("file {dir}/{name}"));
            }
        }
    }
    for process in &ours {
        all.insert(format!("process {}", process.display()));
    }
    all
}

/// Directories in /proc of the processes that run one of the compiled C programs.
fn processes_of_ours() -> Vec<PathBuf> {
    let programs = out_dir();
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .filter(|p| std::fs::read_link(p.join("exe")).is_ok_and(|exe| exe.starts_with(&programs)))
        .collect()
}

/// Whether one of `processes` has the socket open.
fn held_by(inode: &str, processes: &[PathBuf]) -> bool {
    let link = format!("socket:[{inode}]");
    processes.iter().any(|p| {
        std::fs::read_dir(p.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|l| l == Path::new(&link)))
    })
}
