//! Functions that open a file or enter a directory, ask whether they may, or read extended attributes.
//!
//! open(2) and its kin are variadic in C. On x86-64 and AArch64 under Linux an integer argument travels the same way
//! whether it is variadic or not, so the mode is an ordinary argument here; where the caller gave none, what is passed on
//! is ignored by the real function as well.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, mode_t, size_t, ssize_t};

use crate::real::hooks;

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("the calling convention of variadic functions is known for Linux on x86-64 and AArch64 only");

hooks! {
    fn open(@path, flags: c_int, mode: mode_t) -> c_int;
    fn open64(@path, flags: c_int, mode: mode_t) -> c_int;
    fn openat(dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int;
    // What open becomes with _FORTIFY_SOURCE.
    fn __open_2(@path, flags: c_int) -> c_int;
    fn __open64_2(@path, flags: c_int) -> c_int;
    fn __openat_2(dir: c_int, @path, flags: c_int) -> c_int;
    fn __openat64_2(dir: c_int, @path, flags: c_int) -> c_int;

    fn fopen(@path, mode: *const c_char) -> *mut FILE;
    fn fopen64(@path, mode: *const c_char) -> *mut FILE;

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
