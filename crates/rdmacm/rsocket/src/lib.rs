//! rsockets: the sockets API over RDMA that librdmacm exports, for streams and datagrams, with the protocol of
//! rdma-core's.
//!
//! - [`protocol`] is what two ends say to each other, by itself.
//! - [`fabric`] is what is needed of rdma_cm and verbs; `rdma` has it from Vervain's, unless another network was
//!   [installed](install).
//! - `link` is a stream on its QP, `stream` and `datagram` are sockets, `service` the thread beside them.
//! - `calls` is what both kinds have in common, `waiting` how calls sleep, `poll` what waits for many; `table` finds
//!   sockets by descriptors, [`c`] has the functions of C.
//!
//! A socket is named by a descriptor: that of its event channel, or of its UDP socket. The program must not pass it to
//! other calls than these.

pub mod c;
mod calls;
mod datagram;
pub mod fabric;
mod link;
mod memory;
mod options;
mod poll;
#[forbid(unsafe_code)]
pub mod protocol;
mod rdma;
mod service;
mod settings;
mod stream;
mod table;
mod waiting;

pub use table::install;
