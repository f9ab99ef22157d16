//! Sleeping until something comes.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use vervain_pm::Error;

use crate::context::{Context, context};
use crate::error::{null, status};
use crate::of_either;

/// Prepares for a sleep.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmBeforeSelect(pmc: *mut Context) -> c_int {
    status("pmBeforeSelect", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.before_select())
    })
}

/// Ends it.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmAfterSelect(pmc: *mut Context) -> c_int {
    status("pmAfterSelect", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.after_select())
    })
}

/// The descriptors to sleep on: one.
///
/// # Safety
/// `pmc` is null or open; `room` is null or says how many numbers `fds` has room for.
pub unsafe extern "C" fn pmGetFd(pmc: *mut Context, fds: *mut c_int, room: *mut c_int) -> c_int {
    status("pmGetFd", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        if fds.is_null() || room.is_null() {
            return Err(null("fd or nfdp"));
        }
        // SAFETY: the caller's promise.
        let given = unsafe { *room };
        if given < 1 {
            return Err(Error::new(libc::EINVAL, format!("there is room for {given} descriptors: 1 is needed")));
        }
        let fd = of_either!(context, c => c.fd().as_raw_fd());
        // SAFETY: room for one, by what was said.
        unsafe {
            *fds = fd;
            *room = 1;
        }
        Ok(())
    })
}
