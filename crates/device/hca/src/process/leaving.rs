//! The end of the program: what it has posted leaves first, as an adapter would have sent it by then, and what it has
//! received is acknowledged. [`Process::serve`] installs it.

use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use crate::process::Process;
use std::sync::Once;
use std::time::Duration;

/// Limit of the wait at the end, in nanoseconds, and the time between two looks.
const LEAVE_NS: u64 = 1_000_000_000;
const LOOK: Duration = Duration::from_micros(100);

/// Has all leave when the program calls exit(3) or returns from main. A forked child has its parent's functions of
/// atexit(3).
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler may run at any time when the process ends, or this library is unloaded.
    ONCE.call_once(|| _ = unsafe { libc::atexit(at_exit) });
}

extern "C" fn at_exit() {
    if let Some(process) = Process::current().filter(|process| process.is_current()) {
        let_all_leave(process);
    }
}

/// Waits while send work or an acknowledgement is about to leave, or a piece of an initiator's request is being moved,
/// of which the program may have seen the end. Others go on with them: this thread may have been interrupted by a
/// signal anywhere in a call, so it waits for no lock, which it may hold.
fn let_all_leave(process: &Process) {
    let until = now_ns() + LEAVE_NS;
    // Carriers after the send work, some of which may wait there for other packets by then.
    let is_leaving = || process.send_work.is_any_leaving() | !process.packets.shut_down() | process.lanes.is_serving();
    while is_leaving() && now_ns() < until {
        process.hand_over();
        nap(LOOK);
    }
}
