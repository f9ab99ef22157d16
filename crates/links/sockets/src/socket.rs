//! Rendezvous sockets: sequenced-packet unix sockets with names in the abstract namespace, which is part of the network
//! namespace and frees a name when its process ends. Messages are small and of fixed size, with file descriptors beside
//! them.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use vervain_hca::process::{forget_private_fd, keep_from_children};

/// A message: its kind and the kind's arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What it says, in the numbers of those who exchange it.
    pub kind: u32,
    /// Numbers, whose meaning depends on the kind.
    pub args: [u32; 7],
    /// Wide numbers, likewise.
    pub wide: [u64; 4],
}

impl Message {
    /// A message of `kind`.
    pub fn new(kind: u32, args: &[u32], wide: &[u64]) -> Message {
        let mut m = Message { kind, ..Message::default() };
        m.args[..args.len()].copy_from_slice(args);
        m.wide[..wide.len()].copy_from_slice(wide);
        m
    }

    fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0u8; 64];
        bytes[..4].copy_from_slice(&self.kind.to_ne_bytes());
        for (i, a) in self.args.iter().enumerate() {
            bytes[4 + i * 4..8 + i * 4].copy_from_slice(&a.to_ne_bytes());
        }
        for (i, w) in self.wide.iter().enumerate() {
            bytes[32 + i * 8..40 + i * 8].copy_from_slice(&w.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; 64]) -> Message {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let wide = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Message {
            kind: word(0),
            args: std::array::from_fn(|i| word(4 + i * 4)),
            wide: std::array::from_fn(|i| wide(32 + i * 8)),
        }
    }
}

/// Most connections accepted before others get their turn.
const VISIT: usize = 64;

/// A socket that a forked child closes at once: peers take its end for the process's.
pub struct Socket(OwnedFd);

impl Socket {
    fn keep(fd: OwnedFd) -> Socket {
        keep_from_children(fd.as_raw_fd());
        Socket(fd)
    }

    fn open() -> Result<Socket, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map(Socket::keep)
    }

    /// Listens under `name`. EADDRINUSE: another process does.
    pub fn listen(name: &str) -> Result<Socket, Errno> {
        let socket = Socket::open()?;
        rustix::net::bind(&socket.0, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&socket.0, 1024)?;
        Ok(socket)
    }

    /// Connects to `name` without waiting.
    pub fn connect(name: &str) -> Result<Socket, Errno> {
        let socket = Socket::open()?;
        rustix::net::connect(&socket.0, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(socket)
    }

    /// The next waiting connection.
    pub fn accept(&self) -> Result<Socket, Errno> {
        rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map(Socket::keep)
    }

    /// Passes waiting connections to `each`, at most 64: another user may keep connecting faster than its
    /// connections are turned away. The listener stays readable for the rest.
    ///
    /// # Errors
    /// Those of accept(2), except EAGAIN.
    pub fn accept_some(&self, mut each: impl FnMut(Socket)) -> Result<(), Errno> {
        for _ in 0..VISIT {
            match self.accept() {
                Ok(socket) => each(socket),
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Process and user at the other end; the process is 0 if our pid namespace does not show it.
    pub fn peer(&self) -> Option<(i32, u32)> {
        vervain_names::peer(&self.0)
    }

    /// Returns true if the other end is gone and no message of it is left.
    pub fn is_ended(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.0, &mut [0], flags).is_ok_and(|(_, length)| length == 0)
    }

    /// Sends one message without waiting.
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let bytes = message.to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags).map(|_| ())
    }

    /// The next message. EAGAIN: there is none; `Ok(None)`: the other end is gone and all its messages were received.
    pub fn receive(&self) -> Result<Option<(Message, Vec<OwnedFd>)>, Errno> {
        match self.receive_one() {
            // Reported once, before the queued messages, if the other end has gone without receiving all.
            Err(Errno::CONNRESET) => self.receive_one(),
            received => received,
        }
    }

    fn receive_one(&self) -> Result<Option<(Message, Vec<OwnedFd>)>, Errno> {
        let mut bytes = [0u8; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok((got.bytes == bytes.len()).then(|| (Message::from_bytes(&bytes), fds)))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        forget_private_fd(self.0.as_raw_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kinds of messages.
    const HELLO: u32 = 1;
    const LANE: u32 = 4;
    const ACK: u32 = 10;

    #[test]
    fn a_message_survives_its_bytes() {
        let m = Message::new(LANE, &[1, 2, u32::MAX], &[u64::MAX, 7]);
        assert_eq!(Message::from_bytes(&m.to_bytes()), m);
    }

    #[test]
    fn the_last_words_of_one_that_has_not_received_all_are_heard() {
        let name = format!("vervain-test/words-{}", std::process::id());
        let listener = Socket::listen(&name).unwrap();
        let client = Socket::connect(&name).unwrap();
        let server = listener.accept().unwrap();
        server.send(&Message::new(ACK, &[], &[]), &[]).unwrap();
        let word = Message::new(LANE, &[7], &[]);
        client.send(&word, &[]).unwrap();
        drop(client);
        assert_eq!(server.receive().unwrap().unwrap().0, word);
        assert!(matches!(server.receive(), Ok(None)));
    }

    #[test]
    fn whoever_goes_on_connecting_is_accepted_by_turns() {
        let name = format!("vervain-test/turns-{}", std::process::id());
        let listener = Socket::listen(&name).unwrap();
        let mut waiting = Vec::new();
        let mut accepted = [0; 3];
        for count in &mut accepted {
            waiting.extend((0..VISIT).map(|_| Socket::connect(&name).unwrap()));
            let again = |socket: Socket| {
                drop(socket);
                *count += 1;
                waiting.push(Socket::connect(&name).unwrap());
            };
            listener.accept_some(again).unwrap();
        }
        assert_eq!(accepted, [VISIT; 3]);
        drop(waiting);
        let mut left = 0;
        while left < 3 * VISIT {
            let before = left;
            listener.accept_some(|_| left += 1).unwrap();
            assert!(left > before, "{left}");
        }
        listener.accept_some(|_| panic!("nobody waits")).unwrap();
    }

    #[test]
    fn a_name_is_free_again_when_its_listener_is_gone() {
        let name = format!("vervain-test/{}", std::process::id());
        let first = Socket::listen(&name).unwrap();
        assert_eq!(Socket::listen(&name).err(), Some(Errno::ADDRINUSE));
        let client = Socket::connect(&name).unwrap();
        let server = first.accept().unwrap();
        client.send(&Message::new(HELLO, &[1], &[]), &[first.as_fd()]).unwrap();
        let (message, fds) = server.receive().unwrap().unwrap();
        assert_eq!((message.kind, fds.len()), (HELLO, 1));
        drop((fds, client));
        assert!(matches!(server.receive(), Ok(None)));
        drop(first);
        assert_eq!(Socket::connect(&name).err(), Some(Errno::CONNREFUSED));
        Socket::listen(&name).unwrap();
    }
}
