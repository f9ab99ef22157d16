//! What the library tells a person, on stderr. `VERVAIN_LOG` (off, error, warn, info, debug, trace; default warn) says how
//! much. Programs often try what may fail, so a verb that fails is told at `info` only; that no device can be opened, at
//! `error`.

use core::ffi::c_int;
use core::fmt;
use std::env;
use std::io::Write as _;
use std::sync::OnceLock;

use vervain_hca::Error;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Off,
    Error,
    Warn,
    Info,
}

/// The level that was asked for; an unknown word counts as the default, since `vervain run` has checked it.
fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match env::var("VERVAIN_LOG").as_deref() {
        Ok("off") => Level::Off,
        Ok("error") => Level::Error,
        Ok("info" | "debug" | "trace") => Level::Info,
        _ => Level::Warn,
    })
}

/// A program may have closed its stderr; that must not end it.
fn say(what: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "vervain: {what}");
}

/// Says why nothing will work.
pub(crate) fn error(what: fmt::Arguments<'_>) {
    if level() >= Level::Error {
        say(format_args!("error: {what}"));
    }
}

/// Says why a verb fails, and gives its errno.
#[cold]
pub(crate) fn failed(e: &Error) -> c_int {
    // That a non-blocking descriptor has nothing to read is no failure.
    if level() >= Level::Info && e.errno() != libc::EAGAIN {
        say(format_args!("info: {e} (errno {})", e.errno()));
    }
    e.errno()
}
