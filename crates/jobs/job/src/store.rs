//! A folder with the checkpoints of a job. One that is being written has another name until it is whole, so what has
//! the name of a checkpoint is one.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::manifest::Manifest;
use crate::trust;

/// The checkpoint in a folder, or that is one; and the folder. `note` is called for newer ones that are not whole.
///
/// # Errors
/// There is none, or none that may be restarted.
pub fn find(dir: &Path, note: fn(&str)) -> Result<(PathBuf, Manifest, PathBuf)> {
    if dir.join(crate::manifest::FILE).exists() {
        trust::folder(dir)?;
        let dir = dir.canonicalize()?;
        let above = dir.parent().map_or_else(|| dir.clone(), Path::to_owned);
        return Ok((dir.clone(), Manifest::read(&dir)?, above));
    }
    ensure!(dir.is_dir(), "{} is no folder with checkpoints", dir.display());
    let store = Store::open(dir)?;
    let (path, manifest) = store.newest(&mut |text| note(text))?;
    trust::folder(&path)?;
    Ok((path, manifest, store.path().to_owned()))
}

/// Such a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store(PathBuf);

const WHOLE: &str = "checkpoint-";
const BEGUN: &str = ".new-";

impl Store {
    /// The folder, made if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or a restart would refuse it.
    pub fn make(dir: &Path) -> Result<Store> {
        match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(e).context(format!("cannot make {}", dir.display()));
            }
            _ => {}
        }
        Store::open(dir)
    }

    /// The folder as it is.
    ///
    /// # Errors
    /// It is not there, or others may have written to it.
    pub fn open(dir: &Path) -> Result<Store> {
        trust::folder(dir)?;
        Ok(Store(dir.canonicalize()?))
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The checkpoints, oldest first.
    fn all(&self) -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix(WHOLE)?.parse::<u64>().ok();
        let mut all: Vec<_> = entries.filter_map(|entry| Some((number(&entry.path())?, entry.path()))).collect();
        all.sort();
        all
    }

    /// A place for a new one. Folders that others have begun there and will never finish are removed.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin(&self) -> Result<Begun> {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let left = entry.file_name().to_str().is_some_and(|name| name.starts_with(BEGUN));
            // A writer of the folder holds its lock.
            let lock = File::open(entry.path()).ok().filter(|_| left);
            if lock.is_some_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let making = || format!("cannot make a checkpoint in {}", self.0.display());
        // The folder above may be one that others may read.
        let mut new = tempfile::Builder::new();
        let dir = new.prefix(BEGUN).permissions(Permissions::from_mode(0o700)).tempdir_in(&self.0);
        let dir = dir.with_context(making)?;
        let lock = File::open(dir.path()).with_context(making)?;
        flock(&lock, FlockOperation::LockExclusive).with_context(making)?;
        Ok(Begun { dir, _lock: lock, store: self.clone() })
    }

    /// The newest that is whole, with its manifest. `note` is called for newer ones that are not.
    ///
    /// # Errors
    /// There is none.
    pub fn newest(&self, note: &mut dyn FnMut(&str)) -> Result<(PathBuf, Manifest)> {
        let mut last = None;
        for (_, path) in self.all().into_iter().rev() {
            match Manifest::read(&path) {
                Ok(manifest) => return Ok((path, manifest)),
                Err(e) => {
                    note(&format!("{} is passed over: {e:#}", path.display()));
                    last = Some(e);
                }
            }
        }
        match last {
            Some(e) => Err(e.context(format!("{} has no checkpoint that can be used", self.0.display()))),
            None => bail!("{} has no checkpoint", self.0.display()),
        }
    }

    /// The path of the newest, without a look inside.
    pub fn latest(&self) -> Option<PathBuf> {
        self.all().pop().map(|(_, path)| path)
    }

    /// Removes all but the newest few.
    pub fn keep(&self, count: usize) {
        let all = self.all();
        for (_, path) in &all[..all.len().saturating_sub(count.max(1))] {
            // Under another name first, so that what is half removed is none.
            let aside = self.0.join(format!("{BEGUN}old-{}", std::process::id()));
            if fs::rename(path, &aside).is_ok() {
                let _ = fs::remove_dir_all(&aside);
            }
        }
    }
}

/// The folder of CRIU's images in a checkpoint.
pub const IMAGES: &str = "images";
/// The folder of what lay in the job's own folders.
pub const SCRATCH: &str = "scratch";

/// The folder of what a program has saved itself.
pub const FILES: &str = "files";

/// A checkpoint that is being written. It is removed if it does not come to its end.
#[derive(Debug)]
pub struct Begun {
    dir: TempDir,
    _lock: File,
    store: Store,
}

impl Begun {
    /// Its folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A folder in it, with those above.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, name: &Path) -> Result<PathBuf> {
        let folder = self.dir.path().join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// Has the disk keep it, and gives it its name.
    ///
    /// # Errors
    /// It cannot be kept.
    pub fn finish(self, manifest: Manifest) -> Result<(PathBuf, Manifest)> {
        let manifest = manifest.seal(self.dir.path())?;
        let number = self.store.all().last().map_or(1, |(number, _)| number + 1);
        let path = self.store.0.join(format!("{WHOLE}{number:06}"));
        fs::rename(self.dir.path(), &path).with_context(|| format!("cannot make {}", path.display()))?;
        let _ = self.dir.keep();
        File::open(&self.store.0)?.sync_all().with_context(|| format!("cannot keep {}", path.display()))?;
        Ok((path, manifest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::manifest;

    #[test]
    fn what_was_not_ended_is_no_checkpoint_and_goes() {
        let tmp = tempfile::tempdir().unwrap();
        let store = Store::make(&tmp.path().join("a/b")).unwrap();
        assert!(store.newest(&mut |_| ()).unwrap_err().to_string().contains("has no checkpoint"));
        let begun = store.begin().unwrap();
        assert!(store.newest(&mut |_| ()).is_err());
        // As a killed supervisor leaves it.
        let left = store.0.join(".new-left");
        fs::create_dir(&left).unwrap();
        let other = store.begin().unwrap();
        assert!(begun.path().exists() && !left.exists(), "one is being written, one is not");
        drop(begun);
        let (first, _) = other.finish(manifest()).unwrap();
        assert!(first.ends_with("checkpoint-000001"));
        assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o7777, 0o700, "it has all that the job had");
        assert_eq!(store.newest(&mut |_| ()).unwrap().0, first);
        assert_eq!(fs::read_dir(&store.0).unwrap().count(), 1);
    }

    #[test]
    fn the_newest_whole_one_is_taken_and_old_ones_go() {
        let tmp = tempfile::tempdir().unwrap();
        let store = Store::make(tmp.path()).unwrap();
        let made: Vec<_> = (0..4).map(|_| store.begin().unwrap().finish(manifest()).unwrap().0).collect();
        store.keep(3);
        assert_eq!(made.iter().map(|path| path.exists()).collect::<Vec<_>>(), [false, true, true, true]);
        fs::write(made[3].join(crate::manifest::FILE), "{").unwrap();
        let mut notes = Vec::new();
        let newest = store.newest(&mut |note| notes.push(note.to_owned())).unwrap().0;
        assert_eq!(newest, made[2]);
        assert!(notes.len() == 1 && notes[0].contains("passed over"), "{notes:?}");
        assert_eq!(store.begin().unwrap().finish(manifest()).unwrap().0, store.0.join("checkpoint-000005"));
    }
}
