//! Memory of other nodes.

use std::ffi::{c_char, c_int};

use vervain_pm::{AddrHandle, Direction, Error, Whom};

use crate::context::{Context, context, node, put};
use crate::error::status;
use crate::of_either;

/// `PM_NODE_ANY`.
const ANY: c_int = -1;

fn whom(rmt_node: c_int) -> Result<Whom, Error> {
    if rmt_node == ANY { Ok(Whom::Any) } else { node(rmt_node).map(Whom::Node) }
}

/// Locks memory.
///
/// # Safety
/// `pmc` is null or open, `handle` is null or a place for one; the memory stays mapped until it is unlocked.
pub unsafe extern "C" fn pmMLock(
    pmc: *mut Context,
    rmt_node: c_int,
    addr: *mut c_char,
    len: usize,
    handle: *mut u64,
) -> c_int {
    status("pmMLock", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let whom = whom(rmt_node)?;
        // SAFETY: the caller's promise, of the memory and of the place.
        unsafe { put(handle, "hndlp", || Ok(of_either!(context, c => c.lock(whom, addr.cast(), len))?.0)) }
    })
}

/// Unlocks it.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmMUnlock(pmc: *mut Context, rmt_node: c_int, addr: *mut c_char, len: usize) -> c_int {
    status("pmMUnlock", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let whom = whom(rmt_node)?;
        of_either!(context, c => c.unlock(whom, addr.cast(), len))
    })
}

/// # Safety
/// `pmc` is null or open.
#[inline]
unsafe fn copy(
    function: &'static str,
    direction: Direction,
    pmc: *mut Context,
    rmt_node: c_int,
    (remote, local): (u64, u64),
    len: usize,
) -> c_int {
    status(function, || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let node = node(rmt_node)?;
        of_either!(context, c => c.copy(direction, node, AddrHandle(remote), AddrHandle(local), len))
    })
}

/// Writes to a node's memory.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmWrite(pmc: *mut Context, rmt_node: c_int, rmt: u64, local: u64, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { copy("pmWrite", Direction::Write, pmc, rmt_node, (rmt, local), len) }
}

/// Reads from it.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmRead(pmc: *mut Context, rmt_node: c_int, rmt: u64, local: u64, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { copy("pmRead", Direction::Read, pmc, rmt_node, (rmt, local), len) }
}

/// Returns 0 if all writes are over, else an errno value.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmIsWriteDone(pmc: *mut Context) -> c_int {
    status("pmIsWriteDone", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.is_copied(Direction::Write))
    })
}

/// Returns 0 if all reads are over, else an errno value.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmIsReadDone(pmc: *mut Context) -> c_int {
    status("pmIsReadDone", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.is_copied(Direction::Read))
    })
}
