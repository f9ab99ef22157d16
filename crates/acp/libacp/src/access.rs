//! Access to global memory: copies, atomics, completion.

use std::ffi::c_int;

use vervain_acp::{Atomic, GlobalAddress, Handle, Order};

use crate::{error, process};

/// `ACP_HANDLE_NULL`.
const NULL: i64 = 0;
/// `ACP_HANDLE_ALL`, as `acp_handle_t` has it.
const ALL: i64 = -1;
/// `ACP_HANDLE_CONT`, as `acp_handle_t` has it.
const CONTINUE: i64 = -2;

/// The order of an order argument; None if it was never a handle.
#[inline]
fn order_of(handle: i64) -> Option<Order> {
    match handle {
        NULL => Some(Order::Now),
        ALL => Some(Order::All),
        CONTINUE => Some(Order::Continue),
        _ => Handle::new(handle).map(Order::After),
    }
}

/// The handle of an access, or null if it was refused.
#[inline]
fn issued(function: &str, result: vervain_acp::Result<Handle>) -> i64 {
    match result {
        Ok(handle) => handle.get(),
        Err(error) => {
            error::note(function, error::reason(&error));
            NULL
        }
    }
}

#[cold]
fn no_order(function: &str, order: i64) -> i64 {
    error::note(function, format_args!("the order {order} is no handle"));
    NULL
}

/// Copies memory.
pub extern "C" fn acp_copy(dst: u64, src: u64, size: usize, order: i64) -> i64 {
    let Some(world) = process::rank_for("acp_copy") else { return NULL };
    let Some(order) = order_of(order) else { return no_order("acp_copy", order) };
    issued("acp_copy", world.copy(GlobalAddress(dst), GlobalAddress(src), size, order))
}

#[inline]
fn atomic(function: &str, dst: u64, src: u64, what: Atomic, order: i64) -> i64 {
    let Some(world) = process::rank_for(function) else { return NULL };
    let Some(order) = order_of(order) else { return no_order(function, order) };
    issued(function, world.atomic(GlobalAddress(dst), GlobalAddress(src), what, order))
}

/// Compare and swap.
pub extern "C" fn acp_cas4(dst: u64, src: u64, oldval: u32, newval: u32, order: i64) -> i64 {
    atomic("acp_cas4", dst, src, Atomic::CompareSwap4 { expected: oldval, new: newval }, order)
}

/// Compare and swap.
pub extern "C" fn acp_cas8(dst: u64, src: u64, oldval: u64, newval: u64, order: i64) -> i64 {
    atomic("acp_cas8", dst, src, Atomic::CompareSwap8 { expected: oldval, new: newval }, order)
}

macro_rules! atomics {
    ($($name:ident $word:ty => $what:ident;)+) => {$(
        /// A word becomes itself combined with `value`.
        pub extern "C" fn $name(dst: u64, src: u64, value: $word, order: i64) -> i64 {
            atomic(stringify!($name), dst, src, Atomic::$what(value), order)
        }
    )+};
}

atomics! {
    acp_swap4 u32 => Swap4;
    acp_swap8 u64 => Swap8;
    acp_add4 u32 => Add4;
    acp_add8 u64 => Add8;
    acp_xor4 u32 => Xor4;
    acp_xor8 u64 => Xor8;
    acp_or4 u32 => Or4;
    acp_or8 u64 => Or8;
    acp_and4 u32 => And4;
    acp_and8 u64 => And8;
}

/// Waits for an access and all before it.
pub extern "C" fn acp_complete(handle: i64) {
    let Some(world) = process::rank_for("acp_complete") else { return };
    let done = match handle {
        ALL | CONTINUE => world.complete_all(),
        _ => Handle::new(handle).map_or(Ok(()), |handle| world.complete(handle)),
    };
    // There is nothing that a completion could be refused for.
    if let Err(error) = done {
        error::end_job(&error);
    }
}

/// Returns 0 if an access and all before it are complete, else 1.
pub extern "C" fn acp_inquire(handle: i64) -> c_int {
    let Some(world) = process::rank_for("acp_inquire") else { return -1 };
    let done = match handle {
        ALL | CONTINUE => world.all_complete(),
        _ => Handle::new(handle).map_or(Ok(true), |handle| world.is_complete(handle)),
    };
    match done {
        Ok(done) => c_int::from(!done),
        Err(error) => {
            error::end_job(&error);
            -1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_told_apart() {
        assert!(matches!(order_of(NULL), Some(Order::Now)));
        assert!(matches!(order_of(u64::MAX.cast_signed()), Some(Order::All)));
        assert!(matches!(order_of((u64::MAX - 1).cast_signed()), Some(Order::Continue)));
        assert!(matches!(order_of(7), Some(Order::After(handle)) if handle.get() == 7));
        assert!(order_of(-3).is_none() && order_of(i64::MIN).is_none());
    }

    #[test]
    fn a_process_that_is_no_rank_gets_failures_and_the_reason() {
        assert_eq!(acp_copy(1, 1, 1, NULL), NULL);
        let sentence = error::acp_error();
        // SAFETY: a sentence of this thread, which has no other since.
        let sentence = unsafe { std::ffi::CStr::from_ptr(sentence) };
        assert_eq!(sentence.to_str(), Ok("acp_copy: acp_init has not been called"));
        acp_complete(1);
        assert_eq!(acp_inquire(1), -1);
    }
}
