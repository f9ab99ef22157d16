//! The way in which a worker waits: it spins, as programs do that want low latency, and now and then checks that it
//! still should.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use vervain_rdma::{Completion, Cq};

/// Set by the control thread: what runs shall end.
pub type Stop = AtomicBool;

/// Looks between two looks at the clock and the flag, of which one costs some ns where memory is polled.
const LOOKS: u32 = 1 << 14;

/// One wait.
pub struct Wait<'a> {
    stop: &'a Stop,
    limit: Duration,
    looks: u32,
    since: Option<Instant>,
}

impl<'a> Wait<'a> {
    /// Gives up after about `limit`.
    pub fn new(stop: &'a Stop, limit: Duration) -> Self {
        Self { stop, limit, looks: 0, since: None }
    }

    /// After each look that found nothing: whether to go on. False: it was stopped.
    #[inline]
    pub fn again(&mut self) -> Result<bool> {
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS) { self.consider() } else { Ok(true) }
    }

    /// Another process may have to run on this CPU for the answer to come.
    #[cold]
    fn consider(&mut self) -> Result<bool> {
        thread::yield_now();
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > self.limit {
            bail!("nothing came for {:.0?}: a message was lost, or the other end is stuck", self.limit);
        }
        Ok(!self.stop.load(Ordering::Relaxed))
    }

    /// Waits for at least one completion. 0: it was stopped.
    #[inline]
    pub fn completions(mut self, cq: &Cq, into: &mut [Completion]) -> Result<usize> {
        loop {
            let found = cq.poll(into)?;
            if found > 0 {
                return Ok(found);
            }
            if !self.again()? {
                return Ok(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_is_stopped_or_over() {
        let stop = Stop::new(true);
        let mut wait = Wait::new(&stop, Duration::from_secs(3600));
        let looks = (0..).take_while(|_| wait.again().expect("not late")).count();
        assert_eq!(looks, LOOKS as usize - 1);

        let go_on = Stop::new(false);
        let mut wait = Wait::new(&go_on, Duration::ZERO);
        let error = std::iter::from_fn(|| Some(wait.again())).find_map(Result::err).expect("late");
        assert!(error.to_string().contains("nothing came"), "{error}");
    }
}
