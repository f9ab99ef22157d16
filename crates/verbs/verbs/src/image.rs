//! Images of contexts: how `vervain_save` writes one and `vervain_restore` reads it. An image is not trusted: its size,
//! version and digest are checked before anything else, and its records refer to earlier ones only. The verbs that make
//! objects of the records check their values.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | [`VERSION`], little endian as all numbers of this head |
//! | 4 | 0 |
//! | 8 | bytes of the records |
//! | 8 | bytes of memory |
//! | 32 | SHA-256 of all that follows, and of the head before this |
//! | .. | the records, [`Image`], as postcard writes them |
//! | .. | the bytes of [`Memory`] that are kept, one after the other |

use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vervain_hca::Error;
use vervain_hca::cq::saved::SavedCq;
use vervain_hca::mr::saved::{SavedDm, SavedMr, SavedMw};
use vervain_hca::process::SavedProcess;
use vervain_hca::qp::saved::SavedQp;
use vervain_hca::srq::saved::SavedSrq;
use vervain_share::sys::without_sigxfsz;

/// How an image begins.
const MAGIC: &[u8; 8] = b"VERVAIN\x1a";
/// Version of the format and of all records. An image with another one is refused.
pub(crate) const VERSION: u32 = 2;
const HEAD: usize = 32;
const DIGEST: usize = 32;

/// A place in one of the lists of an image, from 0.
pub(crate) type Index = u32;

/// The saved state of a process and of one of its contexts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Image {
    pub(crate) process: SavedProcess,
    pub(crate) device: String,
    pub(crate) pds: Vec<Pd>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) dms: Vec<Dm>,
    pub(crate) mrs: Vec<Mr>,
    pub(crate) mws: Vec<Mw>,
    pub(crate) channels: Vec<Channel>,
    pub(crate) cqs: Vec<Cq>,
    pub(crate) xrcds: Vec<u64>,
    pub(crate) srqs: Vec<Srq>,
    pub(crate) qps: Vec<Qp>,
}

/// A protection domain, or a parent domain of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pd {
    pub(crate) handle: u32,
    pub(crate) parent_of: Option<Index>,
}

/// A range of the program's memory in which regions lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    /// Its bytes are in the image.
    pub(crate) kept: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dm {
    pub(crate) handle: u32,
    pub(crate) saved: SavedDm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mr {
    pub(crate) handle: u32,
    pub(crate) pd: Index,
    pub(crate) dm: Option<Index>,
    pub(crate) saved: SavedMr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mw {
    pub(crate) handle: u32,
    pub(crate) pd: Index,
    pub(crate) saved: SavedMw,
}

/// A completion channel, with the CQs of the events that were not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Channel {
    pub(crate) fd: u32,
    pub(crate) events: Vec<Index>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cq {
    pub(crate) handle: u32,
    pub(crate) cq_context: u64,
    pub(crate) channel: Option<Index>,
    /// It was made by `ibv_create_cq_ex`.
    pub(crate) extended: bool,
    pub(crate) saved: SavedCq,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Srq {
    pub(crate) handle: u32,
    pub(crate) srq_context: u64,
    pub(crate) pd: Index,
    /// XRC domain and CQ.
    pub(crate) xrc: Option<(Index, Index)>,
    pub(crate) saved: SavedSrq,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Qp {
    pub(crate) handle: u32,
    pub(crate) qp_context: u64,
    pub(crate) pd: Option<Index>,
    pub(crate) send_cq: Option<Index>,
    pub(crate) recv_cq: Option<Index>,
    pub(crate) srq: Option<Index>,
    pub(crate) xrcd: Option<Index>,
    /// It was made with operations for `ibv_wr_start`.
    pub(crate) extended: bool,
    /// It is one more handle of an earlier one, an XRC target (`ibv_open_qp`).
    pub(crate) opened: bool,
    pub(crate) saved: SavedQp,
}

impl Image {
    /// Bytes of memory that are in the image; None if that number is impossible.
    fn kept(&self) -> Option<u64> {
        self.memory.iter().filter(|memory| memory.kept).try_fold(0u64, |sum, memory| sum.checked_add(memory.length))
    }
}

/// A file of the client's, which it keeps.
struct Borrowed(ManuallyDrop<File>);

impl Borrowed {
    /// EBADF for a descriptor that is none, EINVAL for another kind of file, EACCES where other users could read or
    /// write it.
    fn new(fd: RawFd) -> Result<Borrowed, Error> {
        // SAFETY: F_GETFD reads a flag of the descriptor, if it is one.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(Error::last_os("the descriptor of an image"));
        }
        // SAFETY: an open descriptor as just seen, which is not closed here.
        let file = Borrowed(ManuallyDrop::new(unsafe { File::from_raw_fd(fd) }));
        let meta = file.0.metadata().map_err(|e| io_error("the file of an image", &e))?;
        if !meta.is_file() {
            return Err(Error::invalid("an image is kept in a regular file or a memfd"));
        }
        // SAFETY: it only reads.
        let own = unsafe { libc::geteuid() };
        // A file without a name can be reached by its descriptor only, so its mode does not matter.
        if meta.uid() != own || (meta.nlink() != 0 && meta.mode() & 0o077 != 0) {
            let why = format!(
                "an image is a file of this user with mode 0600, not of uid {} with {:04o}",
                meta.uid(),
                meta.mode() & 0o7777
            );
            return Err(Error::new(libc::EACCES, why));
        }
        Ok(file)
    }
}

fn io_error(what: &str, e: &std::io::Error) -> Error {
    Error::new(e.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {e}"))
}

fn damaged(what: &str) -> Error {
    Error::new(libc::EBADMSG, format!("the image is damaged: {what}"))
}

/// Refuses a descriptor that no image may be written to.
pub(crate) fn check_file(fd: RawFd) -> Result<(), Error> {
    Borrowed::new(fd).map(drop)
}

/// Writes an image where the descriptor stands; `bytes` are those of each [`Memory`] that is kept.
pub(crate) fn write(fd: RawFd, image: &Image, bytes: &[Vec<u8>]) -> Result<(), Error> {
    let mut file = Borrowed::new(fd)?;
    let records = postcard::to_allocvec(image).map_err(|e| Error::new(libc::EIO, format!("no image: {e}")))?;
    let memory: u64 = bytes.iter().map(|bytes| bytes.len() as u64).sum();
    let mut head = Vec::with_capacity(HEAD);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&(records.len() as u64).to_le_bytes());
    head.extend_from_slice(&memory.to_le_bytes());
    let parts = || [&records].into_iter().chain(bytes);
    let mut sha = Sha256::new();
    sha.update(&head);
    parts().for_each(|part| sha.update(part));
    let digest = sha.finalize();
    let mut write =
        |part: &[u8]| without_sigxfsz(|| file.0.write_all(part)).map_err(|e| io_error("writing an image", &e));
    write(&head)?;
    write(&digest)?;
    parts().try_for_each(|part| write(part))
}

/// Reads an image from where the descriptor stands, with the bytes of each [`Memory`] that is kept, one after the
/// other.
pub(crate) fn read(fd: RawFd) -> Result<(Image, Vec<u8>), Error> {
    let file = Borrowed::new(fd)?;
    let mut head = [0; HEAD + DIGEST];
    (&*file.0).read_exact(&mut head).map_err(|_| damaged("it is shorter than any"))?;
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
    if head[..8] != *MAGIC {
        return Err(Error::new(libc::EBADMSG, "this is no image of a device"));
    }
    let (records, memory) = (number(16), number(24));
    let length = records.checked_add(memory).ok_or_else(|| damaged("its length"))?;
    // A head that claims more bytes than the file has must not lead to an allocation of that size.
    let there = file.0.metadata().map_or(0, |meta| meta.len());
    if length > there {
        return Err(damaged("it is cut off"));
    }
    let part = |length: u64| {
        let mut bytes = Vec::new();
        let room = usize::try_from(length).ok().and_then(|length| bytes.try_reserve_exact(length).ok());
        room.ok_or_else(|| Error::no_memory(format!("{length} bytes of an image")))?;
        match (&*file.0).take(length).read_to_end(&mut bytes) {
            Ok(read) if read as u64 == length => Ok(bytes),
            _ => Err(damaged("it is cut off")),
        }
    };
    let (records, memory) = (part(records)?, part(memory)?);
    let mut sha = Sha256::new();
    sha.update(&head[..HEAD]);
    sha.update(&records);
    sha.update(&memory);
    if sha.finalize().as_slice() != &head[HEAD..] {
        return Err(damaged("its digest is another"));
    }
    // After that of the digest, for what is damaged is no other version. This head is that of all of them.
    let version = number(8);
    if version != u64::from(VERSION) {
        let why = format!("the image has version {version}, this library reads {VERSION}");
        return Err(Error::new(libc::EPROTO, why));
    }
    let image = decode(&records)?;
    if image.kept() != Some(memory.len() as u64) {
        return Err(damaged("its memory"));
    }
    Ok((image, memory))
}

/// The records of an image, if they are that and nothing else.
pub(crate) fn decode(records: &[u8]) -> Result<Image, Error> {
    match postcard::take_from_bytes::<Image>(records) {
        Ok((image, [])) => Ok(image),
        Ok(_) => Err(damaged("more than its records")),
        Err(e) => Err(damaged(&e.to_string())),
    }
}
