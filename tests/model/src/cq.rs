//! Completion queues: their rings and their arms.

#[path = "../../../crates/hca/src/cq/completion.rs"]
pub(crate) mod completion;
#[path = "../../../crates/hca/src/cq/notify.rs"]
pub(crate) mod notify;
#[path = "../../../crates/hca/src/cq/recv_ring.rs"]
pub(crate) mod recv_ring;
#[path = "../../../crates/hca/src/cq/rings.rs"]
pub(crate) mod rings;
#[path = "../../../crates/hca/src/cq/send_ring.rs"]
pub(crate) mod send_ring;
