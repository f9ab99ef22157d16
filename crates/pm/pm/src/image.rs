//! The image of a context: what a file has of it, and how it is written and read. A file may be anything: it is read
//! once, then each field of it is checked. It has to be this user's alone, for it says what was sent and where memory
//! lies.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::locks::{AddrHandle, IN_PAGE, SPAN, SavedLock};
use crate::nodes::Counts;
use crate::rdma::{Direction, MAX_REQUEST};
use crate::unsent::Unsent;

/// The first bytes of a file, and the version behind them.
const MAGIC: [u8; 8] = *b"PMimage\n";
const VERSION: u32 = 2;
/// Magic, version, the length of the body, the digest of all that and of the body.
const DIGEST_AT: usize = 8 + 4 + 8;
const HEADER: usize = DIGEST_AT + 32;
/// The longest body that is read.
const MAX_BODY: u64 = 1 << 34;

/// Which save of a job an image is of: random.
pub(crate) type SaveId = [u8; 16];

/// Facts about a node in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPeer {
    pub node: u32,
    /// Messages that were sent to it, and received or kept from it.
    pub sent: u64,
    pub received: u64,
}

/// How nodes came to rest for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// All that was sent was let arrive.
    Drained,
    /// Their devices stood still, with what they had under way.
    StoodStill,
}

/// A message, and the other node: one that had come and was not received by the program, or one that had not come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedMessage {
    pub node: u32,
    pub bytes: Vec<u8>,
}

/// A write or a read that was not over: between the handles of memory of a node's and of the own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedCopy {
    pub node: u32,
    pub direction: Direction,
    pub remote: u64,
    pub local: u64,
    pub len: u32,
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Image {
    pub kind: Kind,
    pub save: SaveId,
    /// Which node, of how many, and the longest message.
    pub node: u32,
    pub nodes: u32,
    pub mtu: u32,
    /// In the order of their numbers.
    pub peers: Vec<SavedPeer>,
    /// In the order in which they came.
    pub messages: Vec<SavedMessage>,
    /// In the order of their keys.
    pub locks: Vec<SavedLock>,
    /// Requests that are to begin anew. An image of nodes that were drained has some too, if they were restored from
    /// one and had not gone on.
    pub unsent: Unsent,
}

impl SavedPeer {
    pub fn counts(&self) -> Counts {
        Counts { sent: self.sent, received: self.received }
    }
}

fn damaged(what: &str) -> Error {
    Error::new(libc::EBADMSG, format!("this is no image of a context: {what}"))
}

fn digest(header: &[u8], body: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(header).chain_update(body).finalize().into()
}

/// # Errors
/// EACCES: it is no regular file, or others than this user may have it. EBADF.
pub(crate) fn check_file(file: BorrowedFd<'_>) -> Result<u64> {
    let stat =
        fstat(file).map_err(|error| Error::new(error.raw_os_error(), format!("no file for an image: {error}")))?;
    let refused = |what: String| {
        Err(Error::new(libc::EACCES, format!("an image is a regular file of this user's alone: {what}")))
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refused("this is none".into());
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return refused(format!("this one is user {}'s", stat.st_uid));
    }
    let mode = stat.st_mode & 0o7777;
    if mode != 0o600 {
        return refused(format!("this one has mode {mode:04o}, not 0600"));
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

impl Image {
    fn encode(&self) -> Result<Vec<u8>> {
        let mut all = vec![0; HEADER];
        all = postcard::to_extend(self, all).map_err(|error| Error::new(libc::ENOMEM, format!("no image: {error}")))?;
        let length = (all.len() - HEADER) as u64;
        all[..8].copy_from_slice(&MAGIC);
        all[8..12].copy_from_slice(&VERSION.to_le_bytes());
        all[12..DIGEST_AT].copy_from_slice(&length.to_le_bytes());
        let digest = digest(&all[..DIGEST_AT], &all[HEADER..]);
        all[DIGEST_AT..HEADER].copy_from_slice(&digest);
        Ok(all)
    }

    /// Reads the bytes of a file, if they were not damaged.
    fn decode(bytes: &[u8]) -> Result<Image> {
        let Some((header, body)) = bytes.split_at_checked(HEADER) else {
            return Err(damaged("it is too short"));
        };
        if header[..8] != MAGIC {
            return Err(damaged("it begins with something else"));
        }
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if word(8) != VERSION {
            let sentence = format!("an image of version {}: this library reads and writes version {VERSION}", word(8));
            return Err(Error::new(libc::EPROTONOSUPPORT, sentence));
        }
        let length = u64::from(word(16)) << 32 | u64::from(word(12));
        if length != body.len() as u64 {
            return Err(damaged(&format!("{} bytes are behind its header, which says {length}", body.len())));
        }
        if digest(&header[..DIGEST_AT], body) != header[DIGEST_AT..] {
            return Err(damaged("its digest is that of other bytes"));
        }
        match postcard::take_from_bytes::<Image>(body) {
            Ok((image, [])) => image.checked(),
            Ok(_) => Err(damaged("something is behind its end")),
            Err(error) => Err(damaged(&error.to_string())),
        }
    }

    /// Refuses an image in which no context can be, also if its digest is right.
    fn checked(self) -> Result<Image> {
        let is_message = |message: &SavedMessage| {
            message.node < self.nodes && (1..=self.mtu as usize).contains(&message.bytes.len())
        };
        if self.node >= self.nodes {
            return Err(damaged("its node is none of its nodes"));
        }
        if !self.messages.iter().all(is_message) {
            return Err(damaged("a message is too long, or another node's"));
        }
        if !self.peers.is_sorted_by(|a, b| a.node < b.node)
            || self.peers.last().is_some_and(|peer| peer.node >= self.nodes)
        {
            return Err(damaged("its peers are none of its nodes"));
        }
        // Counting goes on from there.
        if self.peers.iter().any(|peer| peer.sent.max(peer.received) >> 62 != 0) {
            return Err(damaged("nobody sends so many messages"));
        }
        let received = |node| {
            let peer = self.peers.binary_search_by_key(&node, |peer| peer.node).ok()?;
            Some(self.peers[peer].received)
        };
        let mut kept = std::collections::HashMap::<u32, u64>::new();
        for message in &self.messages {
            *kept.entry(message.node).or_default() += 1;
        }
        if kept.into_iter().any(|(node, count)| received(node).is_none_or(|received| received < count)) {
            return Err(damaged("it has more messages than were received"));
        }
        let is_memory = |lock: &SavedLock| lock.len > 0 && lock.start.checked_add(lock.len).is_some();
        let mut ranges: Vec<_> = self.locks.iter().map(|lock| (lock.start, lock.len)).collect();
        ranges.sort_unstable();
        if !self.locks.iter().all(is_memory)
            || !self.locks.is_sorted_by(|a, b| a.key < b.key)
            || !ranges.is_sorted_by(|a, b| a < b)
        {
            return Err(damaged("its locks are none"));
        }
        if !self.unsent.messages.iter().all(is_message) {
            return Err(damaged("a message that was not sent is too long, or to no node"));
        }
        if !self.unsent.copies.iter().all(|copy| self.is_copy(copy)) {
            return Err(damaged("a write or a read is none"));
        }
        Ok(self)
    }

    /// Returns true if it could have been begun, with memory that was locked.
    fn is_copy(&self, copy: &SavedCopy) -> bool {
        let (local, len) = (AddrHandle(copy.local), u64::from(copy.len));
        let lock = self.locks.binary_search_by_key(&local.key(), |lock| lock.key).ok().map(|at| self.locks[at]);
        copy.node < self.nodes
            && (1..=MAX_REQUEST as u64).contains(&len)
            && AddrHandle(copy.remote).addr() + len <= SPAN
            && lock.is_some_and(|lock| {
                let at = local.addr().checked_sub(lock.start & IN_PAGE as u64);
                at.is_some_and(|at| at.checked_add(len).is_some_and(|end| end <= lock.len))
            })
    }

    /// Replaces the contents of the file by the image.
    ///
    /// # Errors
    /// EACCES: the file is not this user's alone. That of write(2).
    pub fn write(&self, file: BorrowedFd<'_>) -> Result<()> {
        check_file(file)?;
        let failed = |error: std::io::Error| {
            Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("the image cannot be written: {error}"))
        };
        let bytes = self.encode()?;
        let file = File::from(file.try_clone_to_owned().map_err(failed)?);
        // A torn file is no image.
        file.set_len(0).and_then(|()| file.write_all_at(&bytes, 0)).and_then(|()| file.sync_data()).map_err(failed)
    }

    /// Reads an image from the beginning of a file.
    ///
    /// # Errors
    /// EACCES: the file is not this user's alone. EBADMSG: it has no image, or a damaged one. EPROTONOSUPPORT: another
    /// version's.
    pub fn read(file: BorrowedFd<'_>) -> Result<Image> {
        let length = check_file(file)?;
        if length > MAX_BODY + HEADER as u64 {
            return Err(damaged(&format!("it has {length} bytes")));
        }
        let mut bytes = Vec::new();
        FromStart { file: File::from(file.as_fd().try_clone_to_owned().map_err(unreadable)?), at: 0 }
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        Image::decode(&bytes)
    }
}

fn unreadable(error: std::io::Error) -> Error {
    Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("the image cannot be read: {error}"))
}

/// Reads a file from its beginning, wherever its descriptor stands, which stays there.
struct FromStart {
    file: File,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        let peer = |node, sent, received| SavedPeer { node, sent, received };
        let message = |node, bytes: &[u8]| SavedMessage { node, bytes: bytes.to_vec() };
        let copy = |direction, local, len| SavedCopy { node: 3, direction, remote: 77 << 32 | 4000, local, len };
        Image {
            kind: Kind::StoodStill,
            save: [7; 16],
            node: 1,
            nodes: 4,
            mtu: 64,
            peers: vec![peer(0, 5, 1 << 40), peer(3, 0, 2)],
            messages: vec![message(3, b"one"), message(0, &[9; 64]), message(3, b"two")],
            locks: vec![SavedLock { key: 4, start: 0x1000, len: 10 }, SavedLock { key: 9, start: 0x800, len: 1 }],
            unsent: Unsent {
                messages: vec![message(0, b"not there"), message(1, &[3; 64])],
                copies: vec![copy(Direction::Write, 4 << 32 | 2, 8), copy(Direction::Read, 9 << 32 | 0x800, 1)],
            },
        }
    }

    /// With a digest that is right, whatever the rest.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let digest = digest(&bytes[..DIGEST_AT], &bytes[HEADER..]);
        bytes[DIGEST_AT..HEADER].copy_from_slice(&digest);
        bytes
    }

    #[test]
    fn an_image_says_what_was_saved() {
        assert_eq!(Image::decode(&image().encode().unwrap()).unwrap(), image());
    }

    #[test]
    fn any_byte_that_is_another_is_noticed() {
        let bytes = image().encode().unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let errno = Image::decode(&damaged).unwrap_err().errno();
            let version = (8..12).contains(&at);
            assert_eq!(errno, if version { libc::EPROTONOSUPPORT } else { libc::EBADMSG }, "byte {at}");
            assert_eq!(Image::decode(&bytes[..at]).unwrap_err().errno(), libc::EBADMSG, "{at} bytes");
        }
    }

    #[test]
    fn hostile_bodies_are_refused_whatever_their_digest() {
        let bytes = image().encode().unwrap();
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..20_000 {
            let mut hostile = bytes.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(HEADER..hostile.len());
                hostile[at] = rng.u8(..);
            }
            // It may be another image of a context; it is none that breaks what the rest relies on.
            if let Ok(image) = Image::decode(&sealed(hostile)) {
                assert!(image.messages.iter().all(|message| message.node < image.nodes));
                let messages = || image.messages.iter().chain(&image.unsent.messages);
                assert!(messages().all(|message| message.bytes.len() <= image.mtu as usize));
                assert!(messages().chain(&image.unsent.messages).all(|message| message.node < image.nodes));
                assert!(image.unsent.copies.iter().all(|copy| copy.node < image.nodes && copy.len > 0));
            }
        }
    }

    #[test]
    fn what_no_context_is_like_is_refused() {
        type Change = fn(&mut Image);
        let cases: [(&str, Change); 20] = [
            ("its node is none", |image| image.node = 4),
            ("a message is too long", |image| image.messages[1].bytes.push(0)),
            ("a message is too long, or another", |image| image.messages[0].node = 4),
            ("a message is too long", |image| image.messages[0].bytes.clear()),
            ("its peers are none", |image| image.peers[1].node = 4),
            ("its peers are none", |image| image.peers[1].node = 0),
            ("nobody sends so many", |image| image.peers[0].sent = u64::MAX),
            ("more messages than were", |image| image.peers[1].received = 1),
            ("its locks are none", |image| image.locks[1].key = 4),
            ("its locks are none", |image| image.locks[0].len = u64::MAX),
            ("a message that was not sent", |image| image.unsent.messages[0].node = 4),
            ("a message that was not sent", |image| image.unsent.messages[0].bytes.clear()),
            ("a message that was not sent", |image| image.unsent.messages[1].bytes.push(0)),
            ("a write or a read", |image| image.unsent.copies[0].node = 4),
            ("a write or a read", |image| image.unsent.copies[0].len = 0),
            ("a write or a read", |image| image.unsent.copies[0].len = 9),
            ("a write or a read", |image| image.unsent.copies[0].local = 5 << 32),
            ("a write or a read", |image| image.unsent.copies[1].local = 9 << 32 | 0x7ff),
            ("a write or a read", |image| image.unsent.copies[0].remote = u64::MAX),
            ("a write or a read", |image| {
                image.locks[1].len = 3 << 30;
                image.unsent.copies[1].len = (1 << 30) + 1;
            }),
        ];
        for (sentence, change) in cases {
            let mut hostile = image();
            change(&mut hostile);
            let error = Image::decode(&hostile.encode().unwrap()).unwrap_err();
            assert!(error.errno() == libc::EBADMSG && error.to_string().contains(sentence), "{sentence}: {error}");
        }
    }

    #[test]
    fn a_file_is_this_users_alone() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::tempfile().unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        image().write(file.as_fd()).unwrap();
        assert_eq!(Image::read(file.as_fd()).unwrap(), image());
        // A shorter one leaves nothing of it.
        let shorter = Image { messages: vec![], ..image() };
        shorter.write(file.as_fd()).unwrap();
        assert_eq!(Image::read(file.as_fd()).unwrap(), shorter);
        for mode in [0o640, 0o604, 0o400, 0o4600] {
            file.set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Image::read(file.as_fd()).unwrap_err().errno(), libc::EACCES, "{mode:o}");
            assert_eq!(image().write(file.as_fd()).unwrap_err().errno(), libc::EACCES, "{mode:o}");
        }
        let (pipe, _) = std::io::pipe().unwrap();
        assert_eq!(Image::read(pipe.as_fd()).unwrap_err().errno(), libc::EACCES);
    }
}
