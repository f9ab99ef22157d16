//! The first process of a job's part on another host: it starts what `vervain job rsh` asks for, so that all of it is
//! one tree, which is what CRIU saves. It is asked by a socket in the part's own folder of Vervain's, by its agent; a
//! connection lasts as long as the request.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::wait::waitpid;
use serde::{Deserialize, Serialize};

use crate::word::Word;

/// A program that is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteCommand {
    /// Its file and its words.
    pub words: Vec<Word>,
    /// Additions to its environment.
    pub environment: Vec<(Word, Word)>,
    /// Its standard input.
    pub input: Vec<u8>,
}

/// The socket's name.
const SOCKET: &str = "starter";
/// Time for the starter to be there, and to start a program.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request.
const LONGEST: u64 = 4 << 20;

/// Has the starter that has its socket in `folder` start a program.
///
/// # Errors
/// It is not there, or cannot.
pub(crate) fn start(folder: &Path, program: &RemoteCommand) -> Result<()> {
    const FAILED: &str = "a program cannot be started on that host";
    let until = Instant::now() + PATIENCE;
    let mut stream = loop {
        match within(folder).and_then(|(_folder, path)| UnixStream::connect(path)) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            stream => break stream.context(FAILED)?,
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(program)?)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut why = String::new();
    stream.read_to_string(&mut why).context(FAILED)?;
    if why.is_empty() { Ok(()) } else { bail!("{FAILED}: {why}") }
}

/// By the open folder, since the name of a socket may have 107 bytes only.
fn within(folder: &Path) -> std::io::Result<(File, PathBuf)> {
    let folder = File::open(folder)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()).into();
    Ok((folder, path))
}

/// The starter itself. It ends with the part.
///
/// # Errors
/// It cannot be asked.
pub fn serve(private: &Path) -> Result<()> {
    let _ = fs::remove_file(private.join(SOCKET));
    // By its path: CRIU makes it again by the name that it has here.
    let listener = UnixListener::bind(private.join(SOCKET)).context("cannot make the socket of the starter")?;
    let (started, reaped) = channel();
    std::thread::spawn(move || reap(&reaped));
    loop {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        let known = vervain_names::peer(&stream).is_some_and(|(_, uid)| uid == rustix::process::geteuid().as_raw());
        if known && stream.set_read_timeout(Some(PATIENCE)).is_ok() {
            let said = take(&mut stream).err().map(|e| format!("{e:#}")).unwrap_or_default();
            let _ = started.send(());
            let _ = stream.write_all(said.as_bytes());
        }
    }
}

fn take(stream: &mut UnixStream) -> Result<()> {
    let mut text = Vec::new();
    stream.take(LONGEST).read_to_end(&mut text)?;
    let program: RemoteCommand = serde_json::from_slice(&text).context("the request cannot be understood")?;
    let mut words = program.words.iter().map(|word| OsStr::from_bytes(&word.0));
    let mut command = Command::new(words.next().context("no program")?);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::null());
    command.envs(program.environment.iter().map(|(k, v)| (OsStr::from_bytes(&k.0), OsStr::from_bytes(&v.0))));
    let mut child = command.spawn()?;
    let input = child.stdin.take();
    std::thread::spawn(move || {
        // One that does not read is no concern of ours.
        let _ = input.map(|mut pipe| pipe.write_all(&program.input));
    });
    Ok(())
}

/// Waits for the ends of all children: those that were started, and orphans of theirs.
fn reap(started: &Receiver<()>) {
    while started.recv().is_ok() {
        while !matches!(waitpid(None, None), Err(Errno::ECHILD)) {}
    }
}
