//! How results reach C: 0, or -1 and errno.

use std::ffi::c_int;

/// -1, with errno set.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// 0, or -1 with errno set.
pub(crate) fn result(done: Result<(), c_int>) -> c_int {
    done.map_or_else(fail, |()| 0)
}
