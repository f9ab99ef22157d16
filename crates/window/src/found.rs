//! Files that are found, and whether they are what they have to be.

use crate::error::{Error, Result};
use crate::layout::{Layout, MAGIC, VERSION};
use rustix::fs::{FileType, OFlags, SealFlags};
use std::os::fd::OwnedFd;
use std::path::Path;

/// What a device that others might open, or that a terminal is, is not harmed by.
pub(crate) const HARMLESS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// A file of the window, opened.
pub(crate) struct Found {
    pub fd: OwnedFd,
    /// For sentences.
    pub name: String,
    /// Bytes, when it was opened.
    pub size: u64,
}

impl Found {
    /// Checks that `fd` is a regular file that nobody but this user may write, or sealed memory.
    ///
    /// # Errors
    /// EINVAL: it is no regular file; EPERM: somebody else could write it, or shorten it.
    pub(crate) fn check(fd: OwnedFd, path: &Path) -> Result<Found> {
        let name = format!("the window {}", path.display());
        let status = rustix::fs::fstat(&fd).map_err(|e| Error::of(&name, e))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(Error::invalid(format!("{name} is no regular file")));
        }
        let denied = |what: String| Err(Error::new(libc::EPERM, format!("{name} {what}")));
        let own = effective_user();
        if status.st_uid != own {
            return denied(format!("is user {}'s, and this is user {own}", status.st_uid));
        }
        // Files of tmpfs have seals too, and cannot get others; memfds have every right set.
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            if status.st_nlink == 0 {
                return denied("has no name, and is not sealed against being made shorter (F_SEAL_SHRINK)".to_owned());
            }
            if status.st_mode & 0o022 != 0 {
                return denied(format!("may be written by others than its owner (mode {:o})", status.st_mode & 0o7777));
            }
        }
        Ok(Found { fd, name, size: status.st_size as u64 })
    }

    /// What its header says, and its uuid.
    ///
    /// # Errors
    /// EINVAL: it is no window, or one that says what cannot be; EPROTO: a window of another version.
    pub(crate) fn header(&self) -> Result<(Layout, [u8; 16])> {
        let name = &self.name;
        let mut bytes = [0; 48];
        let n = rustix::io::pread(&self.fd, &mut bytes, 0).map_err(|e| Error::of(name, e))?;
        let word = |i: usize| u64::from_ne_bytes(bytes[8 * i..][..8].try_into().expect("eight bytes"));
        if n != bytes.len() || word(0) != MAGIC {
            return Err(Error::invalid(format!("{name} is none: what it begins with is no header")));
        }
        if word(1) != VERSION {
            let said = word(1);
            return Err(Error::new(
                libc::EPROTO,
                format!("{name} has version {said} of the layout, and this is {VERSION}"),
            ));
        }
        let layout =
            Layout::of_header(word(2), word(3)).map_err(|e| Error::new(e.errno(), format!("{name} is broken: {e}")))?;
        Ok((layout, bytes[32..].try_into().expect("sixteen bytes")))
    }

    /// EINVAL: the file has not so many bytes; also when it has lost some since it was opened.
    pub(crate) fn check_size(&self, expected: u64) -> Result<()> {
        let now = rustix::fs::fstat(&self.fd).map_err(|e| Error::of(&self.name, e))?.st_size as u64;
        if now == expected && self.size == expected {
            return Ok(());
        }
        let size = if now == expected { self.size } else { now };
        Err(Error::invalid(format!("{} has {size} bytes, and its header says {expected}", self.name)))
    }
}

fn effective_user() -> u32 {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() }
}
