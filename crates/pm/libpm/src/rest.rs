//! Standing still, saving and restoring, checkpoints.

use std::env;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use vervain_pm::Error;

use crate::context::{Context, Way, context, put};
use crate::error::status;
use crate::of_either;

/// The program's part of a checkpoint: its argument, and the number.
type Callback = unsafe extern "C" fn(*mut c_void, c_int);

/// Stops all sending, or has it go on.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmControlSend(pmc: *mut Context, on: c_int) -> c_int {
    status("pmControlSend", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.control_send(on != 0))
    })
}

/// Begins to settle.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmSendStable(pmc: *mut Context) -> c_int {
    status("pmSendStable", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.send_stable())
    })
}

/// Returns 0 if it has, else an errno value.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmIsSendStable(pmc: *mut Context) -> c_int {
    status("pmIsSendStable", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.is_send_stable())
    })
}

/// The context itself: that of a composite one is in its members.
fn one(context: &Context) -> Result<&vervain_pm::Context, Error> {
    match &context.way {
        Way::One(context) => Ok(context),
        Way::Composite(..) => {
            Err(Error::new(libc::EINVAL, "of a composite context its members are saved and restored"))
        }
    }
}

/// The file of a call.
///
/// # Safety
/// It stays open during the call.
unsafe fn file<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Error> {
    if fd < 0 {
        return Err(Error::new(libc::EBADF, format!("{fd} is no descriptor")));
    }
    // SAFETY: not -1; the caller's promise.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Writes an image.
///
/// # Safety
/// `pmc` is null or open; `fd` stays open during the call.
pub unsafe extern "C" fn pmSaveContext(pmc: *mut Context, fd: c_int) -> c_int {
    status("pmSaveContext", || {
        // SAFETY: the caller's promise.
        let (context, file) = unsafe { (context(pmc)?, file(fd)) };
        one(context)?.save(file)
    })
}

/// Makes a context what an image says.
///
/// # Safety
/// As [`pmSaveContext`].
pub unsafe extern "C" fn pmRestoreContext(pmc: *mut Context, fd: c_int) -> c_int {
    status("pmRestoreContext", || {
        // SAFETY: the caller's promise.
        let (context, file) = unsafe { (context(pmc)?, file(fd)) };
        one(context)?.restore(file)
    })
}

/// The folder of checkpoints.
fn directory() -> Result<PathBuf, Error> {
    let directory = env::var_os("PM_CHECKPOINT").filter(|directory| !directory.is_empty());
    directory.map(PathBuf::from).ok_or_else(|| Error::new(libc::EINVAL, "PM_CHECKPOINT names no directory"))
}

/// Makes a checkpoint.
///
/// # Safety
/// `pmc` is null or open; `callback` is null or may be called with `arg`.
pub unsafe extern "C" fn pmCheckpoint(pmc: *mut Context, callback: Option<Callback>, arg: *mut c_void) -> c_int {
    status("pmCheckpoint", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let (context, directory) = (one(context)?, directory());
        context.checkpoint(directory.as_deref().map_err(Clone::clone), |number| {
            if let Some(callback) = callback {
                // SAFETY: the caller's promise.
                unsafe { callback(arg, number) };
            }
        })
    })
}

/// Makes one if it is asked for.
///
/// # Safety
/// As [`pmCheckpoint`].
pub unsafe extern "C" fn pmCheckpointIfAsked(pmc: *mut Context, callback: Option<Callback>, arg: *mut c_void) -> c_int {
    status("pmCheckpointIfAsked", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let made = one(context)?.checkpoint_if_asked(directory, |number| {
            if let Some(callback) = callback {
                // SAFETY: the caller's promise.
                unsafe { callback(arg, number) };
            }
        });
        made.map(|_| ())
    })
}

/// Goes on from the last one.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmRestartUser(pmc: *mut Context) -> c_int {
    status("pmRestartUser", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let (context, directory) = (one(context)?, directory());
        context.restart(directory.as_deref().map_err(Clone::clone)).map(|_| ())
    })
}

/// The number of the last checkpoint.
///
/// # Safety
/// `pmc` is null or open, `number` is null or a place for a number.
pub unsafe extern "C" fn pmGetCheckpoint(pmc: *mut Context, number: *mut c_int) -> c_int {
    status("pmGetCheckpoint", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let none = || Error::new(libc::ENOENT, "no checkpoint was made or restarted from");
        // SAFETY: the caller's promise.
        unsafe { put(number, "numberp", || one(context)?.last_checkpoint().ok_or_else(none)) }
    })
}
