//! The parts of the device model that depend on the processor: instructions that Rust has no word for, and the
//! registers of a thread that has faulted. There is one file for each processor, all with the same functions; another
//! processor is refused here.
//!
//! - `guarded`: accesses to memory that may be gone, for [`super::guarded`];
//! - `word`: the calling thread's own words, for [`super::tid`];
//! - [`prefetch`] and [`prefetch_to_read`];
//! - [`STORES_IN_ORDER`] and [`EXCHANGES_ARE_BARRIERS`].

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Vervain knows x86-64 and AArch64 only");

/// One entry of the table of accesses: a fault in `[$from, $to)` goes on at `$on`. Each is an offset from its own
/// place.
macro_rules! guarded {
    ($from:literal, $to:literal, $on:literal) => {
        concat!(
            ".pushsection vervain_faults,\"aR\",@progbits\n.balign 4\n",
            ".long ",
            $from,
            " - .\n.long ",
            $to,
            " - .\n.long ",
            $on,
            " - .\n.popsection"
        )
    };
}

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{EXCHANGES_ARE_BARRIERS, STORES_IN_ORDER};
#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::{guarded, prefetch, prefetch_to_read, word};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{EXCHANGES_ARE_BARRIERS, STORES_IN_ORDER};
#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{guarded, prefetch, prefetch_to_read, word};
