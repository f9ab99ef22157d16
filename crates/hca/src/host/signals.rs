//! Signals held off: a handler may end the calling thread (a raw `exit` system call, `pthread_exit`), and a lock of the
//! C library that the thread has then stays taken for ever. The verbs that programs call again and again take none of
//! these, but for the allocator's in a registration, and the dynamic linker's where a thread first counts or waits.

use std::mem::MaybeUninit;

/// While this lives the calling thread handles no signal; those that arrive are handled when it ends. Signals of faults
/// ([`vervain_share::faults::SIGNALS`]) are exempt, and a cancellation is another matter ([`crate::host::cancel`]).
///
/// Two system calls.
#[must_use]
pub struct SignalsHeld {
    before: libc::sigset_t,
}

impl SignalsHeld {
    /// Begins it; may be nested.
    pub fn begin() -> SignalsHeld {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets live on this stack; sigfillset sets all of the first, and pthread_sigmask, which cannot
        // fail with a valid `how`, all of the second.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in vervain_share::faults::SIGNALS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            SignalsHeld { before: before.assume_init() }
        }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // SAFETY: the set that `begin` was given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_signal_is_handled_when_the_outer_one_ends() {
        let handled = || HANDLED.load(Ordering::Relaxed);
        // SAFETY: the handler adds to an atomic; no other test of this crate uses the signal.
        unsafe { libc::signal(libc::SIGURG, count as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        let outer = SignalsHeld::begin();
        let inner = SignalsHeld::begin();
        // SAFETY: sends a signal that has a handler to the calling thread.
        unsafe { libc::raise(libc::SIGURG) };
        drop(inner);
        assert_eq!(handled(), 0);
        drop(outer);
        assert_eq!(handled(), 1);
    }

    #[test]
    fn faults_are_not_held() {
        let _held = SignalsHeld::begin();
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: only asks for the mask.
        let now = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            now.assume_init()
        };
        for signal in vervain_share::faults::SIGNALS {
            // SAFETY: the set is valid.
            assert_eq!(unsafe { libc::sigismember(&raw const now, signal) }, 0, "{signal}");
        }
    }
}
