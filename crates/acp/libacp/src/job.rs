//! The job: `acp_init` to `acp_finalize`, numbers of ranks, synchronization, abort.

use std::ffi::{CStr, c_char, c_int};

use crate::{error, process};

/// 0 or -1, as most functions answer.
fn status(function: &str, result: Result<(), String>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(why) => {
            error::note(function, why);
            -1
        }
    }
}

/// Joins the job. The arguments are left as they are: no launcher passes anything to us in them.
pub extern "C" fn acp_init(_argc: *mut c_int, _argv: *mut *mut *mut c_char) -> c_int {
    let joined = process::join();
    if let Err(why) = &joined {
        error::print(why);
    }
    status("acp_init", joined)
}

/// Leaves the job.
pub extern "C" fn acp_finalize() -> c_int {
    status("acp_finalize", process::leave())
}

/// Starts again under a new number.
pub extern "C" fn acp_reset(rank: c_int) -> c_int {
    let renumbered = match u32::try_from(rank) {
        Ok(rank) => process::renumber(rank),
        Err(_) => Err(format!("there is no rank {rank}")),
    };
    status("acp_reset", renumbered)
}

/// Ends all ranks of the job.
///
/// # Safety
/// `sentence` is null or a string.
pub unsafe extern "C" fn acp_abort(sentence: *const c_char) {
    if sentence.is_null() {
        error::abort("acp_abort was called");
    }
    // SAFETY: the caller's promise.
    let sentence = unsafe { CStr::from_ptr(sentence) };
    error::abort(sentence.to_string_lossy().trim_end())
}

/// Waits for all ranks.
pub extern "C" fn acp_sync() -> c_int {
    match process::rank_for("acp_sync") {
        Some(world) => status("acp_sync", world.sync().map_err(|error| error::reason(&error))),
        None => -1,
    }
}

/// This rank's number.
pub extern "C" fn acp_rank() -> c_int {
    process::rank_for("acp_rank").map_or(-1, |world| world.rank().cast_signed())
}

/// The number of ranks.
pub extern "C" fn acp_procs() -> c_int {
    process::rank_for("acp_procs").map_or(-1, |world| world.size().cast_signed())
}

/// The number of colors.
pub extern "C" fn acp_colors() -> c_int {
    process::rank_for("acp_colors").map_or(-1, |world| world.colors().cast_signed())
}
