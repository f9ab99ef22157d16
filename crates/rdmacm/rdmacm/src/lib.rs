//! The C ABI of librdmacm: connections by address (`man 7 rdma_cm`), over any device of Vervain's libibverbs.
//!
//! The kernel's rdma_cm, to which rdma-core's library talks, is here a part of the process: `manager` knows the
//! identifiers, and runs the connection manager's protocol (`vervain-cm`) over QP 1 (`vervain-gsi`). The other modules
//! translate between C's structs and it, and do what rdma-core's library does itself: move QPs, make queues. The
//! `librdmacm` crate gives the functions their versioned symbols.
#![allow(
    clippy::missing_safety_doc,
    reason = "every unsafe function here is called from C, and safe under the conditions of its man page, section 3"
)]

pub mod abi;
pub mod address;
mod addrinfo;
mod connect;
mod device;
mod endpoint;
mod errno;
mod ids;
mod manager;
mod qp;
mod queue;
mod reports;
pub mod verbs;

pub use addrinfo::*;
pub use connect::*;
pub use endpoint::*;
pub use ids::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_get_cm_event, rdma_get_dst_port, rdma_get_src_port, rdma_migrate_id, rdma_write_cm_event,
};
pub use qp::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp, rdma_destroy_srq,
};

/// Says good-bye to all peers: what the kernel does for a process that ends.
pub extern "C" fn process_ends() {
    manager::end_all();
}
