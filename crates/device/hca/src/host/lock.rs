//! A mutex that a dying thread cannot keep: the word holds the owner's thread id, and a thread that waits long checks
//! that the owner still exists. Verbs objects must stay usable when a thread of the program ends inside a verbs call
//! (`pthread_exit` in a signal handler, a raw `exit` system call); `std::sync::Mutex` would hang the others for ever.
//!
//! Used inside one process only. Nothing shared with another process is ever locked (DESIGN decision 2).

use crate::host::tid::tid;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// How often the word is tried before the thread gives its CPU away.
const SPINS: u32 = 200;
/// How often it gives its CPU away before it sleeps.
const YIELDS: u32 = 64;
/// How often the word is tried by a caller that does not wait.
const BRIEF_TRIES: u32 = 1000;
/// First and longest sleep between two tries. The guarded work takes microseconds, at most about 100 for a long copy.
const FIRST_NAP_NS: u32 = 20_000;
const LAST_NAP_NS: u32 = 1_000_000;

/// The lock word alone, for callers that hold it across several calls (`ibv_wr_start` … `ibv_wr_complete`).
///
/// Taking it is one exchange, giving it back a plain store: an unlock wakes no thread, waiters look again by
/// themselves. A futex would need a second exchange in each unlock, some 6 ns, to save time only when two threads post
/// on one object.
#[derive(Default)]
pub struct RawLock {
    word: AtomicU32,
}

impl RawLock {
    /// Takes the lock. Returns true when it was taken from a thread that no longer exists, so that what it guards may
    /// be torn. The exchange that takes it comes last: where it is a full barrier (`EXCHANGES_ARE_BARRIERS`), a Read
    /// relies on it to come behind what was stored in earlier calls.
    #[inline]
    pub fn lock(&self) -> bool {
        if self.word.compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return false;
        }
        self.lock_slow()
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0
            && self.word.compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Returns true if the calling thread holds it.
    pub fn held_by_me(&self) -> bool {
        self.word.load(Ordering::Relaxed) == tid()
    }

    /// Returns true if a caller that did not get it may get it later: it has been given back since, or another thread
    /// holds it, which exists. For one that may have been interrupted by a signal while it held it itself: to wait for
    /// that makes no sense.
    pub fn comes_free(&self) -> bool {
        let holder = self.word.load(Ordering::Relaxed);
        holder == 0 || holder != tid() && thread_exists(holder)
    }

    /// Returns true if it is held by a thread that no longer exists.
    pub fn holder_is_gone(&self) -> bool {
        let holder = self.word.load(Ordering::Relaxed);
        // One that gave it back and then ended was not holding it.
        holder != 0 && !thread_exists(holder) && self.word.load(Ordering::Acquire) == holder
    }

    /// Gives the lock back.
    #[inline]
    pub fn unlock(&self) {
        self.word.store(0, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self) -> bool {
        let me = tid();
        let mut tries = 0;
        let mut nap = FIRST_NAP_NS;
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            if seen == 0 && self.word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return false;
            }
            tries += 1;
            if tries < SPINS {
                std::hint::spin_loop();
            } else if tries < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                crate::host::cancel::nap(std::time::Duration::from_nanos(nap.into()));
                nap = (nap * 2).min(LAST_NAP_NS);
                // Only an owner that is still the same after many naps is worth the question.
                if nap == LAST_NAP_NS
                    && seen != 0
                    && !thread_exists(seen)
                    && self.word.compare_exchange(seen, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    return true;
                }
            }
        }
    }
}

fn thread_exists(tid: u32) -> bool {
    // SAFETY: signal 0 sends nothing; it only asks whether the thread exists in this process.
    let rc = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid as libc::pid_t, 0) };
    rc == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// A value behind a [`RawLock`].
#[derive(Default)]
pub struct OwnerLock<T> {
    raw: RawLock,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Sync for OwnerLock<T> {}
// SAFETY: the value moves with the lock.
unsafe impl<T: Send> Send for OwnerLock<T> {}

impl<T> OwnerLock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        OwnerLock { raw: RawLock { word: AtomicU32::new(0) }, value: UnsafeCell::new(value) }
    }

    /// Takes the lock, from a dead owner if need be.
    #[inline]
    pub fn lock(&self) -> OwnerGuard<'_, T> {
        let stolen = self.raw.lock();
        OwnerGuard { lock: self, stolen }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<OwnerGuard<'_, T>> {
        // Not `then_some`: that would make the guard first and drop it, and so give back a lock that another thread
        // holds.
        self.raw.try_lock().then(|| OwnerGuard { lock: self, stolen: false })
    }

    /// Takes the lock if it gets free within some microseconds: for a caller that must not wait, such as a thread that
    /// holds the lock itself, interrupted by a signal.
    pub fn try_lock_briefly(&self) -> Option<OwnerGuard<'_, T>> {
        (0..BRIEF_TRIES).find_map(|_| {
            let guard = self.try_lock();
            if guard.is_none() {
                std::hint::spin_loop();
            }
            guard
        })
    }

    /// The word, for callers that keep the lock beyond one guard.
    pub fn raw(&self) -> &RawLock {
        &self.raw
    }

    /// The value, for a caller that holds the lock through [`OwnerLock::raw`].
    ///
    /// # Safety
    /// The calling thread holds the lock, and no guard or other reference to the value is alive.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        debug_assert!(self.raw.held_by_me());
        // SAFETY: the caller holds the lock and vouches that this is the only reference.
        unsafe { &mut *self.value.get() }
    }
}

/// Proof that the lock is held; gives it back when dropped.
pub struct OwnerGuard<'a, T> {
    lock: &'a OwnerLock<T>,
    stolen: bool,
}

impl<T> OwnerGuard<'_, T> {
    /// Returns true if the last owner died while it held the lock; the value may be torn.
    pub fn stolen(&self) -> bool {
        self.stolen
    }
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while this thread holds the lock, and is borrowed mutably here.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn threads_take_turns() {
        let lock = Arc::new(OwnerLock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || (0..20_000).for_each(|_| *lock.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn a_try_that_fails_leaves_the_lock_to_its_holder() {
        let lock = OwnerLock::new(0);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock_briefly().is_none());
        drop(held);
        assert!(lock.try_lock_briefly().is_some());
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_lock_comes_free_unless_this_thread_or_one_that_has_ended_holds_it() {
        let lock = OwnerLock::new(0);
        assert!(lock.raw().comes_free(), "it was given back between two looks");
        let held = lock.lock();
        assert!(!lock.raw().comes_free(), "this thread has it");
        std::thread::scope(|scope| scope.spawn(|| assert!(lock.raw().comes_free())).join().unwrap());
        drop(held);
        std::thread::scope(|scope| scope.spawn(|| std::mem::forget(lock.lock())).join().unwrap());
        // A thread that was joined may be there for a moment more.
        while lock.raw().comes_free() {
            std::thread::yield_now();
        }
        assert!(lock.try_lock().is_none(), "it has ended with the lock");
    }

    #[test]
    fn a_lock_is_taken_from_a_thread_that_ended_while_holding_it() {
        let lock = Arc::new(OwnerLock::new(7));
        let theirs = Arc::clone(&lock);
        std::thread::spawn(move || std::mem::forget(theirs.lock())).join().unwrap();
        let guard = lock.lock();
        assert!(guard.stolen());
        assert_eq!(*guard, 7);
    }
}
