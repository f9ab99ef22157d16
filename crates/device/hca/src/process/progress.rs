//! The progress thread: sleeps until a peer asks for something, the link has news, or send work waits that nobody polls
//! for (DESIGN decision 6). While the program polls, it keeps away.

use crate::arena::layout::Switch;
use crate::error::{Error, Result};
use crate::host::clock::now_ns;
use crate::host::lock::OwnerLock;
use crate::host::signals::{self, SignalsHeld};
use crate::host::spin_budget::Patience;
use crate::process::Process;
use crate::process::poller::EventHandler;
use crate::process::send_work::{Progress, SendWork, is_same};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The first look at waiting work, and the longest time between two while the program itself polls.
const FIRST_TICK_NS: u64 = 200_000;
const LAST_TICK_NS: u64 = 16_000_000;
/// Ticks without work before a QP leaves the list; so that one that is idle for a moment need not wake us again.
const LINGER: u32 = 8;
const STACK: usize = 256 << 10;

/// The progress thread as others see it: what they leave to it.
#[derive(Default)]
pub struct ProgressThread {
    /// Its number, once it runs.
    tid: AtomicU32,
    pending: OwnerLock<Vec<Arc<dyn SendWork>>>,
    /// How often one came to that list.
    added: AtomicU32,
    urgent: AtomicBool,
}

impl ProgressThread {
    /// Returns true if it is the calling thread, which never waits for others.
    pub fn is_this_thread(&self) -> bool {
        crate::host::tid::tid() == self.tid.load(Ordering::Relaxed)
    }

    /// The link has news that QPs may wait for.
    pub fn hurry_if_pending(&self) {
        if !self.pending.lock().is_empty() {
            self.hurry();
        }
    }

    /// Has it take over although the program polled a moment ago.
    pub(super) fn hurry(&self) {
        self.urgent.store(true, Ordering::SeqCst);
    }

    fn take_urgent(&self) -> bool {
        self.urgent.swap(false, Ordering::SeqCst)
    }

    /// Adds a QP to the list.
    pub(super) fn add(&self, work: Arc<dyn SendWork>) {
        self.pending.lock().push(work);
        self.added.fetch_add(1, Ordering::SeqCst);
    }

    fn pending(&self) -> Vec<Arc<dyn SendWork>> {
        self.pending.lock().clone()
    }

    /// How often a QP came to the list; read before the list.
    fn added(&self) -> u32 {
        self.added.load(Ordering::SeqCst)
    }

    /// Returns true if a QP is urgent, or if QPs came to the list since [`ProgressThread::added`] was `added`.
    fn has_new(&self, added: u32) -> bool {
        self.urgent.load(Ordering::SeqCst) || self.added() != added
    }

    /// Takes a QP without work off the list; false if work came meanwhile.
    fn unwatch(&self, work: &dyn SendWork) -> bool {
        let mut pending = self.pending.lock();
        if !work.clear_listed_for_progress() {
            return false;
        }
        pending.retain(|p| !is_same(&**p, work));
        true
    }

    /// Takes a QP that is gone off the list; the thread may be at it still.
    pub(crate) fn remove(&self, work: &dyn SendWork) {
        self.pending.lock().retain(|p| !is_same(&**p, work));
    }
}

/// Starts the thread, with all signals blocked: they are the program's. Those of faults are let in, whatever the caller
/// blocks, for owner copies meet them where the program has taken memory away ([`crate::host::guarded`]).
pub(crate) fn spawn(process: &'static Process) -> Result<()> {
    let held = SignalsHeld::begin();
    let (ready, started) = std::sync::mpsc::channel();
    let spawned = std::thread::Builder::new().name("vervain".into()).stack_size(STACK).spawn(move || {
        signals::block_all_but_faults();
        vervain_scheduler::shorten_slice();
        // A thread that sleeps until an owner has done its request is woken by this thread's look, due in 20 µs.
        vervain_scheduler::keep_time();
        process.switches.each().for_each(hold_alive_mutex);
        process.progress.tid.store(crate::host::tid::tid(), Ordering::Relaxed);
        let _ = ready.send(());
        run(process);
    });
    drop(held);
    spawned.map_err(|e| Error::new(e.raw_os_error().unwrap_or(libc::EAGAIN), format!("cannot start a thread: {e}")))?;
    let _ = started.recv();
    Ok(())
}

/// Takes the robust mutex in a switch. The kernel marks it when this thread dies, and this thread dies only with the
/// process image (`man pthread_mutexattr_setrobust`).
fn hold_alive_mutex(switch: &Switch) {
    let mutex = switch.alive.as_ptr().cast_mut().cast::<libc::pthread_mutex_t>();
    const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= 48);
    // SAFETY: 48 bytes of our own arena, zeroed, used by nobody else as a mutex: peers only read the first word.
    unsafe {
        let mut attr: libc::pthread_mutexattr_t = std::mem::zeroed();
        libc::pthread_mutexattr_init(&raw mut attr);
        libc::pthread_mutexattr_setpshared(&raw mut attr, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(&raw mut attr, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(mutex, &raw const attr);
        libc::pthread_mutex_lock(mutex);
        libc::pthread_mutexattr_destroy(&raw mut attr);
    }
}

/// A QP whose work the thread watches.
struct Watched {
    work: Arc<dyn SendWork>,
    looks: u32,
    idle: u32,
}

/// Rounds without a sleep after which the link gets its turn all the same.
const LINK_ROUNDS: u32 = 16;

fn run(process: &'static Process) {
    let mut watched: Vec<Watched> = Vec::new();
    let mut tick = FIRST_TICK_NS;
    let mut sleep = 0u32;
    let mut patience = Patience::for_requests();
    let (mut link_has_news, mut rounds) = (true, 0u32);
    let mut reap_at = None;
    let mut watch = Watch::new(process);
    loop {
        let served = process.attention.attend(&process.own);
        rounds = rounds.wrapping_add(1);
        if std::mem::take(&mut link_has_news) || is_due(process) || rounds.is_multiple_of(LINK_ROUNDS) {
            process.rendezvous.handle_events(process);
            process.packets.handlers().for_each(|handler| handler.handle_events(process));
        }
        let pending_added = process.progress.added();
        let timeout = look_after(process, &mut watched, &mut tick);
        watch.forget_packets();
        let packet_time =
            if process.packets.are_expected() { process.packets.attend(process, |fd| watch.packets(fd)) } else { None };
        let timeout = timeout.into_iter().chain(packet_time.map(|at| at.saturating_sub(now_ns()))).min();
        if served && patience.look_out(|| process.own.wants_attention()) {
            continue;
        }
        let sleeping = &process.own.header.sleeping;
        sleep = sleep.wrapping_add(1).max(1);
        sleeping.store(sleep, Ordering::SeqCst);
        let has_work = process.own.wants_attention() || process.progress.has_new(pending_added);
        if has_work || process.packets.take_wanted() || is_due(process) {
            sleeping.store(0, Ordering::SeqCst);
            continue;
        }
        let due = deadline(process).map(|at| at.saturating_sub(now_ns()));
        let timeout = timeout.into_iter().chain(reap(process, &mut reap_at)).chain(due).min();
        let began = now_ns();
        link_has_news = watch.wait(timeout);
        sleeping.store(0, Ordering::SeqCst);
        if process.own.wants_attention() {
            // An initiator that asks again and again may need longer between two requests than this thread looks out.
            patience.slept(now_ns() - began);
        }
    }
}

/// When one wants its events handled although none comes.
fn deadline(process: &Process) -> Option<u64> {
    process.packets.handlers().filter_map(EventHandler::deadline).min()
}

/// Returns true if that time has come.
fn is_due(process: &Process) -> bool {
    deadline(process).is_some_and(|at| at == 0 || at <= now_ns())
}

/// Gives memory back that is kept for requests which do not come, where that is due; after this thread has said that it
/// sleeps. Returns how long to sleep at most.
fn reap(process: &Process, at: &mut Option<u64>) -> Option<u64> {
    let source = process.objects.source()?;
    let now = now_ns();
    if at.is_none_or(|at| at <= now) {
        *at = source.reap().map(|ns| now + ns);
    }
    at.map(|at| at - now)
}

/// Goes on with work that waits. Returns how long to sleep; none for ever.
fn look_after(process: &'static Process, watched: &mut Vec<Watched>, tick: &mut u64) -> Option<u64> {
    for work in process.progress.pending() {
        if !watched.iter().any(|w| is_same(&*w.work, &*work)) {
            watched.push(Watched { looks: work.looks(), work, idle: 0 });
            *tick = FIRST_TICK_NS;
        }
    }
    let urgent = process.progress.take_urgent();
    let mut next: Option<u64> = None;
    let (mut app_polls, mut all_stand) = (false, true);
    watched.retain_mut(|w| {
        let looks = w.work.looks();
        let polled = looks != w.looks && !urgent;
        w.looks = looks;
        if !w.work.has_pending() {
            all_stand = false;
            w.idle += 1;
            if w.idle > LINGER && process.progress.unwatch(&*w.work) {
                return false;
            }
            return true;
        }
        w.idle = 0;
        if polled {
            (app_polls, all_stand) = (true, false);
            return true;
        }
        let until = match w.work.advance_for_progress() {
            Some(Progress::More) => 0,
            Some(Progress::Wait(until)) => until.saturating_sub(now_ns()).max(20_000),
            // A call that lets it go on has this thread look again.
            Some(Progress::Stopped) => return true,
            // Done, or another thread is at it.
            Some(Progress::Idle) | None => FIRST_TICK_NS,
        };
        all_stand = false;
        next = Some(next.map_or(until, |n| n.min(until)));
        true
    });
    if all_stand {
        *tick = FIRST_TICK_NS;
        return None;
    }
    *tick = if app_polls || next.is_none() { (*tick * 2).min(LAST_TICK_NS) } else { FIRST_TICK_NS };
    Some(next.map_or(*tick, |n| n.min(*tick)))
}

/// The descriptors that the thread sleeps on: the one by which peers wake it, those of news of the rendezvous and the
/// pollers, and those of packets that are watched this time.
struct Watch {
    fds: Vec<libc::pollfd>,
    /// The number of those that are always there.
    fixed: usize,
}

fn watched(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

impl Watch {
    fn new(process: &Process) -> Watch {
        let news = process.packets.handlers().filter_map(EventHandler::events_fd);
        let fixed = [process.own.wake_fd(), process.rendezvous.events_fd()].into_iter().chain(news);
        let fds: Vec<_> = fixed.map(watched).collect();
        Watch { fixed: fds.len(), fds }
    }

    fn forget_packets(&mut self) {
        self.fds.truncate(self.fixed);
    }

    fn packets(&mut self, fd: RawFd) {
        self.fds.push(watched(fd));
    }

    /// Sleeps; says whether the rendezvous or a poller has news.
    fn wait(&mut self, timeout: Option<u64>) -> bool {
        let time = timeout.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        });
        let time_ptr = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        self.fds.iter_mut().for_each(|fd| fd.revents = 0);
        // SAFETY: the array and the time live during the call.
        unsafe { libc::ppoll(self.fds.as_mut_ptr(), self.fds.len() as libc::nfds_t, time_ptr, std::ptr::null()) };
        if self.fds[0].revents != 0 {
            crate::host::eventfd::take(self.fds[0].fd);
        }
        self.fds[1..self.fixed].iter().any(|fd| fd.revents != 0)
    }
}
