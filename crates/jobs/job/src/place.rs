//! The folders of the supervisors of this user's jobs: one for each, with its control socket and a lock that lives as
//! long as it.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::stat::Mode;
use rustix::fs::{FlockOperation, flock};

/// A job's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > 64 || !text.chars().all(fits) || text.starts_with('.') {
            return Err("it can be 1 to 64 letters, digits, `-`, `_` and `.`, and begins with no `.`".to_owned());
        }
        Ok(Name(text.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The folders of all jobs.
#[derive(Debug, Clone)]
pub struct Places(PathBuf);

impl Places {
    /// `private` is a folder that only this user can enter.
    pub fn new(private: &Path) -> Places {
        Places(private.join("jobs"))
    }

    /// The jobs that have a supervisor.
    ///
    /// # Errors
    /// The folder is there and cannot be read.
    pub fn running(&self) -> Result<Vec<Name>> {
        let entries = match fs::read_dir(&self.0) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("cannot read {}", self.0.display()))?,
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut names: Vec<Name> = names.filter(|name| self.is_taken(name)).collect();
        names.sort();
        Ok(names)
    }

    fn is_taken(&self, name: &Name) -> bool {
        let lock = File::open(self.0.join(&name.0).join(LOCK));
        lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Takes a name for as long as what is returned lives.
    ///
    /// # Errors
    /// A job of that name runs, or the folder cannot be made.
    pub fn take(&self, name: &Name) -> Result<Place> {
        let dir = self.0.join(&name.0);
        let made = || format!("cannot make {}", dir.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).with_context(made)?;
        let mut open = OpenOptions::new();
        open.write(true).create(true).truncate(false).mode(0o600);
        let lock = open.open(dir.join(LOCK)).with_context(made)?;
        let until = Instant::now() + LOOK;
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            // A program that checks if the job runs holds the lock for a moment too, but shared; a supervisor does not
            // share it.
            let is_shared = flock(&lock, FlockOperation::NonBlockingLockShared).is_ok();
            let _ = flock(&lock, FlockOperation::Unlock);
            if !is_shared || Instant::now() >= until {
                bail!("a job {name} runs already (`vervain job list`); give this one another name");
            }
            sleep(Duration::from_millis(1));
        }
        Ok(Place { folder: File::open(&dir).with_context(made)?, dir, _lock: lock })
    }

    /// A connection to the supervisor of a job.
    ///
    /// # Errors
    /// There is no such job.
    pub fn connect(&self, name: &Name) -> Result<UnixStream> {
        let dir = self.0.join(&name.0);
        let connect = || -> std::io::Result<UnixStream> {
            let folder = File::open(&dir)?;
            UnixStream::connect(within(&folder, CONTROL))
        };
        match connect() {
            Ok(stream) => Ok(stream),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                bail!("no job {name} runs here (`vervain job list` lists those that do)")
            }
            Err(e) => Err(e).with_context(|| format!("cannot reach the supervisor of {name}")),
        }
    }
}

/// Held while a supervisor lives.
const LOCK: &str = "lock";
const CONTROL: &str = "control";
/// More than those take who only look.
const LOOK: Duration = Duration::from_millis(100);

/// By the open folder, since the name of a socket may have 107 bytes only.
fn within(folder: &File, name: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()).into()
}

/// A job's folder, while its supervisor lives.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    folder: File,
    _lock: File,
}

impl Place {
    /// The folder.
    pub fn folder(&self) -> &File {
        &self.folder
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// A new FIFO, open at both ends, so that nobody waits for the other.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn fifo(&self, name: &str) -> Result<File> {
        let path = self.dir.join(name);
        let _ = fs::remove_file(&path);
        nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(File::options().read(true).write(true).open(&path)?)
    }

    /// The control socket.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn listen(&self) -> Result<UnixListener> {
        // The socket is that of a supervisor that was killed: the lock shows that it is gone.
        let _ = fs::remove_file(self.dir.join(CONTROL));
        UnixListener::bind(within(&self.folder, CONTROL)).context("cannot make the control socket")
    }

    /// Writes a program into the folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn program(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        let _ = fs::remove_file(&path);
        let mut open = OpenOptions::new();
        let file = open.write(true).create_new(true).mode(0o700).open(&path);
        let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_component_of_a_path() {
        for good in ["J", "lu-102.3_a", &"x".repeat(64)] {
            assert_eq!(good.parse::<Name>().unwrap().to_string(), good);
        }
        for bad in ["", ".", "..", ".x", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_is_had_once_and_is_free_again_when_its_supervisor_is_gone() {
        let tmp = tempfile::tempdir().unwrap();
        let places = Places::new(tmp.path());
        let name: Name = "a".parse().unwrap();
        assert_eq!(places.running().unwrap(), []);
        assert!(places.connect(&name).unwrap_err().to_string().contains("no job a runs here"));
        let place = places.take(&name).unwrap();
        let listener = place.listen().unwrap();
        assert_eq!(places.running().unwrap(), std::slice::from_ref(&name));
        assert!(places.take(&name).unwrap_err().to_string().contains("runs already"));
        places.connect(&name).unwrap();
        drop((listener, place));
        assert_eq!(places.running().unwrap(), []);
        places.take(&name).unwrap();
    }

    #[test]
    fn a_name_that_others_only_look_at_can_be_had() {
        let tmp = tempfile::tempdir().unwrap();
        let places = Places::new(tmp.path());
        let dir = tmp.path().join("jobs/a");
        fs::create_dir_all(&dir).unwrap();
        let looker = File::create(dir.join(LOCK)).unwrap();
        flock(&looker, FlockOperation::NonBlockingLockShared).unwrap();
        let looks = std::thread::spawn(move || {
            sleep(LOOK / 10);
            drop(looker);
        });
        places.take(&"a".parse().unwrap()).unwrap();
        looks.join().unwrap();
    }
}
