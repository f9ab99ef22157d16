//! Calls that close descriptors. Daemons close all that they did not open; the heap's own must survive that, or no new
//! memory would be shared, and the heap's memory in a window would be others' to have.

use std::ffi::{c_int, c_uint, c_void};

use vervain_share::heap::own_descriptors;

use crate::real::{real, reals, set_errno};

reals! { close close_range closefrom dup2 dup3 }

/// Returns true, with errno `CODE`, for a descriptor of the heap: a program that names its number is to find it closed.
fn hidden<const CODE: c_int>(fd: c_int) -> bool {
    let hidden = fd >= 0 && own_descriptors().contains(&fd);
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
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
        // SAFETY: the caller's own arguments.
        return unsafe { real(first, last, flags) };
    }
    let mut own = own_descriptors().map(|fd| c_uint::try_from(fd).unwrap_or(c_uint::MAX));
    own.sort_unstable();
    let (mut from, mut result) = (Some(first), 0);
    for own in own.into_iter().filter(|own| (first..=last).contains(own) && *own < c_uint::MAX) {
        if let Some(from) = from.filter(|from| *from < own) {
            // SAFETY: the caller's own arguments, less one number.
            result = unsafe { real(from, own - 1, flags) }.min(result);
        }
        from = own.checked_add(1);
    }
    if let Some(from) = from.filter(|from| *from <= last) {
        // SAFETY: as above.
        result = unsafe { real(from, last, flags) }.min(result);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(low: c_int) {
    let real = REAL.closefrom.get();
    let low = low.max(0);
    if own_descriptors().iter().any(|own| *own >= low) {
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
