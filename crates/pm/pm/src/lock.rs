//! The lock of a context. Each call of the program's takes it once and holds it for some 100 ns; the context's own
//! thread does seldom. So giving it back is a plain store, and who waits looks again by itself: a mutex that wakes
//! waiters needs a second exchange in each call.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// How often it is looked at before the processor is given away, and how often that is before the thread sleeps.
const SPINS: u32 = 200;
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);

/// A value that one thread at a time has, in the order in which they have asked: a program that polls would leave the
/// thread no gap otherwise.
pub(crate) struct Lock<T> {
    /// The ticket of the next thread that asks, and that of the thread that has it.
    next: AtomicU32,
    serving: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, of which there is one at a time; a guard hands it from thread to
// thread.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self { next: AtomicU32::new(0), serving: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        if self.serving.load(Ordering::Acquire) != ticket {
            self.wait(ticket);
        }
        Guard(self)
    }

    #[cold]
    fn wait(&self, ticket: u32) {
        let mut tries = 0;
        while self.serving.load(Ordering::Acquire) != ticket {
            tries += 1;
            if tries < SPINS {
                std::hint::spin_loop();
            } else if tries < SPINS + YIELDS {
                thread::yield_now();
            } else {
                thread::sleep(NAP);
            }
        }
    }
}

/// The value, until this is dropped.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock while the guard lives.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed for as long.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Only the holder writes this.
        self.0.serving.store(self.0.serving.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_has_it_before_who_has_it_and_asks_again() {
        let lock = Lock::new(0u64);
        thread::scope(|scope| {
            let mut value = lock.lock();
            let other = scope.spawn(|| *lock.lock() = 1);
            while lock.next.load(Ordering::Relaxed) < 2 {
                thread::yield_now();
            }
            *value = 2;
            drop(value);
            assert_eq!(*lock.lock(), 1);
            other.join().expect("it has had its turn");
        });
    }

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let lock = Lock::new(0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut value = lock.lock();
                        let seen = *value;
                        std::hint::black_box(&mut value);
                        *value = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }
}
