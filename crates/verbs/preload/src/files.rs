//! Functions that enter a directory, ask whether they may open a file, or read extended attributes.

use std::ffi::{c_char, c_int, c_void};

use libc::{size_t, ssize_t};

use crate::real::hooks;

hooks! {
    // ibstatus enters the class and lists what is there. The working directory is the tree's own from then on.
    fn chdir(@path) -> c_int;

    fn access(@path, mode: c_int) -> c_int;
    fn eaccess(@path, mode: c_int) -> c_int;
    fn euidaccess(@path, mode: c_int) -> c_int;
    fn faccessat(dir: c_int, @path, mode: c_int, flags: c_int) -> c_int;

    // `ls -l` looks for access control lists.
    fn getxattr(@path, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    fn lgetxattr(@path, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    fn listxattr(@path, list: *mut c_char, size: size_t) -> ssize_t;
    fn llistxattr(@path, list: *mut c_char, size: size_t) -> ssize_t;
}
