//! CRIU as a program: where it is, whether it is new enough, and what its log says of a failure.

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

/// The least version: kernels from 6.13 on have a vDSO that earlier ones do not understand.
pub const NEEDED: Version = Version(4, 2);
/// The remedy if there is none that can be used.
pub const REMEDY: &str = "a package of CRIU 4.2 or later (Debian: criu from sid or backports), or --criu PATH; from Vervain's sources, \
                          `scripts/criu.sh DIR` gets one and installs nothing";

/// Major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A CRIU that can be used.
#[derive(Debug, Clone)]
pub struct Criu {
    /// Its file.
    pub path: PathBuf,
    /// The version that it reports.
    pub version: Version,
}

impl Criu {
    /// The one that is given, else that of PATH and of the folders of administrators' programs.
    ///
    /// # Errors
    /// There is none, or an old one: a sentence with the remedy.
    pub fn find(given: Option<&Path>, path: Option<&std::ffi::OsStr>) -> Result<Criu> {
        Criu::look(given, path).map_err(|e| anyhow!("{e:#}; remedy: {REMEDY}"))
    }

    /// The same, whose error says nothing of [`REMEDY`].
    ///
    /// # Errors
    /// There is none, or an old one.
    pub fn look(given: Option<&Path>, path: Option<&std::ffi::OsStr>) -> Result<Criu> {
        let found = match given {
            Some(path) => Some(path.to_owned()),
            None => std::env::split_paths(path.unwrap_or_default())
                .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
                .map(|dir| dir.join("criu"))
                .find(|path| path.is_file()),
        };
        let Some(path) = found else { bail!("there is no criu in PATH") };
        let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
        let version = version(&path)?;
        ensure!(
            version >= NEEDED,
            "{} is CRIU {version}, and {NEEDED} is needed (older ones fail on kernels from 6.13 on)",
            path.display()
        );
        Ok(Criu { path, version })
    }
}

fn version(path: &Path) -> Result<Version> {
    let shown = path.display();
    let mut child = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot execute {shown}"))?;
    let until = Instant::now() + Duration::from_secs(10);
    while child.try_wait()?.is_none() {
        if Instant::now() >= until {
            let _ = child.kill();
            let _ = child.wait();
            bail!("{shown} does not say its version within 10 s");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = out.take(4096).read_to_string(&mut said);
    }
    parse_version(&said).with_context(|| format!("{shown} is no CRIU: it does not say its version"))
}

fn parse_version(said: &str) -> Option<Version> {
    let number = said.lines().find_map(|line| line.strip_prefix("Version: "))?;
    let mut parts = number.trim().split('.').map(|part| part.parse().ok());
    Some(Version(parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// The reason why CRIU has failed, by its log.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    /// One sentence.
    pub sentence: String,
    /// True if it may be gone at the next attempt: what a connection leaves behind for a minute, or one that is being
    /// made.
    pub may_pass: bool,
}

impl Reason {
    /// Reads the log in this folder.
    pub fn of(log: &Path) -> Reason {
        let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        judge(&text)
    }
}

/// Messages of CRIU, each with the sentence for the user and a remedy.
const KNOWN: &[(&[&str], &str)] = &[
    (&["Can't bind inet socket", "Address already in use"], "a port of the job is taken"),
    (
        &["bind", "Address already in use"],
        "a name or a port of the job, such as a slot of Vervain's, is taken by another process",
    ),
    (&["has bad build-ID"], "a program or library is another build than at the checkpoint"),
    (&["has bad size"], "a file has another size than at the checkpoint"),
    (&["Can't open file", "No such file"], "a file of the job is missing"),
    (&["Can't restore", "No such file"], "a file of the job is missing"),
    (&["Can't fork", "File exists"], "a process number of the job is taken"),
    (&["Can't create process with PID", "File exists"], "a process number of the job is taken"),
    (&["Unable to detach", "No such process"], "a process of the job has ended while it was brought back"),
    (&["No space left"], "the disk is full"),
    (&["Operation not permitted"], "the rights do not suffice (CRIU needs root with CAP_SYS_ADMIN)"),
    (&["device", "not supported"], "the job has a device open that cannot be saved, such as a real RDMA card or a GPU"),
    (&["Can't dump file", "chr"], "the job has a device open that cannot be saved, such as a real RDMA card or a GPU"),
    (&["SysVIPC"], "the job uses System V shared memory, which cannot be saved"),
    (&["is connected", "external"], "the job has a connection to a process outside of it"),
    (&["External socket"], "the job has a connection to a process outside of it"),
    (&["ghost file"], "the job has a large file open whose name was removed"),
    (&["In-flight connection"], "a program of the job has not accepted a TCP connection yet"),
];

fn judge(log: &str) -> Reason {
    // CRIU wants room for more descriptors than it needs, and goes on without.
    let errors = log.lines().filter(|line| line.contains("Error (") && !line.contains("RLIMIT_NOFILE for self"));
    let errors: Vec<&str> = errors.collect();
    let told = |line: &str| {
        // `(00.031234)    301: Error (criu/sk-inet.c:1020): inet: Can't bind ...`
        let text = line.split_once("): ").map_or(line, |(_, text)| text);
        text.trim().replace(char::is_control, " ")
    };
    let known = errors.iter().find_map(|line| {
        let (_, sentence) = KNOWN.iter().find(|(words, _)| words.iter().all(|word| line.contains(word)))?;
        Some((*sentence, *line))
    });
    let may_pass = errors.iter().any(|line| {
        (line.contains("inet") && line.contains("Address already in use"))
            || line.contains("In-flight connection")
            // CRIU lets threads go one by one, and the first may have ended the process before the last was let go.
            || (line.contains("Unable to detach") && line.contains("No such process"))
    });
    let sentence = match known {
        Some((sentence, line)) => format!("{sentence} (CRIU: {})", told(line)),
        None => match errors.first() {
            Some(line) => format!("CRIU: {}", told(line)),
            None => "CRIU has failed and does not say why".to_owned(),
        },
    };
    Reason { sentence, may_pass }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_a_number_or_two() {
        assert_eq!(parse_version("Version: 4.2.1\nGitID: v4.2.1\n"), Some(Version(4, 2)));
        assert_eq!(parse_version("Version: 5\n"), Some(Version(5, 0)));
        assert_eq!(parse_version("GNU bash, version 5.2"), None);
        assert!(Version(3, 17) < NEEDED && Version(4, 10) > NEEDED);
    }

    #[test]
    fn a_criu_that_is_missing_or_old_is_told_with_the_remedy() {
        let tmp = tempfile::tempdir().unwrap();
        let none = Criu::find(Some(&tmp.path().join("criu")), None).unwrap_err().to_string();
        assert!(none.contains("cannot find") && none.contains("remedy"), "{none}");
        let old = tmp.path().join("old");
        // Written by another process: a child of another test that has it open to write would keep it from being
        // executed.
        let write = "printf '#!/bin/sh\\necho Version: 3.17.1\\n' >\"$0\"; chmod 755 \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(&old).status().unwrap().success());
        let old = Criu::find(Some(&old), None).unwrap_err().to_string();
        assert!(old.contains("is CRIU 3.17, and 4.2 is needed") && old.contains("remedy"), "{old}");
    }

    #[test]
    fn the_first_error_that_is_known_is_told() {
        let log = "(00.01) Warn  (criu/x.c:1): y\n\
            (00.02)    310: Error (criu/sk-inet.c:1063): inet: Can't bind inet socket (id 23): Address already in use\n\
            (00.03) Error (criu/cr-restore.c:1447): 310 killed by signal 9: Killed\n";
        let reason = judge(log);
        assert!(reason.may_pass);
        assert_eq!(
            reason.sentence,
            "a port of the job is taken (CRIU: inet: Can't bind inet socket (id 23): Address already in use)"
        );
        let ended = judge("(00.02) Error (criu/cr-restore.c:1): Unable to detach 406: No such process\n");
        assert!(ended.may_pass && ended.sentence.contains("has ended while"), "{ended:?}");
        let early = judge("(00.02) Error (criu/sk-inet.c:190): inet: In-flight connection (l) for 8d5fd1\n");
        assert!(early.may_pass && early.sentence.contains("has not accepted"), "{early:?}");
        let other = judge("(00.02) Error (criu/a.c:1): it is odd\n");
        assert_eq!(other, Reason { sentence: "CRIU: it is odd".to_owned(), may_pass: false });
        assert!(judge("").sentence.contains("does not say why"));
    }
}
