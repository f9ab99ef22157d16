//! The slice that the kernel's scheduler gives a thread of Vervain's own: short, so that it soon runs beside programs that compute.
//!
//! A thread that wakes runs at once only if its deadline is before that of who is running, and a deadline is one slice away: with the
//! default, 1 to 3 ms, a peer that spins keeps an answer of 2 µs waiting for a whole slice. A short one takes nothing from others in
//! the long run, for the share of each thread is as before, and needs no right (sched(7), sched_setattr(2); Linux 6.12).

/// Threads of Vervain's work for some microseconds at a time. 100 µs is the least that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// struct sched_attr of sched_setattr(2), its first version.
#[repr(C)]
#[derive(Default)]
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

/// Gives the calling thread a short slice, where the kernel knows slices and the thread is scheduled as most are; all else that its
/// program has chosen, such as its nice value, stays.
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
    // SAFETY: the kernel reads the struct. What it refuses stays as it was.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

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
