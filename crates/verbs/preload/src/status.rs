//! stat(2) and its kin. A device node of the tree is a link to /dev/null, so the functions that do not follow links
//! must follow this one, or a program would see a link where it wants a character device.

use std::ffi::{c_char, c_int, c_uint};

use libc::AT_SYMLINK_NOFOLLOW;

use crate::real::{hooks, real};
use crate::view::{self, Kind};

type Stat = libc::stat;
type Stat64 = libc::stat64;
type Statx = libc::statx;

hooks! {
    also lstat lstat64 __lxstat __lxstat64 fstatat fstatat64 __fxstatat __fxstatat64 statx;
    fn stat(@path, out: *mut Stat) -> c_int;
    fn stat64(@path, out: *mut Stat64) -> c_int;
    // Programs that were linked against a glibc before 2.33 call these.
    fn __xstat(version: c_int, @path, out: *mut Stat) -> c_int;
    fn __xstat64(version: c_int, @path, out: *mut Stat64) -> c_int;
}

/// Functions that never follow a link, each with the one that does.
macro_rules! unfollowing {
    ($(fn $name:ident($($before:ident: $bt:ty,)* @path, out: *mut $out:ty) or $following:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $bt,)* path: *const c_char, out: *mut $out) -> c_int {
            let kind = view::kind(path);
            let real = if kind == Some(Kind::Device) {
                real!($following: fn($($bt,)* *const c_char, *mut $out) -> c_int)
            } else {
                real!($name: fn($($bt,)* *const c_char, *mut $out) -> c_int)
            };
            // SAFETY: the caller's own arguments, with a path that lives as long as the call.
            let call = |path| unsafe { real($($before,)* path, out) };
            if kind.is_some() { view::with_tree_path(path, call) } else { call(path) }
        }
    )*};
}

unfollowing! {
    fn lstat(@path, out: *mut Stat) or stat;
    fn lstat64(@path, out: *mut Stat64) or stat64;
    fn __lxstat(version: c_int, @path, out: *mut Stat) or __xstat;
    fn __lxstat64(version: c_int, @path, out: *mut Stat64) or __xstat64;
}

/// Functions that have the choice in their flags.
macro_rules! choosing {
    ($(fn $name:ident($($before:ident: $bt:ty,)* @path, out: *mut $out:ty, flags: c_int);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $bt,)* path: *const c_char, out: *mut $out, flags: c_int,
        ) -> c_int {
            let real = real!($name: fn($($bt,)* *const c_char, *mut $out, c_int) -> c_int);
            let kind = view::kind(path);
            let flags = followed(kind, flags);
            // SAFETY: the caller's own arguments, with a path that lives as long as the call.
            let call = |path| unsafe { real($($before,)* path, out, flags) };
            if kind.is_some() { view::with_tree_path(path, call) } else { call(path) }
        }
    )*};
}

choosing! {
    fn fstatat(dir: c_int, @path, out: *mut Stat, flags: c_int);
    fn fstatat64(dir: c_int, @path, out: *mut Stat64, flags: c_int);
    fn __fxstatat(version: c_int, dir: c_int, @path, out: *mut Stat, flags: c_int);
    fn __fxstatat64(version: c_int, dir: c_int, @path, out: *mut Stat64, flags: c_int);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut Statx) -> c_int {
    let real = real!(statx: fn(c_int, *const c_char, c_int, c_uint, *mut Statx) -> c_int);
    let kind = view::kind(path);
    let flags = followed(kind, flags);
    // SAFETY: the caller's own arguments, with a path that lives as long as the call.
    let call = |path| unsafe { real(dir, path, flags, mask, out) };
    if kind.is_some() { view::with_tree_path(path, call) } else { call(path) }
}

fn followed(kind: Option<Kind>, flags: c_int) -> c_int {
    if kind == Some(Kind::Device) { flags & !AT_SYMLINK_NOFOLLOW } else { flags }
}
