//! Threads and another process count in words of the range, each word one writer's, while it is adopted and reverted
//! 10,000 times. A counter that does not hold what its writer stored last is a lost write.

use crate::{Memory, PAGE, adoption, fork, wait};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Words of a page; each writer has one in each.
const STRIDE: usize = PAGE;
const COUNTER_A: usize = 8;
const COUNTER_B: usize = 2048;
const READ_INTO: usize = 1024;
const WRITTEN_FROM: usize = 1032;
const BY_VM: usize = 3072;
const BY_MAPPING: usize = 4088;

/// The gate as the other process sees it.
#[derive(Default)]
#[repr(C)]
struct Gate {
    closed: AtomicU32,
    in_flight: AtomicU32,
    adopted: AtomicU32,
    end: AtomicU32,
    rounds: AtomicU64,
    rounds_mapped: AtomicU64,
}

impl Gate {
    fn shared() -> &'static Gate {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: fresh zeroed memory, never unmapped, and zero is valid for atomics.
        unsafe { &*libc::mmap(std::ptr::null_mut(), PAGE, 3, flags, -1, 0).cast::<Gate>() }
    }

    fn close(&self) {
        self.closed.store(1, Ordering::SeqCst);
        while self.in_flight.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }

    /// Lets the peer in; now and then waits until it has been there.
    fn open(&self, wait: bool) {
        let seen = self.rounds.load(Ordering::SeqCst);
        self.closed.store(0, Ordering::SeqCst);
        while wait && self.rounds.load(Ordering::SeqCst) == seen && self.end.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }

    fn enter(&self) -> bool {
        self.in_flight.store(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) == 0 {
            return true;
        }
        self.in_flight.store(0, Ordering::SeqCst);
        false
    }

    fn leave(&self) {
        self.in_flight.store(0, Ordering::SeqCst);
    }
}

fn word<'a>(at: usize) -> &'a AtomicU64 {
    // SAFETY: an aligned word of memory that outlives the threads and the child.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }
}

/// Counts by plain load and store, so that a write that is lost or comes back shows at the next round.
fn count(at: usize, expected: u64) -> Result<(), String> {
    let found = word(at).load(Ordering::Relaxed);
    if found != expected {
        return Err(format!("word at {at:#x} holds {found}, stored was {expected}"));
    }
    word(at).store(expected + 1, Ordering::Relaxed);
    Ok(())
}

fn counter(memory: &Memory, offset: usize, end: &AtomicBool) -> Result<u64, String> {
    let mut n = 0;
    while !end.load(Ordering::Relaxed) {
        for page in (0..memory.len).step_by(STRIDE) {
            count(memory.base + page + offset, n)?;
        }
        n += 1;
    }
    Ok(n)
}

/// The kernel writes into the range and reads from it on behalf of this thread.
fn caller(memory: &Memory, end: &AtomicBool) -> Result<u64, String> {
    let mut pipe = [0; 2];
    // SAFETY: fills the two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let (mut n, size) = (0u64, 8);
    while !end.load(Ordering::Relaxed) {
        for page in (0..memory.len).step_by(STRIDE) {
            let (into, from) = (memory.base + page + READ_INTO, memory.base + page + WRITTEN_FROM);
            let mut back = 0u64;
            count(from, n)?;
            // SAFETY: words of the range and of this stack; the pipe holds 16 bytes at most.
            let done = unsafe {
                [
                    libc::write(pipe[1], (&raw const n).cast(), size),
                    libc::read(pipe[0], into as *mut _, size),
                    libc::write(pipe[1], from as *const _, size),
                    libc::read(pipe[0], (&raw mut back).cast(), size),
                ]
            };
            if done != [8; 4] {
                return Err(format!("a system call on the range failed: {done:?} {}", std::io::Error::last_os_error()));
            }
            if back != n + 1 || word(into).load(Ordering::Relaxed) != n {
                return Err(format!(
                    "read() left {}, write() took {back}, wanted {n}",
                    word(into).load(Ordering::Relaxed)
                ));
            }
        }
        n += 1;
    }
    Ok(n)
}

/// One remote increment by process_vm calls.
fn vm_count(pid: i32, at: usize, expected: u64) -> bool {
    let value = AtomicU64::new(0);
    let local = libc::iovec { iov_base: value.as_ptr().cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: 8 };
    // SAFETY: a word of this stack; the kernel checks the other.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if read != 8 || value.swap(expected + 1, Ordering::Relaxed) != expected {
        return false;
    }
    // SAFETY: as above.
    unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) == 8 }
}

/// The peer: behind the gate, by process_vm calls into some words, and into others through the mapping when there is
/// one.
fn peer(gate: &Gate, parent: i32, memory: &Memory, object: usize) -> bool {
    let mut n = 0;
    loop {
        for page in (0..memory.len).step_by(STRIDE) {
            while !gate.enter() {
                // SAFETY: no arguments. Not std's, which may allocate.
                unsafe { libc::sched_yield() };
            }
            let mapped = gate.adopted.load(Ordering::SeqCst) == 1;
            let at = memory.base + page;
            let good = vm_count(parent, at + BY_VM, n)
                && if mapped {
                    count(object + page + BY_MAPPING, n).is_ok()
                } else {
                    vm_count(parent, at + BY_MAPPING, n)
                };
            gate.leave();
            if !good {
                gate.end.store(1, Ordering::SeqCst);
                return false;
            }
            gate.rounds_mapped.fetch_add(u64::from(mapped), Ordering::Relaxed);
            gate.rounds.fetch_add(1, Ordering::Relaxed);
        }
        n += 1;
        if gate.end.load(Ordering::SeqCst) == 1 {
            return true;
        }
    }
}

fn map_peer(fd: i32, offset: u64, len: usize) -> usize {
    // SAFETY: a fresh mapping.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, 3, libc::MAP_SHARED, fd, offset as libc::off_t) };
    assert_ne!(p, libc::MAP_FAILED);
    p as usize
}

fn hammer(len: usize, unaligned: (usize, usize), cycles: usize) {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(len);
    let (addr, n) = (memory.base + unaligned.0, len - unaligned.0 - unaligned.1);
    let first = adoption.adopt(addr, n).unwrap();
    // The peer's mapping stays, as a peer's does; the parent has it too, so that the child inherits it.
    let object = map_peer(first.object.fd(), first.offset & !4095, len);
    adoption.revert(first);
    let before = memory.vmas().len();
    let gate = Gate::shared();
    // SAFETY: no arguments; the second lets the child write here under Yama.
    let parent = unsafe {
        libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::MAX, 0, 0, 0);
        libc::getpid()
    };
    let child = fork(|| peer(gate, parent, &memory, object));
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads = [
            scope.spawn(|| counter(&memory, COUNTER_A, &end)),
            scope.spawn(|| counter(&memory, COUNTER_B, &end)),
            scope.spawn(|| caller(&memory, &end)),
        ];
        for cycle in 0..cycles {
            gate.close();
            let adopted = adoption.adopt(addr, n).unwrap();
            gate.adopted.store(1, Ordering::SeqCst);
            gate.open(cycle % 64 == 0);
            gate.close();
            adoption.revert(adopted);
            gate.adopted.store(0, Ordering::SeqCst);
            gate.open(cycle % 64 == 32);
            if cycle % 64 == 1 && threads.iter().any(|t| t.is_finished()) {
                break;
            }
        }
        gate.end.store(1, Ordering::SeqCst);
        end.store(true, Ordering::SeqCst);
        for thread in threads {
            let rounds = thread.join().unwrap();
            assert!(rounds.as_ref().is_ok_and(|&n| n > 0), "{rounds:?}");
        }
    });
    assert!(wait(child), "a write of the peer was lost");
    let (rounds, mapped) = (gate.rounds.load(Ordering::SeqCst), gate.rounds_mapped.load(Ordering::SeqCst));
    eprintln!("{len} bytes, {cycles} cycles: {rounds} remote writes in turn, {mapped} of them mapped");
    assert_eq!(memory.vmas().len(), before, "{:?}", memory.vmas());
}

#[test]
fn no_write_to_one_page_is_lost() {
    hammer(PAGE, (16, 0), 5000);
}

#[test]
fn no_write_to_64_kib_that_begin_and_end_within_pages_is_lost() {
    hammer(17 * PAGE, (2000, 2096), 4000);
}

#[test]
fn no_write_to_megabytes_is_lost() {
    hammer(3 << 20, (0, 1), 1000);
}
