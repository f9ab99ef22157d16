//! The answers of a kernel with an RDMA subsystem on a socket of NETLINK_RDMA, for Vervain's devices: `rdma` of
//! iproute2, libibverbs and the tests of rdma-core ask there which devices, ports and network interfaces there are.
//!
//! [`answer`] makes messages of messages; it knows no socket. The facts come from the view of sysfs
//! ([`Devices::read`]), so that both ways of asking agree. Numbers and shapes are those of the kernel's rdma_netlink.h
//! and of its nldev.

mod answer;
mod devices;
mod uapi;

pub use answer::answer;
pub use devices::{Chardev, Device, Devices, Port};
pub use uapi::NETLINK_RDMA;
