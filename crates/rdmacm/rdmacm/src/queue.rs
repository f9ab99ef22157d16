//! The queue of an event channel: events in the order of their coming, and the descriptor that reports them.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::reports::{Handle, Report, What};

/// The number of events of an identifier that the program has and has not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    events: Mutex<usize>,
    acknowledged: Condvar,
}

impl Outstanding {
    fn events(&self) -> MutexGuard<'_, usize> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is none.
    pub fn wait(&self) {
        let left = self.acknowledged.wait_while(self.events(), |left| *left > 0);
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }
}

/// One of them, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held(Arc<Outstanding>);

impl Held {
    fn new(of: Arc<Outstanding>) -> Held {
        *of.events() += 1;
        Held(of)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut left = self.0.events();
        *left -= 1;
        if *left == 0 {
            self.0.acknowledged.notify_all();
        }
    }
}

/// An event, and whose it is.
#[derive(Debug)]
pub(crate) struct Queued {
    pub id: Handle,
    pub outstanding: Arc<Outstanding>,
    pub report: Report,
}

/// The events of an identifier, on their way to the program.
pub(crate) struct Events {
    id: Handle,
    queue: Arc<Queue>,
    outstanding: Arc<Outstanding>,
}

impl Events {
    pub fn new(id: Handle, queue: Arc<Queue>) -> Events {
        Events { id, queue, outstanding: Arc::default() }
    }

    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Those that the program has and has not acknowledged.
    pub fn outstanding(&self) -> &Arc<Outstanding> {
        &self.outstanding
    }

    pub fn push(&self, report: Report) {
        self.queue.push(Queued { id: self.id, outstanding: Arc::clone(&self.outstanding), report });
    }

    /// They go to another queue from now on, those that have come too.
    pub fn migrate(&mut self, to: &Arc<Queue>) {
        let from = std::mem::replace(&mut self.queue, Arc::clone(to));
        from.take(self.id).into_iter().for_each(|event| to.push(event));
    }

    /// Takes out those that the program has not.
    pub fn withdraw(&self) {
        self.queue.take(self.id);
    }

    /// Takes out certain ones that the program has not.
    pub fn withdraw_if(&self, is_wanted: impl Fn(&What) -> bool) {
        self.queue.take_if(|event| event.id == self.id && is_wanted(&event.report.what));
    }
}

/// Events that wait for `rdma_get_cm_event`.
pub(crate) struct Queue {
    /// A semaphore: it counts the events, each of which makes it readable anew, for those who ask for edges too.
    fd: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Queued>,
    /// Events that were taken away after a reader had counted them down, which finds out when it comes for them.
    counted: usize,
}

impl Queue {
    pub fn new() -> Result<Queue, c_int> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).map_err(|e| e.raw_os_error())?;
        Ok(Queue { fd, state: Mutex::default() })
    }

    /// To poll, and to make non-blocking.
    pub fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, event: Queued) {
        let mut state = self.state();
        state.events.push_back(event);
        // It would have to count to 2^64 - 1 to fail.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// The next event, which is waited for unless the program has made the descriptor non-blocking. EAGAIN, EINTR. It
    /// counts as the program's from the moment that it is taken: who destroys the identifier takes its events first,
    /// and then waits for those that are held.
    pub fn next(&self) -> Result<(Queued, Held), c_int> {
        loop {
            let mut count = [0; 8];
            rustix::io::read(&self.fd, &mut count).map_err(|e| e.raw_os_error())?;
            if let Some(counted) = self.counted_down() {
                return Ok(counted);
            }
        }
    }

    /// The event that the caller has counted down; None if it was taken away in between.
    fn counted_down(&self) -> Option<(Queued, Held)> {
        let mut state = self.state();
        if let Some(left) = state.counted.checked_sub(1) {
            state.counted = left;
            return None;
        }
        let event = state.events.pop_front()?;
        let held = Held::new(Arc::clone(&event.outstanding));
        Some((event, held))
    }

    /// Takes out the events of an identifier.
    pub fn take(&self, of: Handle) -> Vec<Queued> {
        self.take_if(|event| event.id == of)
    }

    /// Takes out certain events.
    pub fn take_if(&self, is_wanted: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let mut state = self.state();
        let (taken, left): (Vec<_>, Vec<_>) = state.events.drain(..).partition(is_wanted);
        state.events = left.into();
        state.counted += taken.iter().filter(|_| !self.uncount()).count();
        taken
    }

    /// An event less; false if a reader has counted it already. It never waits.
    fn uncount(&self) -> bool {
        let mut count = [0u8; 8];
        let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: one buffer of that length; a descriptor without a place is asked for at -1.
        unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const into, 1, -1, libc::RWF_NOWAIT) > 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::RDMA_CM_EVENT_ESTABLISHED;
    use rustix::event::{PollFd, PollFlags, poll};

    fn is_readable(queue: &Queue) -> bool {
        let mut fds = [PollFd::new(&queue.fd, PollFlags::IN)];
        poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    fn event(id: Handle) -> Queued {
        Queued { id, outstanding: Arc::default(), report: Report::plain(RDMA_CM_EVENT_ESTABLISHED, 0) }
    }

    #[test]
    fn what_is_taken_away_is_not_counted_any_more() {
        let queue = Queue::new().unwrap();
        [1, 2, 1, 3].into_iter().for_each(|id| queue.push(event(id)));
        assert_eq!(queue.take(1).len(), 2);
        assert_eq!(queue.next().unwrap().0.id, 2);
        assert!(is_readable(&queue));
        assert_eq!(queue.next().unwrap().0.id, 3);
        assert!(!is_readable(&queue));
    }

    #[test]
    fn who_has_counted_an_event_that_is_taken_away_does_not_get_the_next_one_uncounted() {
        let queue = Queue::new().unwrap();
        queue.push(event(1));
        // A reader has got so far.
        rustix::io::read(&queue.fd, &mut [0u8; 8]).unwrap();
        assert_eq!(queue.take(1).len(), 1);
        queue.push(event(2));
        assert!(queue.counted_down().is_none(), "its event is gone");
        assert!(is_readable(&queue));
        assert_eq!(queue.next().unwrap().0.id, 2);
        assert!(!is_readable(&queue));
    }
}
