//! What Vervain could leave behind on a machine: names in the abstract socket space, files in /dev/shm and /tmp,
//! processes of the C programs. Compared before and after a test.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

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
    for line in std::fs::read_to_string("/proc/net/unix").unwrap_or_default().lines() {
        if let Some(name) = line.split_whitespace().nth(7).filter(|n| n.contains("vervain")) {
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
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if pid.bytes().all(|b| b.is_ascii_digit())
            && let Ok(exe) = std::fs::read_link(entry.path().join("exe"))
            && exe.to_string_lossy().contains("/vervain-c/")
        {
            all.insert(format!("process {pid} {}", exe.display()));
        }
    }
    all
}
