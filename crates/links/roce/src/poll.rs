//! The thread that receives, and the times at which it does. A thread whose poll of a CQ finds nothing receives. A
//! thread that sleeps for a completion event waits for packets itself, which saves a wake-up. While neither does, the
//! progress thread waits for them. It keeps away as long as the program polls, and only comes by now and then to see if
//! it still does.
//!
//! Acknowledgements wait for a packet in the same direction, as a program that has just got a message often answers:
//! until a poll finds nothing, or the progress thread comes by.

use super::Roce;
use super::idle_probe::{MOMENT_NS, ProbeStep};
use super::net::sys::is_readable;
use super::poll_state::{FIRST_TICK_NS, LAST_TICK_NS, PollState, RECENT_NS};
use super::ports::LocalPort;
use super::rx::{ACK_DELAY_NS, Receiver};
use super::timers::NEVER;
use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::host::cancel::Uncancelled;
use vervain_hca::host::lock::OwnerGuard;
use vervain_hca::host::signals::SignalsHeld;
use vervain_hca::host::spin_budget::Patience;
use vervain_hca::host::tid::tid;
use vervain_hca::process::Process;
use vervain_hca::qp::remote::SenderAccess;
use vervain_hca::{Error, Result, now_ns};

/// Longest interval of visits if nobody has wanted the thread meanwhile: so long that an acknowledgement which the
/// program leaves behind need not wake it.
const UNWANTED_TICK_NS: u64 = RECENT_NS + LAST_TICK_NS;
/// Nanoseconds between two visits to a process that is paused.
const PAUSED_NS: u64 = 1_000_000;
/// Nanoseconds between two looks at a stopped process by a thread that sleeps for a completion.
const STOPPED_NS: u64 = 50_000_000;
/// Rounds of receiving before the progress thread does its other work.
const ROUNDS: usize = 16;

/// Findings of the progress thread when it comes by.
struct Visit {
    now: u64,
    /// True if the program has polled since the last visit, and so receives packets itself.
    polled: bool,
    /// True if it has polled within [`RECENT_NS`].
    recent: bool,
    /// True if a thread of the program waits for packets.
    waited_for: bool,
}

/// The progress thread's next sleep.
struct Sleep {
    /// True if packets end it.
    for_packets: bool,
    /// Latest end; None: no limit.
    until: Option<u64>,
    /// Time before which timers and requests of others do not end it.
    not_before: u64,
}

impl Sleep {
    fn no_longer_than(&mut self, at: u64) {
        self.until = earlier(self.until, at);
    }

    /// Leaves the packets to another thread, which receives: they need not end this sleep. A program that polls holds
    /// the receiver most of the time, but packets after its last poll would be seen by nobody if this sleep was to last
    /// until packets come.
    fn leave_to_receiver(&mut self, visit: &Visit) {
        self.for_packets = false;
        if !visit.polled || self.until.is_none() {
            self.not_before = visit.now + FIRST_TICK_NS;
            self.no_longer_than(self.not_before);
        }
    }
}

impl PollState {
    /// The calling thread waits for packets no longer.
    fn end_wait(&self) {
        if self.waiters.leave(tid())
            && let Some(process) = Process::current()
        {
            // From now on nobody waits for packets, unless the program polls or the progress thread waits.
            self.ensure(process, now_ns() + RECENT_NS);
        }
    }
}

impl Roce {
    /// A poll's part in receiving packets. Returns true if any had come.
    pub(super) fn poll_packets(&self, process: &'static Process) -> bool {
        self.uncork();
        let (rate, connected) = (&self.poll_state.rate, self.addressees.connections.has_any());
        let interval = rate.interval(connected);
        process.packets.set_poll_interval(interval);
        if !rate.is_due(connected, now_ns) {
            // The progress thread may have ended its watch meanwhile.
            let now = rate.interval(connected);
            if now != interval {
                process.packets.set_poll_interval(now);
            }
            return false;
        }
        // After an idle time the next packet may come to any port; and a process that only gets datagrams most likely
        // polls for something else.
        let anywhere = !connected || rate.is_idle();
        let readable = !anywhere || self.ports.packet_fd().is_some_and(is_readable);
        if !connected && !readable {
            rate.polled(false, now_ns);
            return false;
        }
        let Some(mut rx) = self.receiving.try_lock() else { return false };
        let mut any = if anywhere { readable && self.receive(&mut rx) } else { self.receive_in_poll(&mut rx) };
        rate.polled(any, now_ns);
        if rx.polled(any) {
            rx.send_responses();
        }
        any |= self.expire(&mut rx);
        self.leave(process, &mut rx);
        any
    }

    /// Receives all packets that have come until now. Returns false if another thread is receiving.
    pub(super) fn take_all_in(&self, process: &'static Process) -> bool {
        let Some(mut rx) = self.receiving.try_lock() else { return false };
        (0..ROUNDS).take_while(|_| self.receive(&mut rx)).for_each(drop);
        rx.send_responses();
        self.leave(process, &mut rx);
        true
    }

    /// Ensures that the packets a thread of the program leaves behind are handled in time.
    fn leave(&self, process: &'static Process, rx: &mut OwnerGuard<'_, Receiver>) {
        if rx.has_more_to_send() {
            rx.send_responses();
        }
        if let Some(since) = rx.acks_due_since() {
            self.poll_state.ensure(process, since + RECENT_NS);
        }
        if rx.keeps_packets() {
            self.poll_state.ensure(process, now_ns() + FIRST_TICK_NS);
        }
    }

    /// Sends the packets that wait in batches, and those of requests that wait to be begun.
    pub(super) fn uncork(&self) {
        if self.poll_state.take_corked() {
            self.poll_state.begin_corked();
            if self.poll_state.take_corked() {
                // Packets of those that were begun, which leave now too; or another thread's, which may have added
                // requests.
                self.poll_state.begin_corked();
            }
            self.ports.each(LocalPort::flush);
        }
    }

    /// Calls the requesters whose timers have expired. Returns true if there were any. An answer that lies in a socket
    /// is not late, nor is one in the hands of a thread that has lost its CPU. So the receiving thread calls this, and
    /// receives everything before; the time that counts is the begin of that.
    fn expire(&self, rx: &mut Receiver) -> bool {
        if self.poll_state.timers.next() == NEVER {
            return false;
        }
        let now = now_ns();
        if self.poll_state.timers.next() > now {
            return false;
        }
        if self.call_due(rx, now, false) && self.take_in_all(rx) {
            self.call_due(rx, now, true);
        }
        true
    }

    /// Calls the connections whose timers expired until `now`. Returns true if anything is late. If `is_taken_in`, all
    /// packets have been received, and the connections act on the expiry; else they stay.
    fn call_due(&self, rx: &mut Receiver, now: u64, is_taken_in: bool) -> bool {
        let mut due = std::mem::take(&mut rx.due);
        self.poll_state.timers.take(now, |qpn, at| {
            due.extend(self.addressees.connections.get(qpn).filter(|connection| connection.timer.take(at)))
        });
        let mut late = false;
        for connection in due.drain(..) {
            let Some(qp) = connection.qp.upgrade() else { continue };
            // A deferred packet may be its answer.
            let waits = is_taken_in && connection.deferred.load(Ordering::Relaxed) > 0;
            if waits || connection.timeout(&qp, now, is_taken_in, &mut late) == SenderAccess::Busy {
                self.poll_state.timers.set(&connection.timer, Some(now + FIRST_TICK_NS));
            }
        }
        rx.due = due;
        late
    }

    /// The progress thread's visit; see [`vervain_hca::process::poller::Poller::attend`].
    pub(super) fn come_by(&self, process: &'static Process) -> (bool, Option<u64>) {
        let state = &self.poll_state;
        state.thread.store(tid(), Ordering::Relaxed);
        let slept_until = state.sleeps_until.swap(0, Ordering::SeqCst);
        // Requests from now on are seen when it goes to sleep.
        let was_wanted = state.wanted.swap(0, Ordering::SeqCst) != 0;
        self.uncork();
        let now = now_ns();
        if process.is_stopped() {
            // It sleeps until it is woken.
            state.sleeps_until.store(NEVER, Ordering::SeqCst);
            return (false, None);
        }
        if process.is_paused() {
            state.sleeps_until.store(now + PAUSED_NS, Ordering::SeqCst);
            return (false, Some(now + PAUSED_NS));
        }
        let still_kept = self.has_kept.swap(false, Ordering::SeqCst) && !self.adopt_misrouted();
        let is_wanted = || self.poll_state.timers.next() != NEVER || self.ports.packet_fd().is_some_and(is_readable);
        if state.rate.is_watched() && is_wanted() {
            // The program handles it, if it polls.
            state.rate.activity();
            process.packets.set_poll_interval(1);
        }
        let visit = self.visit(process, now);
        let mut sleep = self.plan_sleep(&visit, was_wanted, now < slept_until);
        if still_kept {
            self.has_kept.store(true, Ordering::SeqCst);
            sleep.no_longer_than(now + FIRST_TICK_NS);
        }
        match self.receiving.try_lock() {
            Some(mut rx) => self.receive_in_visit(process, &mut rx, &visit, &mut sleep),
            None => self.leave_to_receiver(&visit, &mut sleep),
        }
        self.go_to_sleep(sleep)
    }

    /// Finds out if the program polls or waits.
    fn visit(&self, process: &'static Process, now: u64) -> Visit {
        let looks = process.packets.looks();
        let (polled, recent) = self.poll_state.activity(now, looks, process.packets.sleeper().sleeps());
        Visit { now, polled, recent, waited_for: self.poll_state.waiters.any() }
    }

    /// The next sleep if there is nothing to do; `early` if the thread was woken before its time.
    fn plan_sleep(&self, visit: &Visit, was_wanted: bool, early: bool) -> Sleep {
        let (state, now) = (&self.poll_state, visit.now);
        if !visit.polled && !visit.waited_for {
            state.tick.store(0, Ordering::Relaxed);
            return Sleep { for_packets: true, until: None, not_before: 0 };
        }
        if !visit.waited_for
            && self.poll_state.timers.next() == NEVER
            && state.rate.watch(self.addressees.connections.has_any(), now)
        {
            state.tick.store(0, Ordering::Relaxed);
            return Sleep { for_packets: true, until: None, not_before: 0 };
        }
        let unwanted = !was_wanted && self.poll_state.timers.next() > now + UNWANTED_TICK_NS;
        let most = if unwanted { UNWANTED_TICK_NS } else { LAST_TICK_NS };
        let tick = (state.tick.load(Ordering::Relaxed) * 2).clamp(FIRST_TICK_NS, most);
        state.tick.store(tick, Ordering::Relaxed);
        // A program that polls handles timers itself, and so does any thread that receives.
        let not_before = if visit.polled { now + tick } else { 0 };
        let mut sleep = Sleep { for_packets: false, until: visit.recent.then_some(now + tick), not_before };
        if !visit.waited_for {
            let has_packets = || self.ports.packet_fd().is_some_and(is_readable);
            match state.idle_probe.lock().program_polled(early, has_packets) {
                ProbeStep::Timed => {}
                ProbeStep::ForPackets => sleep.for_packets = true,
                ProbeStep::Recheck => sleep.until = Some(now + MOMENT_NS),
            }
        }
        sleep
    }

    /// Receives for a program that does not, and handles the packets that it has left behind.
    fn receive_in_visit(&self, process: &'static Process, rx: &mut Receiver, visit: &Visit, sleep: &mut Sleep) {
        // A program that polls handles them itself, if it goes on.
        let patient = match visit.polled || self.poll_state.answers.are_expected() {
            true => LAST_TICK_NS,
            false if visit.recent => ACK_DELAY_NS,
            false => 0,
        };
        if !visit.polled {
            if !visit.waited_for {
                let found = self.receive_patiently(rx, patient, false, || process.own.wants_attention());
                self.poll_state.idle_probe.lock().program_was_idle(found);
            }
            self.expire(rx);
        } else if rx.keeps_packets() {
            // The program's polls may find no reason to: nothing more comes, or this thread watches.
            self.retry_kept(process, rx);
        }
        match rx.acks_due_since() {
            Some(since) if since + patient > now_ns() && !rx.has_more_to_send() => {
                sleep.no_longer_than(since + patient)
            }
            Some(_) => self.send_responses_alone(rx),
            None => {}
        }
        if rx.has_more_to_send() {
            sleep.until = Some(0);
        } else if rx.acks_due_since().is_some() {
            // A pause has begun.
            sleep.no_longer_than(now_ns() + PAUSED_NS);
        }
        if rx.keeps_packets() {
            sleep.no_longer_than(now_ns() + FIRST_TICK_NS);
        }
    }

    /// Sends what the responders owe, though the program may be about to answer.
    fn send_responses_alone(&self, rx: &mut Receiver) {
        self.poll_state.answers.acknowledged(now_ns());
        rx.send_responses();
    }

    /// Leaves packets to another thread, which receives or has ended while it did.
    fn leave_to_receiver(&self, visit: &Visit, sleep: &mut Sleep) {
        if self.receiving.raw().holder_is_gone() {
            // The packets that it had in hand are lost, which packets may be.
            self.start_over(&mut self.receiving.lock());
        }
        sleep.leave_to_receiver(visit);
    }

    /// Decides when the progress thread wakes, considering timers and the requests of others meanwhile. Returns true if
    /// packets are to wake it too, and the time.
    fn go_to_sleep(&self, mut sleep: Sleep) -> (bool, Option<u64>) {
        let state = &self.poll_state;
        let timer = self.poll_state.timers.next().min(self.ports.next_release().unwrap_or(NEVER));
        if timer != NEVER {
            sleep.no_longer_than(timer.max(sleep.not_before));
        }
        state.sleeps_until.store(sleep.until.unwrap_or(NEVER), Ordering::SeqCst);
        let wanted = (NEVER - state.wanted.swap(0, Ordering::SeqCst)).max(sleep.not_before);
        if wanted < sleep.until.unwrap_or(NEVER) {
            state.sleeps_until.store(wanted, Ordering::SeqCst);
            sleep.until = Some(wanted);
        }
        (sleep.for_packets, sleep.until)
    }

    /// Receives packets, and those that come soon after (with `eager`, even if none had come), until `enough`.
    /// Acknowledgements older than `patient` nanoseconds leave. Returns true if any packet had come at first.
    fn receive_patiently(&self, rx: &mut Receiver, patient: u64, eager: bool, enough: impl Fn() -> bool) -> bool {
        let slept = now_ns().saturating_sub(rx.slept_at);
        let had_come = self.receive(rx);
        let mut any = had_come;
        let mut patience = std::mem::take(&mut rx.patience);
        if any {
            patience.slept(slept);
        }
        for _ in 0..ROUNDS {
            if !(any || eager) || enough() {
                break;
            }
            // The program is about to answer, and this thread may be in its way.
            if patient > 0 && !eager && rx.acks_due_since().is_some() && !rx.is_in_message() {
                break;
            }
            // The rest of a message is on its way; its arrival is no sign that another message follows.
            let mut rest = Patience::for_rest();
            let patience = if rx.is_in_message() { &mut rest } else { &mut patience };
            any = patience.look_out(|| {
                let any = self.receive_in_poll(rx);
                if !any && rx.acks_due_since().is_some_and(|since| since + patient <= now_ns()) {
                    self.send_responses_alone(rx);
                }
                any || enough()
            });
            if !any {
                break;
            }
        }
        rx.patience = patience;
        rx.slept_at = now_ns();
        had_come
    }

    /// Receives until `fd`, a completion channel, is readable.
    pub(super) fn wait_for_packets(&self, process: &'static Process, fd: RawFd) -> Result<()> {
        let Some(packets) = self.ports.packet_fd() else { return Ok(()) };
        // SAFETY: asks for the descriptor's flags.
        let blocks = unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK == 0;
        if !blocks {
            return Ok(());
        }
        let _wait = EventWait::begin(&self.poll_state);
        loop {
            // Only the sleep is a cancellation point.
            let whole = Uncancelled::begin();
            if is_readable(fd) {
                break Ok(());
            }
            self.poll_state.waits.fetch_add(1, Ordering::Relaxed);
            process.packets.sleeper().waits_for_event();
            self.uncork();
            let mut not_before = 0;
            let deadline = match self.receiving.try_lock() {
                Some(mut rx) => {
                    self.receive_patiently(&mut rx, ACK_DELAY_NS, true, || is_readable(fd));
                    if is_readable(fd) {
                        self.leave(process, &mut rx);
                        break Ok(());
                    }
                    rx.send_responses();
                    self.expire(&mut rx);
                    let held = rx.keeps_packets().then(|| now_ns() + FIRST_TICK_NS);
                    // A pause has begun.
                    let unsaid = rx.acks_due_since().map(|_| now_ns() + PAUSED_NS);
                    rx.has_more_to_send().then_some(0).or(held).or(unsaid)
                }
                // Another thread receives, and handles timers; completions that it finds for this one make the channel
                // readable.
                None => {
                    not_before = now_ns() + FIRST_TICK_NS;
                    Some(not_before)
                }
            };
            let (packets, deadline) = match process.is_paused() {
                true => {
                    not_before = now_ns() + if process.is_stopped() { STOPPED_NS } else { PAUSED_NS };
                    (-1, Some(not_before))
                }
                false => (packets, deadline),
            };
            let timer = self.poll_state.timers.next().min(self.ports.next_release().unwrap_or(NEVER)).max(not_before);
            drop(whole);
            if let Err(e) = sleep([fd, packets], earlier(deadline, timer).filter(|at| *at != NEVER)) {
                break Err(e);
            }
        }
    }
}

thread_local! {
    /// The wait of this thread, stored so that the thread's end finds it.
    static CURRENT_WAIT: CurrentWait = const { CurrentWait(Cell::new(None)) };
    /// True once the C library knows the destructor of `CURRENT_WAIT`.
    static HAS_WAITED: Cell<bool> = const { Cell::new(false) };
}

/// The wait of a thread, which ends with the thread even in the middle: waiting is a cancellation point.
struct CurrentWait(Cell<Option<Arc<PollState>>>);

impl Drop for CurrentWait {
    fn drop(&mut self) {
        self.0.take().iter().for_each(|poll_state| poll_state.end_wait());
    }
}

/// A thread waits for packets itself, as long as this lives.
struct EventWait<'a>(&'a PollState);

impl EventWait<'_> {
    fn begin(poll_state: &Arc<PollState>) -> EventWait<'_> {
        {
            // The first time, the C library takes the dynamic linker's lock to register the destructor.
            let _held = (!HAS_WAITED.get()).then(SignalsHeld::begin);
            // Before the thread is among those that wait, so that its end finds it there. None finds it any more if
            // this is called by a destructor of the thread's own that runs after this one.
            let _ = CURRENT_WAIT.try_with(|w| w.0.set(Some(Arc::clone(poll_state))));
            HAS_WAITED.set(true);
        }
        poll_state.waiters.enter(tid());
        EventWait(poll_state)
    }
}

impl Drop for EventWait<'_> {
    fn drop(&mut self) {
        self.0.end_wait();
        let _ = CURRENT_WAIT.try_with(|w| w.0.take());
    }
}

/// The earlier of two times; None: no first time.
fn earlier(a: Option<u64>, b: u64) -> Option<u64> {
    Some(a.map_or(b, |a| a.min(b)))
}

/// Sleeps until one of `fds` is readable or the time has come. EINTR: a signal handler installed without SA_RESTART may
/// have run. poll itself is never restarted (`man 7 signal`), while the program must see read's behaviour.
fn sleep(fds: [RawFd; 2], until: Option<u64>) -> Result<()> {
    let mut entries = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let time = until.map(|at| {
        let ns = at.saturating_sub(now_ns());
        libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the entries and the time are on this stack.
    let n = unsafe { libc::ppoll(entries.as_mut_ptr(), 2, time, std::ptr::null()) };
    if n < 0 && some_handler_interrupts() {
        return Err(Error::new(libc::EINTR, "interrupted by a signal"));
    }
    Ok(())
}

/// Returns true if a signal handler is installed without SA_RESTART.
fn some_handler_interrupts() -> bool {
    (1..=libc::SIGRTMAX()).any(|signal| {
        // SAFETY: asks for the disposition only, into a struct on this stack; zeros are a valid one.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction > libc::SIG_IGN
                && action.sa_flags & libc::SA_RESTART == 0
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicPtr};

    /// The state that a thread waits with when it ends, after the destructors of `thread_local!`.
    static AT_THE_END: AtomicPtr<Arc<PollState>> = AtomicPtr::new(std::ptr::null_mut());
    /// True once it has.
    static HAS_WAITED_AT_THE_END: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn wait_at_the_end(_: *mut libc::c_void) {
        // SAFETY: the test's own, which it has set before the thread began and which lives until that has ended.
        let state = unsafe { &*AT_THE_END.load(Ordering::Acquire) };
        assert!(CURRENT_WAIT.try_with(|_| ()).is_err(), "the destructor has run");
        let wait = EventWait::begin(state);
        assert!(state.waiters.any());
        drop(wait);
        HAS_WAITED_AT_THE_END.store(true, Ordering::Release);
    }

    #[test]
    fn a_thread_that_ends_in_the_midst_of_a_wait_leaves_nobody_waiting() {
        let state = Arc::new(PollState::default());
        let thread = std::thread::spawn({
            let state = Arc::clone(&state);
            move || {
                drop(EventWait::begin(&state));
                assert!(!state.waiters.any());
                std::mem::forget(EventWait::begin(&state));
                assert!(state.waiters.any());
            }
        });
        thread.join().unwrap();
        assert!(!state.waiters.any());
    }

    #[test]
    fn a_thread_that_waits_once_more_while_it_ends_leaves_nobody_waiting() {
        let state = Arc::new(PollState::default());
        AT_THE_END.store((&raw const state).cast_mut(), Ordering::Release);
        let mut key = 0;
        // SAFETY: the key is on this stack, and the function takes what a destructor does.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(wait_at_the_end)) }, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the value is not null, so that the destructor is called, which does not use it.
                assert_eq!(unsafe { libc::pthread_setspecific(key, (&raw const key).cast()) }, 0);
                // The C library gets to know the destructor of `CURRENT_WAIT`.
                drop(EventWait::begin(&state));
            });
        });
        while !HAS_WAITED_AT_THE_END.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(!state.waiters.any());
        // SAFETY: nobody uses the key any more.
        unsafe { libc::pthread_key_delete(key) };
    }

    #[test]
    fn who_leaves_packets_to_another_thread_comes_by_again() {
        for (polled, recent, waited_for) in
            [(true, true, false), (false, true, true), (false, false, true), (false, false, false)]
        {
            let visit = Visit { now: 1 << 40, polled, recent, waited_for };
            // Until packets come, and until its time has come.
            for until in [None, Some(visit.now + 2 * LAST_TICK_NS)] {
                let mut sleep = Sleep { for_packets: until.is_none(), until, not_before: 0 };
                sleep.leave_to_receiver(&visit);
                assert!(!sleep.for_packets && sleep.until.is_some(), "{polled} {recent} {waited_for} {until:?}");
                assert!(!polled || until.is_none() || sleep.until == until, "a program that polls is left alone");
            }
        }
    }
}
