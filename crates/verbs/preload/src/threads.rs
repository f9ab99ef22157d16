//! pthread_create(3) and thrd_create(3), before the first of which the functions behind ours are found
//! ([`crate::resolve`]), and the kernel is asked for what it gives at once only to a process with one thread.

use std::ffi::{c_int, c_void};
use std::sync::Once;

use crate::real::{real, reals};

reals! { pthread_create thrd_create }

/// Registers with the kernel for services that the device needs if this process opens it; most processes that start no
/// thread never do. With one thread they take microseconds; with more the kernel waits for all CPUs, 10 to 20 ms each
/// time, and a rank of MPI has threads when it comes to its devices.
fn before_the_second_thread() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        /// MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED and _PRIVATE_EXPEDITED of linux/membarrier.h; the device asks for
        /// them again, and looks what comes of it.
        const REGISTER: [c_int; 2] = [1 << 2, 1 << 4];
        let before = vervain_share::sys::errno();
        for command in REGISTER {
            // SAFETY: takes no pointers.
            unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        }
        vervain_share::make_room_for_descriptors();
        vervain_share::sys::set_errno(before);
    });
    crate::resolve();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    before_the_second_thread();
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
    before_the_second_thread();
    type Start = extern "C" fn(*mut c_void) -> c_int;
    let real = real!(thrd_create: fn(*mut libc::pthread_t, Start, *mut c_void) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { real(thread, start, argument) }
}
