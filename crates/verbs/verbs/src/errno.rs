//! The two ways in which verbs report errors: an errno value returned, or errno set and -1 or NULL returned. The man
//! page of each function says which.

use core::ffi::c_int;
use core::ptr;

/// Sets this thread's errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: __errno_location returns this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() = errno }
}

/// Sets errno and returns NULL.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// Sets errno and returns -1.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Sets errno and returns it: some clients look at the one, some at the other.
pub(crate) fn code(errno: c_int) -> c_int {
    set_errno(errno);
    errno
}
