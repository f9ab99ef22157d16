//! fork(2): `ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`.
//!
//! A HCA writes to physical pages, so after a fork the page that the parent keeps may not be the one registered. Every
//! writer to memory registered here goes through the owner's page tables, where copy-on-write does the right thing for
//! parent and child. So nothing needs to be kept from the child, as on a kernel that copies pinned pages on fork.

use core::ffi::{c_int, c_void};

/// `IBV_FORK_UNNEEDED` of `enum ibv_fork_status`.
const FORK_UNNEEDED: c_int = 2;

/// Succeeds: fork is safe without preparation.
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// "Unneeded", which the man page says takes precedence over whether `ibv_fork_init` was called.
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    FORK_UNNEEDED
}

/// Succeeds; the range stays visible to children.
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Succeeds; the range never was hidden.
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
