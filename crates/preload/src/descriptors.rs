//! Calls that close descriptors. Daemons close all that they did not open; the heap's own must survive that, or no new
//! memory would be shared.

use std::ffi::{c_int, c_uint, c_void};

use vervain_share::heap::own_descriptor;

use crate::real::{real, reals, set_errno};

reals! { close close_range closefrom dup2 dup3 }

/// Where the heap's descriptor is to a caller that names a number: not there.
fn hidden<const CODE: c_int>(fd: c_int) -> bool {
    let hidden = fd >= 0 && fd == own_descriptor();
    if hidden {
        set_errno(CODE);
    }
    hidden
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if hidden::<{ libc::EBADF }>(fd) {
        return -1;
    }
    let real = real!(close: fn(c_int) -> c_int);
    // SAFETY: the caller's own argument.
    unsafe { real(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let real = real!(close_range: fn(c_uint, c_uint, c_int) -> c_int);
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
    match c_uint::try_from(own_descriptor()) {
        Ok(own) if closes && (first..=last).contains(&own) => {
            // SAFETY: the caller's own arguments, less one number.
            let below = if first < own { unsafe { real(first, own - 1, flags) } } else { 0 };
            // SAFETY: as above.
            let above = if own < last { unsafe { real(own + 1, last, flags) } } else { 0 };
            below.min(above)
        }
        // SAFETY: the caller's own arguments.
        _ => unsafe { real(first, last, flags) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(low: c_int) {
    let real = REAL.closefrom.get();
    let low = low.max(0);
    if own_descriptor() >= low {
        // SAFETY: the same descriptors, by the other call.
        unsafe { close_range(low as c_uint, c_uint::MAX, 0) };
    } else if !real.is_null() {
        // SAFETY: a function of this name has this type.
        let real = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(real) };
        // SAFETY: the caller's own argument.
        unsafe { real(low) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if hidden::<{ libc::EBUSY }>(new) {
        return -1;
    }
    let real = real!(dup2: fn(c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { real(old, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if hidden::<{ libc::EBUSY }>(new) {
        return -1;
    }
    let real = real!(dup3: fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { real(old, new, flags) }
}
