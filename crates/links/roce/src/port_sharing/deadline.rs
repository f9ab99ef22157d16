//! The end of a wait for other processes of the host. A process that can run answers once it gets a CPU, however busy
//! the machine is; so the clock ends a wait only if no process can run that would have to answer.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Longest wait for a process that can run: it may never answer, or stand still in a frozen control group, which its
/// state does not show.
const END: Duration = Duration::from_secs(60);
/// Interval of looks at the state of processes. Most waits end before the first.
const LOOK: Duration = Duration::from_millis(100);
/// A wait is reported after this.
const REPORTED_AFTER: Duration = Duration::from_secs(1);

/// When a wait is to end.
pub struct Deadline {
    at: SocketAddr,
    begin: Instant,
    /// The limit for processes that cannot run, or whose state cannot be seen.
    limit: Duration,
    /// When a process that can run was last seen; the beginning if none was.
    seen: Instant,
    next_look: Instant,
    is_reported: bool,
}

impl Deadline {
    /// The deadline of a wait for the processes that share port `at`.
    pub fn new(at: SocketAddr, now: Instant, limit: Duration) -> Deadline {
        Deadline { at, begin: now, limit, seen: now, next_look: now + LOOK, is_reported: false }
    }

    /// Time to wait before the next call; None: the wait is over. `look` returns a process that is waited for and can
    /// run, if there is one.
    pub fn left(&mut self, now: Instant, look: impl FnOnce() -> Option<i32>) -> Option<Duration> {
        if now >= self.next_look {
            self.next_look = now + LOOK;
            if let Some(pid) = look() {
                self.seen = now;
                self.report(now, pid);
            }
        }
        let end = (self.seen + self.limit).min(self.begin + END);
        let left = end.saturating_duration_since(now);
        (!left.is_zero()).then(|| left.min(LOOK))
    }

    /// Time since the beginning, if a process that can run has been waited for in vain.
    pub fn unanswered(&self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.begin);
        (waited >= END && self.seen > self.begin).then_some(waited)
    }

    fn report(&mut self, now: Instant, pid: i32) {
        let waited = now.saturating_duration_since(self.begin);
        if waited >= REPORTED_AFTER && !std::mem::replace(&mut self.is_reported, true) {
            let (at, s) = (self.at, waited.as_secs());
            log::info!("waiting for process {pid}, which shares {at}, for {s} s by now: it is not stopped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    fn deadline(begin: Instant) -> Deadline {
        Deadline::new(([127, 0, 0, 1], 4791).into(), begin, LIMIT)
    }

    #[test]
    fn processes_that_cannot_run_are_waited_for_up_to_the_limit() {
        let begin = Instant::now();
        let mut deadline = deadline(begin);
        assert_eq!(deadline.left(begin, || panic!("a look at once")), Some(LOOK));
        assert_eq!(deadline.left(at(begin, 1990), || None), Some(Duration::from_millis(10)));
        assert_eq!(deadline.left(at(begin, 2000), || None), None);
        assert_eq!(deadline.unanswered(at(begin, 70_000)), None);
    }

    #[test]
    fn a_process_that_can_run_is_waited_for_as_long_as_it_can() {
        let begin = Instant::now();
        let mut deadline = deadline(begin);
        for second in 1..60 {
            assert_eq!(deadline.left(at(begin, 1000 * second), || Some(7)), Some(LOOK));
        }
        assert_eq!(deadline.unanswered(at(begin, 59_000)), None);
        assert_eq!(deadline.left(at(begin, 60_000), || Some(7)), None);
        assert_eq!(deadline.unanswered(at(begin, 60_000)), Some(END));
    }

    #[test]
    fn a_process_that_is_stopped_meanwhile_is_waited_for_from_then_on_up_to_the_limit() {
        let begin = Instant::now();
        let mut deadline = deadline(begin);
        assert!(deadline.left(at(begin, 30_000), || Some(7)).is_some());
        assert!(deadline.left(at(begin, 31_990), || None).is_some());
        assert!(deadline.left(at(begin, 32_000), || None).is_none());
    }

    #[test]
    fn looks_are_not_made_more_often_than_their_interval() {
        let begin = Instant::now();
        let mut deadline = deadline(begin);
        let mut looks = 0;
        for ms in 0..1000 {
            let look = || {
                looks += 1;
                None
            };
            assert!(deadline.left(at(begin, ms), look).is_some());
        }
        assert_eq!(looks, 9);
    }
}
