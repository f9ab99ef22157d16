//! The ivshmem device of QEMU: memory of the host as BAR 2 of a PCI device, which a guest maps from sysfs without a
//! driver. The window is that memory; the device's doorbells are not used.

use crate::error::{Error, Result};
use crate::found::Found;
use crate::medium::Medium;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folder of sysfs with an entry for each PCI device.
pub(crate) const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Vendor and device, as sysfs writes them.
const IDS: [&str; 2] = ["0x1af4", "0x1110"];
/// Bit of a PCI command register: the device's memory answers.
const MEMORY_ENABLED: u8 = 2;

/// The PCI address in the name of an ivshmem window, "" if it has none; None: the window is something else.
pub(crate) fn named(path: &Path) -> Option<&str> {
    let rest = path.to_str()?.strip_prefix("ivshmem")?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix(':') }
}

/// Opens and enables the memory of the device with this address among `devices`, or of the only one if the address is
/// empty.
///
/// # Errors
/// ENODEV: there is none; EINVAL: the address is malformed or another device's, or it is empty and there are several;
/// ENXIO: the device has no memory; EIO: its memory does not answer; EACCES: only root may enable or open it.
pub(crate) fn open(devices: &Path, address: &str) -> Result<Found> {
    let folder = find(devices, address)?;
    let name = format!("the window ivshmem:{}", last(&folder));
    // The first file maps the BAR as write-combining, so stores to it are gathered. It exists if the BAR is
    // prefetchable.
    let resource = ["resource2_wc", "resource2"].map(|file| folder.join(file)).into_iter().find(|file| file.exists());
    let Some(resource) = resource else {
        let remedy = "give it some (ivshmem-plain with memdev=)";
        return Err(Error::new(libc::ENXIO, format!("{name}: the device has no memory (no BAR 2): {remedy}")));
    };
    enable(&folder, &name)?;
    let fd = rustix::fs::open(&resource, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
        let file = resource.display();
        let error = Error::of(format_args!("{name}: {file} cannot be opened"), e);
        let remedy = "run as root, or give this user the right (chown, or a rule of udev)";
        if e.raw_os_error() == libc::EACCES { Error::new(libc::EACCES, format!("{error}: {remedy}")) } else { error }
    })?;
    let size = rustix::fs::fstat(&fd).map_err(|e| Error::of(&name, e))?.st_size as u64;
    let driver = fs::read_link(folder.join("driver")).ok().map(|driver| last(&driver));
    Ok(Found { fd, name, size, medium: Medium::Ivshmem, driver, is_sealed: false })
}

fn last(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn find(devices: &Path, address: &str) -> Result<PathBuf> {
    let ids = |folder: &Path| ["vendor", "device"].map(|id| fs::read_to_string(folder.join(id)).unwrap_or_default());
    let is_ivshmem = |folder: &Path| ids(folder).each_ref().map(|id| id.trim()) == IDS;
    let entries = fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = entries.filter(|folder| is_ivshmem(folder)).collect();
    all.sort();
    let names = || all.iter().map(|folder| last(folder)).collect::<Vec<_>>().join(", ");
    let none = || {
        let remedy = "add one to the guest (-device ivshmem-plain,memdev=…), or name a file or /dev/daxN.M";
        Error::new(libc::ENODEV, format!("this machine has no ivshmem device (PCI 1af4:1110): {remedy}"))
    };
    if !address.is_empty() {
        let Some(full) = full(address) else {
            return Err(Error::invalid(format!(
                "{address:?} is no PCI address: the window ivshmem:DDDD:BB:DD.F has one as in lspci -D"
            )));
        };
        let folder = devices.join(&full);
        return match (is_ivshmem(&folder), folder.exists()) {
            (true, _) => Ok(folder),
            (false, _) if all.is_empty() => Err(none()),
            (false, true) => {
                let [vendor, device] = ids(&folder).map(|id| id.trim().trim_start_matches("0x").to_owned());
                let is = format!("the PCI device {full} is {vendor}:{device} and no ivshmem device (1af4:1110)");
                Err(Error::invalid(format!("{is}: name one of {}", names())))
            }
            (false, false) => {
                Err(Error::new(libc::ENODEV, format!("there is no PCI device {full}: name one of {}", names())))
            }
        };
    }
    match &all[..] {
        [] => Err(none()),
        [one] => Ok(one.clone()),
        [first, ..] => {
            let remedy = format!("name one, as in ivshmem:{}", last(first));
            Err(Error::invalid(format!("this machine has several ivshmem devices, {}: {remedy}", names())))
        }
    }
}

/// The address with its domain, 0 by default; None: malformed.
fn full(address: &str) -> Option<String> {
    let of = |text: &str, digits: usize| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let address = if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() };
    let parts: Vec<&str> = address.split([':', '.']).collect();
    let is_one = matches!(parts[..], [domain, bus, device, function]
        if of(domain, 4) && of(bus, 2) && of(device, 2) && of(function, 1))
        && address.as_bytes()[10] == b'.';
    is_one.then(|| address.to_ascii_lowercase())
}

/// Makes the device's memory answer: without a driver nothing has enabled it yet.
fn enable(folder: &Path, name: &str) -> Result<()> {
    let file = folder.join("enable");
    let answers = || fs::read(folder.join("config")).is_ok_and(|c| c.get(4).is_some_and(|c| c & MEMORY_ENABLED != 0));
    let is_enabled = fs::read_to_string(&file).is_ok_and(|count| count.trim() != "0");
    if is_enabled && answers() {
        return Ok(());
    }
    let remedy = format!("as root, `echo 1 > {}`", file.display());
    match fs::write(&file, "1") {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(Error::new(
            libc::EACCES,
            format!("{name}: the device is not enabled, and only root may do that: {remedy}"),
        )),
        Err(e) => Err(Error::of(format_args!("{name}: the device cannot be enabled ({remedy})"), e)),
        Ok(()) if answers() => Ok(()),
        Ok(()) => Err(Error::new(
            libc::EIO,
            format!(
                "{name}: the device is enabled, but its memory does not answer (command register): {remedy}, after `echo 0`"
            ),
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A folder like that of sysfs for an ivshmem device with `size` bytes of memory.
    pub(crate) fn device(devices: &Path, address: &str, size: u64) -> PathBuf {
        let folder = devices.join(address);
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("vendor", "0x1af4\n"), ("device", "0x1110\n"), ("enable", "0\n")] {
            fs::write(folder.join(file), text).unwrap();
        }
        // The device is enabled already, with the changes that enabling makes in a machine.
        fs::write(folder.join("config"), [0xf4, 0x1a, 0x10, 0x11, MEMORY_ENABLED, 0]).unwrap();
        fs::File::create(folder.join("resource2_wc")).unwrap().set_len(size).unwrap();
        folder
    }

    fn refused(devices: &Path, address: &str, errno: i32, says: &str) {
        let error = open(devices, address).err().expect("an error");
        assert!(error.errno() == errno && error.to_string().contains(says), "{error}");
    }

    #[test]
    fn a_name_may_say_a_device() {
        for (name, address) in [
            ("ivshmem", Some("")),
            ("ivshmem:0000:00:04.0", Some("0000:00:04.0")),
            ("./ivshmem", None),
            ("ivshmem0", None),
            ("/dev/shm/ivshmem", None),
        ] {
            assert_eq!(named(Path::new(name)), address, "{name}");
        }
        assert_eq!(full("00:1F.7").as_deref(), Some("0000:00:1f.7"));
        for wrong in
            ["0000:00:04", "4.0", "../00:04.0", "0000:00:04:0", "0000:00.04.0", "0000:00:04.00", "00000:0:04.0"]
        {
            assert_eq!(full(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_only_device_is_found_and_enabled_and_of_several_one_has_to_be_named() {
        let place = tempfile::tempdir().unwrap();
        let devices = place.path();
        refused(&devices.join("absent"), "", libc::ENODEV, "no ivshmem device (PCI 1af4:1110): add one to the guest");
        refused(devices, "0000:00:04.0", libc::ENODEV, "no ivshmem device");
        let folder = device(devices, "0000:00:04.0", 1 << 20);
        let found = open(devices, "").unwrap();
        assert_eq!((found.size, found.medium), (1 << 20, Medium::Ivshmem));
        assert_eq!(fs::read_to_string(folder.join("enable")).unwrap(), "1");
        let other = device(devices, "0000:00:02.0", 1 << 20);
        fs::write(other.join("device"), "0x1000\n").unwrap();
        open(devices, "").unwrap();
        refused(devices, "00:02.0", libc::EINVAL, "0000:00:02.0 is 1af4:1000 and no ivshmem device");
        refused(devices, "0000:00:09.0", libc::ENODEV, "there is no PCI device 0000:00:09.0: name one of 0000:00:04.0");
        refused(devices, "x", libc::EINVAL, "\"x\" is no PCI address");
        device(devices, "0000:00:05.0", 1 << 20);
        refused(devices, "", libc::EINVAL, "0000:00:04.0, 0000:00:05.0: name one, as in ivshmem:0000:00:04.0");
        open(devices, "0000:00:05.0").unwrap();
        open(devices, "00:05.0").unwrap();
    }

    #[test]
    fn a_device_whose_memory_is_not_to_be_had_is_refused_with_a_sentence() {
        let place = tempfile::tempdir().unwrap();
        let folder = device(place.path(), "0000:00:04.0", 1 << 20);
        fs::write(folder.join("config"), [0; 64]).unwrap();
        refused(place.path(), "", libc::EIO, "its memory does not answer");
        fs::write(folder.join("config"), [0, 0, 0, 0, MEMORY_ENABLED]).unwrap();
        fs::remove_file(folder.join("enable")).unwrap();
        fs::create_dir(folder.join("enable")).unwrap();
        refused(place.path(), "", libc::EISDIR, "cannot be enabled (as root, `echo 1 > ");
        fs::rename(folder.join("resource2_wc"), folder.join("resource2")).unwrap();
        fs::remove_dir(folder.join("enable")).unwrap();
        fs::write(folder.join("enable"), "1\n").unwrap();
        assert_eq!(open(place.path(), "").unwrap().size, 1 << 20);
        std::os::unix::fs::symlink("../../drivers/vfio-pci", folder.join("driver")).unwrap();
        assert_eq!(open(place.path(), "").unwrap().driver.as_deref(), Some("vfio-pci"));
        fs::remove_file(folder.join("resource2")).unwrap();
        refused(place.path(), "", libc::ENXIO, "has no memory (no BAR 2)");
    }

    #[test]
    fn who_is_not_root_is_told_what_root_has_to_do() {
        let place = tempfile::tempdir().unwrap();
        let folder = device(place.path(), "0000:00:04.0", 1 << 20);
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(place.path(), 0o755);
        let nobody = |says: &str| {
            let refused = || {
                // SAFETY: this bare call changes the rights of this thread only, not those of the process.
                unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
                refused(place.path(), "", libc::EACCES, says);
            };
            std::thread::scope(|scope| scope.spawn(refused).join().unwrap());
        };
        mode(&folder.join("enable"), 0o444);
        nobody("is not enabled, and only root may do that: as root, `echo 1 > ");
        fs::remove_file(folder.join("enable")).unwrap();
        fs::write(folder.join("enable"), "1\n").unwrap();
        mode(&folder.join("resource2_wc"), 0o400);
        nobody(
            "resource2_wc cannot be opened: Permission denied (os error 13): run as root, or give this user the right",
        );
    }
}
