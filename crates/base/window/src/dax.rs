//! Device-DAX: a character device, `/dev/daxN.M`, that is nothing but memory. It is mapped whole, as it accepts only
//! places and lengths that are multiples of its alignment. It has no read(2) and no write(2); sysfs has its size.

use crate::error::{Error, Result};
use crate::found::Found;
use crate::medium::Medium;
use rustix::fd::OwnedFd;
use std::fs;
use std::path::Path;

/// Folder of sysfs with an entry for each character device, by its numbers.
pub(crate) const CHARACTER_DEVICES: &str = "/sys/dev/char";

/// Default alignment of ndctl and daxctl in bytes, assumed where sysfs does not show it (before Linux 5.10).
const USUAL_ALIGN: u64 = 2 << 20;

/// The device of an open descriptor, `name` in messages, described by this folder of sysfs.
///
/// # Errors
/// EINVAL: it is another character device; ENXIO: it has no memory; and errors of reading sysfs.
pub(crate) fn found(fd: OwnedFd, name: String, folder: &Path) -> Result<Found> {
    let subsystem = fs::read_link(folder.join("subsystem")).unwrap_or_default();
    if subsystem.file_name().is_none_or(|name| name != "dax") {
        return Err(Error::invalid(format!(
            "{name} is no regular file but a character device, and none of device-DAX: name /dev/daxN.M (`ndctl list`), a file or ivshmem"
        )));
    }
    let path = folder.join("size");
    let size = fs::read_to_string(&path)
        .map_err(|e| Error::of(format_args!("{name}: how large it is does not show in {}", path.display()), e))?;
    match size.trim().parse() {
        Ok(size) if size > 0 => {
            let align = fs::read_to_string(folder.join("align")).ok().and_then(|align| align.trim().parse().ok());
            let medium = Medium::Dax { align: align.unwrap_or(USUAL_ALIGN) };
            Ok(Found { fd, name, size, medium, driver: None, is_sealed: false })
        }
        _ => Err(Error::new(
            libc::ENXIO,
            format!(
                "{name} has no memory ({} says {:?}): give it some (`daxctl create-device`, `ndctl create-namespace --mode=devdax`)",
                path.display(),
                size.trim()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_no_dax_device_or_an_empty_one_is_refused_with_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let null = || OwnedFd::from(fs::File::open("/dev/null").unwrap());
        let found = || found(null(), "the window W".to_owned(), folder.path());
        let refused = |errno, says: &str| {
            let error = found().err().expect("an error");
            assert!(error.errno() == errno && error.to_string().contains(says), "{error}");
        };
        refused(libc::EINVAL, "none of device-DAX: name /dev/daxN.M");
        symlink("../../../class/mem", folder.path().join("subsystem")).unwrap();
        refused(libc::EINVAL, "none of device-DAX");
        fs::remove_file(folder.path().join("subsystem")).unwrap();
        symlink("../../../bus/dax", folder.path().join("subsystem")).unwrap();
        refused(libc::ENOENT, "how large it is does not show");
        for none in ["0\n", "", "much"] {
            fs::write(folder.path().join("size"), none).unwrap();
            refused(libc::ENXIO, "has no memory");
        }
        fs::write(folder.path().join("size"), "268435456\n").unwrap();
        let device = found().unwrap();
        assert_eq!((device.size, device.medium), (256 << 20, Medium::Dax { align: 2 << 20 }));
        for (align, maps_pages) in [(4096, true), (2 << 20, false), (1 << 30, false)] {
            fs::write(folder.path().join("align"), format!("{align}\n")).unwrap();
            let medium = found().unwrap().medium;
            assert_eq!((medium, medium.maps_pages()), (Medium::Dax { align }, maps_pages));
        }
    }
}
