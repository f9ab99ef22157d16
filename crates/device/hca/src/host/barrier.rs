//! Barriers of unequal sides. Each operation marks itself as in flight and then looks if it may be; rights are taken
//! away seldom. So the frequent side pays a compiler barrier, and the rare side makes every CPU that runs one of the
//! processes pass a full barrier (`man 2 membarrier`, MEMBARRIER_CMD_GLOBAL_EXPEDITED, about a microsecond). Measured
//! here: a full barrier on the frequent side costs 6 to 8 ns.
//!
//! Both sides have to agree: a process notes in its arena that it uses [`heavy`], and a peer relies on it only if the
//! peer itself is registered to be interrupted. If the kernel or a seccomp filter refuses, both sides use full fences.

use crate::host::cancel::nap;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

const CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

static REGISTERED: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the commands used here take no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process, and says whether it takes part from now on.
pub(crate) fn register() -> bool {
    let works = membarrier(CMD_REGISTER_GLOBAL_EXPEDITED) && membarrier(CMD_GLOBAL_EXPEDITED);
    REGISTERED.store(works, Ordering::Release);
    works
}

/// A forked child is not registered.
pub(crate) fn forget() {
    REGISTERED.store(false, Ordering::Release);
}

/// Returns true if this process takes part.
#[inline]
pub fn is_registered() -> bool {
    REGISTERED.load(Ordering::Relaxed)
}

/// The frequent side: all stores before it are visible before all loads after it, to the caller of [`heavy`]. `full` if
/// the other side does not call that, or if this process is not registered.
#[inline(always)]
pub(crate) fn light(full: bool) {
    if full {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The rare side: a thread that does not see the stores before it has itself stored its mark before it.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if is_registered() && !membarrier(CMD_GLOBAL_EXPEDITED) {
        // It worked at the start, so a seccomp filter came later. Peers rely on the barrier; a store leaves its CPU's
        // store buffer within microseconds, and a millisecond outlasts that by far.
        nap(std::time::Duration::from_millis(1));
    }
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;

    /// Store buffering: without the heavy side both would now and then miss the other's store.
    #[test]
    fn one_of_two_sides_sees_the_other() {
        if !register() {
            vervain_skip::skip("the kernel has no expedited membarrier");
            return;
        }
        static X: AtomicU64 = AtomicU64::new(0);
        static Y: AtomicU64 = AtomicU64::new(0);
        const ROUNDS: u64 = 20_000;
        let start = Barrier::new(2);
        let (a, b) = std::thread::scope(|s| {
            let frequent = s.spawn(|| {
                start.wait();
                (1..=ROUNDS)
                    .map(|round| {
                        X.store(round, Ordering::Relaxed);
                        light(false);
                        let seen = Y.load(Ordering::Relaxed);
                        while Y.load(Ordering::Acquire) < round {
                            std::hint::spin_loop();
                        }
                        seen
                    })
                    .collect::<Vec<_>>()
            });
            let rare = s.spawn(|| {
                start.wait();
                (1..=ROUNDS)
                    .map(|round| {
                        Y.store(round, Ordering::Relaxed);
                        heavy();
                        let seen = X.load(Ordering::Relaxed);
                        while X.load(Ordering::Acquire) < round {
                            std::hint::spin_loop();
                        }
                        seen
                    })
                    .collect::<Vec<_>>()
            });
            (frequent.join().unwrap(), rare.join().unwrap())
        });
        for (round, (a, b)) in (1..).zip(a.iter().zip(&b)) {
            assert!(*a >= round || *b >= round, "round {round}: neither side saw the other");
        }
    }
}
