//! Time in the model: it goes on when somebody looks at it.

use std::cell::Cell;

thread_local! {
    // The checker runs all threads of a model in one thread, so this is the time of all of them.
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Two looks, and the patience of one who waits for another that fires is over.
const STEP_NS: u64 = 15_000;

pub(crate) fn now_ns() -> u64 {
    NOW_NS.with(|now| {
        now.set(now.get() + STEP_NS);
        now.get()
    })
}

pub(crate) fn hca_clock_ns() -> u64 {
    now_ns()
}
