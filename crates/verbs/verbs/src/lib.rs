//! The C ABI of libibverbs: the functions behind its exported symbols, over the structs of [`abi`].
//!
//! This crate translates. It turns C structs into the device model's (`vervain-hca`) arguments, and the device model's
//! errors into the errno that the man page promises; it holds no policy and no protocol. The `libibverbs` crate gives
//! the functions their versioned symbol names. The hot path is `post::post_send` and `cq::poll_cq`.
#![allow(
    clippy::missing_safety_doc,
    reason = "every unsafe function here is called from C, and safe under the conditions of its man page, section 3"
)]

pub use vervain_abi as abi;
mod ah;
mod ah_from_wc;
mod async_event;
mod comp_channel;
mod context;
mod cq;
mod cq_ex;
mod device_list;
mod dm;
mod errno;
mod fork;
mod gsi;
mod image;
mod marshal;
mod mr;
mod mw;
mod object;
mod opening;
mod ordered;
mod pd;
mod post;
mod qp;
mod query;
mod rates;
mod registry;
mod restore;
mod same;
mod save;
mod srq;
mod standing;
mod strings;
mod sysfs;
mod wr;
mod xrc_target;
mod xrcd;

pub use ah::*;
pub use async_event::*;
pub use comp_channel::*;
pub use context::*;
pub use cq::*;
pub use device_list::*;
pub use dm::*;
pub use fork::*;
pub use gsi::vervain_gsi;
pub use marshal::*;
pub use mr::*;
pub use pd::*;
pub use qp::*;
pub use query::*;
pub use rates::*;
pub use restore::*;
pub use save::*;
pub use srq::*;
pub use standing::*;
pub use strings::*;
pub use sysfs::*;

/// Initialises the library when it is loaded: before the program's own code runs, or before dlopen(3) returns.
pub extern "C" fn library_is_loaded() {
    vervain_hca::process::share_api::process_uses_verbs();
}
