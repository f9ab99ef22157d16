//! dlopen(3). A package may bring a libibverbs of its own, and a librdmacm: a Python wheel has its libraries under
//! names such as libibverbs-1de1263b.so.1.14.48.0, other packages in a directory that each of them names in its
//! DT_RPATH. Neither is found in LD_LIBRARY_PATH, and with it the program would look for devices of the kernel's.
//!
//! So Vervain's library is loaded before a library that needs such a one, with RTLD_GLOBAL: the dynamic linker takes a
//! symbol from global libraries before it looks at those that a library brings (dlopen(3)). And a program that loads
//! the package's libibverbs by its path gets Vervain's in its place. Libraries that are linked into the program itself,
//! are loaded with RTLD_DEEPBIND, or by a bare name that only a DT_RUNPATH leads to, go unnoticed.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::Metadata;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use crate::real::{absent, errno, reals, set_errno};

reals! { dlopen }

/// The libraries that Vervain has its own of, by the names that programs link to.
const LIBRARIES: [&str; 8] = [
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libmlx5.so.1",
    "libmlx4.so.1",
    "libefa.so.1",
    "libhns.so.1",
    "libmana.so.1",
    "libionic.so.1",
];

/// The real dlopen and its first argument, with which the call continues; in the two registers of a returned pair.
#[repr(C)]
pub(crate) struct Opening {
    path: *const c_char,
    function: *const c_void,
}

/// Runs before the real dlopen ([`crate::arch`]).
pub(crate) extern "C" fn opening(path: *const c_char, flags: c_int) -> Opening {
    crate::resolve();
    let real = REAL.dlopen.get().cast_const();
    if real.is_null() {
        return Opening { path, function: no_dlopen as *const c_void };
    }
    let before = errno();
    let path = (!path.is_null()).then(|| prefer_ours(path, flags)).flatten().unwrap_or(path);
    set_errno(before);
    Opening { path, function: real }
}

extern "C" fn no_dlopen(_path: *const c_char, _flags: c_int) -> *mut c_void {
    absent()
}

/// Loads what is Vervain's of the libraries that the one at `path` needs; or gives the path of Vervain's, if `path` is
/// that of such a library itself. A name without a slash is searched for in LD_LIBRARY_PATH, where Vervain's is.
fn prefer_ours(path: *const c_char, flags: c_int) -> Option<*const c_char> {
    // SAFETY: the caller's C string, which lives as long as the call.
    let given = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    if !given.as_os_str().as_bytes().contains(&b'/') {
        return None;
    }
    if let Some(index) = given.file_name().and_then(library) {
        return Some(ours()[index].as_ref()?.as_ptr());
    }
    if flags & libc::RTLD_NOLOAD == 0 {
        brought_along(given).into_iter().filter_map(|index| ours()[index].as_deref()).for_each(load);
    }
    None
}

fn load(library: &CStr) {
    // SAFETY: a library of Vervain's, whose constructors may run at any time; the program keeps it.
    unsafe {
        if libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL).is_null() {
            // The message is about a call that the program did not make.
            libc::dlerror();
        }
    }
}

/// Which of [`LIBRARIES`] a file name means: `libibverbs.so`, with any version behind, and with an auditwheel hash
/// (eight hexadecimal digits) before.
fn library(name: &OsStr) -> Option<usize> {
    LIBRARIES.iter().position(|ours| {
        let stem = ours.strip_suffix(".so.1").unwrap_or(ours);
        let Some(rest) = name.as_bytes().strip_prefix(stem.as_bytes()) else { return false };
        let hashed =
            |rest: &[u8]| rest.first() == Some(&b'-') && rest.iter().skip(1).take(8).all(u8::is_ascii_hexdigit);
        let rest = if hashed(rest) { rest.get(9..).unwrap_or_default() } else { rest };
        rest == b".so" || rest.starts_with(b".so.")
    })
}

/// Vervain's libraries, which lie beside this one; where one is missing, the program's own serves.
fn ours() -> &'static [Option<CString>; LIBRARIES.len()] {
    static OURS: OnceLock<[Option<CString>; LIBRARIES.len()]> = OnceLock::new();
    OURS.get_or_init(|| {
        let directory = own_path().and_then(|path| Some(path.parent()?.to_owned()));
        LIBRARIES.map(|name| {
            let path = directory.as_ref()?.join(name);
            path.is_file().then(|| CString::new(path.into_os_string().into_vec()).ok()).flatten()
        })
    })
}

/// The file that this library was loaded from.
fn own_path() -> Option<PathBuf> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: an address, and room for the answer.
    if unsafe { libc::dladdr(opening as *const c_void, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded, so it filled the answer with a C string that stays as long as this library.
    let name = unsafe { CStr::from_ptr(found.assume_init().dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Which of [`LIBRARIES`] the library at `path`, or one that it brings along, needs under another name or has in a
/// directory of its own. Each file is looked at once.
fn brought_along(path: &Path) -> Vec<usize> {
    // Files by device, inode and time of the last change, not by their real path: that takes a call for each directory,
    // and MPI loads fifty plugins. The time is there because a new file may get the inode of a deleted one.
    static SEEN: Mutex<Option<HashSet<[u64; 4]>>> = Mutex::new(None);
    // Not waited for: a child forked by another thread meanwhile would wait for ever.
    let mut shared = SEEN.try_lock().ok();
    let mut own = None;
    let seen = shared.as_deref_mut().unwrap_or(&mut own).get_or_insert_with(HashSet::new);
    let (mut found, mut waiting) = (Vec::new(), vec![path.to_owned()]);
    while let Some(path) = waiting.pop() {
        let identity = |of: Metadata| [of.dev(), of.ino(), of.ctime() as u64, of.ctime_nsec() as u64];
        let fresh = path.metadata().is_ok_and(|of| seen.insert(identity(of)));
        let Some(elf) = fresh.then(|| vervain_elf::read(&path).ok().flatten()).flatten() else { continue };
        let places = if elf.runpath.is_empty() { &elf.rpath } else { &elf.runpath };
        let origin = path.parent().unwrap_or(Path::new("/"));
        let places: Vec<_> = places.iter().map(|place| vervain_elf::expand_origin(place, origin)).collect();
        for name in &elf.needed {
            let file = places.iter().map(|place| place.join(name)).find(|file| file.is_file());
            match library(name) {
                Some(index) if file.is_some() || name != LIBRARIES[index] => found.push(index),
                Some(_) => {}
                None => waiting.extend(file),
            }
        }
    }
    found
}
