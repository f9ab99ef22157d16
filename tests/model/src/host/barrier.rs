//! Stand-in for the barriers of unequal sides. Where the kernel has a barrier for everybody, the rare side is a fence in every
//! thread and the frequent side none; where not, both are fences of their own.

use crate::host::atomic::{Ordering, fence};
use crate::memory::fence_everywhere;
use std::cell::Cell;

thread_local! {
    // All threads of a model run in one thread of the test.
    static REGISTERED: Cell<bool> = const { Cell::new(true) };
}

/// Whether the kernel of the next runs has that barrier.
pub(crate) fn set_registered(registered: bool) {
    REGISTERED.set(registered);
}

pub(crate) fn is_registered() -> bool {
    REGISTERED.get()
}

pub(crate) fn light(full: bool) {
    if full {
        fence(Ordering::SeqCst);
    }
}

pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    if is_registered() {
        fence_everywhere();
    }
    fence(Ordering::SeqCst);
}

/// All threads of a model are of one process.
pub(crate) fn heavy_here() {
    heavy();
}
