//! `ibv_get_sysfs_path` and `ibv_read_sysfs_file`. Under `vervain run` the preload library serves the paths below
//! /sys/class/infiniband; this file only opens them.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

use vervain_config::{Config, SYSFS_PATH};

use crate::errno;

/// The root of sysfs: `$SYSFS_PATH` without trailing slashes, else "/sys".
///
/// A set-user-id program does not follow its caller's environment.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        // SAFETY: both calls only read the process's credentials.
        let trusted = unsafe { libc::getuid() == libc::geteuid() };
        trusted
            .then(|| SYSFS_PATH.value())
            .flatten()
            .and_then(|p| {
                let mut p = p.into_vec();
                p.truncate(p.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1));
                CString::new(p).ok()
            })
            .unwrap_or_else(|| c"/sys".to_owned())
    });
    path.as_ptr()
}

/// Reads `dir/file` into `buf`, as a string without its last newline; returns the length or -1.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    // SAFETY: the caller's promise.
    let buf = unsafe { core::slice::from_raw_parts_mut(buf.cast::<u8>(), size) };
    let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    match File::open(path).and_then(|mut f| f.read(buf)) {
        Ok(len) => terminate(buf, len),
        Err(e) => errno::minus_one(e.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Warns where `vervain run` was on another host: a launcher of MPI may bring its variables here, and not its files.
pub(crate) fn warn_of_absent_view() {
    // An invalid variable has a message of its own, elsewhere.
    let Ok(config) = Config::of_process() else { return };
    if let Some(why) = absent_view(config.sysfs.as_deref()) {
        log::warn!("{why}");
    }
}

/// The warning for a missing tree of `vervain run`'s; None if the tree is there, or none was named.
fn absent_view(tree: Option<&Path>) -> Option<String> {
    let tree = tree.filter(|tree| !tree.is_dir())?;
    Some(format!(
        "no {} on this host, so programs that look for devices in /sys or /dev find none: start the program by `vervain \
         run` on each host (mpirun ... vervain run -- PROGRAM)",
        tree.display()
    ))
}

/// Ends the `len` bytes in `buf` with a NUL in place of a last newline, or behind them; -1 where there is no room.
fn terminate(buf: &mut [u8], len: usize) -> c_int {
    let len = if len > 0 && buf[len - 1] == b'\n' { len - 1 } else { len };
    match buf.get_mut(len) {
        Some(end) => {
            *end = 0;
            len as c_int
        }
        None => errno::minus_one(libc::ENOSPC),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn a_file_is_read_as_a_string_without_its_newline() {
        let dir = env::temp_dir();
        let name = format!("vervain-sysfs-{}", std::process::id());
        std::fs::write(dir.join(&name), "4: ACTIVE\n").expect("the temporary directory can be written");
        let (cdir, cname) = (CString::new(dir.as_os_str().as_bytes()), CString::new(name.clone()));
        let (cdir, cname) = (cdir.expect("no NUL"), cname.expect("no NUL"));
        let mut buf = [1 as c_char; 32];
        // SAFETY: two C strings and a buffer with its length.
        let len = unsafe { ibv_read_sysfs_file(cdir.as_ptr(), cname.as_ptr(), buf.as_mut_ptr(), buf.len()) };
        assert_eq!(len, 9);
        assert_eq!(buf[9], 0);
        // SAFETY: as above; nine bytes and a newline do not fit with a NUL behind them.
        let len = unsafe { ibv_read_sysfs_file(cdir.as_ptr(), cname.as_ptr(), buf.as_mut_ptr(), 9) };
        assert_eq!(len, -1);
        std::fs::remove_file(dir.join(name)).expect("it was just written");
    }

    #[test]
    fn a_file_that_is_not_there_sets_errno() {
        let mut buf = [0 as c_char; 8];
        // SAFETY: two C strings and a buffer with its length.
        let len = unsafe { ibv_read_sysfs_file(c"/nonexistent".as_ptr(), c"x".as_ptr(), buf.as_mut_ptr(), 8) };
        assert_eq!(len, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_view_that_was_made_on_another_host_is_told_of() {
        let said = absent_view(Some(Path::new("/nowhere/sysfs-1"))).unwrap();
        assert!(said.contains("/nowhere/sysfs-1") && said.contains("vervain run"), "{said}");
        assert_eq!(absent_view(None), None);
        assert_eq!(absent_view(Some(Path::new("/"))), None);
    }
}
