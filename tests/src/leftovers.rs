//! What Vervain could leave behind on a machine: names in the abstract socket space, temporary files, processes of the C programs.
//! Compared before and after a test. Sockets of other users of Vervain on the machine are told apart by the process that has them
//! open, files by a folder of the test's own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::compile::out_dir;

/// The state before a test.
pub struct Leftovers {
    before: BTreeSet<String>,
    folder: TempDir,
}

impl Leftovers {
    /// Notes what exists now.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    pub fn watch() -> Self {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        Self { before: seen(folder.path()), folder }
    }

    /// Variables for the test's programs: their temporary files and Vervain's folder lie in one of their own.
    pub fn variables(&self) -> [(&'static str, &Path); 2] {
        ["TMPDIR", "XDG_RUNTIME_DIR"].map(|name| (name, self.folder.path()))
    }

    /// What exists now and did not before. Things of processes that are just ending get twenty seconds to go.
    pub fn new_ones(&self) -> Vec<String> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let new: Vec<_> = seen(self.folder.path()).difference(&self.before).cloned().collect();
            if new.is_empty() || Instant::now() > until {
                return new;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What is there now; files in `folder`, but for Vervain's own, which `vervain run` keeps for the next.
fn seen(folder: &Path) -> BTreeSet<String> {
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
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().filter(|file| file.file_name() != "vervain");
    all.extend(files.map(|file| format!("file {}", file.path().display())));
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
