//! Sleeping until a socket can go on: the one way in which calls wait, a call that blocks, rpoll and rselect alike.
//!
//! Several threads may wait for one socket, and any of them, or one that does not wait at all, may find what another
//! waits for. So each thread that sleeps has a descriptor of its own in what it polls, and stands in the list of each
//! socket that it waits for; a thread that changes a socket makes those descriptors readable.
//!
//! Calls on the library's own descriptors, here and in the other modules, is system calls: the functions of the C
//! library may be a preload's, by which a program's calls come here.

use std::cell::RefCell;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;

use crate::fabric::{Errno, Result};
use crate::settings::Settings;

/// Locks; what a thread that panicked left behind is as good as any state.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a thread that sleeps.
pub struct Waker(OwnedFd);

impl Waker {
    /// A new one.
    ///
    /// # Errors
    /// As of eventfd(2).
    pub fn new() -> Result<Waker> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Waker(rustix::event::eventfd(0, flags).map_err(|error| Errno(error.raw_os_error()))?))
    }

    /// The waker of the calling thread.
    fn own() -> Result<Arc<Waker>> {
        thread_local! {
            // And of which process: in a child of fork(2) it would wake, and be drained by, the parent's thread.
            static OWN: RefCell<Option<(u32, Arc<Waker>)>> = const { RefCell::new(None) };
        }
        let kept = OWN.try_with(|own| -> Result<Arc<Waker>> {
            let (mut own, here) = (own.borrow_mut(), std::process::id());
            match &*own {
                Some((process, waker)) if *process == here => Ok(waker.clone()),
                _ => {
                    let new = Arc::new(Waker::new()?);
                    // The parent's is left as it is: the child may have closed its descriptor long since.
                    mem::forget(own.replace((here, new.clone())));
                    Ok(new)
                }
            }
        });
        // A thread that ends has none any more.
        kept.unwrap_or_else(|_| Ok(Arc::new(Waker::new()?)))
    }

    /// Wakes the thread, now or at its next sleep.
    pub fn wake(&self) {
        // It fails when it is readable anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// The thread has woken.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The threads that sleep until a socket changes.
#[derive(Default)]
pub struct Waiters {
    count: AtomicUsize,
    list: Mutex<Vec<Arc<Waker>>>,
}

impl Waiters {
    /// The socket has changed: all of them look again, the caller too if it is one.
    pub fn wake(&self) {
        if self.count.load(Ordering::SeqCst) > 0 {
            lock(&self.list).iter().for_each(|waker| waker.wake());
        }
    }

    fn add(&self, waker: &Arc<Waker>) {
        lock(&self.list).push(waker.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn remove(&self, waker: &Arc<Waker>) {
        let mut list = lock(&self.list);
        if let Some(at) = list.iter().position(|other| Arc::ptr_eq(other, waker)) {
            list.swap_remove(at);
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// An object that threads wait for.
pub trait Waitable: Send + Sync {
    /// Does what can be done now.
    fn progress(&self);
    /// Has its descriptors report all events from now on. Earlier ones are found by [`Waitable::progress`].
    fn arm(&self);
    /// Appends its descriptors, with what is to be polled for.
    fn descriptors(&self, into: &mut Vec<libc::pollfd>);
    /// Takes from its descriptors what polling them has shown; as many as it appended.
    fn woken(&self, polled: &[libc::pollfd]);
    /// The threads that wait for it.
    fn waiters(&self) -> &Waiters;
}

/// Stands in the lists of sockets.
struct Listed<'a> {
    sockets: &'a [&'a dyn Waitable],
    waker: Arc<Waker>,
}

impl<'a> Listed<'a> {
    fn new(sockets: &'a [&'a dyn Waitable]) -> Result<Listed<'a>> {
        let waker = Waker::own()?;
        sockets.iter().for_each(|socket| socket.waiters().add(&waker));
        Ok(Listed { sockets, waker })
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.sockets.iter().for_each(|socket| socket.waiters().remove(&self.waker));
    }
}

/// Waits until `check` gives something, which it is asked after each progress of the sockets, or until a descriptor of
/// `others` is ready, whose results are left there; for how long, `deadline` says. None: the time is over.
///
/// # Errors
/// EINTR: a signal came; others as of poll(2).
pub fn wait<T>(
    sockets: &[&dyn Waitable],
    others: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mut check: impl FnMut(&mut [libc::pollfd]) -> Option<T>,
) -> Result<Option<T>> {
    let settings = Settings::get();
    let over = |deadline: Option<Instant>, now| deadline.is_some_and(|deadline| deadline <= now);
    let until = Instant::now() + settings.polling;
    loop {
        sockets.iter().for_each(|socket| socket.progress());
        if let Some(found) = check(others) {
            return Ok(Some(found));
        }
        let now = Instant::now();
        if over(deadline, now) {
            return Ok(None);
        }
        if now >= until {
            break;
        }
        std::hint::spin_loop();
    }
    let listed = Listed::new(sockets)?;
    let mut polled = Vec::with_capacity(others.len() + 2 * sockets.len() + 1);
    loop {
        for socket in sockets {
            socket.arm();
            socket.progress();
        }
        if let Some(found) = check(others) {
            return Ok(Some(found));
        }
        let now = Instant::now();
        if over(deadline, now) {
            return Ok(None);
        }
        polled.clear();
        polled.push(libc::pollfd { fd: listed.waker.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        polled.extend_from_slice(others);
        let mut ends = Vec::with_capacity(sockets.len());
        for socket in sockets {
            socket.descriptors(&mut polled);
            ends.push(polled.len());
        }
        let left = deadline.map_or(Duration::MAX, |deadline| deadline - now);
        let sleep = if sockets.is_empty() { left } else { left.min(settings.wake_up) };
        let ready = poll(&mut polled, sleep)?;
        if ready == 0 {
            continue;
        }
        if polled[0].revents != 0 {
            listed.waker.drain();
        }
        others.copy_from_slice(&polled[1..=others.len()]);
        let mut start = 1 + others.len();
        for (socket, end) in sockets.iter().zip(ends) {
            if polled[start..end].iter().any(|one| one.revents != 0) {
                socket.woken(&polled[start..end]);
            }
            start = end;
        }
    }
}

/// poll(2); not for longer than it can say.
///
/// # Errors
/// As of poll(2).
pub fn poll(polled: &mut [libc::pollfd], sleep: Duration) -> Result<usize> {
    // Rounded up: not to be back before the time.
    let milliseconds = i64::try_from(sleep.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX).min(i32::MAX.into());
    let mut time = libc::timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    // SAFETY: an array of that length, a time that the kernel may write to, and no set of signals.
    let ready = unsafe {
        let (array, length) = (polled.as_mut_ptr(), polled.len());
        libc::syscall(libc::SYS_ppoll, array, length, &raw mut time, ptr::null::<libc::sigset_t>(), 0_usize)
    };
    usize::try_from(ready).map_err(|_| Errno::last())
}

/// Runs `body` in a forked child; its result is the exit status.
#[cfg(test)]
pub fn in_a_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only this, and goes without the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
        // SAFETY: an integer.
        unsafe { libc::_exit(said) };
    }
    let mut status = 0;
    // SAFETY: room for the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WEXITSTATUS(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_sleeps_by_a_waker_of_its_own() {
        let own = Waker::own().unwrap();
        assert!(Arc::ptr_eq(&own, &Waker::own().unwrap()));
        let said = in_a_child(|| {
            let other = Waker::own().unwrap();
            i32::from(Arc::ptr_eq(&own, &other)) + i32::from(own.as_raw_fd() == other.as_raw_fd())
        });
        assert_eq!(said, 0);
        assert!(Arc::ptr_eq(&own, &Waker::own().unwrap()));
    }
}
