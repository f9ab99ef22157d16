//! The seam by which the device's handler of SIGSEGV and SIGBUS stays before the program's: the device hands over a
//! function, and the preload library's sigaction(2) and signal(2) ask that in place of the kernel. One C symbol, found
//! by dlsym; sharing may be off.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The signals.
pub const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// As sigaction(2), for the program's handler of faults that the device does not handle.
pub type Exchange = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// The function that the preload library exports.
pub const SYMBOL: &CStr = c"vervain_faults_v1";

/// The type of [`SYMBOL`].
pub type Entry = unsafe extern "C" fn(Exchange);

static EXCHANGE: AtomicUsize = AtomicUsize::new(0);

/// The device's handler is in place, and `exchange` is to be asked from now on.
pub fn stand_before(exchange: Exchange) {
    EXCHANGE.store(exchange as usize, Ordering::Release);
}

/// The function to call for `signal` in place of sigaction(2); None: the kernel's.
pub fn exchange(signal: c_int) -> Option<Exchange> {
    let exchange = EXCHANGE.load(Ordering::Acquire);
    if exchange == 0 || !SIGNALS.contains(&signal) {
        return None;
    }
    // SAFETY: stored by `stand_before`.
    Some(unsafe { std::mem::transmute::<usize, Exchange>(exchange) })
}
