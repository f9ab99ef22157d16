//! Functions that open a file, and that read one.
//!
//! open(2) and its kin are variadic in C. On x86-64 and AArch64 under Linux an integer argument travels the same way
//! whether it is variadic or not, so the mode is an ordinary argument here; where the caller gave none, what is passed
//! on is ignored by the real function as well.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, mode_t, off_t, size_t, ssize_t};

use crate::counters;
use crate::real::{real, reals};
use crate::view::{self, Kind};

reals! { open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2 fopen fopen64 read __read_chk pread pread64 }

/// The result of a function that opens a file: a descriptor behind it, if it did not fail.
trait Opened {
    fn descriptor(&self) -> c_int;
}

impl Opened for c_int {
    fn descriptor(&self) -> c_int {
        *self
    }
}

impl Opened for *mut FILE {
    fn descriptor(&self) -> c_int {
        // SAFETY: fopen's answer, which nothing has been read from yet.
        if self.is_null() { -1 } else { unsafe { libc::fileno(*self) } }
    }
}

/// `opened`, which lay in the tree or, being named without its directory, may lie there.
#[inline]
fn shown<R: Opened>(path: *const c_char, kind: Option<Kind>, opened: R) -> R {
    // SAFETY: the caller's C string, not null where something was opened by it.
    let relative = || counters::may_be_inside() && unsafe { *path } != b'/' as c_char;
    if opened.descriptor() >= 0 && (kind == Some(Kind::Sysfs) || relative()) {
        counters::bring_to_life(opened.descriptor());
    }
    opened
}

/// Functions that open a file by its path.
macro_rules! opening {
    ($(fn $name:ident($($before:ident: $bt:ty,)* @path $(, $after:ident: $at:ty)*) -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $bt,)* path: *const c_char $(, $after: $at)*) -> $ret {
            let real = real!($name: fn($($bt,)* *const c_char $(, $at)*) -> $ret);
            // SAFETY: the caller's own arguments, with a path that lives as long as the call.
            let call = |path| unsafe { real($($before,)* path $(, $after)*) };
            let kind = view::kind(path);
            let opened = if kind.is_some() { view::with_tree_path(path, call) } else { call(path) };
            shown(path, kind, opened)
        }
    )*};
}

opening! {
    fn open(@path, flags: c_int, mode: mode_t) -> c_int;
    fn open64(@path, flags: c_int, mode: mode_t) -> c_int;
    fn openat(dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int;
    // The form of open with _FORTIFY_SOURCE.
    fn __open_2(@path, flags: c_int) -> c_int;
    fn __open64_2(@path, flags: c_int) -> c_int;
    fn __openat_2(dir: c_int, @path, flags: c_int) -> c_int;
    fn __openat64_2(dir: c_int, @path, flags: c_int) -> c_int;

    fn fopen(@path, mode: *const c_char) -> *mut FILE;
    fn fopen64(@path, mode: *const c_char) -> *mut FILE;
}

/// Functions that read a file, which may be a counter that a program reads once more.
macro_rules! reading {
    ($(fn $name:ident($buffer:ident: *mut c_void $(, $argument:ident: $ty:ty)*) at $at:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int, $buffer: *mut c_void $(, $argument: $ty)*) -> ssize_t {
            let real = real!($name: fn(c_int, *mut c_void $(, $ty)*) -> ssize_t);
            if counters::may_be_one(fd) {
                counters::renew(fd, $at);
            }
            // SAFETY: the caller's own arguments.
            unsafe { real(fd, $buffer $(, $argument)*) }
        }
    )*};
}

reading! {
    fn read(buffer: *mut c_void, size: size_t) at None;
    fn __read_chk(buffer: *mut c_void, size: size_t, room: size_t) at None;
    fn pread(buffer: *mut c_void, size: size_t, offset: off_t) at Some(offset);
    fn pread64(buffer: *mut c_void, size: size_t, offset: off_t) at Some(offset);
}
