//! PM, the messages of SCore's cluster system: a process sends messages of up to 8 KiB to the others of its job, in
//! buffers that are the device's own, and reads and writes memory that they have locked. On any verbs device.
//!
//! A [`Context`] is one network of the job's processes, its *nodes*. Receive buffers are shared by all who send, so
//! that memory does not grow with the number of nodes; connections are made on first use. Nothing waits but
//! [`Context::open`], [`Context::close`] and the program's own select(2): what cannot be done at once is refused with
//! ENOBUFS or EBUSY.
//!
//! `libpm.so` and `pm.h` are the C interface over this crate (PMv2 of SCore, as in Sumimoto et al. 2004). docs/pm.md is
//! the guide.

mod agree;
mod asked;
mod checkpoint;
mod composite;
mod context;
mod device;
mod engine;
mod error;
mod image;
mod job;
mod lock;
mod locks;
mod messages;
mod nodes;
mod rdma;
mod receive;
mod rest;
mod save;
mod send;
mod settings;
mod shared;
mod standing;
mod thread;
mod unsent;
mod window;

pub use composite::Composite;
pub use context::Context;
pub use device::Device;
pub use error::{Error, Result};
pub use job::Hosts;
pub use locks::{AddrHandle, Whom};
pub use rdma::Direction;
pub use receive::Received;
pub use settings::Settings;
