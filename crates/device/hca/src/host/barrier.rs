//! Barriers of unequal sides. Each operation marks itself as in flight and then looks if it may be; rights are taken
//! away seldom. So the frequent side pays a compiler barrier, and the rare side makes every CPU that runs one of the
//! processes pass a full barrier (`man 2 membarrier`, about a microsecond). Measured here: a full barrier on the
//! frequent side costs 6 to 8 ns.
//!
//! Within a process MEMBARRIER_CMD_PRIVATE_EXPEDITED is that barrier (`heavy_here`). Between processes
//! MEMBARRIER_CMD_GLOBAL_EXPEDITED is not, for Linux (seen with 6.18) leaves CPUs out. It asks a note of each CPU,
//! which is made when a process comes to it from another, and deleted when a thread ends there. If a thread of the same
//! process is the next on that CPU, or if the process registered while it rested there, the note stays deleted. So
//! [`heavy`] also waits until a store must have left its CPU.
//!
//! Both sides have to agree: a process notes in its arena that it uses [`heavy`], and a peer relies on it only if the
//! peer itself is registered to be interrupted. If the kernel or a seccomp filter refuses, both sides use full fences.

use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::time::Duration;

const CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Nanoseconds after which a store has left its CPU. Stores leave in order. Measured on a CPU with one of the largest
/// store buffers (112 entries), filled with stores to lines in no cache: 5 of 1,000,000 take longer than 3 us, none 6.
const STORES_HAVE_LEFT_NS: u64 = 20_000;

/// What [`register`] asks the kernel for.
const REGISTRATIONS: [libc::c_int; 2] = [CMD_REGISTER_GLOBAL_EXPEDITED, CMD_REGISTER_PRIVATE_EXPEDITED];

static REGISTERED: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the commands used here take no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process, and says whether it takes part from now on.
pub(crate) fn register() -> bool {
    let works = REGISTRATIONS.into_iter().chain([CMD_GLOBAL_EXPEDITED, CMD_PRIVATE_EXPEDITED]).all(membarrier);
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

/// The rare side, between processes: a thread that does not see the stores before it has itself stored its mark before
/// it. Takes 20 us.
pub fn heavy() {
    let began = now_ns();
    fence(Ordering::SeqCst);
    if is_registered() {
        // In both cases stores of some CPUs leave in their own time.
        interrupt(CMD_GLOBAL_EXPEDITED);
        interrupt(CMD_PRIVATE_EXPEDITED);
        while now_ns() - began < STORES_HAVE_LEFT_NS {
            spin_loop();
        }
    }
    fence(Ordering::SeqCst);
}

/// The rare side, within this process: as [`heavy`], at once.
pub(crate) fn heavy_here() {
    fence(Ordering::SeqCst);
    if is_registered() {
        interrupt(CMD_PRIVATE_EXPEDITED);
    }
    fence(Ordering::SeqCst);
}

/// Has CPUs pass a full barrier, or waits for as long as any store may take.
fn interrupt(command: libc::c_int) {
    if !is_done(command, membarrier) {
        // It worked at the start, so a seccomp filter came later. Peers rely on the barrier; a store leaves its CPU's
        // store buffer within microseconds, and a millisecond outlasts that by far.
        nap(Duration::from_millis(1));
    }
}

/// Returns false if the kernel refuses `command`, also after this process has registered again: one that was restored
/// from a checkpoint may have lost its registration.
fn is_done(command: libc::c_int, mut membarrier: impl FnMut(libc::c_int) -> bool) -> bool {
    membarrier(command) || REGISTRATIONS.into_iter().all(&mut membarrier) && membarrier(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;

    /// Store buffering: without the heavy side both would now and then miss the other's store. Threads of other tests
    /// end meanwhile, after which GLOBAL_EXPEDITED alone leaves their CPU out.
    fn one_sees_the_other(rounds: u64, heavy: fn()) {
        let (x, y) = (AtomicU64::new(0), AtomicU64::new(0));
        let start = Barrier::new(2);
        let side = |own: &AtomicU64, other: &AtomicU64, barrier: fn()| -> Vec<u64> {
            start.wait();
            let round = |round| {
                own.store(round, Ordering::Relaxed);
                barrier();
                let seen = other.load(Ordering::Relaxed);
                while other.load(Ordering::Acquire) < round {
                    spin_loop();
                }
                seen
            };
            (1..=rounds).map(round).collect()
        };
        let (a, b) = std::thread::scope(|s| {
            let frequent = s.spawn(|| side(&x, &y, || light(false)));
            let rare = s.spawn(|| side(&y, &x, heavy));
            (frequent.join().unwrap(), rare.join().unwrap())
        });
        for (round, (a, b)) in (1..).zip(a.iter().zip(&b)) {
            assert!(*a >= round || *b >= round, "round {round}: neither side saw the other");
        }
    }

    #[test]
    fn one_of_two_sides_sees_the_other() {
        if !register() {
            vervain_skip::skip("the kernel has no expedited membarrier");
            return;
        }
        one_sees_the_other(10_000, heavy_here);
        one_sees_the_other(1_000, heavy);
    }

    #[test]
    fn a_process_whose_registration_is_lost_registers_again() {
        for may_register in [true, false] {
            let (mut is_registered, mut calls) = (false, Vec::new());
            let kernel = |command| {
                calls.push(command);
                let done = if REGISTRATIONS.contains(&command) { may_register } else { is_registered };
                is_registered |= command == CMD_REGISTER_PRIVATE_EXPEDITED && may_register;
                done
            };
            assert_eq!(is_done(CMD_PRIVATE_EXPEDITED, kernel), may_register);
            assert_eq!(calls.len(), if may_register { 4 } else { 2 }, "{calls:?}");
        }
    }
}
