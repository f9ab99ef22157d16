//! Gives back what is kept for the next request when no request comes: by a thread of the device's, which is called
//! when there is something and sleeps until it is due. A process without a device does it at the next request only.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::heap::release;
use crate::mode::exists;
use crate::state::lock;
use crate::sys;

/// No freed memory is kept.
const IDLE: u8 = 0;
/// Freed memory is kept, and the reaper was not called yet.
const WANTED: u8 = 1;
/// The thread knows.
const CALLED: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// The device's function, as an address; 0: none.
static REAPER: AtomicUsize = AtomicUsize::new(0);

/// Sets whom to call.
pub(crate) fn set(called: Option<unsafe extern "C" fn()>) {
    REAPER.store(called.map_or(0, |f| f as usize), Ordering::Release);
    STATE.store(WANTED, Ordering::Release);
}

/// Something is kept from now on. Under the heap's lock.
#[inline]
pub(crate) fn want() {
    if STATE.load(Ordering::Relaxed) == IDLE {
        STATE.store(WANTED, Ordering::Release);
    }
}

/// Calls the thread, if it does not know. Outside of the lock.
#[inline]
pub(crate) fn call() {
    if STATE.load(Ordering::Relaxed) == WANTED {
        call_it();
    }
}

#[cold]
fn call_it() {
    let address = REAPER.load(Ordering::Acquire);
    if address != 0 && STATE.compare_exchange(WANTED, CALLED, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
        // SAFETY: stored by `set` from a function of this type.
        let function: unsafe extern "C" fn() = unsafe { std::mem::transmute(address) };
        // SAFETY: the setter promised a function that may be called by any thread.
        unsafe { function() };
    }
}

/// See [`crate::api::ShareApi::reap`].
pub(crate) fn reap() -> u64 {
    // The caller has announced before that it sleeps, and looks again afterwards.
    if STATE.load(Ordering::SeqCst) == IDLE || !exists() {
        return u64::MAX;
    }
    let _masked = sys::mask_signals();
    let (out, next) = {
        let Some(mut heap) = lock() else { return u64::MAX };
        let limit = heap.settings.cache_limit;
        let out = heap.expired(limit);
        let next = heap.due_in();
        STATE.store(if next.is_some() { CALLED } else { IDLE }, Ordering::Release);
        (out, next)
    };
    release(out);
    next.unwrap_or(u64::MAX)
}
