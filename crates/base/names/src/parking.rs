//! Parking: the steps that a supervisor asks of the processes of a job before an image of them is made, and after. Each
//! step is taken by all of them before the next one by any. Each is a connection of its own to the listener of one of
//! the process's slots, which the process closes when it has answered: no image has an end of it.
//!
//! If the process is restored elsewhere, addresses may be others than its program knows. It then gets them in messages
//! before the one that has it rejoin, a pair in each.

use crate::AddressMap;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Bytes of a message, as of all that come to a slot.
pub const MESSAGE: usize = 64;
/// The kind of the answer; the errno follows, 0 if the step is taken.
pub const ANSWER: u32 = 60;
/// The kind of a message with a pair of addresses ([`pair_in`]).
pub const ADDRESS: u32 = 61;
/// Offset of a pair in a message: behind its kind and its numbers.
const PAIR: usize = 32;
/// Between two looks at a process that has not answered.
const LOOK: Duration = Duration::from_millis(100);

/// A step. One that is taken already is taken again without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// Stops: nothing moves from now on, and time stands still for QPs.
    Stop = 56,
    /// Gives up all that no image can contain: the sockets of packets, and locks on files that others take meanwhile.
    Leave = 57,
    /// Makes that anew, here or in the place where the process is restored.
    Rejoin = 58,
    /// All goes on.
    Go = 59,
}

impl Step {
    /// The step that a message of this kind asks for.
    pub fn of(kind: u32) -> Option<Step> {
        [Step::Stop, Step::Leave, Step::Rejoin, Step::Go].into_iter().find(|step| *step as u32 == kind)
    }
}

/// Has the process that has `slot` of user `uid`, in the network namespace of this thread, take `step`, and waits for
/// it. False if there is no such process.
///
/// # Errors
/// As [`begin`] and [`Asked::answer`].
pub fn ask(uid: u32, slot: u32, step: Step, patience: Duration) -> io::Result<bool> {
    begin(uid, slot, step)?.map_or(Ok(false), |asked| asked.answer(patience))
}

/// A process that was asked for a step, and has not answered yet: so several take theirs at once.
#[derive(Debug)]
pub struct Asked(OwnedFd);

/// Asks like [`ask`], but does not wait for the answer. None if there is no such process.
///
/// # Errors
/// EPERM if the listener is another user's.
pub fn begin(uid: u32, slot: u32, step: Step) -> io::Result<Option<Asked>> {
    send(uid, slot, &[message(step as u32)])
}

/// Asks for [`Step::Rejoin`] as [`begin`] does, where addresses are others than when the process left: `map` has each
/// that has changed, as it was then, or as the program knows it. Those that the process has nothing to do with do no
/// harm.
///
/// # Errors
/// As [`begin`].
pub fn begin_rejoin(uid: u32, slot: u32, map: &AddressMap) -> io::Result<Option<Asked>> {
    let pairs = map.pairs().map(|(old, new)| {
        let mut message = message(ADDRESS);
        message[PAIR..PAIR + 16].copy_from_slice(&wide(old));
        message[PAIR + 16..].copy_from_slice(&wide(new));
        message
    });
    let all: Vec<_> = pairs.chain([message(Step::Rejoin as u32)]).collect();
    send(uid, slot, &all)
}

/// The addresses, old and new, that the four numbers of 64 bits of a message of kind [`ADDRESS`] are.
pub fn pair_in(numbers: [u64; 4]) -> (IpAddr, IpAddr) {
    let [a, b, c, d] = numbers.map(u64::to_ne_bytes);
    let ip = |first: [u8; 8], second: [u8; 8]| {
        let octets: [u8; 16] = std::array::from_fn(|i| if i < 8 { first[i] } else { second[i - 8] });
        Ipv6Addr::from(octets).to_canonical()
    };
    (ip(a, b), ip(c, d))
}

fn wide(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn message(kind: u32) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..4].copy_from_slice(&kind.to_ne_bytes());
    message
}

fn send(uid: u32, slot: u32, messages: &[[u8; MESSAGE]]) -> io::Result<Option<Asked>> {
    let socket = match connect(&crate::slot(uid, slot)) {
        Err(Errno::CONNREFUSED) => return Ok(None),
        other => other?,
    };
    if crate::peer(&socket).is_none_or(|(_, of)| of != uid) {
        return Err(Errno::PERM.into());
    }
    for message in messages {
        match rustix::net::send(&socket, message, SendFlags::NOSIGNAL) {
            Err(Errno::PIPE) => return Ok(None),
            other => other?,
        };
    }
    Ok(Some(Asked(socket)))
}

impl AsFd for Asked {
    /// Becomes ready with the answer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Asked {
    /// Waits for the answer. False if the process has ended.
    ///
    /// # Errors
    /// What the process says: ETIMEDOUT if somebody keeps it from standing still, EOPNOTSUPP for what it cannot give
    /// up, EADDRINUSE for a port that somebody else has; its log has a sentence. ETIMEDOUT if it does not answer within
    /// `patience` either.
    pub fn answer(self, patience: Duration) -> io::Result<bool> {
        self.answer_unless_busy(patience, || false)
    }

    /// [`Asked::answer`], without the time in which the process `is_busy`: asked each 100 ms while there is no answer.
    ///
    /// # Errors
    /// As [`Asked::answer`].
    pub fn answer_unless_busy(self, patience: Duration, mut is_busy: impl FnMut() -> bool) -> io::Result<bool> {
        let look = patience.min(LOOK);
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(look))?;
        // Looks are counted and no clock is read: if two are further apart, this process stood still itself.
        let mut left = patience;
        let mut message = [0; MESSAGE];
        loop {
            match rustix::net::recv(&self.0, &mut message[..], RecvFlags::empty()) {
                Ok((MESSAGE, _)) => {}
                Ok(_) | Err(Errno::CONNRESET) => return Ok(false),
                Err(Errno::AGAIN) => {
                    if !is_busy() {
                        left = left.saturating_sub(look);
                    }
                    if left.is_zero() {
                        return Err(Errno::TIMEDOUT.into());
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let [kind, errno] = [0, 4].map(|at| u32::from_ne_bytes(std::array::from_fn(|i| message[at + i])));
            match (kind, errno) {
                (ANSWER, 0) => return Ok(true),
                (ANSWER, errno) => return Err(io::Error::from_raw_os_error(errno.cast_signed())),
                // Messages to all that are connected, for example that a process goes on: this is a connection like
                // others until it asks.
                _ => {}
            }
        }
    }
}

fn connect(name: &str) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{accept, bind, listen, recv};

    #[test]
    fn pairs_of_addresses_come_before_the_step() {
        // SAFETY: asks the kernel a number.
        let uid = unsafe { libc::geteuid() };
        // A slot of no process of Vervain's.
        let slot = 5_000_000 + std::process::id();
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new_abstract_name(crate::slot(uid, slot).as_bytes()).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let map: AddressMap = "10.0.0.1=10.0.0.2,fd00::1=fd00::2".parse().unwrap();
        let asked = begin_rejoin(uid, slot, &map).unwrap().unwrap();
        let connection = accept(&listener).unwrap();
        let next = || {
            let mut message = [0; MESSAGE];
            assert_eq!(recv(&connection, &mut message[..], RecvFlags::empty()).unwrap().0, MESSAGE);
            let kind = u32::from_ne_bytes(std::array::from_fn(|i| message[i]));
            let number = |n: usize| u64::from_ne_bytes(std::array::from_fn(|i| message[32 + 8 * n + i]));
            (kind, pair_in(std::array::from_fn(number)))
        };
        let told = [next(), next()];
        assert!(told.iter().all(|(kind, _)| *kind == ADDRESS));
        assert_eq!(AddressMap::new(told.into_iter().map(|(_, pair)| pair)), Ok(map));
        assert_eq!(next().0, Step::Rejoin as u32);
        let mut answer = message(ANSWER);
        answer[4..8].copy_from_slice(&Errno::ADDRNOTAVAIL.raw_os_error().to_ne_bytes());
        rustix::net::send(&connection, &answer, SendFlags::NOSIGNAL).unwrap();
        let errno = asked.answer(Duration::from_secs(20)).unwrap_err().raw_os_error();
        assert_eq!(errno, Some(Errno::ADDRNOTAVAIL.raw_os_error()));
        assert!(begin(uid, slot + 1, Step::Stop).unwrap().is_none());
    }

    #[test]
    fn time_in_which_a_process_is_busy_does_not_count() {
        // SAFETY: asks the kernel a number.
        let uid = unsafe { libc::geteuid() };
        // A slot of no process of Vervain's.
        let slot = 6_000_000 + std::process::id();
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new_abstract_name(crate::slot(uid, slot).as_bytes()).unwrap()).unwrap();
        listen(&listener, 4).unwrap();
        let ask = || {
            let asked = begin(uid, slot, Step::Go).unwrap().unwrap();
            (asked, accept(&listener).unwrap())
        };
        // It answers at the fifth look, which is later than one that is not busy may.
        for (is_busy, answer) in [(true, Ok(true)), (false, Err(Some(Errno::TIMEDOUT.raw_os_error())))] {
            let (asked, connection) = ask();
            let mut looks = 0;
            let answered = asked.answer_unless_busy(LOOK * 2, || {
                looks += 1;
                if looks == 5 {
                    let _ = rustix::net::send(&connection, &message(ANSWER), SendFlags::NOSIGNAL);
                }
                is_busy
            });
            assert_eq!(answered.map_err(|error| error.raw_os_error()), answer);
            assert_eq!(looks, if is_busy { 5 } else { 2 });
        }
    }
}
