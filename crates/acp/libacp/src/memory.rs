//! Registration of memory, and what a global address says.

use std::ffi::{c_int, c_void};
use std::ptr;

use vervain_acp::{GlobalAddress, Key, World};

use crate::{error, process};

/// `ACP_GA_NULL` and `ACP_ATKEY_NULL`.
const NULL: u64 = 0;

/// The address of a rank's starter memory.
pub extern "C" fn acp_query_starter_ga(rank: c_int) -> u64 {
    let Some(world) = process::rank_for("acp_query_starter_ga") else { return NULL };
    let starter = u32::try_from(rank).ok().and_then(|rank| world.starter(rank));
    if starter.is_none() {
        error::note("acp_query_starter_ga", format!("there is no rank {rank}: the job has {}", world.size()));
    }
    starter.map_or(NULL, |ga| ga.0)
}

/// Registers memory.
///
/// # Safety
/// The memory stays mapped until it is unregistered or the job is left.
pub unsafe extern "C" fn acp_register_memory(addr: *mut c_void, size: usize, color: c_int) -> u64 {
    let Some(world) = process::rank_for("acp_register_memory") else { return NULL };
    // SAFETY: the caller's promise.
    match unsafe { register(world, addr, size, color) } {
        Ok(key) => key.0,
        Err(why) => {
            error::note("acp_register_memory", why);
            NULL
        }
    }
}

/// # Safety
/// As of `acp_register_memory`.
unsafe fn register(world: &World, addr: *mut c_void, size: usize, color: c_int) -> Result<Key, String> {
    if addr.is_null() || addr.addr().checked_add(size).is_none() {
        return Err(format!("there is no memory of {size} B at {addr:p}"));
    }
    let color = u32::try_from(color).map_err(|_| format!("there is no color {color}"))?;
    // SAFETY: the caller's promise.
    unsafe { world.register_foreign(addr, size, color) }.map_err(|error| error.to_string())
}

/// Ends a registration.
pub extern "C" fn acp_unregister_memory(atkey: u64) -> c_int {
    let Some(world) = process::rank_for("acp_unregister_memory") else { return -1 };
    match world.unregister(Key(atkey)) {
        Ok(()) => 0,
        Err(error) => {
            error::note("acp_unregister_memory", error);
            -1
        }
    }
}

/// The global address of memory of a region.
pub extern "C" fn acp_query_ga(atkey: u64, addr: *mut c_void) -> u64 {
    let world = process::rank_for("acp_query_ga");
    world.and_then(|world| world.global(Key(atkey), addr)).map_or(NULL, |ga| ga.0)
}

/// The memory of a global address.
pub extern "C" fn acp_query_address(ga: u64) -> *mut c_void {
    let world = process::rank_for("acp_query_address");
    world.and_then(|world| world.address(GlobalAddress(ga))).unwrap_or(ptr::null_mut())
}

/// The rank of a global address.
pub extern "C" fn acp_query_rank(ga: u64) -> c_int {
    let world = process::rank_for("acp_query_rank");
    world.and_then(|world| world.rank_of(GlobalAddress(ga))).map_or(-1, u32::cast_signed)
}

/// The color of a global address.
pub extern "C" fn acp_query_color(ga: u64) -> c_int {
    let world = process::rank_for("acp_query_color");
    world.and_then(|world| world.color_of(GlobalAddress(ga))).map_or(-1, u32::cast_signed)
}
