//! The device model of Vervain: protection domains, memory keys, queues, queue pairs and completion queues, kept in
//! shared-memory arenas, and the one responder that every link's operations end in.
//!
//! This crate knows neither C structs (crate `vervain-verbs`) nor sockets and packets (crate `vervain-link`).
//!
//! To follow an RDMA Write from `ibv_post_send` to the peer's memory, read: `vervain-verbs`' `post` (C work request to
//! [`wqe::SendRequest`]), [`short`] (what is done at once; the long way is `send_queue` and `requester`) and [`responder`]
//! with [`memory`] (checks at the far side and the copy).

pub mod adopt;
pub mod ah;
pub mod arena;
mod arm;
mod attention;
mod barrier;
pub mod channel;
mod completion;
pub mod context;
pub mod copy;
mod courtesy;
pub mod cq;
pub mod device;
pub mod dm;
mod error;
pub mod events;
pub mod far;
mod faults;
mod free_ranges;
pub mod gids;
pub mod grh;
pub mod guarded;
pub mod keys;
pub mod lane;
pub mod layout;
pub mod link;
pub mod lock;
pub mod mapped;
pub mod memory;
mod network;
mod numbers;
mod objects;
mod own_queue;
mod owner_copy;
mod packets;
pub mod patience;
mod peers;
mod pinnable;
pub mod process;
mod progress;
pub mod qp;
mod qp_life;
mod qp_modify;
mod qp_state;
mod raw;
pub mod recv_queue;
mod refusals;
mod requester;
pub mod responder;
mod revocation;
mod send_queue;
mod send_ring;
mod service;
pub mod sharing;
pub mod short;
pub mod space;
pub mod srq;
mod stream;
mod sysv;
pub mod tally;
pub mod tid;
pub mod types;
pub mod ud;
pub mod wake;
pub mod window;
pub mod wqe;

pub use ah::Ah;
pub use channel::{AsyncEvent, CompChannel, Element};
pub use context::{Context, Pd, Xrcd};
pub use cq::Cq;
pub use device::{Device, devices};
pub use dm::Dm;
pub use error::{Error, Result};
pub use keys::Mr;
pub use process::Process;
pub use qp::{Poster, Qp, QpInit};
pub use short::Work;
pub use srq::{Srq, SrqInit};
pub use types::*;
pub use window::Mw;
pub use wqe::{Bind, Data, Flush, SendRequest, UdDest};
