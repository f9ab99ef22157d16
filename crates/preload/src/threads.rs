//! pthread_create(3) and thrd_create(3), before the first of which the functions behind ours are found
//! ([`crate::resolve`]).

use std::ffi::{c_int, c_void};

use crate::real::{real, reals};

reals! { pthread_create thrd_create }

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    crate::resolve();
    type Start = extern "C" fn(*mut c_void) -> *mut c_void;
    let real =
        real!(pthread_create: fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { real(thread, attributes, start, argument) }
}

/// threads.h; `thread` is a `thrd_t *`, which is a `pthread_t *`.
#[unsafe(no_mangle)]
unsafe extern "C" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> c_int {
    crate::resolve();
    type Start = extern "C" fn(*mut c_void) -> c_int;
    let real = real!(thrd_create: fn(*mut libc::pthread_t, Start, *mut c_void) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { real(thread, start, argument) }
}
