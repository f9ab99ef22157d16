//! sigaction(2) and signal(2): the shared heap's handler, which stands in for the default action of the signals that
//! dump core, is the default action to the program; and the device's handler of faults, which stands before all others,
//! is not there.

use std::ffi::c_int;

use libc::{SIG_DFL, sigaction as Action, sighandler_t};
use vervain_share::{dump, faults};

use crate::real::{Failure, real, reals};

reals! { sigaction signal }

impl Failure for sighandler_t {
    const FAILURE: sighandler_t = libc::SIG_ERR;
}

/// Returns true if the program has just asked for the default action of such a signal.
fn stands_in(signal: c_int, handler: sighandler_t) -> bool {
    handler == SIG_DFL && dump::installed() && dump::SIGNALS.contains(&signal)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let real = real!(sigaction: fn(c_int, *const Action, *mut Action) -> c_int);
    // SAFETY: null or the caller's action.
    let wants_default = unsafe { new.as_ref() }.is_some_and(|new| stands_in(signal, new.sa_sigaction));
    let ours = dump::action();
    let new = if wants_default { &raw const ours } else { new };
    // SAFETY: the caller's own arguments, or our action.
    let result = unsafe {
        match faults::exchange(signal) {
            Some(exchange) => exchange(signal, new, old),
            None => real(signal, new, old),
        }
    };
    // SAFETY: null or written by the call above.
    if let Some(old) = unsafe { old.as_mut() }
        && result == 0
        && dump::is_ours(old)
    {
        // SAFETY: all zeros is the default action.
        *old = unsafe { std::mem::zeroed() };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    let real = real!(signal: fn(c_int, sighandler_t) -> sighandler_t);
    if faults::exchange(number).is_some() {
        return by_action(number, handler);
    }
    // SAFETY: the caller's own arguments.
    let old = unsafe { real(number, handler) };
    let ours = dump::action();
    if old != libc::SIG_ERR && stands_in(number, handler) {
        // SAFETY: our action.
        unsafe { sigaction(number, &raw const ours, std::ptr::null_mut()) };
    }
    if old == ours.sa_sigaction { SIG_DFL } else { old }
}

/// signal(2) by sigaction(2), as the C library has it.
fn by_action(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: all zeros is a valid action with an empty mask.
    let (mut new, mut old): (Action, Action) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: the structs live here.
    unsafe {
        libc::sigaddset(&raw mut new.sa_mask, number);
        sigaction(number, &raw const new, &raw mut old);
    }
    old.sa_sigaction
}
