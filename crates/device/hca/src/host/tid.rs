//! The calling thread's own words: its id, without a system call, the number of polls that found completions, and its
//! counters; without a call into the dynamic linker.
//!
//! A `thread_local!` of a shared library is reached through `__tls_get_addr`, some thirty instructions each time, and
//! every lock asks for the id. The words are therefore placed and read by hand in the initial-exec model (`arch`):
//! sixteen bytes of the static TLS block, of which the C library keeps a reserve for libraries that are loaded late.

use crate::host::arch::word;
use vervain_counters::Line;

/// The calling thread's id as the kernel counts it.
#[inline(always)]
pub fn tid() -> u32 {
    match word::get() {
        0 => ask(),
        tid => tid,
    }
}

/// The id of a thread that has asked before, as each thread has that has taken a lock; else 0.
#[inline(always)]
pub fn known() -> u32 {
    word::get()
}

#[cold]
#[inline(never)]
fn ask() -> u32 {
    // SAFETY: gettid has no arguments and cannot fail.
    let tid = unsafe { libc::gettid() } as u32;
    word::set(tid);
    tid
}

/// The number of polls of the calling thread that have found a completion, modulo 2³².
#[inline(always)]
pub(crate) fn found() -> u32 {
    word::found()
}

/// One more has.
#[inline(always)]
pub(crate) fn count_found() {
    word::count_found();
}

/// The counters of the calling thread; null before it has counted anything.
#[inline(always)]
pub(crate) fn lines() -> *const Line {
    word::lines()
}

/// Says where.
pub(crate) fn set_lines(lines: *const Line) {
    word::set_lines(lines);
}

/// Forgets the id and where it counts; the only thread of a forked child has a new id, and what its parent counts in is
/// not there.
pub(crate) fn forget() {
    word::set(0);
    word::set_lines(std::ptr::null());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        let mine = tid();
        let theirs = std::thread::spawn(|| (tid(), tid())).join().unwrap();
        assert_eq!(theirs.0, theirs.1);
        assert_ne!(mine, theirs.0);
        // SAFETY: gettid cannot fail.
        assert_eq!(mine, unsafe { libc::gettid() } as u32);
        (0..3).for_each(|_| count_found());
        assert_eq!((found(), std::thread::spawn(found).join().unwrap()), (3, 0));
        assert_eq!(tid(), mine);
    }
}
