//! Cancellation of the program's threads (`man pthread_cancel`). A provider's post and poll are no cancellation points,
//! and programs rely on it: a thread that ended inside one would leave a lock taken and a queue half changed. So no
//! verb calls a C library function that is one (`man 7 pthreads`): the paths of post and poll make the system call
//! itself, and all that is rare, or not known to be free of them (`close` in a destructor), runs in [`Uncancelled`].
//! The exceptions are the waits of `ibv_get_cq_event` and `ibv_get_async_event`, during which nothing is held.

use crate::host::signals;
use core::ffi::{c_int, c_long};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    // Not in the libc crate.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Sets the calling thread's state; the one before. Takes no lock and makes no system call: two calls cost 9 ns.
fn set_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: sets an integer on this stack. The states given are PTHREAD_CANCEL_DISABLE and those that this has
    // returned.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// While this lives the calling thread is not cancelled: a request stays pending until its next cancellation point.
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// Begins it; may be nested.
    pub fn begin() -> Uncancelled {
        Uncancelled { before: set_state(PTHREAD_CANCEL_DISABLE) }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        set_state(self.before);
    }
}

/// A descriptor whose last owner may be a thread that posts or polls: closing it is no cancellation point.
pub(crate) struct Descriptor(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Descriptor {
        Descriptor(ManuallyDrop::new(fd))
    }
}

impl Deref for Descriptor {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let _whole = Uncancelled::begin();
        // SAFETY: once, here, after which nobody has it.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Sleeps; no cancellation point. Signals that a registration holds off are let in meanwhile.
pub fn nap(time: Duration) {
    let _whole = Uncancelled::begin();
    signals::while_let_in(|| std::thread::sleep(time));
}

/// write(2) of an integer, past the C library; whether all of it was written.
pub(crate) fn write<T: Integer>(fd: RawFd, message: T) -> bool {
    // SAFETY: reads the bytes of an integer on this stack.
    unsafe { libc::syscall(libc::SYS_write, fd, &raw const message, size_of::<T>()) == size_of::<T>() as c_long }
}

/// read(2) of an integer from a descriptor that does not block, past the C library.
pub(crate) fn take<T: Integer>(fd: RawFd) -> Option<T> {
    let mut message = T::default();
    // SAFETY: writes at most the bytes of an integer on this stack, each of whose values is valid.
    let n = unsafe { libc::syscall(libc::SYS_read, fd, &raw mut message, size_of::<T>()) };
    (n == size_of::<T>() as c_long).then_some(message)
}

/// The types that [`write`] and [`take`] move: every pattern of bytes is a value.
pub(crate) trait Integer: Copy + Default {}
impl Integer for u8 {}
impl Integer for u32 {}
impl Integer for u64 {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::lock::RawLock;
    use std::os::fd::AsRawFd;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Runs `f` in a thread that somebody has asked to end. A cancellation point in it ends the test.
    fn run_with_a_request_pending(f: impl FnOnce() + Send + 'static) {
        let asked = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let asked = Arc::clone(&asked);
            move || {
                while !asked.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                f();
                // The request is never granted: a Rust thread returns.
                std::mem::forget(Uncancelled::begin());
            }
        });
        // SAFETY: the thread lives: it waits for `asked`.
        unsafe { libc::pthread_cancel(thread.as_pthread_t()) };
        asked.store(true, Ordering::Release);
        thread.join().expect("the thread returns");
    }

    #[test]
    fn naps_locks_and_messages_are_no_cancellation_points() {
        run_with_a_request_pending(|| {
            nap(Duration::from_micros(10));
            let event = crate::host::eventfd::create().unwrap();
            crate::host::eventfd::wake(&event);
            assert_eq!(take::<u64>(event.as_raw_fd()), Some(1));
            let lock = RawLock::default();
            assert!(!lock.lock());
            // Waits until another thread gives it back, long enough for naps.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    nap(Duration::from_millis(20));
                    lock.unlock();
                });
                lock.lock();
            });
            drop(Descriptor::from(event));
        });
    }

    #[test]
    fn one_inside_another_ends_with_the_outer_one() {
        let outer = Uncancelled::begin();
        let inner = Uncancelled::begin();
        assert_eq!((outer.before, inner.before), (0, PTHREAD_CANCEL_DISABLE));
        drop(inner);
        assert_eq!(Uncancelled::begin().before, PTHREAD_CANCEL_DISABLE);
        drop(outer);
        assert_eq!(Uncancelled::begin().before, 0);
    }
}
