//! Completion queues: their rings and their arms.

#[path = "../../../crates/device/hca/src/cq/completion.rs"]
pub(crate) mod completion;
#[path = "../../../crates/device/hca/src/cq/notify.rs"]
pub(crate) mod notify;
#[path = "../../../crates/device/hca/src/cq/recv_ring.rs"]
pub(crate) mod recv_ring;
#[path = "../../../crates/device/hca/src/cq/rings.rs"]
pub(crate) mod rings;
#[path = "../../../crates/device/hca/src/cq/send_ring.rs"]
pub(crate) mod send_ring;
