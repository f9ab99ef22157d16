//! Hooks of fork. The shared heap's handlers run innermost, so they are registered before any other; `_Fork` runs no
//! handlers of the C library, and runs these.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use vervain_share::fork;

use crate::real::{real, reals};

reals! { __register_atfork _Fork }

/// Registers the heap's handlers, if nobody has registered any before.
pub fn prepare() {
    resolve();
    fork::REGISTER.store(REAL.__register_atfork.get() as usize, Ordering::Release);
    fork::register();
}

type Handler = Option<unsafe extern "C" fn()>;

/// The function that `pthread_atfork` calls, which is linked into each program and library.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(prepare: Handler, parent: Handler, child: Handler, dso: *mut c_void) -> c_int {
    let real = real!(__register_atfork: fn(Handler, Handler, Handler, *mut c_void) -> c_int);
    fork::REGISTER.store(real as usize, Ordering::Release);
    fork::register();
    // SAFETY: the caller's own arguments.
    unsafe { real(prepare, parent, child, dso) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    let real = real!(_Fork: fn() -> libc::pid_t);
    // SAFETY: the functions of one fork, in their order, in this thread.
    unsafe {
        fork::prepare();
        let child = real();
        if child == 0 {
            fork::child()
        } else {
            fork::parent()
        };
        child
    }
}
