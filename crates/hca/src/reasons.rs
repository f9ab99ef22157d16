//! Why verbs and work requests of the program have failed (DESIGN decision 11). Each reason is a message at `info`. Where the
//! program was started without `VERVAIN_LOG`, the first one is told when it ends, so that nobody has to know the variable to
//! learn why.

use crate::host::lock::OwnerLock;
use std::fmt::Arguments;
use std::io::Write as _;
use std::time::{Duration, Instant};
use vervain_config::LOG;

/// How long the same is not told again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a process has failed in.
struct Reasons {
    /// The process; a forked child begins anew.
    pid: u32,
    first: String,
    count: u64,
}

static REASONS: OwnerLock<Option<Reasons>> = OwnerLock::new(None);

/// Says why a verb or a work request has failed.
#[cold]
#[inline(never)]
pub fn tell(why: Arguments<'_>) {
    if log::log_enabled!(log::Level::Info) {
        log::info!("{why}");
    } else if !vervain_config::is_log_level_chosen() {
        keep(why);
    }
}

/// Says why a verb has refused what programs try: at `info` only, and not again while it stays the same, for some post until
/// a queue has room.
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

fn keep(why: Arguments<'_>) {
    let pid = std::process::id();
    let mut reasons = REASONS.lock();
    match &mut *reasons {
        Some(known) if known.pid == pid => known.count += 1,
        known => {
            let is_registered = known.is_some();
            *known = Some(Reasons { pid, first: why.to_string(), count: 1 });
            if !is_registered {
                // SAFETY: a function of this library, which takes nothing and returns.
                unsafe { libc::atexit(tell_the_first) };
            }
        }
    }
}

/// At the end of the program: a line with the first reason and the way to see the others.
extern "C" fn tell_the_first() {
    let Some(reasons) = REASONS.try_lock() else { return };
    let Some(known) = reasons.as_ref().filter(|known| known.pid == std::process::id()) else { return };
    let line = match known.count {
        1 => format!("vervain: {}; {}=info reports it as it happens\n", known.first, LOG.name()),
        count => format!(
            "vervain: {}; the first of {count} failures, {}=info reports each as it happens\n",
            known.first,
            LOG.name()
        ),
    };
    let _ = std::io::stderr().write_all(line.as_bytes());
}
