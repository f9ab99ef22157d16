//! The memory layout of libibverbs' public structs, as clients compile it in.
//!
//! Names, fields and constants are those of `<infiniband/verbs.h>` of rdma-core v65. That layout is a superset of every
//! older one: structs that clients pass in grow at the end, and `verbs_context` grows downwards in memory ("upwards" in
//! the header's words), so the offsets an old client compiled in stay true. `tests/layout.rs` holds the sizes and
//! offsets, and compiles a C program against the system's header to compare.
//!
//! An enum of the header is a plain integer here: its value comes from the client and may be anything, which a Rust
//! enum must not be.
#![allow(non_camel_case_types, reason = "the names are the header's")]
#![allow(missing_docs, reason = "the fields are documented by the man pages of libibverbs-dev, section 3")]

mod ah;
mod context;
mod cq;
mod device;
mod event;
mod functions;
mod mr;
mod port;
mod qp;
mod qp_ex;
mod sa;
mod srq;
mod wr;

pub use ah::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use event::*;
pub use mr::*;
pub use port::*;
pub use qp::*;
pub use qp_ex::*;
pub use sa::*;
pub use srq::*;
pub use wr::*;
