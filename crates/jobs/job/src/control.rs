//! The requests to a supervisor, and its replies: lines of JSON on a socket in a folder that only its user can enter.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::hosts::Host;
use crate::park::Processes;
use crate::place::{Name, Places};
use crate::starter::RemoteCommand;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A checkpoint.
    Checkpoint {
        /// The folder.
        dir: PathBuf,
        /// True if the job ends with it.
        stop: bool,
        /// The number of checkpoints that are kept there.
        keep: Option<usize>,
        /// Time for which a program that saves itself may take to come to the place where it does.
        within: Duration,
    },
    /// How the job is.
    Status,
    /// The job's end.
    Kill,
    /// A program that is part of the job is to run on another host. Asked from inside of the job only.
    Start {
        /// The host.
        host: Host,
        /// The program.
        program: RemoteCommand,
    },
    /// The job is to take turns: what follows on the connection are [`Turn`]s. The job goes on when the connection is
    /// closed.
    Gang,
}

/// The orders to the supervisor of a job that takes turns, each with the number of the job's life. An order that comes
/// late, after the job has ended and was resumed, is not carried out and not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Turn {
    /// The job is about to be held, so no checkpoint is begun until it goes on. Answered by [`Reply::Prepared`].
    Prepare,
    /// All processes are stopped by a signal, where there is no freezer. Answered by [`Reply::Signalled`].
    Stop,
    /// They go on, likewise.
    Continue,
    /// The job has gone on. There is no answer.
    Goes,
}

/// The facts about a job by which a gang holds it and has it go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Which of the job's lives this is: it has another one each time that it is resumed.
    pub life: u32,
    /// The supervisor's process, as it sees itself.
    pub supervisor: u32,
    /// The first process of the job's namespaces, as the supervisor sees it.
    pub init: u32,
    /// The control group by which the job is frozen, if there is one.
    pub group: Option<PathBuf>,
}

/// A reply. The last one of a request ends it; the others report progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The step in progress.
    Doing(String),
    /// A checkpoint was made.
    Made(Made),
    /// How the job is.
    Status(Status),
    /// The job was killed.
    Killed,
    /// The program runs.
    Started,
    /// The job takes turns, from its beginning or again.
    Joined(Reach),
    /// It was killed, and will be back.
    Away,
    /// It may be held. These processes have devices, and are to be asked at these slots.
    Prepared(Processes),
    /// The signal was sent.
    Signalled,
    /// It cannot be done: a sentence.
    Failed(String),
}

/// A checkpoint that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Its folder.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Processes in it.
    pub processes: usize,
    /// Time for which the job stood still.
    pub frozen: Duration,
    /// Time that all took.
    pub took: Duration,
}

/// How a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The supervisor's process.
    pub pid: u32,
    /// The command that runs.
    pub command: String,
    /// Seconds since 1970 at its start.
    pub since: u64,
    /// Processes of the job's.
    pub processes: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// True if it takes turns with others.
    pub gang: bool,
    /// The last checkpoint, and its time in seconds since 1970.
    pub checkpoint: Option<(PathBuf, u64)>,
}

/// A request may have so many bytes.
const LONGEST: u64 = 4 << 20;
/// The name of the socket by which the supervisor is reached from inside of the job, in Vervain's folder there.
const INSIDE: &str = "supervisor";

/// Asks the supervisor of a job; `each` sees what it is doing. Returns its last word.
///
/// # Errors
/// There is no such job, it has ended, or what was asked cannot be done.
pub fn ask(places: &Places, name: &Name, request: &Request, each: &mut dyn FnMut(&str)) -> Result<Reply> {
    let stream = places.connect(name)?;
    answered(stream, request, each)?.with_context(|| format!("{name} has ended"))
}

/// Asks the supervisor of the job that this process is in; `private` is Vervain's folder there.
///
/// # Errors
/// This is no job's process, or what was asked cannot be done.
pub(crate) fn ask_at(private: &Path, request: &Request) -> Result<Reply> {
    let connect = || UnixStream::connect(inside(&File::open(private)?));
    let stream = connect().context("this program is for the inside of a job (`vervain job run`)")?;
    answered(stream, request, &mut |_| ())?.context("the supervisor has ended")
}

/// By the open folder, since the name of a socket may have 107 bytes only.
fn inside(folder: &File) -> PathBuf {
    format!("/proc/self/fd/{}/{INSIDE}", folder.as_raw_fd()).into()
}

/// The socket by which processes of a job reach their supervisor, in Vervain's folder as they see it, which is `folder`
/// from here.
///
/// # Errors
/// It cannot be made.
pub(crate) fn listen_inside(folder: &Path) -> Result<UnixListener> {
    let _ = std::fs::remove_file(folder.join(INSIDE));
    let make = || UnixListener::bind(inside(&File::open(folder)?));
    make().context("cannot make the socket for the inside of the job")
}

fn answered(mut stream: UnixStream, request: &Request, each: &mut dyn FnMut(&str)) -> Result<Option<Reply>> {
    send(&mut stream, request)?;
    for line in BufReader::new(stream).lines() {
        match serde_json::from_str(&line.context("the supervisor's answer cannot be read")?)? {
            Reply::Doing(what) => each(&what),
            Reply::Failed(why) => bail!("{why}"),
            last => return Ok(Some(last)),
        }
    }
    Ok(None)
}

pub(crate) fn send(stream: &mut UnixStream, what: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(what)?;
    text.push(b'\n');
    Ok(stream.write_all(&text)?)
}

/// The sender of a request, who is to get the reply.
#[derive(Debug)]
pub struct Asker(UnixStream);

impl Asker {
    /// Answers. One who has gone is no error.
    pub fn tell(&mut self, reply: &Reply) {
        let _ = send(&mut self.0, reply);
    }

    /// Answers for the last time, and waits until who has asked has closed the connection, so that no image has an end
    /// of it.
    pub(crate) fn dismiss(mut self, reply: &Reply) {
        self.tell(reply);
        let _ = self.0.shutdown(std::net::Shutdown::Write);
        let _ = self.0.read(&mut [0]);
    }

    /// The next order, when [`Asker::line`] is ready, and the life of the job that it is for. None if the sender has
    /// gone, or cannot be understood.
    pub fn hear(&mut self) -> Option<(u32, Turn)> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.last() != Some(&b'\n') && line.len() < 64 {
            self.0.read_exact(&mut byte).ok()?;
            line.extend(byte);
        }
        serde_json::from_slice(&line).ok()
    }

    /// Becomes ready when it asks something, or has gone.
    pub fn line(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Takes requests of this user's, for as long as the process lives, and hands each on with who has asked.
pub fn serve(listener: &UnixListener, take: &mut dyn FnMut(Request, Asker)) {
    let own = rustix::process::geteuid().as_raw();
    while let Ok((mut stream, _)) = listener.accept() {
        let known = vervain_names::peer(&stream).is_some_and(|(_, uid)| uid == own);
        // One who says nothing, or does not read, must not hold up others.
        let limits = stream
            .set_read_timeout(Some(Duration::from_secs(2)))
            .and(stream.set_write_timeout(Some(Duration::from_secs(2))));
        if !known || limits.is_err() {
            continue;
        }
        let mut line = String::new();
        let read = BufReader::new(Read::take(&stream, LONGEST)).read_line(&mut line);
        match (read, serde_json::from_str(&line)) {
            (Ok(_), Ok(request)) => take(request, Asker(stream)),
            _ => _ = send(&mut stream, &Reply::Failed("the request cannot be understood".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_asked_for_until_the_connection_is_closed() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut asker = Asker(ours);
        // One needs no answer, so the next may be there too.
        let turns = [(1, Turn::Goes), (1, Turn::Prepare), (u32::MAX, Turn::Continue)];
        turns.iter().for_each(|turn| send(&mut theirs, turn).unwrap());
        turns.iter().for_each(|turn| assert_eq!(asker.hear(), Some(*turn)));
        theirs.write_all(b"[1,\"Jump\"]\n").unwrap();
        assert_eq!(asker.hear(), None);
        drop(theirs);
        assert_eq!(asker.hear(), None);
    }
}
