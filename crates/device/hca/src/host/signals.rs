//! Signals held off: a handler may end the calling thread (a raw `exit` system call, `pthread_exit`), and a lock of the
//! C library that the thread has then stays taken for ever. The verbs that programs call beside their traffic hold them
//! off where they take one: the allocator's in a registration and where a queue grows, the dynamic linker's where a
//! thread first counts or waits. Others, such as those that create objects, do not.

use core::ffi::c_int;
use std::cell::Cell;
use std::mem::MaybeUninit;

thread_local! {
    /// While the calling thread holds signals off: its mask from before, and its mask since. It has no destructor, so
    /// that the C library registers none.
    static MASKS: Cell<Option<(Mask, Mask)>> = const { Cell::new(None) };
}

/// Signals that the thread's own instructions and system calls raise, SIGSYS by a seccomp filter. If the thread blocks
/// one of them when it raises it, the kernel calls no handler and ends the process.
const SYNCHRONOUS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// While this lives the calling thread handles no signal; those that arrive are handled when it ends. Signals that the
/// thread itself raises, by a fault, a trap or a system call that a filter refuses, are exempt. A cancellation is
/// another matter ([`crate::host::cancel`]).
///
/// Two system calls. A wait in which the thread has no lock of the C library lets signals in (`while_let_in`).
#[must_use]
pub struct SignalsHeld {
    before: libc::sigset_t,
    is_outer: bool,
}

impl SignalsHeld {
    /// Begins it; may be nested.
    pub fn begin() -> SignalsHeld {
        let held = all_but(&SYNCHRONOUS);
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets live on this stack; pthread_sigmask, which cannot fail with a valid `how`, sets all of the
        // second.
        let before = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, before.as_mut_ptr());
            before.assume_init()
        };
        let is_outer = MASKS.get().is_none();
        if is_outer {
            let mask = Mask::of(&before);
            MASKS.set(Some((mask, Mask(mask.0 | Mask::of(&held).0))));
        }
        SignalsHeld { before, is_outer }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        if self.is_outer {
            MASKS.set(None);
        }
        // SAFETY: the set that `begin` was given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// The signals 1 to 64 of a set, a bit each.
#[derive(Clone, Copy)]
struct Mask(u64);

impl Mask {
    fn of(set: &libc::sigset_t) -> Mask {
        // SAFETY: in both C libraries a set begins with these 64 bits, as the kernel has them (`man 2 sigprocmask`).
        Mask(unsafe { std::ptr::from_ref(set).cast::<u64>().read() })
    }

    fn to_set(self) -> libc::sigset_t {
        // SAFETY: all zeros is the empty set; its first 64 bits as above.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            (&raw mut set).cast::<u64>().write(self.0);
            set
        }
    }
}

/// Runs `wait` with the signals let in that a [`SignalsHeld`] holds off. The calling thread may wait for a thread that
/// stands in a handler until this one has handled the signal too: collectors of garbage and checkpoints stop all
/// threads so. If anything else holds signals off besides, none is let in.
pub(crate) fn while_let_in(wait: impl FnOnce()) {
    let Some((before, since)) = MASKS.get() else { return wait() };
    let mut now = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: asks for the mask only, which sets all of it.
    let now = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    // It may lack some: an emulator keeps a few signals for itself.
    if Mask::of(&now).0 & !since.0 != 0 {
        return wait();
    }
    let before = before.to_set();
    // SAFETY: valid sets on this stack.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    wait();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const now, std::ptr::null_mut()) };
}

/// Blocks all signals in the calling thread, one of the library's own, but those of faults: these are let in even if
/// the thread that started this one blocks them, for [`crate::host::guarded`] needs their handler.
pub(crate) fn block_all_but_faults() {
    let blocked = all_but(&vervain_share::faults::SIGNALS);
    // SAFETY: a valid set on this stack.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, std::ptr::null_mut()) };
}

/// All signals that can be blocked, without `signals`: just the bits that the kernel has in the mask afterwards.
fn all_but(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set lives on this stack; sigfillset sets all of it.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in [libc::SIGKILL, libc::SIGSTOP].iter().chain(signals) {
            libc::sigdelset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
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
    fn a_wait_lets_in_what_is_held_but_not_what_is_blocked_besides() {
        let block = |how, signal| {
            // SAFETY: a set on this stack, of one signal.
            unsafe {
                let mut one: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut one, signal);
                libc::pthread_sigmask(how, &raw const one, std::ptr::null_mut());
            }
        };
        let here = || [libc::SIGWINCH, libc::SIGUSR2].map(is_blocked);
        block(libc::SIG_BLOCK, libc::SIGUSR2);
        let held = SignalsHeld::begin();
        let nested = SignalsHeld::begin();
        while_let_in(|| assert_eq!(here(), [false, true], "the program's own mask"));
        assert_eq!(here(), [true, true]);
        drop(nested);
        block(libc::SIG_BLOCK, libc::SIGTRAP);
        while_let_in(|| assert_eq!(here(), [true, true], "somebody else holds them off too"));
        block(libc::SIG_UNBLOCK, libc::SIGTRAP);
        drop(held);
        while_let_in(|| assert_eq!(here(), [false, true]));
        block(libc::SIG_UNBLOCK, libc::SIGUSR2);
    }

    /// Whether the calling thread blocks a signal.
    fn is_blocked(signal: c_int) -> bool {
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: asks for the mask only, which sets all of it.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn what_the_thread_itself_raises_is_not_held() {
        let _held = SignalsHeld::begin();
        assert!(is_blocked(libc::SIGINT));
        assert_eq!(SYNCHRONOUS.map(is_blocked), [false; SYNCHRONOUS.len()]);
    }

    #[test]
    fn a_thread_of_the_librarys_own_takes_faults_that_its_starter_blocks() {
        std::thread::spawn(|| {
            let all = all_but(&[]);
            // SAFETY: a valid set on this stack; the mask is this thread's, which ends with the test.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
            assert!(is_blocked(libc::SIGSEGV));
            let own = std::thread::spawn(|| {
                block_all_but_faults();
                let faults = vervain_share::faults::SIGNALS.map(is_blocked);
                (faults, [libc::SIGINT, libc::SIGSYS].map(is_blocked))
            });
            assert_eq!(own.join().expect("a mask"), ([false; 2], [true; 2]));
        })
        .join()
        .expect("the thread's own checks");
    }
}
