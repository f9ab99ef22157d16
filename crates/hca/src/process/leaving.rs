//! The end of the program: what it has posted leaves first, as an adapter would have sent it by then. [`Process::serve`]
//! installs it.

use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use crate::process::Process;
use std::sync::Once;
use std::time::Duration;

/// How long the end waits at most, and between two looks.
const LEAVE_NS: u64 = 1_000_000_000;
const LOOK: Duration = Duration::from_micros(100);

/// Has sends leave when the program calls exit(3) or returns from main. A forked child has its parent's functions of atexit(3).
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler may run at any time when the process ends, or this library is unloaded.
    ONCE.call_once(|| _ = unsafe { libc::atexit(at_exit) });
}

extern "C" fn at_exit() {
    if let Some(process) = Process::current().filter(|process| process.is_current()) {
        process.let_sends_leave();
    }
}

impl Process {
    /// Waits while send work is about to leave. The progress thread goes on with it: this thread may have been interrupted by
    /// a signal anywhere in a call, so it takes no lock that it may hold.
    fn let_sends_leave(&self) {
        let until = now_ns() + LEAVE_NS;
        let is_leaving =
            || !self.pending.raw().held_by_me() && self.pending.lock().iter().any(|work| work.is_leaving());
        while is_leaving() && now_ns() < until {
            self.hand_over();
            nap(LOOK);
        }
    }
}
