//! Threads of Vervain's own: no signal of the program's is delivered to them, and the kernel's scheduler gives them a
//! short slice, so that they soon run beside programs that compute.
//!
//! A thread that wakes runs at once only if its deadline is before that of who is running, and a deadline is one slice
//! away: with the default, 1 to 3 ms, a peer that spins keeps an answer of 2 µs waiting for a whole slice. A short one
//! takes nothing from others in the long run, for the share of each thread is as before, and needs no right (sched(7),
//! sched_setattr(2); Linux 6.12).

use std::marker::PhantomData;
use std::thread::{self, JoinHandle};
use std::{io, mem, ptr};

/// Threads of Vervain's work for some microseconds at a time. 100 µs is the least that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// struct sched_attr of sched_setattr(2), its first version.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Gives the calling thread a short slice, where the kernel knows slices and the thread is scheduled as most are; all
/// else that its program has chosen, such as its nice value, stays.
pub fn shorten_slice() {
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    // SAFETY: the kernel fills at most `size` bytes of a struct of that size, of integers only.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    let is_fair = [libc::SCHED_OTHER, libc::SCHED_BATCH].iter().any(|policy| attributes.policy == *policy as u32);
    // A kernel that has no slices says 0; one that has a shorter slice has been told so.
    if got != 0 || !is_fair || attributes.runtime <= SLICE_NS {
        return;
    }
    attributes.size = size;
    attributes.runtime = SLICE_NS;
    // SAFETY: the kernel reads the struct. If it refuses, nothing changes.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Has the calling thread's rests and timeouts end when they are over. By default the kernel lets each of them end up
/// to 50 µs later, so that several wake the processor once (PR_SET_TIMERSLACK(2const)): a look meant for 20 µs from now
/// comes after 70.
pub fn keep_time() {
    const SLACK_NS: libc::c_ulong = 1;
    const UNUSED: libc::c_ulong = 0;
    // SAFETY: of the calling thread, by a plain number. All five arguments are given: valgrind looks at each of them.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS, UNUSED, UNUSED, UNUSED) };
}

/// A thread that runs before all ordinary threads for as long as this lives, if the user has that right; else it has a
/// short slice. For threads that work for microseconds at a time while others wait for them. Threads that it starts
/// meanwhile are ordinary ones.
#[derive(Debug)]
pub struct First {
    before: Option<Attributes>,
    /// It is the thread's that has made it.
    _thread: PhantomData<*const ()>,
}

impl First {
    /// The calling thread.
    pub fn of_this_thread() -> First {
        /// SCHED_FLAG_RESET_ON_FORK of linux/sched.h.
        const RESET_ON_FORK: u64 = 1;
        let size = size_of::<Attributes>() as u32;
        let mut before = Attributes::default();
        // SAFETY: the kernel fills at most `size` bytes of a struct of that size, of integers only.
        let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut before, size, 0) };
        before.size = size;
        let first = Attributes {
            size,
            policy: libc::SCHED_FIFO as u32,
            flags: RESET_ON_FORK,
            priority: 1,
            ..Attributes::default()
        };
        // SAFETY: the kernel reads the struct. If it refuses, nothing changes.
        let is_first = got == 0 && unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const first, 0) } == 0;
        if !is_first {
            shorten_slice();
        }
        First { before: is_first.then_some(before), _thread: PhantomData }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_sched_setattr, 0, ptr::from_ref(before), 0) };
        }
    }
}

/// Starts a thread of the library's own, with a stack of `stack` bytes and a short slice, that no signal of the
/// program's is delivered to. SIGSEGV and SIGBUS are let in even if the caller blocks them: Vervain's device meets
/// faults where the program has taken registered memory away, and the kernel ends a process whose thread blocks the
/// signal of its fault.
///
/// # Errors
/// There is no thread to be had.
pub fn spawn(name: &str, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // SAFETY: two sets of signals of this thread, of which the second is filled before it is read.
    let (mut all, mut old) = unsafe { (mem::zeroed(), mem::zeroed()) };
    // SAFETY: valid places; the mask is put back below.
    unsafe {
        libc::sigfillset(&mut all);
        libc::sigdelset(&mut all, libc::SIGSEGV);
        libc::sigdelset(&mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
    }
    let thread = thread::Builder::new().name(name.into()).stack_size(stack).spawn(|| {
        shorten_slice();
        body();
    });
    // SAFETY: the mask from before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, ptr::null_mut()) };
    thread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_keeps_time_has_no_slack() {
        let kept = thread::spawn(|| {
            keep_time();
            // SAFETY: of the calling thread; it returns a number.
            unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
        });
        assert_eq!(kept.join().unwrap(), 1);
    }

    #[test]
    fn a_thread_of_the_librarys_own_gets_no_signals() {
        spawn("quiet", 64 << 10, || {
            // SAFETY: a set that the call fills.
            let blocked = unsafe {
                let mut set = mem::zeroed();
                libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &mut set);
                [libc::SIGINT, libc::SIGUSR1, libc::SIGALRM].map(|signal| libc::sigismember(&raw const set, signal))
            };
            assert_eq!(blocked, [1; 3]);
        })
        .expect("a thread")
        .join()
        .expect("the thread's own checks");
        // SAFETY: as above.
        let own = unsafe {
            let mut set = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &mut set);
            libc::sigismember(&raw const set, libc::SIGINT)
        };
        assert_eq!(own, 0, "the mask of who starts it is as before");
    }

    #[test]
    fn a_thread_of_the_librarys_own_takes_faults_that_its_starter_blocks() {
        thread::spawn(|| {
            // SAFETY: a set that the first call fills; the mask is this thread's, which ends with the test.
            unsafe {
                let mut all = mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut());
            }
            let body = || {
                // SAFETY: a set that the call fills.
                let blocked = unsafe {
                    let mut set = mem::zeroed();
                    libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &mut set);
                    [libc::SIGSEGV, libc::SIGBUS, libc::SIGINT].map(|signal| libc::sigismember(&raw const set, signal))
                };
                assert_eq!(blocked, [0, 0, 1]);
            };
            spawn("faults", 64 << 10, body).expect("a thread").join().expect("the thread's own checks");
        })
        .join()
        .expect("the starter's own checks");
    }

    fn attributes() -> Attributes {
        let mut attributes = Attributes::default();
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of::<Attributes>() as u32, 0) };
        attributes
    }

    #[test]
    fn the_slice_becomes_short_and_nothing_else_changes() {
        std::thread::spawn(|| {
            // SAFETY: of this thread only, which may always be nicer.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::syscall(libc::SYS_gettid) as u32, 7) };
            let before = attributes();
            shorten_slice();
            let after = attributes();
            let rest = |a: &Attributes| (a.policy, a.flags, a.nice, a.priority);
            assert_eq!(rest(&before), rest(&after));
            assert_eq!(after.nice, 7);
            // Before Linux 6.12 there are no slices.
            assert_eq!(after.runtime, before.runtime.min(SLICE_NS));
        })
        .join()
        .expect("the thread's own checks");
    }

    #[test]
    fn a_thread_is_first_for_a_while() {
        std::thread::spawn(|| {
            let of = |a: &Attributes| (a.policy, a.nice, a.priority, a.runtime);
            let before = attributes();
            let first = First::of_this_thread();
            let meanwhile = attributes();
            // A user may have no right to it.
            assert!(meanwhile.policy == libc::SCHED_FIFO as u32 || meanwhile.runtime <= before.runtime);
            let of_child = std::thread::spawn(|| attributes().policy).join().expect("its policy");
            assert_eq!(of_child, libc::SCHED_OTHER as u32);
            let was_first = first.before.is_some();
            drop(first);
            assert!(!was_first || of(&attributes()) == of(&before));
        })
        .join()
        .expect("the thread's own checks");
    }

    #[test]
    fn a_thread_that_is_not_scheduled_fairly_is_left_alone() {
        std::thread::spawn(|| {
            let idle = libc::sched_param { sched_priority: 0 };
            // SAFETY: of this thread only.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const idle) }, 0);
            let before = attributes();
            shorten_slice();
            assert_eq!((attributes().policy, attributes().runtime), (libc::SCHED_IDLE as u32, before.runtime));
        })
        .join()
        .expect("the thread's own checks");
    }
}
