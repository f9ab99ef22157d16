//! Global allocation.

use std::ffi::c_int;

use vervain_acp::GlobalAddress;

use crate::{error, process};

/// `ACP_GA_NULL`.
const NULL: u64 = 0;

/// Allocates memory of a rank's.
pub extern "C" fn acp_malloc(size: usize, rank: c_int) -> u64 {
    let Some(libraries) = process::libraries_for("acp_malloc") else { return NULL };
    let Ok(rank) = u32::try_from(rank) else {
        error::note("acp_malloc", format_args!("there is no rank {rank}"));
        return NULL;
    };
    if size == 0 {
        error::note("acp_malloc", "0 bytes are no block");
        return NULL;
    }
    match libraries.heap.allocate(size, rank) {
        Ok(Some(block)) => block.0,
        Ok(None) => {
            error::note("acp_malloc", format_args!("rank {rank} has no memory left for {size} bytes"));
            NULL
        }
        Err(error) => {
            error::note("acp_malloc", error::reason(&error));
            NULL
        }
    }
}

/// Frees memory of a rank's.
pub extern "C" fn acp_free(ga: u64) {
    let Some(libraries) = process::libraries_for("acp_free") else { return };
    if let Err(error) = libraries.heap.free(GlobalAddress(ga)) {
        // As with free(3): a program that frees memory that it does not have will not be right again.
        error::end_job(&format!("acp_free: {error}").into());
    }
}
