//! The line between the coordinator and one worker: JSON lines over a connected socket, the same for a worker that was
//! started here (a socket pair) and for one behind `vervain bench serve` (TCP). A thread reads, so that the measuring
//! one need not.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest line that is taken, in bytes: a run with a histogram is some tens of thousands.
const LONGEST: u64 = 16 << 20;

/// One end of a line. `I` comes in; what goes out is up to the caller.
pub struct Control<I> {
    socket: File,
    incoming: Receiver<io::Result<I>>,
}

/// The reason why there is no answer.
#[derive(Debug)]
pub enum Silence {
    /// The time was over.
    Late,
    /// The other end is gone, or does not speak this language.
    Gone(io::Error),
}

impl<I: DeserializeOwned + Send + 'static> Control<I> {
    /// Takes over a connected socket. `urgent` sees each message first, on the reading thread, and keeps those for
    /// which it says so; `None` is the end of the line.
    ///
    /// # Errors
    /// No descriptor or no thread left.
    pub fn new(socket: OwnedFd, mut urgent: impl FnMut(Option<&I>) -> bool + Send + 'static) -> io::Result<Self> {
        let socket = File::from(socket);
        let mut lines = BufReader::new(socket.try_clone()?);
        let (sender, incoming) = channel();
        thread::Builder::new().name("control".into()).spawn(move || {
            loop {
                let message = next(&mut lines);
                if urgent(message.as_ref().ok()) {
                    continue;
                }
                let last = message.is_err();
                if sender.send(message).is_err() || last {
                    return;
                }
            }
        })?;
        Ok(Self { socket, incoming })
    }

    /// Sends one message.
    ///
    /// # Errors
    /// EPIPE, ECONNRESET: the other end is gone.
    pub fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.socket.write_all(&line)
    }

    /// The next message, for which it waits as long as `patience` says.
    ///
    /// # Errors
    /// [`Silence`].
    pub fn receive(&self, patience: Duration) -> Result<I, Silence> {
        match self.incoming.recv_timeout(patience) {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) => Err(Silence::Gone(error)),
            Err(RecvTimeoutError::Timeout) => Err(Silence::Late),
            Err(RecvTimeoutError::Disconnected) => Err(Silence::Gone(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl<I> Drop for Control<I> {
    fn drop(&mut self) {
        // The thread that reads has the socket too. Where it is closed already, nobody is left to be told.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// The next line as a message.
fn next<I: DeserializeOwned>(lines: &mut BufReader<File>) -> io::Result<I> {
    let mut line = String::new();
    let length = lines.by_ref().take(LONGEST).read_line(&mut line)?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_str(&line)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("not our protocol: {e}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn pair() -> (Control<u32>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        (Control::new(ours.into(), |_| false).expect("a line"), theirs)
    }

    #[test]
    fn messages_come_in_order_and_silence_is_late() {
        let (mut line, theirs) = pair();
        let mut other = Control::<String>::new(theirs.into(), |_| false).expect("a line");
        other.send(&1).and_then(|()| other.send(&2)).expect("sent");
        line.send(&"three").expect("sent");
        assert_eq!((line.receive(PATIENCE).ok(), line.receive(PATIENCE).ok()), (Some(1), Some(2)));
        assert_eq!(other.receive(PATIENCE).ok().as_deref(), Some("three"));
        assert!(matches!(line.receive(Duration::from_millis(1)), Err(Silence::Late)));
    }

    #[test]
    fn an_end_and_nonsense_are_told() {
        let (line, theirs) = pair();
        drop(theirs);
        assert!(matches!(line.receive(PATIENCE), Err(Silence::Gone(e)) if e.kind() == io::ErrorKind::UnexpectedEof));
        let (line, mut theirs) = pair();
        theirs.write_all(b"GET / HTTP/1.1\r\n").expect("sent");
        assert!(matches!(line.receive(PATIENCE), Err(Silence::Gone(e)) if e.to_string().contains("protocol")));
    }

    #[test]
    fn what_is_urgent_is_seen_at_once_and_not_again() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let seen = Arc::new(AtomicU32::new(0));
        let urgent = {
            let seen = seen.clone();
            move |message: Option<&u32>| message.is_some_and(|n| *n > 9 && seen.swap(*n, Ordering::Relaxed) == 0)
        };
        let line = Control::<u32>::new(ours.into(), urgent).expect("a line");
        theirs.write_all(b"10\n3\n").expect("sent");
        assert_eq!(line.receive(PATIENCE).ok(), Some(3));
        assert_eq!(seen.load(Ordering::Relaxed), 10);
    }
}
