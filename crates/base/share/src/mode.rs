//! Whether this process allocates from shared memory: not yet, with the first large request, by now, or no more.

use std::sync::atomic::{AtomicU8, Ordering};

/// The process does not use verbs, as far as is known: nothing is served.
const ASLEEP: u8 = 0;
/// The first large request makes the heap.
const AWAKE: u8 = 1;
const ON: u8 = 2;
const OFF: u8 = 3;
/// The program may have forbidden itself the system calls of the heap: what is there stays as it is.
const STOPPED: u8 = 4;
static MODE: AtomicU8 = AtomicU8::new(ASLEEP);

/// Returns true if memory is allocated from shared memory here, as far as is known: true from [`wake`] to the first
/// large request.
#[inline]
pub fn possible() -> bool {
    matches!(MODE.load(Ordering::Relaxed), AWAKE | ON)
}

/// Memory is shared from now on, where settings and machine allow it.
pub fn wake() {
    let _ = MODE.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed);
}

/// Returns true if there is a heap.
#[inline]
pub fn exists() -> bool {
    matches!(MODE.load(Ordering::Acquire), ON | STOPPED)
}

/// No memory is shared any more that is not by now, and no system call made that the C library's allocator does not
/// make.
pub fn stop() {
    let stop = |mode| match mode {
        ON => Some(STOPPED),
        ASLEEP | AWAKE => Some(OFF),
        _ => None,
    };
    let _ = MODE.fetch_update(Ordering::AcqRel, Ordering::Acquire, stop);
}

/// Returns true if that was said.
#[inline]
pub fn stopped() -> bool {
    MODE.load(Ordering::Relaxed) == STOPPED
}

/// Returns true if the first large request makes the heap. Asked under the heap's lock.
pub(crate) fn awaits_heap() -> bool {
    MODE.load(Ordering::Relaxed) == AWAKE
}

/// The heap was `made`, or it cannot be.
pub(crate) fn set(made: bool) {
    MODE.store(if made { ON } else { OFF }, Ordering::Release);
}
