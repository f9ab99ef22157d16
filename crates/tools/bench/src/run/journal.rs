//! `journal.jsonl`: the measurements, a line each, written at once. After any end of a run, also by kill -9 or a full
//! disk, the earlier measurements can be read, and the run can be continued.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::results::{Failure, Header, RawFigures, Run, Skipped};

/// The file's name in the directory of a run.
pub const NAME: &str = "journal.jsonl";

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// First of all.
    Begin(Box<Begin>),
    /// A measurement.
    Run {
        /// The case.
        case: Case,
        /// The number of iterations that were planned.
        planned: u64,
        /// The measurement.
        run: Run,
    },
    /// A measurement that came to nothing.
    Failure {
        /// The case.
        case: Case,
        /// The reason.
        failure: Failure,
    },
    /// The machine's own figures.
    Raw(RawFigures),
    /// A case that cannot be measured.
    Skipped(Skipped),
    /// The run was taken up again: seconds since its beginning.
    Resumed(f64),
}

/// The facts that are needed to continue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begin {
    /// The head of the results.
    pub header: Header,
    /// The participants.
    pub setup: Setup,
}

/// The participants of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The device of this host; None: the first.
    pub device: Option<String>,
    /// From 1.
    pub port: u8,
    /// Place in the port's GID table; None: the best.
    pub gid_index: Option<u8>,
    /// `vervain bench serve`, as host:port; None: this host.
    pub peer: Option<String>,
    /// True if cases with more ranks than this host has processors are measured too, and iterations are those of a full
    /// run.
    #[serde(default)]
    pub full: bool,
}

/// A journal that is open for writing.
pub struct Journal(File);

impl Journal {
    /// Begins one in `dir`, which is made.
    ///
    /// # Errors
    /// There is one already; the directory cannot be written.
    pub fn begin(dir: &Path, begin: Begin) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let path = dir.join(NAME);
        let file = match OpenOptions::new().append(true).create_new(true).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                bail!("{} has a run already: go on with it by --resume {0}, or name another directory", dir.display())
            }
            Err(e) => return Err(e).with_context(|| format!("cannot write {}", path.display())),
        };
        let mut journal = Self(file);
        journal.add(&Entry::Begin(Box::new(begin)))?;
        Ok(journal)
    }

    /// Reads the one in `dir`, and opens it to go on.
    ///
    /// # Errors
    /// There is none, or it is none of ours.
    pub fn resume(dir: &Path) -> Result<(Self, Begin, Vec<Entry>)> {
        let (begin, entries, length) = read(dir)?;
        let path = dir.join(NAME);
        let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
        // Cuts off a line that the end of the run has cut in two.
        file.set_len(length)?;
        file.seek(io::SeekFrom::End(0))?;
        Ok((Self(file), begin, entries))
    }

    /// Adds a line. It is in the kernel's hands when this returns.
    ///
    /// # Errors
    /// ENOSPC and its like.
    pub fn add(&mut self, entry: &Entry) -> Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.0.write_all(&line).context("cannot write the journal")
    }
}

/// Reads the journal in `dir`. The last value is the length of the part that can be read: a last line may be cut in
/// two.
///
/// # Errors
/// There is none, or it is none of ours.
pub fn read(dir: &Path) -> Result<(Begin, Vec<Entry>, u64)> {
    let path = dir.join(NAME);
    let file = File::open(&path).with_context(|| format!("no run in {}: cannot read {NAME}", dir.display()))?;
    let mut lines = BufReader::new(file);
    let (mut length, mut entries, mut line) = (0, Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = lines.read_until(b'\n', &mut line)?;
        if read == 0 || !line.ends_with(b"\n") {
            break;
        }
        let entry: Entry = serde_json::from_slice(&line)
            .with_context(|| format!("{}:{}: not a line of a journal", path.display(), entries.len() + 1))?;
        entries.push(entry);
        length += read as u64;
    }
    let mut entries = entries.into_iter();
    match entries.next() {
        Some(Entry::Begin(begin)) => Ok((*begin, entries.collect(), length)),
        _ => bail!("{} does not begin with a head", path.display()),
    }
}

/// Replaces a file: a reader sees the old one or the new one, whole.
///
/// # Errors
/// The directory cannot be written.
pub fn replace(path: &Path, text: &[u8]) -> Result<()> {
    let mut temporary = PathBuf::from(path);
    temporary.as_mut_os_string().push(".part");
    std::fs::write(&temporary, text).with_context(|| format!("cannot write {}", temporary.display()))?;
    std::fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))
}
