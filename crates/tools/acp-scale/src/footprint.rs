//! Memory that this process holds, by /proc: each page counts once, and none of other processes.
//!
//! Pages that only this process has count, and those of files (code) as if no other process had them mapped. For shared
//! memory (memfds) its owner counts all that is allocated, whether mapped or not, and a process that maps another's
//! counts nothing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Bytes, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Pages of no file: heap, stacks, mappings.
    pub anonymous: u64,
    /// Pages of files that are mapped: code, and what libraries keep in files.
    pub files: u64,
    /// Bytes allocated in this process's own memfds.
    pub memfds: u64,
    /// Page tables (VmPTE).
    pub tables: u64,
    /// Bytes as the kernel divides pages among the processes that map them (Pss), others' memfds included.
    pub pss: u64,
    /// Pages that nobody else has mapped (Private_Clean, Private_Dirty).
    pub private: u64,
    /// All that is mapped and there (VmRSS), others' memfds included.
    pub rss: u64,
}

impl Footprint {
    /// Bytes that this process holds. Page tables are in it: those for peers' memory are a cost of having peers.
    pub fn held(&self) -> u64 {
        self.anonymous + self.files + self.memfds + self.tables
    }

    /// The footprint of this process; `foreign` are the inodes of other processes' memfds.
    pub fn now(foreign: &BTreeSet<u64>) -> Result<Footprint> {
        let smaps = fs::read_to_string("/proc/self/smaps").context("cannot read /proc/self/smaps")?;
        let mut footprint = of_mappings(&smaps);
        let mut own = BTreeSet::new();
        for (inode, bytes) in open_memfds()? {
            if !foreign.contains(&inode) && own.insert(inode) {
                footprint.memfds += bytes;
            }
        }
        // Those that are mapped and not open.
        for (inode, bytes) in mapped_memfds(&smaps) {
            if !foreign.contains(&inode) && !own.contains(&inode) {
                footprint.memfds += bytes;
            }
        }
        let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
        footprint.tables = field(&status, "VmPTE:");
        footprint.rss = field(&status, "VmRSS:");
        Ok(footprint)
    }
}

/// The inodes of the memfds that this process has open or mapped.
pub fn memfds() -> Result<BTreeSet<u64>> {
    let smaps = fs::read_to_string("/proc/self/smaps").context("cannot read /proc/self/smaps")?;
    let mapped = mapped_memfds(&smaps).map(|(inode, _)| inode);
    Ok(mapped.chain(open_memfds()?.into_iter().map(|(inode, _)| inode)).collect())
}

const MEMFD: &str = "/memfd:";

/// Inode and allocated bytes of each.
fn open_memfds() -> Result<Vec<(u64, u64)>> {
    let mut found = vec![];
    for entry in fs::read_dir("/proc/self/fd").context("cannot read /proc/self/fd")?.flatten() {
        let is_memfd = fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().starts_with(MEMFD));
        if is_memfd && let Ok(file) = fs::metadata(entry.path()) {
            found.push((file.ino(), file.blocks() * 512));
        }
    }
    Ok(found)
}

/// A mapping of smaps: its first line, and the lines below.
fn mappings(smaps: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_head =
        |line: &str| line.split_once(' ').is_some_and(|(range, _)| range.contains('-') && !range.ends_with(':'));
    let starts: Vec<usize> = smaps
        .split_inclusive('\n')
        .scan(0, |at, line| Some((std::mem::replace(at, *at + line.len()), line)))
        .filter(|(_, line)| is_head(line))
        .map(|(at, _)| at)
        .collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([smaps.len()]).collect();
    starts
        .into_iter()
        .zip(ends)
        .map(|(start, end)| smaps[start..end].split_once('\n').unwrap_or((&smaps[start..end], "")))
}

/// Inode and path, which may be empty.
fn file_of(head: &str) -> (u64, &str) {
    let mut words = head.split_ascii_whitespace().skip(4);
    let inode = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    (inode, words.next().unwrap_or(""))
}

fn mapped_memfds(smaps: &str) -> impl Iterator<Item = (u64, u64)> {
    let all = mappings(smaps).map(|(head, body)| (file_of(head), field(body, "Rss:")));
    all.filter(|((_, path), _)| path.starts_with(MEMFD)).map(|((inode, _), bytes)| (inode, bytes))
}

fn of_mappings(smaps: &str) -> Footprint {
    let mut footprint = Footprint::default();
    for (head, body) in mappings(smaps) {
        let (inode, path) = file_of(head);
        let resident = field(body, "Rss:");
        footprint.pss += field(body, "Pss:");
        footprint.private += field(body, "Private_Clean:") + field(body, "Private_Dirty:");
        match path {
            path if path.starts_with(MEMFD) => {}
            _ if inode != 0 => footprint.files += resident,
            _ => footprint.anonymous += resident,
        }
    }
    footprint
}

/// The sum of a field in kB of /proc, in bytes.
fn field(text: &str, name: &str) -> u64 {
    let values =
        text.lines().filter_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    values.sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0100000 r-xp 00000000 08:01 77  /usr/bin/prog name
Size:               1024 kB
Rss:                 800 kB
Pss:                 100 kB
Private_Clean:         4 kB
7f0000000000-7f0000400000 rw-s 00000000 00:01 5 /memfd:vervain (deleted)
Rss:                 400 kB
Pss:                 200 kB
VmFlags: rd wr
7f0001000000-7f0001400000 rw-p 00000000 00:00 0 [heap]
Rss:                  64 kB
Pss:                  64 kB
Private_Dirty:        64 kB
7f0002000000-7f0002400000 rw-p 00000000 00:00 0 
Rss:                   8 kB
Pss:                   8 kB
Private_Dirty:         8 kB
";

    #[test]
    fn mappings_are_told_apart() {
        let footprint = of_mappings(SMAPS);
        let kib = |n: u64| n << 10;
        assert_eq!((footprint.files, footprint.anonymous, footprint.memfds), (kib(800), kib(72), 0));
        assert_eq!((footprint.pss, footprint.private), (kib(372), kib(76)));
        assert_eq!(mapped_memfds(SMAPS).collect::<Vec<_>>(), [(5, kib(400))]);
    }

    #[test]
    fn what_this_process_touches_counts() {
        let before = Footprint::now(&BTreeSet::new()).unwrap();
        let touched = std::hint::black_box(vec![1u8; 32 << 20]);
        let after = Footprint::now(&BTreeSet::new()).unwrap();
        assert!(after.held() >= before.held() + (30 << 20), "{before:?} {after:?}");
        drop(touched);
    }
}
