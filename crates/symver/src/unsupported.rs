//! The bodies of exports that exist only so that programs load: each says "not supported" in the way that its callers
//! check. They take no arguments; the C calling convention lets a caller pass some all the same.

use std::ffi::{c_int, c_void};
use std::ptr;

fn set_errno() {
    say(libc::EOPNOTSUPP);
}

fn say(errno: c_int) {
    // SAFETY: __errno_location returns this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() = errno }
}

/// Of functions that return an errno value.
pub extern "C" fn unsupported() -> c_int {
    set_errno();
    libc::EOPNOTSUPP
}

/// Of functions that return an errno value, which is EPERM for an object of another provider's.
pub extern "C" fn not_permitted() -> c_int {
    say(libc::EPERM);
    libc::EPERM
}

/// Of functions that return -1 and set errno; as wide as the widest of them (`ssize_t`).
pub extern "C" fn minus_one() -> isize {
    set_errno();
    -1
}

/// Of functions that return a pointer, NULL being the error.
pub extern "C" fn no_pointer() -> *mut c_void {
    set_errno();
    ptr::null_mut()
}

/// Of functions that return a bool, a count or a number whose "none" is 0; as wide as the widest of them.
pub extern "C" fn is_false() -> usize {
    0
}

/// Of functions that return nothing and whose argument nobody can have got.
pub extern "C" fn nothing() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_says_no_in_its_own_way() {
        assert_eq!(not_permitted(), libc::EPERM);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
        assert_eq!(unsupported(), libc::EOPNOTSUPP);
        assert_eq!(minus_one(), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert!(no_pointer().is_null());
        assert_eq!(is_false(), 0);
    }
}
