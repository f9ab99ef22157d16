//! Functions that resolve a path. Their answers must be spelled as the program knows them, not as the tree does.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use libc::{size_t, ssize_t};

use crate::real::{real, reals, set_errno};
use crate::view::{self, Kind, PATH_MAX};

reals! { readlink readlinkat __readlink_chk realpath }

/// The nodes of /dev/infiniband are links only in the tree.
fn link_of(kind: Kind, answer: ssize_t) -> ssize_t {
    if kind == Kind::Device && answer >= 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readlink(path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
    let real = real!(readlink: fn(*const c_char, *mut c_char, size_t) -> ssize_t);
    // SAFETY: the caller's own arguments, with a path that lives as long as the call.
    let call = |path| unsafe { real(path, buffer, size) };
    match view::kind(path) {
        None => call(path),
        Some(kind) => link_of(kind, view::with_tree_path(path, call)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __readlink_chk(path: *const c_char, buffer: *mut c_char, size: size_t, room: size_t) -> ssize_t {
    let real = real!(__readlink_chk: fn(*const c_char, *mut c_char, size_t, size_t) -> ssize_t);
    // SAFETY: the caller's own arguments, with a path that lives as long as the call.
    let call = |path| unsafe { real(path, buffer, size, room) };
    match view::kind(path) {
        None => call(path),
        Some(kind) => link_of(kind, view::with_tree_path(path, call)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readlinkat(dir: c_int, path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
    let real = real!(readlinkat: fn(c_int, *const c_char, *mut c_char, size_t) -> ssize_t);
    // SAFETY: the caller's own arguments, with a path that lives as long as the call.
    let call = |path| unsafe { real(dir, path, buffer, size) };
    match view::kind(path) {
        None => call(path),
        Some(kind) => link_of(kind, view::with_tree_path(path, call)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    let real = real!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char);
    let Some(kind) = view::kind(path) else {
        // SAFETY: the caller's own arguments.
        return unsafe { real(path, resolved) };
    };
    let mut found = [0_u8; PATH_MAX];
    // SAFETY: a path that lives as long as the call, and PATH_MAX bytes for the answer.
    let answer = view::with_tree_path(path, |path| unsafe { real(path, found.as_mut_ptr().cast()) });
    if answer.is_null() {
        return answer;
    }
    // SAFETY: realpath left a C string there.
    let found = unsafe { CStr::from_ptr(found.as_ptr().cast()) }.to_bytes();
    // SAFETY: `kind` has read this C string.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes();
    let end = given.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
    // A node leads out of the tree, to one of /dev: it is its own name.
    let shown = view::without_tree(found).unwrap_or(if kind == Kind::Device { &given[..end] } else { found });
    // SAFETY: `resolved` is null or has PATH_MAX bytes, as realpath(3) demands; `shown` is shorter than that.
    unsafe { give(shown, resolved) }
}

/// Copies `text` with a NUL to `place`, or into memory from malloc(3) where that is null.
///
/// # Safety
/// `place` is null or has room for the text and the NUL.
unsafe fn give(text: &[u8], place: *mut c_char) -> *mut c_char {
    let place = if place.is_null() {
        // SAFETY: the caller of realpath frees it, as it would the C library's.
        unsafe { libc::malloc(text.len() + 1) }.cast::<c_char>()
    } else {
        place
    };
    if !place.is_null() {
        // SAFETY: room for the text and the NUL, in memory that is not the text's.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), place, text.len());
            place.add(text.len()).write(0);
        }
    }
    place
}

/// The form of realpath with _FORTIFY_SOURCE; `room` is the size of the caller's buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn __realpath_chk(path: *const c_char, resolved: *mut c_char, room: size_t) -> *mut c_char {
    // The C library aborts here too: the program is about to overrun its buffer.
    if room < PATH_MAX {
        // SAFETY: abort has no conditions.
        unsafe { libc::abort() }
    }
    // SAFETY: the caller's own arguments.
    unsafe { realpath(path, resolved) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's own argument; a null buffer means memory from malloc.
    unsafe { realpath(path, ptr::null_mut()) }
}
