//! The machine under the device, which knows nothing of verbs: memory that may go away, locks that survive their
//! holder, copies, barriers, waking and waiting, and what the kernel says of the network.

pub mod address_map;
mod arch;
pub(crate) mod atomic;
pub mod barrier;
pub(crate) mod bits;
pub mod cancel;
pub mod clock;
pub mod copy;
pub(crate) mod dense;
pub mod eventfd;
pub(crate) mod faults;
pub mod guarded;
pub mod lock;
pub(crate) mod mapping;
pub(crate) mod network;
pub(crate) mod pinnable;
pub(crate) mod prefetch;
pub(crate) mod random;
pub mod signals;
pub mod spin_budget;
pub(crate) mod sysv;
pub mod tid;
pub(crate) mod yield_policy;

pub(crate) use arch::{EXCHANGES_ARE_BARRIERS, STORES_IN_ORDER};
