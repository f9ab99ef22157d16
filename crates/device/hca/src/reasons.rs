//! Reasons why verbs and work requests of the program have failed (DESIGN decision 11). Each is a message at `info`. If
//! the program was started without `VERVAIN_LOG`, some are reported all the same, so that the user need not know the
//! variable: the first completion in error at once, for a program that reads it may abort; the first long wait while it
//! lasts; and the first reason of another kind when the program ends, since programs probe with verbs that fail.

use crate::host::cancel::Uncancelled;
use crate::host::lock::OwnerLock;
use std::fmt::Arguments;
use std::io::Write as _;
use std::time::{Duration, Instant};
use vervain_config::LOG;

/// Time for which the same message is not repeated.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The failures of a process.
struct Reasons {
    /// The process; a forked child begins anew.
    pid: u32,
    first: String,
    count: u64,
    /// Which of them, counted from 1, was reported at once.
    reported: Option<u64>,
}

static REASONS: OwnerLock<Option<Reasons>> = OwnerLock::new(None);

/// Reports why a verb, or the QP of a peer's request, has failed.
#[cold]
#[inline(never)]
pub fn tell(why: Arguments<'_>) {
    report(why, false);
}

/// Reports why a work request has completed in error; not for those that are flushed after it.
#[cold]
#[inline(never)]
pub fn tell_of_completion(why: Arguments<'_>) {
    report(why, true);
}

/// The waits that are reported ([`crate::hang`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    All,
    /// The first, once it is long: nobody has chosen a level.
    First,
    None,
}

/// The waits that are reported in this process.
pub(crate) fn waits_to_report() -> Waits {
    if log::log_enabled!(log::Level::Info) {
        Waits::All
    } else if vervain_config::is_log_level_chosen() {
        Waits::None
    } else {
        Waits::First
    }
}

/// Reports a wait that does not end.
#[cold]
pub(crate) fn tell_of_wait(why: &str) {
    match waits_to_report() {
        Waits::All => log::info!("{why}"),
        Waits::First => say(&format!("{why}; {}=info reports all such waits, after 1 s", LOG.name())),
        Waits::None => {}
    }
}

fn report(why: Arguments<'_>, is_completion: bool) {
    if log::log_enabled!(log::Level::Info) {
        log::info!("{why}");
    } else if !vervain_config::is_log_level_chosen() && keep(why, is_completion) {
        say(&format!("{why}; {}=info reports all failures as they happen", LOG.name()));
    }
}

/// Says why a verb has refused what programs try: at `info` only, and not again while it stays the same, for some post
/// until a queue has room.
#[cold]
#[inline(never)]
pub fn tell_what_is_no_failure(why: Arguments<'_>) {
    static LAST: OwnerLock<Option<(String, Instant)>> = OwnerLock::new(None);
    if !log::log_enabled!(log::Level::Info) {
        return;
    }
    let (why, now) = (why.to_string(), Instant::now());
    let mut last = LAST.lock();
    if !last.as_ref().is_some_and(|(told, at)| *told == why && now.duration_since(*at) < AGAIN_AFTER) {
        log::info!("{why}");
        *last = Some((why, now));
    }
}

/// Counts a failure; whether it is to be reported at once.
fn keep(why: Arguments<'_>, is_completion: bool) -> bool {
    let pid = std::process::id();
    let mut reasons = REASONS.lock();
    if reasons.is_none() {
        // SAFETY: a function of this library, which takes nothing and returns.
        unsafe { libc::atexit(tell_at_the_end) };
    }
    match &mut *reasons {
        Some(known) if known.pid == pid => known.add(is_completion),
        other => other.insert(Reasons { pid, first: why.to_string(), count: 0, reported: None }).add(is_completion),
    }
}

impl Reasons {
    /// Counts one more; whether it is to be reported at once.
    fn add(&mut self, is_completion: bool) -> bool {
        self.count += 1;
        let is_first = is_completion && self.reported.is_none();
        if is_first {
            self.reported = Some(self.count);
        }
        is_first
    }

    /// The message at the end of the program about failures that were not reported, with the way to see them all; None
    /// if there is none.
    fn summary(&self) -> Option<String> {
        let (first, count, log) = (&self.first, self.count, LOG.name());
        match (count, self.reported) {
            (1, Some(_)) => None,
            (1, None) => Some(format!("{first}; {log}=info reports it as it happens")),
            (_, Some(1)) => {
                Some(format!("{count} failures, the first as reported above; {log}=info reports each as it happens"))
            }
            _ => Some(format!("{first}; the first of {count} failures, {log}=info reports each as it happens")),
        }
    }
}

extern "C" fn tell_at_the_end() {
    let Some(reasons) = REASONS.try_lock() else { return };
    let known = reasons.as_ref().filter(|known| known.pid == std::process::id());
    if let Some(summary) = known.and_then(Reasons::summary) {
        say(&summary);
    }
}

/// Writes a line to standard error, in one piece.
fn say(what: &str) {
    let _whole = Uncancelled::begin();
    let _ = std::io::stderr().write_all(format!("vervain: {what}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_repeats_nothing_that_was_reported() {
        let summary = |count, reported| Reasons { pid: 0, first: "why".to_owned(), count, reported }.summary();
        assert_eq!(summary(1, Some(1)), None);
        assert_eq!(summary(1, None).unwrap(), "why; VERVAIN_LOG=info reports it as it happens");
        let several = "3 failures, the first as reported above; VERVAIN_LOG=info reports each as it happens";
        assert_eq!(summary(3, Some(1)).unwrap(), several);
        // The first was none of a completion, and has not been told.
        let first = "why; the first of 3 failures, VERVAIN_LOG=info reports each as it happens";
        assert_eq!(summary(3, Some(2)).unwrap(), first);
        assert_eq!(summary(3, None).unwrap(), first);
    }

    #[test]
    fn the_first_completion_in_error_is_reported_and_no_other() {
        let mut reasons = Reasons { pid: 0, first: "why".to_owned(), count: 0, reported: None };
        assert_eq!(
            [false, true, true, false].map(|is_completion| reasons.add(is_completion)),
            [false, true, false, false]
        );
        assert_eq!((reasons.count, reasons.reported), (4, Some(2)));
    }
}
