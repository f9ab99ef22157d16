//! Files that are found, and whether they are what they have to be.

use crate::dax;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::medium::Medium;
use rustix::fs::{FileType, OFlags, SealFlags};
use std::os::fd::OwnedFd;
use std::path::Path;

/// What a device that others might open, or that a terminal is, is not harmed by.
pub(crate) const HARMLESS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// What helps against a file that is no good window.
const ANEW: &str = "to have a new window made, delete this one while no program uses it, or name another";

/// A file of the window, or the device that it is, opened.
pub(crate) struct Found {
    pub fd: OwnedFd,
    /// For sentences.
    pub name: String,
    /// Bytes, when it was opened.
    pub size: u64,
    /// What it is.
    pub medium: Medium,
    /// The driver that has the device, if one has.
    pub driver: Option<String>,
    /// Memory without a name, sealed against being made shorter. It may be fresh, since only whoever has made it can name it.
    pub is_sealed: bool,
}

impl Found {
    /// Checks that `fd` is a regular file that nobody but this user may write, or sealed memory; or device-DAX, which whoever has the
    /// right to open it may use.
    ///
    /// # Errors
    /// EINVAL: it is something else; EPERM: somebody else could write it, or shorten it; ENXIO: a device without memory.
    pub(crate) fn check(fd: OwnedFd, path: &Path) -> Result<Found> {
        let name = format!("the window {}", path.display());
        let status = rustix::fs::fstat(&fd).map_err(|e| Error::of(&name, e))?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => {}
            FileType::CharacterDevice => {
                let numbers = [rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev)];
                let folder = Path::new(dax::CHARACTER_DEVICES).join(format!("{}:{}", numbers[0], numbers[1]));
                return dax::found(fd, name, &folder);
            }
            _ => return Err(Error::invalid(format!("{name} is no regular file, and no device"))),
        }
        let denied = |what: String| Err(Error::new(libc::EPERM, format!("{name} {what}")));
        let own = effective_user();
        if status.st_uid != own {
            return denied(format!("is user {}'s, and this is user {own}", status.st_uid));
        }
        // Files of tmpfs have seals too, and cannot get others; memfds have every right set.
        let is_sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !is_sealed {
            if status.st_nlink == 0 {
                let what =
                    "has no name, and is not sealed against being made shorter: fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)";
                return denied(what.to_owned());
            }
            if status.st_mode & 0o022 != 0 {
                return denied(format!("may be written by others than its owner (mode {:o})", status.st_mode & 0o7777));
            }
        }
        let size = status.st_size as u64;
        if is_sealed && size == 0 {
            let what = "has no bytes: give it those of the window (ftruncate) before anybody opens it";
            return Err(Error::invalid(format!("{name} {what}")));
        }
        Ok(Found { fd, name, size, medium: Medium::File, driver: None, is_sealed })
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
        let words = if n == bytes.len() { [0, 1, 2, 3, 4, 5].map(word) } else { [0; 6] };
        Layout::of_first_words(words, name).map_err(|e| Error::new(e.errno(), format!("{e}; {ANEW}")))
    }

    /// What refused to map it, with what helps.
    pub(crate) fn cannot_be_mapped(&self, error: Error) -> Error {
        let name = &self.name;
        match (self.medium, &self.driver) {
            (Medium::File, _) => error,
            (_, Some(driver)) => Error::new(
                libc::EBUSY,
                format!("{name} is in use by the driver {driver}: end what has it open, or unbind it ({error})"),
            ),
            (_, None) if [libc::EBUSY, libc::EINVAL].contains(&error.errno()) => {
                let what = "somebody else has it, or it is not mapped whole: end what has it open";
                Error::new(libc::EBUSY, format!("{name}: {what} ({error})"))
            }
            (_, None) => Error::new(error.errno(), format!("{name}: {error}")),
        }
    }

    /// EINVAL: the file has not so many bytes; also when it has lost some since it was opened.
    pub(crate) fn check_size(&self, expected: u64) -> Result<()> {
        let now = rustix::fs::fstat(&self.fd).map_err(|e| Error::of(&self.name, e))?.st_size as u64;
        if now == expected && self.size == expected {
            return Ok(());
        }
        let size = if now == expected { self.size } else { now };
        Err(Error::invalid(format!("{} has {size} bytes, and its header says {expected}; {ANEW}", self.name)))
    }
}

fn effective_user() -> u32 {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() }
}
