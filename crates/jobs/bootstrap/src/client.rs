//! A rank's end of the connection to `vervain launch`.

use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketType, sockopt};
use vervain_config::JOB_FD;

use crate::environment::Seat;
use crate::protocol::{Inbox, Reply, Request, VERSION};
use crate::{Error, Exchange, Joined, Result};

/// Time for the launcher to give an answer that needs no waiting: it must be scheduled within it.
const PROMPT: Duration = Duration::from_secs(60);

/// Two locks, so that a rank can abort while another of its threads waits in a fence.
struct Client {
    /// Held from a question to its answer.
    answers: Mutex<Answers>,
    /// Held while a question is sent.
    questions: Mutex<UnixStream>,
}

struct Answers {
    stream: UnixStream,
    inbox: Inbox,
    /// The reason why it makes no sense to ask again: the launcher has gone, or an answer is outstanding that is not
    /// waited for.
    lost: Option<Error>,
}

/// Joins the job at the seat that the environment names.
pub fn join(seat: Seat) -> Result<Joined> {
    let client = Client::new(connection(seat.fd)?)?;
    client.done(&Request::Join { version: VERSION, id: seat.id.clone() }, Some(PROMPT))?;
    let Seat { rank, size, id, .. } = seat;
    Ok(Joined { rank, size, id, local: Some((0..size).collect()), exchange: Box::new(client) })
}

/// The connection in the descriptor `fd`, from now on for this process only.
fn connection(fd: i32) -> Result<UnixStream> {
    // A process that a rank has started after it joined has the variables too, but not the descriptor, whose number may
    // be that of another file by then.
    let not = |why: &str| {
        Error::new(format!(
            "{} is {fd}, and descriptor {fd} {why}: only the process that `vervain launch` has started can join, and only once",
            JOB_FD.name()
        ))
    };
    // SAFETY: the call looks at a number, and does not take the descriptor behind it.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 {
        return Err(not("is closed"));
    }
    // The launcher lets it be inherited, and the first one that joins ends that: this crate, or another copy of it in
    // this process.
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(not("is in use by this process already"));
    }
    // SAFETY: it is open, and borrowed for the three calls below only.
    let borrowed = unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) };
    let is_unix = sockopt::socket_domain(borrowed) == Ok(AddressFamily::UNIX);
    if !is_unix || sockopt::socket_type(borrowed) != Ok(SocketType::STREAM) {
        return Err(not("is another file"));
    }
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(|e| not(&format!("cannot be kept: {e}")))?;
    // SAFETY: `vervain launch` gave this process the descriptor for this crate, and no other copy of it has taken it,
    // so nobody else closes it.
    Ok(UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn gone(why: impl Display) -> Error {
    Error::new(format!("the connection to vervain launch is gone: {why}"))
}

impl Client {
    fn new(stream: UnixStream) -> Result<Client> {
        stream.set_write_timeout(Some(PROMPT)).map_err(gone)?;
        let questions = Mutex::new(stream.try_clone().map_err(gone)?);
        Ok(Client { answers: Mutex::new(Answers { stream, inbox: Inbox::default(), lost: None }), questions })
    }

    fn send(&self, request: &Request) -> Result<()> {
        let mut stream = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&request.frame()).map_err(gone)
    }

    /// Asks, and waits for the answer; without a limit as long as it takes.
    fn ask(&self, request: &Request, limit: Option<Duration>) -> Result<Reply> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lost) = &answers.lost {
            return Err(lost.clone());
        }
        let reply = self.send(request).and_then(|()| answers.next(limit));
        answers.lost = reply.as_ref().err().cloned();
        match reply? {
            Reply::Refused(why) => Err(Error::new(why)),
            reply => Ok(reply),
        }
    }

    fn done(&self, request: &Request, limit: Option<Duration>) -> Result<()> {
        match self.ask(request, limit)? {
            Reply::Done => Ok(()),
            Reply::Value(_) | Reply::Refused(_) => Err(Error::new("vervain launch has answered another question")),
        }
    }
}

impl Answers {
    fn next(&mut self, limit: Option<Duration>) -> Result<Reply> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut piece = [0; 16 << 10];
        loop {
            if let Some(frame) = self.inbox.next().map_err(gone)? {
                return Reply::parse(&frame).map_err(gone);
            }
            // A timeout of zero would mean none.
            let left = until.map(|until| until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
            self.stream.set_read_timeout(left).map_err(gone)?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(gone("it has closed it")),
                Ok(length) => self.inbox.push(&piece[..length]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if until.is_some_and(|until| Instant::now() >= until) {
                        return Err(Error::new("vervain launch has not answered in time"));
                    }
                }
                Err(e) => return Err(gone(e)),
            }
        }
    }
}

impl Exchange for Client {
    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.done(&Request::Put { key: key.to_owned(), value: value.to_vec() }, Some(PROMPT))
    }

    fn fence(&self) -> Result<()> {
        self.done(&Request::Fence, None)
    }

    fn get(&self, rank: u32, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        match self.ask(&Request::Get { rank, key: key.to_owned() }, Some(timeout))? {
            Reply::Value(value) => Ok(value),
            Reply::Done | Reply::Refused(_) => Err(Error::new("vervain launch has answered another question")),
        }
    }

    fn abort(&self, status: i32, sentence: &str) {
        // Without an answer: the launcher reads what a rank has sent before it looks at how the rank ended.
        let _ = self.send(&Request::Abort { status, sentence: sentence.to_owned() });
    }

    fn finalize(&self) -> Result<()> {
        self.done(&Request::Finalize, Some(PROMPT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    /// A pair of sockets, the first as the launcher leaves it to a rank.
    fn pair() -> (i32, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        rustix::io::fcntl_setfd(&near, FdFlags::empty()).unwrap();
        (near.into_raw_fd(), far)
    }

    #[test]
    fn only_an_inherited_socket_is_taken_and_only_once() {
        let said = |fd| connection(fd).unwrap_err().to_string();
        let (fd, _far) = pair();
        let stream = connection(fd).unwrap();
        assert!(said(stream.as_raw_fd()).contains("is in use by this process already"));
        let file = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, FdFlags::empty()).unwrap();
        assert!(said(file.as_raw_fd()).contains("is another file"));
        assert!(said(i32::MAX).contains("is closed"));
    }

    #[test]
    fn a_launcher_that_is_silent_gone_or_talks_rubbish_is_an_error_and_stays_one() {
        let get = |client: &Client| client.get(0, "k", Duration::from_millis(20)).unwrap_err().to_string();
        let (fd, mut far) = pair();
        let client = Client::new(connection(fd).unwrap()).unwrap();
        assert_eq!(get(&client), "vervain launch has not answered in time");
        far.write_all(&Reply::Value(None).frame()).unwrap();
        assert_eq!(
            get(&client),
            "vervain launch has not answered in time",
            "this would be the answer to the first question"
        );
        for rubbish in [&b""[..], &[0xff; 4], &[1, 0, 0, 0, 9]] {
            let (fd, mut far) = pair();
            let client = Client::new(connection(fd).unwrap()).unwrap();
            far.write_all(rubbish).unwrap();
            drop(far);
            assert!(get(&client).starts_with("the connection to vervain launch is gone: "));
        }
    }

    #[test]
    fn a_rank_aborts_while_another_thread_waits_in_a_fence() {
        let (fd, mut far) = pair();
        let client = Client::new(connection(fd).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let fence = scope.spawn(|| client.fence());
            let mut first = vec![0; Request::Fence.frame().len()];
            far.read_exact(&mut first).unwrap();
            client.abort(1, "why");
            let wanted = Request::Abort { status: 1, sentence: "why".into() }.frame();
            let mut second = vec![0; wanted.len()];
            far.read_exact(&mut second).unwrap();
            assert_eq!((first, second), (Request::Fence.frame(), wanted));
            drop(far);
            assert!(fence.join().unwrap().is_err());
        });
    }
}
