//! The manifest of a checkpoint: its contents, and the conditions that a restart must bring about before CRIU can do
//! its part.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::hosts::Host;
use crate::trust;
use crate::word::Word;

/// The format of checkpoints that this build writes and reads.
pub const FORMAT: u32 = 2;

/// The network of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// The network of the process that starts it.
    Host,
    /// One of its own, with `lo`.
    Private,
}

/// A checkpoint's own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The job's name.
    pub name: String,
    /// The command that it runs, for people.
    pub command: String,
    /// Seconds since 1970.
    pub made: u64,
    /// Vervain's version, and its libraries.
    pub vervain: Vervain,
    /// The kernel's release.
    pub kernel: String,
    /// The number of processes.
    pub processes: usize,
    /// The saved state, and the program that has saved it.
    pub saved: Saved,
    /// Microseconds in which the job stood still.
    pub frozen: u64,
    /// The files of the checkpoint, by their paths in it.
    pub files: BTreeMap<String, Part>,
}

/// The contents of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Saved {
    /// Processes, as CRIU has written them.
    Images(Images),
    /// Files that a program has saved itself.
    Program(Program),
}

/// The facts by which CRIU brings a job back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images {
    /// CRIU's version.
    pub criu: String,
    /// The network that the job has.
    pub network: Network,
    /// Standard input, output and error: the pipe's number where it is one of the supervisor's.
    pub streams: [Option<u64>; 3],
    /// The images of each host; the supervisor's come first.
    pub hosts: Vec<Image>,
}

/// The images of a job on one host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The host as the job has named it; None for the supervisor's.
    pub host: Option<Host>,
    /// The folder in the checkpoint.
    pub folder: PathBuf,
    /// The folder of Vervain's that the job has its own of.
    pub private: PathBuf,
    /// The number of the first process.
    pub root: i32,
    /// The highest number of a process or thread.
    pub last: u32,
    /// The number of processes.
    pub processes: usize,
    /// Files that they have open to write, with their sizes.
    pub written: Vec<Written>,
}

/// How a program is started that goes on by itself from what it has saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The program and its arguments.
    pub words: Vec<Word>,
    /// Its working directory.
    pub directory: Word,
    /// The environment of its supervisor, and what options of the command line have set in it.
    pub environment: Vec<(Word, Word)>,
    /// True if it has the preload.
    pub preload: bool,
}

/// Which build of Vervain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vervain {
    /// Its version.
    pub version: String,
    /// The paths of its libraries, and the digest of each.
    pub libraries: BTreeMap<PathBuf, String>,
}

/// A file outside of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Its path.
    pub path: Word,
    /// Its size at the dump.
    pub size: u64,
}

impl Written {
    /// Its path.
    pub fn path(&self) -> &Path {
        Path::new(std::ffi::OsStr::from_bytes(&self.path.0))
    }
}

/// A file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its size.
    pub size: u64,
    /// Its digest.
    pub sha256: String,
}

/// The name of the file that holds it.
pub const FILE: &str = "manifest.json";

impl Vervain {
    /// The build that is installed now.
    ///
    /// # Errors
    /// A library cannot be read.
    pub fn of(libraries: &[PathBuf]) -> Result<Vervain> {
        let digests = libraries.iter().map(|path| Ok((path.clone(), part(path)?.sha256)));
        Ok(Vervain { version: env!("CARGO_PKG_VERSION").to_owned(), libraries: digests.collect::<Result<_>>()? })
    }

    /// Refuses libraries that are others by now: a process that is brought back has the old ones mapped.
    ///
    /// # Errors
    /// A sentence that says which.
    pub fn check(&self) -> Result<()> {
        for (path, digest) in &self.libraries {
            let shown = path.display();
            ensure!(path.is_file(), "{shown} is missing, which the job had loaded");
            ensure!(
                part(path)?.sha256 == *digest,
                "the checkpoint is of another build of Vervain: {shown} has changed since; remedy: put back the build that made it"
            );
        }
        Ok(())
    }
}

impl Manifest {
    /// Notes the files of a checkpoint, has the disk keep all, and writes the manifest last.
    ///
    /// # Errors
    /// A file cannot be read or kept.
    pub fn seal(mut self, dir: &Path) -> Result<Manifest> {
        self.files.clear();
        walk(dir, Path::new(""), &mut |relative, path| {
            if relative == Path::new(FILE) {
                return Ok(());
            }
            File::open(path).and_then(|file| file.sync_all()).with_context(|| cannot_keep(path))?;
            let name = relative.to_str().with_context(|| format!("{} has an odd name", path.display()))?;
            self.files.insert(name.to_owned(), part(path)?);
            Ok(())
        })?;
        let path = dir.join(FILE);
        let write = || -> io::Result<()> {
            fs::write(&path, serde_json::to_vec_pretty(&self)?)?;
            File::open(&path)?.sync_all()?;
            File::open(dir)?.sync_all()
        };
        write().with_context(|| cannot_keep(&path))?;
        Ok(self)
    }

    /// The manifest of a checkpoint that is all there.
    ///
    /// # Errors
    /// It is not, or it is not to be trusted, or is of another version: a sentence that says so.
    pub fn read(dir: &Path) -> Result<Manifest> {
        let path = dir.join(FILE);
        trust::file(&path)?;
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let broken = || format!("{} is broken", path.display());
        let head: Head = serde_json::from_slice(&bytes).with_context(broken)?;
        ensure!(
            head.format == FORMAT,
            "{} is of another version of Vervain (format {}, this one reads {FORMAT})",
            dir.display(),
            head.format
        );
        let manifest: Manifest = serde_json::from_slice(&bytes).with_context(broken)?;
        let folders: Vec<&Path> = match &manifest.saved {
            Saved::Images(images) => images.hosts.iter().map(|image| image.folder.as_path()).collect(),
            Saved::Program(_) => Vec::new(),
        };
        ensure!(
            manifest.files.keys().map(Path::new).chain(folders).all(is_below),
            "{} names a file outside of it",
            path.display()
        );
        for (name, expected) in &manifest.files {
            let path = dir.join(name);
            trust::file(&path)?;
            ensure!(part(&path)? == *expected, "{} is not as it was written", path.display());
        }
        Ok(manifest)
    }

    /// The images that CRIU has written.
    ///
    /// # Errors
    /// There are none: the program has saved itself.
    pub fn images(&self) -> Result<&Images> {
        match &self.saved {
            Saved::Images(images) => Ok(images),
            Saved::Program(_) => bail!("it is the checkpoint of a job that was run with --cooperative"),
        }
    }

    /// Bytes of the checkpoint.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|part| part.size).sum()
    }
}

impl Image {
    /// Looks whether this host still has the files that the processes were writing.
    ///
    /// # Errors
    /// A sentence that says what is missing or another.
    pub fn check(&self) -> Result<()> {
        for written in &self.written {
            let shown = written.path().display();
            match fs::metadata(written.path()) {
                Err(e) => bail!("{shown}, which the job was writing, cannot be found: {e}"),
                Ok(meta) if meta.len() < written.size => {
                    bail!("{shown} has {} bytes, and had {} at the checkpoint", meta.len(), written.size)
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

fn cannot_keep(path: &Path) -> String {
    format!("cannot keep {}", path.display())
}

fn is_below(path: &Path) -> bool {
    path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

fn walk(dir: &Path, relative: &Path, each: &mut dyn FnMut(&Path, &Path) -> Result<()>) -> Result<()> {
    let listing = || format!("cannot read {}", dir.display());
    for entry in fs::read_dir(dir).with_context(listing)? {
        let entry = entry.with_context(listing)?;
        let (path, relative) = (entry.path(), relative.join(entry.file_name()));
        let kind = entry.file_type().with_context(listing)?;
        if kind.is_dir() {
            walk(&path, &relative, each)?;
        } else if kind.is_file() {
            each(&relative, &path)?;
        }
    }
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(|| cannot_keep(dir))
}

fn part(path: &Path) -> Result<Part> {
    let reading = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(reading)?;
    let mut digest = Sha256::new();
    let (mut piece, mut size) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut piece).with_context(reading)? {
            0 => break,
            length => {
                digest.update(&piece[..length]);
                size += length as u64;
            }
        }
    }
    let sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Part { size, sha256 })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            name: "j".into(),
            command: "true".into(),
            made: 1,
            vervain: Vervain { version: "0".into(), libraries: BTreeMap::new() },
            kernel: "6".into(),
            processes: 1,
            saved: Saved::Images(Images {
                criu: "4.2".into(),
                network: Network::Host,
                streams: [None, Some(7), None],
                hosts: vec![Image {
                    private: "/nowhere".into(),
                    root: 300,
                    last: 301,
                    processes: 1,
                    ..Image::default()
                }],
            }),
            frozen: 5,
            files: BTreeMap::new(),
        }
    }

    #[test]
    fn a_checkpoint_is_whole_or_refused() {
        let tmp = tempfile::tempdir().unwrap();
        fs::create_dir_all(tmp.path().join("images")).unwrap();
        fs::write(tmp.path().join("images/a.img"), "contents").unwrap();
        let sealed = manifest().seal(tmp.path()).unwrap();
        assert_eq!(sealed.bytes(), 8);
        assert_eq!(Manifest::read(tmp.path()).unwrap(), sealed);
        fs::write(tmp.path().join("images/a.img"), "Contents").unwrap();
        assert!(Manifest::read(tmp.path()).unwrap_err().to_string().contains("not as it was written"));
        fs::remove_file(tmp.path().join("images/a.img")).unwrap();
        assert!(Manifest::read(tmp.path()).is_err());
    }

    #[test]
    fn each_truncation_of_the_manifest_is_an_error() {
        let tmp = tempfile::tempdir().unwrap();
        manifest().seal(tmp.path()).unwrap();
        let whole = fs::read(tmp.path().join(FILE)).unwrap();
        for length in 0..whole.len() {
            fs::write(tmp.path().join(FILE), &whole[..length]).unwrap();
            assert!(Manifest::read(tmp.path()).is_err(), "{length}");
        }
    }

    #[test]
    fn other_formats_files_outside_and_files_that_shrank_are_told() {
        let tmp = tempfile::tempdir().unwrap();
        let mut other = manifest().seal(tmp.path()).unwrap();
        let rewrite = |m: &Manifest| fs::write(tmp.path().join(FILE), serde_json::to_vec(m).unwrap()).unwrap();
        other.format = FORMAT + 1;
        rewrite(&other);
        assert!(Manifest::read(tmp.path()).unwrap_err().to_string().contains("another version"));
        other.format = FORMAT;
        other.files.insert("../escape".into(), Part { size: 0, sha256: String::new() });
        rewrite(&other);
        assert!(Manifest::read(tmp.path()).unwrap_err().to_string().contains("outside"));

        let out = tmp.path().join("out");
        fs::write(&out, "ab").unwrap();
        let mut writing = Image::default();
        writing.written.push(Written { path: Word(out.as_os_str().as_bytes().to_vec()), size: 2 });
        writing.check().unwrap();
        fs::write(&out, "a").unwrap();
        assert!(writing.check().unwrap_err().to_string().contains("has 1 bytes, and had 2"));

        let library = tmp.path().join("lib");
        fs::write(&library, "build 1").unwrap();
        let vervain = Vervain::of(std::slice::from_ref(&library)).unwrap();
        vervain.check().unwrap();
        fs::write(&library, "build 2").unwrap();
        assert!(vervain.check().unwrap_err().to_string().contains("another build"));
    }
}
