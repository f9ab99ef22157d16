//! The bodies of exports that exist only so that programs load: each says "not supported" in the way that its callers
//! check. Those of queries answer as a card without any optional capability does; the others take no arguments, and the
//! C calling convention lets a caller pass some all the same.

use std::ffi::{c_int, c_void};
use std::ptr;

fn set_errno() {
    say(libc::EOPNOTSUPP);
}

fn say(errno: c_int) {
    // SAFETY: __errno_location returns this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() = errno }
}

/// Answer of functions that return an errno value.
pub extern "C" fn unsupported() -> c_int {
    set_errno();
    libc::EOPNOTSUPP
}

/// Answer of functions that return an errno value, EPERM, for an object of another provider's.
pub extern "C" fn not_permitted() -> c_int {
    say(libc::EPERM);
    libc::EPERM
}

/// Answer of functions that return -1 and set errno; as wide as the widest of them (`ssize_t`).
pub extern "C" fn minus_one() -> isize {
    set_errno();
    -1
}

/// Answer of functions that return a pointer, NULL being the error.
pub extern "C" fn no_pointer() -> *mut c_void {
    set_errno();
    ptr::null_mut()
}

/// Answer of functions that return a bool, a count or a number whose "none" is 0; as wide as the widest of them.
pub extern "C" fn is_false() -> usize {
    0
}

/// Answer of functions that return nothing, with an argument that no program can have got.
pub extern "C" fn nothing() {}

/// Answer of queries (context, attributes) into 16 bytes, which are zero for a device without the capabilities that
/// they report.
///
/// # Safety
/// `attributes` is writable for 16 bytes.
pub unsafe extern "C" fn absent_16(_context: *const c_void, attributes: *mut [u8; 16]) -> c_int {
    // SAFETY: the caller's promise; bytes need no alignment.
    unsafe { *attributes = [0; 16] };
    0
}

/// Answer of queries (context, attributes) into at least 24 bytes, as [`absent_16`]. A mask among them declares the
/// bytes behind them absent.
///
/// # Safety
/// `attributes` is writable for 24 bytes.
pub unsafe extern "C" fn absent_24(_context: *const c_void, attributes: *mut [u8; 24]) -> c_int {
    // SAFETY: the caller's promise; bytes need no alignment.
    unsafe { *attributes = [0; 24] };
    0
}

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

    #[test]
    fn a_query_succeeds_and_reports_nothing() {
        let (mut short, mut long) = ([0xff; 16], [0xff; 24]);
        // SAFETY: as many bytes as each writes.
        let answers = unsafe { (absent_16(ptr::null(), &raw mut short), absent_24(ptr::null(), &raw mut long)) };
        assert_eq!((answers, short, long), ((0, 0), [0; 16], [0; 24]));
    }
}
