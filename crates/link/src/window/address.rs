//! Addresses of a window: the GID of a node, and the process of a QP number.

use vervain_hca::Gid;
use vervain_hca::arena::layout::slot_of;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::{Facts, PROCESSES};

/// The node with a GID, if that is of this window.
pub fn node(facts: &Facts, gid: &Gid) -> Option<u32> {
    let number = u64::from_be_bytes(*gid.last_chunk()?).checked_sub(1)?;
    let node = u32::try_from(number).ok().filter(|node| *node < facts.layout.nodes())?;
    (facts.gid(node) == *gid).then_some(node)
}

/// Which of its node's processes has a QP: the slots of process p are those with remainder p.
pub fn process(qpn: u32) -> u32 {
    slot_of(qpn) % PROCESSES
}

/// The process that has QP `qpn` of `node`.
pub fn peer(node: u32, qpn: u32) -> PeerId {
    PeerId { node, process: process(qpn) }
}
