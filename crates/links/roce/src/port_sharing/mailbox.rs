//! Mailboxes: datagram sockets, one for each process slot, by which members reach each other. A name that exists shows
//! a living member, as the kernel frees it when its process ends. A joining process asks at a mailbox for the
//! descriptor store; misrouted packets go through the mailbox of their owner. Every message carries the sender's user
//! id, vouched for by the kernel.

use super::misrouted::Origin;
use super::udp::to_wide;
use super::{Doors, Names, VERSION};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::cell::OnceCell;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use vervain_hca::Result;
use vervain_sockets::unix::{self, Private, Received, abstract_name};

/// Bytes before the packets of a misrouted packet; other messages are only this.
pub const HEAD: usize = 64;
/// The longest message: a whole train, and a little for each packet of it.
pub const MOST: usize = HEAD + (66 << 10);

/// Meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Somebody wants to join, and sees itself as this user. The end of a socket pair for the answer comes along.
    Ask {
        /// The effective user id, in the sender's user namespace.
        uid: u32,
    },
    /// The answer: both ends of the descriptor store come along.
    Welcome,
    /// The answer to somebody who cannot join: the user that the member sees itself as.
    Refused {
        /// The effective user id, in the sender's user namespace.
        uid: u32,
    },
    /// Packets for the slot of this mailbox; they follow.
    Misrouted(Origin),
}

impl Word {
    /// The bytes of the message, without packets.
    pub fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let (kind, uid) = match self {
            Word::Ask { uid } => (1u32, uid),
            Word::Welcome => (2, 0),
            Word::Refused { uid } => (3, uid),
            Word::Misrouted(_) => (4, 0),
        };
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[8..12].copy_from_slice(&uid.to_ne_bytes());
        if let Word::Misrouted(origin) = self {
            let scope = if let SocketAddr::V6(from) = origin.from { from.scope_id() } else { 0 };
            bytes[12..16].copy_from_slice(&scope.to_ne_bytes());
            bytes[16..32].copy_from_slice(&to_wide(origin.from.ip()));
            bytes[32..48].copy_from_slice(&to_wide(origin.to));
            bytes[48..50].copy_from_slice(&origin.from.port().to_ne_bytes());
            (bytes[50], bytes[51]) = (origin.hop_limit, origin.tos);
            bytes[52..56].copy_from_slice(&origin.label.to_ne_bytes());
        }
        bytes
    }

    /// The meaning of a message, and the sender's version; the word is None for another version's.
    pub fn of(bytes: &[u8; HEAD]) -> (Option<Word>, u32) {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let ip = |at: usize| IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap_or_default()));
        let version = word(4);
        if version != VERSION {
            return (None, version);
        }
        let said = match word(0) {
            1 => Some(Word::Ask { uid: word(8) }),
            2 => Some(Word::Welcome),
            3 => Some(Word::Refused { uid: word(8) }),
            4 => {
                let from = match ip(16).to_canonical() {
                    IpAddr::V4(ip) => (ip, half(48)).into(),
                    IpAddr::V6(ip) => SocketAddrV6::new(ip, half(48), 0, word(12)).into(),
                };
                let to = ip(32).to_canonical();
                Some(Word::Misrouted(Origin { from, to, hop_limit: bytes[50], tos: bytes[51], label: word(52) }))
            }
            _ => None,
        };
        (said, version)
    }
}

/// A mailbox of this process.
pub struct Mailbox {
    /// The slot that it is named after.
    pub slot: u32,
    socket: Private,
}

impl Mailbox {
    /// Opens the mailbox of `slot`.
    pub fn open(names: &Names, uid: u32, slot: u32) -> Result<Mailbox> {
        let opened = unix::named(&names.mailbox(slot));
        opened.map(|socket| Mailbox { slot, socket }).map_err(|e| match e {
            Errno::ADDRINUSE => names
                .taken_by_another(SocketType::DGRAM, &names.mailbox(slot), uid)
                .unwrap_or_else(|| names.error(libc::EADDRINUSE, &format!("process slot {slot} is taken there"))),
            e => names.error(e.raw_os_error(), &format!("no rendezvous socket: {}", io::Error::from(e))),
        })
    }

    /// The next message.
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<Received> {
        unix::receive(self.socket.as_fd(), bytes, 0)
    }

    /// Puts a message through the mailbox of another slot. Never waits: EAGAIN when that owner has too many to read,
    /// ECONNREFUSED when nobody has the slot.
    pub fn put(&self, names: &Names, slot: u32, word: Word, packets: &[u8]) -> std::result::Result<(), Errno> {
        send(self.socket.as_fd(), Some(&names.mailbox(slot)), word, packets, &[])
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A caller at one mailbox after the other. One socket makes all connections, as there may be a thousand: a connection
/// of datagrams lasts until the next one.
#[derive(Default)]
pub struct Caller {
    socket: OnceCell<OwnedFd>,
}

impl Caller {
    /// Stands at the mailbox of `slot`: the socket to put something in by, or None when nobody has that mailbox.
    fn call(&self, names: &Names, slot: u32) -> std::result::Result<Option<&OwnedFd>, Errno> {
        let socket = match self.socket.get() {
            Some(socket) => socket,
            None => {
                let opened = unix::datagrams()?;
                self.socket.get_or_init(|| opened)
            }
        };
        match rustix::net::connect(socket, &abstract_name(&names.mailbox(slot))?) {
            Ok(()) => Ok(Some(socket)),
            Err(Errno::CONNREFUSED) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns true if `slot` has a mailbox just now.
    pub fn finds(&self, names: &Names, slot: u32) -> bool {
        !matches!(self.call(names, slot), Ok(None))
    }

    /// Returns true if the process with `slot` is a member, or was one when the list was made.
    pub fn is_live(&self, names: &Names, doors: &Doors, slot: u32) -> bool {
        doors.listed.contains(&slot) || !doors.strange.contains(&slot) && self.finds(names, slot)
    }

    /// Asks at the mailbox of `slot`: the socket that the answer comes by, or None when nobody is there.
    pub fn ask(&self, names: &Names, uid: u32, slot: u32) -> std::result::Result<Option<Private>, Errno> {
        let Some(socket) = self.call(names, slot)? else { return Ok(None) };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (mine, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::sockopt::set_socket_passcred(&mine, true)?;
        send(socket.as_fd(), None, Word::Ask { uid }, &[], &[theirs.as_fd()])?;
        Ok(Some(Private::keep(mine)))
    }
}

/// Sends an answer.
pub fn answer(to: &OwnedFd, word: Word, fds: &[BorrowedFd<'_>]) {
    // A process that asked and is gone needs no answer.
    let _ = send(to.as_fd(), None, word, &[], fds);
}

fn send(
    socket: BorrowedFd<'_>,
    to: Option<&str>,
    word: Word,
    packets: &[u8],
    fds: &[BorrowedFd<'_>],
) -> std::result::Result<(), Errno> {
    unix::send(socket, to, &[IoSlice::new(&word.to_bytes()), IoSlice::new(packets)], fds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn words_survive_their_bytes() {
        let origin = |from: &str, to: &str| Origin {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            hop_limit: 63,
            tos: 0xb8,
            label: 0x4_7911,
        };
        for word in [
            Word::Ask { uid: 1000 },
            Word::Welcome,
            Word::Refused { uid: u32::MAX },
            Word::Misrouted(origin("192.0.2.1:49200", "192.0.2.9")),
            Word::Misrouted(origin("[fe80::1%3]:49200", "fe80::2")),
        ] {
            assert_eq!(Word::of(&word.to_bytes()), (Some(word), VERSION));
        }
    }

    #[test]
    fn another_version_is_not_understood() {
        let mut bytes = Word::Welcome.to_bytes();
        bytes[4] ^= 0x55;
        assert_eq!(Word::of(&bytes), (None, VERSION ^ 0x55));
        assert_eq!(Word::of(&[0; HEAD]).0, None);
    }

    #[test]
    fn one_socket_calls_at_all_mailboxes() {
        let names = Names { at: ([127, 8, 2, std::process::id() as u8], 4791).into() };
        let uid = rustix::process::geteuid().as_raw();
        let [first, second] = [3, 4].map(|slot| Mailbox::open(&names, uid, slot).unwrap());
        let caller = Caller::default();
        assert_eq!([2, 3, 4, 5].map(|slot| caller.finds(&names, slot)), [false, true, true, false]);
        assert!(caller.ask(&names, uid, 3).unwrap().is_some());
        assert!(caller.ask(&names, uid, 4).unwrap().is_some());
        assert!([&first, &second].iter().all(|mailbox| mailbox.receive(&mut [0; HEAD]).is_ok()));
        drop(first);
        assert!(caller.ask(&names, uid, 3).unwrap().is_none());
        let [none, strange] = [BTreeSet::new(), BTreeSet::from([4])];
        let doors = Doors { listed: none, strange };
        assert_eq!([3, 4].map(|slot| caller.is_live(&names, &doors, slot)), [false, false]);
    }
}
