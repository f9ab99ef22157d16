//! The reports of an error: the errno value that a function returns, a sentence for `pmErrorString`, and one in the
//! log.

use std::cell::RefCell;
use std::env;
use std::ffi::{CString, c_char, c_int};
use std::io::{self, Write};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};

use vervain_pm::Error;

/// The last error of a thread.
enum Last {
    None,
    /// An error of a function that often has it: its text is made only when it is asked for.
    Plain(&'static str, &'static str),
    Text(CString),
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last::None) };
}

/// This process was forked from one that had joined a job: it has that one's memory, and nothing that moves messages.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The reason why the last failed function of this thread failed; see pm.h.
pub extern "C" fn pmErrorString() -> *const c_char {
    LAST.with_borrow_mut(|last| {
        if let Last::Plain(function, sentence) = *last {
            *last = Last::Text(text(format!("{function}: {sentence}")));
        }
        match last {
            Last::Text(text) => text.as_ptr(),
            _ => ptr::null(),
        }
    })
}

fn text(sentence: String) -> CString {
    CString::new(sentence.replace('\0', "")).unwrap_or_default()
}

/// 0, or the errno value of what went wrong.
#[inline]
pub fn status(function: &'static str, what: impl FnOnce() -> Result<(), Error>) -> c_int {
    let outcome = if FORKED.load(Ordering::Relaxed) { Err(in_a_child()) } else { what() };
    match outcome {
        Ok(()) => 0,
        Err(error) => note(function, &error),
    }
}

#[cold]
fn in_a_child() -> Error {
    Error::new(libc::EIO, "this process was forked from a node, and is none itself")
}

/// Keeps the sentence for `pmErrorString`, and writes it to the log; the errno value.
#[cold]
fn note(function: &'static str, error: &Error) -> c_int {
    let last = match error.as_static() {
        Some(sentence) => Last::Plain(function, sentence),
        None => {
            let sentence = format!("{function}: {error}");
            if is_logging() {
                print(&sentence);
            }
            Last::Text(text(sentence))
        }
    };
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|place| place.replace(last));
    error.errno()
}

/// Returns true if PM_LOG asks for the sentences on standard error. Not among them are those of calls that only have to
/// be tried again.
fn is_logging() -> bool {
    static LOGGING: OnceLock<bool> = OnceLock::new();
    *LOGGING.get_or_init(|| env::var_os("PM_LOG").is_some_and(|value| !value.is_empty() && value != "off"))
}

/// Prints a sentence on standard error, in one piece.
pub fn print(sentence: &str) {
    let _ = io::stderr().write_all(format!("pm: {sentence}\n").as_bytes());
}

/// The argument `name` is a null pointer.
#[cold]
pub fn null(name: &str) -> Error {
    Error::new(libc::EINVAL, format!("{name} is NULL"))
}

/// A child made by fork(2) has this memory and not the threads, nor does the job count it. There all functions fail.
pub fn watch_forks() {
    extern "C" fn in_the_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler stores into an atomic, which is allowed in the child of a process with threads, and its
        // code stays mapped (build.rs). It fails for want of memory only, and then children are told nothing.
        unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
}
