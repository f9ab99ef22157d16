//! Functions that list directories. Entries are names, which need no rewriting, except for glob(3), which answers
//! paths.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::{ptr, slice};

use libc::{DIR, dirent, dirent64, glob_t};

use crate::real::{hooks, real};
use crate::view;

type Filter<D> = Option<unsafe extern "C" fn(*const D) -> c_int>;
type Compare<D> = Option<unsafe extern "C" fn(*mut *const D, *mut *const D) -> c_int>;
type OnError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

hooks! {
    also glob glob64;
    fn opendir(@path) -> *mut DIR;
    fn scandir(@path, names: *mut *mut *mut dirent, filter: Filter<dirent>, compare: Compare<dirent>) -> c_int;
    fn scandir64(@path, names: *mut *mut *mut dirent64, filter: Filter<dirent64>, compare: Compare<dirent64>) -> c_int;
}

/// glob and glob64 differ in the type of `found` by name only: glob64_t has glob_t's fields on 64-bit platforms.
macro_rules! globs {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(pattern: *const c_char, flags: c_int, on_error: OnError, found: *mut glob_t) -> c_int {
            let real = real!($name: fn(*const c_char, c_int, OnError, *mut glob_t) -> c_int);
            // SAFETY: the caller's own arguments, with a pattern that lives as long as the call.
            let call = |pattern| unsafe { real(pattern, flags, on_error, found) };
            if view::kind(pattern).is_none() || view::tree_is_a_pattern() {
                return call(pattern);
            }
            let rc = view::with_tree_path(pattern, call);
            if rc == 0 {
                // SAFETY: glob succeeded, so it filled `found`.
                unsafe { spell(&*found, flags) };
            }
            rc
        }
    )*};
}

globs! { glob glob64 }

/// Takes the tree's path off the front of each answer, in place: the strings stay glob's to free. Answers of an earlier
/// call (GLOB_APPEND) have been through here.
///
/// # Safety
/// A successful glob filled `found`.
unsafe fn spell(found: &glob_t, flags: c_int) {
    let reserved = if flags & libc::GLOB_DOOFFS != 0 { found.gl_offs } else { 0 };
    // SAFETY: gl_pathv has gl_offs null pointers and then gl_pathc strings.
    let paths = unsafe { slice::from_raw_parts(found.gl_pathv.add(reserved), found.gl_pathc) };
    for &path in paths {
        // SAFETY: each is a C string.
        let text = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
        if let Some(shown) = view::without_tree(&text[..text.len() - 1]) {
            // `shown` ends where `text` ends, before the NUL, or is "/" for the tree itself.
            let length = shown.len();
            // SAFETY: the new text is shorter, and may overlap the old one.
            unsafe {
                ptr::copy(shown.as_ptr().cast::<c_char>(), path, length);
                path.add(length).write(0);
            }
        }
    }
}

// The layouts that the one type above relies on.
const _: () = assert!(size_of::<dirent>() == size_of::<dirent64>() && size_of::<*mut c_void>() == 8);
