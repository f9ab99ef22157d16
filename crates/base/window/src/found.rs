//! Opened files and devices, and the checks that they can be a window.

use crate::dax;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::medium::Medium;
use rustix::fs::{FileType, OFlags, SealFlags};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Flags of open(2) under which a terminal, or a device that others may use, takes no harm.
pub(crate) const HARMLESS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Advice for a file that cannot be used as a window.
const ANEW: &str = "to have a new window made, delete this one while no program uses it, or name another";

/// The file or device of a window, opened.
pub(crate) struct Found {
    pub fd: OwnedFd,
    /// Name for messages.
    pub name: String,
    /// Bytes at the time of opening.
    pub size: u64,
    /// Kind of memory.
    pub medium: Medium,
    /// The kernel driver bound to the device; None: no driver is.
    pub driver: Option<String>,
    /// True for memory without a name that is sealed against shrinking. It may be new and empty, as only its maker can
    /// hand it out.
    pub is_sealed: bool,
}

impl Found {
    /// Checks that `fd` is sealed memory, a regular file that only this user may write, or device-DAX. A device is open
    /// to every user whose rights let it be opened.
    ///
    /// # Errors
    /// EINVAL: it is something else; EPERM: another user could write or shorten it; ENXIO: the device has no memory.
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
        // Files of tmpfs have seals too (F_SEAL_SEAL), and so never get this one. A memfd's mode is 0777.
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

    /// The layout and uuid of its header.
    ///
    /// # Errors
    /// EINVAL: it is no window, or its header cannot be a window's; EPROTO: the window has another version.
    pub(crate) fn header(&self) -> Result<(Layout, [u8; 16])> {
        let name = &self.name;
        let mut bytes = [0; 48];
        let n = rustix::io::pread(&self.fd, &mut bytes, 0).map_err(|e| Error::of(name, e))?;
        let word = |i: usize| u64::from_ne_bytes(bytes[8 * i..][..8].try_into().expect("eight bytes"));
        let words = if n == bytes.len() { [0, 1, 2, 3, 4, 5].map(word) } else { [0; 6] };
        Layout::of_first_words(words, name).map_err(|e| Error::new(e.errno(), format!("{e}; {ANEW}")))
    }

    /// The error of a failed mapping, with advice.
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

    /// EINVAL: the file's size is not `expected`, now or when it was opened.
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
