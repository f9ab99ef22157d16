//! The device model of Vervain: protection domains, memory keys, queues, queue pairs and completion queues, kept in
//! shared-memory arenas, and the one responder that every link's operations end in.
//!
//! This crate knows neither C structs (crate `vervain-verbs`) nor sockets and packets (the crates of `crates/links`).
//!
//! The rooms, each of which uses those above it only:
//!
//! - `error`: what is said when something is refused; the words of the specification are the crate `vervain-iba`.
//! - [`host`]: the machine under the device. It knows nothing of verbs.
//! - [`adopt`]: private memory that is moved onto shared pages while it is registered.
//! - [`arena`]: the memory of a process that its peers map, and what lies in it.
//! - [`device`]: what the host offers.
//! - [`process`]: this process and its peers: gates, keys, doorbells, shared objects, revocation, the progress thread.
//! - [`context`]: opened devices, protection domains, async events.
//! - [`rq`], [`cq`], [`srq`] and [`mr`]: receive queues, completion queues, shared receive queues, memory.
//! - [`responder`]: what an operation does at the far side. `lane`: the way into a QP as its owner has it.
//!   `owner_copy`: where the owner of the memory has to do what an initiator asks for.
//! - [`qp`]: queue pairs, with the send queue and its requester in [`qp::sq`], and the carriers of what memory does not
//!   reach.
//! - [`hang`]: reports of waits of a program that do not end, found by a look now and then.
//!
//! To follow an RDMA Write from `ibv_post_send` to the peer's memory, read: `vervain-verbs`' `post` (C work request to
//! [`SendRequest`]), [`qp::sq::fast_path`] (what is done at once; the long way is `qp::sq` and its `requester`) and
//! [`responder`] with [`mr::transfer`] (checks at the far side and the copy).

pub mod adopt;
pub mod arena;
pub mod context;
pub mod cq;
pub mod device;
mod error;
pub mod hang;
pub mod host;
mod lane;
pub mod mr;
mod owner_copy;
pub mod process;
pub mod qp;
pub mod reasons;
pub mod responder;
pub mod rq;
pub mod srq;

pub use context::async_events::{AsyncEvent, Element};
pub use context::{Context, Pd};
pub use cq::Cq;
pub use cq::channel::CompChannel;
pub use device::{Device, devices};
pub use error::{Error, Result};
pub use host::clock::{hca_clock_ns, now_ns, soon_ns};
pub use mr::Mr;
pub use mr::dm::Dm;
pub use mr::mw::Mw;
pub use process::Process;
pub use qp::ah::Ah;
pub use qp::sq::wqe::WorkRequest;
pub use qp::sq::wqe::{Bind, Data, SendRequest, UdDest};
pub use qp::{Poster, Qp, QpInit};
pub use srq::xrcd::Xrcd;
pub use srq::{Srq, SrqInit};
pub use vervain_iba::*;
