//! The end of an error: a sentence that `acp_error` returns, or the end of the job.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, ptr, thread};

use vervain_acp::Error;

use crate::process;

thread_local! {
    /// The last sentence of this thread.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// The reason why the last failed function of this thread failed; see acp.h.
pub extern "C" fn acp_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ref().map_or(ptr::null(), |sentence| sentence.as_ptr()))
}

/// Forgets why it did; see acp.h.
pub extern "C" fn acp_clear_error() {
    LAST.set(None);
}

/// Notes for `acp_error` why `function` fails.
#[cold]
pub fn note(function: &str, why: impl Display) {
    let sentence = CString::new(format!("{function}: {why}").replace('\0', "")).unwrap_or_default();
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| last.replace(Some(sentence)));
}

/// The reason of a refusal; an error of a broken job ends it.
#[cold]
pub fn reason(error: &Error) -> String {
    if !error.is_refused() {
        end_job(error);
    }
    error.to_string()
}

/// Ends all ranks of the job with the error's sentence. The engine calls it too, from the thread that has found the job
/// broken.
#[cold]
pub fn end_job(error: &Error) {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Ordering::AcqRel) {
        // Another thread has said it, and ends this process in a moment.
        thread::sleep(Duration::from_secs(10));
    }
    abort(&error.to_string())
}

/// Ends all ranks of the job, and in any case this process.
pub fn abort(sentence: &str) -> ! {
    if let Some(ender) = process::ender() {
        ender.abort(sentence);
    }
    print(sentence);
    // A launcher ends the other ranks when one ends with such a status.
    // SAFETY: the call ends the process; it touches no memory of it.
    unsafe { libc::_exit(1) }
}

/// Prints a sentence on standard error, in one piece.
pub fn print(sentence: &str) {
    let _ = io::stderr().write_all(format!("acp: {sentence}\n").as_bytes());
}
