//! The times at which a thread whose polls of a CQ are empty offers its CPU to others.
//!
//! It may hold the CPU that its peer needs: on a machine with few cores, peers that spin would take turns by the
//! scheduler's tick, some milliseconds each. If it has a CPU for itself, each offer is a useless system call. The
//! result of the last offer shows which of the two holds:
//!
//! * The thread was back at once: nobody else wants this CPU. The next offer waits twice as long.
//! * Others ran for a moment, and offered the CPU in turn: they poll too, more threads than there are CPUs. From now on
//!   it is offered after a few polls.
//! * Others ran for a time slice: they use it for something else. Whoever offers seldom loses the CPU by the tick, at
//!   any moment; so it is offered after a while again. But where several threads poll one CQ, the CPU may have gone to
//!   one that makes no use of it: one that spins for a lock of the program's, which the poller holds while it polls
//!   (UCX with threads), and so each time that it yields. There such offers become rarer, and one that helped makes
//!   them frequent again.
//!
//! A thread that finds something in another CQ does not wait, however often it looks at this one: UCX polls queues in
//! turn that nothing comes to.

use crate::host::clock::now_ns;

/// Empty polls between two looks at the clock.
const PATIENT_POLLS: u32 = 64;
/// The same while others are known to poll on this CPU too.
const CROWDED_POLLS: u32 = 8;
/// Nanoseconds of empty polls before the CPU is offered, at first and at most.
const LEAST_NS: u64 = 20_000;
const MOST_NS: u64 = 20_000_000;
/// A yield is shorter than this where nobody else wants the CPU: there is no time for two switches of context.
const NOBODY_NS: u64 = 1_500;
/// A thread that gets the CPU and polls an empty CQ as well offers it again soon. An absence of this length was no such
/// turn.
const LONG_NS: u64 = 1_000_000;
/// So long between two looks: the thread had lost its CPU to somebody.
const LOST_NS: u64 = 200_000;

/// Offers the CPU. Returns the nanoseconds for which others had it, 0 if none wanted it. If `crowded` it judges by the
/// time alone; else it also asks the kernel if there was a switch, for a system call may take long, too.
pub(crate) fn offer_cpu(crowded: bool) -> u64 {
    let switches = || if crowded { None } else { involuntary_switches() };
    let (switched, since) = (switches(), now_ns());
    std::thread::yield_now();
    let away = now_ns().saturating_sub(since);
    let nobody = away < NOBODY_NS || switched.is_some() && switches() == switched;
    if nobody { 0 } else { away }
}

/// How often the calling thread has lost its CPU while it could run, by yielding too; none where the kernel does not
/// say.
fn involuntary_switches() -> Option<i64> {
    // SAFETY: integers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a local.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (answer == 0).then_some(usage.ru_nivcsw)
}

/// The state of offers of one CQ's pollers.
pub(crate) struct Courtesy {
    /// Empty polls until the next look, and from one look to the next.
    polls_left: u32,
    interval: u32,
    /// A poll has found something since the last look.
    has_found: bool,
    /// When the CPU was offered last, or the first look since the last completion.
    since: u64,
    looked_at: u64,
    patience: u64,
    /// Others have run since the last look, for it was offered.
    shared: bool,
    /// The thread of the last empty poll, and true if other threads had one before.
    poller: u32,
    several: bool,
    /// The thread that looked last, and what it had found by then.
    looked_by: u32,
    found: u32,
}

impl Default for Courtesy {
    fn default() -> Self {
        Courtesy {
            polls_left: PATIENT_POLLS,
            interval: PATIENT_POLLS,
            has_found: true,
            since: 0,
            looked_at: 0,
            patience: LEAST_NS,
            shared: false,
            poller: 0,
            several: false,
            looked_by: 0,
            found: 0,
        }
    }
}

impl Courtesy {
    /// A poll has found something.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.has_found = true;
    }

    /// Counts an empty poll of thread `tid`. Returns true if it is time for a [look](Courtesy::look).
    #[inline]
    pub(crate) fn in_vain(&mut self, tid: u32) -> bool {
        if self.poller != tid {
            self.several |= self.poller != 0;
            self.poller = tid;
        }
        self.polls_left -= 1;
        self.polls_left == 0
    }

    /// Returns true if a poll has ever been empty.
    pub(crate) fn was_in_vain(&self) -> bool {
        self.poller != 0
    }

    /// Now and then, at time `now`, of a thread that has found something in `found` polls of whatever CQ: whether the
    /// CPU is to be offered. Then [`Courtesy::returned`] is to follow.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(&mut self, found: u32, now: u64) -> bool {
        let by_the_same = std::mem::replace(&mut self.looked_by, self.poller) == self.poller;
        let has_found = std::mem::take(&mut self.has_found) || by_the_same && found != self.found;
        let lost = now.saturating_sub(self.looked_at) > LOST_NS;
        let shared = std::mem::take(&mut self.shared);
        (self.polls_left, self.found, self.looked_at) = (self.interval, found, now);
        if has_found {
            if shared {
                // Something was found at once after the offer.
                self.patience = LEAST_NS;
            }
            self.since = now;
            return false;
        }
        if lost && !self.several {
            self.patience = LEAST_NS;
        }
        let is_due = self.is_crowded() || now.saturating_sub(self.since) > self.patience;
        if is_due {
            self.since = now;
        }
        is_due
    }

    /// Others are known to poll on this CPU too.
    pub(crate) fn is_crowded(&self) -> bool {
        self.interval == CROWDED_POLLS
    }

    /// The thread has its CPU again, after others had it for `away` ns; 0 if none wanted it.
    pub(crate) fn returned(&mut self, away: u64) {
        self.since += away;
        self.looked_at = self.since;
        self.shared = away > 0;
        let took_turns = self.shared && away <= LONG_NS;
        self.interval = if took_turns && !self.several { CROWDED_POLLS } else { PATIENT_POLLS };
        self.polls_left = self.interval;
        self.patience = match () {
            () if took_turns => LEAST_NS,
            () if self.shared && !self.several => LEAST_NS,
            () => (self.patience * 2).min(MOST_NS),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A thread whose polls are empty, 50 ns each.
    #[derive(Default)]
    struct Poller {
        courtesy: Courtesy,
        now: u64,
        found: u32,
    }

    impl Poller {
        fn poll(&mut self) -> bool {
            self.now += 50;
            self.courtesy.polls_left -= 1;
            self.courtesy.polls_left == 0 && self.courtesy.look(self.found, self.now)
        }

        /// After how many nanoseconds it offers its CPU, which it has again after `away`.
        fn offers_after(&mut self, away: u64) -> u64 {
            let begin = self.now;
            while !self.poll() {}
            let after = self.now - begin;
            self.now += away;
            self.courtesy.returned(away);
            after
        }

        fn finds(&mut self) {
            self.found += 1;
            self.courtesy.found();
        }
    }

    fn one() -> Poller {
        Poller { now: 1 << 40, ..Poller::default() }
    }

    /// Two threads poll its CQ.
    fn several() -> Poller {
        let mut poller = one();
        assert!(!poller.courtesy.in_vain(7) && !poller.courtesy.in_vain(8));
        poller.finds();
        poller
    }

    #[test]
    fn where_nobody_wants_the_cpu_it_is_offered_ever_more_seldom() {
        let mut poller = one();
        let first = poller.offers_after(0);
        assert!((LEAST_NS..2 * LEAST_NS).contains(&first), "{first}");
        let offers = (0..).take_while(|_| poller.offers_after(0) < MOST_NS).count();
        assert!(offers < 12, "{offers}");
        // A completion that came after it is not its doing.
        poller.finds();
        assert!(poller.offers_after(0) > MOST_NS);
    }

    #[test]
    fn where_others_poll_on_the_cpu_too_it_is_offered_after_a_few_polls() {
        let mut poller = one();
        poller.offers_after(0);
        poller.offers_after(5_000);
        for _ in 0..100 {
            assert!(poller.offers_after(5_000) < 1_000);
            poller.finds();
        }
        // Until they have gone.
        poller.offers_after(0);
        assert!(poller.offers_after(0) > LEAST_NS);
    }

    #[test]
    fn one_that_loses_its_cpu_offers_it_before_that_happens_again() {
        let mut poller = one();
        while poller.offers_after(0) < MOST_NS {}
        (0..1000).for_each(|_| assert!(!poller.poll()));
        poller.now += 3_000_000;
        // Those that took it use it for something else, time slice by time slice.
        for _ in 0..20 {
            let after = poller.offers_after(3_000_000);
            assert!(after < 2 * LEAST_NS, "{after}");
        }
    }

    #[test]
    fn one_that_finds_completions_elsewhere_offers_nothing() {
        let mut poller = one();
        for _ in 0..100_000 {
            assert!(!poller.poll());
            poller.found += 1;
        }
        assert!(poller.offers_after(0) > LEAST_NS);
    }

    #[test]
    fn offers_of_several_that_bring_nothing_but_a_long_absence_become_rare() {
        let mut poller = several();
        while poller.offers_after(3_000_000) < MOST_NS {}
        // Completions after an absence make offers frequent.
        poller.finds();
        assert!(poller.offers_after(3_000_000) < 3 * LEAST_NS);
    }

    #[test]
    fn a_switch_is_told_from_a_long_system_call() {
        // Two threads on one CPU.
        let done = AtomicBool::new(false);
        // SAFETY: without arguments.
        let cpu = unsafe { libc::sched_getcpu() } as usize;
        let pin = move || {
            // SAFETY: a set of bits, and a local.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
            }
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                pin();
                while !done.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            });
            s.spawn(|| {
                pin();
                let before = involuntary_switches();
                while offer_cpu(false) == 0 {}
                assert!(before < involuntary_switches());
                done.store(true, Ordering::Relaxed);
            });
        });
    }

    #[test]
    fn the_clock_is_looked_at_seldom() {
        let mut courtesy = Courtesy::default();
        assert!((1..PATIENT_POLLS).all(|_| !courtesy.in_vain(7)));
        assert!(courtesy.in_vain(7));
    }
}
